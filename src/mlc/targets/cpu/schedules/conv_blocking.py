"""How a blocked convolution is cut for the caches: blocks of pixels, chunks of input channels, and their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from mlc.ir import te
from mlc.lower.knobs import divisors
from mlc.targets.cpu.cost import HIDDEN, USABLE, Tile, bandwidth, ragged_steps
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_tile import BYTES, streamed
from mlc.targets.groups.group import best_divisor, size_of

# Part of the bandwidth from beyond the second-level cache that is left where each place in memory is read on by a few
# lines at a time (measured on Zen 5: 40 cycles a line for 192 channels of 8 × 56 × 56 under a window of 3 × 1 × 1).
SCATTERED = 0.1
FAR = 4  # times the second-level cache from which on that is so (2.9 MB lose nothing, 4.8 MB a sixth)
CACHED = 0.5  # part of the second-level cache that a block of inputs may take
LEAST_STEPS = 60  # of a tile in a chunk: its sums go to the cache and back, which takes as long as three
TILES = 4  # in a block at least
SMALL = 1 / 16  # part of the second-level cache that weights may take which are not fetched ahead
# Parts that threads share where each part keeps sums in its cache: so many, or one a core where panels of weights are
# more than a cache holds, since each part reads these once more.
TASKS = 8


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
# Sums take four times the room of the bytes that are summed up (measured on Zen 4 with 512 channels: a twentieth faster
# without chunks; on Zen 5, where such weights are two thirds of the cache, a hundredth).
PIXELS_OF_BYTES = Parts(0.7, 0.3, 0.4)


@dataclass(frozen=True)
class Blocking:
    """How a blocked convolution is cut for the caches.

    Args:
        block: rows (pixels, where these are one axis; slices or rows of a volume) that are computed together.
        pixels_first: whether a block is finished for all channels before the next begins, or channels for all blocks.
        chunk: input channels that are summed up over all pixels of a block before the next; ``None`` for all at once.
        axis: of space that is cut in blocks.
    """

    block: int
    pixels_first: bool
    chunk: int | None
    axis: int = 0


@lru_cache(maxsize=1024)  # every run of the template asks
def cut_for_caches(
    x: tuple[int, ...],
    y: tuple[int, ...],
    taps: tuple[int, ...],
    flat: bool,
    tile: Tile,
    target: Cpu,
    *,
    terms: int = 1,
) -> Blocking:
    """Blocks of pixels whose inputs stay in the second-level cache, chunks of channels whose weights stay in the first.

    Args:
        x: shape of the input, ``[n, c, …]``; a group of channels counts as an image.
        y: shape of the output, ``[n, o, …]``.
        taps: extents of the window.
        flat: whether pixels are one axis.
        tile: the register tile.
        target: gives the caches.
        terms: input channels that an instruction sums up; the input has so many times as many.
    """
    channels, space, window = x[1], y[2:], size_of(taps)
    volume = len(space) > 2 and taps[0] > 1 and not flat
    extents = (size_of(space),) if flat else space[: 2 if volume else 1]
    row = space[-1] if len(space) > 1 else 1
    lines = [
        target.lane_bytes * target.rows * channels * (size_of(x[2:]) // max(1, extent)) for extent in extents
    ]  # bytes of input for one more
    panel = target.lane_bytes * target.rows * channels * window * tile.vectors * target.lanes
    groups = -(-y[1] // (tile.vectors * target.lanes))
    inputs, weights = extents[0] * lines[0], groups * panel
    parts = WINDOWS if window > 1 else PIXELS_OF_BYTES if terms >= BYTES else PIXELS
    chunk = chunk_of(channels, window, tile, parts, target)
    least = min(TASKS, target.cores) if panel > USABLE * target.l2 else TASKS

    def held(block: int, axis: int) -> int:
        """Bytes of input that a block of rows reads; of a volume, with those that the window reaches."""
        return lines[axis] * (block + (taps[axis] - 1 if volume else 0))

    def choices(chunk: int | None) -> Iterator[Blocking]:
        for axis, extent in enumerate(extents):
            width = size_of(space) // max(1, extent)
            for block in range(1, extent + 1):
                if extent % block or block * width < TILES * tile.rows or (flat and block % target.rows):
                    continue
                if chunk is not None:
                    sums = target.lane_bytes * block * width * tile.vectors * target.lanes
                    if sums > parts.sums * target.l1 or x[0] * groups * (extent // block) < least:
                        continue
                if (chunk is not None or block == extent) and axis == 0:
                    yield Blocking(block, False, chunk)
                if block < extent and held(block, axis) <= (USABLE if axis else CACHED) * target.l2:
                    yield Blocking(block, True, chunk, axis)

    def cycles(cut: Blocking) -> float:
        extent = extents[cut.axis]
        count, width = extent // cut.block, size_of(space) // max(1, extent)
        rows = cut.block * width // max(1, row)
        steps = ragged_steps(cut.block, tile, target) if flat else rows * ragged_steps(row, tile, target)
        compute = groups * count * channels * window * steps
        if cut.pixels_first:
            read = held(cut.block, cut.axis) * count if volume else inputs
            load = read / _streamed(inputs, volume, target)
            load += count * weights / bandwidth(weights + held(cut.block, cut.axis), target)
        else:
            # slices under the window, where these are more than a cache holds, are read for each of its taps
            passes = taps[0] if volume and taps[0] * inputs // max(1, x[2]) > CACHED * target.l2 else 1
            load = groups * passes * inputs / _streamed(inputs + panel, volume, target)
        return max(compute, load) + (1 - HIDDEN) * min(compute, load)

    found = list(choices(chunk)) if chunk is not None else []
    found = found or list(choices(None)) or [Blocking(extents[0], False, None)]
    return min(found, key=lambda cut: (round(cycles(cut)), -cut.block))


def _streamed(working_set: float, volume: bool, target: Cpu) -> float:
    """Bytes a cycle of input. The rows of a volume under a window lie in more places than are fetched ahead."""
    far = volume and working_set > FAR * target.l2
    return bandwidth(working_set, target) * (SCATTERED if far else 1.0)


def chunks_of(channels: int, target: Cpu) -> list[int]:
    """Input channels that there may be in a chunk: whole vectors, and as many in each but a ragged last one.

    >>> machine = Cpu("generic", (), lanes=16, registers=32)
    >>> chunks_of(64, machine), chunks_of(184, machine), chunks_of(24, machine), chunks_of(8, machine)
    ([16, 32], [16, 32, 48, 64, 96], [16], [])
    """
    blocks = -(-channels // target.lanes)
    if channels % target.lanes == 0:
        return [k * target.lanes for k in divisors(blocks)[:-1]]
    return sorted({-(-blocks // n) * target.lanes for n in range(2, blocks + 1)})


def chunk_of(channels: int, taps: int, tile: Tile, parts: Parts, target: Cpu) -> int | None:
    """Input channels whose weights for a register tile stay in the first-level cache; ``None`` for all of them.

    Channels that are no whole vectors have a ragged last chunk. They are cut only where the second-level cache does not
    hold the weights of a tile, which reads them faster than they come from beyond it, and into parts that it holds
    (measured on Zen 5 with 184 and 200 channels under 3 × 3 × 3 taps: 1.1 to 1.25 times as fast; where tiles of 8 × 2
    read more slowly, 0.95 times).
    """
    each = target.lane_bytes * target.rows * taps * tile.vectors * target.lanes
    if channels * each <= parts.whole * target.l1:
        return None
    if channels % target.lanes:
        if taps == 1 or channels * each <= USABLE * target.l2 or streamed(tile, target) <= target.l3_bandwidth:
            return None
        some = chunks_of(channels, target)
        return max((k for k in some if k * each <= CACHED * target.l2), default=min(some, default=None))
    least = -(-LEAST_STEPS // (taps * target.lanes))
    few = best_divisor(channels // target.lanes, max(least, int(parts.chunk * target.l1) // (each * target.lanes)))
    return few * target.lanes if least <= few < channels // target.lanes else None


def come_from_far(weights: te.Tensor, target: Cpu) -> bool:
    """Whether weights are fetched ahead, a panel while the one before is used: all but those of small layers.

    From one run of a network to the next its other layers take the second-level cache, so weights come from beyond it,
    however few they are. They are read in order, and yet each line takes long enough to come to leave the core idle
    (measured on Zen 3 with 1024 × 1024 channels on 7 × 7 pixels: 86 % of peak without, 97 % with; on Zen 5, of networks
    whose weights lie in the third-level cache, 0.95 to 0.98 times the time of those in floats where it had been done
    beyond the second-level cache's size only, and as fast or up to a hundredth slower from an eighth on).
    """
    return weights.size * weights.dtype.itemsize > SMALL * target.l2
