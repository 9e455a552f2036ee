"""What there is to choose for each operator: tilings, orders and packing, and whatever is chosen means the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.interp.loop import run_function
from mlc.ir.layout import Layout
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config, Factors, Permutation
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tuning.features import LoopFeatures
from mlc.tuning.task import Task, candidate, tasks_of
from tests.unit.rewrite.helpers import Net

TARGET = get_target("x86 -mcpu=haswell")
OPTIONS = CompileOptions("spaces", "onnx", "")


def _windowed(
    op: str, channels: int, edge: int, weights: tuple[int, ...] | None, stride: int = 1, **more: Any
) -> Callable[[], Graph]:
    """An operator with a window, padded by half of it."""

    def graph() -> Graph:
        g = Builder(op)
        x = g.input("x", TensorType((1, channels, edge, edge), f32))
        k = 3 if weights is None else weights[-1]
        attrs = {"strides": (stride, stride), "pads": (k // 2,) * 4, "dilations": (1, 1), **more}
        constants = [] if weights is None else [g.constant(np.ones(weights, np.float32), "w")]
        (y,) = g.add(get(op), [x, *constants], attrs, names=["y"])
        return g.finish([y])

    return graph


def _product(m: int, k: int, n: int) -> Callable[[], Graph]:
    def graph() -> Graph:
        g = Builder("product")
        x = g.input("x", TensorType((m, k), f32))
        (y,) = g.add(get("matmul"), [x, g.constant(np.ones((k, n), np.float32), "w")], names=["y"])
        return g.finish([y])

    return graph


def _gated(rows: int, depth: int, units: int) -> Callable[[], Graph]:
    """A product, the second half of whose columns says how much of the first is let through."""

    def graph() -> Graph:
        n = Net()
        y = n.matmul(n.x(rows, depth), n.w(depth, 2 * units))
        halves = [n.slice(y, begin=(0, k * units), end=(rows, (k + 1) * units), step=(1, 1)) for k in range(2)]
        return n(n.mul(halves[0], n.sigmoid(halves[1])))

    return graph


def _attention(heads: int, rows: int, keys: int, depth: int) -> Callable[[], Graph]:
    def graph() -> Graph:
        g = Builder("attention")
        shapes = {"q": (1, heads, rows, depth), "k": (1, heads, keys, depth), "v": (1, heads, keys, depth)}
        (y,) = g.add(
            get("attention"), [g.input(n, TensorType(s, f32)) for n, s in shapes.items()], {"scale": 0.5}, names=["y"]
        )
        return g.finish([y])

    return graph


def _pool(edge: int) -> dict[str, Any]:
    return {"kernel": (3, 3), "output_shape": (edge, edge)}


LARGE = 100_000  # configurations of convolutions and products
SMALL = 1_000  # of windows
SPACES: dict[str, tuple[Callable[[], Graph], int]] = {
    "3x3": (_windowed("conv", 64, 28, (64, 64, 3, 3), 2, groups=1), LARGE),
    "1x1": (_windowed("conv", 64, 28, (128, 64, 1, 1), groups=1), LARGE),
    "first": (_windowed("conv", 3, 56, (32, 3, 7, 7), 2, groups=1), LARGE),
    "odd": (_windowed("conv", 37, 27, (53, 37, 5, 5), groups=1), LARGE),
    "groups": (_windowed("conv", 60, 28, (60, 20, 1, 1), groups=3), LARGE),
    "Winograd": (_windowed("conv", 128, 28, (128, 128, 3, 3), groups=1), LARGE),
    "product": (_product(128, 768, 768), LARGE),
    "ragged product": (_product(37, 150, 75), LARGE),
    "Winograd of few channels": (_windowed("conv", 16, 32, (16, 16, 3, 3), groups=1), LARGE),
    "transposed": (_windowed("conv_transpose", 128, 16, (128, 64, 5, 5), 2, groups=1), LARGE),
    "transposed rows": (_windowed("conv_transpose", 128, 32, (128, 3, 5, 5), 2, groups=1), LARGE),
    "gates": (_gated(1, 600, 672), LARGE),
    "attention": (_attention(12, 128, 128, 64), LARGE),
    "depthwise": (_windowed("conv", 48, 14, (48, 1, 3, 3), groups=48), SMALL),
    "depthwise 5x5": (_windowed("conv", 48, 7, (48, 1, 5, 5), groups=48), SMALL),
    "pool": (_windowed("max_pool", 48, 13, None, **_pool(13)), SMALL),
}


def _task(graph: Graph) -> Task:
    return tasks_of(graph, TARGET, OPTIONS, Observer())[-1]


@pytest.mark.parametrize("name", SPACES)
def test_every_operator_has_tilings_and_orders_to_choose(name: str) -> None:
    graph, least = SPACES[name]
    space = _task(graph()).space
    assert space.size >= least
    assert {Factors, Permutation} <= {type(k) for k in space.knobs}


def test_what_tuning_has_taught() -> None:
    """Rows of taps of large windows are unrolled; full tiles of what is not packed take several steps an iteration."""
    machine = get_target("x86 -mcpu=znver5")

    def default(graph: Graph) -> Config:
        return tasks_of(graph, machine, OPTIONS, Observer())[-1].space.default

    def behind(taps: int) -> Graph:
        """A depthwise layer behind another one, which gives it blocks of channels."""
        n = Net()
        attrs = {"strides": (1, 1), "dilations": (1, 1)}
        x = n.conv(n.x(1, 8, 28, 28), n.w(48, 8, 1, 1), pads=(0,) * 4, groups=1, **attrs)
        return n(n.conv(x, n.w(48, 1, taps, taps), pads=(taps // 2,) * 4, groups=48, **attrs))

    large, small = default(behind(5)), default(behind(3))
    assert (large["columns"], large["unrolled"]) == (14, 1)
    assert (small["columns"], small["unrolled"]) == (7, 2)
    n = Net()
    assert default(n(n.matmul(n.x(16, 50, 32), n.x(16, 32, 50, name="y"))))["steps"] == 4
    assert default(_product(37, 768, 2304)())["steps"] == 1


MEANT: dict[str, Callable[[], Graph]] = {
    "3x3": _windowed("conv", 8, 5, (16, 8, 3, 3), 2, groups=1),
    "1x1": _windowed("conv", 16, 4, (24, 16, 1, 1), groups=1),
    "groups": _windowed("conv", 12, 4, (8, 6, 1, 1), groups=2),
    "Winograd": _windowed("conv", 8, 4, (8, 8, 3, 3), groups=1),
    "product": _product(12, 24, 32),
    "ragged product": _product(7, 10, 24),
    "Winograd tile by tile": _windowed("conv", 16, 12, (16, 16, 3, 3), groups=1),
    "transposed": _windowed("conv_transpose", 8, 3, (8, 16, 3, 3), 2, groups=1),
    "transposed rows": _windowed("conv_transpose", 8, 6, (8, 3, 3, 3), 2, groups=1),
    "gates": _gated(1, 12, 64),
    "gates of rows": _gated(3, 10, 20),
    "attention": _attention(4, 6, 8, 16),
    "ragged attention": _attention(3, 5, 7, 9),
    "depthwise": _windowed("conv", 3, 7, (3, 1, 3, 3), groups=3),
    "depthwise 5x5": _windowed("conv", 3, 6, (3, 1, 5, 5), groups=3),
    "pool": _windowed("max_pool", 3, 7, None, **_pool(7)),
}


@pytest.mark.parametrize("name", MEANT)
def test_every_configuration_means_the_same(name: str) -> None:
    task = _task(MEANT[name]())
    rng = np.random.default_rng(7)
    rows = task.space.sample(rng, 100)
    rows = rows[LoopFeatures(task, TARGET).valid(rows)][:2]
    logical = [rng.standard_normal(v.type.shape).astype(np.float32) for v in task.node.inputs]
    wanted: np.ndarray | None = None
    for config in [dict(task.space.default), *map(task.space.config, rows)]:
        node = candidate(task, TARGET, config)
        kernel = TARGET.kernel(node, "k")
        packed = [_packed(x, v.type.layout) for x, v in zip(logical, node.inputs, strict=True)]
        out = np.full(kernel.params[-1].shape, np.nan, np.float32)
        run_function(kernel, [*(x.reshape(b.shape) for x, b in zip(packed, kernel.params, strict=False)), out])
        (result,) = node.outputs
        found = out.reshape(result.type.physical_shape)
        found = found if result.type.layout is None else result.type.layout.unpack(found)
        wanted = found if wanted is None else wanted
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4, err_msg=str(config))
    assert wanted is not None
    assert np.isfinite(wanted).all()


def _packed(x: np.ndarray, layout: Layout | None) -> np.ndarray:
    return x if layout is None else layout.pack(x)
