"""Instructions that add up products of narrow neighbours: ``y[j] += sum(x[k] * w[j, k] for k)`` in every lane ``j``.

Where every lane has data of its own, ``x[k, j]`` in place of ``x[k]``, the same instruction does depthwise windows:
neighbours along a row are turned to lie side by side in their lane.

Of bytes, ``x`` holds unsigned or signed and ``w`` signed ones, and ``y`` sums in i32, exact for all operands, or for
weights of i7; of words of 16 bits likewise, exact for all that bytes are widened to; of bf16, ``y`` holds sums in f32.
Floats are multiplied by bf16 that are widened in registers, which is no single instruction.
A family of processors declares what it has; schedules ask the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from mlc.ir import te
from mlc.ir.expr import cast
from mlc.ir.index import Var, as_index
from mlc.ir.intrinsic import Kind, Operand
from mlc.ir.layout import Layout
from mlc.ir.types import DType, bf16, f32, i8, i32, u8
from mlc.targets.llvm.intrinsic import Address, Matrix, VectorIntrinsic, VectorSink

BLOCK = 2  # rows, and columns, of the blocks that some instructions multiply
NEIGHBOURS = 4  # bytes of a row of such a block that have to lie side by side
Write = Callable[[VectorSink, str, Address, Address], str]


@dataclass(frozen=True, eq=False)
class Dot:
    """A way to sum up products of narrow numbers.

    Args:
        terms: that an instruction adds to every lane; operands are packed in so many neighbours.
        intrinsic: what it does.
        types: of ``x``, ``w`` and the sums.
        operations: as long as so many multiply-adds of vectors it takes.
        held: registers that it takes besides those of its operands and the sums.
        interleaved: whether the terms of a lane are neighbours in the packed operand; otherwise a vector of one term of
            every lane follows the other.
        rows: of data that it multiplies at once, each by all terms of a vector of columns.
        spare: the same where the last of the terms of ``w`` are zeros: two that begin one term apart share what they
            read, of ``w`` moved by a term. ``None`` where that saves nothing.
    """

    terms: int
    intrinsic: VectorIntrinsic
    types: tuple[DType, DType, DType]
    operations: float = 1
    held: int = 0
    interleaved: bool = True
    rows: int = 1
    spare: VectorIntrinsic | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies whole matrices, whose sums are in registers of their own."""
        return self.intrinsic.matrix is not None

    @property
    def adds_apart(self) -> bool:
        """Whether products are added to the sums by an instruction of its own."""
        return self.held > 0

    def fits(self, terms: int) -> bool:
        """Whether so many terms can be summed up: floats are not padded, since what is no number is none times 0."""
        return not self.types[0].is_float or terms % self.terms == 0

    def padded(self, terms: int) -> int:
        """So many terms in whole instructions."""
        return terms + -terms % self.terms

    def packed(self, layout: Layout, lanes: int) -> Layout:
        """A layout whose last two dimensions are terms and columns, both whole, with these as instructions read them.

        Args:
            layout: of an operand ``[…, K, N]``.
            lanes: of a vector of sums.
        """
        rank = len(layout.physical_shape)
        layout = layout.split(rank - 2, self.terms)
        if self.is_matrix:
            run = NEIGHBOURS // self.types[0].itemsize
            return layout.split(rank - 1, run).reorder(*range(rank), rank + 1, rank)
        if self.interleaved:
            return layout.reorder(*range(rank - 1), rank, rank - 1)
        return layout.split(rank, lanes).reorder(*range(rank - 1), rank, rank - 1, rank + 1)

    @classmethod
    def declare(
        cls,
        name: str,
        lanes: int,
        terms: int,
        write: Write,
        types: tuple[DType, DType, DType] = (u8, i8, i32),
        operations: float = 1,
        *,
        held: int = 0,
        apart: bool = False,
        write_next: Write | None = None,
    ) -> Dot:
        """An instruction by its size.

        Args:
            name: of the instruction.
            lanes: sums that it adds to.
            terms: products that it adds to each.
            write: given a sink, the sums held so far and the addresses of ``x`` and ``w``, writes it as LLVM IR.
            types: of ``x``, ``w`` and the sums.
            operations: as long as so many multiply-adds of vectors it takes.
            held: registers that it takes besides those of its operands and the sums.
            apart: whether every lane has data of its own.
            write_next: the same for ``x`` from one term before on, where the last term of ``w`` is zero.
        """
        of_x, of_w, wide = types
        k = te.reduce_axis(terms, "k")
        x, w = (
            te.placeholder((terms, lanes) if apart else (terms,), of_x, "x"),
            te.placeholder((lanes, terms), of_w, "w"),
        )

        def element(j: Var) -> te.Reduction:
            return te.sum_of(cast(x[k, j] if apart else x[k], wide) * cast(w[j, k], wide), k)

        y = te.compute((lanes,), element, "y")
        kinds = (Kind.RESET, Kind.UPDATE)

        def intrinsic(name: str, next: Write | None) -> VectorIntrinsic:
            moved = None if next is None else lambda sink, total, at: next(sink, total, *at)
            operands = {y: Operand("register")}
            return VectorIntrinsic(name, y, operands, kinds, lambda sink, total, at: write(sink, total, *at), moved)

        spare = None if write_next is None else intrinsic(f"{name}.spare.{lanes}", write_next)
        return cls(terms, intrinsic(f"{name}.{lanes}", None), types, operations, held, spare=spare)

    @classmethod
    def declare_block(
        cls,
        name: str,
        terms: int,
        write: Write,
        types: tuple[DType, DType, DType],
    ) -> Dot:
        """An instruction on blocks of two rows by two columns, used for two rows by four columns at a time.

        Its sums are eight lanes, two blocks of ``[rows, columns]``, of which a block is an instruction's result.

        Args:
            name: of the instruction.
            terms: products that it adds to each sum.
            write: as for :meth:`declare`; ``x`` lies at any strides from row to row, and from some terms to the next.
            types: of ``x``, ``w`` and the sums.
        """
        of_x, of_w, wide = types
        run = NEIGHBOURS // of_x.itemsize
        h, t = te.reduce_axis(terms // run, "h"), te.reduce_axis(run, "t")
        x = te.placeholder((BLOCK, terms // run, run), of_x, "x")
        w = te.placeholder((2 * BLOCK, terms), of_w, "w")

        def element(p: Var, i: Var, j: Var) -> te.Reduction:
            return te.sum_of(
                cast(x[i, h, t], wide) * cast(w[as_index(p) * BLOCK + j, as_index(h) * run + t], wide), (h, t)
            )

        y = te.compute((2, BLOCK, BLOCK), element, "y")
        places = {y: Operand("register", dense=False), x: Operand(dense=False, neighbours=True)}
        what = VectorIntrinsic(
            name, y, places, (Kind.RESET, Kind.UPDATE), lambda sink, total, at: write(sink, total, *at)
        )
        return cls(terms, what, types, rows=BLOCK)

    @classmethod
    def declare_matrix(
        cls,
        name: str,
        rows: int,
        lanes: int,
        terms: int,
        write: Write,
        types: tuple[DType, DType, DType],
        matrix: Matrix,
    ) -> Dot:
        """An instruction that multiplies matrices: ``y[i, j] += sum(x[i, k] * w[k, j] for k)``.

        Terms of ``x`` are neighbours, its rows lie at any stride; of ``w``, vectors of columns do, each of four terms.

        Args:
            name: of the instruction.
            rows: of ``x``.
            lanes: columns of ``w``.
            terms: that are summed up.
            write: as for :meth:`declare`.
            types: of ``x``, ``w`` and the sums.
            matrix: the registers of the sums.
        """
        of_x, of_w, wide = types
        run = NEIGHBOURS // of_x.itemsize
        h, t = te.reduce_axis(terms // run, "h"), te.reduce_axis(run, "t")
        x = te.placeholder((rows, terms), of_x, "x")
        w = te.placeholder((terms // run, lanes * run), of_w, "w")

        def element(i: Var, j: Var) -> te.Reduction:
            return te.sum_of(cast(x[i, as_index(h) * run + t], wide) * cast(w[h, as_index(j) * run + t], wide), (h, t))

        y = te.compute((rows, lanes), element, "y")
        apart = Operand(dense=False, neighbours=True)
        places = {y: Operand("register", dense=False), x: apart, w: apart}
        what = VectorIntrinsic(
            name,
            y,
            places,
            (Kind.RESET, Kind.UPDATE),
            lambda sink, total, at: write(sink, total, *at),
            matrix=matrix,
        )
        return cls(terms, what, types, rows=rows)


def everywhere(sink: VectorSink, at: Address, type: str, lanes: int) -> str:
    """What lies at an address, in all lanes; ``type`` is LLVM's name of it."""
    vector = f"<{lanes} x {type}>"
    one = sink.pure(f"insertelement {vector} poison, {type} {sink.read(at, type)}, i64 0")
    return sink.pure(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")


def at_byte(sink: VectorSink, a: Address, offset: int) -> Address:
    """So many bytes further."""
    return Address(a.buffer, sink.pure(f"getelementptr i8, ptr {a.text}, i64 {offset}")) if offset else a


@lru_cache
def stored_pairs(lanes: int) -> Dot:
    """Floats by bf16 that are widened in registers, two terms of every lane at once.

    A pair is a word: its high half, and its low half moved up, are the two as floats. So a load widens twice as many as
    if each were a lane of its own, by two instructions of logic.
    """
    words, floats = f"<{lanes} x i32>", f"<{lanes} x float>"

    def write(sink: VectorSink, total: str, x: Address, w: Address) -> str:
        pairs = sink.read(w, words)
        halves = (f"shl {words} {pairs}, splat (i32 16)", f"and {words} {pairs}, splat (i32 -65536)")
        for k, half in enumerate(halves):
            wide = sink.pure(f"bitcast {words} {sink.pure(half)} to {floats}")
            one = everywhere(sink, at_byte(sink, x, 4 * k), "float", lanes)
            term = sink.pure(f"fmul {sink.flags}{floats} {one}, {wide}")
            total = sink.pure(f"fadd {sink.flags}{floats} {total}, {term}")
        return total

    return Dot.declare("widen.bf16", lanes, 2, write, (f32, bf16, f32), operations=2, held=2)
