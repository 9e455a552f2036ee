"""Who touches which element of the memory that threads share, during one launch of a kernel: races are found.

Between two barriers the threads of a block may run in any order on a machine, so an element that one of them writes
and another touches in the meantime is a race, whatever comes out here. Global memory is not synchronised within a
launch at all. An asynchronous copy arrives when its thread waits for it, as late as it may; to touch its place before,
even by the same thread, is a race.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import loop

_NOBODY, _MANY = -1, -2


@dataclass(eq=False)
class _Touched:
    """Who touched each element of a buffer since the last barrier, and who is copying to it."""

    writer: np.ndarray
    reader: np.ndarray
    copier: np.ndarray

    @classmethod
    def by_nobody(cls, size: int) -> _Touched:
        return cls(*(np.full(size, _NOBODY) for _ in range(3)))


@dataclass(frozen=True, eq=False)
class _Copies:
    """Asynchronous copies that have begun, one an element.

    Args:
        buffer, array: where to, and what it holds.
        at: places in there.
        values: what is copied.
        who: threads that copy.
        groups: how many groups each of them had committed before.
    """

    buffer: loop.Buffer
    array: np.ndarray
    at: np.ndarray
    values: np.ndarray
    who: np.ndarray
    groups: np.ndarray

    def only(self, chosen: np.ndarray) -> _Copies:
        parts = (x[chosen] for x in (self.at, self.values, self.who, self.groups))
        return _Copies(self.buffer, self.array, *parts)


@dataclass(eq=False)
class Trace:
    """The accesses of a launch. Threads are counted over all blocks, and places in elements from the begin of a buffer;
    of what every block has for itself, one block's lies behind the other's.

    Args:
        common: ids of the buffers that all blocks see.
        names: of a thread, for messages.

    Attributes:
        own: ids of the buffers that every block has for itself.
        blocks: that run at present.
    """

    common: frozenset[int]
    names: Callable[[int], str]
    own: Set[int] = frozenset()
    blocks: range = range(0)
    touched: dict[int, _Touched] = field(default_factory=dict)
    copies: list[_Copies] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)

    def enter(self, own: Set[int], blocks: range) -> None:
        """Other blocks run, and begin with memory of their own."""
        self.own, self.blocks = own, blocks
        for key in own:
            self.touched.pop(key, None)

    def barrier(self, blocks: np.ndarray) -> None:
        """The threads of some blocks have met: what they did to their own memory is over, but for what they copy."""
        for key in self.own & self.touched.keys():
            for array in (self.touched[key].writer, self.touched[key].reader):
                array.reshape(len(self.blocks), -1)[blocks - self.blocks.start] = _NOBODY

    def read(self, b: loop.Buffer, at: np.ndarray, who: np.ndarray) -> None:
        if (seen := self._of(b)) is None:
            return
        at, who = at.reshape(-1), who.reshape(-1)
        self._refuse_copied(b, at, who, seen, "read")
        self._refuse(b, at, who, seen.writer[at], "written", "read")
        before = seen.reader[at]
        seen.reader[at] = who  # of several that read the same, one stays
        several = ((before != _NOBODY) & (before != who)) | (seen.reader[at] != who)
        seen.reader[at[several]] = _MANY

    def write(self, b: loop.Buffer, at: np.ndarray, who: np.ndarray) -> None:
        if (seen := self._of(b)) is None:
            return
        at, who = at.reshape(-1), who.reshape(-1)
        self._refuse_copied(b, at, who, seen, "written")
        self._refuse(b, at, who, seen.writer[at], "written", "written")
        self._refuse(b, at, who, seen.reader[at], "read", "written")
        seen.writer[at] = who
        self._refuse(b, at, who, seen.writer[at], "written", "written")

    def begin(self, b: loop.Buffer, array: np.ndarray, at: np.ndarray, values: np.ndarray, who: np.ndarray) -> None:
        """Copies that some threads begin, after which :meth:`write` must have been told of them."""
        if (seen := self._of(b)) is not None:
            seen.copier[at] = who
        self.copies.append(_Copies(b, array, at, values, who, self._groups(who)))

    def commit(self, who: np.ndarray) -> None:
        """The copies that some threads have begun are a group of each."""
        for t in who.tolist():
            self.committed[t] = self.committed.get(t, 0) + 1

    def wait(self, latest: int, who: np.ndarray) -> None:
        """The copies of some threads arrive, except for some of their latest groups."""
        under_way = []
        for c in self.copies:
            over = np.isin(c.who, who) & (c.groups < self._groups(c.who) - latest)
            self._arrive(c.only(over))
            if not over.all():
                under_way.append(c.only(~over))
        self.copies = under_way

    def _arrive(self, c: _Copies) -> None:
        if (seen := self._of(c.buffer)) is not None:
            seen.copier[c.at], seen.writer[c.at] = _NOBODY, c.who
        c.array[c.at] = c.values

    def _groups(self, who: np.ndarray) -> np.ndarray:
        return np.array([self.committed.get(t, 0) for t in who.tolist()])

    def _of(self, b: loop.Buffer) -> _Touched | None:
        times = 1 if id(b) in self.common else len(self.blocks) if id(b) in self.own else 0
        if times and id(b) not in self.touched:
            self.touched[id(b)] = _Touched.by_nobody(times * b.size)
        return self.touched[id(b)] if times else None

    def _refuse_copied(self, b: loop.Buffer, at: np.ndarray, who: np.ndarray, seen: _Touched, now: str) -> None:
        copier = seen.copier[at]
        wrong = np.flatnonzero(copier != _NOBODY)
        if len(wrong):
            k = wrong[0]
            raise VerifyError(
                f"race on {_element(b, at[k])}: {now} by {self.names(who[k])}, while {self.names(copier[k])} copies to "
                "it without having waited"
            )

    def _refuse(
        self, b: loop.Buffer, at: np.ndarray, who: np.ndarray, others: np.ndarray, before: str, now: str
    ) -> None:
        wrong = np.flatnonzero((others != _NOBODY) & (others != who))
        if len(wrong):
            k = wrong[0]
            by = "several threads" if others[k] == _MANY else self.names(others[k])
            raise VerifyError(
                f"race on {_element(b, at[k])}: {before} by {by} and {now} by {self.names(who[k])}, with no barrier "
                "between"
            )


def _element(b: loop.Buffer, at: int) -> str:
    return f"{b.name}[{', '.join(map(str, np.unravel_index(int(at) % b.size, b.shape)))}] in {b.scope} memory"
