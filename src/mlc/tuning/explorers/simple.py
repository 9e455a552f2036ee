"""Explorers that learn nothing: the baselines."""

from __future__ import annotations

import numpy as np

from mlc.tuning.explorers.ledger import Ledger

_CHUNK = 4096
_PATIENCE = 256  # chunks without anything valid before a grid gives way to random draws


class Random:
    """Configurations drawn evenly: nothing to suggest."""

    def __init__(self, ledger: Ledger) -> None:
        self._none = ledger.rows[:0]

    def suggest(self, n: int) -> np.ndarray:
        return self._none

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        pass


class Grid:
    """All configurations in order; the last knob counts fastest."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next = 0

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        found = [ledger.rows[:0]]
        for _ in range(_PATIENCE):
            end = min(self._next + _CHUNK, ledger.space.size)
            rows = self._decode(np.arange(self._next, end))
            rows = rows[ledger.new(rows)][:n]
            found.append(rows)
            n -= len(rows)
            if not n or end == ledger.space.size:
                break
            self._next = end
        return np.concatenate(found)

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        pass

    def _decode(self, numbers: np.ndarray) -> np.ndarray:
        counts = self._ledger.space.counts
        rows = np.zeros((len(numbers), len(counts)), np.int64)
        for k in range(len(counts) - 1, -1, -1):
            numbers, rows[:, k] = np.divmod(numbers, counts[k])
        return rows
