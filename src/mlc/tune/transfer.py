"""Learning from records of other runs: one model of all that they measured, for what is tuned now (AutoTVM §4)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mlc.errors import ScheduleError, WorkloadError
from mlc.targets.base import Target
from mlc.tune.features import LoopFeatures
from mlc.tune.models.gbt import GradientBoosting
from mlc.tune.models.objective import Objective
from mlc.tune.models.transfer import learn_globally
from mlc.tune.records import DECIDED, Fingerprint, Record
from mlc.tune.task import Task, digest, task_of

_LOGGER = logging.getLogger("mlc")
MAX_TASKS = 1000  # a limit for files that may hold anything: each task takes some milliseconds to understand


def learn_from(
    records: Sequence[Record], tasks: Sequence[Task], target: Target, objective: Objective, seed: int
) -> GradientBoosting:
    """A model of all that was measured of any tasks.

    Args:
        records: trials on any processors of the target's family and any number of threads; a model compares those of
            one of each only. Their workloads are understood from their texts; those that cannot be are left out, and
            a warning says why.
        tasks: workloads that need no text, such as those of a user's own operators.
        target: whose schedules.
        objective: of training.
        seed: of training.
    Raises:
        UsageError: nothing that is understood was measured.
    """
    here = Fingerprint.of(target)
    groups: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        if r.explorer != DECIDED and r.fingerprint.is_family_of(here):
            groups.setdefault((r.workload, r.fingerprint, r.threads), []).append(r)
    known = _understood([group[0] for group in groups.values()], tasks, target)
    features: dict[str, LoopFeatures] = {}
    learnt: list[tuple[np.ndarray, np.ndarray]] = []
    for group in groups.values():
        task = known.get(group[0].workload)
        if task is None:
            continue
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


def _understood(records: Sequence[Record], tasks: Sequence[Task], target: Target) -> dict[str, Task]:
    """The tasks of some records by their keys."""
    known = {t.key: t for t in tasks if t.constants is None}
    refused: dict[str, str] = {}
    for r in records:
        if r.workload in known or r.workload in refused:
            continue
        try:
            if digest(r.text) != r.workload:
                raise WorkloadError("a text that is not that of its workload")
            if len(known) + len(refused) >= MAX_TASKS:
                raise WorkloadError(f"more than {MAX_TASKS} workloads")
            known[r.workload] = task_of(r.text, r.beside, target)
        except WorkloadError as error:
            refused[r.workload] = error.message
    if refused:
        ((reason, _),) = Counter(refused.values()).most_common(1)
        number = len({r.workload for r in records})
        _LOGGER.warning(
            "%d of %d workloads of the records are not learnt from, most often: %s", len(refused), number, reason
        )
    return known
