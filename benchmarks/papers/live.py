"""Searches as a tuning run makes them: whole spaces, from the default on, everything that is asked for measured once.

All searches share what was measured of a workload, so that two of them never see different times of one configuration,
and all can be run again from the tables. A search that asks for what nobody has measured waits; :class:`Arena` measures
what is wanted and keeps it, so a comparison that is stopped goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.papers.spaces import Setting, Workload
from benchmarks.papers.tables import CHUNK, FAST, Table, table_for
from mlc.records.measurement import Measurement
from mlc.settings import CompileOptions
from mlc.targets.base import get_target
from mlc.tuning.base import Explorer, batch_of
from mlc.tuning.explorers import get_explorer
from mlc.tuning.measure import LocalMeasurer, MeasureOptions
from mlc.tuning.measure.timing import Rule
from mlc.tuning.options import TuneOptions
from mlc.tuning.transfer import cost_models

TABLES = Path("benchmarks/papers/tables")
FOUND = 0.98  # part of the best speed that ends a search
POOL = 256  # random configurations of a workload, which all searches share that begin with any
# Searches that begin with random draws, and how many those are: in the order of their seed they are the pool's.
BEGIN = {"random": POOL, "genetic": 99, "annealing": 15, "opevo": 15}
NEAR = 0.97  # part of the best speed from which on a configuration is measured again, in turns
# ... and from which on that is done more than once, since the fastest of many is one that was lucky; and how often.
TOP, ROUNDS = 0.99, 2
TOGETHER = 24  # that take turns
AGAIN = Rule(sample_seconds=0.004, samples=9)


class Known:
    """What was measured of a workload's whole space.

    Args:
        setting: the workload.
        folder: where its table is. Knobs that this lacks are newer than it is, and keep their untuned value.
    """

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting, self.folder = _as_measured(setting, folder), folder
        self.table = table_for(self.setting, folder)
        self._at = {int(n): k for k, n in enumerate(self.table.number)}

    @property
    def name(self) -> str:
        return self.setting.workload.name

    @property
    def best(self) -> float:
        """The greatest speed that is known, carefully measured if any was."""
        careful = ~np.isnan(self.table.again)
        return float(self.speeds[careful if careful.any() else slice(None)].max(initial=0.0))

    @property
    def speeds(self) -> np.ndarray:
        """Of all that was measured, by the most careful measurement, on the scale of those, float64 ``[n]``."""
        table = self.table
        scale = float(np.nanmedian(table.again / table.seconds)) if (~np.isnan(table.again)).any() else 1.0
        seconds = np.where(np.isnan(table.again), table.seconds * scale, table.again).astype(np.float64)
        return np.nan_to_num(table.flops / seconds / 1e9, nan=0.0, posinf=0.0)

    def at(self, numbers: Sequence[int]) -> list[int]:
        """Positions of measured configurations in the table."""
        return [self._at[n] for n in numbers]

    def numbers(self, rows: np.ndarray) -> list[int]:
        """Those of configurations, rows of the space, ``[n, knobs]``."""
        return [self.setting.part.space.index(row) for row in rows]

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Those that were not measured yet."""
        return [n for n in numbers if n not in self._at]

    def first(self, numbers: Sequence[int]) -> np.ndarray:
        """Speeds as a search sees them: of the first measurement, float64 ``[n]``, 0 for failures."""
        seconds = self.table.seconds[self.at(numbers)].astype(np.float64)
        return np.nan_to_num(self.table.flops / seconds / 1e9, nan=0.0)

    def final(self, numbers: Sequence[int]) -> np.ndarray:
        """Speeds as a search is judged by: of the most careful measurement, float64 ``[n]``."""
        found: np.ndarray = self.speeds[self.at(numbers)]
        return found

    def add(self, numbers: Sequence[int], results: Sequence[Measurement]) -> None:
        """Enters first measurements."""
        end = len(self.table.number)
        self.table.add(numbers, results)
        self._at |= {n: end + k for k, n in enumerate(numbers)}

    def config(self, number: int) -> dict[str, Any]:
        """Of the task's space."""
        (row,) = self.setting.part.lift(self.setting.part.space.at(number)[None])
        return self.setting.task.space.config(row)

    @property
    def default(self) -> int:
        space = self.setting.part.space
        return space.index(space.row({}))

    @cached_property
    def pool(self) -> np.ndarray:
        """Random configurations that can be built, ``[POOL, knobs]`` or fewer."""
        space = self.setting.part.space
        explorer = get_explorer("random")(space, np.random.default_rng(0), valid=self.valid)
        return explorer.propose(1 + POOL)[1:]

    def valid(self, rows: np.ndarray) -> np.ndarray:
        return self.setting.features.valid(self.setting.part.lift(rows))

    def features(self, rows: np.ndarray) -> np.ndarray:
        return self.setting.features(self.setting.part.lift(rows))

    def settle(self, numbers: Sequence[int], results: Sequence[Measurement]) -> None:
        """Enters what took turns with the default, which comes last and whose first time is the scale of all.

        The mean of all such measurements counts. A first measurement stays where there is no other.
        """
        table, at = self.table, self.at(numbers)
        seconds = np.array([np.nan if m.seconds is None else m.seconds for m in results])
        if np.isnan(table.untuned):
            table.untuned = float(seconds[-1])
        seconds *= table.untuned / seconds[-1]
        seconds = np.where(np.isnan(seconds[:-1]), table.seconds[at], seconds[:-1])
        turns, before = table.turns[at], np.nan_to_num(table.again[at])
        table.again[at] = (turns * before + seconds) / (turns + 1)
        table.turns[at] += 1

    def near(self, begin: int | None = None) -> list[int]:
        """Numbers of what is near the best and was not measured carefully enough yet, the default included.

        Args:
            begin: what counts as the default, where searches began at another one than is now.
        """
        speeds = self.speeds
        best = speeds.max(initial=0.0)
        wanted = np.where(speeds >= TOP * best, ROUNDS, np.where(speeds >= NEAR * best, 1, 0))
        wanted[self._at[self.default if begin is None else begin]] = ROUNDS
        found: list[int] = self.table.number[self.table.turns < wanted].tolist()
        return found


def _as_measured(setting: Setting, folder: Path) -> Setting:
    """A setting without what templates ask since its table was measured."""
    if not (folder / f"{setting.workload.name}.npz").is_file():
        return setting
    known = {name for name, _ in Table.load(setting.workload.name, folder).knobs}
    later = [k.name for k in setting.part.space.knobs if k.name not in known]
    return replace(setting, workload=replace(setting.workload, untuned=later)) if later else setting


def known_of(workloads: Sequence[Workload], processor: str, use: str = "unseen") -> list[Known]:
    """What was measured of workloads on a processor; for which use, ``unseen`` or ``prior``."""
    target = get_target(f"x86 -mcpu={processor}")
    return [Known(Setting(w, target), folder_of(processor, use)) for w in workloads]


def folder_of(processor: str, use: str = "unseen") -> Path:
    """Where what was measured on a processor is kept."""
    return TABLES / use / processor


@dataclass(eq=False)
class Search:
    """One search.

    Args:
        known: of the workload.
        explorer: its name.
        options: of the explorer.
        seed: of everything random in it.
        trials: at most.
        numbers: what it has measured, in order.
    """

    known: Known
    explorer: str
    options: Mapping[str, Any]
    seed: int
    trials: int
    numbers: list[int] = field(default_factory=list)
    ended: bool = False
    _waiting: np.ndarray | None = None

    @property
    def name(self) -> str:
        """Unique among all searches."""
        return f"{self.known.name} {self.explorer} {self.seed}"

    @cached_property
    def _explorer(self) -> Explorer:
        known = self.known
        order = np.random.default_rng([self.seed, 2]).permutation(len(known.pool))
        setting = known.setting
        models = cost_models(TuneOptions(explorer=self.explorer, seed=self.seed), setting.target, None)
        return get_explorer(self.explorer)(
            known.setting.part.space,
            np.random.default_rng([self.seed, 1]),
            featurizer=known.features,
            model=None if models is None else models(setting.task),
            seeds=known.pool[order[: BEGIN.get(self.explorer, 0)]],
            valid=known.valid,
            **self.options,
        )

    @property
    def reached(self) -> float:
        """After how many trials most of the best speed was found; infinite if it was not."""
        return self.trials_until(FOUND)

    def trials_until(self, part: float) -> float:
        """After how many trials a part of the best speed was found; infinite if it was not."""
        there = np.flatnonzero(self.known.final(self.numbers) >= part * self.known.best)
        return float(there[0] + 1) if len(there) else inf

    def advance(self, batch: int) -> list[int]:
        """Goes on as far as is known; what it waits for."""
        while True:
            if self._waiting is None:
                if self.ended or len(self.numbers) >= self.trials or self.reached < inf:
                    return []
                n = min(batch, self.trials - len(self.numbers))
                self._waiting = self._explorer.propose(batch_of(self._explorer, n))
                self.ended = not len(self._waiting)
            numbers = self.known.numbers(self._waiting)
            missing = self.known.missing(numbers)
            if missing:
                return missing
            if numbers:
                self._explorer.observe(self._waiting, self.known.first(numbers))
            self.numbers += numbers
            self._waiting = None


class Arena:
    """Measures what searches ask for, until its time is over. Make it before there are threads, and close it.

    Args:
        knowns: of the workloads, all of one target.
        core: on which times are taken; the others build.
        deadline: when nothing new is begun any more, by the monotonic clock.
        told: is told how it goes on.
    """

    def __init__(self, knowns: Sequence[Known], core: int, deadline: float, told: Callable[[str], None]) -> None:
        self._knowns, self._deadline, self._told = list(knowns), deadline, told
        tasks, target = [k.setting.task for k in knowns], knowns[0].setting.target
        self._fast, self._careful = (
            LocalMeasurer(
                tasks, target, threads=1, compile_options=CompileOptions("unseen", "onnx", ""),
                options=MeasureOptions(cores=(core,), retries=1, rule=rule), rng=np.random.default_rng(0),
            )
            for rule in (FAST, AGAIN)
        )  # fmt: skip

    @property
    def over(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self._deadline

    def close(self) -> None:
        """Ends all processes."""
        self._fast.close()
        self._careful.close()

    def measure(self, wanted: Mapping[str, Sequence[int]]) -> None:
        """First measurements of configurations, by workload and number."""
        for k, known in enumerate(self._knowns):
            missing = known.missing([*dict.fromkeys(wanted.get(known.name, ()))])
            for at in range(0, len(missing), CHUNK):
                if self.over:
                    break
                some = missing[at : at + CHUNK]
                known.add(some, self._fast.measure(k, [known.config(n) for n in some]))
            self._keep(known, len(missing))

    def measure_again(self, wanted: Mapping[str, Sequence[int]], scales: int) -> None:
        """Measures more of what was measured another day, on the scale of that day.

        Args:
            wanted: numbers of new configurations, by workload.
            scales: how many of the fastest known ones are measured again for that, and the default, whose time of today
                is kept: its code may have changed.
        """
        for k, known in enumerate(self._knowns):
            numbers = known.missing(wanted.get(known.name, ()))
            if not numbers:
                continue
            fastest = known.table.number[np.argsort(-known.speeds, kind="stable")[:scales]].tolist()
            some = [*fastest, known.default, *numbers]
            results = self._fast.measure(k, [known.config(n) for n in some])
            seconds = np.array([np.nan if m.seconds is None else m.seconds for m in results])
            scale = float(np.nanmedian(known.table.seconds[known.at(fastest)] / seconds[:scales]))
            known.table.seconds[known.at([known.default])] = seconds[scales] * scale
            known.add(
                numbers,
                [m if m.seconds is None else replace(m, seconds=m.seconds * scale) for m in results[scales + 1 :]],
            )
            self._keep(known, len(numbers))

    def again(self, knowns: Sequence[Known] | None = None) -> None:
        """Measures what is near the best in turns; of all workloads unless told of which."""
        for k, known in enumerate(self._knowns):
            if knowns is not None and known not in knowns:
                continue
            near = known.near()
            for at in range(0, len(near), TOGETHER):
                if self.over:
                    break
                some = near[at : at + TOGETHER]
                known.settle(some, self._careful.compare(k, [known.config(n) for n in [*some, known.default]]))
            self._keep(known, len(near))

    def _keep(self, known: Known, wanted: int) -> None:
        if wanted:
            known.table.about = machine.describe()
            known.table.save(known.folder)
            self._told(f"{known.name}: {len(known.table.number)} measured, the best {known.best:.1f} GFLOP/s")


def compare(
    searches: Sequence[Search], arena: Arena | None, told: Callable[[str], None], batch: int = TuneOptions.batch
) -> list[Search]:
    """Runs searches to their ends, measuring what they ask for.

    Returns:
        those that could not go on, for there is nobody to measure.
    """
    while True:
        wanted: dict[str, list[int]] = {}
        stuck = []
        for search in searches:
            missing = search.advance(batch)
            if missing:
                stuck.append(search)
                wanted.setdefault(search.known.name, []).extend(missing)
        told(f"{len(stuck)} of {len(searches)} searches wait")
        if arena is None or arena.over:
            return stuck
        if not stuck and not any(k.near() for k in {id(s.known): s.known for s in searches}.values()):
            return stuck
        arena.measure(wanted)
        arena.again()  # at once, since what looks best at first need not be, and searches end by the best
