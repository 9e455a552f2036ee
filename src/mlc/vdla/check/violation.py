"""What can be wrong with a stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The ways in which a stream is not valid."""

    UNDERFLOW = "UNDERFLOW"  # a pop that no push answers
    LEFTOVER = "LEFTOVER"  # a push that no pop takes
    INVERSION = "INVERSION"  # a push that comes later in the stream than its pop
    OVERFLOW = "OVERFLOW"  # a push that may find its queue full before the pop that would make room can run
    RAW = "RAW"  # a read that may happen before the write it wants
    WAR = "WAR"  # a write that may happen before a read of what it replaces
    UNINIT = "UNINIT"  # a read of what nobody wrote
    BOUNDS = "BOUNDS"  # an access beyond an on-chip memory or a buffer
    ABSOLUTE = "ABSOLUTE"  # an access to DRAM without a relocation: it may hit anything, and nobody can tell what
    READONLY = "READONLY"  # a store into a buffer that is not the program's to write
    UNKNOWN = "UNKNOWN"  # micro-ops from memory whose contents are not part of the program
    UNWRITTEN = "UNWRITTEN"  # an output that the program does not write to its last byte
    UNFINISHED = "UNFINISHED"  # an instruction that FINISH does not wait for


@dataclass(frozen=True)
class Violation:
    """One fault: its kind, the instructions it is between, and where.

    Attributes:
        kind: what is wrong.
        first: index of the earlier instruction in the stream, or None where only one is involved.
        second: index of the later one.
        what: the queue or the memory's element, and why that is wrong.
    """

    kind: Kind
    first: int | None
    second: int
    what: str

    def __str__(self) -> str:
        between = f"{self.second}" if self.first is None else f"{self.first} and {self.second}"
        return f"{self.kind}: instruction{'' if self.first is None else 's'} {between}: {self.what}"
