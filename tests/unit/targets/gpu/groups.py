"""Groups of every kind for which there is a schedule, in small and odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.interp import run_graph
from mlc.ir.types import DType, TensorType, bf16, f16, f32, i8, i64
from mlc.ops import get
from mlc.rewrite.fuse import fuse
from mlc.rewrite.gates import fuse_gates
from mlc.training.optimizers import optimizer

Make = Callable[[Builder], Sequence[Value]]


def put(b: Builder, op: str, inputs: Sequence[Value], **attrs: object) -> Value:
    return b.add(get(op), inputs, attrs)[0]


def x(b: Builder, *shape: int, name: str = "x", dtype: DType = f32) -> Value:
    return b.input(name, TensorType(shape, dtype))


def window(rank: int, stride: int = 1, pad: int = 1, dilation: int = 1) -> dict[str, object]:
    return {"strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (dilation,) * rank}


def conv(
    b: Builder,
    shape: Sequence[int],
    weights: Sequence[int],
    *,
    groups: int = 1,
    stride: int = 1,
    pad: int = 1,
    dtype: DType = f32,
) -> Value:
    settings = window(len(shape) - 2, stride, pad)
    return put(b, "conv", [x(b, *shape, dtype=dtype), x(b, *weights, name="w", dtype=dtype)], **settings, groups=groups)


def conv_transpose(b: Builder, shape: Sequence[int], weights: Sequence[int], stride: int, *, groups: int = 1) -> Value:
    settings = window(len(shape) - 2, stride)
    return put(b, "conv_transpose", [x(b, *shape), x(b, *weights, name="w")], **settings, groups=groups)


def biased(b: Builder) -> Sequence[Value]:
    y = conv(b, (2, 3, 7, 5), (6, 3, 3, 3), stride=2)
    return [put(b, "relu", [put(b, "add", [y, x(b, 6, 1, 1, name="bias")])])]


def several(b: Builder) -> Sequence[Value]:
    """Three results of one stage, as what an optimizer makes of a parameter."""
    parameter, derivative, loss = x(b, 5, 7), x(b, 5, 7, name="d"), x(b, 1, name="loss")
    moments, rates = [x(b, 5, 7, name=f"m{k}") for k in range(2)], x(b, 3, name="rates")
    return optimizer("adam").add(b, parameter, derivative, moments, rates, loss)


def winograd(b: Builder, shape: Sequence[int], filters: int, tile: int, *, slices: Sequence[int] = ()) -> Value:
    """A convolution by tiles, with what follows it."""
    points = tile + 2
    weights = x(b, *slices, points, points, shape[1], filters, name="w")
    y = put(b, "conv_winograd", [x(b, *shape), weights], pads=(1,) * 2 * (len(shape) - 2), tile=tile)
    return put(b, "relu", [put(b, "add", [y, x(b, filters, *(1,) * (len(shape) - 2), name="bias")])])


def bytes_product(b: Builder) -> Sequence[Value]:
    return [put(b, "matmul", [x(b, 9, 12, dtype=i8), x(b, 12, 11, name="w", dtype=i8)])]


def half_product(b: Builder) -> Sequence[Value]:
    y = put(b, "matmul", [x(b, 17, 24, dtype=f16), x(b, 24, 19, name="w", dtype=f16)])
    return [put(b, "relu", [put(b, "add", [y, x(b, 19, name="bias", dtype=f16)])])]


def brain_product(b: Builder) -> Sequence[Value]:
    return [put(b, "matmul_wide", [x(b, 9, 24, dtype=bf16), x(b, 24, 12, name="w", dtype=bf16)])]


def brain_conv(b: Builder) -> Sequence[Value]:
    operands = [x(b, 1, 4, 6, 5, dtype=bf16), x(b, 9, 4, 3, 3, name="w", dtype=bf16)]
    return [put(b, "conv_wide", operands, **window(2, 1, 1))]


def lstm(b: Builder, rows: int, terms: int, width: int, dtype: DType = f32) -> Sequence[Value]:
    """A step of an LSTM: its cell and its state, and weights of some type."""
    w = b.constant(np.random.default_rng(2).standard_normal((terms, 4 * width)).astype(dtype.numpy), "w")
    y = put(b, "matmul", [x(b, rows, terms), w])
    y = put(b, "add", [x(b, rows, 4 * width, name="scanned"), y])
    i, o, f, g = (
        put(b, "slice", [y], begin=(0, k * width), end=(rows, k * width + width), step=(1, 1)) for k in range(4)
    )
    kept = put(b, "mul", [put(b, "sigmoid", [f]), x(b, rows, width, name="cell")])
    cell = put(b, "add", [kept, put(b, "mul", [put(b, "sigmoid", [i]), put(b, "tanh", [g])])])
    return [cell, put(b, "mul", [put(b, "sigmoid", [o]), put(b, "tanh", [cell])])]


def itself(b: Builder) -> Sequence[Value]:
    a = x(b, 12, 9)
    return [put(b, "matmul", [a, a], transpose_b=True)]


def attention(b: Builder, heads: int, rows: int, keys: int, depth: int, width: int, *, mask: bool) -> Sequence[Value]:
    operands = [x(b, heads, rows, depth), x(b, heads, keys, depth, name="k"), x(b, heads, keys, width, name="v")]
    if mask:
        operands.append(x(b, rows, keys, name="mask"))
    return [put(b, "attention", operands, scale=0.25)]


def pixels(b: Builder) -> Sequence[Value]:
    """Largest elements of windows of one, and where they are."""
    attrs = {"kernel": (1, 1), "output_shape": (1, 1), **window(2, 1, 0)}
    return b.add(get("max_pool_with_indices"), [x(b, 2, 3, 1, 1)], attrs)


CASES: dict[str, Make] = {
    "several_results": several,
    "matmul": lambda b: [put(b, "matmul", [x(b, 17, 11), x(b, 11, 19, name="w")])],
    "matmul_aligned": lambda b: [put(b, "matmul", [x(b, 8, 8), x(b, 8, 12, name="w")])],
    "matmul_transposed": lambda b: [put(b, "matmul", [x(b, 8, 12), x(b, 16, 12, name="w")], transpose_b=True)],
    "matmul_row": lambda b: [put(b, "matmul", [x(b, 1, 40), x(b, 40, 33, name="w")])],
    "matmul_long": lambda b: [put(b, "relu", [put(b, "matmul", [x(b, 3, 64), x(b, 64, 9, name="w")])])],
    "batch_matmul": lambda b: [put(b, "matmul", [x(b, 2, 3, 9, 6), x(b, 2, 3, 6, 5, name="w")])],
    "matmul_bytes": bytes_product,
    "matmul_itself": itself,
    "matmul_half": half_product,
    "matmul_bf16": brain_product,
    "conv_half": lambda b: [conv(b, (1, 4, 6, 5), (9, 4, 3, 3), dtype=f16)],
    "conv_bf16": brain_conv,
    "softmax_half": lambda b: [put(b, "softmax", [x(b, 5, 70, dtype=f16)], axis=-1)],
    "add_half": lambda b: [put(b, "add", [x(b, 3, 1, 8, dtype=f16), x(b, 5, 8, name="w", dtype=f16)])],
    "conv": lambda b: [conv(b, (1, 3, 6, 5), (5, 3, 3, 3))],
    "conv_bias_relu": biased,
    "conv_1x1": lambda b: [conv(b, (1, 6, 5, 5), (10, 6, 1, 1), pad=0)],
    "conv_groups": lambda b: [conv(b, (1, 4, 5, 4), (6, 2, 3, 3), groups=2)],
    "conv_1d": lambda b: [conv(b, (2, 4, 11), (6, 4, 3))],
    "conv_3d": lambda b: [conv(b, (1, 1, 3, 4, 3), (3, 1, 3, 2, 3))],
    "winograd": lambda b: [winograd(b, (2, 3, 5, 8), 5, 4)],
    "winograd_3d": lambda b: [winograd(b, (1, 2, 2, 3, 4), 3, 2, slices=(3,))],
    "conv_transpose": lambda b: [conv_transpose(b, (1, 4, 3, 4), (4, 3, 4, 3), 2)],
    "conv_transpose_long": lambda b: [conv_transpose(b, (1, 64, 2, 3), (64, 3, 4, 3), 2)],
    "conv_transpose_groups": lambda b: [conv_transpose(b, (2, 4, 5), (4, 3, 3), 2, groups=2)],
    "depthwise": lambda b: [conv(b, (1, 6, 9, 9), (6, 1, 3, 3), groups=6, stride=2)],
    "depthwise_1d": lambda b: [conv(b, (2, 3, 11), (6, 1, 3), groups=3)],
    "depthwise_relu": lambda b: [put(b, "relu", [conv(b, (1, 2, 5, 6), (2, 1, 5, 5), groups=2, pad=2)])],
    "max_pool": lambda b: [put(b, "max_pool", [x(b, 1, 3, 9, 9)], kernel=(3, 3), **window(2, 2))],
    "avg_pool": lambda b: [put(b, "avg_pool", [x(b, 1, 3, 9, 9)], kernel=(2, 2), **window(2, 2, 0))],
    "max_pool_of_pixels": pixels,
    "attention": lambda b: attention(b, 2, 5, 9, 4, 6, mask=True),
    "gates": lambda b: lstm(b, 2, 70, 11),
    "softmax": lambda b: [put(b, "softmax", [x(b, 5, 70)], axis=-1)],
    "softmax_narrowed": lambda b: [put(b, "cast", [put(b, "softmax", [x(b, 5, 70)], axis=-1)], to="f16")],
    "sums_narrowed": lambda b: [
        put(b, "cast", [put(b, "reduce_sum", [x(b, 9, 35)], axes=(0,), keepdims=False)], to="f16")
    ],
    "softmax_many": lambda b: [put(b, "softmax", [x(b, 2, 9, 5)], axis=-1)],
    "softmax_columns": lambda b: [put(b, "softmax", [x(b, 6, 5)], axis=0)],
    "layer_norm": lambda b: [put(b, "layer_norm", [x(b, 3, 50), x(b, 50, name="g"), x(b, 50, name="c")])],
    "layer_norm_long": lambda b: [put(b, "layer_norm", [x(b, 1, 2, 301), x(b, 301, name="g"), x(b, 301, name="c")])],
    "sum_of_all": lambda b: [put(b, "reduce_sum", [x(b, 3, 71)], axes=(0, 1), keepdims=False)],
    "mean_of_rows": lambda b: [put(b, "reduce_mean", [x(b, 2, 3, 9, 9)], axes=(2, 3), keepdims=True)],
    "sums_of_rows": lambda b: [put(b, "reduce_sum", [x(b, 3, 5, 67)], axes=(2,), keepdims=True)],
    "argmax": lambda b: [put(b, "argmax", [x(b, 4, 9)], axis=1)],
    "argmax_of_one_row": lambda b: [put(b, "argmax", [put(b, "round", [x(b, 1, 301)])], axis=1)],
    "argmin_of_rows": lambda b: [put(b, "argmin", [put(b, "round", [x(b, 3, 2, 131)])], axis=2, select_last=True)],
    "argmax_of_columns": lambda b: [put(b, "argmax", [x(b, 67, 3, dtype=f16)], axis=0)],
    "add": lambda b: [put(b, "add", [x(b, 3, 1, 8), x(b, 5, 8, name="w")])],
    "transpose": lambda b: [put(b, "transpose", [x(b, 3, 5, 4)], perm=(2, 0, 1))],
    "transpose_tiles": lambda b: [put(b, "transpose", [x(b, 2, 9, 3, 4)], perm=(0, 2, 3, 1))],
    "transpose_add": lambda b: [
        put(b, "add", [put(b, "transpose", [x(b, 11, 18)], perm=(1, 0)), x(b, 11, name="bias")])
    ],
    "concat": lambda b: [put(b, "concat", [x(b, 2, 3), x(b, 2, 4, name="w")], axis=1)],
    "reverse": lambda b: [put(b, "slice", [x(b, 9, 4)], begin=(8, 0), end=(-1, 4), step=(-2, 1))],
    "gather": lambda b: [put(b, "gather", [x(b, 7, 4), x(b, 5, name="at", dtype=i64)], axis=0)],
    "cumsum": lambda b: [put(b, "cumsum", [x(b, 3, 9)], axis=1)],
    "scatter": lambda b: [
        put(b, "scatter_elements", [x(b, 6, 4), x(b, 2, 4, name="at", dtype=i64), x(b, 2, 4, name="w")], axis=0)
    ],
    "scatter_rows": lambda b: [
        put(b, "scatter_elements", [x(b, 3, 6), x(b, 3, 4, name="at", dtype=i64), x(b, 3, 4, name="w")], axis=1)
    ],
    "scatter_sums": lambda b: [
        put(
            b,
            "scatter_elements",
            [x(b, 9), x(b, 12, name="at", dtype=i64), x(b, 12, name="w")],
            axis=0,
            reduction="add",
        )
    ],
    "top_k": lambda b: b.add(get("top_k"), [x(b, 4, 50)], {"k": 3, "axis": 1}),
    "join": lambda b: [put(b, "join", [x(b, 2, 3, 2), x(b, 2, 1, 2, name="w"), x(b, 2, 5, 2, name="v")], axis=1)],
}


@dataclass(frozen=True)
class Case:
    """A group, and what it makes of some arrays."""

    graph: Graph
    node: Node

    @classmethod
    def of(cls, name: str) -> Case:
        return cls.made(name, CASES[name])

    @classmethod
    def made(cls, name: str, make: Make) -> Case:
        b = Builder(name)
        graph = fuse(fuse_gates(b.finish(list(make(b)))))
        (node,) = graph.nodes
        return cls(graph, node)

    def feeds(self) -> dict[str, np.ndarray]:
        """Random inputs; indices are small, some beyond the end and some negative."""
        rng = np.random.default_rng(1)
        found: dict[str, np.ndarray] = {}
        for v in self.node.inputs:
            if v in self.graph.constants:
                found[v.name] = self.graph.constants[v]
            elif v.type.dtype.is_float:
                found[v.name] = rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy)
            else:
                low, high = (0, 6) if v.type.dtype is i64 else (0 if v.type.dtype.kind == "u" else -100, 100)
                found[v.name] = rng.integers(low, high, v.type.shape).astype(v.type.dtype.numpy)
        return found

    def arrays(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [feeds[v.name] for v in self.node.inputs]

    def expected(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return list(run_graph(self.graph, {v.name: feeds[v.name] for v in self.graph.inputs}).values())


def assert_close(got: Sequence[np.ndarray], want: Sequence[np.ndarray], what: str = "") -> None:
    """Equal up to rounding, whatever shape the kernel has them in; ``what`` says which kernel."""
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype, what
        if w.dtype.kind == "f":
            error = max(1e-5, float(np.finfo(w.dtype).eps))
            least = error * max(1.0, float(np.abs(w).max()))
            np.testing.assert_allclose(g.reshape(w.shape), w, rtol=error, atol=least, err_msg=what)
        else:
            np.testing.assert_array_equal(g.reshape(w.shape), w, err_msg=what)
