"""Coordinate descent from the best configuration known, in the manner of the Droplet search (Canesche et al. 2024)."""

from __future__ import annotations

import numpy as np

from mlc.tuning.explorers.ledger import Ledger


class Descent:
    """The neighbours of the fastest configuration, then those of the second fastest, and so on.

    Before anything was measured they are those of the default, one of each knob before a second one of any. A faster
    neighbour takes over as soon as it has been measured. The knob whose move was the last to help is tried first, since
    it often helps again; the others come in random order.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._best: np.ndarray | None = None
        self._helped = -1

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        if not len(ledger.rows):
            return self._around_default(n)
        found = ledger.rows[:0]
        waiting: list[np.ndarray] = []  # neighbours not looked at yet: asking for many at once costs little more
        for row in ledger.ranked()[0]:
            around, knobs = ledger.topology.neighbours(row)
            turns = ledger.rng.permutation(len(row)).argsort().astype(float)
            if self._helped >= 0:
                turns[self._helped] = -1
            order = np.argsort(turns[knobs] + ledger.rng.random(len(knobs)) / 2)
            waiting.append(around[order])
            if len(found) + sum(map(len, waiting)) >= 2 * n:
                found = np.concatenate([found, *waiting])
                found = found[ledger.new(found)]
                waiting = []
                if len(found) >= n:
                    break
        found = np.concatenate([found, *waiting])
        return found[ledger.new(found)][:n]

    def _around_default(self, n: int) -> np.ndarray:
        ledger = self._ledger
        around, knobs = ledger.topology.neighbours(ledger.space.row({}))
        order = ledger.rng.permutation(len(around))
        around, knobs = around[order], knobs[order]
        before = (knobs[:, None] == knobs) & (np.arange(len(knobs)) < np.arange(len(knobs))[:, None])
        around = around[np.argsort(before.sum(axis=1), kind="stable")]
        return around[ledger.new(around)][:n]

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        best = self._ledger.ranked(1)[0]
        if not len(best):
            return
        if self._best is not None:
            moved = np.flatnonzero(best[0] != self._best)
            if len(moved):
                self._helped = int(moved[0]) if len(moved) == 1 else -1
        self._best = best[0]
