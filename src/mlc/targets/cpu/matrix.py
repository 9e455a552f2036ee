"""Units that multiply whole matrices of bytes or bf16, whose sums have registers of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mlc.ir.types import DType
from mlc.targets.cpu.dot import Dot


class Sums(NamedTuple):
    """What is summed up at once: ``bands`` matrices below each other, of ``rows`` each, by ``vectors`` side by side."""

    rows: int
    bands: int
    vectors: int


@dataclass(frozen=True)
class MatrixUnit:
    """A unit that adds the product of ``[rows, terms]`` and ``[terms, lanes]`` numbers to ``[rows, lanes]`` sums.

    Args:
        dot: the instruction for so many rows.
        types: of data and weights.
        rows: at most; fewer take as long.
        terms: of a sum.
        registers: for sums and operands, each a whole matrix.
        cycles: until the next one can begin.
        latency: cycles until its sums can be added to.
    """

    dot: Callable[[int], Dot]
    types: tuple[DType, DType]
    rows: int
    terms: int
    registers: int
    cycles: float
    latency: float

    @property
    def products_per_cycle(self) -> float:
        """At most."""
        lanes: int = self.dot(self.rows).intrinsic.behaviour.shape[-1]
        return self.rows * lanes * self.terms / self.cycles

    @property
    def heights(self) -> range:
        """Rows that a matrix may have."""
        return range(self.rows // 4, self.rows + 1)

    def fits(self, sums: Sums) -> bool:
        """Whether the sums and all operands have a register each.

        Registers are not renamed: an operand that takes another one's place waits for the product of that, and the next
        product for the operand.
        """
        return sums.bands * sums.vectors + sums.bands + sums.vectors <= self.registers
