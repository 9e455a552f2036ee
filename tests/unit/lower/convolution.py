"""One convolution with bias and relu through graph, expressions, layouts and schedule: small enough to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlc.ir import te
from mlc.ir.graph import Builder, Graph, express
from mlc.ir.layout import Layout, blocked
from mlc.ir.types import TensorType, f32
from mlc.lower import Schedule
from mlc.lower.relayout import relayout
from mlc.ops import get

CHANNELS, SIZE, BLOCK = 8, 4, 4


@dataclass(frozen=True)
class Convolution:
    """The group as a graph, its expressions in physical index space, and a schedule of them."""

    graph: Graph
    layouts: dict[str, Layout]
    params: Sequence[te.Tensor]
    schedule: Schedule

    def draw(self) -> list[np.ndarray]:
        """Small whole numbers for the inputs, in logical order."""
        rng = np.random.default_rng(1)
        return [rng.integers(-3, 4, v.type.shape).astype(np.float32) for v in self.graph.inputs]


def group() -> Graph:
    """``relu(conv(x, w) + b)``."""
    b = Builder("g0")
    x = b.input("x", TensorType((1, CHANNELS, SIZE, SIZE), f32))
    w = b.input("w", TensorType((CHANNELS, CHANNELS, 3, 3), f32))
    bias = b.input("b", TensorType((CHANNELS,), f32))
    (y,) = b.add(get("conv"), [x, w], {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}, names=["y"])
    (column,) = b.add(get("reshape"), [bias], {"shape": (CHANNELS, 1, 1)}, names=["column"])
    (z,) = b.add(get("add"), [y, column], names=["z"])
    return b.finish(b.add(get("relu"), [z], names=["out"]))


def convolution() -> Convolution:
    """Channels in blocks, rows shared among threads, a row of sums in registers."""
    graph = group()
    values = {v: te.placeholder(v.type.shape, f32, v.name) for v in graph.inputs}
    for node in graph.nodes:
        for v, t in zip(node.outputs, express(node, [values[i] for i in node.inputs]), strict=True):
            t.name = v.name
            values[v] = t
    x, w, bias, y, _, _, out = values.values()
    assert y.op is not None
    (pad,) = (t for t in y.op.inputs if t.op is not None)
    image = blocked(x.shape, 1, BLOCK)
    weights = Layout(w.shape).split(0, BLOCK).split(2, BLOCK).reorder(0, 2, 4, 5, 3, 1)
    chosen = {x: image, pad: blocked(pad.shape, 1, BLOCK), w: weights, y: image, out: image}
    (result,), new = relayout([out], chosen)
    schedule = Schedule([result])
    for stage in schedule.stages:
        if stage.op.combiner is None and stage.op.outputs[0] not in (result, new[pad]):
            stage.compute_inline()
    _template(schedule, result, new[y], new[pad])
    layouts = {"x": image, "w": weights, "return": image}
    return Convolution(graph, layouts, [new[x], new[w], new.get(bias, bias), result], schedule)


def _template(schedule: Schedule, out: te.Tensor, conv: te.Tensor, pad: te.Tensor) -> None:
    host, inner, border = schedule[out], schedule[conv], schedule[pad]
    _, block, row, column, lane = host.axes
    rows = host.fuse(block, row)
    host.parallel(rows)
    host.unroll(column)
    host.vectorize(lane)
    border.vectorize(border.axes[-1])
    inner.compute_at(host, rows)
    inner.set_scope("register")
    _, _, _, w, o = inner.axes
    c, r, s = inner.reduce_axes
    outer, ci = inner.split(c, BLOCK)
    inner.reorder(outer, r, s, ci, w, o)
    inner.unroll(s)
    inner.unroll(w)
    inner.vectorize(o)
