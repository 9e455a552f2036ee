"""On-chip memories: where buffers lie, and what is known to be there already."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlc.errors import ScheduleError
from mlc.vdla.codegen.stream import Places

UNKNOWN = -2


@dataclass(slots=True, eq=False)
class Instance:
    """One life of a buffer: an entry into the allocation around its uses.

    Attributes:
        name: of the buffer, for messages.
        size: elements.
        places: first elements that it may have, ``None`` for any.
        within: the range that it may lie in, ``None`` for the whole memory.
        base: first element, ``None`` until it is first written.
    """

    name: str
    size: int
    places: tuple[int, ...] | None = None
    within: tuple[int, int] | None = None
    base: int | None = None


@dataclass(slots=True, eq=False)
class Memory:
    """One on-chip memory while a stream is being made.

    Buffers without places of their own come one after another around the whole memory, so that what was there longest
    is overwritten first, and what is still used never. A buffer that is to hold what some place holds already takes
    that place and needs no load.

    Attributes:
        name: scope, for messages.
        depth: elements.
        next: where the next buffer goes.
        live: instances in use by their base and size; how many use them.
        content: what every element holds: an element of DRAM as a number, -1 for zeros, -2 for anything else.
    """

    name: str
    depth: int
    next: int = 0
    live: dict[tuple[int, int], int] = field(default_factory=dict)
    content: np.ndarray = field(init=False)
    turn: dict[tuple[int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.content = np.full(self.depth, UNKNOWN, np.int64)

    def reserve(self, size: int) -> int:
        """The begin of a range for buffers with places of their own."""
        if size > self.depth:
            raise ScheduleError(f"the buffers in {self.name} take {size} elements, it has {self.depth}")
        begin = self.next if self.next + size <= self.depth else 0
        self.next = begin + size
        return begin

    def place(self, it: Instance) -> int:
        """Where an instance lies; decided now if it was not."""
        if it.base is None:
            self._settle(it, self._turn(it) if it.places is not None else self._free(it))
        assert it.base is not None
        return it.base

    def find(self, it: Instance, offsets: np.ndarray, codes: np.ndarray) -> bool:
        """Put an instance where the memory holds what it is going to.

        Args:
            it: not yet placed.
            offsets: its elements that will be written, ascending, int64 ``[n]``.
            codes: what they will hold, int64 ``[n]``.
        Returns:
            whether there is such a place.
        """
        # zeros are everywhere: look for the first element that is none
        probe = int((codes >= 0).argmax())
        if it.places is not None:
            begins = [p for p in it.places if (p, it.size) not in self.live]
        else:
            begins = (np.flatnonzero(self.content == codes[probe]) - offsets[probe]).tolist()
        lo, hi = it.within or (0, self.depth)
        for begin in begins:
            if lo <= begin <= hi - it.size and np.array_equal(self.content[begin + offsets], codes):
                self._settle(it, begin)
                return True
        return False

    def overlap(self, it: Instance, step: int, offsets: np.ndarray, codes: np.ndarray) -> int:
        """Put an instance where what came last ends with what it begins with: the rows that two tiles share.

        Not where the next one of its size would have to come over it: that could not be loaded while this one is used.

        Args:
            it: not yet placed, without places of its own.
            step: elements from one row to the next.
            offsets, codes: as for :meth:`find`; the first one begins a row.
        Returns:
            how many rows are there already; 0 where it could not be placed so.
        """
        first = int(offsets[0])
        lo, hi = it.within or (0, self.depth)
        for rows in range((int(offsets[-1]) - first) // step, 0, -1):
            begin = self.next - rows * step - first
            count = int(np.searchsorted(offsets, first + rows * step))
            if (
                lo <= begin <= hi - it.size
                and (begin + 2 * it.size <= hi or lo + it.size <= begin)
                and np.array_equal(self.content[begin + offsets[:count]], codes[:count])
                and not any(base < begin + it.size and self.next < base + size for base, size in self.live)
            ):
                self._settle(it, begin)
                self.next = begin + it.size
                return rows
        return 0

    def release(self, it: Instance) -> None:
        """The instance is not used any more; its contents stay until they are overwritten."""
        if it.base is None:
            return
        key = it.base, it.size
        self.live[key] -= 1
        if not self.live[key]:
            del self.live[key]

    def wrote(self, where: Places, codes: np.ndarray | int = UNKNOWN) -> None:
        """Elements hold something else now."""
        self.content[where] = codes

    def forget(self, begin: int, end: int) -> None:
        """What the memory holds of the given range of numbers counts no more."""
        self.content[(self.content >= begin) & (self.content < end)] = UNKNOWN

    def _settle(self, it: Instance, base: int) -> None:
        it.base = base
        key = base, it.size
        self.live[key] = self.live.get(key, 0) + 1

    def _turn(self, it: Instance) -> int:
        places = it.places
        assert places is not None
        k = self.turn.get(places, 0)
        self.turn[places] = k + 1
        return places[k % len(places)]

    def _free(self, it: Instance) -> int:
        """The first range from where the last buffer ended, and around, that no live instance overlaps."""
        taken = sorted(self.live)
        lo, hi = it.within or (0, self.depth)
        middle = self.next if lo <= self.next <= hi else lo
        for start, end in ((middle, hi), (lo, min(middle + it.size, hi))):
            begin = start
            for base, size in taken:
                if base + size <= begin:
                    continue
                if begin + it.size <= base:
                    break
                begin = base + size
            if begin + it.size <= end:
                self.next = begin + it.size
                return begin
        used = sum(size for _, size in taken)
        raise ScheduleError(
            f"{it.name} takes {it.size} elements of {self.name}, which has {self.depth}, of which {used} are in use"
        )
