"""Instructions that multiply numbers of one or two bits: logic and counts; see :mod:`mlc.ops.bits`.

A :class:`~mlc.targets.cpu.dot.Dot` over a pair of words, each lane another output: every plane of ``x`` meets every
plane of ``w``, bits are counted, and counts of equal weight are added before they are shifted. Processors count bits in
lanes of 32, or in bytes, whose counts are added as bytes and widened once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.intrinsic import Kind, Operand
from mlc.ir.types import i32
from mlc.ops.bits import PAIR, Weights, bit_product, words_type
from mlc.targets.cpu.dot import Dot, at_byte, everywhere
from mlc.targets.llvm.intrinsic import Address, VectorIntrinsic, VectorSink

Widen = Callable[[VectorSink, str], str]
_BROADCASTS = 2  # registers that hold data of one plane, and what becomes of them


@dataclass(frozen=True)
class BitCounter:
    """How a processor counts bits.

    Args:
        name: of the instruction.
        lanes: sums of 32 bits of a vector.
        per_operation: instructions of logic that take as long as a multiply-add of vectors.
        counting: instructions that a count takes.
        widen: writes the totals of every four bytes, given their vector; ``None`` where bits of 32 are counted.
        widening: instructions that this takes.
        scratch: registers that counting takes.
    """

    name: str
    lanes: int
    per_operation: float
    counting: int = 1
    widen: Widen | None = None
    widening: int = 0
    scratch: int = 1

    def dot(self, of_x: int, of_w: int, weights: Weights) -> Dot:
        """The product of a pair of words with so many planes of data and of weights."""
        x = te.placeholder((PAIR,), words_type(of_x), "x")
        w = te.placeholder((PAIR, self.lanes), words_type(of_w), "w")
        k = te.reduce_axis(PAIR, "k")
        y = te.compute((self.lanes,), lambda j: te.sum_of(bit_product(x[k], w[k, j], weights), k), "y")
        what = VectorIntrinsic(
            f"{self.name}.{weights}.{of_x}x{of_w}.{self.lanes}",
            y,
            {y: Operand("register")},
            (Kind.RESET, Kind.UPDATE),
            lambda sink, total, at: self._write(sink, total, at[0], at[1], (of_x, of_w), weights),
        )
        products = PAIR * of_x * of_w
        instructions = products * (2 + self.counting) + of_x + of_w - 2 + self.widening
        types = words_type(of_x), words_type(of_w), i32
        held = self.scratch + _BROADCASTS
        return Dot(PAIR, what, types, instructions / self.per_operation, held, interleaved=False)

    def _write(
        self, sink: VectorSink, total: str, x: Address, w: Address, planes: tuple[int, int], weights: Weights
    ) -> str:
        lanes, (of_x, of_w) = self.lanes, planes
        words, logic = f"<{lanes} x i32>", "xor" if weights is Weights.BIPOLAR else "and"
        counted = words if self.widen is None else f"<{4 * lanes} x i8>"
        counts = f"@llvm.ctpop.v{lanes}i32" if self.widen is None else f"@llvm.ctpop.v{4 * lanes}i8"
        sink.declare(f"declare {counted} {counts}({counted})")
        found: dict[tuple[bool, int], str] = {}  # totals of counts, by sign and weight
        for k in range(PAIR):
            left = [everywhere(sink, at_byte(sink, x, 4 * (k * of_x + i)), "i32", lanes) for i in range(of_x)]
            right = self._weights(sink, at_byte(sink, w, 4 * k * lanes * of_w), of_w)
            for i, a in enumerate(left):
                for j, b in enumerate(right):
                    met = sink.pure(f"{logic} {words} {a}, {b}")
                    met = met if self.widen is None else sink.pure(f"bitcast {words} {met} to {counted}")
                    count = sink.pure(f"call {counted} {counts}({counted} {met})")
                    key = weights is Weights.SIGNED and j == of_w - 1, i + j
                    old = found.get(key)
                    found[key] = count if old is None else sink.pure(f"add {counted} {old}, {count}")
        for negative in (False, True):
            sums = self._weighted(sink, {e: t for (sign, e), t in found.items() if sign is negative}, counted)
            if sums is not None:
                total = sink.pure(f"{'sub' if negative else 'add'} {words} {total}, {sums}")
        return total

    def _weights(self, sink: VectorSink, at: Address, planes: int) -> list[str]:
        """A word of weights for each lane, plane by plane."""
        lanes = self.lanes
        if planes == 1:
            return [sink.read(at, f"<{lanes} x i32>")]
        both = sink.read(at, f"<{2 * lanes} x i32>")
        pick = (", ".join(f"i32 {2 * n + j}" for n in range(lanes)) for j in range(planes))
        vector = f"<{2 * lanes} x i32>"
        return [
            sink.pure(f"shufflevector {vector} {both}, {vector} poison, <{lanes} x i32> <{chosen}>") for chosen in pick
        ]

    def _weighted(self, sink: VectorSink, counts: dict[int, str], type: str) -> str | None:
        """The total of counts, each times two to the power of its weight, by Horner's rule."""
        total: str | None = None
        for e in range(max(counts, default=-1), -1, -1):
            if total is not None:
                total = sink.pure(f"add {type} {total}, {total}")
            if e in counts:
                total = counts[e] if total is None else sink.pure(f"add {type} {total}, {counts[e]}")
        return total if total is None or self.widen is None else self.widen(sink, total)
