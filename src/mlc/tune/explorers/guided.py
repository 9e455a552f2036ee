"""OpEvo whose children are judged by a cost model before they are measured."""

from __future__ import annotations

import numpy as np

from mlc.tune.explorers.ledger import Ledger
from mlc.tune.explorers.opevo import OpEvo
from mlc.tune.explorers.selection import diverse
from mlc.tune.explorers.surrogate import Surrogate


class Guided:
    """Many more children than can be measured; the best and most different by the model are.

    It joins the two papers: OpEvo's topology-aware mutation around the fastest configurations makes the candidates,
    AutoTVM's cost model and diversity choose among them. Until the model has enough to learn from, it
    is plain OpEvo.

    Args:
        ledger: the books.
        surrogate: the cost model.
        parents: λ of OpEvo.
        q: mutation rate.
        children: bred a batch, by its size.
        unguided: share of a batch that the model has no say in: OpEvo's children as they come.
        spread: candidates to choose from by diversity, in batches.
        alpha: weight of diversity, in standard deviations of these candidates' scores.
    """

    def __init__(
        self,
        ledger: Ledger,
        surrogate: Surrogate,
        *,
        parents: int = 16,
        q: float = 0.5,
        children: int = 64,
        unguided: float = 0.25,
        spread: float = 2.0,
        alpha: float = 0.1,
    ) -> None:
        self._ledger = ledger
        self._surrogate = surrogate
        self._evolution = OpEvo(ledger, parents=parents, q=q)
        self._children = children
        self._unguided = unguided
        self._spread = spread
        self._alpha = alpha

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        if not self._surrogate.ready():
            return self._evolution.suggest(n)
        greedy = n - int(self._unguided * n + ledger.rng.random())
        children = self._evolution.breed(max(512, self._children * n))
        children = children[ledger.new(children)]
        if not len(children):
            return children
        scores = self._surrogate.predict(children)
        best = np.argsort(-scores, kind="stable")[: max(n, int(self._spread * n))]
        candidates, scale = children[best], float(scores[best].std()) or 1.0
        chosen = candidates[diverse(candidates, scores[best] / scale, greedy, self._alpha)]
        return np.concatenate([chosen, self._evolution.breed(n - len(chosen))])

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        self._surrogate.forget()
