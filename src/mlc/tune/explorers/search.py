"""One exploration: a strategy that suggests, within rules that hold for all of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mlc.tune.explorers.ledger import Ledger

_ATTEMPTS = 4  # asking a strategy again when what it suggested was known


class Strategy(Protocol):
    """How to go on from what is known."""

    def suggest(self, n: int) -> np.ndarray:
        """Configurations to measure next, most promising first, ``[m, knobs]``.

        Known, invalid and repeated ones are dropped. After fewer than ``n`` the rest is drawn at random, after as many
        the strategy is asked again for what was dropped.
        """
        ...

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        """See what was measured; the ledger holds it already."""
        ...


class Search:
    """An explorer: the default configuration first, then the seeds, then what a strategy suggests.

    Args:
        ledger: the books, shared with the strategies.
        strategy: how to go on.
        finish: takes over for the end of the search; see :meth:`polish`.
        after: as many measured configurations start the end of the search by themselves.
    """

    def __init__(self, ledger: Ledger, strategy: Strategy, finish: Strategy, after: int | None = None) -> None:
        self.ledger = ledger
        self._strategy = strategy
        self._finish = finish
        self._after = after

    def polish(self) -> None:
        """From now on descend from the best configuration known; the strategy fills up what that leaves."""
        self._after = 0

    def propose(self, n: int) -> np.ndarray:
        """At most ``n`` new configurations, int64 ``[n, knobs]``; fewer only when the space has no more."""
        found = [self.ledger.first(n)]
        missing = n - len(found[0])
        ending = self._after is not None and len(self.ledger.rows) >= self._after
        for strategy in (self._finish, self._strategy) if ending else (self._strategy,):
            for _ in range(_ATTEMPTS if missing else 0):
                rows = strategy.suggest(missing)
                found.append(self.ledger.take(rows, missing))
                short = len(rows) < missing
                missing -= len(found[-1])
                if short or not missing:
                    break
        return np.concatenate([*found, self.ledger.fresh(missing)])

    def observe(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        """What was measured: ``[n, knobs]`` and ``[n]``, 0 for failures."""
        self.ledger.record(rows, speeds)
        for strategy in (self._strategy, self._finish):
            strategy.learn(rows, speeds)
