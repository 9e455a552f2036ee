"""DMA matching: which transfers a nest of copies is.

In: a nest that copies whole elements between DRAM and an on-chip memory, affine in its loops; some elements may be zero
because they lie outside of the tensor. Out: the fewest transfers of at most two dimensions, relative to where the nest
begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from mlc.vdla.isa.instruction import Load, Mem, Store

_MAX_PAD = 15
_MAX_COUNT = (1 << 16) - 1


@dataclass(frozen=True)
class Dim:
    """A loop of a copy.

    Args:
        extent: iterations.
        sram: on-chip elements from one iteration to the next.
        dram: elements of DRAM from one iteration to the next.
        lo, hi: the iterations that copy; the others write zero.
    """

    extent: int
    sram: int
    dram: int
    lo: int
    hi: int

    @property
    def full(self) -> bool:
        """Whether every iteration copies."""
        return self.lo == 0 and self.hi == self.extent


@dataclass(frozen=True)
class Block:
    """One transfer: ``rows x width`` elements, ``stride`` apart in DRAM, dense on the chip, with zeros around them."""

    sram: int
    dram: int
    rows: int
    width: int
    stride: int
    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def load(self, mem: Mem, sram: int, dram: int) -> Load:
        """The load of this block where the nest begins at the given elements."""
        return Load(
            mem, sram + self.sram, dram + self.dram if self.rows else 0, self.rows, self.width,
            self.stride, self.top, self.bottom, self.left, self.right,
        )  # fmt: skip

    def store(self, mem: Mem, sram: int, dram: int, shift: int, relu: bool) -> Store:
        """The store of this block."""
        return Store(mem, sram + self.sram, dram + self.dram, self.rows, self.width, self.stride, shift, relu)


@lru_cache(maxsize=4096)
def blocks(dims: tuple[Dim, ...], split: int = 0) -> tuple[Block, ...]:
    """The transfers of a nest, in its order.

    Neighbouring dimensions that go on evenly become one, and so does one with a border of zeros and what lies whole
    inside of it, where that leaves fewer; the last two are one transfer; the others are enumerated.

    Args:
        dims: the loops, outermost first.
        split: how many of the outermost loops with more than one iteration are enumerated in any case.
    """
    if any(d.lo >= d.hi for d in dims):
        return tuple(_zeros(dims))
    loops = [d for d in dims if d.extent > 1]
    fixed, rest = loops[:split], _bordered(_folded(loops[split:]))
    unit = Dim(1, 1, 1, 0, 1)
    x = rest.pop() if rest and rest[-1].sram == rest[-1].dram == 1 else unit
    y = unit
    if rest and rest[-1].sram == x.extent and 0 <= rest[-1].dram <= _MAX_COUNT:
        y = rest.pop()
    return tuple(b for at in _places([*fixed, *rest]) for b in _two_dimensional(y, x, *at))


def _folded(loops: Sequence[Dim]) -> list[Dim]:
    """The loops by their step on the chip, the greatest first, made one where that changes nothing."""
    out: list[Dim] = []
    for d in sorted(loops, key=lambda d: -d.sram):
        while out and out[-1].full and d.full and _goes_on(out[-1], d):
            outer = out.pop()
            n = outer.extent * d.extent
            d = Dim(n, d.sram, d.dram, 0, n)
        out.append(d)
    return out


def _bordered(loops: list[Dim]) -> list[Dim]:
    """The loops with those of a border made one with what lies whole inside of it, while a transfer has too few.

    Rows of all blocks of channels, ``[h, c, w]``, are ``h * c`` rows then, whose border is as many times as high.
    """
    found = list(loops)
    while len(found) > 2:
        for k in range(len(found) - 2, -1, -1):
            outer, inner = found[k : k + 2]
            n, lo, hi = inner.extent, outer.lo * inner.extent, outer.hi * inner.extent
            # a border beside a row has to fit into its field, one above it may be transfers of its own
            fits = k < len(found) - 2 or max(lo, outer.extent * n - hi) <= _MAX_PAD
            if inner.full and fits and _goes_on(outer, inner):
                found[k : k + 2] = [Dim(outer.extent * n, inner.sram, inner.dram, lo, hi)]
                break
        else:
            break
    return found


def _goes_on(outer: Dim, inner: Dim) -> bool:
    n = inner.extent
    return outer.sram == n * inner.sram and outer.dram == n * inner.dram and outer.extent * n <= _MAX_COUNT


def _places(loops: Sequence[Dim]) -> Iterator[tuple[int, int, bool]]:
    """Offset on the chip and in DRAM of every iteration, and whether it copies."""
    for at in product(*(range(d.extent) for d in loops)):
        copies = all(d.lo <= k < d.hi for k, d in zip(at, loops, strict=True))
        yield (
            sum(k * d.sram for k, d in zip(at, loops, strict=True)),
            sum(k * d.dram for k, d in zip(at, loops, strict=True)),
            copies,
        )


def _two_dimensional(y: Dim, x: Dim, sram: int, dram: int, copies: bool) -> Iterator[Block]:
    if not copies:
        yield _zero(sram, y.extent * x.extent)
        return
    top, bottom, left, right = y.lo, y.extent - y.hi, x.lo, x.extent - x.hi
    width, stride = x.hi - x.lo, y.dram if y.extent > 1 else x.hi - x.lo
    dram += y.lo * y.dram + x.lo * x.dram
    if max(left, right) > _MAX_PAD:
        if top:
            yield _zero(sram, top * x.extent)
        for k in range(y.lo, y.hi):
            row = sram + k * x.extent
            if left:
                yield _zero(row, left)
            yield Block(row + left, dram + (k - y.lo) * stride, 1, width, width)
            if right:
                yield _zero(row + left + width, right)
        if bottom:
            yield _zero(sram + y.hi * x.extent, bottom * x.extent)
        return
    above, below = max(0, top - _MAX_PAD), max(0, bottom - _MAX_PAD)
    if above:
        yield _zero(sram, above * x.extent)
    yield Block(
        sram + above * x.extent, dram, y.hi - y.lo, width, stride, top - above, bottom - below, left, right
    )  # fmt: skip
    if below:
        yield _zero(sram + (y.extent - below) * x.extent, below * x.extent)


def _zero(sram: int, count: int) -> Block:
    """Zeros only: a row of padding above nothing."""
    return Block(sram, 0, 0, count, count, top=1)


def _zeros(dims: Sequence[Dim]) -> Iterator[Block]:
    loops = _folded([replace(d, dram=d.sram, lo=0, hi=d.extent) for d in dims if d.extent > 1])
    dense = loops.pop() if loops and loops[-1].sram == 1 else Dim(1, 1, 1, 0, 1)
    for sram, _, _ in _places(loops):
        yield _zero(sram, dense.extent)


@lru_cache(maxsize=4096)
def contents(dims: tuple[Dim, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What a nest leaves on the chip, relative to where it begins.

    Returns:
        on-chip elements written, ascending, and the element of DRAM that each holds, -1 for zero; int64 ``[n]`` both.
    """
    n = prod(d.extent for d in dims)
    sram, dram, copies = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, bool)
    for d in dims:
        k = np.arange(d.extent)
        sram = (sram[:, None] + k * d.sram).reshape(-1)
        dram = (dram[:, None] + k * d.dram).reshape(-1)
        copies = (copies[:, None] & (k >= d.lo) & (k < d.hi)).reshape(-1)
    assert len(sram) == n
    order = np.argsort(sram, kind="stable")
    return sram[order], np.where(copies, dram, -1)[order]
