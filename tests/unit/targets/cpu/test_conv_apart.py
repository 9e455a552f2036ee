"""Pixels that a stride leaves of a row-major input: read where they lie, or copied row by row."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.alt import Given, convolution, in_network
from mlc.ir.graph import Builder
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions
from mlc.targets.base import get_target
from mlc.tuning.whole import build_module

OPTIONS = CompileOptions("apart", "onnx", "0" * 64)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "batch, channels, filters, space, stride, target",
    [
        (2, 5, 24, (9, 7), 2, "x86"),
        (1, 32, 32, (6, 11), 3, "x86 -mcpu=haswell"),
        (1, 16, 20, (13,), 2, "x86"),
        (1, 7, 16, (5, 3, 6), 2, "x86 -mcpu=haswell"),
    ],
)
def test_both_ways_give_the_same(batch, channels, filters, space, stride, apart, target) -> None:  # type: ignore[no-untyped-def]
    rng, rank = np.random.default_rng(0), len(space)
    g = Builder("conv")
    x = g.input("x", TensorType((batch, channels, *space), f32))
    w, v = (
        g.constant(rng.integers(-2, 3, shape).astype(np.float32), name)
        for name, shape in (("w", (filters, channels, *[1] * rank)), ("v", (17, filters, *[3] * rank)))
    )
    attrs = {"dilations": (1,) * rank, "groups": 1}
    strided, plain = ({**attrs, "strides": (k,) * rank, "pads": (pad,) * 2 * rank} for k, pad in ((stride, 0), (1, 1)))
    (y,) = g.add(get("conv"), [x, w], strided, sources=["conv"])
    graph = g.finish(g.add(get("conv"), [y, v], plain))
    feeds = {"x": rng.integers(-2, 3, (batch, channels, *space)).astype(np.float32)}
    with build_module(graph, get_target(target), OPTIONS, 1, Given({"conv": {"apart": apart}})) as module:
        (found,) = module.run(feeds).values()
    (wanted,) = run_graph(graph, feeds).values()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "channels, filters, size, apart", [(56, 64, 28, True), (64, 128, 31, True), (64, 2048, 28, False)]
)
def test_a_copy_pays_for_many_filters(channels: int, filters: int, size: int, apart: bool) -> None:
    """What has been found by a search over layouts for few of them (ALT's figure 9, C2D-2 and C2D-5)."""
    task = in_network(convolution(channels, filters, size, 1, stride=2), get_target("x86 -mcpu=znver5"))
    assert task is not None
    assert task.space.default["apart"] is apart
