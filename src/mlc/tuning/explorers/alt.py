"""ALT's explorer (Xu et al. 2023, §5.2): actors that split layouts, actors that walk among loops, one critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from mlc.lower.knobs import Discrete, Factors, Knob, Value, prime_factors
from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.limits import positive, whole
from mlc.tuning.explorers.memory import Memory
from mlc.tuning.explorers.ppo import (
    Agents,
    Episode,
    Rules,
    Step,
    column,
    state_of,
    states,
    within,
)
from mlc.tuning.explorers.surrogate import Surrogate

_NAMES = 16  # columns that tell an actor of layouts which dimension it splits
_TRIES = 8  # episodes for each configuration asked for, before the rest of a batch is drawn at random
_EPISODES = 4  # of layouts, told together to the actors
_WORST = -1.0  # reward of what fails, or takes more than twice as long as what all began with
_STAY = 0  # the direction of an actor that leaves its knob as it is


@dataclass(frozen=True, kw_only=True)
class AltOptions:
    """Options of ALT's explorer.

    Args:
        sample: configurations of loops that are drawn; the best of them, by the cost model, is where a walk begins.
        length: steps of a walk, which are an episode.
        top: configurations of an episode that are measured.
        hidden: units of every network.
        rate: of learning.
        clip: how far a probability may move by one episode.
        epochs: steps of learning from an episode.
    """

    sample: int = 128
    length: int = 128
    top: int = 8
    hidden: int = Rules.hidden
    rate: float = Rules.rate
    clip: float = Rules.clip
    epochs: int = Rules.epochs

    def __post_init__(self) -> None:
        whole(1, sample=self.sample, length=self.length, top=self.top, hidden=self.hidden, epochs=self.epochs)
        positive(rate=self.rate, clip=self.clip)

    def agents(self, memory: Memory, rng: np.random.Generator) -> Agents:
        """The actors and the critic of a task, which all its explorers share."""
        if memory.agents is None:
            memory.agents = Agents(rng, Rules(self.hidden, self.rate, self.clip, self.epochs))
        return memory.agents


def reward(memory: Memory, speeds: np.ndarray) -> np.ndarray:
    """``U - latency`` (ALT eq. 3): both in units of the first latency that was measured, and U is one of them.

    Args:
        memory: of the task.
        speeds: ``[n]``; 0 for failures.
    """
    speeds = np.where(np.isfinite(speeds), speeds, 0.0)
    if memory.first is None and (speeds > 0).any():
        memory.first = float(speeds[speeds > 0][0])
    if memory.first is None:
        return np.full(len(speeds), _WORST)
    latencies = np.divide(memory.first, speeds, out=np.full(len(speeds), np.inf), where=speeds > 0)
    return np.maximum(1 - latencies, _WORST)


class LayoutSplits:
    """Layouts by a sequence of actions: one generic actor splits dimension after dimension (ALT §5.2.1).

    An action ``a`` between 0 and 1 makes the divisor of a dimension ``D`` that is nearest to ``a D`` the factor
    (eq. 2); with two levels the rest is split again. The actor sees the state of all primitives of the operator's
    tensors, in which dimensions that had no turn yet are whole. A layout's reward comes when rounds of loop search have
    judged it.

    Args:
        ledger: the books.
        memory: of the task.
        options: as keyword arguments, see :class:`AltOptions`.
    """

    def __init__(self, ledger: Ledger, memory: Memory, **options: float) -> None:
        self._ledger = ledger
        self._memory = memory
        self._agents = AltOptions(**options).agents(memory, ledger.rng)  # type: ignore[arg-type]
        self._taken: dict[int, list[Step]] = {}
        self._judged: list[Episode] = []

    def suggest(self, n: int) -> np.ndarray:
        ledger, found = self._ledger, self._ledger.rows[:0]
        for _ in range(_TRIES * n):
            row, steps = self._episode()
            if ledger.new(row[None])[0] and not (found == row).all(axis=1).any():
                found = np.concatenate([found, row[None]])
                self._taken[int(ledger.codes(row[None])[0])] = steps
            if len(found) == n:
                break
        return found

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        for row, code, gain in zip(
            rows, self._ledger.codes(rows).tolist(), reward(self._memory, speeds).tolist(), strict=True
        ):
            steps = self._taken.pop(code, None) or self._episode(row)[1]
            if steps:
                rewards = np.append(np.zeros(len(steps) - 1), gain)
                self._judged.append(Episode(steps, rewards, None, discount=1.0))
        if len(self._judged) >= _EPISODES:
            self._agents.learn(self._judged)
            self._judged = []

    def _episode(self, given: np.ndarray | None = None) -> tuple[np.ndarray, list[Step]]:
        """A layout and the steps to it; those to a given one as if they had been taken."""
        space, steps = self._ledger.space, list[Step]()
        at = {k.name: _whole(k) for k in space.knobs}
        row = np.zeros(len(space.knobs), np.int64)
        for i, knob in enumerate(space.knobs):
            wanted = None if given is None else knob.values[int(given[i])]
            options: Sequence[Value] = knob.values
            parts = range(knob.parts - 1, 0, -1) if isinstance(knob, Factors) else [0]
            for part in parts:
                choices = _choices(options, part)
                if len(choices) > 1:
                    state = state_of(list(at.items()))
                    seen = np.concatenate([state, _asked(knob, options, part)])
                    if wanted is None:
                        step = self._agents.interval("split", seen, state)
                    else:
                        step = self._agents.recall("split", seen, state, _action(choices, _part(wanted, part)))
                    steps.append(step)
                    picked = _nearest(choices, within(step.action))
                else:
                    picked = choices[0]
                options = [v for v in options if _part(v, part) == picked]
                at[knob.name] = options[0]
            row[i] = list(knob.values).index(options[0])
        return row, steps


def _whole(knob: Knob) -> Value:
    """A dimension before it is split, or nothing decided."""
    return (knob.extent, *[1] * (knob.parts - 1)) if isinstance(knob, Factors) else "undecided"


def _part(value: Value, part: int) -> Value:
    return value[part] if isinstance(value, tuple) and part else value


def _choices(options: Sequence[Value], part: int) -> list[Value]:
    """What a part of a value can be, factors in ascending order."""
    found = list(dict.fromkeys(_part(v, part) for v in options))
    return sorted(found, key=lambda v: v if isinstance(v, int) else 0)


def _places(choices: Sequence[Value]) -> np.ndarray:
    """Where each choice lies between 0 and 1: a factor at its share of the greatest, others evenly."""
    if all(isinstance(c, int) for c in choices):
        return np.array(choices, np.float64) / max(c for c in choices if isinstance(c, int))
    return (np.arange(len(choices)) + 0.5) / len(choices)


def _nearest(choices: Sequence[Value], action: float) -> Value:
    return choices[int(np.abs(_places(choices) - action).argmin())]


def _action(choices: Sequence[Value], wanted: Value) -> float:
    return float(_places(choices)[list(choices).index(wanted)])


def _asked(knob: Knob, options: Sequence[Value], part: int) -> np.ndarray:
    """What tells the actor which dimension is split: its name, how much of it is left, and the part."""
    found = np.zeros(_NAMES + 2)
    found[column(knob.name, _NAMES)] = 1
    if isinstance(knob, Factors):
        left = options[0]
        assert isinstance(left, tuple)
        found[_NAMES] = log2(max(prod(left[: part + 1]), 1)) / 8
    found[_NAMES + 1] = part
    return found


class LoopWalks:
    """Walks from the best of a sampled batch: in turn each knob's actor gives a direction (ALT §5.2.2).

    Of what was sampled and what the walk came by, the ``top`` that the cost model thinks fastest are measured. Rewards
    of the others are what the cost model says, brought to latencies by what was measured. Until the model can tell
    anything, configurations are drawn at random.

    Args:
        ledger: the books.
        surrogate: the cost model.
        memory: of the task.
        options: as keyword arguments, see :class:`AltOptions`.
    """

    def __init__(self, ledger: Ledger, surrogate: Surrogate, memory: Memory, **options: float) -> None:
        self._ledger, self._surrogate, self._memory = ledger, surrogate, memory
        self._options = AltOptions(**options)  # type: ignore[arg-type]
        self._agents = self._options.agents(memory, ledger.rng)
        self._states = states(ledger.space)
        self._directions = [directions(knob) for knob in ledger.space.knobs]
        self._open = [k for k, d in enumerate(self._directions) if (d[:, 1:] >= 0).any()]
        self._walked: list[tuple[np.ndarray, list[Step]]] = []

    def suggest(self, n: int) -> np.ndarray:
        ledger = self._ledger
        if not self._open or not self._surrogate.lessons.learnt():
            return ledger.rows[:0]
        self._train()
        found = ledger.rows[:0]
        for _ in range(-(-n // self._options.top)):
            rows = self._episode()
            rows = np.concatenate([found, rows[ledger.new(rows)]])
            found = rows[ledger.unknown(rows)][: len(found) + self._options.top]
        return found[:n]

    def learn(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        reward(self._memory, speeds)  # the first latency is what all others are compared with
        self._surrogate.forget()

    def _episode(self) -> np.ndarray:
        """Samples, walks, and gives all that can be built of it, the fastest first as far as the model knows."""
        ledger, options = self._ledger, self._options
        sample = ledger.space.sample(ledger.rng, options.sample)
        sample = np.concatenate([ledger.known_best()[:1], sample[ledger.valid(sample)]])
        here = sample[int(self._surrogate.predict(sample).argmax())]
        path, steps = [here], list[Step]()
        turns: list[int] = []
        for _ in range(options.length):
            turns = turns or ledger.rng.permutation(self._open).tolist()
            here, step = self._step(here, turns.pop())
            path.append(here)
            steps.append(step)
        walk = np.stack(path)
        self._walked.append((walk, steps))
        rows = np.concatenate([sample, walk])
        rows = rows[ledger.new(rows)]
        return rows[np.argsort(-self._surrogate.predict(rows), kind="stable")] if len(rows) else rows

    def _step(self, here: np.ndarray, at: int) -> tuple[np.ndarray, Step]:
        """Moves a knob where its actor says."""
        knob, table = self._ledger.space.knobs[at], self._directions[at]
        state = self._states(here[None])[0]
        ends = table[here[at]]
        step = self._agents.choice(f"{knob.name}:{len(ends)}", state, state, ends >= 0)
        there = here.copy()
        there[at] = ends[int(step.action)]
        return there, step

    def _train(self) -> None:
        """Learns from the walks since the last time, by what the model has learnt of them meanwhile."""
        if not self._surrogate.lessons.speeds().any():
            return
        walked, self._walked = self._walked, []
        self._agents.learn(
            [
                Episode(steps, self._rewards(walk[1:]), self._states(walk[-1:])[0], self._agents.rules.discount)
                for walk, steps in walked
            ]
        )

    def _rewards(self, rows: np.ndarray) -> np.ndarray:
        """Of configurations, ``[n]``: by their latency where it was measured, else by the one that is expected."""
        ledger, lessons = self._ledger, self._surrogate.lessons
        speeds = np.zeros(len(rows))
        good = ledger.valid(rows)
        known = lessons.speeds()
        scores = np.asarray(lessons.model.predict(lessons.features()), np.float64)[known > 0]
        logs = np.log(known[known > 0])
        if good.any():
            spread = float(((scores - scores.mean()) ** 2).sum())
            slope = max(float(((scores - scores.mean()) * logs).sum()) / spread, 0.0) if spread > 1e-12 else 0.0
            expected = logs.mean() + slope * (self._surrogate.predict(rows[good]) - scores.mean())
            speeds[good] = np.exp(np.minimum(expected, logs.max()))  # nothing is praised above the best there is
        measured = dict(zip(ledger.codes(ledger.rows).tolist(), ledger.speeds.tolist(), strict=True))
        for k, code in enumerate(ledger.codes(rows).tolist()):
            speeds[k] = measured.get(code, speeds[k])
        return reward(self._memory, speeds)


def directions(knob: Knob) -> np.ndarray:
    """Where each direction leads from each value, int64 ``[values, directions]``; -1 where there is no way.

    The first direction stays. Of factors one gives its smallest prime factor to another, a direction for each pair of
    them; numbers become smaller or greater; two items of an order change places; of other things each is a direction.
    """
    n = len(knob.values)
    here = np.arange(n)[:, None]
    if isinstance(knob, Factors):
        index = {v: k for k, v in enumerate(knob.values)}
        pairs = [(i, j) for i in range(knob.parts) for j in range(knob.parts) if i != j]
        found = np.full((n, len(pairs)), -1, np.int64)
        for k, value in enumerate(knob.values):
            for d, (i, j) in enumerate(pairs):
                for p in sorted(set(prime_factors(value[i]))):
                    moved = list(value)
                    moved[i] //= p
                    moved[j] *= p
                    if tuple(moved) in index:
                        found[k, d] = index[tuple(moved)]
                        break
        return np.concatenate([here, found], axis=1)
    if isinstance(knob, Discrete):
        return np.concatenate([here, here - 1, np.where(here + 1 < n, here + 1, -1)], axis=1)
    around = [knob.neighbours(k) for k in range(n)]
    return np.concatenate([here, np.array(around, np.int64).reshape(n, -1)], axis=1)
