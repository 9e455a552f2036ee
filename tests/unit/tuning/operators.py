"""Complex operators, each as one of a network, and what configurations of both spaces make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mlc.errors import LowerError, ScheduleError
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_function
from mlc.ir.interp.graph import run_node
from mlc.ir.layout import Layout
from mlc.ir.loop import Function
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target, is_layout_knob
from mlc.tuning.joint import layout_space, loop_space
from mlc.tuning.task import Task, candidate, tasks_of

TARGET = get_target("x86 -mcpu=haswell")
OPTIONS = CompileOptions("joint", "onnx", "", disabled_passes=frozenset({"winograd"}))


def convolution(
    channels: int, filters: int, space: tuple[int, ...], taps: int, *, stride: int = 1, dilation: int = 1,
    groups: int = 1, pad: int = 0, batch: int = 1,
) -> Graph:  # fmt: skip
    """A convolution of small whole numbers, with a bias and an activation behind it."""
    g, rank = Builder("conv"), len(space)
    rng = np.random.default_rng(channels + 7 * filters)
    x = g.input("x", TensorType((batch, channels, *space), f32))
    w = rng.integers(-3, 4, (filters, channels // groups, *[taps] * rank)).astype(np.float32)
    bias = rng.integers(-3, 4, (filters, *[1] * rank)).astype(np.float32)
    attrs = {"strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (dilation,) * rank, "groups": groups}
    (y,) = g.add(get("conv"), [x, g.constant(w, "w")], attrs)
    (b,) = g.add(get("add"), [y, g.constant(bias, "b")])
    (r,) = g.add(get("relu"), [b], names=["r"])
    return g.finish([r])


def transposed(
    channels: int, filters: int, space: tuple[int, ...], taps: int, *, stride: int = 2, dilation: int = 1,
    groups: int = 1, pad: int = 0, more: int = 0, batch: int = 1,
) -> Graph:  # fmt: skip
    """A transposed convolution, with a bias and an activation behind it; ``more`` is its output padding."""
    g, rank = Builder("transposed"), len(space)
    rng = np.random.default_rng(channels + 7 * filters)
    x = g.input("x", TensorType((batch, channels, *space), f32))
    w = rng.integers(-3, 4, (channels, filters // groups, *[taps] * rank)).astype(np.float32)
    bias = rng.integers(-3, 4, (filters, *[1] * rank)).astype(np.float32)
    reach = (taps - 1) * dilation + 1
    attrs = {
        "strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (dilation,) * rank, "groups": groups,
        "output_shape": tuple((n - 1) * stride + reach - 2 * pad + more for n in space),
    }  # fmt: skip
    (y,) = g.add(get("conv_transpose"), [x, g.constant(w, "w")], attrs)
    (b,) = g.add(get("add"), [y, g.constant(bias, "b")])
    (r,) = g.add(get("relu"), [b], names=["r"])
    return g.finish([r])


def product(m: int, k: int, n: int, batch: tuple[int, ...] = ()) -> Graph:
    g = Builder("product")
    rng = np.random.default_rng(m + 7 * n)
    x = g.input("x", TensorType((*batch, m, k), f32))
    (y,) = g.add(get("matmul"), [x, g.constant(rng.integers(-3, 4, (k, n)).astype(np.float32), "w")], names=["y"])
    return g.finish([y])


OPERATORS: dict[str, Callable[[], Graph]] = {
    "C1D": lambda: convolution(8, 16, (12,), 3, pad=1),
    "C2D": lambda: convolution(4, 8, (8, 6), 3, stride=2, pad=1),
    "C3D": lambda: convolution(2, 4, (3, 4, 4), 2),
    "GRP": lambda: convolution(8, 16, (4, 6), 3, groups=2, pad=1),
    "DEP": lambda: convolution(12, 12, (6, 8), 3, groups=12, pad=1),
    "DIL": lambda: convolution(2, 8, (6, 4), 3, dilation=2, pad=2),
    "T1D": lambda: transposed(4, 8, (6,), 3, stride=3),
    "T2D": lambda: transposed(8, 16, (4, 3), 3, pad=1, more=1),
    "T3D": lambda: transposed(2, 4, (2, 1, 2), 3, pad=1),
    "T2D with groups": lambda: transposed(4, 8, (3, 4), 3, groups=2, pad=1),
    "T2D of channels": lambda: transposed(8, 8, (3, 4), 2, groups=8),
    "GMM": lambda: product(12, 8, 24),
}


def task_of(graph: Graph, target: Target = TARGET) -> Task:
    """The operator as one in a network, whose readers take any layout."""
    task = tasks_of(graph, target, OPTIONS, Observer())[-1]
    return replace(task, site=replace(task.site, row_major=False))


def kernel_of(task: Task, config: Config, target: Target) -> Function:
    """The loops of a configuration, on the processor or on the device beside it."""
    node = candidate(task, target, config)
    if task.constants is None:
        return target.kernel(node, "k")
    assert target.accelerator is not None
    found: tuple[Function, ...] = target.accelerator.kernel(node, "k", {})
    return found[0]


def results(task: Task, config: Config, operands: Sequence[np.ndarray], target: Target = TARGET) -> np.ndarray:
    """What a configuration gives by the interpreter of loops, logical."""
    node, kernel = candidate(task, target, config), kernel_of(task, config, target)
    arrays = [_packed(a, v.type.layout) for a, v in zip(operands, node.inputs, strict=True)]
    out = np.full(kernel.params[-1].shape, np.nan, np.float32)
    run_function(kernel, [*(a.reshape(b.shape) for a, b in zip(arrays, kernel.params, strict=False)), out])
    (result,) = node.outputs
    found = out.reshape(result.type.physical_shape)
    return found if result.type.layout is None else result.type.layout.unpack(found)


def _packed(x: np.ndarray, layout: Layout | None) -> np.ndarray:
    return x if layout is None else layout.pack(x)


def check(graph: Graph, seed: int, *, levels: int, layouts: int, loops: int, target: Target = TARGET) -> int:
    """Random layouts, and random loops under each: how many there were that none of the rules refuses."""
    task, rng = task_of(graph, target), np.random.default_rng(seed)
    space = layout_space(task, target, levels)
    assert space is not None
    operands = [rng.integers(-3, 4, v.type.shape).astype(np.float32) for v in task.node.inputs]
    (wanted,) = run_node(task.node, operands)
    done = 0
    for row in space.sample(rng, layouts):
        inner = loop_space(task, target, space.config(row))
        assert inner is not None
        assert {k.name for k in inner.knobs if is_layout_knob(k.name)} == {k.name for k in space.knobs}
        for config in [dict(inner.default), *map(inner.config, inner.sample(rng, loops))]:
            try:
                found = results(task, config, operands, target)
            except (ScheduleError, LowerError):
                continue
            np.testing.assert_array_equal(found, wanted, err_msg=str(config))
            done += 1
    return done
