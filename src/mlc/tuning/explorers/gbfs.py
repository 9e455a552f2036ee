"""Greedy best-first search over the graph of configurations (Zhang et al. 2019, the baseline of OpEvo §5)."""

from __future__ import annotations

import numpy as np

from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.limits import whole


class GreedyBestFirst:
    """Some random neighbours of the fastest configuration that has not been expanded yet, the default to begin with.

    Args:
        ledger: the books.
        neighbours: ρ, how many neighbours an expansion tries; 5 in OpEvo's experiments (appendix B).
    """

    def __init__(self, ledger: Ledger, *, neighbours: int = 5) -> None:
        whole(1, neighbours=neighbours)
        self._ledger = ledger
        self._most = neighbours
        self._expanded = np.zeros(0, np.uint64)

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        found = [ledger.rows[:0]]
        rows = ledger.rows[np.argsort(-ledger.speeds, kind="stable")] if len(ledger.rows) else ledger.known_best()
        codes = ledger.codes(rows)
        waiting = np.flatnonzero(~np.isin(codes, self._expanded)).tolist()
        renewed = False
        while n > 0:
            if not waiting:
                # Everything has been expanded: the queue is filled again, once a call, with all that is known.
                if renewed:
                    break
                renewed = True
                self._expanded = self._expanded[:0]
                waiting = list(range(len(rows)))
                continue
            best = waiting.pop(0)
            self._expanded = np.append(self._expanded, codes[best])
            around, _ = ledger.topology.neighbours(rows[best])
            around = ledger.rng.permutation(around)
            around = around[ledger.new(around)][: self._most]
            found.append(around)
            n -= len(around)
        return np.concatenate(found)

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        pass
