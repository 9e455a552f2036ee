"""Units that multiply whole matrices of bytes or bf16, whose sums have registers of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mlc.ir.types import DType
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.symbolic import pinned
from mlc.targets.cpu.dot import Dot

if TYPE_CHECKING:
    from mlc.targets.cpu.record import Cpu

NEAR = 0.5  # part of the first-level cache that a panel of weights can count on while data pass by


class Sums(NamedTuple):
    """What is summed up at once: ``bands`` matrices below each other, of ``rows`` each, by ``vectors`` side by side."""

    rows: int
    bands: int
    vectors: int


class Work(NamedTuple):
    """A product of matrices.

    Args:
        rows: of a matrix of data.
        extent: rows in all.
        along: what the rows of a matrix have to divide, of the extent; 0 where the last one may have some for nothing.
        columns: vectors of results.
        steps: matrices that are multiplied for each sum.
    """

    rows: int
    extent: int
    along: int
    columns: int
    steps: int

    @property
    def bands(self) -> int:
        """Matrices of data below each other."""
        return -(-self.extent // self.rows)

    def may_have(self, rows: int) -> bool:
        """Whether a matrix can have so many rows."""
        return self.along == 0 or self.along % rows == 0


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

    def cycles_of(self, work: Work, sums: Sums, target: Cpu) -> float:
        """Cycles of a product whose operands are in the caches; the last vectors are computed by a whole tile as well.

        Args:
            work: what is computed.
            sums: at once.
            target: has the caches.
        """
        # bytes of a step that come from the second-level cache: what a tile reads of weights stays in the first if it
        # leaves room for the data, which pass by
        weights, data = sums.vectors * self.rows * target.vector_bytes, sums.bands * sums.rows * target.vector_bytes
        near = weights * work.steps <= NEAR * target.l1
        few = (weights + data) * work.steps <= NEAR * target.l1
        far = 0 if few else data if near else data + weights
        loads = (weights + data) / (target.loads * target.vector_bytes)
        products = sums.bands * sums.vectors
        step = max(products * self.cycles, self.latency, loads, far / target.l2_bandwidth)
        tiles = -(-work.bands // sums.bands) * -(-work.columns // sums.vectors)
        return tiles * (work.steps * step + self.latency)

    def least_cycles(self, work: Work, target: Cpu) -> float:
        """The same with the sums that take least."""
        return self.cycles_of(work, _usual_sums(self, work, target), target)

    def best(self, work: Work, target: Cpu) -> Work | None:
        """The same with as many rows in a matrix as take least; ``None`` where these cannot be cut into matrices."""
        found = [work._replace(rows=rows) for rows in self.heights if work.may_have(rows)]
        # of equals the one with the fewest rows for nothing
        return min(found, key=lambda w: (round(self.least_cycles(w, target)), w.rows * w.bands, -w.rows), default=None)

    def ask_rows(self, knobs: Knobs, work: Work) -> Work:
        """The same with as many rows in a matrix as the knobs say.

        Raises:
            ScheduleError: the configuration is refused.
        """
        rows = pinned(knobs.discrete("rows", self.heights, default=work.rows))
        knobs.require(work.may_have(rows), "rows of matrices would be apart by more than one distance")
        return work._replace(rows=rows)

    def ask_sums(self, knobs: Knobs, work: Work, target: Cpu) -> Sums:
        """What is summed up at once, as the knobs say; untuned, what takes least.

        Raises:
            ScheduleError: the configuration is refused.
        """
        default, most = _usual_sums(self, work, target), range(1, self.registers // 2)
        bands = knobs.discrete("bands", most, default=default.bands)
        vectors = knobs.discrete("vectors", most, default=default.vectors)
        sums = Sums(work.rows, bands, vectors)
        knobs.require(self.fits(sums), "the sums of a tile do not fit the registers")
        if work.along:
            knobs.require(work.bands % bands == 0, "matrices cannot be grouped evenly so")
        knobs.require(vectors <= work.columns, "there are fewer columns")
        return sums


def _all_sums(unit: MatrixUnit, work: Work) -> list[Sums]:
    """All that fit the registers."""
    wide = range(1, min(unit.registers, work.columns + 1))
    high = divisors(work.bands) if work.along else range(1, min(unit.registers, work.bands + 1))
    return [s for b in high for v in wide if unit.fits(s := Sums(work.rows, b, v))]


@lru_cache(maxsize=1024)  # every run of a template asks
def _usual_sums(unit: MatrixUnit, work: Work, target: Cpu) -> Sums:
    return min(_all_sums(unit, work), key=lambda s: (round(unit.cycles_of(work, s, target)), -s.bands))
