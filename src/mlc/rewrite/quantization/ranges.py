"""Which range of a tensor's numbers 8 bits, or fewer, shall stand for, told from how often it holds which.

Numbers beyond the range are cut off, and a smaller one has finer steps. Four ways to weigh that against each other:

* ``minmax``: all numbers seen are within.
* ``percentile``: as many of the magnitudes as it says.
* ``entropy``: the magnitudes whose distribution, in as many steps as there are, differs least from the whole one: of
  all limits the one of least Kullback-Leibler divergence (S. Migacz, 8-bit Inference with TensorRT, GTC 2017). The
  distribution is smoothed by a step first: what lies within one, as the constants that channels without a signal give,
  counts for nothing, and would be kept at the price of all large numbers.
* ``mse``: the range of least squared error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum

import numpy as np

from mlc.errors import UsageError

BINS = 1 << 14  # half of them for each sign: 16 and more to a step of 8 bits, where all of one sign are used
_LEAST_REACH = -126  # binary exponent: of the smallest normal f32
_LIMITS = 128  # that entropy tries
_COARSE = 2048  # bins that it looks at
_SHARES = np.linspace(0.3, 1.0, 29)  # of the whole range that least squares try
_FEW_SHARES = np.geomspace(0.01, 1.0, 61)  # where there are few steps, of which each is dear
STEPS = 255  # of a byte
_FEW = 15


class Method(StrEnum):
    """How a range is chosen."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MSE = "mse"


@dataclass(frozen=True)
class Calibration:
    """How ranges are chosen.

    Args:
        method: by what.
        percentile: of the magnitudes, above 50 and up to 100; for that method.
    """

    method: Method = Method.MSE
    percentile: float = 99.99

    @classmethod
    def parse(cls, text: str) -> Calibration:
        """From ``minmax``, ``mse``, ``entropy``, ``percentile`` or ``percentile=99.9``.

        Raises:
            UsageError: it is none of these.
        """
        name, equals, number = text.partition("=")
        known = [m.value for m in Method]
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"no way to calibrate is called {name!r}", hint=f"{guess}there are {', '.join(known)}")
        method = Method(name)
        if not equals:
            return cls(method)
        try:
            percentile = float(number)
        except ValueError:
            percentile = 0.0
        if method is not Method.PERCENTILE or not 50 < percentile <= 100:
            raise UsageError(
                f"--calibration: {text!r} is no way to calibrate",
                hint="only percentile has a number, above 50 and up to 100, e.g. percentile=99.9",
            )
        return cls(method, percentile)

    def __str__(self) -> str:
        return f"{self.method}={self.percentile:g}" if self.method is Method.PERCENTILE else str(self.method)


