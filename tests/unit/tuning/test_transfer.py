"""Learning from the records of other tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.records.files import read_records, write_records
from mlc.records.measurement import Measurement
from mlc.records.record import DECIDED, Fingerprint, Record
from mlc.rewrite.workload import workload_key
from mlc.settings import Observer
from mlc.targets.base import Target, get_target
from mlc.tuning import transfer
from mlc.tuning.base import CostModel
from mlc.tuning.features import LoopFeatures
from mlc.tuning.features.context import LOOPS, NODES, PER_LOOP
from mlc.tuning.features.nodes import NODE, PARENT, PRESENT
from mlc.tuning.models.choice import COST_MODELS, Choice, cost_model
from mlc.tuning.models.transfer import Transfer
from mlc.tuning.models.tree_gru import TreeGru
from mlc.tuning.task import Task, tasks_of
from mlc.tuning.transfer import learn_from
from tests.unit.records.test_lookup import OPTIONS, product
from tests.unit.tuning.models.order import pairwise_accuracy

RANK = cost_model("rank")


@pytest.fixture(scope="module")
def target() -> Target:
    return get_target("x86 -mcpu=haswell")


@pytest.fixture(scope="module")
def tasks(target: Target) -> list[Task]:
    return [t for rows in (30, 40, 90, 120, 60) for t in tasks_of(product(rows), target, OPTIONS, Observer())]


def trials(task: Task, target: Target, n: int = 150) -> list[Record]:
    """Configurations whose time falls with the rows of a tile."""
    rows = drawn(task, target, 0, n)
    return [
        Record.of(
            task, task.space.config(row), Measurement(1e-3 / (1 + int(str(task.space.config(row)["rows"])))),
            fingerprint=Fingerprint.of(target), threads=1, explorer="random", seed=0, trial=k,
        )
        for k, row in enumerate(rows)
    ]  # fmt: skip


def drawn(task: Task, target: Target, seed: int, n: int) -> np.ndarray:
    """Those of some configurations that work, which differ in what a tile is and not in how tiles are grouped."""
    rows = task.space.sample(np.random.default_rng(seed), n)
    for at, knob in enumerate(task.space.knobs):
        if knob.name in ("panels", "tiles", "depth", "walk"):
            rows[:, at] = task.space.row({})[at]
    return rows[LoopFeatures(task, target).valid(rows)]


def order_of_rows(known: CostModel, task: Task, target: Target, n: int = 400) -> float:
    """How well a model's scores follow the rows of a tile."""
    features = LoopFeatures(task, target)
    rows = drawn(task, target, 1, n)
    return float(np.corrcoef(known.predict(features(rows)), task.space.column(rows, "rows"))[0, 1])


def test_records_of_unknown_models_teach(tasks: list[Task], target: Target, tmp_path: Path) -> None:
    *others, task = tasks
    file = tmp_path / "others.jsonl"
    write_records(file, [r for t in others for r in trials(t, target)])
    known = learn_from(read_records([file]).records, [], target, RANK, 0)
    assert order_of_rows(known, task, target) > 0.7
    assert isinstance(RANK.make(0, known), Transfer)


def test_records_of_a_device_teach_without_their_models(tmp_path: Path) -> None:
    device = get_target("opencl -device=pocl")
    *others, task = [t for rows in (30, 40, 90, 60) for t in tasks_of(product(rows), device, OPTIONS, Observer())]
    file = tmp_path / "others.jsonl"
    write_records(file, [r for t in others for r in trials(t, device, 50)])
    known = learn_from(read_records([file]).records, [], device, RANK, 0)
    assert order_of_rows(known, task, device, 100) > 0.7


def test_what_is_of_no_use_is_left_out(tasks: list[Task], target: Target, caplog: pytest.LogCaptureFixture) -> None:
    *others, task = tasks
    first = trials(others[0], target)[0]
    stale = replace(first, config={"rows": 10**6})
    decided = replace(first, explorer=DECIDED, result=Measurement(1e-12))
    foreign = replace(first, fingerprint=Fingerprint("far", (), 16), result=Measurement(1e-12))
    forged = replace(first, workload="0" * 16)
    kernel, spaced = {"op": "a kernel"}, {**first.document, "more": 1}
    broken = replace(first, document=kernel, workload=workload_key(kernel))
    elsewhere = replace(first, document=spaced, workload=workload_key(spaced))
    useless = [stale, decided, foreign, forged, broken, elsewhere]
    known = learn_from([*(r for t in others for r in trials(t, target)), *useless], [], target, RANK, 0)
    assert order_of_rows(known, task, target) > 0.7
    assert "3 of 7 workloads of the records are not learnt from, most often: " in caplog.text
    with pytest.raises(UsageError, match="nothing to transfer"):
        learn_from(useless, [], target, RANK, 0)
    caplog.clear()
    with pytest.raises(UsageError, match="nothing to transfer"):
        learn_from([forged], [], target, RANK, 0)
    assert "1 of 1 workloads" in caplog.text
    assert "a document that is not that of its workload" in caplog.text


