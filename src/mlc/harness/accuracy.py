"""How close one model's outputs are to another's, over many samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log10
from typing import Any

import numpy as np

from mlc.harness.top import top_entries


@dataclass(frozen=True)
class Accuracy:
    """One output over all samples.

    Args:
        name: of the output.
        snr_db: power of the reference over that of the difference, in decibels.
        rows: rows of classes that were compared; 0 where the output has no classes.
        agree: rows whose highest entry is the same.
        error: the largest difference, over the range of the reference (infinite if that has none).
        largest: difference.
        mean: of the differences' magnitudes.
    """

    name: str
    snr_db: float
    rows: int
    agree: int
    error: float
    largest: float
    mean: float

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "snr_db": self.snr_db,
            "rows": self.rows,
            "top1_agree": self.agree,
            "error": self.error,
            "largest": self.largest,
            "mean": self.mean,
        }


class AccuracyMeter:
    """Sums up samples one by one."""

    def __init__(self) -> None:
        self._signal: dict[str, float] = {}
        self._noise: dict[str, float] = {}
        self._rows: dict[str, int] = {}
        self._agree: dict[str, int] = {}
        self._largest: dict[str, float] = {}
        self._off: dict[str, tuple[float, int]] = {}  # sum of the differences, and how many
        self._range: dict[str, tuple[float, float]] = {}

    def add(self, reference: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> None:
        """One sample's outputs, of the same names and shapes."""
        for name, array in reference.items():
            a, b = array.astype(np.float64), got[name].astype(np.float64)
            self._signal[name] = self._signal.get(name, 0.0) + float(np.square(a).sum())
            self._noise[name] = self._noise.get(name, 0.0) + float(np.square(a - b).sum())
            low, high = self._range.get(name, (inf, -inf))
            self._range[name] = min(low, float(a.min(initial=inf))), max(high, float(a.max(initial=-inf)))
            off, count = self._off.get(name, (0.0, 0))
            self._off[name] = off + float(np.abs(a - b).sum()), count + a.size
            self._largest[name] = max(self._largest.get(name, 0.0), float(np.abs(a - b).max(initial=0.0)))
            first, second = top_entries(array, 1), top_entries(got[name], 1)
            pairs = list(zip(first, second, strict=True)) if first and second else []
            self._rows[name] = self._rows.get(name, 0) + len(pairs)
            self._agree[name] = self._agree.get(name, 0) + sum(a.index == b.index for a, b in pairs)

    def result(self) -> tuple[Accuracy, ...]:
        """All outputs, in order."""
        return tuple(
            Accuracy(
                name,
                decibels(signal, self._noise[name]),
                self._rows[name],
                self._agree[name],
                self._error(name),
                self._largest[name],
                self._off[name][0] / max(self._off[name][1], 1),
            )
            for name, signal in self._signal.items()
        )

    def _error(self, name: str) -> float:
        low, high = self._range[name]
        largest = self._largest[name]
        if not largest:
            return 0.0
        return largest / (high - low) if high > low else inf


def decibels(signal: float, noise: float) -> float:
    """A ratio of powers in decibels; infinite without noise."""
    if not noise:
        return inf
    return 10 * log10(signal / noise) if signal else -inf
