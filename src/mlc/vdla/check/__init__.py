"""The stream checker: a stream that passes gives, however its units interleave, what it gives in its own order.

A stream is *valid* when every pop has its push before it, no queue can fill up for good, every conflicting pair of
accesses to an on-chip element or a granule of DRAM is ordered, nothing is read that was never written, every access
lies within its memory or its buffer, outputs are written to their last byte, and FINISH waits for everything. From
the first two follows that no unit waits forever: of the instructions not done yet the earliest can always run.
"""

from __future__ import annotations

from mlc.vdla.assembly import line_of
from mlc.vdla.check.memory import Walk
from mlc.vdla.check.tokens import clocks, finish, match
from mlc.vdla.check.violation import Kind, Violation
from mlc.vdla.program import Program

__all__ = ["Kind", "Violation", "check", "describe"]


def check(program: Program, *, limit: int = 100) -> list[Violation]:
    """Everything that is wrong with a program's stream.

    Addresses are those of buffers laid one after another; two buffers never share a granule. Where tokens do not match,
    races would only repeat that, and are not looked for.

    Args:
        program: what to check.
        limit: report at most so many violations.
    Returns:
        the violations, those of tokens first, each in the order of the stream; empty for a valid stream.
    Raises:
        ProgramError: the program is illegal beyond its stream's meaning (see ``Program.verify``).
    """
    program.verify()
    stream = program.instructions
    tokens = match(stream, program.config.dep_queue_depth)
    known = clocks(stream)
    tokens += finish(stream, known)
    mismatched = any(violation.kind is not Kind.UNFINISHED for violation in tokens)
    return [*tokens, *Walk(program, known, races=not mismatched, limit=limit).walk()][:limit]


def describe(program: Program, violation: Violation) -> str:
    """A violation with the text of its instructions, on two or three lines."""
    places = [violation.second] if violation.first is None else [violation.first, violation.second]
    lines = [f"  {at:04} {line_of(program, at)}" for at in places if at < len(program.instructions)]
    return "\n".join([f"{violation.kind}: {violation.what}", *lines])
