"""Tasks from the texts of their workloads are those of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import WorkloadError
from mlc.ir.graph import Graph
from mlc.records.beside import Beside
from mlc.records.files import read_records
from mlc.records.places import family_file
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


def test_a_text_and_what_is_beside_it_give_the_same_task(tasks: list[Task], target: Target) -> None:
    assert len(tasks) >= 7
    assert any(t.beside.literals for t in tasks)
    assert any(t.beside.margins for t in tasks)
    for task in tasks:
        found = task_of(task.text, task.beside, target)
        assert (found.key, found.text, found.name, found.flops) == (task.key, task.text, task.name, task.flops)
        assert found.beside == task.beside
        assert [(k.name, k.values) for k in found.space.knobs] == [(k.name, k.values) for k in task.space.knobs]
        assert found.space.default == task.space.default
        rows = task.space.sample(np.random.default_rng(0), 40)
        ours, theirs = LoopFeatures(found, target), LoopFeatures(task, target)
        np.testing.assert_array_equal(ours.valid(rows), theirs.valid(rows))
        np.testing.assert_array_equal(ours(rows), theirs(rows))


def test_records_of_early_versions_have_no_margins(tasks: list[Task], target: Target) -> None:
    for task in tasks:
        found = task_of(task.text, Beside(task.beside.literals), target)
        assert [k.name for k in found.space.knobs] == [k.name for k in task.space.knobs]


def test_shipped_records_are_understood() -> None:
    target = get_target("x86 -mcpu=znver3")
    records = {r.workload: r for r in read_records([family_file(target)]).records}
    assert len(records) > 100
    for r in list(records.values())[::4]:
        task = task_of(r.text, r.beside, target)
        assert (task.key, task.name, task.flops) == (r.workload, r.task, r.flops)


def test_what_does_not_fit_is_refused(tasks: list[Task], target: Target) -> None:
    task = next(t for t in tasks if t.beside.margins)
    with pytest.raises(WorkloadError, match="margins of 1 values, a workload has"):
        task_of(task.text, replace(task.beside, margins=task.beside.margins[:1]), target)
    wrong = tuple(((1, 1),) for _ in task.beside.margins)
    with pytest.raises(WorkloadError, match="margins of 1 dimensions around f32"):
        task_of(task.text, replace(task.beside, margins=wrong), target)
    with pytest.raises(WorkloadError, match="a workload that has nothing to choose"):
        task_of("(f32[4]) -> any\nrelu(%0) () -> f32[4]\nreturn %1", Beside(), target)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"literals": "00"}, "literals are no list"),
        ({"literals": ["0g"]}, "literals are no hexadecimal digits"),
        ({"literals": [7]}, "literals are no hexadecimal digits"),
        ({"margins": {}}, "margins are no list"),
        ({"margins": [0] * 5000}, "margins are no list"),
        ({"margins": [0]}, "margins are no pairs"),
        ({"margins": [[[1]]]}, "margins are no pairs"),
        ({"margins": [[[1, -1]]]}, "margins are no pairs"),
        ({"margins": [[[1, True]]]}, "margins are no pairs"),
        ({"margins": [[[1, 1 << 40]]]}, "margins are no pairs"),
    ],
)
def test_what_is_beside_a_text_is_checked(body: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Beside.from_json(body)
