"""Small networks whose tensors lie as a device wants them, and what their kernels make of random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.interp import run_function, run_graph
from mlc.ir.loop import Function
from mlc.ir.site import Site
from mlc.ir.types import DType, TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.rewrite.fuse import fuse
from mlc.rewrite.group import configured
from mlc.rewrite.layout import assign_layouts
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules import choose_layouts, schedule_group
from mlc.targets.opencl.devices import DEVICES
from tests.unit.targets.gpu.configurations import template_of
from tests.unit.targets.gpu.groups import assert_close, put, window, x

MALI = DEVICES["mali"]
Done = tuple[Function, Sequence[np.ndarray], list[np.ndarray]]  # a kernel, what it was given, what it made of that
Run = Callable[[Function, Sequence[np.ndarray]], list[np.ndarray]]


def weights(b: Builder, *shape: int, dtype: DType = f32, seed: int = 3) -> Value:
    return b.constant(np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy), f"w{len(b.nodes)}")


def conv(
    b: Builder,
    v: Value,
    shape: Sequence[int],
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    relu: bool = True,
) -> Value:
    """With constant weights, a bias and a rectifier."""
    rank, dtype = len(shape) - 2, v.type.dtype
    attrs = window(rank, stride, shape[-1] // 2 * dilation, dilation)
    y = put(b, "conv", [v, weights(b, *shape, dtype=dtype)], **attrs, groups=groups)
    if not relu:
        return y
    return put(b, "relu", [put(b, "add", [y, weights(b, shape[0], *[1] * rank, dtype=dtype)])])


def first(b: Builder, *shape: int, dtype: DType = f32) -> Value:
    """Three channels in rows, eight in blocks behind them."""
    return conv(b, x(b, *shape, dtype=dtype), (8, shape[1], *[3] * (len(shape) - 2)))


def pooled(b: Builder, dtype: DType) -> Value:
    y = put(b, "max_pool", [first(b, 1, 3, 9, 8, dtype=dtype)], kernel=(3, 3), **window(2, 2))
    s = put(b, "sigmoid", [put(b, "reduce_mean", [y], axes=(2, 3), keepdims=True)])
    return put(b, "mul", [y, s])


def residual(b: Builder, dtype: DType) -> Value:
    y = first(b, 1, 3, 5, 7, dtype=dtype)
    return put(b, "relu", [put(b, "add", [conv(b, y, (8, 8, 3, 3), relu=False), y])])


def dense(b: Builder, m: int, k: int, n: int, dtype: DType, *, transposed: bool = False) -> Value:
    w = weights(b, *((n, k) if transposed else (k, n)), dtype=dtype)
    y = put(b, "matmul", [x(b, m, k, dtype=dtype), w], transpose_b=transposed)
    return put(b, "relu", [put(b, "add", [y, weights(b, n, dtype=dtype)])])


NETWORKS: dict[str, Callable[[Builder, DType], Value]] = {
    "first": lambda b, t: first(b, 2, 3, 5, 7, dtype=t),
    "conv": lambda b, t: conv(b, first(b, 1, 3, 5, 7, dtype=t), (12, 8, 3, 3)),
    "conv_odd_channels": lambda b, t: conv(b, conv(b, x(b, 1, 5, 4, 7, dtype=t), (7, 5, 3, 3)), (6, 7, 3, 3)),
    "conv_strided": lambda b, t: conv(b, first(b, 1, 3, 9, 7, dtype=t), (16, 8, 3, 3), stride=2),
    "conv_dilated": lambda b, t: conv(b, first(b, 1, 3, 9, 7, dtype=t), (8, 8, 3, 3), dilation=2),
    "conv_1x1": lambda b, t: conv(b, first(b, 1, 3, 5, 7, dtype=t), (16, 8, 1, 1)),
    "conv_1x1_strided": lambda b, t: conv(b, first(b, 1, 3, 9, 7, dtype=t), (16, 8, 1, 1), stride=2),
    "conv_groups": lambda b, t: conv(b, first(b, 1, 3, 5, 7, dtype=t), (16, 4, 3, 3), groups=2),
    "conv_few": lambda b, t: conv(b, first(b, 1, 3, 5, 7, dtype=t), (3, 8, 3, 3)),
    "conv_1d": lambda b, t: conv(b, first(b, 2, 3, 11, dtype=t), (8, 8, 3)),
    "conv_3d": lambda b, t: conv(b, first(b, 1, 2, 3, 4, 5, dtype=t), (4, 8, 3, 3, 3)),
    "depthwise": lambda b, t: conv(b, first(b, 1, 3, 9, 7, dtype=t), (8, 1, 3, 3), groups=8),
    "depthwise_strided": lambda b, t: conv(b, first(b, 1, 3, 9, 7, dtype=t), (8, 1, 5, 5), groups=8, stride=2),
    "depthwise_1d": lambda b, t: conv(b, first(b, 1, 3, 11, dtype=t), (8, 1, 3), groups=8),
    "pooled": pooled,
    "average": lambda b, t: put(
        b, "avg_pool", [first(b, 1, 3, 6, 7, dtype=t)], kernel=(3, 3), **window(2, 2)
    ),
    "residual": residual,
    "transposed": lambda b, t: put(b, "transpose", [first(b, 1, 3, 4, 5, dtype=t)], perm=(0, 2, 3, 1)),
    "dense": lambda b, t: dense(b, 5, 12, 10, t),
    "dense_few": lambda b, t: dense(b, 3, 8, 6, t),
    "dense_row": lambda b, t: dense(b, 1, 33, 17, t, transposed=True),
    "product": lambda b, t: put(b, "matmul", [x(b, 2, 7, 9, dtype=t), x(b, 2, 9, 16, name="w", dtype=t)]),
}  # fmt: skip


def scaled(*shape: int) -> Callable[[Builder, DType], Value]:
    """Channels that are multiplied by functions of their means."""

    def make(b: Builder, dtype: DType) -> Value:
        y = first(b, *shape, dtype=dtype)
        s = put(b, "sigmoid", [put(b, "reduce_mean", [y], axes=(2, 3), keepdims=True)])
        return put(b, "mul", [y, s])

    return make


SCALED = {f"scaled_{n}_{h}_{w}": scaled(n, 3, h, w) for n in (1, 2) for h in (4, 5, 9) for w in (4, 7)}


def network(name: str, dtype: DType = f32) -> Graph:
    b = Builder(name)
    return fuse(b.finish([(NETWORKS | SCALED)[name](b, dtype)]))


def laid_out(
    graph: Graph,
    rng: np.random.Generator | None = None,
    told: Callable[[Node, int], None] = lambda node, size: None,
    target: Gpu = MALI,
) -> Graph:
    """The graph as a device wants its tensors; with ``rng``, under configurations that it draws.

    ``told`` is told of each group how many configurations it has.
    """

    def choose(node: Node, site: Site) -> tuple[Node, LayoutChoice]:
        site = replace(site, row_major=False)

        def made(node: Node, knobs: Knobs) -> LayoutChoice:
            choice = choose_layouts(node, site, target, knobs)
            schedule_group(_typed(node, site.inputs, choice), target, knobs)
            return choice

        knobs = Knobs()
        choice = made(node, knobs)
        space = knobs.space()
        told(node, space.size)
        while rng is not None and node.op.express is not None:
            config = space.config(space.sample(rng, 1)[0])
            try:
                return configured(node, config), made(node, Knobs(dict(config)))
            except ScheduleError:
                continue
        return node, choice

    return assign_layouts(graph, choose, get("identity"))


def _typed(node: Node, types: Sequence[TensorType], choice: LayoutChoice) -> Node:
    """A node over values with layouts."""
    inputs = tuple(
        Value(v.name, t.with_layout(choice.packed[k]) if k in choice.packed else t)
        for k, (v, t) in enumerate(zip(node.inputs, types, strict=True))
    )
    outputs = tuple(
        v if layout is None else Value(v.name, v.type.with_layout(layout))
        for v, layout in zip(node.outputs, choice.outputs, strict=True)
    )
    return Node(node.op, inputs, node.attrs, outputs, node.sources)


def sizes(name: str) -> dict[str, int]:
    """How many configurations the groups of a network have, by their templates."""
    found: dict[str, int] = {}

    def told(node: Node, size: int) -> None:
        if node.op.express is not None:
            template = template_of(node, MALI)
            found[template] = found.get(template, 0) + size

    laid_out(network(name), told=told)
    return found


def random_kernels(name: str, count: int) -> list[Done]:
    """Kernels of a network under so many configurations of all of it, each once, with what they were run on."""
    graph, rng = network(name), np.random.default_rng(len(name))
    found: dict[str, Done] = {}

    def run(fn: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = interpreted(fn, inputs)
        found.setdefault(repr(fn.body), (fn, inputs, results))
        return results

    for _ in range(count):
        check(graph, laid_out(graph, rng), run)
    return list(found.values())


def interpreted(fn: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(inputs) :]]
    run_function(fn, [*inputs, *results])
    return results


def check(graph: Graph, laid: Graph, run: Run = interpreted, target: Gpu = MALI) -> list[Function]:
    """All kernels of a graph one after the other compute what it says."""
    rng = np.random.default_rng(1)
    feeds = {v.name: rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs}
    values = {v: feeds[v.name] for v in laid.inputs} | dict(laid.constants)
    kernels = []
    for k, node in enumerate(laid.nodes):
        fn = kernel(node, f"k{k}", target)
        arrays = [values[v].reshape(b.shape) for v, b in zip(node.inputs, fn.params, strict=False)]
        values.update(zip(node.outputs, run(fn, arrays), strict=True))
        kernels.append(fn)
    want = list(run_graph(graph, feeds).values())
    if want[0].dtype == np.float16:
        np.testing.assert_allclose(values[laid.outputs[0]].reshape(want[0].shape), want[0], rtol=4e-3, atol=4e-2)
    else:
        assert_close([values[v] for v in laid.outputs], want)
    return kernels
