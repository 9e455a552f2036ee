"""A cost model over the configurations of one exploration."""

from __future__ import annotations

import numpy as np

from mlc.tuning.base import CostModel, Featurizer
from mlc.tuning.explorers.ledger import Ledger


class Surrogate:
    """Learns from all that the ledger knows, when asked and something is new.

    Args:
        ledger: the books.
        featurizer: describes configurations.
        model: learns and predicts.
    """

    def __init__(self, ledger: Ledger, featurizer: Featurizer, model: CostModel) -> None:
        self._ledger = ledger
        self._featurizer = featurizer
        self._model = model
        self._features: np.ndarray | None = None
        self._stale = True

    def forget(self) -> None:
        """Something was measured: the model has to learn again."""
        self._stale = True

    def ready(self) -> bool:
        """Bring the model up to date; whether it can tell anything."""
        ledger = self._ledger
        least = self._model.least
        if len(ledger.rows) < least:
            return False
        if not ledger.speeds.any():  # nothing measured, or all of it failed
            return least == 0
        if self._stale:
            done = 0 if self._features is None else len(self._features)
            more = self._featurizer(ledger.rows[done:])
            self._features = more if self._features is None else np.concatenate([self._features, more])
            self._model.fit(self._features, ledger.speeds / ledger.speeds.max())
            self._stale = False
        return True

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Scores, float64 ``[n]``; more is better.

        Raises:
            ValueError: the model gave something that is no number.
        """
        scores = np.asarray(self._model.predict(self._featurizer(rows)), np.float64)
        if not np.isfinite(scores).all():
            raise ValueError("the cost model predicts what is no number")
        return scores
