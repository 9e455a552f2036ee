"""One exploration: a strategy that suggests, within rules that hold for all of them."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

import numpy as np

from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.foreign import ForeignError, ask

_ATTEMPTS = 4  # asking a strategy again when what it suggested was known
_LOGGER = logging.getLogger("mlc")


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

    Whatever goes wrong in a strategy, in the cost model that it asks above all, costs a batch its guidance and not the
    run: the batch is drawn at random, and the log has a warning.

    Args:
        ledger: the books, shared with the strategies.
        strategy: how to go on.
        finish: takes over for the end of the search; the strategy fills up what it leaves.
        after: as many measured configurations begin the end of the search.
    """

    def __init__(self, ledger: Ledger, strategy: Strategy, finish: Strategy, after: int | None = None) -> None:
        self.ledger = ledger
        self._strategy = strategy
        self._finish = finish
        self._after = after
        self._troubles: set[str] = set()

    def propose(self, n: int) -> np.ndarray:
        """At most ``n`` new configurations, int64 ``[n, knobs]``; fewer only when the space has no more."""
        found = [self.ledger.first(n)]
        missing = n - len(found[0])
        ending = self._after is not None and len(self.ledger.rows) >= self._after
        for strategy in (self._finish, self._strategy) if ending else (self._strategy,):
            for _ in range(_ATTEMPTS if missing else 0):
                rows = self._suggested(strategy, missing)
                found.append(self.ledger.take(rows, missing))
                short = len(rows) < missing
                missing -= len(found[-1])
                if short or not missing:
                    break
        return np.concatenate([*found, self.ledger.fresh(missing)])

    def most(self) -> int | None:
        """How many the strategy would have measured at once, where it cares."""
        asked = getattr(self._strategy, "most", None)
        return None if asked is None else asked()

    def observe(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        """What was measured: ``[n, knobs]`` and ``[n]``, 0 for failures."""
        self.ledger.record(rows, speeds)
        for strategy in (self._strategy, self._finish):
            try:
                ask(partial(strategy.learn, rows, speeds))
            except ForeignError as error:
                self._warn(str(error))

    def _suggested(self, strategy: Strategy, n: int) -> np.ndarray:
        """What a strategy suggests; nothing where it fails."""
        try:
            return ask(lambda: strategy.suggest(n))
        except ForeignError as error:
            self._warn(str(error))
            return self.ledger.rows[:0]

    def _warn(self, text: str) -> None:
        """Says what went wrong, once."""
        if text not in self._troubles:
            self._troubles.add(text)
            _LOGGER.warning("configurations are drawn at random where the search cannot choose: %s", text)
