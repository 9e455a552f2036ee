"""How a blocked convolution is cut for the caches: blocks of pixels, chunks of input channels, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlc.targets.cpu.cost import HIDDEN, Tile, bandwidth, ragged_steps
from mlc.targets.cpu.record import Cpu
from mlc.targets.groups.group import best_divisor, size_of

CACHED = 0.5  # part of the second-level cache that a block of inputs may take
LEAST_STEPS = 60  # of a tile in a chunk: its sums go to the cache and back, which takes as long as three
TILES = 4  # in a block at least
TASKS = 8  # parts that threads share where each part keeps sums in its cache


class Parts(NamedTuple):
    """Parts of the first-level cache.

    Args:
        whole: that the weights of a register tile may take before their channels are cut in chunks.
        chunk: that the weights of a chunk take at most.
        sums: that the sums of a block of pixels take at most, which stay there between two chunks.
    """

    whole: float
    chunk: float
    sums: float


# A window's taps share their inputs. Single pixels stream in, so less is left for weights, and another thread of the
# core may take half of the cache. Measured on Zen 3 with 256 to 2048 channels, with chunks of a quarter of the
# cache in place of a half: a twentieth faster while that thread sleeps, an eighth to a third while it works.
WINDOWS = Parts(1.5, 0.6, 1.0)
PIXELS = Parts(0.3, 0.3, 0.4)


@dataclass(frozen=True)
class Blocking:
    """How a blocked convolution is cut for the caches.

    Args:
        block: rows (pixels, where these are one axis) that are computed together.
        pixels_first: whether a block is finished for all channels before the next begins, or channels for all blocks.
        chunk: input channels that are summed up over all pixels of a block before the next; ``None`` for all at once.
    """

    block: int
    pixels_first: bool
    chunk: int | None


def cut_for_caches(x: Sequence[int], y: Sequence[int], taps: int, flat: bool, tile: Tile, target: Cpu) -> Blocking:
    """Blocks of pixels whose inputs stay in the second-level cache, chunks of channels whose weights stay in the first.

    Args:
        x: shape of the input, ``[n, c, …]``; a group of channels counts as an image.
        y: shape of the output, ``[n, o, …]``.
        taps: of the window.
        flat: whether pixels are one axis.
        tile: the register tile.
        target: gives the caches.
    """
    channels, space = x[1], y[2:]
    extent, width = (size_of(space), 1) if flat else (space[0], size_of(space[1:]))
    line = 4 * channels * (size_of(x[2:]) // max(1, extent))  # bytes of input for one more row of output
    panel = 4 * channels * taps * tile.vectors * target.lanes
    groups = -(-y[1] // (tile.vectors * target.lanes))
    inputs, weights = extent * line, groups * panel
    blocks = [k for k in range(1, extent + 1) if extent % k == 0 and k * width >= TILES * tile.rows]
    parts = WINDOWS if taps > 1 else PIXELS
    chunk = chunk_of(channels, taps, tile, parts, target)

    def choices(chunk: int | None) -> Iterator[Blocking]:
        for block in blocks:
            if chunk is not None:
                sums = 4 * block * width * tile.vectors * target.lanes
                if sums > parts.sums * target.l1 or x[0] * groups * (extent // block) < TASKS:
                    continue
            if chunk is not None or block == extent:
                yield Blocking(block, False, chunk)
            if block < extent and block * line <= CACHED * target.l2:
                yield Blocking(block, True, chunk)

    def cycles(cut: Blocking) -> float:
        count = extent // cut.block
        tiles = ragged_steps(cut.block, tile, target) if flat else cut.block * ragged_steps(width, tile, target)
        compute = groups * count * channels * taps * tiles
        if cut.pixels_first:
            load = inputs / bandwidth(inputs, target) + count * weights / bandwidth(weights + cut.block * line, target)
        else:
            load = groups * inputs / bandwidth(inputs + panel, target)
        return max(compute, load) + (1 - HIDDEN) * min(compute, load)

    found = list(choices(chunk)) if chunk is not None else []
    found = found or list(choices(None)) or [Blocking(extent, False, None)]
    return min(found, key=lambda cut: (round(cycles(cut)), -cut.block))


def chunk_of(channels: int, taps: int, tile: Tile, parts: Parts, target: Cpu) -> int | None:
    """Input channels whose weights for a register tile stay in the first-level cache; ``None`` for all of them."""
    each = 4 * taps * tile.vectors * target.lanes
    if channels * each <= parts.whole * target.l1 or channels % target.lanes:
        return None
    least = -(-LEAST_STEPS // (taps * target.lanes))
    few = best_divisor(channels // target.lanes, max(least, int(parts.chunk * target.l1) // (each * target.lanes)))
    return few * target.lanes if least <= few < channels // target.lanes else None
