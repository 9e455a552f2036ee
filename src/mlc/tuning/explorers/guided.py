"""OpEvo whose children are judged by two cost models before they are measured: one that ranks, one that doubts."""

from __future__ import annotations

import numpy as np

from mlc.tuning.explorers.descent import Descent
from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.limits import at_least, share, whole
from mlc.tuning.explorers.opevo import OpEvo
from mlc.tuning.explorers.surrogate import Surrogate
from mlc.tuning.models.process import Process

_LEAST = 512  # children of even the smallest batch
_RETRIES = 2  # mutating again children that are known or cannot be: what is left of many is enough
BATCHES = 8  # that are small
_FIRST = 4096  # random draws, the best of which come first where other tasks tell about them
_SHORT = 768  # candidates that the second model looks at


class Guided:
    """Many more children than can be measured; those are that may be the fastest, as far as is known.

    It joins the two papers and adds doubt. Candidates are OpEvo's children of the fastest configurations, by its
    topology-aware mutation, all neighbours of the fastest, and random draws. A cost model that sees loops, as
    AutoTVM's, says which may be good; a Gaussian process over the knobs says how much is known of them; a batch is
    chosen by upper confidence bounds. A share of it comes from coordinate descent, whatever the models say. Until the
    cost model has something to learn from, half of what is tried lies around the default, and the rest is plain
    OpEvo's. Where it knows other tasks, it begins with what it expects to be the fastest of the default's neighbours
    and of many others, and batches are small at first.

    Args:
        ledger: the books.
        surrogate: the cost model.
        parents: λ of OpEvo.
        q: mutation rate.
        children: bred a batch, by its size.
        near: neighbours of the fastest configurations that join them, at most.
        anywhere: random draws that join them.
        trust: share of the cost model in the expected speed; the process has the rest.
        kappa: standard deviations that count as hope; half as many where the model knows other tasks.
        descent: share of a batch that comes from coordinate descent.
        around: share of what is tried before the cost model can tell anything that is the default's neighbours.
        first: configurations of each of the first batches where the model knows other tasks.
        faith: least deviation of what the model expects then, in that of the speeds.
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
        first: int = 4,
        faith: float = 0.7,
    ) -> None:
        whole(1, children=children, first=first)
        whole(0, near=near, anywhere=anywhere)
        share(trust=trust, descent=descent, around=around)
        at_least(0, kappa=kappa, faith=faith)
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
        self._faith = faith

    @property
    def _informed(self) -> bool:
        """Whether the model knows other tasks."""
        return self._surrogate.lessons.model.least == 0

    def most(self) -> int | None:
        """Few at once in some first batches that other tasks guide: what they cannot tell is soon learnt."""
        if not self._informed or len(self._ledger.rows) >= BATCHES * self._first:
            return None
        return self._first

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        if not self._surrogate.ready():
            return self._begin(n)
        if not len(ledger.rows):
            return self._expected(n)
        around = self._descent.suggest(max(self._near, 2 * n))
        candidates = self._candidates(n, around)
        local = int(self._share * n + ledger.rng.random())
        chosen = self._choose(candidates, max(0, n - local))
        around = around[~np.isin(ledger.codes(around), ledger.codes(chosen))][:local]
        return np.concatenate([chosen, around])

    def _begin(self, n: int) -> np.ndarray:
        """Neighbours of the default configuration, which is seldom far from the best, and what plain OpEvo would do."""
        around = self._descent.suggest(round(self._around * n))
        return np.concatenate([around, self._evolution.suggest(n - len(around))])

    def _expected(self, n: int) -> np.ndarray:
        """What a model of other tasks expects to be the fastest of the default's neighbours and many others."""
        ledger = self._ledger
        around = self._descent.suggest(self._near)
        candidates = np.concatenate([around, ledger.space.sample(ledger.rng, _FIRST)])
        return self._choose(candidates[ledger.new(candidates)], n)

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
        if not len(candidates):
            return candidates
        ledger = self._ledger
        scores = self._surrogate.predict(candidates)
        short = np.argsort(-scores, kind="stable")[: max(_SHORT, n)]
        if not ledger.speeds.any():  # all that is known comes from other tasks
            return candidates[short[:n]]
        self._process.fit(ledger.rows, ledger.speeds, ledger.rng)
        known = self._process.posterior(candidates[short])
        centred = scores[short] - scores.mean()
        spread, kappa = float(known.mean.std()), self._kappa
        if self._informed:  # after few trials the process knows next to nothing, and would only look where none was
            spread, kappa = max(spread, self._faith), kappa / 2
        scaled = centred / (float(scores.std()) or 1.0) * spread
        mean = self._trust * scaled + (1 - self._trust) * known.mean
        return candidates[short][known.choose(mean, n, kappa)]
