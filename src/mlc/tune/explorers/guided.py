"""OpEvo whose children are judged by a cost model before they are measured."""

from __future__ import annotations

import numpy as np

from mlc.tune.explorers.descent import Descent
from mlc.tune.explorers.ledger import Ledger
from mlc.tune.explorers.opevo import OpEvo
from mlc.tune.explorers.selection import diverse
from mlc.tune.explorers.surrogate import Surrogate

_LEAST = 512  # children of even the smallest batch


class Guided:
    """Many more children than can be measured; the best and most different by the model are.

    It joins the two papers: OpEvo's topology-aware mutation of the fastest configurations makes most candidates,
    AutoTVM's cost model and diversity choose among them. All neighbours of the fastest are candidates as well, and a
    share of each batch is taken from these without asking the model, which keeps it from believing in what it never
    sees. Until the model has enough to learn from, it is plain OpEvo.

    Args:
        ledger: the books.
        surrogate: the cost model.
        parents: λ of OpEvo.
        q: mutation rate.
        children: bred a batch, by its size.
        near: neighbours of the fastest configurations that join them, at most.
        descent: share of a batch that comes from coordinate descent.
        epsilon: share of a batch that is drawn at random.
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
        near: int = 256,
        descent: float = 0.25,
        epsilon: float = 0.05,
        spread: float = 2.0,
        alpha: float = 0.1,
    ) -> None:
        self._ledger = ledger
        self._surrogate = surrogate
        self._evolution = OpEvo(ledger, parents=parents, q=q)
        self._descent = Descent(ledger)
        self._near = near
        self._children = children
        self._share = descent
        self._epsilon = epsilon
        self._spread = spread
        self._alpha = alpha

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        if not self._surrogate.ready():
            return self._evolution.suggest(n)
        children = self._evolution.breed(max(_LEAST, self._children * n))
        children = np.concatenate([self._descent.suggest(self._near), children])
        children = children[ledger.new(children)]
        if not len(children):
            return children
        scores = self._surrogate.predict(children)
        best = np.argsort(-scores, kind="stable")[: max(n, int(self._spread * n))]
        candidates, scale = children[best], float(scores[best].std()) or 1.0
        chance, local = (int(share * n + ledger.rng.random()) for share in (self._epsilon, self._share))
        chosen = candidates[diverse(candidates, scores[best] / scale, max(0, n - chance - local), self._alpha)]
        around = self._descent.suggest(len(chosen) + local)
        around = around[~np.isin(ledger.codes(around), ledger.codes(chosen))][:local]
        return np.concatenate([chosen, around])

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        self._surrogate.forget()
        self._descent.learn(rows, speeds)
