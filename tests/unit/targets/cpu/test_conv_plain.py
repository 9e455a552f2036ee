"""Tiles and weights of convolutions in row-major layout."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.alt import Given
from mlc.ir import te
from mlc.ir.graph import Builder
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions
from mlc.targets.base import get_target
from mlc.targets.cpu.schedules import conv_plain
from mlc.targets.cpu.schedules.conv_plain import held_rows, plain_tile, plain_weight_layout
from mlc.targets.groups.group import Group
from mlc.targets.x86.record import record_for
from mlc.tuning.whole import build_module

TARGETS = [record_for(cpu) for cpu in ("skylake-avx512", "haswell", "x86-64")]


def convolution(channels: int, filters: int, groups: int, space: tuple[int, ...], kernel: int = 1) -> Group:
    rank = len(space)
    x = te.placeholder((1, channels, *space), f32, "x")
    w = te.placeholder((filters, channels // groups, *(kernel,) * rank), f32, "w")
    attrs = {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank, "groups": groups}
    (y,) = get("conv").express([x, w], attrs)  # type: ignore[misc]
    return Group((x, w), (y,), y.op, {})


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("filters, groups", [(60, 3), (7, 1), (240, 3), (26, 2), (512, 1)])
@pytest.mark.parametrize("space", [(7, 7), (28, 28), (5,), (1, 1)])
def test_tiles_fit_the_registers_and_the_channels_of_a_group(target, filters, groups, space) -> None:  # type: ignore[no-untyped-def]
    tile = plain_tile(convolution(4 * groups, filters, groups, space), target)
    assert filters // groups % tile.rows == 0
    assert tile.rows * tile.vectors + tile.vectors <= target.registers


@pytest.mark.parametrize(
    "height, channels, vectors, held",
    [
        (14, 4, 1, 2),
        (28, 4, 1, 4),
        (7, 7, 1, 1),
        (9, 7, 1, 3),
        (14, 8, 1, 2),
        (14, 18, 1, 1),
        (14, 4, 3, 1),
        (56, 1, 1, 14),
        (56, 2, 1, 8),
        (1, 2, 1, 1),
    ],
)
def test_tiles_of_few_sums_span_rows(height: int, channels: int, vectors: int, held: int) -> None:
    """Sums that wait for each other are a multiply-add in two cycles, not two in one (ALT's figure 9, GRP-0)."""
    assert held_rows(height, channels, vectors, 32, 8) == held
    assert (channels + 1) * vectors * held <= 32


def test_rows_of_one_vector_share_what_is_broadcast() -> None:
    """Eleven loads for eighteen sums in place of nineteen (ALT's figure 9, GRP-2: 0.87 times as long)."""
    assert plain_tile(convolution(240, 72, 4, (18, 14), 5), record_for("znver5")) == (9, 1)


@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell"])
@pytest.mark.parametrize("held", [1, 2, 3])
def test_rows_of_a_tile_are_those_of_the_convolution(target: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_plain, "join", lambda *_: None)
    rng = np.random.default_rng(0)
    g = Builder("conv")
    x = g.input("x", TensorType((2, 6, 6, 9), f32))
    w = g.constant(rng.integers(-2, 3, (4, 3, 3, 3)).astype(np.float32), "w")
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 2}
    graph = g.finish(g.add(get("conv"), [x, w], attrs, sources=["conv"]), ["y"])
    there = get_target(target)
    options = CompileOptions("rows", "onnx", "0" * 64)
    feeds = {"x": rng.integers(-2, 3, (2, 6, 6, 9)).astype(np.float32)}
    with build_module(graph, there, options, 1, Given({"conv": {"held": held, "rows": 2, "vectors": 1}})) as module:
        (found,) = module.run(feeds).values()
    (wanted,) = run_graph(graph, feeds).values()
    np.testing.assert_array_equal(found, wanted)


def test_weights_lie_in_the_order_of_use() -> None:
    group = convolution(12, 60, 3, (28, 28), 3)
    layout = plain_weight_layout(group, TARGETS[1])
    rows = plain_tile(group, TARGETS[1]).rows
    assert layout.physical_shape == (60 // rows, 4, 3, 3, rows)
    array = np.arange(60 * 4 * 9, dtype=np.float32).reshape(60, 4, 3, 3)
    np.testing.assert_array_equal(layout.pack(array)[1, 2, 0, 1], array[rows : 2 * rows, 2, 0, 1])
