"""A tuning run: trials go to tasks until the budget is used up, and everything measured is on the disk at once."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from mlc.errors import ScheduleError
from mlc.lower.knobs import Config
from mlc.records.best import Best, best_of
from mlc.records.files import Log
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import DECIDED, Checkpoint, Fingerprint, Record
from mlc.targets.base import LEVELS, Target
from mlc.tuning.allocate import Progress, next_task
from mlc.tuning.base import CostModel, Explorer, Measurer
from mlc.tuning.explorers import get_explorer
from mlc.tuning.features import LoopFeatures
from mlc.tuning.joint import (
    JOINT,
    CrossExploration,
    Search,
    known_in_joint,
    layout_space,
    layouts_in,
    loop_space,
    primitives_of,
)
from mlc.tuning.journal import Journal
from mlc.tuning.models.choice import cost_model
from mlc.tuning.task import Task

_LOGGER = logging.getLogger("mlc")
FINALISTS = 8  # configurations of a task that are measured once more, in turns
TRIALS_OF_A_TASK = 100  # that are expected where nothing but time ends a run
FIRST = 4  # trials of a task at least, before another has its turn
STARTS = 3  # best configurations of like workloads that a search begins with
WORTH = 0.99  # of the untuned time, from which a configuration is faster beyond doubt


@dataclass(frozen=True)
class TuneOptions:
    """What a run may do.

    Args:
        trials: for all tasks together; those of earlier runs in the same records count. No limit if ``None``.
        trials_per_task: most trials of one task; no limit unless given.
        time_budget: seconds that the search may take, those of earlier runs over the same tasks in the same records
            included; no limit unless given.
        explorer: who proposes configurations.
        explorer_options: keyword arguments of that explorer.
        cost_model: what such an explorer learns with; see :data:`mlc.tuning.models.choice.COST_MODELS`.
        batch: configurations that are proposed together.
        early_stopping: trials of a task without a gain after which it gets no more; no limit unless given.
        seed: of everything random.
        algorithms: whether to measure first by which of its algorithms each operator is fastest.
        template: whose configurations are searched, where it is not the one that fits.
        layouts: levels of tiles of the layouts that are searched together with loops; 0 leaves layouts as they are.
        joint: share of a task's trials in which they are; in the rest the fastest layout stays. None of them: what
            was decided earlier stays.
    """

    trials: int | None = 1000
    trials_per_task: int | None = None
    time_budget: float | None = None
    explorer: str = "guided"
    explorer_options: Mapping[str, Any] = field(default_factory=dict)
    cost_model: str = "rank"
    batch: int = 16
    early_stopping: int | None = None
    seed: int = 0
    algorithms: bool = False
    template: str | None = None
    layouts: int = 0
    joint: float = JOINT


class Ended(StrEnum):
    """Why a task gets no more trials, though the run has some."""

    EXHAUSTED = "all tried"
    LIMIT = "limit"  # the trials of a task
    EARLY = "no gain"
    HOPELESS = "nothing works"


class Limit(StrEnum):
    """What ended the search."""

    TRIALS = "trials"
    TIME = "time"
    TASKS = "tasks"  # each of them has ended


class Watcher:
    """Is told how a run goes on; every method may be left out."""

    def algorithms(self, name: str, done: int, total: int) -> None:
        """The algorithms of an operator are run in turns, before the run begins.

        Args:
            name: of the operator.
            done: operators that this is over for.
            total: operators that there is a choice for.
        """

    def layouts(self, name: str, done: int, total: int) -> None:
        """The layouts of an operator of a network are searched; what follows is about this operator alone.

        Args:
            name: of its task.
            done: operators that have theirs.
            total: that there are, as far as is known.
        """

    def began(
        self, tasks: Sequence[TaskState], done: int, trials: int | None, seconds: float | None, damaged: int
    ) -> None:
        """The run begins.

        Args:
            tasks: that it is about.
            done: trials in the records already.
            trials: that there can be in the end, those included; nothing where only time ends the run.
            seconds: left of its time; nothing where it has no limit.
            damaged: lines of the records that could not be read.
        """

    def measured(self, task: TaskState, config: Config, result: Measurement) -> None:
        """A configuration was measured, or failed."""

    def batch(self, task: TaskState, tasks: Sequence[TaskState]) -> None:
        """A batch of a task is over."""

    def stopped(self) -> None:
        """The user has stopped the search; what it found is decided between, unless that is stopped as well."""

    def deciding(self, task: TaskState, done: int, total: int) -> None:
        """The search is over, and the best configurations of a task are measured once more.

        Args:
            task: whose they are.
            done: tasks that this is over for.
            total: tasks that it has to be done for.
        """

    def checking(self, what: str, share: float = 0.0) -> None:
        """The whole model is looked at.

        Args:
            what: is done now.
            share: of it that is done; told again and again where it takes seconds.
        """


@dataclass(eq=False)
class TaskState:
    """A task and all that is known of it.

    Args:
        task: the task.
        number: its position among all tasks of the model, as people are shown it.
        index: its position among those of the session and its measurer.
        progress: for the allocation of trials.
        trials: what was measured, in earlier runs too.
        failures: how many of them failed how.
        decided: what to compile with; nothing while that is open.
        rejected: what was decided for once, and lost in the whole model.
        untuned: least seconds of the untuned configuration.
        best: seconds of what was decided for, or the least of any trial.
        open: whether something was measured since the decision.
        resumed: whether ``best`` was measured in an earlier run, beside an untuned time that the records do not tell.
        ended: why it gets no more trials; nothing while it may.
        peak: operations a second of all cores that run it, the most that was seen; 0 while nothing was measured.
    """

    task: Task
    number: int
    index: int
    progress: Progress
    trials: list[tuple[Config, Measurement]] = field(default_factory=list)
    failures: dict[Failure, int] = field(default_factory=dict)
    decided: Config | None = None
    rejected: list[Config] = field(default_factory=list)
    open: bool = True
    resumed: bool = False
    untuned: float = float("inf")
    best: float = float("inf")
    ended: Ended | None = None
    peak: float = 0.0

    def fastest(self, most: int) -> list[Config]:
        """Distinct configurations that ran, the fastest first."""
        found: dict[tuple[tuple[str, object], ...], tuple[float, Config]] = {}
        for config, m in self.trials:
            if m.seconds is not None:
                key = tuple(sorted(config.items()))
                found[key] = min(found.get(key, (m.seconds, config)), (m.seconds, config), key=lambda f: f[0])
        return [config for _, config in sorted(found.values(), key=lambda f: f[0])[:most]]

    def seconds_of(self, config: Config) -> float:
        """Least seconds of a configuration alone; those of the untuned one where it was not measured."""
        timed = [m.seconds for c, m in self.trials if dict(c) == dict(config) and m.seconds is not None]
        return min(timed, default=self.untuned)

    @property
    def share_of_peak(self) -> float | None:
        """The best speed over what the machine can do; nothing while either is unknown."""
        if not self.peak or not self.task.flops or self.best == float("inf"):
            return None
        return self.task.flops / self.best / (self.peak * self.task.terms)

    @property
    def gain(self) -> float | None:
        """How many times as fast as untuned the best is; nothing while both are not known from one measurement."""
        if self.resumed or self.best == float("inf") or self.untuned == float("inf"):
            return None
        return self.untuned / self.best

    def end(self, why: Ended) -> None:
        """It gets no more trials."""
        self.progress.done, self.ended = True, why

    def speed(self, seconds: float | None) -> float:
        """10^9 operations a second, or calls where there are no operations; 0 for a failure."""
        return speed(self.task, seconds)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        states: one a task.
        trials: measured in this run.
        seconds: that it took.
        interrupted: whether the user stopped it.
        exploring: seconds of these in which configurations were chosen.
        limit: what ended the search; nothing where the user did.
        flushed: whether caches were emptied before every timed call.
    """

    states: tuple[TaskState, ...]
    trials: int
    seconds: float
    interrupted: bool
    exploring: float = 0.0
    limit: Limit | None = None
    flushed: bool = False

    @property
    def bound(self) -> tuple[float, float]:
        """Seconds of all calls of all tasks as measured one by one: untuned, and with what was decided for.

        Tasks that were decided in an earlier run, or not at all, are left out.
        """
        known = [s for s in self.states if s.gain is not None and not s.open]
        return sum(s.progress.weight * s.untuned for s in known), sum(s.progress.weight * s.best for s in known)


