"""Which of many promising configurations make up a batch: fast ones that differ (AutoTVM §3.3)."""

from __future__ import annotations

import numpy as np


def diverse(rows: np.ndarray, scores: np.ndarray, n: int, alpha: float) -> np.ndarray:
    """Greedy maximisation of ``sum of scores + alpha * different values over all knobs`` (AutoTVM eq. 3).

    The objective is submodular, so the greedy choice reaches at least 1 - 1/e of what the best one gains.

    Args:
        rows: candidates, ``[m, knobs]``.
        scores: their predicted speeds, ``[m]``.
        n: how many to choose.
        alpha: what a knob's value that nobody else in the batch has is worth, in units of the scores.
    Returns:
        indices in order of choice, ``[min(n, m)]``.
    """
    n = min(n, len(rows))
    chosen = np.zeros(n, np.int64)
    gains = scores + alpha * rows.shape[1]
    free = np.ones(len(rows), bool)
    seen: list[set[int]] = [set() for _ in range(rows.shape[1])]
    for k in range(n):
        best = int(np.where(free, gains, -np.inf).argmax())
        chosen[k] = best
        free[best] = False
        for knob, values in enumerate(seen):
            value = int(rows[best, knob])
            if value not in values:
                values.add(value)
                gains = gains - alpha * (rows[:, knob] == value)
    return chosen
