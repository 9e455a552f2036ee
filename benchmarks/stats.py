"""Statistics and comparisons that the reports are made of."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its median absolute deviation."""

    median: float
    mad: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of some values, at least one."""
        middle = statistics.median(values)
        return cls(middle, statistics.median(abs(value - middle) for value in values), len(values))


def paired_ratio(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Spread | None:
    """``first`` over ``second`` from the medians of blocks measured in the same round.

    Args:
        first, second: seconds of the runs by round; a round may be empty.
    Returns:
        nothing when they share no round.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a and b]
    return Spread.of([statistics.median(a) / statistics.median(b) for a, b in pairs]) if pairs else None


def geometric_mean(values: Iterable[float]) -> float:
    """That of positive values; NaN for none."""
    logarithms = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logarithms)) if logarithms else math.nan


def largest_error(ours: Arrays, theirs: Arrays) -> float:
    """The largest difference over the largest magnitude, for the worst output; infinite if shapes or names differ."""
    if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in ours):
        return math.inf
    worst = 0.0
    for name, expected in theirs.items():
        difference = float(np.abs(ours[name].astype(np.float64) - expected.astype(np.float64)).max(initial=0.0))
        scale = float(np.abs(expected).max(initial=0.0))
        error = difference / scale if scale > 0 else difference
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst
