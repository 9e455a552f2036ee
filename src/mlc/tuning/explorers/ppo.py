"""Proximal policy optimisation (Schulman et al. 2017) for the actors of ALT §5.2, in numpy.

States are vectors of one length whatever the space: the numbers that describe each knob's value are added up in columns
that the knob's name gives (feature hashing, Weinberger et al. 2009). So actors and the one critic know a state that has
layouts and loops in it, and go on learning when the loop space is rebuilt for the next layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2
from zlib import crc32

import numpy as np

from mlc.lower.knobs import Space, Value
from mlc.tuning.explorers.network import Network

STATE = 64  # columns of a state
_SCALE = 1 / 8  # of logarithms of factors, which seldom exceed 8
_STD = 0.2  # of an action in an interval


@dataclass(frozen=True)
class Rules:
    """How actors and the critic learn.

    Args:
        hidden: units of every network.
        rate: of learning.
        clip: epsilon of the paper, how far a probability may move by one batch of steps.
        epochs: steps of learning from a batch.
        discount: of rewards to come.
        smoothing: lambda of generalised advantage estimation.
        entropy: weight of what keeps a policy from settling early.
    """

    hidden: int = 32
    rate: float = 3e-3
    clip: float = 0.2
    epochs: int = 6
    discount: float = 0.9
    smoothing: float = 0.95
    entropy: float = 0.01


@dataclass(frozen=True, eq=False)
class Step:
    """An action that was taken.

    Args:
        actor: name of who took it.
        seen: what the actor saw, ``[inputs]``.
        state: what the critic sees, ``[STATE]``.
        action: a number in an interval, or the index of a choice.
        chance: logarithm of its probability (density) at the time.
        allowed: which choices there were, bool ``[choices]``; nothing for an interval.
    """

    actor: str
    seen: np.ndarray
    state: np.ndarray
    action: float
    chance: float
    allowed: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Episode:
    """Steps one after the other.

    Args:
        steps: at least one.
        rewards: after each of them, ``[steps]``.
        end: the state that the last one led to where the episode might go on; nothing where it was over.
        discount: of rewards to come.
    """

    steps: Sequence[Step]
    rewards: np.ndarray
    end: np.ndarray | None
    discount: float


class Agents:
    """All actors of a task, made when they are first needed, and the critic that they share.

    Args:
        rng: draws initial weights and actions.
        rules: of learning.
    """

    def __init__(self, rng: np.random.Generator, rules: Rules) -> None:
        self._rng = rng
        self.rules = rules
        self._critic = Network(STATE, rules.hidden, rules.rate, rng)
        self._actors: dict[str, Network] = {}

    def interval(self, actor: str, seen: np.ndarray, state: np.ndarray) -> Step:
        """An action between 0 and 1, drawn around what the actor thinks best.

        The draw may lie outside; :func:`within` brings it back, and its probability is that of the draw.
        """
        mean = float(_sigmoid(self._actor(actor, len(seen), 1)(seen[None]))[0, 0])
        action = float(self._rng.normal(mean, _STD))
        return Step(actor, seen, state, action, float(_log_normal(np.array(action), mean)))

    def recall(self, actor: str, seen: np.ndarray, state: np.ndarray, action: float) -> Step:
        """An action between 0 and 1 that someone else has taken, as if it were the actor's own."""
        mean = float(_sigmoid(self._actor(actor, len(seen), 1)(seen[None]))[0, 0])
        return Step(actor, seen, state, action, float(_log_normal(np.array(action), mean)))

    def choice(self, actor: str, seen: np.ndarray, state: np.ndarray, allowed: np.ndarray) -> Step:
        """One of some choices, of those that are allowed."""
        logits = self._actor(actor, len(seen), len(allowed))(seen[None])
        chances = _log_softmax(logits, allowed[None])[0]
        chosen = int((chances + self._rng.gumbel(size=len(chances))).argmax())  # a draw from the softmax
        return Step(actor, seen, state, chosen, float(chances[chosen]), allowed)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Actors and the critic learn from some episodes, which are forgotten then."""
        steps = [s for e in episodes for s in e.steps]
        if not steps:
            return
        advantages, returns = (np.concatenate(x) for x in zip(*map(self._judged, episodes), strict=True))
        advantages = (advantages - advantages.mean()) / (float(advantages.std()) + 1e-6)
        states = np.stack([s.state for s in steps])
        of_actor: dict[str, list[int]] = {}
        for k, s in enumerate(steps):
            of_actor.setdefault(s.actor, []).append(k)
        batches = [(name, _Batch.of([steps[k] for k in at]), advantages[at]) for name, at in of_actor.items()]
        for _ in range(self.rules.epochs):
            for name, batch, advantage in batches:
                network = self._actors[name]
                network.step(batch.seen, batch.gradient(network(batch.seen), advantage, self.rules))
            self._critic.step(states, 2 * (self._critic(states) - returns[:, None]) / len(states))

    def _judged(self, episode: Episode) -> tuple[np.ndarray, np.ndarray]:
        """Advantages of the steps by generalised advantage estimation (Schulman et al. 2016), and their returns."""
        values = self._critic(np.stack([s.state for s in episode.steps]))[:, 0]
        last = 0.0 if episode.end is None else float(self._critic(episode.end[None])[0, 0])
        gains = episode.rewards + episode.discount * np.append(values[1:], last) - values
        advantages, running = np.zeros(len(gains)), 0.0
        for k in reversed(range(len(gains))):
            running = gains[k] + episode.discount * self.rules.smoothing * running
            advantages[k] = running
        return advantages, advantages + values

    def _actor(self, name: str, inputs: int, outputs: int) -> Network:
        if name not in self._actors:
            self._actors[name] = Network(inputs, self.rules.hidden, self.rules.rate, self._rng, outputs)
        return self._actors[name]


@dataclass(frozen=True, eq=False)
class _Batch:
    """Steps of one actor as arrays; ``allowed`` is nothing where actions are numbers in an interval."""

    seen: np.ndarray
    actions: np.ndarray
    chances: np.ndarray
    allowed: np.ndarray | None

    @staticmethod
    def of(steps: Sequence[Step]) -> _Batch:
        allowed = [s.allowed for s in steps if s.allowed is not None]
        return _Batch(
            np.stack([s.seen for s in steps]), np.array([s.action for s in steps]),
            np.array([s.chance for s in steps]), np.stack(allowed) if allowed else None,
        )  # fmt: skip

    def gradient(self, outputs: np.ndarray, advantages: np.ndarray, rules: Rules) -> np.ndarray:
        """Of the clipped loss (PPO eq. 7) with entropy, by the outputs of the actor, ``[n, outputs]``."""
        n = len(outputs)
        if self.allowed is None:
            means = _sigmoid(outputs[:, 0])
            pull = self._pull(_log_normal(self.actions, means), advantages, rules.clip)
            by_mean = (self.actions - means) / _STD**2
            found: np.ndarray = (-pull * by_mean * means * (1 - means) / n)[:, None]
            return found
        chances = _log_softmax(outputs, self.allowed)
        policy = np.exp(chances)
        taken = np.zeros_like(policy)
        at = np.arange(n), self.actions.astype(np.int64)
        taken[at] = 1
        pull = self._pull(chances[at], advantages, rules.clip)
        finite = np.where(self.allowed, chances, 0.0)
        entropy = -(policy * finite).sum(axis=1, keepdims=True)
        loss = pull[:, None] * (policy - taken) + rules.entropy * policy * (finite + entropy)
        return np.asarray(loss / n)

    def _pull(self, chances: np.ndarray, advantages: np.ndarray, clip: float) -> np.ndarray:
        """How strongly each step pulls at its logarithmic probability; not at all beyond the clip."""
        ratio = np.exp(np.clip(chances - self.chances, -20, 20))
        beyond = np.where(advantages > 0, ratio > 1 + clip, ratio < 1 - clip)
        return np.where(beyond, 0.0, ratio * advantages)


def within(action: float) -> float:
    """An action brought back into its interval."""
    return min(max(action, 0.0), 1.0)


def column(name: str, columns: int = STATE) -> int:
    """Where something of this name is written, the same in all programs."""
    return crc32(name.encode()) % columns


def described(name: str, value: Value) -> Iterator[tuple[int, float]]:
    """What a knob's value adds to a state: columns, and numbers around 0 to 1."""
    if isinstance(value, tuple) and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        for k, factor in enumerate(value):
            yield column(f"{name}.{k}"), _SCALE * log2(max(factor, 1))
    elif isinstance(value, tuple):  # an order
        for k, item in enumerate(value):
            yield column(f"{name}.{item}"), k / len(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield column(name), _SCALE * log2(1 + abs(value))
    else:
        yield column(f"{name}={value}"), 1.0


def state_of(parts: Sequence[tuple[str, Value]]) -> np.ndarray:
    """The state of some knobs' values, ``[STATE]``."""
    state = np.zeros(STATE)
    for name, value in parts:
        for at, number in described(name, value):
            state[at] += number
    return state


def states(space: Space) -> Callable[[np.ndarray], np.ndarray]:
    """A function that gives the states ``[n, STATE]`` of configurations ``[n, knobs]``."""
    tables = [np.stack([state_of([(k.name, v)]) for v in k.values]) for k in space.knobs]

    def of(rows: np.ndarray) -> np.ndarray:
        found = np.zeros((len(rows), STATE))
        for k, table in enumerate(tables):
            found += table[rows[:, k]]
        return found

    return of


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))))


def _log_softmax(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    masked = np.where(allowed, logits, -np.inf)
    shifted = masked - masked.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _log_normal(action: np.ndarray, mean: float | np.ndarray) -> np.ndarray:
    """Logarithm of the density, but for a constant."""
    return np.asarray(-(((action - mean) / _STD) ** 2) / 2)
