"""Grouped convolutions whose results lie in blocks of a divisor of the filters of a group."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.alt import Given
from mlc.ir import te
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_function
from mlc.ir.interp.graph import run_graph
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.cpu.schedules.conv_filters import block_of, passes_over, worthy_block
from mlc.targets.groups.group import Group
from mlc.targets.x86.record import record_for
from mlc.tuning.task import tasks_of
from mlc.tuning.whole import build_module

OPTIONS = CompileOptions("filters", "onnx", "0" * 64)
TARGET = record_for("znver5")


def grouped(batch: int, channels: int, size: int, filters: int, taps: int, stride: int, groups: int) -> Group:
    x = te.placeholder((batch, channels, size, size), f32, "x")
    w = te.placeholder((filters, channels // groups, taps, taps), f32, "w")
    attrs = {"strides": (stride,) * 2, "pads": (taps // 2,) * 4, "dilations": (1, 1), "groups": groups}
    (y,) = get("conv").express([x, w], attrs)  # type: ignore[misc]
    return Group((x, w), (y,), y.op, {}, Knobs())


def site(g: Group, lies: Layout | None = None, *, row_major: bool = False) -> Site:
    x, w = (TensorType(t.shape, t.dtype) for t in g.inputs)
    return Site((x if lies is None else x.with_layout(lies), w), (False, True), row_major)


@pytest.mark.parametrize(
    "shape, in_rows, in_blocks",
    [
        ((1, 216, 14, 112, 5, 2, 2), 14, 14),  # ALT's figure 9, GRP-4: 2.3 times as fast
        ((4, 128, 56, 224, 1, 2, 8), 14, 14),  # GRP-1: 1.2 times
        ((4, 80, 14, 40, 3, 2, 8), 0, 0),  # GRP-3: runs over the ends of rows are faster yet
        ((1, 912, 7, 912, 3, 1, 38), 0, 12),
        ((1, 256, 7, 256, 3, 1, 32), 0, 0),  # 1.15 times as fast by runs, which are made of blocks first
        ((1, 240, 14, 240, 3, 1, 6), 0, 0),  # a block of 10 leaves more of a vector empty than a row of 14
        ((1, 152, 56, 56, 3, 1, 8), 0, 0),
        ((1, 64, 14, 112, 5, 2, 1), 0, 0),
    ],
)
def test_blocks_are_taken_where_rows_leave_more_of_a_vector_empty(
    shape: tuple[int, ...], in_rows: int, in_blocks: int
) -> None:
    g = grouped(*shape)
    channels = blocked(g.inputs[0].shape, 1, TARGET.lanes)
    assert (worthy_block(g, site(g), TARGET), worthy_block(g, site(g, channels), TARGET)) == (in_rows, in_blocks)


def test_a_row_major_result_has_to_be_worth_the_conversion() -> None:
    g = grouped(4, 128, 56, 224, 1, 2, 8)
    assert worthy_block(g, site(g, row_major=True), TARGET) == 0


def test_blocks_are_known_by_the_layout_of_the_result() -> None:
    g = grouped(1, 8, 5, 12, 3, 1, 2)
    (y,) = g.outputs
    assert block_of(g) == 0
    assert [block_of(Group(g.inputs, g.outputs, g.anchor, {y: blocked(y.shape, 1, n)})) for n in (3, 6, 4)] == [3, 6, 0]


def between(channels: int, filters: int, groups: int, space: tuple[int, ...], taps: int, stride: int) -> Graph:
    """A grouped convolution with a bias between two of single pixels, in small integers."""
    rng, rank = np.random.default_rng(0), len(space)
    g = Builder("groups")

    def conv(v, out: int, c: int, k: int, s: int, n: int):  # type: ignore[no-untyped-def]
        w = g.constant(rng.integers(-2, 3, (out, c // n, *(k,) * rank)).astype(np.float32), f"w{out}.{k}.{s}")
        attrs = {"strides": (s,) * rank, "pads": (k // 2,) * 2 * rank, "dilations": (1,) * rank, "groups": n}
        return g.add(get("conv"), [v, w], attrs, sources=["conv"])[0]

    x = g.input("x", TensorType((2, 3, *space), f32))
    y = conv(conv(x, channels, 3, 1, 1, 1), filters, channels, taps, stride, groups)
    bias = g.constant(rng.integers(-2, 3, (filters, *(1,) * rank)).astype(np.float32), "bias")
    (y,) = g.add(get("add"), [y, bias])
    return g.finish([conv(y, 19, filters, 1, 1, 1)])


@pytest.mark.parametrize(
    "channels, filters, groups, space, taps, stride",
    [
        pytest.param(32, 28, 2, (7, 5), 3, 1, marks=pytest.mark.slow),
        (24, 36, 3, (9, 13), 5, 2),
        (32, 24, 4, (9,), 3, 2),
        pytest.param(16, 20, 2, (3, 4, 5), 3, 2, marks=pytest.mark.slow),
    ],
)
def test_untuned_blocks_give_the_same(channels, filters, groups, space, taps, stride) -> None:  # type: ignore[no-untyped-def]
    graph, target = between(channels, filters, groups, space, taps, stride), get_target("x86 -mcpu=haswell")
    task = next(t for t in tasks_of(graph, target, OPTIONS, Observer()) if t.node.outputs[0].type.shape[1] == filters)
    (y,) = task.node.outputs
    assert y.type.layout is not None
    assert filters // groups % y.type.layout.physical_shape[-1] == 0
    feeds = {"x": np.random.default_rng(1).integers(-2, 3, (2, 3, *space)).astype(np.float32)}
    with build_module(graph, target, OPTIONS, 1, Given({})) as module:
        (found,) = module.run(feeds).values()
    (wanted,) = run_graph(graph, feeds).values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "shape, cpu, passed",
    [
        ((1, 216, 14, 112, 5, 2, 2), "znver4", (True, True)),
        ((1, 216, 14, 112, 5, 2, 2), "znver5", (True, False)),
        ((1, 216, 14, 112, 5, 2, 2), "haswell", (False, False)),
        ((4, 128, 56, 224, 1, 2, 8), "znver4", (False, False)),  # there is no border
    ],
)
def test_the_border_is_passed_over_where_that_pays(shape: tuple[int, ...], cpu: str, passed: tuple[bool, bool]) -> None:
    assert passes_over(grouped(*shape), 14, record_for(cpu)) == passed


@pytest.mark.parametrize(
    "channels, filters, groups, space, taps, stride",
    [(8, 28, 2, (4, 5), 3, 1), (12, 28, 2, (3, 7), 5, 1), (24, 36, 3, (9, 13), 5, 2), (9, 42, 3, (5, 5), 5, 1)],
)
def test_columns_of_the_border_are_passed_over(channels, filters, groups, space, taps, stride) -> None:  # type: ignore[no-untyped-def]
    target = get_target("x86 -mcpu=znver4")
    graph = between(channels, filters, groups, space, taps, stride)
    task = next(t for t in tasks_of(graph, target, OPTIONS, Observer()) if t.node.outputs[0].type.shape[1] == filters)
    (y,) = task.node.outputs
    rng = np.random.default_rng(1)
    x, w, bias = (rng.integers(-2, 3, v.type.shape).astype(np.float32) for v in task.node.inputs)
    packed = [
        n if v.type.layout is None else v.type.layout.pack(n)
        for n, v in zip((x, w, bias), task.node.inputs, strict=True)
    ]
    kernel = target.kernel(task.node, "k")
    assert "pad" not in repr(kernel)  # no copy with a border
    out = np.full(kernel.params[-1].shape, np.nan, np.float32)
    run_function(kernel, [*(n.reshape(b.shape) for n, b in zip(packed, kernel.params, strict=False)), out])
    g = Builder("wanted")
    attrs = {"strides": (stride,) * 2, "pads": (taps // 2,) * 4, "dilations": (1, 1), "groups": groups}
    (sums,) = g.add(get("conv"), [g.input("x", TensorType(x.shape, f32)), g.constant(w, "w")], attrs)
    wanted = run_graph(g.finish(g.add(get("add"), [sums, g.constant(bias, "bias")])), {"x": x})
    assert y.type.layout is not None
    np.testing.assert_array_equal(y.type.layout.unpack(out.reshape(y.type.physical_shape)), *wanted.values())


def test_windows_that_lie_in_the_border_are_sums_of_zeros() -> None:
    rng = np.random.default_rng(0)
    g = Builder("border")
    x, w = (
        g.input("x", TensorType((1, 6, 4, 2), f32)),
        g.constant(rng.standard_normal((8, 3, 3, 2)).astype(np.float32), "w"),
    )
    attrs = {"strides": (1, 3), "pads": (0, 3, 0, 0), "dilations": (1, 2), "groups": 2}
    graph = g.finish(g.add(get("conv"), [x, w], attrs, sources=["conv"]))
    with build_module(graph, get_target("x86 -mcpu=haswell"), OPTIONS, 1, Given({})) as module:
        (found,) = module.run({"x": np.ones((1, 6, 4, 2), np.float32)}).values()
    np.testing.assert_array_equal(found, np.zeros((1, 8, 2, 1), np.float32))
