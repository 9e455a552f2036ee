"""Configurations of a region's groups are chosen by what the whole region takes."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Graph
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tuning.joint import Neighbours
from mlc.tuning.models import prior
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.options import TuneOptions
from mlc.tuning.regions import best_together
from mlc.tuning.task import Task, tasks_of
from mlc.tuning.transfer import cost_models
from mlc.vdla.driver import open_device
from tests.unit.rewrite.helpers import Net

TARGET = get_target("vdla")
OPTIONS = CompileOptions("layers", "", "0" * 64)


class Point:
    """The driver's entry point, whatever was installed when."""

    name, value = "vdla", "mlc.vdla.driver:open_device"

    def load(self) -> object:
        return open_device


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [Point()] if group == "mlc.devices" else [])


@pytest.fixture(scope="module")
def model() -> tuple[Graph, list[Task]]:
    """Two convolutions of bytes, one after the other."""
    n, rng = Net(), np.random.default_rng(0)
    x = n.x(1, 32, 16, 16, dtype="i8")
    for _ in range(2):
        w = n.c(rng.integers(-127, 128, (32, 32, 3, 3)), np.int8)
        sums = n.relu(n.conv(x, w, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1)))
        x = n.cast(n.clip(n.round_shift(sums, n.c([12], np.int32)), lo=-128, hi=127), to="i8")
    graph = n(x)
    tasks = [t for t in tasks_of(graph, TARGET, OPTIONS, Observer()) if t.constants is not None]
    assert tasks
    return graph, tasks


SLOW = {"rows": 1, "columns": 1, "blocks": 1, "inputs": 1, "head": "none", "buffers": "single"}


def test_what_is_slower_in_the_region_is_left_out(model: tuple[Graph, list[Task]]) -> None:
    graph, tasks = model
    slow = {t.key: [{**t.space.default, **SLOW}] for t in tasks}
    found = best_together(graph, TARGET, OPTIONS, TARGET.accelerator.bench().open(1), {}, slow)
    assert found.chosen == {}
    assert found.tuned == found.untuned
    assert found.error == 0


def test_what_is_faster_in_the_region_stays(model: tuple[Graph, list[Task]]) -> None:
    graph, tasks = model
    task = tasks[0]
    stand = TARGET.accelerator.bench().open(1)
    likely = TARGET.accelerator.likely(task.node, task.constants)[:3]
    found = best_together(graph, TARGET, OPTIONS, stand, {}, {task.key: [{**task.space.default, **SLOW}, *likely]})
    assert found.tuned <= found.untuned
    assert found.error == 0
    assert set(found.chosen) <= {task.key}


def test_what_is_known_of_loops_is_not_given_to_tasks_that_none_describe(
    model: tuple[Graph, list[Task]], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, of = GradientBoosting.load(prior.file_of(get_target("x86 -mcpu=znver5")))
    assert of
    monkeypatch.setattr("mlc.tuning.transfer.prior_of", lambda target: known)
    made = cost_models(TuneOptions(), TARGET, None)
    assert made is not None
    learns, rng = made(model[1][0]), np.random.default_rng(0)
    features = rng.random((40, 24), np.float32)  # of knobs alone
    learns.fit(features, features[:, 0].astype(np.float64))
    assert np.corrcoef(learns.predict(features), features[:, 0])[0, 1] > 0.8


def test_neighbours_are_tried_until_the_time_is_up(model: tuple[Graph, list[Task]]) -> None:
    graph, tasks = model
    stand, seen = TARGET.accelerator.bench().open(1), []
    near = {t.key: Neighbours(t, TARGET) for t in tasks}
    best_together(graph, TARGET, OPTIONS, stand, near, {}, longest=1e-9, goes_on=seen.append)
    assert seen == [1.0] * len(tasks)
