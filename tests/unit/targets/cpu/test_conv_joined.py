"""Convolutions whose vectors run over the ends of rows and images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import mlc
from benchmarks.papers.alt import Given
from mlc.api.training import wrapped
from mlc.ir import te
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions
from mlc.targets.arm.record import record_for as arm_record
from mlc.targets.base import get_target
from mlc.targets.cpu.schedules import conv_plain
from mlc.targets.cpu.schedules.conv_joined import join
from mlc.targets.cpu.schedules.conv_plain import joins
from mlc.targets.groups.group import Group
from mlc.targets.groups.joined import may_be_joined, rows_of
from mlc.targets.x86.record import record_for
from mlc.tuning.whole import build_module

ZEN = record_for("znver5")


def convolution(x: Sequence[int], w: Sequence[int], groups: int, stride: int = 1, dilation: int = 1) -> Group:
    """With as many zeros around as keep the size of what a stride does not."""
    data, weights = te.placeholder(tuple(x), f32, "x"), te.placeholder(tuple(w), f32, "w")
    pads = tuple((k - 1) * dilation // 2 for k in w[2:]) * 2
    attrs = {"strides": (stride,) * 2, "pads": pads, "dilations": (dilation,) * 2, "groups": groups}
    (y,) = get("conv").express([data, weights], attrs)  # type: ignore[misc]
    return Group((data, weights), (y,), y.op, {})


@pytest.mark.parametrize(
    "x, w, stride, dilation, width, height",
    [
        ((1, 4, 56, 56), (4, 2, 3, 3), 1, 1, 57, 57),
        ((1, 4, 14, 14), (4, 2, 5, 5), 1, 1, 16, 16),
        ((1, 4, 14, 14), (4, 2, 3, 3), 2, 1, 8, 8),
        ((1, 4, 28, 28), (4, 2, 5, 5), 2, 1, 15, 15),
        ((1, 4, 9, 9), (4, 2, 3, 3), 1, 2, 11, 11),
        ((1, 4, 15, 8), (4, 2, 1, 3), 1, 1, 9, 15),
    ],
)
def test_rows_and_images_share_their_borders(
    x: tuple[int, ...], w: tuple[int, ...], stride: int, dilation: int, width: int, height: int
) -> None:
    rows = rows_of(convolution(x, w, 2, stride, dilation), images=True)
    assert (rows.width, rows.height, rows.images) == (width, height, 1)


def test_what_has_no_border_reads_none_of_the_next_row() -> None:
    data, weights = te.placeholder((1, 4, 9, 9), f32, "x"), te.placeholder((4, 2, 3, 3), f32, "w")
    attrs = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 2}
    (y,) = get("conv").express([data, weights], attrs)  # type: ignore[misc]
    assert rows_of(Group((data, weights), (y,), y.op, {}), images=False).width == 9


@pytest.mark.parametrize(
    "x, w, groups, stride, worth",
    [
        ((4, 80, 14, 14), (40, 10, 3, 3), 8, 2, True),
        ((1, 152, 56, 56), (56, 19, 3, 3), 8, 1, True),
        ((1, 408, 7, 7), (408, 24, 3, 3), 17, 1, True),
        ((1, 32, 96, 96), (3, 32, 9, 9), 1, 1, False),
        ((4, 36, 14, 14), (36, 12, 3, 3), 3, 1, False),
    ],
)
def test_runs_are_taken_where_rows_leave_lanes_empty(
    x: tuple[int, ...], w: tuple[int, ...], groups: int, stride: int, worth: bool
) -> None:
    """Measured on Zen 5: 2.1, 1.2 and 1.9 times as fast as rows, then 0.95 and 1.0 times."""
    assert (joins(convolution(x, w, groups, stride), ZEN) is not None) == worth


def test_single_pixels_and_cores_in_order_have_none() -> None:
    assert not may_be_joined(convolution((1, 8, 7, 7), (4, 4, 1, 1), 2))
    assert join(convolution((1, 8, 7, 7), (4, 4, 3, 3), 2), arm_record("cortex-a53")) is None


def test_threads_share_blocks_of_rows_where_groups_are_fewer() -> None:
    plan = join(convolution((1, 64, 56, 56), (3, 64, 7, 7), 1), ZEN)
    assert plan is not None
    assert plan.block < 56


def one_convolution(
    x: Sequence[int], w: Sequence[int], groups: int, strides: Sequence[int], pads: Sequence[int], dilation: int
) -> tuple[Graph, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    g = Builder("conv")
    data = g.input("x", TensorType(tuple(x), f32))
    weights = g.constant(rng.integers(-2, 3, tuple(w)).astype(np.float32), "w")
    attrs = {"strides": tuple(strides), "pads": tuple(pads), "dilations": (dilation,) * 2, "groups": groups}
    (y,) = g.add(get("conv"), [data, weights], attrs, sources=["conv"])
    (z,) = g.add(get("relu"), [y])
    return g.finish([z], ["z"]), {"x": rng.integers(-2, 3, tuple(x)).astype(np.float32)}


@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell"])
@pytest.mark.parametrize(
    "x, w, groups, strides, pads, dilation",
    [
        ((3, 6, 7, 5), (10, 3, 3, 3), 2, (1, 1), (1, 1, 1, 1), 1),
        ((1, 6, 11, 37), (4, 3, 3, 5), 2, (2, 1), (0, 2, 1, 1), 1),
        ((2, 4, 13, 19), (3, 4, 3, 3), 1, (2, 3), (1, 1, 0, 2), 2),
        ((1, 4, 1, 23), (2, 2, 1, 4), 2, (1, 1), (0, 0, 0, 3), 1),
    ],
)
def test_runs_give_the_results_of_the_convolution(
    target: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    groups: int,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilation: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("WORTH_WIDE", "WORTH_JOINED"):
        monkeypatch.setattr(conv_plain, name, 100)
    graph, feeds = one_convolution(x, w, groups, strides, pads, dilation)
    options = CompileOptions("runs", "onnx", "0" * 64)
    config = {"depth": (1, 1, w[1]), **({"block": 1, "vectors": 1} if x[0] == 1 else {})}
    with build_module(graph, get_target(target), options, 1, Given({"conv": config})) as module:
        (found,) = module.run(feeds).values()
    (wanted,) = run_graph(graph, feeds).values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("cpu, groups, filters", [("haswell", 3, 84), ("znver4", 3, 84), ("znver5", 54, 54)])
def test_windows_that_do_not_reach_the_last_columns_are_fetched_ahead(cpu: str, groups: int, filters: int) -> None:
    g = Builder("far")
    x = g.input("x", TensorType((8, 54, 67, 58), f32))
    w = g.constant(np.ones((filters, 54 // groups, 3, 3), np.float32), "w")
    attrs = {"strides": (2, 4), "pads": (2, 0, 2, 0), "dilations": (1, 1), "groups": groups}
    (y,) = g.add(get("conv"), [x, w], attrs)
    graph = g.finish(g.add(get("relu"), [y], names=["y"]))
    assert mlc.compile(wrapped(graph), f"x86 -mcpu={cpu}", records=[]).manifest.steps
