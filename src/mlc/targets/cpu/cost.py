"""A predefined cost model: cycles of register tiles and of the memory traffic around them, without measuring.

A *product* is what matrix products and convolutions have in common: ``extent`` rows (or pixels) times ``columns``
vectors of outputs, each the sum of ``depth`` products. A register tile holds ``rows × vectors`` sums; a *step* adds one
product to each of them, for which it loads ``vectors`` vectors of the right operand (weights) and broadcasts ``rows``
numbers of the left one.

    for column tiles:           # its weights are a panel of depth × vectors
        for row tiles:
            for depth: a step

The model knows what bounds such loops in practice: multiply-adds, loads, their latency, the instructions that a core
starts a cycle, the number of registers, ragged ends, the cache level that an operand comes from, and threads that wait
for each other. It ranks tiles; cycles are right to some ten per cent where nothing unforeseen happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu

SPILL = 2.5  # times that a step takes whose sums do not stay in registers (measured: 2.3 to 4)
TILE_OVERHEAD = 24  # cycles around the steps of a tile: loop, addresses, first loads and last sums
AHEAD = 256  # bytes of weights that cores without a look at later operations fetch before they are used
USABLE = 0.75  # part of a cache that one operand can count on
SHARED = 0.25  # part of a third-level cache that what one kernel leaves for the next can count on: others use it, too
UNROLLED_SUMS = 64  # multiply-adds of a loop body; more do not hide more of the loop, and fill the instruction cache
HIDDEN = 0.85  # part of the shorter of computing and loading that runs while the longer one does


class Tile(NamedTuple):
    """Accumulators of a register tile: ``rows`` (or pixels) times ``vectors``."""

    rows: int
    vectors: int


def fits_registers(rows: int, vectors: int, target: Cpu) -> bool:
    """Whether sums, one vector of the right operand each, and a broadcast have a register each.

    With one vector a row, a memory operand can do the broadcast where the processor has such. One register
    too few is not a small loss: the allocator answers with a move for every sum in the innermost loop. A core that
    takes operations in order needs as many registers again for the operands of the next step, which have to be on
    their way while this one computes.

    Instructions that take two rows at once read two vectors of columns, each of twice the terms. Where products find
    the terms of a row in the lanes of a vector, each row has one, and columns of the next step are read by then.
    """
    broadcast = 1 - 1 // vectors if target.broadcast_operand else 1  # arithmetic, so that all tiles go one way
    operands = vectors * target.rows + broadcast if target.terms == 1 else 2 * vectors + rows
    return rows * vectors + operands * (2 if target.in_order else 1) <= target.registers


def unrolled_steps(tile: Tile, target: Cpu, dot: Dot | None = None) -> int:
    """How many steps of a register tile the body of a loop may hold at most.

    The compiler then loads for the next step early, and a tile that fills nearly all of 32 registers has none left for
    that: every sum is moved in every iteration.

    Where products are added by an instruction of its own, the compiler would add those of several steps to each other
    first, and keep them in memory meanwhile (measured on Zen 4: 1.2 times as long). Of bytes by small weights two steps
    are few enough, and a twentieth faster.
    """
    if dot is not None and dot.adds_apart:
        return 2 if dot.terms == 4 else 1
    if target.terms > 1:
        return target.terms
    sums, read = tile.rows * tile.vectors, tile.vectors * (1 if dot is None else dot.rows)
    if target.registers >= 32 and sums + read + 3 > target.registers:
        return 1
    return max(1, UNROLLED_SUMS // sums)


def step_cycles(rows: int, vectors: int, target: Cpu) -> float:
    """Cycles of one step of a tile whose operands are in the first-level cache."""
    sums, loads = rows * vectors, rows / target.terms + vectors * target.rows
    work = max(
        sums / target.fmas,
        loads / target.loads * 1.05,  # a load that misses its turn, for stores or prefetches, is late for good
        (target.fma_operations * sums + loads + 2) / target.issue,
        # every sum waits for its last step; scheduling is not perfect, so it takes some more sums to hide that
        target.fma_latency * (1.15 if sums <= target.fma_latency * target.fmas else 1),
    )
    return work if fits_registers(rows, vectors, target) else work * SPILL


def fetches_ahead(panel: float, target: Cpu) -> int:
    """How many bytes ahead the weights of a tile are fetched while it is computed; 0 where that is left to the core.

    One that takes operations in order stands still at every load that misses the first-level cache, so weights that
    do not stay there are fetched a few lines before; others have begun the next loads by then.

    Args:
        panel: bytes of the weights of a tile.
        target: the processor.
    """
    return AHEAD if target.in_order and panel > target.l1 * USABLE else 0


def ragged_steps(extent: int, tile: Tile, target: Cpu) -> float:
    """Cycles of one step of each of the tiles that cover some rows, the last of them with fewer."""
    return sum(n * step_cycles(rows, tile.vectors, target) for rows, n in _parts(extent, tile.rows))


def bandwidth(working_set: float, target: Cpu) -> float:
    """Bytes a cycle that one core reads of what lies ``working_set`` bytes apart from its last use."""
    if working_set <= target.l1 * USABLE:
        return float(target.loads * target.vector_bytes)
    if working_set <= target.l2 * USABLE:
        return target.l2_bandwidth
    return target.l3_bandwidth if working_set <= target.l3 * USABLE else target.memory_bandwidth


def balance(tasks: int, threads: int) -> float:
    """How much longer ``threads`` take for ``tasks`` equal parts than if these could be shared evenly."""
    return -(-tasks // threads) * threads / tasks


@dataclass(frozen=True)
class Product:
    """A product to find a tile for.

    Args:
        extent: rows, or pixels next to each other; a tile covers some of them.
        columns: vectors of outputs.
        depth: products that are summed up; of bytes, instructions that sum up several.
        repeats: how often all of this happens with the same right operand (rows of an image).
        row_bytes: bytes of the left operand that one more row brings; the windows of a convolution overlap.
        threads: that share the work.
        whole: whether the last columns are computed by a whole tile as well, which is in part for nothing.
        parts: whether the last columns may be computed by a narrower tile instead.
        terms: products that an instruction sums up; a left operand has as many elements in four bytes.
        cut: whether a panel that the second-level cache does not hold is cut into parts that it does.
    """

    extent: int
    columns: int
    depth: int
    repeats: int = 1
    row_bytes: int | None = None
    threads: int = 1
    whole: bool = False
    parts: bool = False
    terms: int = 1
    cut: bool = False

    def cycles(self, tile: Tile, target: Cpu) -> float:
        """Cycles of the whole product, on each thread, with a register tile."""
        row_tiles, column_tiles, columns = self._tiles(tile)
        tasks = self.repeats * sum(n for _, n in row_tiles)
        element = target.lane_bytes * target.rows  # bytes that a step reads of every row and column
        vector_bytes = self.depth * target.lanes * element
        panel = tile.vectors * vector_bytes
        left = self.extent * (element * self.depth if self.row_bytes is None else self.row_bytes)
        rights = columns * vector_bytes
        # a panel is read for each row tile: at first from where the whole operand lies, then from where a panel stays
        read = panel + min(left, tile.rows * element * self.depth)
        near = min(read, target.l2 * USABLE) if self.cut else read
        again = rights * (tasks - 1) / bandwidth(near, target)
        first = rights / bandwidth(rights, target)
        # the left operand is read for each column tile
        passes = sum(n for _, n in column_tiles)
        rows_in = passes * left * self.repeats / bandwidth(left * self.repeats + panel, target)
        load = first + again + rows_in if panel > target.l1 * USABLE else first + rows_in
        compute = self.computing(tile, target)
        time = max(compute, load) + (1 - HIDDEN) * min(compute, load)
        return time / self.threads * balance(tasks * passes, self.threads)

    def computing(self, tile: Tile, target: Cpu) -> float:
        """Cycles of the register tiles alone, of all threads together, if nothing ever waits for an operand."""
        row_tiles, column_tiles, _ = self._tiles(tile)
        cycles = 0.0
        for rows, n in row_tiles:
            for vectors, m in column_tiles:
                cycles += n * m * (self.depth * step_cycles(rows, vectors, target) + TILE_OVERHEAD)
        return cycles * self.repeats

    def _tiles(self, tile: Tile) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
        """The tiles of rows and those of columns, (size, how many) each, and the columns that are computed."""
        columns = self.columns + (-self.columns % tile.vectors if self.whole else 0)
        return list(_parts(self.extent, tile.rows)), list(_parts(columns, tile.vectors)), columns


def best_tile(product: Product, target: Cpu, tiles: Iterable[Tile] | None = None) -> Tile:
    """The tile of least cycles; of equals the one with the most rows, which reads the right operand least often.

    Args:
        product: what to compute.
        target: the processor.
        tiles: those to choose from; all that fit the registers unless given.
    """
    found = list(tiles) if tiles is not None else list(all_tiles(product, target))
    return min(found, key=lambda t: (round(product.cycles(t, target)), -t.rows))


def all_tiles(product: Product, target: Cpu) -> Iterator[Tile]:
    """Every tile of a product that fits the registers."""
    for vectors in range(1, min(product.columns, target.registers // 2) + 1):
        for rows in range(target.rows, min(product.extent, target.registers) + 1, target.rows):
            if fits_registers(rows, vectors, target):
                yield Tile(rows, vectors)


def _parts(extent: int, size: int) -> Iterator[tuple[int, int]]:
    """(size, how many) of the whole parts of an extent and of its ragged end."""
    if extent >= size:
        yield size, extent // size
    if extent % size:
        yield extent % size, 1
