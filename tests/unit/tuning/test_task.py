"""Tasks from the documents of their workloads are those of the model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import DocumentError, WorkloadError
from mlc.ir.graph import Graph
from mlc.ir.site import Site
from mlc.ops import get
from mlc.records.files import read_records
from mlc.records.margins import margins_from_json
from mlc.records.places import shipped_file
from mlc.rewrite.group import make_group
from mlc.rewrite.workload import workload_document
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.features import LoopFeatures
from mlc.tuning.task import Task, task_of, tasks_of
from tests.unit.rewrite.helpers import Net

OPTIONS = CompileOptions("net", "onnx", "")


def net() -> Graph:
    """Convolutions of every kind, pooling and products, with literals and margins between them."""
    n = Net()

    def conv(x, *shape: int, stride: int = 1, groups: int = 1):  # type: ignore[no-untyped-def]
        pads = (shape[-1] // 2,) * 4
        return n.conv(x, n.w(*shape), strides=(stride,) * 2, pads=pads, dilations=(1, 1), groups=groups)

    x = n.clip(n.add(conv(n.x(1, 3, 32, 32), 16, 3, 3, 3), n.w(16, 1, 1)), lo=0.0, hi=6.0)
    x = n.clip(conv(x, 16, 1, 3, 3, stride=2, groups=16), lo=0.0, hi=6.0)
    y = n.relu(conv(n.mul(x, n.c(0.3)), 32, 16, 1, 1))
    x = n.relu(conv(y, 32, 32, 3, 3))
    x = n.relu(n.add(conv(x, 32, 32, 3, 3), n.mul(y, n.c([0.7]))))
    x = n.max_pool(x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), output_shape=(8, 8))
    x = n.matmul(n.reshape(x, shape=(32, 64)), n.w(64, 48))
    return n(n.softmax(n.mul(n.gelu(x, approximate="none"), n.c(0.1)), axis=-1))


@pytest.fixture(scope="module", params=["haswell", "skylake-avx512"])
def target(request: pytest.FixtureRequest) -> Target:
    return get_target(f"x86 -mcpu={request.param}")


@pytest.fixture(scope="module")
def tasks(target: Target) -> list[Task]:
    return tasks_of(net(), target, OPTIONS, Observer())


def test_a_document_and_its_margins_give_the_same_task(tasks: list[Task], target: Target) -> None:
    assert len(tasks) >= 7
    assert any(t.document["literals"] for t in tasks)
    assert any(t.margins for t in tasks)
    for task in tasks:
        found = task_of(json.loads(json.dumps(task.document)), task.margins, target)
        assert (found.key, found.document, found.name) == (task.key, task.document, task.name)
        assert (found.flops, found.margins) == (task.flops, task.margins)
        assert [(k.name, k.values) for k in found.space.knobs] == [(k.name, k.values) for k in task.space.knobs]
        assert found.space.default == task.space.default
        rows = task.space.sample(np.random.default_rng(0), 12)
        ours, theirs = LoopFeatures(found, target), LoopFeatures(task, target)
        np.testing.assert_array_equal(ours.valid(rows), theirs.valid(rows))
        np.testing.assert_array_equal(ours(rows), theirs(rows))


@pytest.mark.parametrize("name", ["opencl -device=pocl", "opencl -device=mali", "cuda -arch=sm_80"])
def test_a_document_of_a_device_gives_the_same_task(name: str) -> None:
    """Learnt from without its model; that of another device is not."""
    device = get_target(name)
    tasks = tasks_of(net(), device, OPTIONS, Observer())
    assert len(tasks) >= 7
    for task in tasks:
        found = task_of(json.loads(json.dumps(task.document)), task.margins, device)
        assert (found.key, found.document, found.flops) == (task.key, task.document, task.flops)
        assert [(k.name, k.values) for k in found.space.knobs] == [(k.name, k.values) for k in task.space.knobs]
        rows = task.space.sample(np.random.default_rng(0), 5)
        np.testing.assert_array_equal(LoopFeatures(found, device)(rows), LoopFeatures(task, device)(rows))
    for other, message in (
        ("x86", "an operation of '.*', which the target does not have"),
        ("vdla", "an operation of '.*', which the target does not have"),
    ):
        with pytest.raises(WorkloadError, match=message):
            task_of(tasks[0].document, (), get_target(other))
    planned = {**tasks[0].document, "device": "vdla 01234567"}
    with pytest.raises(WorkloadError, match="whose choices depend on its constants"):
        task_of(planned, (), get_target("vdla"))


def test_a_record_may_have_no_margins(tasks: list[Task], target: Target) -> None:
    for task in tasks:
        found = task_of(task.document, (), target)
        assert [k.name for k in found.space.knobs] == [k.name for k in task.space.knobs]


def test_shipped_records_are_understood() -> None:
    target = get_target("x86 -mcpu=znver3")
    records = {r.workload: r for r in read_records([shipped_file(target)]).records}
    assert len(records) > 100
    for r in list(records.values())[::4]:
        task = task_of(r.document, r.margins, target)
        assert (task.key, task.name, task.flops) == (r.workload, r.task, r.flops)


def test_what_does_not_fit_is_refused(tasks: list[Task], target: Target) -> None:
    task = next(t for t in tasks if t.margins)
    with pytest.raises(WorkloadError, match="margins of 1 values, a workload has"):
        task_of(task.document, task.margins[:1], target)
    wrong = tuple(((1, 1),) for _ in task.margins)
    with pytest.raises(WorkloadError, match="margins of 1 dimensions around f32"):
        task_of(task.document, wrong, target)
    n = Net()
    graph = n(n.relu(n.x(4)))
    node = make_group(list(graph.nodes), {}, 0)
    nothing = workload_document(node, Site([v.type for v in node.inputs], [False]))
    with pytest.raises(WorkloadError, match="a workload that has nothing to choose"):
        task_of(nothing, (), target)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "margins: expected a list"),
        ([0] * 5000, "margins: expected a list"),
        ([0], r"margins\[0\]: expected a list"),
        ([[[1]]], r"margins\[0\]\[0\]: expected two whole numbers"),
        ([[[1, -1]]], r"margins\[0\]\[0\]\[1\]: expected a whole number"),
        ([[[1, True]]], r"margins\[0\]\[0\]\[1\]: expected a whole number"),
        ([[[1, 1 << 40]]], r"margins\[0\]\[0\]\[1\]: expected a whole number"),
    ],
)
def test_margins_are_checked(value: object, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        margins_from_json(value, "margins")


def test_what_a_recurrence_repeats_weighs_as_often_as_it_runs(target: Target) -> None:
    n = Net()
    state, row, w = n.x(1, 64), n.x(1, 64), n.x(64, 64)
    new = n.tanh(n.add(n.matmul(state, w), row))
    body = n(new, new)
    m = Net()
    start, rows, weights = m.x(1, 64), m.x(100, 1, 64), m.w(64, 64)
    attrs = {"body": body, "rounds": 100, "carried": 1, "scanned": 1, "backwards": (False, False)}
    last, kept = m.builder.add(get("scan"), [start, rows, weights], attrs)
    (task,) = tasks_of(m(last, kept), target, OPTIONS, Observer())
    assert (task.weight, task.name) == (100, "matmul_add_tanh_64")


def test_small_numbers_make_workloads_and_peaks_of_their_own(target: Target) -> None:
    n = Net()
    graph = n(n.matmul(n.x(4, 64), n.w(64, 64)))
    plain, stored, both = (
        tasks_of(graph, target, replace(OPTIONS, **options), Observer())[0]
        for options in ({}, {"weights": "int8"}, {"bf16": True})
    )
    assert len({plain.key, stored.key, both.key}) == 3
    assert (plain.terms, stored.terms, both.terms) == (1, 1, 2)
    integers = n.matmul(n.x(4, 64, dtype="u8", name="u"), n.w(64, 64, dtype="int8"))
    assert tasks_of(n(integers), target, OPTIONS, Observer())[0].terms == 4
