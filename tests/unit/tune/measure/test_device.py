"""Groups of an accelerator are tasks like the host's, and are measured by the accelerator itself."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mlc.build import build_tuned
from mlc.errors import LowerError, UsageError
from mlc.ir.graph import Graph, Node, Value
from mlc.lower.knobs import Knobs
from mlc.records.best import Found, best_of
from mlc.records.lookup import Tuned
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import Fingerprint, Record
from mlc.records.shelf import Shelf
from mlc.rewrite.group import config_of, device_of
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target
from mlc.tune.drive import tune_graph
from mlc.tune.measure import MeasureOptions, Rule
from mlc.tune.measure.device import DeviceMeasurer, SplitMeasurer
from mlc.tune.session import TuneOptions
from mlc.tune.task import Task, tasks_of
from tests.devices import ToyAccelerator, ToyTarget
from tests.unit.rewrite.test_offload import Bytes

OPTIONS = CompileOptions("toy", "onnx", "")


def network() -> Graph:
    """Two equal products in one region, and a third that differs."""
    n = Bytes()
    x = n.x(1, 4, 4, 4, dtype="i8")
    return n(n.layer(n.layer(n.layer(x), 1), 2, residual=x))


@pytest.fixture
def target() -> Target:
    return cast(Target, ToyTarget(ToyAccelerator()))


def tasks(target: Target) -> list[Task]:
    return [t for t in tasks_of(network(), target, OPTIONS, Observer()) if t.constants is not None]


def test_groups_of_regions_are_tasks(target: Target) -> None:
    found = tasks(target)
    assert [t.weight for t in found] == [2, 1]
    assert all(" on toy" in t.text for t in found)
    assert {device_of(t.node) for t in found} == {"toy " + sha256(b'[["speed", "5"]]').hexdigest()[:8]}
    assert [k.name for t in found for k in t.space.knobs] == ["steps", "steps"]
    assert all(a.size > 1 for t in found for a in (t.constants or {}).values())


def test_accelerator_says_what_configurations_take(target: Target) -> None:
    found = tasks(target)
    told: list[int] = []
    measurer = DeviceMeasurer(found, ToyAccelerator())
    results = measurer.measure(0, [{"steps": n} for n in (1, 4, 8)], lambda k, m: told.append(k))
    assert [m.seconds for m in results] == [1e-3, 2.5e-4, None]
    assert results[2].failure is Failure.REFUSED
    assert "too many steps" in results[2].message
    assert told == [0, 1, 2]
    assert [m.seconds for m in measurer.compare(1, [{}])] == [1e-3]
    split = SplitMeasurer(found, None, measurer, 1)
    assert split.peak == 0
    assert [m.seconds for m in split.measure(1, [{"steps": 2}])] == [5e-4]


@pytest.mark.parametrize(
    ("error", "message"), [(LowerError("no such loop"), "no such loop"), (KeyError("a bug"), "KeyError: 'a bug'")]
)
def test_a_configuration_that_cannot_be_built(target: Target, error: Exception, message: str) -> None:
    class Fails(ToyAccelerator):
        def measure(self, group: Node, constants: object) -> float:
            raise error

    (result,) = DeviceMeasurer(tasks(target), Fails()).measure(0, [{}])
    assert (result.failure, result.message) == (Failure.BUILD_ERROR, message)


def test_tuning_finds_the_fastest_and_compilation_uses_it(target: Target, tmp_path: Path) -> None:
    records = tmp_path / "toy.jsonl"
    numbers = [k for k, t in enumerate(tasks_of(network(), target, OPTIONS, Observer())) if t.constants is not None]
    options = TuneOptions(trials=8, batch=4, seed=1)
    tuning = tune_graph(network(), target, OPTIONS, options, records=records, threads=1, only=numbers)
    assert tuning.whole is None
    assert [dict(s.decided or {}) for s in tuning.outcome.states] == [{"steps": 4}] * 2
    assert tuning.outcome.bound == pytest.approx((3e-3, 7.5e-4))

    accelerator = ToyAccelerator()
    again = cast(Target, ToyTarget(accelerator))
    lookup = Tuned(Shelf([records], Fingerprint.of(again), 1), again)
    build_tuned(network(), again, OPTIONS, Observer(), lookup)
    (region,) = accelerator.compiled
    assert [config_of(g) for g in region.nodes] == [{"steps": 4}] * 3
    assert [f.found for f in lookup.findings() if f.record is not None] == [Found.HIT] * 2


def test_an_accelerator_has_no_caches_to_empty(target: Target, tmp_path: Path) -> None:
    cold = MeasureOptions(rule=Rule(flush=True))
    with pytest.raises(UsageError, match=r"no caches to empty for .*, which the accelerator runs") as refusal:
        tune_graph(network(), target, OPTIONS, TuneOptions(), records=tmp_path / "r.jsonl", threads=1, measure=cold)
    assert "--tasks" in refusal.value.hint
    assert not (tmp_path / "r.jsonl").exists()


def test_constants_are_those_that_the_group_reads(target: Target) -> None:
    for task in tasks(target):
        values: dict[Value, np.ndarray] = dict(task.constants or {})
        assert set(values) <= set(task.node.inputs)
        assert [v in values for v in task.node.inputs] == list(task.constant)


def test_a_configuration_that_is_refused_is_left_out(target: Target) -> None:
    class Strict(ToyAccelerator):
        def ask(self, group: Node, constants: object, knobs: Knobs) -> None:
            knobs.require(knobs.discrete("steps", (1, 2), default=1) == 1, "only one step")

    strict = cast(Target, ToyTarget(Strict()))
    found = tasks(target)
    here = Fingerprint.of(strict)
    facts: dict[str, Any] = {"fingerprint": here, "threads": 1, "explorer": "random", "seed": 0}
    records = [Record.of(t, {"steps": 2}, Measurement(1e-3), trial=k, **facts) for k, t in enumerate(found)]
    _, lookup = build_tuned(network(), strict, OPTIONS, Observer(), Tuned(best_of(records, here), strict))
    assert {f.found for f in lookup.used()} == {Found.STALE}
    assert "only one step" in lookup.used()[0].reason
