"""Learning from the records of other tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.settings import Observer
from mlc.targets.base import Target, get_target
from mlc.tune.base import Measurement
from mlc.tune.features import LoopFeatures
from mlc.tune.features.context import LOOPS, PER_LOOP
from mlc.tune.models.choice import COST_MODELS, features_for, make_model, transferable
from mlc.tune.models.objective import Objective
from mlc.tune.models.transfer import Transfer
from mlc.tune.records import DECIDED, Fingerprint, Record
from mlc.tune.task import Task, tasks_of
from mlc.tune.transfer import learn_from
from tests.unit.tune.test_lookup import OPTIONS, product


@pytest.fixture(scope="module")
def target() -> Target:
    return get_target("x86 -mcpu=haswell")


@pytest.fixture(scope="module")
def tasks(target: Target) -> list[Task]:
    return [t for rows in (30, 40, 90, 120, 60) for t in tasks_of(product(rows), target, OPTIONS, Observer())]


def trials(task: Task, target: Target, n: int = 150) -> list[Record]:
    """Configurations whose time falls with the rows of a tile."""
    rows = task.space.sample(np.random.default_rng(0), n)
    rows = rows[LoopFeatures(task, target).valid(rows)]
    return [
        Record.of(
            task, task.space.config(row), Measurement(1e-3 / (1 + int(str(task.space.config(row)["rows"])))),
            fingerprint=Fingerprint.of(target), threads=1, explorer="random", seed=0, trial=k,
        )
        for k, row in enumerate(rows)
    ]  # fmt: skip


def test_what_holds_for_one_task_is_known_of_another(tasks: list[Task], target: Target) -> None:
    one, *more, other = tasks
    stranger = replace(trials(one, target)[0], workload="0" * 16)
    stale = replace(trials(one, target)[0], config={"rows": 10**6})
    decided = replace(stranger, workload=one.key, explorer=DECIDED, result=Measurement(1e-12))
    records = [*(r for t in (one, *more) for r in trials(t, target)), stranger, stale, decided]
    known = learn_from(records, tasks, target, Objective.RANK, 0)
    features = LoopFeatures(other, target)
    rows = other.space.sample(np.random.default_rng(1), 400)
    rows = rows[features.valid(rows)]
    order = np.corrcoef(known.predict(features(rows)), other.space.column(rows, "rows"))[0, 1]
    assert order > 0.7
    assert isinstance(make_model("rank", 0, known), Transfer)
    with pytest.raises(UsageError, match="nothing to transfer"):
        learn_from([stranger], tasks, target, Objective.RANK, 0)


def test_only_boosted_trees_go_on_from_others() -> None:
    assert {n for n, c in COST_MODELS.items() if c.objective is not None} == {"rank", "regression"}
    assert transferable("regression") is Objective.REGRESSION
    with pytest.raises(UsageError, match="'ucb' cannot learn from other records"):
        transferable("ucb")
    with pytest.raises(UsageError, match="unknown cost model 'luck'"):
        transferable("luck")


@pytest.mark.parametrize("name", ["rank", "regression", "ei", "ucb"])
def test_every_model_reads_what_it_is_given(name: str, tasks: list[Task], target: Target) -> None:
    task = tasks[0]
    model, describe = make_model(name, 0, None), features_for(name, LoopFeatures(task, target))
    rows = np.array([task.space.row(r.config) for r in trials(task, target)])
    model.fit(describe(rows), np.linspace(0.1, 1, len(rows)))
    assert np.isfinite(model.predict(describe(rows))).all()


def test_the_recurrent_network_reads_loops(tasks: list[Task], target: Target) -> None:
    task = tasks[0]
    rows = np.array([task.space.row(r.config) for r in trials(task, target)])
    found = features_for("treegru", LoopFeatures(task, target))(rows)
    assert found.shape == (len(rows), LOOPS, 1 + PER_LOOP)
    assert set(np.unique(found[..., 0])) == {0.0, 1.0}
    assert (found[..., 0].sum(axis=1) > 3).all()
