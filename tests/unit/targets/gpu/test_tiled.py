"""Searched layouts on devices that run grids of threads: every layout and its loops mean what the operator means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mlc.build import build_package
from mlc.errors import ScheduleError
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.interp import run_function
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.records.best import Found, best_of
from mlc.records.lookup import Tuned
from mlc.records.measurement import Measurement
from mlc.records.record import Fingerprint, Record
from mlc.settings import Observer
from mlc.targets.base import get_target
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.opencl.dialect import OPENCL_C
from mlc.tuning.features import LoopFeatures
from mlc.tuning.joint import layout_space, loop_space
from mlc.tuning.task import Task, candidate, tasks_of
from tests.unit.tuning.operators import OPERATORS, OPTIONS, check, convolution, kernel_of, product, task_of

TARGET = get_target("opencl -device=pocl")
DEVICES = ("opencl -device=pocl", "opencl -device=mali", "cuda -arch=sm_80")


@pytest.mark.parametrize("name", OPERATORS)
def test_random_layouts_and_loops_mean_the_same(name: str) -> None:
    target = get_target(DEVICES[len(name) % len(DEVICES)])
    assert check(OPERATORS[name](), 5, levels=1 + len(name) % 2, layouts=1, loops=1, target=target)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATORS)
def test_many_random_layouts_and_loops_mean_the_same(name: str, device: str, levels: int) -> None:
    assert check(OPERATORS[name](), levels, levels=levels, layouts=12, loops=2, target=get_target(device)) > 12


@pytest.mark.parametrize("name", ["C2D", "GMM"])
def test_text_of_a_kernel(name: str, golden: Callable[[str], None]) -> None:
    """A tile of pixels and channels a thread, neighbours along the innermost block of channels."""
    task = task_of(OPERATORS[name](), TARGET)
    layouts: dict[str, Config] = {
        "C2D": {"layout": 1, "layout.h": (2, 2), "layout.w": (1, 3), "layout.o": (2, 4), "layout.input": "as it is"},
        "GMM": {"layout": 1, "layout.m": (3, 4), "layout.n": (3, 8), "layout.k": (2, 4)},
    }
    loops = loop_space(task, TARGET, layouts[name])
    assert loops is not None
    scalars = Scalars(OPENCL_C)
    golden(source_of(scalars, [emit(kernel_of(task, loops.default, TARGET), scalars).text]))


def test_loops_are_many_and_described() -> None:
    """A cost model sees thousands of configurations of a layout, most of which a block can run."""
    task = task_of(convolution(32, 64, (14, 14), 3, pad=1), TARGET)
    layouts = layout_space(task, TARGET)
    assert layouts is not None
    space = loop_space(task, TARGET, layouts.default)
    assert space is not None
    assert space.size > 5000
    features = LoopFeatures(replace(task, space=space), TARGET)
    rows = space.sample(np.random.default_rng(0), 200)
    good = features.valid(rows)
    assert good.mean() > 0.3
    assert np.isfinite(features(rows)).all()


def test_threads_beyond_the_limit_are_refused() -> None:
    task = task_of(product(64, 8, 64), TARGET)
    loops = loop_space(task, TARGET, {"layout": 1, "layout.m": (8, 8), "layout.n": (1, 64)})
    assert loops is not None
    config = {**loops.default, "places.n": (1, 64, 1), "places.m": (1, 8, 1), "tiles.m": (1, 8, 1)}
    with pytest.raises(ScheduleError, match="4096 threads of a block, 256 are the most"):
        kernel_of(task, config, TARGET)


@pytest.mark.parametrize("name", ["DEP", "T2D", "GMM"])
def test_other_architectures_have_the_layouts_with_loops_of_their_own(name: str) -> None:
    target = get_target("cuda -arch=sm_75,sm_80")
    task = task_of(OPERATORS[name](), target)
    layouts = layout_space(task, target)
    assert layouts is not None
    rng = np.random.default_rng(1)
    loops = loop_space(task, target, layouts.config(layouts.sample(rng, 1)[0]))
    assert loops is not None
    config = {**loops.default, "steps": 1} if "steps" in loops.default else loops.default
    assert target.accelerator is not None
    first, second = target.accelerator.kernel(candidate(task, target, config), "k", {})
    assert first.params[-1].shape == second.params[-1].shape
    operands = [rng.integers(-3, 4, b.shape).astype(np.float32) for b in first.params[:-1]]
    found = [np.full(first.params[-1].shape, np.nan, np.float32) for _ in range(2)]
    for fn, made in zip((first, second), found, strict=True):
        run_function(fn, [*operands, made])
    np.testing.assert_array_equal(found[0], found[1])


def network() -> Graph:
    """Two convolutions with an activation between that is a group of its own, a join, and a reshape."""
    g, rng = Builder("net"), np.random.default_rng(0)
    x = g.input("x", TensorType((1, 8, 6, 6), f32))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "pads": (1,) * 4}
    (a,) = g.add(get("conv"), [x, weights(g, rng, 8, "w1")], attrs, names=["a"], sources=["first"])
    (b,) = g.add(get("relu"), [a], names=["b"], sources=["act"])
    (c,) = g.add(get("conv"), [b, weights(g, rng, 8, "w2")], attrs, names=["c"], sources=["second"])
    (d,) = g.add(get("add"), [b, c], names=["d"], sources=["sum"])
    (e,) = g.add(get("concat"), [a, d], {"axis": 1}, names=["e"], sources=["join"])
    (r,) = g.add(get("reshape"), [e], {"shape": (1, 16, 36)}, names=["r"], sources=["rows"])
    return g.finish([r])


def weights(g: Builder, rng: np.random.Generator, filters: int, name: str) -> Value:
    return g.constant(rng.integers(-2, 3, (filters, 8, 3, 3)).astype(np.float32), name)


def decided(task: Task, config: Config) -> Tuned:
    """What a compilation looks up where one record has such a configuration of a task."""
    fingerprint = Fingerprint.of(TARGET)
    record = Record.of(
        task, dict(config), Measurement(1e-6), fingerprint=fingerprint, threads=1, explorer="decided", seed=0, trial=0
    )
    return Tuned(best_of([record], fingerprint, 1), TARGET)


def test_a_layout_goes_on_element_by_element_and_ends_before_reshapes_and_joins() -> None:
    task = next(t for t in tasks_of(network(), TARGET, OPTIONS, Observer()) if t.sources == ("first",))
    layouts: Config = {"layout": 1, "layout.h": (3, 2), "layout.w": (1, 6), "layout.o": (2, 4)}
    loops = loop_space(task, TARGET, layouts)
    assert loops is not None
    tuned = decided(task, loops.default)
    built = build_package(network(), TARGET, replace(OPTIONS, list_layouts=True), Observer(), tuned)
    assert [f.found for f in tuned.used()] == [Found.HIT]
    assert built.placements is not None
    found = {t.tensor: (t.asked_by, t.reason, t.shape) for t in built.placements.tensors}
    lies = (1, 3, 1, 2, 2, 6, 4)
    assert found["a"] == ("first", "searched", lies)
    assert found["b"] == ("a", "propagated from an operand of its shape", lies)
    assert (found["d"][1], found["r"][1]) == ("row-major", "row-major")
    assert found["w1.packed"][0] == "first"
    moves = [(c.where, c.tensor, c.how) for c in built.placements.conversions]
    assert moves == [("first", "x", "border"), ("second, sum", "b", "read")]


def test_a_result_that_leaves_the_device_keeps_its_layout() -> None:
    """Its readers take rows only, whatever a record of a like group says whose result is read by others."""
    graph = convolution(8, 16, (6, 6), 3, pad=1)
    last = tasks_of(graph, TARGET, OPTIONS, Observer())[-1]
    assert last.site.row_major
    assert not last.document["row_major"]
    assert layout_space(last, TARGET) is None
    task = task_of(graph, TARGET)
    assert task.key == last.key
    layouts = layout_space(task, TARGET)
    assert layouts is not None
    loops = loop_space(task, TARGET, layouts.default)
    assert loops is not None
    tuned = decided(task, loops.default)
    built = build_package(graph, TARGET, replace(OPTIONS, list_layouts=True), Observer(), tuned)
    assert built.placements is not None
    assert {t.layout for t in built.placements.tensors} == {"plain"}
