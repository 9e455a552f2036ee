"""Tensor Cores: products of small matrices by the 32 threads of a warp together.

``mma.sync`` multiplies ``A[16, k]`` by ``B[k, 8]`` and adds to ``C[16, 8]``, each of which lies in registers of all
threads of the warp. Of ``C``, thread ``l`` holds rows ``l // 4`` and ``l // 4 + 8`` and columns ``2 * (l % 4)`` and the
next one (PTX ISA, "Matrix Fragments for mma.m16n8k16"). So each thread computes a product of its own, of two rows by
two columns of a tile. These intrinsics declare it for all tiles of a warp, whose operands are loaded once for all of
them. The warp does so only together: all 32 threads come, each with operands at its own place among them
(:attr:`Operand.lanes`), and read each other's.

Both matrices are in shared memory, rows of ``A`` and columns of ``B``, with neighbouring terms next to each other. A
row of a tile has 8 words of 4 bytes, whatever the type; ``ldmatrix`` loads 8 rows of 16 bytes at a time, of which each
thread gets a word. Elements of two bytes may also lie turned, rows of ``A`` or columns of ``B`` next to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from mlc.ir import te
from mlc.ir.expr import cast
from mlc.ir.index import Linear
from mlc.ir.intrinsic import Kind, Operand, TensorIntrinsic
from mlc.ir.types import DType, bf16, f16, f32, i8, i32, u8
from mlc.targets.gpu.cost import CACHED, HIDING, OVERHEAD, VERSIONS, moving, stalls
from mlc.targets.gpu.record import Gpu

ROWS, COLUMNS, WARP = 16, 8, 32
WORDS = 8  # of 4 bytes, of a row of terms
ALIGNED = 16  # bytes, of what is loaded at a time
FILE = 65536  # registers of a multiprocessor
SHARED_STEP = 128  # operations of a multiprocessor in single precision while 32 words are read from shared memory
TILES_HIGH, TILES_WIDE, WARPS, STEPS = (1, 2, 4), (1, 2, 4, 8), (1, 2, 4), (1, 2, 4)

Shape = tuple[int, int, int, int]  # batches, rows, columns and terms of a product
Turned = tuple[bool, bool]  # whether rows of the left operand, and columns of the right one, are neighbours


@dataclass(frozen=True)
class Mma:
    """An instruction.

    Args:
        left, right: types of the operands' elements.
        sums: type of the sums.
    """

    left: DType
    right: DType
    sums: DType

    @property
    def name(self) -> str:
        return f"mma_{self.left.name}_{self.right.name}"

    @property
    def terms(self) -> int:
        """How many an instruction adds up."""
        return WORDS * 4 // self.left.itemsize

    @property
    def turns(self) -> bool:
        """Whether operands may lie with rows, or columns, next to each other."""
        return self.left.itemsize == 2

    def intrinsic(self, rows: int, columns: int) -> TensorIntrinsic:
        """What a thread has of ``rows`` by ``columns`` tiles."""
        a = te.placeholder((rows, 2, self.terms), self.left, "a")
        b = te.placeholder((columns, 2, self.terms), self.right, "b")
        k = te.reduce_axis(self.terms, "k")
        aligned = ALIGNED // self.left.itemsize

        def sums(row: Linear, r: Linear, column: Linear, c: Linear) -> te.Reduction:
            return te.sum_of(cast(a[row, r, k], self.sums) * cast(b[column, c, k], self.sums), k)

        c = te.compute((rows, 2, columns, 2), sums, self.name)
        operands = {
            c: Operand("local", dense=False),
            # a thread's rows are 8 apart, those of the next four threads the ones after
            a: Operand("shared", aligned, dense=False, neighbours=not self.turns, lanes=_rows),
            b: Operand("shared", aligned, dense=False, neighbours=not self.turns, lanes=_columns),
        }
        return TensorIntrinsic(self.name, c, operands, (Kind.RESET, Kind.UPDATE))


def _rows(lane: int, strides: tuple[int, ...]) -> int:
    return lane // 4 * strides[1] // 8


def _columns(lane: int, strides: tuple[int, ...]) -> int:
    return lane % 4 * 2 * strides[1]


MMAS: Mapping[tuple[str, str], Mma] = {
    (m.left.name, m.right.name): m
    for m in (
        Mma(f16, f16, f32),
        Mma(bf16, bf16, f32),
        Mma(i8, i8, i32),
        Mma(u8, i8, i32),
        Mma(i8, u8, i32),
        Mma(u8, u8, i32),
        Mma(f32, f32, f32),
    )
}
"""Instructions by the types of their operands; f32 loses 13 of 23 bits on the way (tf32), and has to be asked for."""
TF32 = MMAS["f32", "f32"].name


@dataclass(frozen=True)
class Fragments:
    """How a block makes its part of a product.

    Args:
        rows, columns: tiles of 16 rows, and of 8 columns, of a warp.
        warps_high, warps_wide: of a block.
        depth: terms that are in shared memory at a time,
        versions: in so many parts, all but one of which are fetched ahead.
    """

    rows: int
    columns: int
    warps_high: int
    warps_wide: int
    depth: int
    versions: int = 1

    @property
    def high(self) -> int:
        return ROWS * self.rows * self.warps_high

    @property
    def wide(self) -> int:
        return COLUMNS * self.columns * self.warps_wide

    @property
    def warps(self) -> int:
        return self.warps_high * self.warps_wide

    def fitted(self, shape: Shape, terms: int) -> Fragments:
        """Without what would lie beyond the product's end in any case."""
        _, m, n, k = shape
        rows, columns = min(self.rows, ceil(m / ROWS)), min(self.columns, ceil(n / COLUMNS))
        depth = min(self.depth, ceil(k / terms) * terms)
        return Fragments(
            rows,
            columns,
            min(self.warps_high, ceil(m / (ROWS * rows))),
            min(self.warps_wide, ceil(n / (COLUMNS * columns))),
            depth,
            min(self.versions, ceil(k / depth)),
        )

    def shared_bytes(self, mma: Mma, turned: Turned = (False, False)) -> int:
        """Of a block's parts of both operands."""
        sizes = []
        for size, t, turn in zip((self.high, self.wide), (mma.left, mma.right), turned, strict=True):
            outer, inner = (self.depth, size) if turn else (size, self.depth)
            # pitches are odd numbers of 16 bytes, so that 8 rows lie in different banks
            sizes.append(outer * (inner * t.itemsize // 32 * 2 + 1) * 16)
        return self.versions * sum(sizes)

    def registers(self) -> int:
        """That a thread holds: sums, and what it multiplies at a time."""
        return 4 * self.rows * self.columns + 4 * self.rows + 2 * self.columns + OVERHEAD


def refusal(tile: Fragments, target: Gpu, mma: Mma, turned: Turned = (False, False)) -> str:
    """Why a block cannot run, in a few words; empty where it can."""
    if tile.warps * WARP > target.max_threads:
        return f"{tile.warps * WARP} threads of a block, {target.max_threads} are the most"
    if (held := tile.shared_bytes(mma, turned)) > target.shared_bytes:
        return f"{held} bytes of shared memory, there are {target.shared_bytes}"
    most = min(target.registers, FILE // (tile.warps * WARP))
    if tile.registers() > most:
        return f"about {tile.registers()} registers of a thread, there are {most}"
    return ""


def seconds(tile: Fragments, shape: Shape, target: Gpu, mma: Mma, turned: Turned = (False, False)) -> float:
    """What a product is expected to take: what bounds a multiprocessor, times the rounds that blocks take in turns."""
    batch, m, n, k = shape
    blocks = batch * ceil(m / tile.high) * ceil(n / tile.wide)
    together = min(
        target.threads // (tile.warps * WARP),
        FILE // (tile.registers() * tile.warps * WARP),
        target.shared_of_unit // tile.shared_bytes(mma, turned),
        16,
    )
    together = max(1, min(together, ceil(blocks / target.units)))
    rounds = ceil(blocks / (target.units * together))
    deep = ceil(k / tile.depth) * tile.depth
    rate = target.tensor_peak(mma.left.name)
    work = together * tile.high * tile.wide * deep * 2 / (rate * 1e9 / target.units)
    # words that warps read from shared memory, of which 32 come in a step of a multiplication of single precision
    steps = together * tile.warps * (deep // mma.terms) * (4 * tile.rows + 2 * tile.columns)
    local = steps * 2 * SHARED_STEP * target.units / (target.gflops * 1e9)
    fetched = blocks * deep * (tile.high * mma.left.itemsize + tile.wide * mma.right.itemsize) * CACHED
    traffic = moving(fetched + batch * m * n * 4, blocks, target)
    hidden = min(1.0, together * tile.warps / HIDING)
    busy = max(rounds * max(work, local) / hidden, traffic)
    waiting = rounds * stalls(deep // tile.depth, tile.versions, busy / rounds)
    return float(busy + waiting + target.launch_us * 1e-6)


@lru_cache(maxsize=4096)
def best_fragments(shape: Shape, target: Gpu, mma: Mma, turned: Turned = (False, False)) -> Fragments:
    """The tile that is expected to be fastest; of those that are alike, the first one."""
    every = dict.fromkeys(
        Fragments(r, c, y, x, mma.terms * d, v).fitted(shape, mma.terms)
        for r in TILES_HIGH
        for c in TILES_WIDE
        for y in WARPS
        for x in WARPS
        for d in STEPS
        for v in VERSIONS
    )
    found = [t for t in every if not refusal(t, target, mma, turned)] or list(
        every
    )  # the schedule then says why none does
    return min(found, key=lambda t: (seconds(t, shape, target, mma, turned), -t.depth))
