"""Features of schedules for grids of threads: what they say of a known schedule, and the same alone as in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.features import LoopFeatures
from mlc.tuning.features.grid import FEATURES, NUMBERS, features
from mlc.tuning.task import Task, tasks_of

THREADS_X, THREADS, BLOCKS, SHARED, KEPT, WORK, STAGES = range(7)
FIRST = 7  # of what is told of each shared stage: its elements, rounds of a thread, and how far neighbours are apart


@pytest.fixture(scope="module")
def target() -> Target:
    return get_target("opencl -device=generic")


@pytest.fixture(scope="module")
def task(target: Target) -> Task:
    g = Builder("product")
    a = g.input("a", TensorType((64, 96), f32))
    w = g.constant(np.ones((96, 128), np.float32), "w")
    (p,) = g.add(get("matmul"), [a, w], names=["p"])
    (found,) = tasks_of(g.finish([p]), target, CompileOptions("product", "onnx", ""), Observer())
    return found


def numbers(task: Task, target: Target, **config: object) -> np.ndarray:
    """What features say of a configuration, without the logarithm."""
    row = task.space.row({**task.space.default, **config})
    found = LoopFeatures(task, target)(row[None])[0, -FEATURES:]
    return np.rint(2.0 ** found[:NUMBERS] - 1)


def test_a_tiled_product_is_described(task: Task, target: Target) -> None:
    config = {"rows": 4, "columns": 4, "ty": 8, "tx": 16, "depth": 8}
    found = numbers(task, target, **config, **{"right.vector": 1})
    assert found[THREADS_X] == 16
    assert found[THREADS] == 128
    assert found[BLOCKS] == (64 // 32) * (128 // 64)
    assert found[SHARED] == 4 * 8 * (32 + 64)
    assert found[WORK] == 96 * 16
    assert found[STAGES] == 2
    by_elements = {found[at]: found[at : at + 3].tolist() for at in (FIRST, FIRST + 3)}
    assert by_elements[32 * 8][1] == 32 * 8 / 128
    assert by_elements[64 * 8][1] == 64 * 8 / 128
    assert by_elements[64 * 8][2] == 1  # neighbours fetch neighbours of the weights' rows
    by_fours = numbers(task, target, **config, **{"right.vector": 4})
    assert 4 in by_fours[[FIRST + 2, FIRST + 5]]


def test_all_configurations_have_as_many(task: Task, target: Target) -> None:
    describe = LoopFeatures(task, target)
    rows = task.space.sample(np.random.default_rng(0), 60)
    together = describe(rows)
    assert together.shape == (60, describe.width)
    assert np.isfinite(together).all()
    alone = np.concatenate([LoopFeatures(task, target)(row[None]) for row in rows[:8]])
    np.testing.assert_allclose(together[:8], alone, rtol=1e-6)


def test_neighbours_that_meet_at_a_bank() -> None:
    apart = np.zeros((NUMBERS, 4))
    apart[-1] = (0, 1, 8, 33)
    found = features(apart)
    assert (2.0 ** found[-1]).tolist() == [1, 1, 8, 1]
    lines = found[-5]
    assert (2.0**lines).tolist() == [1, 1, 8, 32]
