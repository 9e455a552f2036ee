"""How long a tiled product takes, as far as a default needs it: what bounds a block, and how many blocks run at once.

The greatest of three times counts, each a throughput of the device: of arithmetic, of global memory, and of shared
memory. Where there are too few threads to hide latency, all of them grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nsmallest
from math import ceil

from mlc.targets.gpu.record import Gpu

HIDING = 8  # warps that a unit needs to hide the latency of arithmetic and shared memory
SHARED_RATE = 0.25  # words a thread loads from shared memory in the time of a multiplication and addition
CACHED = 0.5  # of the traffic between blocks and global memory goes past the caches
BANKS = 32  # of shared memory, a word wide
OVERHEAD = 16  # registers for addresses and counters
LATENCY = 4e-7  # seconds from a load of global memory to its value; 400 to 700 cycles on what was ever measured
FEW = 48  # tiles that are fast if nothing waits; which versions suit them is looked at then
VERSIONS = (1, 2, 3, 4)  # of what is fetched ahead

ROWS, THREADS, DEPTHS = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), (4, 8, 16, 32)


@dataclass(frozen=True)
class Product:
    """``batch`` products of ``m × k`` and ``k × n``, of elements of so many bytes."""

    batch: int
    m: int
    n: int
    k: int
    itemsize: int


@dataclass(frozen=True)
class Tile:
    """How a block makes its part.

    Args:
        rows, columns: of a thread's tile, in registers.
        ty, tx: threads along rows and columns.
        depth: terms that are in shared memory at a time,
        versions: in so many parts, all but one of which are fetched ahead.
    """

    rows: int
    columns: int
    ty: int
    tx: int
    depth: int
    versions: int = 1

    @property
    def high(self) -> int:
        return self.rows * self.ty

    @property
    def wide(self) -> int:
        return self.columns * self.tx


def fitted(tile: Tile, p: Product) -> Tile:
    """The tile without what would lie beyond the product's end in any case."""
    rows, columns = min(tile.rows, p.m), min(tile.columns, p.n)
    ty, tx = min(tile.ty, ceil(p.m / rows)), min(tile.tx, ceil(p.n / columns))
    depth = min(tile.depth, p.k)
    return Tile(rows, columns, ty, tx, depth, min(tile.versions, ceil(p.k / depth)))


def offset(depth: int) -> int:
    """What the pitch of a part of an operand is modulo ``BANKS``, for rows of a column to lie in different banks."""
    return max(1, BANKS // depth)


def shared_bytes(tile: Tile, p: Product) -> int:
    """Of a block's parts of both operands, with the gaps that either may have."""
    pitches = sum(n + (offset(tile.depth) - n) % BANKS for n in (tile.high, tile.wide))
    return pitches * tile.depth * p.itemsize * tile.versions


def refusal(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> str:
    """Why a block cannot run, in a few words; empty where it can."""
    if tile.ty * tile.tx > target.max_threads:
        return f"{tile.ty * tile.tx} threads of a block, {target.max_threads} are the most"
    if shared and shared_bytes(tile, p) > target.shared_bytes:
        return f"{shared_bytes(tile, p)} bytes of shared memory, there are {target.shared_bytes}"
    held = (tile.rows * tile.columns + tile.rows + tile.columns) * max(1, p.itemsize // 4) + OVERHEAD
    if held > target.registers:
        return f"about {held} registers of a thread, there are {target.registers}"
    return ""


def seconds(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> float:
    """What a product is expected to take."""
    busy = busy_seconds(tile, p, target, shared=shared)
    waves = ceil(_blocks(tile, p) / (target.units * _together(tile, p, target, shared=shared)))
    waiting = waves * stalls(ceil(p.k / tile.depth), tile.versions, busy / waves) if shared else 0
    return busy + waiting + target.launch_us * 1e-6


def _blocks(tile: Tile, p: Product) -> int:
    return p.batch * ceil(p.m / tile.high) * ceil(p.n / tile.wide)


def _threads(tile: Tile, target: Gpu) -> int:
    """Of a block, whole warps."""
    return ceil(tile.ty * tile.tx / target.warp) * target.warp


def _together(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> int:
    """Blocks that a unit runs at the same time, where there are enough."""
    together = max(1, min(target.threads // _threads(tile, target), 16))
    return max(1, min(together, target.shared_of_unit // max(1, shared_bytes(tile, p)))) if shared else together


def busy_seconds(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> float:
    """What it takes without waiting for memory."""
    blocks, threads = _blocks(tile, p), _threads(tile, target)
    together = _together(tile, p, target, shared=shared)
    waves = ceil(blocks / (target.units * together))
    per_unit = min(together, ceil(blocks / target.units))
    hidden = min(1.0, per_unit * tile.ty * tile.tx / (HIDING * target.warp))  # lanes that do nothing hide nothing
    # the last wave takes as long as the others, however few blocks are in it
    steps = waves * together * target.units * threads * tile.rows * tile.columns * p.k
    steps = min(steps, ceil(blocks / target.units) * target.units * threads * tile.rows * tile.columns * p.k)
    arithmetic = 2 * steps / (target.gflops * 1e9)
    loads = (tile.rows + tile.columns) / (tile.rows * tile.columns)
    local = arithmetic * loads / SHARED_RATE
    moved = blocks * (tile.high + tile.wide) * p.k * p.itemsize * (CACHED if shared else 1.0)
    traffic = (moved + p.batch * p.m * p.n * p.itemsize) / (target.gbytes * 1e9)
    rounds = arithmetic * (2 / tile.depth if shared else 0)  # barriers, and addresses of what is fetched
    return (max(arithmetic, local, traffic) + rounds) / hidden


def stalls(steps: int, versions: int, busy: float) -> float:
    """Seconds for which a unit waits for memory while its blocks go once through all steps of their products.

    Args:
        steps: after each of which a block needs its next parts.
        versions: of these; all but one are fetched ahead.
        busy: seconds that the steps take otherwise.
    """
    if versions == 1:  # other blocks may compute meanwhile, which is a matter of how many there are
        return steps * LATENCY / 2
    return max(0.0, steps * LATENCY / (versions - 1) - busy)


def tiles(p: Product, target: Gpu, *, shared: bool) -> Iterator[Tile]:
    """Every tile that fits the product and the device."""
    found = dict.fromkeys(
        fitted(Tile(r, c, ty, tx, d), p)
        for r in ROWS
        for c in ROWS
        for ty in THREADS
        for tx in THREADS
        for d in (DEPTHS if shared else DEPTHS[:1])
    )
    return (t for t in found if not refusal(t, p, target, shared=shared))


@lru_cache(maxsize=4096)
def best_tile(p: Product, target: Gpu, *, shared: bool) -> Tile:
    """The tile that is expected to be fastest; of those that are alike, the first one."""
    every = list(tiles(p, target, shared=shared))
    if not shared:
        return min(every, key=lambda t: seconds(t, p, target, shared=False))
    few = nsmallest(FEW, every, key=lambda t: busy_seconds(t, p, target, shared=True))
    ahead = dict.fromkeys(
        fitted(replace(t, versions=n), p) for t in few for n in (VERSIONS if target.ahead else VERSIONS[:1])
    )
    found = [t for t in ahead if not refusal(t, p, target, shared=True)]
    return min(found, key=lambda t: seconds(t, p, target, shared=True))
