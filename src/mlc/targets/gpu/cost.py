"""How long a tiled product takes, as far as a default needs it: what bounds a block, and how many blocks run at once.

The greatest of three times counts, each a throughput of the device: of arithmetic, of global memory, and of shared
memory with its banks; a part of the others shows. Where there are too few threads to hide latency, all of them grow.

Every formula takes a tile of numbers, or one of arrays of them, which is how thousands are compared at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from mlc.targets.gpu.record import Gpu

HIDING = 8  # warps that a unit needs to hide the latency of arithmetic and shared memory
SHARED_RATE = 0.25  # words a thread loads from shared memory in the time of a multiplication and addition
CACHED = 0.5  # of the traffic between blocks and global memory goes past the caches
MOST_BLOCKS = 16  # that a unit runs at a time
BANKS = 32  # of shared memory, a word wide
RUN = 8  # terms of a column that neighbouring threads fetch, 32 bytes in single precision
# Times its share of global memory's bandwidth that a unit draws where others are idle: on a V100, blocks of 128 threads
# on 1 to 32 of 80 units read 1.4 times, and write 3.5 times, what each does where all are busy
# (https://github.com/te42kyfo/gpu-benches, cuda-stream).
ALONE = 2.0
SECTOR = 32  # bytes that global memory moves at least
OVERHEAD = 16  # registers for addresses and counters
LATENCY = 4e-7  # seconds from a load of global memory to its value; 400 to 700 cycles on what was ever measured
# Of the times that do not bound a product: what an H200 took for six products in single precision is 1.63 times the
# estimate, give or take 16 %; with 0.1 here it would be 1.94 times, give or take 19 % (benchmarks/results/h200).
SHOWS = 0.3
FETCHING, MEETING = 4, 30  # instructions to fetch an element into shared memory; of a barrier, what is waited included
VERSIONS = (1, 2, 3, 4)  # of what is fetched ahead
STRIPS = (1, 2)  # that a thread's tile is taken apart into

ROWS, THREADS, DEPTHS = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32), (4, 8, 16, 32)

Count = Any  # a number, or an array of them for many tiles


def _least(a: Count, b: Count) -> Count:
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def _most(a: Count, b: Count) -> Count:
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def _select(holds: Any, a: Count, b: Count) -> Count:
    return np.where(holds, a, b) if isinstance(holds, np.ndarray) else a if holds else b


def _strips(count: Count, of: Count) -> Count:
    """As many strips of equal size, where there are such; else one."""
    return _select(of % count == 0, count, 1)


def _parts(n: Count, size: Count) -> Count:
    """How many parts of a size there are in so many, the last one maybe ragged."""
    return -(-n // size)


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
        vy, vx: virtual threads: rows and columns are taken apart into so many strips, between which lie those of the
            other threads. What threads read of a term at a time then lies side by side, and in different banks.
    """

    rows: Count
    columns: Count
    ty: Count
    tx: Count
    depth: Count
    versions: Count = 1
    vy: Count = 1
    vx: Count = 1

    @property
    def high(self) -> Count:
        return self.rows * self.ty

    @property
    def wide(self) -> Count:
        return self.columns * self.tx


def fitted(tile: Tile, p: Product) -> Tile:
    """The tile without what would lie beyond the product's end in any case."""
    rows, columns = _least(tile.rows, p.m), _least(tile.columns, p.n)
    ty, tx = _least(tile.ty, _parts(p.m, rows)), _least(tile.tx, _parts(p.n, columns))
    depth = _least(tile.depth, p.k)
    versions = _least(tile.versions, _parts(p.k, depth))
    return Tile(rows, columns, ty, tx, depth, versions, _strips(tile.vy, rows), _strips(tile.vx, columns))


