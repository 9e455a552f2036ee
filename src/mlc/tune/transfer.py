"""Learning from records of other runs: one model of all tasks that are known, for those that are not (AutoTVM §4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.errors import ScheduleError
from mlc.targets.base import Target
from mlc.tune.features import LoopFeatures
from mlc.tune.models.gbt import GradientBoosting
from mlc.tune.models.objective import Objective
from mlc.tune.models.transfer import learn_globally
from mlc.tune.records import DECIDED, Record
from mlc.tune.task import Task


def learn_from(
    records: Sequence[Record], tasks: Sequence[Task], target: Target, objective: Objective, seed: int
) -> GradientBoosting:
    """A model of all that was measured of some tasks.

    Args:
        records: trials, on any processor and any number of threads; a model compares those of one of each only. Those
            of workloads that are none of the tasks are left out: their features are not known.
        tasks: of any models.
        target: whose schedules.
        objective: of training.
        seed: of training.
    Raises:
        UsageError: nothing of the tasks was measured.
    """
    known = {t.key: t for t in tasks}
    groups: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        if r.workload in known and r.explorer != DECIDED:
            groups.setdefault((r.workload, r.fingerprint, r.threads), []).append(r)
    features: dict[str, LoopFeatures] = {}
    learnt: list[tuple[np.ndarray, np.ndarray]] = []
    for group in groups.values():
        task = known[group[0].workload]
        rows, speeds = [], []
        for r in group:
            try:
                rows.append(task.space.row(r.config))
            except ScheduleError:  # of a version whose template asked otherwise
                continue
            speeds.append(0.0 if r.result.seconds is None else 1 / r.result.seconds)
        if rows:
            describe = features.setdefault(task.key, LoopFeatures(task, target))
            learnt.append((describe(np.array(rows)), np.array(speeds)))
    model = GradientBoosting(objective, seed=seed)
    learn_globally(learnt, model)
    return model
