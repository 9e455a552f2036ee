"""OpEvo: evolution with a mutation that knows the topology of every knob (OpEvo §4, Algorithm 1)."""

from __future__ import annotations

import numpy as np

from mlc.errors import UsageError
from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.limits import whole

_RETRIES = 64  # mutating again what is known already


def recombine(parents: np.ndarray, fitness: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Children that inherit each knob from a parent drawn in proportion to its fitness, ``[n, knobs]`` (OpEvo eq. 2).

    Args:
        parents: ``[parents, knobs]``.
        fitness: ``[parents]``, not negative, not all 0.
        n: how many children.
        rng: draws the parents.
    """
    knobs = parents.shape[1]
    chosen = rng.choice(len(parents), size=(n, knobs), p=fitness / fitness.sum())
    return parents[chosen, np.arange(knobs)]


class OpEvo:
    """Children of the fastest configurations so far, each knob after a q-random walk.

    Args:
        ledger: the books.
        parents: λ, how many of the fastest are recombined; the defaults are those of OpEvo, appendix B.
        children: ρ, of one generation; as many as are measured together unless given, so that each batch breeds one.
        q: mutation rate, in (0, 1).
    """

    def __init__(self, ledger: Ledger, *, parents: int = 8, children: int | None = None, q: float = 0.5) -> None:
        whole(1, parents=parents, children=children)
        if not 0 < q < 1:
            raise UsageError(f"OpEvo's mutation rate q is {q}; it must lie between 0 and 1")
        self._ledger = ledger
        self._parents = parents
        self._children = children
        self._q = q
        self._queue = ledger.rows[:0]

    def suggest(self, n: int) -> np.ndarray:
        queue = self._queue[self._ledger.new(self._queue)]
        children = n if self._children is None else self._children
        if len(queue) < n:  # one generation a batch: what is bred after it knows more
            queue = np.concatenate([queue, self.breed(max(children, n - len(queue)))])
        self._queue = queue
        return queue[:n]

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        pass

    def breed(self, n: int, retries: int = _RETRIES) -> np.ndarray:
        """``n`` children, nearly all of them new: known ones have been mutated until they were not.

        Args:
            n: how many.
            retries: how often they are mutated again at most.
        """
        ledger, rng = self._ledger, self._ledger.rng
        parents, fitness = ledger.ranked(self._parents)
        if len(ledger.rows) < self._parents or not len(parents):
            return ledger.space.sample(rng, n)
        recombined = recombine(parents, fitness, n, rng)
        children = ledger.topology.walk(recombined, self._q, rng)
        for _ in range(retries):
            again = np.flatnonzero(~ledger.new(children))
            if not len(again):
                break
            # A known child walks on; an invalid one sets out again, lest it gets lost among others of its kind.
            back = again[~ledger.valid(children[again])]
            children[back] = recombined[back]
            children[again] = ledger.topology.walk(children[again], self._q, rng)
        return children