@dataclass(eq=False)
class Distribution:
    """A histogram of a tensor's numbers, whose range doubles whenever it has to.

    Args:
        least: the least number so far, or 0.
        most: the greatest, or 0.
        reach: bins cover from ``-2**reach`` to ``2**reach``.
        counts: of numbers in each.
    """

    least: float = 0.0
    most: float = 0.0
    reach: int = _LEAST_REACH
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, numbers: np.ndarray) -> None:
        """Count finite floats."""
        if not numbers.size:
            return
        self.least, self.most = min(self.least, float(numbers.min())), max(self.most, float(numbers.max()))
        greatest = max(-self.least, self.most)
        self._grow(int(np.ceil(np.log2(greatest))) if greatest > 0 else self.reach)
        scaled = numbers.reshape(-1).astype(np.float64) * np.exp2(float(-self.reach)) + 1.0
        bins = np.minimum((scaled * (BINS // 2)).astype(np.int64), BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)

    def _grow(self, reach: int) -> None:
        for _ in range(min(reach - self.reach, BINS.bit_length())):  # then all is in the two in the middle
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.pad(pairs, BINS // 4)
        self.reach = max(self.reach, reach)

    @property
    def width(self) -> float:
        """Of a bin."""
        return float(np.exp2(float(self.reach + 1))) / BINS

    def range(self, how: Calibration, steps: int = STEPS) -> tuple[float, float]:
        """The numbers that so many steps shall stand for, from at most 0 to at least 0."""
        if how.method is Method.MINMAX or self.least == self.most:
            return self.least, self.most
        if how.method is Method.MSE:
            return self._least_squares(steps)
        limit = self._entropy(steps) if how.method is Method.ENTROPY else self._percentile(how.percentile)
        return max(self.least, -limit), min(self.most, limit)

    def squared_errors(self, scales: np.ndarray, zeros: np.ndarray, lo: int, hi: int) -> np.ndarray:
        """Sums of squared errors of rounding to ``(q - zero) * scale`` with integers ``q`` from ``lo`` to ``hi``.

        Args:
            scales, zeros: vectors of one length.
        """
        (used,) = self.counts.nonzero()
        x, n = (used + (0.5 - BINS // 2)) * self.width, self.counts[used].astype(np.float64)
        sums = []
        for scale, zero in zip(scales.tolist(), zeros.tolist(), strict=True):
            off = (np.clip(np.rint(x / scale) + zero, lo, hi) - zero) * scale - x
            sums.append(float(off * off @ n))
        return np.asarray(sums)

    def _least_squares(self, steps: int) -> tuple[float, float]:
        """Shares of the whole range: of both limits alike, then of the one and the other."""
        below, above = 1.0, 1.0
        choices = (_SHARES if steps > _FEW else _FEW_SHARES).tolist()
        for cut_below, cut_above in ((True, True), (True, False), (False, True)):
            shares = [(below * s if cut_below else below, above * s if cut_above else above) for s in choices]
            found = [asymmetric(self.least * low, self.most * high, steps) for low, high in shares]
            scales, zeros = (np.asarray(numbers) for numbers in zip(*found, strict=True))
            errors = self.squared_errors(scales, zeros, 0, steps)
            # of equals the last, which cuts off least
            below, above = shares[len(shares) - 1 - int(errors[::-1].argmin())]
        return self.least * below, self.most * above

    def _magnitudes(self) -> np.ndarray:
        half = BINS // 2
        return self.counts[half:] + self.counts[:half][::-1]

    def _percentile(self, percentile: float) -> float:
        sums = self._magnitudes().cumsum()
        return (int(np.searchsorted(sums, sums[-1] * (percentile / 100))) + 1) * self.width

    def _entropy(self, steps: int) -> float:
        found = self._magnitudes()
        used = int(found.nonzero()[0][-1]) + 1
        each = -(-used // _COARSE)  # bins of the histogram to one that is looked at
        coarse = np.pad(found[:used], (0, -used % each)).reshape(-1, each).sum(axis=1).astype(np.float64)
        coarse[0] = coarse[min(1, coarse.size - 1)]  # zeros are exact, wherever the limit is
        greatest = max(-self.least, self.most)
        levels = max(2, round(steps * greatest / (self.most - self.least)))  # that magnitudes up to there have
        coarse = _smoothed(coarse, round(coarse.size / levels))
        limits = np.unique(np.linspace(min(levels, coarse.size), coarse.size, _LIMITS).astype(int))
        divergences = [_divergence(coarse, int(limit), levels) for limit in limits]
        # of equals the last, which cuts off least
        return float(limits[::-1][int(np.argmin(divergences[::-1]))] * each) * self.width


def _divergence(counts: np.ndarray, limit: int, levels: int) -> float:
    """Of the numbers below a limit, with those beyond it at the limit, from what ``levels`` can tell of them."""
    kept = counts[:limit]
    given = kept.copy()
    given[-1] += counts[limit:].sum()
    starts = np.unique(np.arange(levels) * limit // levels)
    sizes = np.diff(np.append(starts, limit))
    some = (given > 0).astype(np.float64)
    each = np.add.reduceat(kept, starts) / np.maximum(np.add.reduceat(some, starts), 1)
    told = np.repeat(each, sizes) * some
    p, q = given / given.sum(), told / max(told.sum(), 1)
    at = p > 0
    return float((p[at] * np.log(p[at] / np.maximum(q[at], 1e-12))).sum())


def _smoothed(counts: np.ndarray, width: int) -> np.ndarray:
    """Counts of magnitudes spread over their neighbours: means over ``width`` bins, twice."""
    if width < 2 or counts.size <= width:
        return counts
    box = np.full(width, 1 / width)
    for _ in range(2):
        counts = np.convolve(np.pad(counts, width, mode="reflect"), box, "same")[width:-width]
    return counts


def asymmetric(lo: float, hi: float, steps: int = STEPS) -> tuple[float, int]:
    """Scale and zero point with which 0 to ``steps`` stand for a range that holds 0; 0 is exact."""
    scale = float(np.float32((hi - lo) / steps))
    if not scale > 0 or not np.isfinite(1 / np.float32(scale)):  # nothing but zeros, or next to it
        return 1.0, 0
    return scale, int(np.clip(round(-lo / scale), 0, steps))
