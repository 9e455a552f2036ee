"""How long threads take that compute with vectors and share nothing: operations, loads, and how many threads there are.

The counts are those of Midgard, the Malis whose arithmetic is on vectors: two arithmetic pipes and one for loads and
stores a core, each of which takes an instruction a cycle; and as many threads as registers allow (A. Lokhmotov, "ARM
Mali Compute Architecture Fundamentals", Arm, 2014: 256 with 4 registers of 128 bits, 128 with 8, 64 with 16).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf

from mlc.targets.gpu.record import Gpu

LOAD = 2  # operations in the time of a load: there are two pipes for them
IN_FLIGHT = 4  # sums of a thread that are added to side by side, at most
OTHERS = 2  # vectors of registers for addresses and counters

PIXELS, FILTERS = (1, 2, 4, 8), (1, 2, 4)


@dataclass(frozen=True)
class Work:
    """What the threads of a launch do, in vectors of the device's registers.

    Args:
        threads: in all.
        sums: vectors that each adds up, and as many are results.
        operations: multiplications with additions of each.
        loads: of each.
        held: vectors that it holds at a time, sums included.
        nbytes: that come from memory or go there, at least.
    """

    threads: int
    sums: int
    operations: int
    loads: int
    held: int
    nbytes: int


def active(held: int, target: Gpu) -> int:
    """Threads that a unit can hold, each of which holds so many vectors; 0 where they are spilled."""
    registers = (held + OTHERS) * target.vector_bytes // 4
    if registers > target.registers:
        return 0
    threads, most = target.threads, target.full_registers
    while registers > most:
        threads, most = threads // 2, most * 2
    return threads


def seconds(work: Work, target: Gpu) -> float:
    """What a launch is expected to take; infinite where a thread's registers do not suffice."""
    together = active(work.held, target)
    if not together:
        return inf
    each = 2 * (target.vector_bytes // 4) / (target.gflops * 1e9)  # of an operation, all units together
    per_unit = ceil(work.threads / target.units)
    words = max(work.operations, work.loads * LOAD) * each * per_unit * target.units
    hidden = min(1.0, min(together, per_unit) * min(work.sums, IN_FLIGHT) / target.threads)
    return max(words / hidden, work.nbytes / (target.gbytes * 1e9)) + target.launch_us * 1e-6


@dataclass(frozen=True)
class Tile:
    """What a thread makes.

    Args:
        pixels: next to each other (of a product: rows).
        filters: blocks of channels (of a product: of columns).
        row: whether it loads, a row of taps at a time, all pixels that these meet, and not those of each tap.
    """

    pixels: int
    filters: int
    row: bool


@dataclass(frozen=True)
class Conv:
    """A convolution as this model knows it.

    Args:
        images: rows of pixels in all images.
        columns: pixels of a row.
        blocks: of output channels.
        block: output channels of one.
        terms: input channels that are loaded at once.
        steps: how often that is done for each sum, times rows of taps.
        taps, stride, dilation: of the window along a row.
        itemsize: bytes of an element in memory.
        vector_bytes: of the device's registers.
        nbytes: of both operands and the result.
    """

    images: int
    columns: int
    blocks: int
    block: int
    terms: int
    steps: int
    taps: int
    stride: int
    dilation: int
    itemsize: int
    vector_bytes: int
    nbytes: int

    def work(self, tile: Tile) -> Work:
        """What a tile comes to; sums are of single precision whatever elements are."""

        def vectors(elements: int, size: int = 4) -> int:
            return ceil(elements * size / self.vector_bytes)

        wide, terms = vectors(self.block), self.terms
        span = (tile.pixels - 1) * self.stride + 1
        patch = span + (self.taps - 1) * self.dilation if tile.row else span
        loads = (patch if tile.row else span * self.taps) * vectors(terms, self.itemsize)
        loads += self.taps * terms * tile.filters * vectors(self.block, self.itemsize)
        sums = tile.pixels * tile.filters * wide
        held = sums + patch * vectors(terms) + tile.filters * wide
        threads = self.images * ceil(self.columns / tile.pixels) * ceil(self.blocks / tile.filters)
        return Work(threads, sums, self.steps * self.taps * terms * sums, self.steps * loads, held, self.nbytes)

    def tiles(self) -> Iterator[Tile]:
        """Every tile that the convolution is large enough for."""
        for pixels in PIXELS:
            for filters in FILTERS:
                if pixels < 2 * self.columns and self.blocks % filters == 0:
                    yield from (Tile(pixels, filters, row) for row in ((True, False) if self.taps > 1 else (False,)))


def best_tile(conv: Conv, target: Gpu) -> Tile:
    """The tile that is expected to be fastest; of those that are alike, the first one."""
    return min(conv.tiles(), key=lambda tile: seconds(conv.work(tile), target))


def refusal(conv: Conv, tile: Tile, target: Gpu) -> str:
    """Why a thread cannot make a tile, in a few words; empty where it can."""
    held = conv.work(tile).held + OTHERS
    have = target.registers * 4 // target.vector_bytes
    return f"about {held} vectors of registers of a thread, there are {have}" if held > have else ""
