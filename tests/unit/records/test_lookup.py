"""What records have for the kernels of a model, and that only what still fits is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlc import build, pipeline
from mlc.build import build_package
from mlc.errors import LowerError, ScheduleError, UsageError
from mlc.ir.graph import Builder, Graph, Node
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.records.best import Best, Found, best_of
from mlc.records.lookup import Tuned, require_all
from mlc.records.measurement import Measurement
from mlc.records.record import ALGORITHM, Fingerprint, Record
from mlc.rewrite.group import config_of
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.algorithms import choices_of
from mlc.tuning.task import Task, candidate, tasks_of

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


def look_up(records: list[Record], target: Target, rows: int = 30) -> tuple[Tuned, bytes]:
    """What was found, and the text of the only kernel."""
    tuned = Tuned(best_of(records, Fingerprint.of(target)), target)
    built = build_package(product(rows), target, OPTIONS, Observer(), tuned)
    return tuned, built.members["src/kernels.txt"]


def test_a_hit_is_used(task: Task, target: Target) -> None:
    tuned, kernel = look_up([record(task, target, other(task, target))], target)
    (finding,) = tuned.findings()
    assert (finding.found, finding.workload) == (Found.HIT, task.key)
    assert kernel != look_up([], target)[1]
    require_all(tuned.findings())


@pytest.mark.parametrize("change", ["nothing", "shape", "knob", "value", "cpu"])
def test_what_does_not_fit_is_not_used(task: Task, target: Target, change: str) -> None:
    good = record(task, target, other(task, target))
    rows = 31 if change == "shape" else 30
    records, expected, reason = {
        "nothing": ([], Found.MISS, ""),
        "shape": ([good], Found.NEAR, ""),
        "knob": ([replace(good, config={**good.config, "gone": 1})], Found.STALE, "there is no knob gone"),
        "value": ([replace(good, config={**good.config, "rows": 999})], Found.STALE, "knob rows has no value 999"),
        "cpu": ([replace(good, fingerprint=replace(good.fingerprint, lanes=16))], Found.MISS, ""),
    }[change]
    tuned, kernel = look_up(records, target, rows)
    (finding,) = tuned.findings()
    assert finding.found is expected
    assert reason in finding.reason
    assert kernel == look_up([], target, rows)[1]
    with pytest.raises(UsageError, match="1 of 1 kernels have no tuned configuration"):
        require_all(tuned.findings())


@pytest.mark.parametrize("error", [ScheduleError, LowerError])
def test_what_only_the_lowering_refuses_is_compiled_without(
    task: Task, target: Target, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = target.kernel
    made: list[bool] = []

    def refuse(node: Node, *more: Any) -> Any:
        made.append(bool(config_of(node)))
        if config_of(node):
            raise error("no such loop")
        return make(node, *more)

    monkeypatch.setattr(target, "kernel", refuse)
    tuned, kernel = look_up([record(task, target, other(task, target))], target)
    (finding,) = tuned.used()
    assert (finding.found, finding.reason, finding.sources) == (Found.STALE, "no such loop", ())
    assert made == [True, False]
    monkeypatch.undo()
    assert kernel == look_up([], target)[1]


def test_a_refused_record_costs_its_group_the_default_and_no_other_kernel_is_made_again(
    task: Task, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = Builder("products")
    x, w, v = (g.input(n, TensorType(s, f32)) for n, s in (("x", (30, 64)), ("w", (64, 48)), ("v", (48, 40))))
    (y,) = g.add(get("matmul"), [x, w], names=["y"])
    (z,) = g.add(get("matmul"), [y, v], names=["z"])
    graph = g.finish([z])
    first, second = tasks_of(graph, target, OPTIONS, Observer())
    records = [record(first, target, other(first, target)), record(second, target, other(second, target))]
    make, lay_out = target.kernel, pipeline.layouts.assign_layouts
    made: list[tuple[str, bool]] = []
    rounds: list[object] = []

    def refuse(node: Node, *more: Any) -> Any:
        made.append((node.outputs[0].name, bool(config_of(node))))
        if made[-1] == ("y", True):
            raise ScheduleError("no such loop")
        return make(node, *more)

    monkeypatch.setattr(target, "kernel", refuse)
    monkeypatch.setattr(pipeline.layouts, "assign_layouts", lambda *a: rounds.append(a) or lay_out(*a))
    monkeypatch.setattr(build, "optimise", lambda *a, f=build.optimise: rounds.append("passes") or f(*a))
    tuned = Tuned(best_of(records, Fingerprint.of(target)), target)
    built = build_package(graph, target, OPTIONS, Observer(), tuned)
    assert made == [("y", True), ("z", True), ("y", False)]
    assert [r == "passes" for r in rounds] == [True, False, False]
    assert [f.found for f in tuned.findings()] == [Found.STALE, Found.HIT]
    assert [s.kernel for s in built.manifest.steps] == ["k0_matmul", "k1_matmul"]


def test_what_is_required_is_complained_of_before_any_kernel_is_made(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "kernel", None)
    tuned = Tuned(Best({}, {}), target)
    with pytest.raises(UsageError, match="1 of 1 kernels have no tuned configuration: matmul_48"):
        build_package(product(), target, OPTIONS, Observer(), tuned, lambda: require_all(tuned.findings()))


def convolution() -> Graph:
    g = Builder("convolution")
    x = g.input("x", TensorType((1, 32, 14, 14), f32))
    w = g.constant(np.ones((32, 32, 3, 3), np.float32), "w")
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1}
    (y,) = g.add(get("conv"), [x, w], attrs, names=["y"])
    return g.finish([y])


@pytest.mark.sweep(4)
@pytest.mark.parametrize("algorithm", [*Algorithm])
def test_records_choose_between_the_algorithms_that_there_are(target: Target, algorithm: Algorithm) -> None:
    (choice,) = choices_of(convolution(), target, OPTIONS)
    known = {
        Algorithm.DIRECT: "k0_conv",
        Algorithm.WINOGRAD_2: "k0_conv_winograd",
        Algorithm.WINOGRAD_4: "k0_conv_winograd",
    }
    assert set(choice.known) == set(known)
    chosen = record(choice, target, {ALGORITHM: algorithm.value})  # type: ignore[arg-type]
    tuned = Tuned(best_of([chosen], Fingerprint.of(target)), target)
    built = build_package(convolution(), target, OPTIONS, Observer(), tuned)
    default = build_package(convolution(), target, OPTIONS, Observer())
    same = built.members["src/kernels.txt"] == default.members["src/kernels.txt"]
    assert same == (algorithm is choice.known[0] or algorithm not in choice.known)
    if algorithm in choice.known:
        kernel = "k0_conv_winograd" if algorithm.tile else "k0_conv"
        assert built.manifest.steps[0].kernel == kernel
    assert not tuned.used()


def test_a_restriction_holds_whatever_records_say(target: Target) -> None:
    (choice,) = choices_of(convolution(), target, OPTIONS)
    chosen = record(choice, target, {ALGORITHM: "winograd2"})  # type: ignore[arg-type]
    tuned = Tuned(best_of([chosen], Fingerprint.of(target)), target)
    direct = replace(OPTIONS, disabled_passes=("winograd",))
    built = build_package(convolution(), target, direct, Observer(), tuned)
    assert built.manifest.steps[0].kernel == "k0_conv"
    assert choices_of(convolution(), target, direct) == []