def offset(depth: Count) -> Count:
    """What the pitch of a part of an operand is modulo ``BANKS``, where neighbouring threads store terms a row apart.

    A warp stores ``RUN`` terms of some columns, or all terms where they are no multiple of that, so that those lie in
    different banks. With eight terms, rows begin at multiples of four words: threads read them four words at a time.
    """
    run = _select(depth % RUN == 0, RUN, depth)
    return _most(1, BANKS // run)


def shared_bytes(tile: Tile, p: Product) -> Count:
    """Of a block's parts of both operands, with the gaps that either may have."""
    gap = offset(tile.depth)
    pitches = sum(n + (gap - n) % BANKS for n in (tile.high, tile.wide))
    return pitches * tile.depth * p.itemsize * tile.versions


def registers(tile: Tile, p: Product) -> Count:
    """That a thread holds: sums, what it multiplies at a time, and addresses."""
    return (tile.rows * tile.columns + tile.rows + tile.columns) * max(1, p.itemsize // 4) + OVERHEAD


def _most_registers(tile: Tile, target: Gpu) -> Count:
    """That a thread may have, for its block to run at all."""
    return _least(target.registers, target.register_file // _threads(tile, target))


def refusal(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> str:
    """Why a block cannot run, in a few words; empty where it can."""
    if tile.ty * tile.tx > target.max_threads:
        return f"{tile.ty * tile.tx} threads of a block, {target.max_threads} are the most"
    if shared and shared_bytes(tile, p) > target.shared_bytes:
        return f"{shared_bytes(tile, p)} bytes of shared memory, there are {target.shared_bytes}"
    held, most = registers(tile, p), _most_registers(tile, target)
    if held > most:
        return f"about {held} registers of a thread, there are {most}"
    return ""


def _runs(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> Count:
    """Whether blocks can run, which is whether there is no refusal."""
    fits = (tile.ty * tile.tx <= target.max_threads) & (registers(tile, p) <= _most_registers(tile, target))
    return fits & (shared_bytes(tile, p) <= target.shared_bytes) if shared else fits


def seconds(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> Count:
    """What a product is expected to take."""
    busy = busy_seconds(tile, p, target, shared=shared)
    waves = _parts(_blocks(tile, p), target.units * _together(tile, p, target, shared=shared))
    waiting = waves * stalls(_parts(p.k, tile.depth), tile.versions, busy / waves) if shared else 0
    return busy + waiting + target.launch_us * 1e-6


def _blocks(tile: Tile, p: Product) -> Count:
    return p.batch * _parts(p.m, tile.high) * _parts(p.n, tile.wide)


def _threads(tile: Tile, target: Gpu) -> Count:
    """Of a block, whole warps."""
    return _parts(tile.ty * tile.tx, target.warp) * target.warp


def _together(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> Count:
    """Blocks that a unit runs at the same time, where there are enough."""
    threads = _threads(tile, target)
    together = _least(target.threads // threads, target.register_file // (threads * registers(tile, p)))
    if shared:
        together = _least(together, target.shared_of_unit // _most(1, shared_bytes(tile, p)))
    return _most(1, _least(together, MOST_BLOCKS))


def _reads(words: Count, strips: Count, threads: Count) -> Count:
    """Words' worth of time in which the threads of a warp read from shared memory.

    Threads read up to four words that lie side by side at once; those that read the same ones take no time of their
    own, and those whose words lie in the same banks take turns.

    Args:
        words: a power of two, of a thread,
        strips: in so many parts, in each of which neighbouring threads' words are neighbours.
        threads: of a warp that read different ones.
    """
    run = words // strips
    return strips * run / _least(run, 4) * _most(1, threads * run / BANKS)


def busy_seconds(tile: Tile, p: Product, target: Gpu, *, shared: bool) -> Count:
    """What it takes without waiting for memory."""
    blocks, threads = _blocks(tile, p), _threads(tile, target)
    together = _together(tile, p, target, shared=shared)
    waves = _parts(blocks, target.units * together)
    per_unit = _least(together, _parts(blocks, target.units))
    hidden = _least(1.0, per_unit * tile.ty * tile.tx / (HIDING * target.warp))  # lanes that do nothing hide nothing
    # the last wave takes as long as the others, however few blocks are in it
    area = tile.rows * tile.columns
    rounds = _parts(p.k, tile.depth) if shared else p.k
    deep = rounds * tile.depth if shared else p.k
    steps = _least(waves * together, _parts(blocks, target.units)) * target.units * threads * area * deep
    arithmetic = 2 * steps / (target.gflops * 1e9)
    across = _least(tile.tx, target.warp)
    reads = _reads(tile.columns, tile.vx, across) + _reads(tile.rows, tile.vy, target.warp // across)
    local = arithmetic * reads / (area * SHARED_RATE)
    if shared:  # rows of terms that lie next to each other, and terms of columns that do
        left = tile.high * _parts(tile.depth * p.itemsize, SECTOR)
        right = tile.depth * _parts(tile.wide * p.itemsize, SECTOR)
        moved = blocks * rounds * (left + right) * SECTOR * CACHED
        fetches = FETCHING * (tile.high + tile.wide) * tile.depth / threads + MEETING
        arithmetic = arithmetic * (1 + fetches / (area * tile.depth))
    else:
        moved = blocks * (tile.high + tile.wide) * p.k * p.itemsize
    traffic = moving(moved + p.batch * p.m * p.n * p.itemsize, blocks, target)
    bound = _most(_most(arithmetic, local), traffic)
    return (bound + SHOWS * (arithmetic + local + traffic - bound)) / hidden


def moving(nbytes: Count, blocks: Count, target: Gpu) -> Count:
    """Seconds that global memory takes for so many bytes, which few blocks cannot ask for as fast as it gives them."""
    return nbytes / (target.gbytes * 1e9 * _least(1.0, ALONE * blocks / target.units))


def stalls(steps: Count, versions: Count, busy: Count) -> Count:
    """Seconds for which a unit waits for memory while its blocks go once through all steps of their products.

    Args:
        steps: after each of which a block needs its next parts.
        versions: of these; all but one are fetched ahead.
        busy: seconds that the steps take otherwise.
    """
    # where nothing is ahead, other blocks may compute meanwhile, which is a matter of how many there are
    ahead = _most(0.0, steps * LATENCY / _most(1, versions - 1) - busy)
    return (versions == 1) * (steps * LATENCY / 2) + (versions > 1) * ahead


@lru_cache(maxsize=4)
def _grid(*, shared: bool, ahead: bool) -> tuple[np.ndarray, ...]:
    """Every tile that is worth comparing of those that knobs can name, an array a field."""
    versions = VERSIONS if shared and ahead else (1,)
    strips = STRIPS if shared else (1,)
    axes = (ROWS, ROWS, THREADS, THREADS, DEPTHS if shared else DEPTHS[:1], versions, strips, strips)
    every = Tile(*(a.reshape(-1) for a in np.meshgrid(*map(np.array, axes), indexing="ij")))
    long = [(n == 1) | (words > 4) for n, words in ((every.vy, every.rows), (every.vx, every.columns))]
    return tuple(a[long[0] & long[1]] for a in _fields(every))


def tiles(p: Product, target: Gpu, *, shared: bool) -> Iterator[Tile]:
    """Every tile that fits the product and the device, with nothing fetched ahead."""
    found = _possible(p, target, shared=shared, ahead=False)
    rows = dict.fromkeys(zip(*(a.tolist() for a in _fields(found)), strict=True))
    return (Tile(*row) for row in rows)


def _fields(tile: Tile) -> tuple[np.ndarray, ...]:
    return tuple(getattr(tile, f.name) for f in fields(tile))


def _possible(p: Product, target: Gpu, *, shared: bool, ahead: bool) -> Tile:
    """Arrays of all tiles that fit, some of them more than once."""
    every = fitted(Tile(*_grid(shared=shared, ahead=ahead)), p)
    runs = _runs(every, p, target, shared=shared)
    return Tile(*(a[runs] for a in _fields(every)))


@lru_cache(maxsize=4096)
def best_tile(p: Product, target: Gpu, *, shared: bool) -> Tile:
    """The tile that is expected to be fastest; of those that are alike, the first one."""
    every = _possible(p, target, shared=shared, ahead=target.ahead)
    best = int(np.argmin(seconds(every, p, target, shared=shared)))
    return Tile(*(int(a[best]) for a in _fields(every)))
