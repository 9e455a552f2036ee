"""Learning from records of other runs: one model of all that they measured, for what is tuned now (AutoTVM §4)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np

from mlc.errors import ScheduleError, WorkloadError
from mlc.lower.knobs import Space
from mlc.records.files import read_records
from mlc.records.record import DECIDED, Fingerprint, Record
from mlc.rewrite.workload import workload_key
from mlc.targets.base import Target, Whole
from mlc.tuning.base import CostModel
from mlc.tuning.features import LoopFeatures
from mlc.tuning.models.choice import Choice, cost_model
from mlc.tuning.models.prior import prior_of
from mlc.tuning.models.transfer import Additive, learn_globally
from mlc.tuning.options import TuneOptions
from mlc.tuning.task import Task, task_of

_LOGGER = logging.getLogger("mlc")
MAX_TASKS = 1000  # a limit for files that may hold anything: each task takes some milliseconds to understand


def learnt_from(
    transfer: Sequence[str | PathLike[str]], tasks: Sequence[Task], target: Target, options: TuneOptions
) -> Additive | None:
    """A model of what some files of records tell; nothing where there are none."""
    if not transfer:
        return None
    log = read_records(transfer)
    for complaint in log.complaints(Fingerprint.of(target)):
        _LOGGER.warning("%s", complaint)
    return learn_from(log.records, tasks, target, cost_model(options.cost_model), options.seed)


def cost_models(options: TuneOptions, target: Target, known: Additive | None) -> Callable[[Task], CostModel] | None:
    """Makes the cost model of each task; nothing where the explorer's own will do.

    Args:
        options: name the explorer and the cost model.
        target: of the tasks.
        known: what was learnt from records; nothing where there are none. The default explorer begins with what comes
            with the tuner then; those of papers are as these have them. It tells of loops, and a task that these do not
            describe begins without it.
    """
    if known is None and (options.explorer, options.cost_model) == (TuneOptions.explorer, TuneOptions.cost_model):
        known = prior_of(target)
    if known is None and options.cost_model == TuneOptions.cost_model:
        return None
    choice = cost_model(options.cost_model)

    def model(task: Task) -> CostModel:
        return choice.make(options.seed + int(task.key[:6], 16), None if task.stands_alone(target) else known)

    return model


def learn_from(records: Sequence[Record], tasks: Sequence[Task], target: Target, choice: Choice, seed: int) -> Additive:
    """A model of all that was measured of any tasks.

    Args:
        records: trials on any processors of the target's family and any number of threads; a model compares those of
            one of each, and of one way of timing, only. Their workloads are read from their documents; those that
            cannot be are left out, and a warning says why.
        tasks: workloads that need no document, such as those of a user's own operators.
        target: whose schedules.
        choice: which kind of model.
        seed: of training.
    Raises:
        UsageError: nothing that is understood was measured.
    """
    here = Fingerprint.of(target)
    groups: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        if r.explorer != DECIDED and r.fingerprint.is_family_of(here):
            groups.setdefault((r.workload, r.fingerprint, r.threads, r.flushed), []).append(r)
    known = _understood([group[0] for group in groups.values()], tasks, target, choice.tree)
    learnt: list[tuple[np.ndarray, np.ndarray]] = []
    for group in groups.values():
        if group[0].workload not in known:
            continue
        space, describe = known[group[0].workload]
        rows, speeds = [], []
        for r in group:
            try:
                rows.append(space.row(r.config))
            except ScheduleError:  # of a version whose template asked otherwise
                continue
            speeds.append(0.0 if r.result.seconds is None else 1 / r.result.seconds)
        if rows:
            learnt.append((describe(np.array(rows)), np.array(speeds)))
    model = choice.one(seed)
    learn_globally(learnt, model)
    return model


def _understood(
    records: Sequence[Record], tasks: Sequence[Task], target: Target, tree: bool
) -> dict[str, tuple[Space, LoopFeatures]]:
    """The spaces of what was measured, and what describes their configurations, by the keys of the workloads."""
    at_hand = {t.key: t for t in tasks if t.constants is None or isinstance(target.accelerator, Whole)}
    found: dict[str, tuple[Space, LoopFeatures]] = {}
    refused: dict[str, str] = {}
    for r in {r.workload: r for r in records}.values():
        try:
            if len(found) + len(refused) >= MAX_TASKS:
                raise WorkloadError(f"more than {MAX_TASKS} workloads")
            task = at_hand.get(r.workload)
            if task is None:
                if workload_key(r.document) != r.workload:
                    raise WorkloadError("a document that is not that of its workload")
                task = task_of(r.document, r.margins, target)
            found[r.workload] = task.space, LoopFeatures(task, target, tree=tree)
        except (WorkloadError, ScheduleError) as error:
            refused[r.workload] = error.message
    if refused:
        ((reason, _),) = Counter(refused.values()).most_common(1)
        _LOGGER.warning(
            "%d of %d workloads of the records are not learnt from, most often: %s",
            len(refused), len(found) + len(refused), reason,
        )  # fmt: skip
    return found