def test_a_file_of_many_workloads_is_cut(
    tasks: list[Task], target: Target, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MAX_TASKS", 2)
    learn_from([r for t in tasks for r in trials(t, target, 20)], [], target, RANK, 0)
    assert "3 of 5 workloads of the records are not learnt from, most often: more than 2 workloads" in caplog.text


def test_tasks_at_hand_need_no_document(tasks: list[Task], target: Target) -> None:
    *others, task = tasks
    records = [replace(r, document={"op": "a user's own"}) for t in others for r in trials(t, target)]
    assert order_of_rows(learn_from(records, others, target, RANK, 0), task, target) > 0.7


def test_times_of_one_kind_are_learnt_from_together(
    tasks: list[Task], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(transfer, "learn_globally", lambda learnt, _model: seen.extend(len(s) for _, s in learnt))
    warm = trials(tasks[0], target)
    cold = [replace(r, flushed=True) for r in warm[:4]]
    learn_from([*warm, *cold], tasks, target, RANK, 0)
    assert seen == [len(warm), 4]


def test_an_unknown_cost_model_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown cost model 'luck'") as refusal:
        cost_model("luck")
    assert "treegru-vanilla" in refusal.value.hint


def fewer_epochs(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    if choice.tree:
        pytest.importorskip("torch")
        monkeypatch.setattr(
            TreeGru.__init__, "__kwdefaults__", {**(TreeGru.__init__.__kwdefaults__ or {}), "epochs": 16}
        )


@pytest.mark.parametrize("name", COST_MODELS)
def test_every_model_goes_on_from_others(
    name: str, tasks: list[Task], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows which configurations are fast before anything was measured, and learns from what is."""
    choice = COST_MODELS[name]
    fewer_epochs(choice, monkeypatch)
    *others, task = tasks
    n = 900 if name == "treegru-regression" else 300
    known = learn_from([r for t in others for r in trials(t, target, n)], tasks, target, choice, 0)
    model, features = choice.make(0, known), LoopFeatures(task, target, tree=choice.tree)
    rows = drawn(task, target, 1, 600)
    described, fast = features(rows), task.space.column(rows, "rows").astype(float)
    assert model.least == 0
    # speeds themselves, learnt from contexts in few epochs, carry over least
    assert pairwise_accuracy(model.predict(described), fast) > (0.55 if name == "treegru-regression" else 0.6)
    model.fit(described[:40], fast[:40] / fast.max())
    assert pairwise_accuracy(model.predict(described[40:]), fast[40:]) > 0.6


@pytest.mark.parametrize("name", COST_MODELS)
def test_every_model_reads_what_it_is_given(
    name: str, tasks: list[Task], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, choice = tasks[0], COST_MODELS[name]
    fewer_epochs(choice, monkeypatch)
    model, describe = choice.make(0), LoopFeatures(task, target, tree=choice.tree)
    rows = np.array([task.space.row(r.config) for r in trials(task, target)])
    model.fit(describe(rows), np.linspace(0.1, 1, len(rows)))
    assert np.isfinite(model.predict(describe(rows))).all()


def test_a_tree_has_the_loops_of_all_stages(tasks: list[Task], target: Target) -> None:
    task = tasks[0]
    rows = np.array([task.space.row(r.config) for r in trials(task, target)])
    found = LoopFeatures(task, target, tree=True)(rows)
    assert found.shape == (len(rows), NODES, NODE + PER_LOOP)
    there, parents = found[..., PRESENT] > 0, found[..., PARENT].astype(int) - 1
    assert (there[:, :LOOPS].sum(axis=1) > 3).all()
    assert (there[:, LOOPS:].sum(axis=1) > 0).all()  # what is written has loops of its own
    assert (parents < np.arange(NODES)).all()
    for k in range(len(rows)):
        inner = np.flatnonzero(there[k] & (parents[k] >= 0))
        assert there[k, parents[k, inner]].all()
    chain = np.arange(LOOPS - 1)
    assert ((parents[:, 1:LOOPS] == chain) | ~there[:, : LOOPS - 1] | ~there[:, 1:LOOPS]).all()
