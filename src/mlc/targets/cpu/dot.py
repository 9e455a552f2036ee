"""Instructions that add up products of narrow neighbours: ``y[j] += sum(x[k] * w[j, k] for k)`` in every lane ``j``.

Where every lane has data of its own, ``x[k, j]`` in place of ``x[k]``, the same instruction does depthwise windows:
neighbours along a row are turned to lie side by side in their lane.

Of bytes, ``x`` holds unsigned or signed and ``w`` signed ones, and ``y`` sums in i32, exact for all operands, or for
weights of i7; of words of 16 bits likewise, exact for all that bytes are widened to; of bf16, ``y`` holds sums in f32.
A family of processors declares what it has; schedules ask the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.expr import cast
from mlc.ir.index import Var
from mlc.ir.intrinsic import Kind, Operand
from mlc.ir.layout import Layout
from mlc.ir.types import DType, i8, i32, u8
from mlc.targets.llvm.intrinsic import Address, VectorIntrinsic, VectorSink

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
    """

    terms: int
    intrinsic: VectorIntrinsic
    types: tuple[DType, DType, DType]
    operations: float = 1
    held: int = 0
    interleaved: bool = True

    @property
    def adds_apart(self) -> bool:
        """Whether products are added to the sums by an instruction of its own."""
        return self.held > 0

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
        if self.interleaved:
            return layout.reorder(*range(rank - 1), rank, rank - 1)
        return layout.split(rank, lanes).reorder(*range(rank - 1), rank, rank - 1, rank + 1)

    @classmethod
    def declare(
        cls,
        name: str,
        lanes: int,
        terms: int,
        write: Callable[[VectorSink, str, Address, Address], str],
        types: tuple[DType, DType, DType] = (u8, i8, i32),
        operations: float = 1,
        *,
        held: int = 0,
        apart: bool = False,
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
        what = VectorIntrinsic(
            f"{name}.{lanes}", y, {y: Operand("register")}, kinds, lambda sink, total, at: write(sink, total, *at)
        )
        return cls(terms, what, types, operations, held)


def everywhere(sink: VectorSink, at: Address, type: str, lanes: int) -> str:
    """What lies at an address, in all lanes; ``type`` is LLVM's name of it."""
    vector = f"<{lanes} x {type}>"
    one = sink.pure(f"insertelement {vector} poison, {type} {sink.read(at, type)}, i64 0")
    return sink.pure(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")