class Session:
    """One run over some tasks.

    Args:
        tasks: told by their positions, in the order that the measurer has.
        target: what they are compiled for.
        measurer: measures them.
        options: budget and explorer.
        journal: keeps every trial; what it holds already is gone on from.
        numbers: positions of the tasks among all of the model; they are the first ones unless given.
        model: gives a cost model for a task, or none for the explorer's own.
        explorer: makes the explorer of a task, in place of the one that the options name.
        near: the best of other workloads, from which a task with the operators of one begins.
        watcher: is told how it goes on.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        target: Target,
        measurer: Measurer,
        options: TuneOptions,
        journal: Journal,
        *,
        numbers: Sequence[int] | None = None,
        model: Any = None,
        explorer: Callable[[TaskState], Explorer] | None = None,
        near: Best | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._target, self._measurer, self._options, self._journal = target, measurer, options, journal
        self._watch = watcher or Watcher()
        self._model, self._given = model, explorer
        self._near = near
        self._fingerprint = Fingerprint.of(target)
        self.states = tuple(
            TaskState(t, number, k, Progress(t.weight, least=max(t.flops, 1) / 1e12))
            for k, (number, t) in enumerate(zip(range(len(tasks)) if numbers is None else numbers, tasks, strict=True))
        )
        # a time budget is used up by runs over the same tasks only, not by all that the file holds
        keys = [*sorted(t.key for t in tasks), measurer.threads, self._fingerprint]
        keys += ["flushed"] if measurer.flushed else []
        self._run = hashlib.sha256(repr(keys).encode()).hexdigest()[:16]
        self._explorers: dict[int, Search | CrossExploration] = {}
        self._trial = journal.log.next_trial
        self._done = 0
        self._exploring = 0.0
        self._limit: Limit | None = None
        point = journal.log.checkpoint
        self._before = journal.log.seconds if point is not None and point.run == self._run else 0.0
        self._resume(journal.log)
        one_by_one = options.joint == 1.0  # operators of a network, each of which is new in turn
        if journal.log.records and not self._done and not one_by_one:
            _LOGGER.warning(
                "%s: none of its %d records is of these kernels on this processor with %d %s%s; they stay",
                journal.path, len(journal.log.records), measurer.threads,
                "thread" if measurer.threads == 1 else "threads", " and empty caches" if measurer.flushed else "",
            )  # fmt: skip

    # -- what is known already ----------------------------------------------------------------------------------------
    def _resume(self, log: Log) -> None:
        for state in self.states:
            for record in self._measured(log, state.task):
                config = known_config(state.task, record.config, self._target)
                if config is None:
                    continue
                if record.explorer != DECIDED:
                    self._note(state, config, record.result)
                    self._done += 1
                    state.open = True
                else:
                    self._resume_decision(state, config, record.result)
            if state.trials:
                state.progress.measured(len(state.trials), state.best)

    def _measured(self, log: Log, task: Task) -> list[Record]:
        return log.measured(task.key, self._fingerprint, self._measurer.threads, self._measurer.flushed)

    @staticmethod
    def _resume_decision(state: TaskState, config: Config, result: Measurement) -> None:
        """A later decision for the untuned configuration is what the whole model has said of the earlier one."""
        default = dict(state.task.space.default)
        if state.decided is not None and dict(config) == default and dict(state.decided) != default:
            state.rejected.append(state.decided)
        state.decided, state.open = config, False
        if result.seconds is not None:
            state.best, state.resumed = result.seconds, True

    def _note(self, state: TaskState, config: Config, result: Measurement) -> None:
        state.trials.append((config, result))
        if state.resumed:  # until it is decided again, single trials say
            state.resumed = False
            state.best = min((m.seconds for _, m in state.trials if m.seconds is not None), default=float("inf"))
        if result.failure is not None:
            state.failures[result.failure] = state.failures.get(result.failure, 0) + 1
        elif result.seconds is not None:
            state.best = min(state.best, result.seconds)
            if dict(config) == dict(state.task.space.default):
                state.untuned = min(state.untuned, result.seconds)

    def _explorer(self, state: TaskState) -> Search | CrossExploration:
        if state.number not in self._explorers:
            self._explorers[state.number] = self._joint_search(state) or self._loop_search(state)
        return self._explorers[state.number]

    def _loop_search(self, state: TaskState) -> Search:
        """The search of the loops under the layouts that a task has."""
        task, held = state.task, self._held(state) or {}
        if held:
            space = loop_space(task, self._target, held)
            assert space is not None, "layouts that were measured"
            task = replace(task, space=space)
        own = [(c, m) for c, m in state.trials if layouts_in(c) == held]
        if self._given is not None:
            explorer = self._given(state)
            show(explorer, task, own)
        else:
            seeds = np.array([task.space.nearest(c) for c in self._starting_points(state) if layouts_in(c) == held])
            seeds = seeds.reshape(-1, len(task.space.knobs)).astype(np.int64)
            explorer = explorer_for(task, self._target, self._options, self._model, own, seeds)
        return Search(explorer, task.space)

    def _held(self, state: TaskState) -> Config | None:
        """The layouts that a decision has given a task for good; nothing where they are still searched."""
        options = self._options
        return layouts_in(state.decided or {}) if options.layouts and not options.joint else None

    def _joint_search(self, state: TaskState) -> CrossExploration | None:
        """The search of layouts and loops together, where it is wanted and the task has any layouts to choose."""
        options, task = self._options, state.task
        if not options.layouts or not options.joint or self._given is not None:
            return None
        space = layout_space(task, self._target, options.layouts)
        if space is None:
            return None
        rng = np.random.default_rng([options.seed, int(task.key, 16) & 0xFFFFFFFF, len(state.trials), options.layouts])
        budget = options.trials_per_task or (options.trials or 0) // len(self.states) or TRIALS_OF_A_TASK
        near = self._starting_points(state)
        tiled = [space.nearest(layouts_in(c)) for c in near if layouts_in(c)]
        seeds = np.array(tiled, np.int64).reshape(-1, len(space.knobs))
        explorer = get_explorer(options.explorer)(space, rng, seeds=seeds, **options.explorer_options)
        found = CrossExploration(
            task, self._target, space, explorer,
            lambda t, seeds: explorer_for(t, self._target, options, self._model, (), seeds),
            round(options.joint * budget), near,
        )  # fmt: skip
        found.observe([c for c, _ in state.trials], np.array([speed(task, m.seconds) for _, m in state.trials]))
        return found

    def _starting_points(self, state: TaskState) -> list[Config]:
        """Configurations that were the best of like workloads: of records, and of other tasks of this run.

        Those of the most similar shapes come first.
        """
        here = [
            Record.of(
                s.task, s.fastest(1)[0], Measurement(s.best), fingerprint=self._fingerprint,
                threads=self._measurer.threads, explorer=DECIDED, seed=self._options.seed, trial=0,
            )
            for s in self.states
            if s is not state and s.best < float("inf") and s.fastest(1)
        ]  # fmt: skip
        task = state.task
        found = best_of(here, self._fingerprint).nearest(task.document, STARTS)
        if self._near is not None:
            known = self._near.hits.get(task.key)
            found += [known] if known is not None else self._near.nearest(task.document, STARTS)
        return [r.config for r in found]

    # -- the run ------------------------------------------------------------------------------------------------------
    def run(self) -> Outcome:
        """Searches until the budget is used up or the user stops it, then decides between the best of each task.

        A user who stops that, too, gets what single trials say.
        """
        started = time.monotonic()
        first = self._done
        interrupted = False
        left = None if self._options.time_budget is None else max(0.0, self._options.time_budget - self._before)
        self._watch.began(self.states, self._done, self._most(), left, self._journal.log.bad)
        try:
            while self._step(started):
                pass
        except KeyboardInterrupt:
            interrupted = True
            self._watch.stopped()
        try:
            open_ = [s for s in self.states if s.open and any(m.seconds is not None for _, m in s.trials)]
            for done, state in enumerate(open_):
                self._watch.deciding(state, done, len(open_))
                self.decide(state)
        except KeyboardInterrupt:
            interrupted = True
            self._decide_from_records()
        self._checkpoint(started)
        self._journal.sync()
        seconds = time.monotonic() - started
        limit = None if interrupted else self._limit
        flushed = self._measurer.flushed
        return Outcome(self.states, self._done - first, seconds, interrupted, self._exploring, limit, flushed)

    def _most(self) -> int | None:
        """Trials that there can be in the end, those of earlier runs included; nothing where only time ends them."""
        options = self._options
        if options.trials is None and options.trials_per_task is None:
            return None
        limit = options.trials_per_task
        sizes = [self._size(s) for s in self.states]
        most = [n if limit is None else min(n, limit) for n in sizes]
        total = sum(max(n, len(s.trials)) for n, s in zip(most, self.states, strict=True))
        return total if options.trials is None else min(total, max(options.trials, self._done))

    def _size(self, state: TaskState) -> int:
        """Configurations of a task, a lower bound where its layouts are searched, too."""
        layouts = layout_space(state.task, self._target, self._options.layouts) if self._options.layouts else None
        return state.task.space.size * (1 if layouts is None else layouts.size)

    def _checkpoint(self, started: float) -> None:
        seconds = self._before + time.monotonic() - started
        self._journal.append(Checkpoint(self._trial, seconds, self._run))

    def _step(self, started: float) -> bool:
        """One batch of one task; whether there is anything more to do."""
        options = self._options
        spent = self._before + time.monotonic() - started
        if options.trials is not None and self._done >= options.trials:
            self._limit = Limit.TRIALS
        elif options.time_budget is not None and spent >= options.time_budget:
            self._limit = Limit.TIME
        k = next_task([s.progress for s in self.states])
        if k is None:
            self._limit = self._limit or Limit.TASKS
        if k is None or self._limit is not None:
            return False
        state = self.states[k]
        n = options.batch
        if options.trials is not None:
            n = min(n, options.trials - self._done)
            if not state.trials:  # a small budget is for more than the first few tasks
                n = min(n, max(FIRST, options.trials // (2 * len(self.states))))
        if options.trials_per_task is not None:
            n = min(n, options.trials_per_task - len(state.trials))
        with self._choosing():
            configs = self._explorer(state).propose(n) if n > 0 else []
        if not configs:
            state.end(Ended.EXHAUSTED if n > 0 else Ended.LIMIT)
            return True
        results = self._measurer.measure(k, configs, lambda i, m: self._keep(state, configs[i], m, options.explorer))
        speeds = np.array([state.speed(m.seconds) for m in results])
        with self._choosing():
            self._explorer(state).observe(configs, speeds)
        peak = self._measurer.peak * self._measurer.threads
        if peak:
            state.progress.least = state.task.flops / (peak * state.task.terms)
        for s in self.states:
            s.peak = peak
        state.progress.measured(len(configs), state.best)
        if state.progress.done:
            state.end(Ended.HOPELESS)
        elif options.early_stopping is not None and state.progress.stale >= options.early_stopping:
            state.end(Ended.EARLY)
        self._checkpoint(started)
        self._watch.batch(state, self.states)
        return True

    @contextlib.contextmanager
    def _choosing(self) -> Iterator[None]:
        """Counts the time of an explorer, which computes on one thread."""
        from threadpoolctl import threadpool_limits

        begun = time.monotonic()
        # threads of linear algebra wait for one another by spinning: beside builders and timed kernels, more than one
        # make a batch of proposals take ten times as long
        with threadpool_limits(1, "blas"):
            yield
        self._exploring += time.monotonic() - begun

    def _keep(self, state: TaskState, config: Config, result: Measurement, explorer: str) -> None:
        self._journal.append(
            Record.of(
                state.task,
                config,
                result,
                fingerprint=self._fingerprint,
                threads=self._measurer.threads,
                explorer=explorer,
                seed=self._options.seed,
                trial=self._trial,
                flushed=self._measurer.flushed,
                layouts=primitives_of(state.task, self._target, config),
            )
        )
        self._trial += 1
        if explorer != DECIDED:
            self._done += 1
            self._note(state, config, result)
            state.open = True
            self._watch.measured(state, config, result)

    # -- the choice ---------------------------------------------------------------------------------------------------
    def finalists(self, state: TaskState) -> list[Config]:
        """The untuned configuration and the fastest others, of the layouts that a task has for good if it has any."""
        default, held = dict(state.task.space.default), self._held(state)
        timed = sorted(
            (
                (m.seconds, k)
                for k, (c, m) in enumerate(state.trials)
                if m.seconds is not None and c != default and c not in state.rejected
                and (held is None or layouts_in(c) == held)
            )
        )  # fmt: skip
        return [default, *(state.trials[k][0] for _, k in timed[: FINALISTS - 1])]

    def decide(self, state: TaskState) -> None:
        """Times the finalists in turns, and settles on the fastest, or on the untuned one where it is as fast."""
        configs, held = self.finalists(state), self._held(state)
        results = self._measurer.compare(state.index, configs)
        timed = [(m.seconds, k) for k, m in enumerate(results) if m.seconds is not None and (k or not held)]
        if not timed:
            self.settle(state, configs[0], Measurement(None, failure=Failure.RUN_CRASH))
            return
        least, k = min(timed)
        state.resumed = False
        if results[0].seconds is not None:
            state.untuned = results[0].seconds
            if least > WORTH * state.untuned and not held:  # as fast as untuned, as far as anybody can tell
                k = 0
        self.settle(state, configs[k], results[k])

    def settle(self, state: TaskState, config: Config, result: Measurement) -> None:
        """This configuration is the one to compile with, whatever single trials said."""
        state.decided, state.open = config, False
        if result.seconds is not None:
            state.best = result.seconds
            self._keep(state, config, result, DECIDED)

    def _decide_from_records(self) -> None:
        """After a second interruption: the fastest trial, without measuring; the task stays open."""
        for state in self.states:
            timed = [(m.seconds, k) for k, (_, m) in enumerate(state.trials) if m.seconds is not None]
            if state.decided is None and timed:
                state.decided = state.trials[min(timed)[1]][0]


def explorer_for(
    task: Task,
    target: Target,
    options: TuneOptions,
    model: Any,
    trials: Sequence[tuple[Config, Measurement]],
    seeds: np.ndarray | None = None,
) -> Explorer:
    """The explorer of a task that the options name, which knows what was measured.

    Args:
        task: whose configurations.
        target: whose schedules.
        options: name the explorer, its options and the cost model.
        model: gives a cost model for a task, or none for the explorer's own.
        trials: what was measured.
        seeds: configurations to try right after the default one, int64 ``[n, knobs]``.
    """
    features = LoopFeatures.of(task, target, tree=cost_model(options.cost_model).tree)
    learns: CostModel | None = None if model is None else model(task)
    rng = np.random.default_rng([options.seed, int(task.key, 16) & 0xFFFFFFFF, len(trials)])
    explorer = get_explorer(options.explorer)(
        task.space,
        rng,
        featurizer=features,
        model=learns,
        seeds=seeds,
        valid=None if features is None else features.valid,
        **options.explorer_options,
    )
    show(explorer, task, trials)
    return explorer


def show(explorer: Explorer, task: Task, trials: Sequence[tuple[Config, Measurement]]) -> None:
    """Lets an explorer observe what was measured before."""
    if trials:
        rows = [task.space.row(config) for config, _ in trials]
        explorer.observe(np.array(rows), np.array([speed(task, result.seconds) for _, result in trials]))


def speed(task: Task, seconds: float | None) -> float:
    """10^9 operations a second, or calls where there are no operations; 0 for a failure."""
    return 0.0 if seconds is None else max(task.flops, 1) / seconds / 1e9


def known_config(task: Task, config: Config, target: Target) -> Config | None:
    """A recorded configuration with a value for every knob; none of a version whose template asked otherwise."""
    if LEVELS in config:
        return known_in_joint(task, target, config)
    if not set(config) <= {k.name for k in task.space.knobs}:
        return None
    try:
        return task.space.config(task.space.row(config))
    except ScheduleError:
        return None
