"""Placing blocks of known size and lifetime in one arena (an instance of dynamic storage allocation).

Greedy best fit, in two orders of which the better counts: by size, the biggest first, and by time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
SIZE_ORDER_MOST = 8192  # blocks; placing by size compares every two of them


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


def rounded(size: int) -> int:
    """``size`` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """An offset for every block, and the size of the arena.

    Blocks whose lifetimes (both ends included) meet never overlap; offsets are multiples of ``ALIGNMENT``.
    """
    best = _by_time(blocks)
    if len(blocks) <= SIZE_ORDER_MOST:
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
    active: list[tuple[int, int, int]] = []  # (offset, end, last step), by offset
    for k in sorted(range(len(blocks)), key=lambda k: (blocks[k].first, -blocks[k].size)):
        b = blocks[k]
        size = rounded(b.size)
        if size == 0:
            continue
        active = [a for a in active if a[2] >= b.first]
        offsets[k] = _best_gap([(a[0], a[1]) for a in active], size)
        insort(active, (offsets[k], offsets[k] + size, b.last))
        peak = max(peak, offsets[k] + size)
    return offsets, peak


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
