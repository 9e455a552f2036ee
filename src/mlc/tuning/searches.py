"""The search of each task: of its loops, or of its layouts and loops together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mlc.errors import UsageError
from mlc.lower.knobs import Config, Discrete, Space
from mlc.records.best import Best, best_of
from mlc.records.measurement import Measurement
from mlc.records.record import DECIDED, Fingerprint, Record
from mlc.targets.base import Target
from mlc.tuning.base import CostModel, Explorer
from mlc.tuning.explorers import get_explorer
from mlc.tuning.explorers.alt import AltOptions
from mlc.tuning.explorers.memory import Memory
from mlc.tuning.features import LoopFeatures
from mlc.tuning.joint import (
    JOINT,
    LOOK,
    MOST_EXPECTED,
    ROUND,
    CrossExploration,
    Search,
    expected_layouts,
    layout_space,
    layouts_in,
    likeliest,
    loop_space,
)
from mlc.tuning.models.choice import cost_model
from mlc.tuning.options import TuneOptions
from mlc.tuning.state import TaskState, speed
from mlc.tuning.task import Task

TRIALS_OF_A_TASK = 100  # that are expected where nothing but time ends a run
STARTS = 3  # best configurations of like workloads that a search begins with


class Searches:
    """Makes the search of each task when it is first asked for, from all that is known by then.

    Args:
        states: the tasks of a run.
        target: what they are compiled for.
        options: name the explorer and the cost model, and say whether layouts are searched.
        threads: that run a kernel.
        model: gives a cost model for a task, or none for the explorer's own.
        explorer: makes the explorer of a task, in place of the one that the options name.
        near: the best of other workloads, from which a task with the operators of one begins.
    """

    def __init__(
        self,
        states: Sequence[TaskState],
        target: Target,
        options: TuneOptions,
        threads: int,
        *,
        model: Callable[[Task], CostModel] | None = None,
        explorer: Callable[[TaskState], Explorer] | None = None,
        near: Best | None = None,
    ) -> None:
        self._states, self._target, self._options, self._threads = states, target, options, threads
        self._model, self._given, self._near = model, explorer, near
        self._fingerprint = Fingerprint.of(target)
        self._made: dict[int, Search | CrossExploration] = {}

    def of(self, state: TaskState) -> Search | CrossExploration:
        """The search of a task."""
        if state.number not in self._made:
            self._made[state.number] = self._joint_search(state) or self._loop_search(state)
        return self._made[state.number]

    def held(self, state: TaskState) -> Config | None:
        """The layouts that a decision has given a task for good; nothing where they are still searched."""
        options = self._options
        return layouts_in(state.decided or {}) if options.layouts and not self._joint(state.task) else None

    def _joint(self, task: Task) -> float:
        """The share of a task's trials in which layouts are searched."""
        return self._options.joint or (JOINT if task.stands_alone(self._target) else 0.0)

    def _loop_search(self, state: TaskState) -> Search:
        """The search of the loops under the layouts that a task has."""
        task, held = state.task, self.held(state) or {}
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

    def _joint_search(self, state: TaskState) -> CrossExploration | None:
        """The search of layouts and loops together, where it is wanted and the task has any layouts to choose."""
        options, task = self._options, state.task
        if not options.layouts or not self._joint(task) or self._given is not None:
            return None
        space = layout_space(task, self._target, options.layouts)
        if space is None:
            return None
        rng = np.random.default_rng([options.seed, int(task.key, 16) & 0xFFFFFFFF, len(state.trials), options.layouts])
        budget = options.trials_per_task or (options.trials or 0) // len(self._states) or TRIALS_OF_A_TASK
        near = self._starting_points(state)
        tiled = [space.nearest(layouts_in(c)) for c in near if layouts_in(c)]
        papers = options.explorer == "alt"  # whose learner is to show what it finds by itself
        expected = [] if papers else expected_layouts(task, self._target, space, MOST_EXPECTED)
        expected, worth = likeliest(task, self._target, space, expected)
        if expected:
            space, tiled = replace(space, default=space.config(expected[0])), [*tiled, *expected[1:]]
        seeds = np.array(tiled, np.int64).reshape(-1, len(space.knobs))
        memory = Memory()
        make = get_explorer(options.explorer, layouts=True)
        explorer = make(space, rng, seeds=seeds, memory=memory, **options.explorer_options)
        found = CrossExploration(
            task, self._target, space, explorer,
            lambda t, seeds: explorer_for(t, self._target, options, self._model, (), seeds, memory),
            round(self._joint(task) * budget), near, trials_of_a_round(options),
            trials_of_a_round(options) if papers else LOOK, worth, memory.leave,
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
                threads=self._threads, explorer=DECIDED, seed=self._options.seed, trial=0,
            )
            for s in self._states
            if s is not state and s.best < float("inf") and s.fastest(1)
        ]  # fmt: skip
        task = state.task
        found = best_of(here, self._fingerprint).nearest(task.document, STARTS)
        if self._near is not None:
            known = self._near.hits.get(task.key)
            found += [known] if known is not None else self._near.nearest(task.document, STARTS)
        return [r.config for r in found]


def explorer_for(
    task: Task,
    target: Target,
    options: TuneOptions,
    model: Callable[[Task], CostModel] | None,
    trials: Sequence[tuple[Config, Measurement]],
    seeds: np.ndarray | None = None,
    memory: Memory | None = None,
) -> Explorer:
    """The explorer of a task that the options name, which knows what was measured.

    Args:
        task: whose configurations.
        target: whose schedules.
        options: name the explorer, its options and the cost model.
        model: gives a cost model for a task, or none for the explorer's own.
        trials: what was measured.
        seeds: configurations to try right after the default one, int64 ``[n, knobs]``.
        memory: what it shares with the explorers of other spaces of the task; nothing unless given.
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
        memory=memory,
        **options.explorer_options,
    )
    show(explorer, task, trials)
    return explorer


def show(explorer: Explorer, task: Task, trials: Sequence[tuple[Config, Measurement]]) -> None:
    """Lets an explorer observe what was measured before."""
    if trials:
        rows = [task.space.row(config) for config, _ in trials]
        explorer.observe(np.array(rows), np.array([speed(task, result.seconds) for _, result in trials]))


def trials_of_a_round(options: TuneOptions) -> int:
    """How many trials judge a layout at a time: what ALT's explorer measures of an episode, fewer by others."""
    return int(options.explorer_options.get("top", AltOptions.top)) if options.explorer == "alt" else ROUND


def check_explorer(options: TuneOptions) -> None:
    """Complains before any trial of options that the explorer lacks or cannot take, or a cost model not installed."""
    space = Space((Discrete("n", (1, 2)),), {"n": 1})
    make = get_explorer(options.explorer)
    try:
        make(space, np.random.default_rng(0), **options.explorer_options)
    except (TypeError, UsageError) as error:
        reason = str(error).split("() ", 1)[-1]
        raise UsageError(f"explorer {options.explorer}: {reason}", hint="see docs/cli.md for its options") from None
    if options.cost_model != TuneOptions.cost_model:
        cost_model(options.cost_model).make(0)
