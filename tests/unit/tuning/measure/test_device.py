"""Groups of an accelerator are tasks like the host's, and are measured on what the accelerator supplies."""

from __future__ import annotations

import mmap
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mlc.build import build_package
from mlc.errors import LowerError, UsageError
from mlc.ir.graph import Graph, Node, Value
from mlc.lower.knobs import Knobs
from mlc.records.best import Found, best_of
from mlc.records.lookup import Tuned
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import Fingerprint, Record
from mlc.records.shelf import Shelf
from mlc.rewrite.group import config_of, device_of
from mlc.runtime import device
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, Tunable
from mlc.targets.driver_bench import DriverBench
from mlc.tuning.drive import tune_graph
from mlc.tuning.measure import LocalMeasurer, MeasureOptions, Rule
from mlc.tuning.measure.builder import Builder
from mlc.tuning.measure.candidate import Candidate, Packed
from mlc.tuning.measure.cases import Reference, case_bytes, cases_in, draw_inputs
from mlc.tuning.measure.split import SplitMeasurer
from mlc.tuning.options import TuneOptions
from mlc.tuning.task import Task, tasks_of
from tests import devices
from tests.devices import ToyAccelerator, ToyPoint, ToyTarget
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
    assert all(t.document["device"].startswith("toy ") for t in found)
    assert {device_of(t.node) for t in found} == {"toy " + sha256(b'[["speed", "5"]]').hexdigest()[:8]}
    assert [k.name for t in found for k in t.space.knobs] == ["steps", "steps"]
    assert all(a.size > 1 for t in found for a in (t.constants or {}).values())


def measurer_of(target: Target, found: list[Task], **options: Any) -> LocalMeasurer:
    assert isinstance(target.accelerator, Tunable)
    return LocalMeasurer(
        found,
        target,
        target.accelerator.bench(),
        threads=1,
        compile_options=OPTIONS,
        options=MeasureOptions(**options),
        rng=np.random.default_rng(0),
    )


def test_a_bench_says_what_configurations_take(target: Target) -> None:
    found = tasks(target)
    told: list[int] = []
    with measurer_of(target, found) as measurer:
        results = measurer.measure(0, [{"steps": n} for n in (1, 4, 8)], lambda k, m: told.append(k))
        assert [m.seconds for m in results] == pytest.approx([1e-3, 2.5e-4, None])
        assert results[2].failure is Failure.REFUSED
        assert "too many steps" in results[2].message
        assert sorted(told) == [0, 1, 2]
        assert [m.seconds for m in measurer.compare(1, [{}, {"steps": 4}])] == pytest.approx([1e-3, 2.5e-4])
        split = SplitMeasurer([(measurer, 1), (measurer, 0)], 1)
        assert split.peak == 0
        assert [m.seconds for m in split.measure(0, [{"steps": 2}])] == pytest.approx([5e-4])


def test_wrong_results_of_a_device_are_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "WRONG_WITH_TWO", True)
    with measurer_of(target, tasks(target)) as measurer:
        right, wrong = measurer.measure(0, [{"steps": 1}, {"steps": 2}])
    assert right.failure is None
    assert wrong.failure is Failure.WRONG_OUTPUT


@pytest.mark.parametrize(
    ("error", "message"), [(LowerError("no such loop"), "no such loop"), (KeyError("a bug"), "KeyError: 'a bug'")]
)
def test_a_configuration_that_cannot_be_built(error: Exception, message: str) -> None:
    class Fails(ToyAccelerator):
        def kernel(self, group: Node, *more: Any) -> Node:
            if config_of(group).get("steps") == 4:
                raise error
            return super().kernel(group, *more)

    target = cast(Target, ToyTarget(Fails()))
    with measurer_of(target, tasks(target)) as measurer:
        (result,) = measurer.measure(0, [{"steps": 4}])
    assert (result.failure, result.message) == (Failure.BUILD_ERROR, message)


def test_a_driver_is_a_bench(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "entry_points", lambda group: [ToyPoint()])
    accelerator = ToyAccelerator()
    task = tasks(cast(Target, ToyTarget(accelerator)))[0]
    program = Builder(cast(Target, ToyTarget(accelerator)), OPTIONS).build(task, {"steps": 4})
    stand = DriverBench(accelerator, exact=True).open(1)
    loaded = Candidate(stand, program, task.node, task.site.constant)
    memory = mmap.mmap(-1, case_bytes(task, 2))
    cases = cases_in(memory, task, 2)
    draw_inputs(task, cases, [1, 2])
    assert all(
        (cases[1].inputs[k] == (task.constants or {})[v]).all()
        for k, v in enumerate(task.node.inputs)
        if task.site.constant[k]
    )
    packed = Packed(cases)
    for number, case in enumerate(cases):
        case.results[0][...] = Reference(task.node).results(case.inputs)[0]
        loaded.run(packed, number)
        loaded.check_results(case)
        assert loaded.seconds == 0.2
    assert loaded.sample(3) == 600_000_000
    assert stand.peak() == 0
    loaded.close()


def test_tuning_finds_the_fastest_and_compilation_uses_it(target: Target, tmp_path: Path) -> None:
    records = tmp_path / "toy.jsonl"
    numbers = [k for k, t in enumerate(tasks_of(network(), target, OPTIONS, Observer())) if t.constants is not None]
    options = TuneOptions(trials=8, batch=4, seed=1)
    tuning = tune_graph(network(), target, OPTIONS, options, records=records, threads=1, only=numbers)
    assert tuning.whole is not None
    assert (tuning.whole.untuned, tuning.whole.tuned) == pytest.approx((3e-3, 7.5e-4))
    assert [dict(s.decided or {}) for s in tuning.outcome.states] == [{"steps": 4}] * 2
    assert tuning.outcome.bound == pytest.approx((3e-3, 7.5e-4))

    accelerator = ToyAccelerator()
    again = cast(Target, ToyTarget(accelerator))
    lookup = Tuned(Shelf([records], Fingerprint.of(again), 1), again)
    build_package(network(), again, OPTIONS, Observer(), lookup)
    (region,) = accelerator.compiled
    assert [config_of(g) for g in region.graph.nodes] == [{"steps": 4}] * 3
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
        assert [v in values for v in task.node.inputs] == list(task.site.constant)


def test_a_configuration_that_is_refused_is_left_out(target: Target) -> None:
    class Strict(ToyAccelerator):
        def schedule(self, group: Node, constants: object, knobs: Knobs) -> None:
            knobs.require(knobs.discrete("steps", (1, 2), default=1) == 1, "only one step")

    strict = cast(Target, ToyTarget(Strict()))
    found = tasks(target)
    here = Fingerprint.of(strict)
    facts: dict[str, Any] = {"fingerprint": here, "threads": 1, "explorer": "random", "seed": 0}
    records = [Record.of(t, {"steps": 2}, Measurement(1e-3), trial=k, **facts) for k, t in enumerate(found)]
    lookup = Tuned(best_of(records, here), strict)
    build_package(network(), strict, OPTIONS, Observer(), lookup)
    assert {f.found for f in lookup.used()} == {Found.STALE}
    assert "only one step" in lookup.used()[0].reason
