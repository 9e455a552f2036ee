"""Convolutions of few pixels by many weights: tiles that stream weights, and ragged chunks of input channels."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.alt import Given, in_network
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions
from mlc.targets.base import get_target
from mlc.targets.cpu.cost import Tile
from mlc.targets.cpu.schedules.conv_blocking import cut_for_caches
from mlc.targets.cpu.schedules.conv_tile import Border, conv_product, conv_tile
from mlc.targets.x86.record import record_for
from mlc.tuning.whole import build_module

OPTIONS = CompileOptions("volumes", "onnx", "0" * 64)
ZEN5 = record_for("znver5")


def volume(channels: int, filters: int, size: int, taps: int, stride: int) -> Graph:
    rng, g = np.random.default_rng(0), Builder("conv")
    x = g.input("x", TensorType((1, channels, size, size, size), f32))
    w = g.constant(rng.integers(-2, 3, (filters, channels, *[taps] * 3)).astype(np.float32), "w")
    attrs = {"strides": (stride,) * 3, "pads": (taps // 2,) * 6, "dilations": (1,) * 3, "groups": 1}
    return g.finish(g.add(get("conv"), [x, w], attrs, sources=["conv"]))


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("channels, chunk", [(20, 8), (20, 16), (24, 8)])
def test_ragged_chunks_give_the_same(channels: int, chunk: int, prefetch: bool) -> None:
    graph = volume(channels, 72, 5, 3, 2)
    feeds = {"x": np.random.default_rng(1).integers(-2, 3, (1, channels, 5, 5, 5)).astype(np.float32)}
    knobs = {"chunk": chunk, "prefetch": prefetch}
    with build_module(graph, get_target("x86 -mcpu=haswell"), OPTIONS, 1, Given({"conv": knobs})) as module:
        (found,) = module.run(feeds).values()
    (wanted,) = run_graph(graph, feeds).values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "channels, filters, taps, wanted",
    [
        (80, 112, 5, {"vectors": 4, "chunk": 16, "prefetch": False}),
        (184, 216, 3, {"vectors": 5, "chunk": 48, "prefetch": False}),
        (256, 256, 3, {"vectors": 4, "chunk": 16, "prefetch": True}),
    ],
)
def test_few_pixels_have_tiles_of_many_channels(channels, filters, taps, wanted) -> None:  # type: ignore[no-untyped-def]
    """What a search had found for ALT's figure 9, C3D-5, and did not for C3D-8."""
    task = in_network(volume(channels, filters, 8, taps, 2), get_target("x86 -mcpu=znver5"))
    assert task is not None
    default = task.space.default
    assert {name: default[name] for name in wanted} == wanted


def test_a_tile_that_loses_pixels_saves_what_its_latency_leaves() -> None:
    border = Border(1.0, 4, ((1, 4), (0, 4), (0, 3)), volume=True)
    assert border.inside == pytest.approx(10 / 12)
    # 8 sums wait for each other already; 16 are 12 where a pixel is outside
    assert border.share(Tile(4, 2), ZEN5) == pytest.approx(1.0)
    assert border.share(Tile(4, 4), ZEN5) == pytest.approx(10 / 12)
    product = conv_product((1, 64, 4, 4, 4), (1, 64, 4, 4, 4), (3, 3, 3), False, ZEN5)
    assert conv_tile(product, ZEN5, border=border).vectors == 4


def test_channels_that_are_no_whole_vectors_are_cut_where_tiles_outrun_the_third_cache() -> None:
    x, y, taps = (1, 184, 8, 8, 8), (1, 216, 4, 4, 4), (3, 3, 3)
    assert cut_for_caches(x, y, taps, False, Tile(4, 5), ZEN5).chunk == 48
    assert cut_for_caches(x, (1, 216, 8, 8, 8), taps, False, Tile(8, 2), ZEN5).chunk is None  # 16 bytes a cycle
    assert cut_for_caches((1, 24, 8, 8, 8), y, taps, False, Tile(4, 5), ZEN5).chunk is None  # in the second cache
