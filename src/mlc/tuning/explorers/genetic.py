"""The genetic baseline of AutoTVM's evaluation (AutoTVM §6.1, as its ``GATuner``)."""

from __future__ import annotations

import numpy as np

from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.limits import share, whole

_RETRIES = 64


class Genetic:
    """Generations bred from the last one and the best ever: one-point crossover, uniform mutation.

    Args:
        ledger: the books.
        population: configurations of a generation; AutoTVM's default.
        elite: best ever that stay parents.
        mutation: probability of a knob to take a random value.
    """

    def __init__(self, ledger: Ledger, *, population: int = 100, elite: int = 3, mutation: float = 0.1) -> None:
        whole(1, population=population, elite=elite)
        share(mutation=mutation)
        self._ledger = ledger
        self._population = population
        self._elite = elite
        self._mutation = mutation
        self._queue = ledger.rows[:0]

    def suggest(self, n: int) -> np.ndarray:
        self._queue = self._queue[self._ledger.new(self._queue)]
        while len(self._queue) < n:
            self._queue = np.concatenate([self._queue, self._breed()])
        return self._queue[:n]

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        pass

    def _breed(self) -> np.ndarray:
        ledger, rng = self._ledger, self._ledger.rng
        best, fastest = ledger.ranked(self._elite)
        if len(ledger.rows) < self._population or not len(best):
            return ledger.space.sample(rng, self._population)
        genes = np.concatenate([ledger.rows[-self._population :], best])
        scores = np.concatenate([ledger.speeds[-self._population :], fastest])
        # Gumbel keys draw two different parents a child in proportion to their scores.
        chances = np.log(scores / scores.max() + 1e-8)
        keys = chances + rng.gumbel(size=(self._population, len(genes)))
        mothers, fathers = np.argsort(-keys, axis=1)[:, :2].T
        knobs = genes.shape[1]
        points = rng.integers(0, knobs, self._population)
        children = np.where(np.arange(knobs) < points[:, None], genes[mothers], genes[fathers])
        mutated = rng.random(children.shape) < self._mutation
        children = np.where(mutated, ledger.space.sample(rng, self._population), children)
        for _ in range(_RETRIES):
            known = np.flatnonzero(~ledger.new(children))
            if not len(known):
                break
            knob = rng.integers(0, knobs, len(known))
            children[known, knob] = rng.integers(0, ledger.space.counts[knob])
        return children
