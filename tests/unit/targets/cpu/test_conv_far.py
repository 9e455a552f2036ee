"""Convolutions of what no cache near holds: the next tile's input is fetched, images are copied one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers.alt import Given
from mlc.errors import ScheduleError
from mlc.ir.graph import Attrs, Builder, Graph
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.groups.group import knobs_of
from mlc.targets.x86.record import record_for
from mlc.targets.x86.target import X86Target
from mlc.tuning.task import candidate, tasks_of
from mlc.tuning.whole import build_module

OPTIONS = CompileOptions("far", "onnx", "0" * 64, disabled_passes=frozenset({"winograd"}))
FAR = X86Target(replace(record_for("haswell"), l2=1024), native=False)


def network(space: tuple[int, ...], taps: int, stride: int, channels: int = 16) -> Graph:
    """A convolution of row-major images, two of what that gives, and what the first and the last give in sum."""
    rng, rank = np.random.default_rng(0), len(space)
    g = Builder("far")

    def conv(name: str, v, out: int, c: int, k: int, s: int):  # type: ignore[no-untyped-def]
        w = g.constant(rng.integers(-2, 3, (out, c, *(k,) * rank)).astype(np.float32), name)
        attrs: Attrs = {"strides": (s,) * rank, "pads": (k // 2,) * 2 * rank, "dilations": (1,) * rank, "groups": 1}
        return g.add(get("conv"), [v, w], attrs)[0]

    y = conv("a", g.input("x", TensorType((3, 3, *space), f32)), channels, 3, taps, stride)
    z = conv("b", y, channels, channels, 1, 1)
    (z,) = g.add(get("add"), [conv("c", z, channels, channels, taps, 1), y])
    return g.finish([conv("d", z, 19, channels, 1, 1)])


@pytest.mark.parametrize(
    "space, taps, stride, channels",
    [
        ((9, 13), 3, 2, 16),
        ((7, 11), 1, 1, 24),
        pytest.param((13,), 3, 1, 16, marks=pytest.mark.slow),
        pytest.param((5, 4, 7), 3, 1, 16, marks=pytest.mark.slow),
    ],
)
def test_results_stay_the_same(space: tuple[int, ...], taps: int, stride: int, channels: int) -> None:
    graph = network(space, taps, stride, channels)
    feeds = {"x": np.random.default_rng(1).integers(-2, 3, (3, 3, *space)).astype(np.float32)}
    (wanted,) = run_graph(graph, feeds).values()
    for threads in (1, 2):
        with build_module(graph, FAR, OPTIONS, threads, Given({})) as module:
            (found,) = module.run(feeds).values()
        np.testing.assert_array_equal(found, wanted)


def test_inputs_and_what_is_added_are_fetched_a_tile_ahead() -> None:
    first, _, third, _ = tasks_of(network((9, 13), 1, 1), FAR, OPTIONS, Observer())
    text = repr(FAR.kernel(candidate(third, FAR, third.space.default), "k"))
    ahead = "24*(klooijo//3) + 6*kloi + 6, 16"
    for fetched in ("p0[klooijo%3, co", "p2[klooijo%3, 0", "p2[klooijo%3, 1"):
        assert f"prefetch({fetched}, {ahead}], level=1)" in text
    near = X86Target(record_for("haswell"), native=False)
    text = repr(near.kernel(candidate(third, near, third.space.default), "k"))
    assert "prefetch(p0[" not in text
    assert "prefetch(p2[" not in text
    assert "prefetch(p0[" not in repr(FAR.kernel(candidate(first, FAR, first.space.default), "k"))  # row-major


def test_a_batch_is_copied_image_by_image() -> None:
    first, *_ = tasks_of(network((9, 13), 3, 2), FAR, OPTIONS, Observer())
    assert "pad: f32[1,3," in repr(FAR.kernel(candidate(first, FAR, first.space.default), "k"))
    near = X86Target(record_for("haswell"), native=False)
    assert "pad: f32[3,3," in repr(near.kernel(candidate(first, near, first.space.default), "k"))


@pytest.mark.parametrize("space, taps", [((9, 13), 1), ((8, 8), 3), ((17,), 3)])
def test_whatever_the_knobs_say_there_is_something_to_fetch(space: tuple[int, ...], taps: int) -> None:
    """Or else building would complain of what is not contiguous, and not only refuse."""
    rng, built = np.random.default_rng(3), 0
    for task in tasks_of(network(space, taps, 1), FAR, OPTIONS, Observer()):
        for row in task.space.sample(rng, 12):
            try:
                node = candidate(task, FAR, task.space.config(row))
                FAR.schedule(node, knobs_of(node))
            except ScheduleError:
                continue
            FAR.kernel(node, "k")
            built += 1
    assert built > 4


def test_blocks_of_a_group_that_are_half_of_what_is_summed_up_at_once_are_not_fetched() -> None:
    """Blocks of 4 filters, two of which are the 8 channels that a step of the next convolution takes."""
    rng, g = np.random.default_rng(0), Builder("halves")
    x = g.input("x", TensorType((2, 6, 12, 5), f32))
    w, w2 = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((12, 2, 5, 5), (19, 12, 1, 1)))
    attrs: Attrs = {"strides": (3, 1), "pads": (2,) * 4, "dilations": (1, 1), "groups": 3}
    (y,) = g.add(get("conv"), [x, g.constant(w, "w")], attrs)
    attrs = {**attrs, "strides": (1, 1), "pads": (0,) * 4, "groups": 1}
    graph = g.finish(g.add(get("conv"), [y, g.constant(w2, "w2")], attrs))
    blocks = [t.node.inputs[0].type.layout for t in tasks_of(graph, FAR, OPTIONS, Observer())]
    assert blocks[-1] is not None
    assert blocks[-1].physical_shape[-1] == 4
    feeds = {"x": rng.integers(-2, 3, x.type.shape).astype(np.float32)}
    (wanted,) = run_graph(graph, feeds).values()
    with build_module(graph, FAR, OPTIONS, 1, Given({})) as module:
        (found,) = module.run(feeds).values()
    np.testing.assert_array_equal(found, wanted)
