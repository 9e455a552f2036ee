"""Neighbourhood actor-advantage-critic search (Zhang et al. 2019, the baseline of OpEvo §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.limits import positive, share, whole
from mlc.tuning.explorers.network import Network

_WALKS = 8  # attempts a configuration asked for, before the rest of a batch is drawn at random


@dataclass(frozen=True)
class Move:
    """A step that was taken: from where, to which of the neighbours, all ``[neighbours, knobs]`` of them."""

    here: np.ndarray
    around: np.ndarray
    chosen: int
    code: int  # of the configuration arrived at


class ActorCritic:
    """Walks from the fastest configuration, at first the default, step by step to neighbours that the actor draws.

    The original has one output an action and knows factorisations only. Here the actor scores each neighbour from the
    configuration's description and its difference to the neighbour's, so that all kinds of knobs will do.

    Args:
        ledger: the books.
        steps: T, of a walk; 3 in OpEvo's experiments (appendix B).
        epsilon: probability of a random step.
        hidden: units of either network.
        rate: of learning.
        discount: of what the critic expects of the configuration arrived at.
        epochs: steps of learning from each batch of moves, which is then forgotten: later it would no longer be what
            the actor does.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        steps: int = 3,
        epsilon: float = 0.1,
        hidden: int = 32,
        rate: float = 1e-2,
        discount: float = 0.5,
        epochs: int = 4,
    ) -> None:
        whole(1, steps=steps, hidden=hidden, epochs=epochs)
        share(epsilon=epsilon, discount=discount)
        positive(rate=rate)
        self._ledger = ledger
        self._steps = steps
        self._epsilon = epsilon
        self._discount = discount
        self._epochs = epochs
        tables = [knob.table for knob in ledger.space.knobs]
        self._low = np.concatenate([t.min(axis=0) for t in tables])
        self._range = np.maximum(np.concatenate([np.ptp(t, axis=0) for t in tables]), 1e-6)
        width = len(self._low)
        self._actor = Network(2 * width, hidden, rate, ledger.rng)
        self._critic = Network(width, hidden, rate, ledger.rng)
        self._pending: dict[int, Move] = {}

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        best = ledger.known_best()[:1]
        found: list[np.ndarray] = []
        codes: set[int] = set()
        for _ in range(_WALKS * n if len(best) else 0):
            here = best[0]
            for _ in range(self._steps):
                around, _ = ledger.topology.neighbours(here)
                around = around[ledger.valid(around)]
                if not len(around):
                    break
                chosen = self._draw(here, around)
                there = around[chosen]
                code = int(ledger.codes(there[None])[0])
                if code not in codes and ledger.unknown(there[None])[0]:
                    codes.add(code)
                    found.append(there)
                    self._pending[code] = Move(here, around, chosen, code)
                here = there
            if len(found) >= n:
                break
        return np.array(found, np.int64).reshape(-1, len(ledger.space.knobs))

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        moves = [self._pending.pop(code) for code in self._ledger.codes(rows).tolist() if code in self._pending]
        if moves and self._ledger.speeds.any():
            self._train(moves)

    def _train(self, moves: Sequence[Move]) -> None:
        """Policy gradient, with the advantage ``reward + discount * V(there) - V(here)``."""
        ledger = self._ledger
        speeds = dict(zip(ledger.codes(ledger.rows).tolist(), ledger.speeds / ledger.speeds.max(), strict=True))
        rewards = np.array([speeds[m.code] for m in moves])
        here = self._describe(np.stack([m.here for m in moves]))
        there = self._describe(np.stack([m.around[m.chosen] for m in moves]))
        counts = np.array([len(m.around) for m in moves])
        starts = np.cumsum(counts) - counts
        options = np.concatenate([self._options(m.here, m.around) for m in moves])
        taken = np.zeros(len(options))
        taken[starts + np.array([m.chosen for m in moves])] = 1
        for _ in range(self._epochs):
            advantage = rewards + self._discount * self._critic(there)[:, 0] - self._critic(here)[:, 0]
            scores = self._actor(options)[:, 0]
            exponents = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), counts))
            policy = exponents / np.repeat(np.add.reduceat(exponents, starts), counts)
            self._actor.step(options, (np.repeat(advantage, counts) * (policy - taken) / len(moves))[:, None])
            self._critic.step(here, -2 * advantage[:, None] / len(moves))

    def _draw(self, here: np.ndarray, around: np.ndarray) -> int:
        rng = self._ledger.rng
        if rng.random() < self._epsilon:
            return int(rng.integers(len(around)))
        # The greatest sum of score and Gumbel noise is a draw from the softmax.
        return int((self._actor(self._options(here, around))[:, 0] + rng.gumbel(size=len(around))).argmax())

    def _options(self, here: np.ndarray, around: np.ndarray) -> np.ndarray:
        """What the actor sees of each neighbour, ``[neighbours, 2 * width]``."""
        state = self._describe(here[None])
        return np.concatenate([np.repeat(state, len(around), axis=0), self._describe(around) - state], axis=1)

    def _describe(self, rows: np.ndarray) -> np.ndarray:
        """Tables of the knobs, each column within -0.5 and 0.5."""
        scaled: np.ndarray = (self._ledger.space.describe(rows) - self._low) / self._range - 0.5
        return scaled
