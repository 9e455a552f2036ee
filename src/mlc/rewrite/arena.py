"""Placing blocks of known size and lifetime in one arena (an instance of dynamic storage allocation).

Greedy best fit, in two orders of which the better counts: by size, the biggest first, and by time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
SIZE_ORDER_MOST = 4096  # blocks; placing by size compares every two of them


@dataclass(frozen=True)
class Block:
    """A piece of memory.

    Args:
        size: bytes.
        first: step that fills it.
        last: last step that reads it, >= ``first``.
    """

    size: int
    first: int
    last: int


def rounded(size: int, alignment: int = ALIGNMENT) -> int:
    """``size`` rounded up to the alignment."""
    return -(-size // alignment) * alignment


def place(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """An offset for every block, and the size of the arena.

    Blocks whose lifetimes (both ends included) meet never overlap; offsets are multiples of ``ALIGNMENT``.
    """
    best = _by_time(blocks)
    # by size may be better, unless by time is as good as can be
    if len(blocks) <= SIZE_ORDER_MOST and best[1] > live_bytes(blocks):
        other = _by_size(blocks)
        best = min(best, other, key=lambda result: result[1])
    return best


def live_bytes(blocks: Sequence[Block]) -> int:
    """The most bytes that live in one step: no arena can be smaller."""
    change: dict[int, int] = {}
    for b in blocks:
        change[b.first] = change.get(b.first, 0) + rounded(b.size)
        change[b.last + 1] = change.get(b.last + 1, 0) - rounded(b.size)
    most = now = 0
    for step in sorted(change):
        now += change[step]
        most = max(most, now)
    return most


def _by_time(blocks: Sequence[Block]) -> tuple[list[int], int]:
    offsets = [0] * len(blocks)
    peak = 0
    arena = _Arena()
    living: list[tuple[int, int, int]] = []  # (last step, offset, end), the first to die on top
    for k in sorted(range(len(blocks)), key=lambda k: (blocks[k].first, -blocks[k].size)):
        b = blocks[k]
        size = rounded(b.size)
        if size == 0:
            continue
        while living and living[0][0] < b.first:
            _, begin, end = heappop(living)
            arena.release(begin, end)
        offsets[k] = arena.take(size)
        heappush(living, (b.last, offsets[k], offsets[k] + size))
        peak = max(peak, arena.end)
    return offsets, peak


class _Arena:
    """The gaps between living blocks, so that finding the best one takes no look at the blocks.

    Attributes:
        end: where the last living block ends; all behind it is free.
    """

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # (size, begin) of every gap, sorted
        self._ends: dict[int, int] = {}  # of each gap by its beginning
        self._begins: dict[int, int] = {}  # and the other way round

    def take(self, size: int) -> int:
        """The beginning of the smallest gap that fits, the first of several; else the end of all blocks."""
        at = bisect_left(self._by_size, (size, -1))
        if at == len(self._by_size):
            begin, self.end = self.end, self.end + size
            return begin
        _, begin = self._by_size[at]
        end = self._drop(begin)
        if begin + size < end:
            self._add(begin + size, end)
        return begin

    def release(self, begin: int, end: int) -> None:
        """A block dies; its gap joins those beside it."""
        if begin in self._begins:
            before = self._begins[begin]
            self._drop(before)
            begin = before
        if end in self._ends:
            end = self._drop(end)
        if end == self.end:
            self.end = begin
        else:
            self._add(begin, end)

    def _add(self, begin: int, end: int) -> None:
        insort(self._by_size, (end - begin, begin))
        self._ends[begin], self._begins[end] = end, begin

    def _drop(self, begin: int) -> int:
        end = self._ends.pop(begin)
        del self._begins[end]
        self._by_size.pop(bisect_left(self._by_size, (end - begin, begin)))
        return end


def _by_size(blocks: Sequence[Block]) -> tuple[list[int], int]:
    count = len(blocks)
    offsets, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    firsts = np.array([b.first for b in blocks], np.int64)
    lasts = np.array([b.last for b in blocks], np.int64)
    placed = np.zeros(count, bool)
    for k in sorted(range(count), key=lambda k: (-blocks[k].size, blocks[k].first)):
        b = blocks[k]
        size = rounded(b.size)
        if size == 0:
            continue
        meets = np.flatnonzero(placed & (firsts <= b.last) & (lasts >= b.first))
        taken = sorted(zip(offsets[meets].tolist(), ends[meets].tolist(), strict=True))
        offsets[k] = _best_gap(taken, size)
        ends[k] = offsets[k] + size
        placed[k] = True
    return offsets.tolist(), int(ends.max(initial=0))


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that fits between ranges sorted by offset, else the end of them all."""
    best, room = -1, -1
    free = 0
    for begin, end in taken:
        gap = begin - free
        if gap >= size and (room < 0 or gap < room):
            best, room = free, gap
        free = max(free, end)
    return free if best < 0 else best
