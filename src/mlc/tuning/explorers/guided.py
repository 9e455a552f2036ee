"""OpEvo whose children are judged by two cost models before they are measured: one that ranks, one that doubts."""

from __future__ import annotations

import numpy as np

from mlc.tuning.explorers.descent import Descent
from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.opevo import OpEvo
from mlc.tuning.explorers.surrogate import Surrogate
from mlc.tuning.models.process import Process

_LEAST = 512  # children of even the smallest batch
_RETRIES = 2  # mutating again children that are known or cannot be: what is left of many is enough
BATCHES = 3  # that are small
_SHORT = 768  # candidates that the second model looks at


class Guided:
    """Many more children than can be measured; those are that may be the fastest, as far as is known.

    It joins the two papers and adds doubt. Candidates are OpEvo's children of the fastest configurations, by its
    topology-aware mutation, all neighbours of the fastest, and random draws. A cost model that sees loops, as
    AutoTVM's, says which may be good; a Gaussian process over the knobs says how much is known of them; a batch is
    chosen by upper confidence bounds. A share of it comes from coordinate descent, whatever the models say. Until the
    cost model has something to learn from, half of what is tried lies around the default, and the rest is plain
    OpEvo's. Where it knows other tasks, a quarter does, the rest is what it expects, and batches are small at first.

    Args:
        ledger: the books.
        surrogate: the cost model.
        parents: λ of OpEvo.
        q: mutation rate.
        children: bred a batch, by its size.
        near: neighbours of the fastest configurations that join them, at most.
        anywhere: random draws that join them.
        trust: share of the cost model in the expected speed; the process has the rest.
        kappa: standard deviations that count as hope.
        descent: share of a batch that comes from coordinate descent.
        around: share of what is tried before the cost model can tell anything that is the default's neighbours; half
            of it where the model knows other tasks.
        first: configurations of each of the first batches then.
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
        anywhere: int = 1024,
        trust: float = 0.7,
        kappa: float = 2.0,
        descent: float = 0.3,
        around: float = 0.5,
        first: int = 8,
    ) -> None:
        self._ledger = ledger
        self._surrogate = surrogate
        self._process = Process(ledger.space)
        self._evolution = OpEvo(ledger, parents=parents, q=q)
        self._descent = Descent(ledger)
        self._children = children
        self._near = near
        self._anywhere = anywhere
        self._trust = trust
        self._kappa = kappa
        self._share = descent
        self._around = around
        self._first = first

    def most(self) -> int | None:
        """Few at once in some first batches that other tasks guide: what they cannot tell is soon learnt."""
        if self._surrogate.lessons.model.least or len(self._ledger.rows) >= BATCHES * self._first:
            return None
        return self._first

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        if not len(ledger.rows) or not self._surrogate.ready():
            return self._begin(n)
        around = self._descent.suggest(max(self._near, 2 * n))
        candidates = self._candidates(n, around)
        if not len(candidates):
            return candidates
        local = int(self._share * n + ledger.rng.random())
        chosen = self._choose(candidates, max(0, n - local))
        around = around[~np.isin(ledger.codes(around), ledger.codes(chosen))][:local]
        return np.concatenate([chosen, around])

    def _begin(self, n: int) -> np.ndarray:
        """Neighbours of the default configuration, which is seldom far from the best, and what plain OpEvo would do.

        Where the model knows other tasks, what it expects to be fast, in turns with these neighbours.
        """
        knows = self._surrogate.ready()
        around = self._descent.suggest(round(self._around * n / (2 if knows else 1)))
        if not knows:
            return np.concatenate([around, self._evolution.suggest(n - len(around))])
        candidates = self._candidates(n, around)[len(around) :]
        others = self._choose(candidates, n - len(around))
        turns = np.argsort(np.concatenate([np.arange(len(around)), np.arange(len(others))]), kind="stable")
        return np.concatenate([around, others])[turns]

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        self._surrogate.forget()
        self._descent.learn(rows, speeds)

    def _candidates(self, n: int, around: np.ndarray) -> np.ndarray:
        """New configurations: some of the fastest's neighbours, their children, and any."""
        ledger = self._ledger
        children = self._evolution.breed(max(_LEAST, self._children * n), _RETRIES)
        rows = np.concatenate([around, children, ledger.space.sample(ledger.rng, self._anywhere)])
        return rows[ledger.new(rows)]

    def _choose(self, candidates: np.ndarray, n: int) -> np.ndarray:
        """The best ``n`` of some candidates, those first that are expected to be the fastest."""
        ledger = self._ledger
        scores = self._surrogate.predict(candidates)
        short = np.argsort(-scores, kind="stable")[: max(_SHORT, n)]
        if not ledger.speeds.any():  # all that is known comes from other tasks
            return candidates[short[:n]]
        self._process.fit(ledger.rows, ledger.speeds, ledger.rng)
        known = self._process.posterior(candidates[short])
        centred = scores[short] - scores.mean()
        scaled = centred / (float(scores.std()) or 1.0) * float(known.mean.std())
        mean = self._trust * scaled + (1 - self._trust) * known.mean
        return candidates[short][known.choose(mean, n, self._kappa)]
