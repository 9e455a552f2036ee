"""What records have for the kernels of a model, and that only what still fits is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlc.build import optimise
from mlc.errors import ScheduleError, UsageError
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.rewrite.group import config_of
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tune.base import Measurement
from mlc.tune.lookup import Tuned, require_all
from mlc.tune.records import Fingerprint, Found, Record
from mlc.tune.task import Task, candidate, tasks_of

OPTIONS = CompileOptions("product", "onnx", "")


def product(rows: int = 30) -> Graph:
    g = Builder("product")
    a = g.input("a", TensorType((rows, 64), f32))
    w = g.constant(np.ones((64, 48), np.float32), "w")
    (p,) = g.add(get("matmul"), [a, w], names=["p"])
    return g.finish([p])


@pytest.fixture(scope="module")
def target() -> Target:
    return get_target("x86 -mcpu=haswell")


@pytest.fixture(scope="module")
def task(target: Target) -> Task:
    (found,) = tasks_of(product(), target, OPTIONS, Observer())
    return found


def other(task: Task, target: Target) -> dict[str, Any]:
    """A configuration next to the default one that is not refused."""
    for row in task.space.neighbours(task.space.row({})):
        config = task.space.config(row)
        try:
            target.schedule(candidate(task, target, config), Knobs(config))
        except ScheduleError:
            continue
        return config
    raise AssertionError("none")


def record(task: Task, target: Target, config: dict[str, Any]) -> Record:
    here = Fingerprint.of(target)
    return Record.of(task, config, Measurement(1e-3), fingerprint=here, threads=1, explorer="random", seed=0, trial=0)


def look_up(records: list[Record], target: Target, rows: int = 30) -> tuple[Tuned, dict[str, Any]]:
    """What was found, and the configuration of the only group."""
    tuned = Tuned(records, target)
    (group,) = optimise(product(rows), target, OPTIONS, Observer(), tuned.configure).nodes
    return tuned, config_of(group)


def test_a_hit_is_used(task: Task, target: Target) -> None:
    tuned, config = look_up([record(task, target, other(task, target))], target)
    (finding,) = tuned.findings()
    assert (finding.found, finding.workload) == (Found.HIT, task.key)
    assert config == other(task, target)
    require_all(tuned.findings())


@pytest.mark.parametrize("change", ["nothing", "shape", "knob", "value", "cpu"])
def test_what_does_not_fit_is_not_used(task: Task, target: Target, change: str) -> None:
    good = record(task, target, other(task, target))
    records = {
        "nothing": [],
        "shape": [good],
        "knob": [replace(good, config={**good.config, "gone": 1})],
        "value": [replace(good, config={**good.config, "order": "none such"})],
        "cpu": [replace(good, fingerprint=replace(good.fingerprint, lanes=16))],
    }[change]
    tuned, config = look_up(records, target, rows=31 if change == "shape" else 30)
    (finding,) = tuned.findings()
    assert finding.found is (Found.NEAR if change == "shape" else Found.MISS)
    assert config == {}
    with pytest.raises(UsageError, match="1 of 1 kernels have no tuned configuration"):
        require_all(tuned.findings())
