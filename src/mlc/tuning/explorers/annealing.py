"""Parallel simulated annealing on a cost model (AutoTVM §3.3, Algorithm 1)."""

from __future__ import annotations

import numpy as np

from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.limits import at_least, share, whole
from mlc.tuning.explorers.selection import diverse
from mlc.tuning.explorers.surrogate import Surrogate


class Annealing:
    """Many Markov chains climb the cost model; the best and most different of where they came by are measured.

    The chains persist: the next batch goes on where they stand, on the model as it is then. All arrays run over chains,
    so that a step costs one prediction of them all.

    Args:
        ledger: the books.
        surrogate: the cost model.
        chains: how many; 128 in AutoTVM.
        steps: of each chain a batch, at most.
        patience: steps without a better candidate after which a batch is complete.
        temperature: at the first step, in standard deviations of what a move changes; falls linearly to 0.
        epsilon: share of a batch that is drawn at random.
        spread: λ, the candidates to choose from, in batches.
        alpha: weight of diversity, in standard deviations of these candidates' scores.
        elite: share of the chains that move to the fastest measured configurations before each batch.
    """

    def __init__(
        self,
        ledger: Ledger,
        surrogate: Surrogate,
        *,
        chains: int = 256,
        steps: int = 150,
        patience: int = 40,
        temperature: float = 1.0,
        epsilon: float = 0.05,
        spread: float = 2.0,
        alpha: float = 0.1,
        elite: float = 0.25,
    ) -> None:
        whole(1, chains=chains, steps=steps, patience=patience)
        share(epsilon=epsilon, elite=elite)
        at_least(0, temperature=temperature, alpha=alpha)
        at_least(1, spread=spread)
        self._ledger = ledger
        self._surrogate = surrogate
        self._chains = chains
        self._steps = steps
        self._patience = patience
        self._temperature = temperature
        self._epsilon = epsilon
        self._spread = spread
        self._alpha = alpha
        self._elite = elite
        self._at: np.ndarray | None = None

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        greedy = n - int(self._epsilon * n + ledger.rng.random())
        if not greedy or not self._surrogate.ready():
            return ledger.rows[:0]
        rows, scores = self._anneal(max(n, int(self._spread * n)))
        if not len(rows):
            return rows
        scale = float(scores.std()) or 1.0
        return rows[diverse(rows, scores / scale, greedy, self._alpha)]

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        self._surrogate.forget()

    def _anneal(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """The best new configurations that the chains come by, best first, and their scores."""
        ledger, rng = self._ledger, self._ledger.rng
        here = self._start()
        scores = self._surrogate.predict(here)
        pool = _Pool(ledger, most)
        pool.offer(here, scores)
        scale = 0.0
        idle = 0
        for step in range(self._steps):
            there = ledger.topology.move(here, rng)
            wrong = ~ledger.valid(there)
            there[wrong] = here[wrong]
            reached = self._surrogate.predict(there)
            better = pool.offer(there, reached)
            idle = 0 if better else idle + 1
            if idle >= self._patience:
                break
            scale = scale or float((reached - scores).std())
            heat = scale * self._temperature * (1 - step / self._steps) + 1e-9
            accepted = rng.random(len(here)) < np.exp(np.minimum((reached - scores) / heat, 0))
            here = np.where(accepted[:, None], there, here)
            scores = np.where(accepted, reached, scores)
        self._at = here
        return pool.rows, pool.scores

    def _start(self) -> np.ndarray:
        """Where the chains stand, some of them moved to the fastest configurations."""
        ledger = self._ledger
        if self._at is None:
            draws = ledger.space.sample(ledger.rng, 8 * self._chains)
            draws = np.concatenate([draws[ledger.valid(draws)], ledger.ranked()[0]])
            here = np.resize(draws, (self._chains, draws.shape[1]))
        else:
            here = self._at.copy()
        best = ledger.ranked(int(self._elite * self._chains))[0]
        here[: len(best)] = best
        return here


class _Pool:
    """The best new configurations seen so far."""

    def __init__(self, ledger: Ledger, most: int) -> None:
        self._ledger = ledger
        self._most = most
        self.rows = ledger.rows[:0]
        self.scores = np.zeros(0)

    def offer(self, rows: np.ndarray, scores: np.ndarray) -> bool:
        """Keep what is new and good enough; whether anything was."""
        if len(self.scores) == self._most:
            good = scores > self.scores[-1]
            rows, scores = rows[good], scores[good]
        if not len(rows):
            return False
        before = self.scores
        merged, both = np.concatenate([self.rows, rows]), np.concatenate([self.scores, scores])
        # Earlier rows come first, so a configuration that is in the pool stays where it is.
        keep = np.flatnonzero(self._ledger.unknown(merged))
        keep = keep[np.argsort(-both[keep], kind="stable")[: self._most]]
        self.rows, self.scores = merged[keep], both[keep]
        return not np.array_equal(before, self.scores)
