"""Explorers on measured tables instead of the machine: fair, because all see the same times, and repeatable.

A table (:mod:`benchmarks.papers.tables`) holds every configuration of its subspace that the template accepts, so
whatever an explorer proposes there has been measured; configurations that could not be built or ran wrongly count as
failures, as in a tuning run. Noise is frozen into the table, and the fastest have been measured several times.

A tuning run begins with the template's own choice, which is often within some percent of the best. To see how explorers
search, a replay begins with a configuration drawn at random instead, the same for all explorers, unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.spaces import WORKLOADS, Setting
from benchmarks.papers.tables import FOLDER, Table, knob_list
from mlc.errors import UsageError
from mlc.lower.knobs import Space
from mlc.targets.base import get_target
from mlc.tuning.base import CostModel, Explorer
from mlc.tuning.explorers import get_explorer
from mlc.tuning.models.gbt import GradientBoosting

GOOD = 0.95  # part of the best speed that counts as found

Features = Callable[[Setting, np.ndarray], np.ndarray]


def loop_features(setting: Setting, rows: np.ndarray) -> np.ndarray:
    """What the tuner uses: loops and the relation between them; rows of the whole space."""
    return setting.features(rows)


class Replay:
    """One table as a space to explore.

    Args:
        setting: the workload.
        table: what was measured of it.

    Attributes:
        rows: of the subspace, int64 ``[n, knobs]``, ascending by number.
        speeds: 10^9 operations a second, float64 ``[n]``, 0 for failures.
    """

    def __init__(self, setting: Setting, table: Table) -> None:
        if table.knobs != knob_list(setting.part.space.knobs):
            raise UsageError(f"the table of {table.name} was measured for other knobs", hint="measure it again")
        order = np.argsort(table.number)
        self.setting, self.table = setting, table
        self._numbers = table.number[order]
        self.rows = np.stack(np.unravel_index(self._numbers, tuple(setting.part.space.counts)), axis=1)
        self.speeds = table.speeds[order]
        self._described: dict[Features, np.ndarray] = {}

    @property
    def best(self) -> float:
        return float(self.speeds.max())

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where configurations are in the table, int64 ``[n]``; -1 for those that it does not have."""
        numbers = np.ravel_multi_index(tuple(rows.T), tuple(self.setting.part.space.counts))
        at = np.searchsorted(self._numbers, numbers).clip(max=len(self._numbers) - 1)
        return np.where(self._numbers[at] == numbers, at, -1)

    @property
    def untuned(self) -> float:
        """The speed of the template's own choice; 0 where the table lacks it."""
        (place,) = self.places(self.setting.part.space.row({})[None])
        return float(self.speeds[place]) if place >= 0 else 0.0

    def valid(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.places(rows) >= 0
        return found

    def described(self, features: Features = loop_features) -> np.ndarray:
        """Features of all configurations of the table, float32 ``[n, ...]``."""
        if features not in self._described:
            self._described[features] = features(self.setting, self.setting.part.lift(self.rows))
        return self._described[features]

    def space(self, rng: np.random.Generator) -> Space:
        """The subspace, beginning at a configuration that works."""
        space = self.setting.part.space
        start = self.rows[rng.choice(np.flatnonzero(self.speeds > 0))]
        return Space(space.knobs, space.config(start))


class Looked:
    """A cost model that predicts a whole table once after it has learnt, and looks up what it is asked for.

    Its features are positions in the table, float32 ``[n, 1]``; the answers are the model's own.

    Args:
        model: learns and predicts.
        described: features of all configurations of the table.
    """

    def __init__(self, model: CostModel, described: np.ndarray) -> None:
        self._model, self._described = model, described
        self._scores: np.ndarray | None = None

    @property
    def least(self) -> int:
        return self._model.least

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        self._model.fit(self._described[features[:, 0].astype(np.int64)], speeds)
        self._scores = None

    def predict(self, features: np.ndarray) -> np.ndarray:
        if self._scores is None:
            self._scores = self._model.predict(self._described)
        found: np.ndarray = self._scores[features[:, 0].astype(np.int64)]
        return found


@dataclass(frozen=True)
class Method:
    """A way to search.

    Args:
        explorer: its name.
        options: of the explorer.
        model: makes its cost model for a seed, if it has any; boosted trees with the rank objective unless given.
        features: what the model sees.
        evaluations: measurements that count as one trial.
        untuned: whether it begins with the template's own choice, not with a random one.
    """

    explorer: str
    options: tuple[tuple[str, Any], ...] = ()
    model: Callable[[int], CostModel] | None = None
    features: Features = loop_features
    evaluations: int = 1
    untuned: bool = False

    def make(self, replay: Replay, seed: int) -> Explorer:
        """An explorer of a table; the same seed begins at the same configuration whatever the method."""
        rng = np.random.default_rng([seed, 1])
        model = Looked((self.model or _boosting)(seed), replay.described(self.features)) if self.learns else None
        return get_explorer(self.explorer)(
            replay.setting.part.space if self.untuned else replay.space(np.random.default_rng(seed)),
            rng,
            featurizer=lambda rows: replay.places(rows)[:, None].astype(np.float32),
            model=model,
            valid=replay.valid,
            **dict(self.options),
        )

    @property
    def learns(self) -> bool:
        return self.model is not None or self.explorer in LEARNING


LEARNING = ("annealing", "guided")


def _boosting(seed: int) -> CostModel:
    return GradientBoosting(seed=seed)


def run(replay: Replay, method: Method, seed: int, trials: int, batch: int, until: float = inf) -> np.ndarray:
    """One search.

    Args:
        replay: the table.
        method: how to search.
        seed: of everything random.
        trials: how many, at most.
        batch: configurations that are proposed together.
        until: a speed that ends the search.
    Returns:
        the best speed after each trial, ``[trials]`` or fewer; of a method with several evaluations after so many.
    """
    explorer = method.make(replay, seed)
    speeds = np.zeros(0)
    while len(speeds) < trials * method.evaluations and speeds.max(initial=0.0) < until:
        rows = explorer.propose(batch * method.evaluations)
        if not len(rows):
            break
        found = replay.speeds[replay.places(rows)]
        explorer.observe(rows, found)
        speeds = np.concatenate([speeds, found])
    best: np.ndarray = np.maximum.accumulate(speeds)[method.evaluations - 1 :: method.evaluations][:trials]
    return best


def trials_until(curve: np.ndarray, speed: float) -> float:
    """After how many trials a speed was reached; infinite if never."""
    there = np.flatnonzero(curve >= speed)
    return float(there[0] + 1) if len(there) else inf


@cache
def replay_of(name: str, folder: Path = FOLDER) -> Replay:
    """The table of a workload, read once a process."""
    work = WORKLOADS[name]
    return Replay(Setting(work, get_target(work.processor)), Table.load(name, folder))


@dataclass(frozen=True)
class Job:
    """One search, for :func:`run_all`."""

    workload: str
    method: Method
    seed: int
    trials: int
    batch: int
    until: float = inf  # part of the best speed that ends it
    folder: Path = field(default=FOLDER)

    def __call__(self) -> np.ndarray:
        replay = replay_of(self.workload, self.folder)
        return run(replay, self.method, self.seed, self.trials, self.batch, self.until * replay.best)


def run_all(jobs: Sequence[Job], processes: int, told: Callable[[int], None] = lambda _done: None) -> list[np.ndarray]:
    """Searches in several processes; results in order of the jobs."""
    if processes <= 1:
        results = []
        for job in jobs:
            results.append(job())
            told(len(results))
        return results
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(job) for job in jobs]
        results = []
        for future in futures:
            results.append(future.result())
            told(len(results))
        return results
