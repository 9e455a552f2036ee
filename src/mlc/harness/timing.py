"""What a list of measured times says: percentiles, spread, and whether the machine was too restless to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Median absolute deviation over the median, above which a measurement is called noisy.
NOISY_SPREAD = 0.05
# Fewer runs than this say nothing about noise.
_FEWEST = 3


@dataclass(frozen=True)
class Statistics:
    """Times of single runs in milliseconds. ``std`` is that of the sample; ``mad`` the median absolute deviation."""

    min: float
    p50: float
    p90: float
    p99: float
    max: float
    mean: float
    std: float
    mad: float
    n: int

    @property
    def noisy(self) -> bool:
        """The runs differ so much that the numbers should be taken with care."""
        return self.n >= _FEWEST and self.mad > NOISY_SPREAD * self.p50

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Statistics:
        """Statistics of at least one run.

        Args:
            nanoseconds: the time of each run.
        """
        ms = np.asarray(nanoseconds, np.float64) / 1e6
        p50, p90, p99 = (float(p) for p in np.percentile(ms, (50, 90, 99)))
        return cls(
            min=float(ms.min()),
            p50=p50,
            p90=p90,
            p99=p99,
            max=float(ms.max()),
            mean=float(ms.mean()),
            std=float(ms.std(ddof=1)) if ms.size > 1 else 0.0,
            mad=float(np.median(np.abs(ms - p50))),
            n=int(ms.size),
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "noisy": self.noisy, "unit": "ms"}
