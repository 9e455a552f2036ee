"""Tokens by structure: those that the lowering of virtual threads put into the loop nests, as flags of instructions.

The other way to order units, beside ``tokens``: simpler, and bound to the order and memory that threads give.
"""

from __future__ import annotations

from collections.abc import Callable

from mlc.errors import ScheduleError
from mlc.ir.loop import Evaluate, Stmt, Store
from mlc.lower.vthread import Units
from mlc.vdla.codegen.stream import Step
from mlc.vdla.intrinsics import INP, WGT
from mlc.vdla.isa.instruction import Unit, nop

_UNITS = {"ld": Unit.LD, "cmp": Unit.CMP, "st": Unit.ST}


def _unit_of(s: Stmt) -> str | None:
    if isinstance(s, Store):
        if s.buffer.scope == "global":
            return "st"
        return "ld" if s.buffer.scope in (INP, WGT) else "cmp"
    return "cmp" if isinstance(s, Evaluate) and s.intrinsic is not None else None


UNITS = Units(_unit_of, (("ld", "cmp"), ("cmp", "st")))


def is_token(s: Stmt) -> bool:
    """Whether a statement sends a token or waits for one."""
    return isinstance(s, Evaluate) and s.name in ("push", "pop")


class GivenTokens:
    """Sets flags while a stream is made.

    A token to wait for becomes a flag of the next instruction of its unit, a token to send one of the last; where that
    has the flag already, or other instructions of the unit stand in between, an instruction that does nothing has it.

    Args:
        add: appends to the stream.
    """

    def __init__(self, add: Callable[[Step], None]) -> None:
        self._add = add
        self._last: dict[Unit, Step] = {}
        self._waiting: dict[Unit, set[str]] = {u: set() for u in Unit}

    def appended(self, step: Step) -> None:
        """Note an instruction, which waits for all that its unit was told to."""
        unit = step.insn.unit
        for flag in self._waiting[unit]:
            setattr(step.insn, flag, True)
        self._waiting[unit] = set()
        self._last[unit] = step

    def token(self, s: Evaluate) -> None:
        """A statement that sends a token or waits for one.

        Raises:
            ScheduleError: it names units that cannot send each other tokens.
        """
        giver, taker = (_UNITS[name] for name in s.args)
        if abs(giver - taker) != 1:
            raise ScheduleError(f"{s!r}: there is no queue between these units")
        if s.name == "push":
            self.push(giver, taker)
        else:
            self.pop(giver, taker)

    def push(self, giver: Unit, taker: Unit) -> None:
        """Let the last instruction of a unit send a token."""
        flag = "push_next" if taker > giver else "push_prev"
        last = self._last.get(giver)
        if last is None or self._waiting[giver] or getattr(last.insn, flag):
            last = Step(nop(giver))
            self._add(last)
        setattr(last.insn, flag, True)

    def pop(self, giver: Unit, taker: Unit) -> None:
        """Let the next instruction of a unit wait for a token."""
        flag = "pop_prev" if giver < taker else "pop_next"
        if flag in self._waiting[taker]:
            self._add(Step(nop(taker)))
        self._waiting[taker].add(flag)

    def barrier(self) -> None:
        """Let all that comes next wait for all that was before."""
        self._gather()
        self._add(Step(nop(Unit.CMP)))
        for unit in (Unit.LD, Unit.ST):
            self.push(Unit.CMP, unit)
            self.pop(Unit.CMP, unit)

    def finish(self, step: Step) -> None:
        """Let FINISH, which comes next, wait for everything."""
        self._gather()
        self.appended(step)

    def _gather(self) -> None:
        """Let the next instruction of CMP wait for the other units."""
        for unit in (Unit.LD, Unit.ST):
            if self._waiting[unit] or unit in self._last:
                self.push(unit, Unit.CMP)
                self.pop(unit, Unit.CMP)
