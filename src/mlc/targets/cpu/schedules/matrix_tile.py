"""What a unit for matrices sums up at once: what takes least, and what the knobs say."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mlc.lower.knobs import Knobs, divisors
from mlc.lower.symbolic import pinned
from mlc.targets.cpu.matrix import MatrixUnit, Sums
from mlc.targets.cpu.record import Cpu

WORTH_MATRICES = 0.9  # part of the cycles by vectors that whole matrices may take at most, copies included
COPIED = 8.0  # bytes of a copy that are written in a cycle
# Part of the first-level cache that a panel of weights can count on while data pass by (measured on Sapphire Rapids,
# 197 rows by 768 terms of bf16: three bands by one vector, whose panel takes half of it, take 1.3 times as long as two
# by two).
NEAR = 0.33


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


def cycles_of(work: Work, sums: Sums, unit: MatrixUnit, target: Cpu) -> float:
    """Cycles of a product whose operands are in the caches; the last vectors are computed by a whole tile as well.

    Args:
        work: what is computed.
        sums: at once.
        unit: multiplies.
        target: has the caches.
    """
    # bytes of a step that come from the second-level cache: what a tile reads of weights stays in the first if it
    # leaves room for the data, which pass by
    weights, data = sums.vectors * unit.rows * target.vector_bytes, sums.bands * sums.rows * target.vector_bytes
    near = weights * work.steps <= NEAR * target.l1
    few = (weights + data) * work.steps <= NEAR * target.l1
    far = 0 if few else data if near else data + weights
    loads = (weights + data) / (target.loads * target.vector_bytes)
    products = sums.bands * sums.vectors
    step = max(products * unit.cycles, unit.latency, loads, far / target.l2_bandwidth)
    tiles = -(-work.bands // sums.bands) * -(-work.columns // sums.vectors)
    return tiles * (work.steps * step + unit.latency)


def least_cycles(work: Work, unit: MatrixUnit, target: Cpu) -> float:
    """The same with the sums that take least."""
    return cycles_of(work, _usual_sums(work, unit, target), unit, target)


def best_rows(work: Work, unit: MatrixUnit, target: Cpu) -> Work | None:
    """The same work with as many rows in a matrix as take least; ``None`` where it cannot be cut into matrices."""
    found = [work._replace(rows=rows) for rows in unit.heights if work.may_have(rows)]
    # of equals the one with the fewest rows for nothing
    return min(found, key=lambda w: (round(least_cycles(w, unit, target)), w.rows * w.bands, -w.rows), default=None)


def ask_rows(knobs: Knobs, work: Work, unit: MatrixUnit) -> Work:
    """The same work with as many rows in a matrix as the knobs say.

    Raises:
        ScheduleError: the configuration is refused.
    """
    rows = pinned(knobs.discrete("rows", unit.heights, default=work.rows))
    knobs.require(work.may_have(rows), "rows of matrices would be apart by more than one distance")
    return work._replace(rows=rows)


def ask_sums(knobs: Knobs, work: Work, unit: MatrixUnit, target: Cpu) -> Sums:
    """What is summed up at once, as the knobs say; untuned, what takes least.

    Raises:
        ScheduleError: the configuration is refused.
    """
    default, most = _usual_sums(work, unit, target), range(1, unit.registers // 2)
    bands = knobs.discrete("bands", most, default=default.bands)
    vectors = knobs.discrete("vectors", most, default=default.vectors)
    sums = Sums(work.rows, bands, vectors)
    knobs.require(unit.fits(sums), "the sums of a tile do not fit the registers")
    if work.along:
        knobs.require(work.bands % bands == 0, "matrices cannot be grouped evenly so")
    knobs.require(vectors <= work.columns, "there are fewer columns")
    return sums


def _all_sums(work: Work, unit: MatrixUnit) -> list[Sums]:
    """All that fit the registers."""
    wide = range(1, min(unit.registers, work.columns + 1))
    high = divisors(work.bands) if work.along else range(1, min(unit.registers, work.bands + 1))
    return [s for b in high for v in wide if unit.fits(s := Sums(work.rows, b, v))]


@lru_cache(maxsize=1024)  # every run of a template asks
def _usual_sums(work: Work, unit: MatrixUnit, target: Cpu) -> Sums:
    return min(
        _all_sums(work, unit), key=lambda s: (round(cycles_of(work, s, unit, target)), -s.bands * s.vectors, -s.bands)
    )
