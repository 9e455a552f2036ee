"""A tuning run: trials go to tasks until the budget is used up, and everything measured is on the disk at once."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mlc.errors import ScheduleError
from mlc.lower.knobs import Config
from mlc.records.best import Best
from mlc.records.files import Log
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import DECIDED, Checkpoint, Fingerprint, Record
from mlc.targets.base import LEVELS, Target
from mlc.tuning.allocate import Progress, next_task
from mlc.tuning.base import CostModel, Explorer, Measurer
from mlc.tuning.joint import known_in_joint, layout_space, layouts_in, primitives_of
from mlc.tuning.journal import Journal
from mlc.tuning.options import TuneOptions
from mlc.tuning.searches import Searches
from mlc.tuning.state import Ended, TaskState
from mlc.tuning.task import Task
from mlc.tuning.watcher import Watcher

_LOGGER = logging.getLogger("mlc")
FINALISTS = 8  # configurations of a task that are measured once more, in turns
CONFIRMED = 3  # of these that are once more, for the decision
OUT_OF_REACH = 1.3  # times the least of all single trials, from which luck cannot have been the reason
LONG = 0.01  # seconds of a call, from which on it matters how many are measured once more
FIRST = 4  # trials of a task at least, before another has its turn
WORTH = 0.99  # of the untuned time, from which a configuration is faster beyond doubt


class Limit(StrEnum):
    """What ended the search."""

    TRIALS = "trials"
    TIME = "time"
    TASKS = "tasks"  # each of them has ended


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
        unreached: operators whose turn to have their layouts searched did not come.
    """

    states: tuple[TaskState, ...]
    trials: int
    seconds: float
    interrupted: bool
    exploring: float = 0.0
    limit: Limit | None = None
    flushed: bool = False
    unreached: int = 0

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
        model: Callable[[Task], CostModel] | None = None,
        explorer: Callable[[TaskState], Explorer] | None = None,
        near: Best | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._target, self._measurer, self._options, self._journal = target, measurer, options, journal
        self._watch = watcher or Watcher()
        self._fingerprint = Fingerprint.of(target)
        self.states = tuple(
            TaskState(t, number, k, Progress(t.weight, least=max(t.flops, 1) / 1e12))
            for k, (number, t) in enumerate(zip(range(len(tasks)) if numbers is None else numbers, tasks, strict=True))
        )
        # a time budget is used up by runs over the same tasks only, not by all that the file holds
        keys = [*sorted(t.key for t in tasks), measurer.threads, self._fingerprint]
        keys += ["flushed"] if measurer.flushed else []
        self._run = hashlib.sha256(repr(keys).encode()).hexdigest()[:16]
        self._searches = Searches(
            self.states, target, options, measurer.threads, model=model, explorer=explorer, near=near
        )
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
            search = self._searches.of(state)
            configs = search.propose(search.batch(n)) if n > 0 else []
        if not configs:
            state.end(Ended.EXHAUSTED if n > 0 else Ended.LIMIT)
            return True
        results = self._measurer.measure(k, configs, lambda i, m: self._keep(state, configs[i], m, options.explorer))
        speeds = np.array([state.speed(m.seconds) for m in results])
        with self._choosing():
            self._searches.of(state).observe(configs, speeds)
        peak = self._measurer.peak * self._measurer.threads
        for s in self.states:
            s.peak = peak * self._target.most_products(s.task.terms)
        if peak:
            state.progress.least = state.task.flops / state.peak
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
        """The untuned configuration and the fastest others, of the layouts that a task has for good if it has any.

        Where layouts are still searched, half of the others have the target's own ones if there are so many: single
        trials of layouts that were tried more often have had more luck. What took long, and far longer than the
        fastest, has no place among them, where there are few others: calls of a tenth of a second add up (of
        ResNet-3D-18's first layer, 16 videos at a time, those that took 2 to 3 times as long were half of eight
        minutes). Others have, since the fastest may prove to be a lie of a board's.
        """
        default, held = dict(state.task.space.default), self._searches.held(state)
        timed = sorted(
            (
                (m.seconds, k)
                for k, (c, m) in enumerate(state.trials)
                if m.seconds is not None and c != default and c not in state.rejected
                and (held is None or layouts_in(c) == held)
            )
        )  # fmt: skip
        least = min((m.seconds for _, m in state.trials if m.seconds is not None), default=0.0)
        fastest = [state.trials[k][0] for seconds, k in timed if seconds <= max(LONG, OUT_OF_REACH * least)]
        own = [] if held is not None else [c for c in fastest if not layouts_in(c)][: FINALISTS // 2]
        others = [c for c in fastest if c not in own][: FINALISTS - 1 - len(own)]
        return [default, *own, *others]

    def decide(self, state: TaskState) -> None:
        """Times the finalists in turns, and settles on the fastest, or on the untuned one where it is as fast.

        The fastest of many has had some luck, so the first few take turns once more, and what counts is that.
        """
        configs, held = self.finalists(state), self._searches.held(state)
        results = self._measurer.compare(state.index, configs)
        ranked = sorted((m.seconds, k) for k, m in enumerate(results) if m.seconds is not None and k)
        if len(ranked) > CONFIRMED:
            configs = [configs[k] for k in (0, *(k for _, k in ranked[:CONFIRMED]))]
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
