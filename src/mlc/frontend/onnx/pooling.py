"""Pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.onnx.emit import arith, int_list, need_rank, reshape, zeros
from mlc.frontend.onnx.registry import Context, OnnxNode, converter
from mlc.frontend.onnx.windows import Window, read_window, slide
from mlc.ir.graph import Value
from mlc.ir.types import i64

_RANKS = "1 to 3 spatial axes"


def _window(node: OnnxNode, x: Value) -> Window:
    need_rank(x, "X", 3, 5)
    return read_window(node, x.type.shape[2:], node.attr("kernel_shape", ()), crop=True)


def _pool(ctx: Context, op: str, node: OnnxNode, x: Value, **attrs: Any) -> tuple[Value, ...]:
    window = _window(node, x)
    shape, window = slide(ctx, x, window)
    if min(window.pads, default=0) < 0:
        # the specification's sum for SAME pads is negative where windows leave gaps: it cuts pixels off the ends. So it
        # is in onnxruntime for averages and norms; maxima, which it refuses, are no different
        if op == "max_pool_with_indices":
            raise UnsupportedError(f"positions of maxima where auto_pad cuts off the ends of the input, {window.pads}")
        rank = len(shape)
        begins = [max(0, -p) for p in window.pads[:rank]]
        begin, end = (0, 0, *begins), x.type.shape
        x = ctx.add("slice", [x], begin=begin, end=end, step=(1,) * (rank + 2))
        window = replace(window, pads=tuple(max(0, p) for p in window.pads))
    if 0 in shape:
        dtypes = (x.type.dtype, i64) if op == "max_pool_with_indices" else (x.type.dtype,)
        return tuple(zeros(ctx, (*x.type.shape[:2], *shape), dtype) for dtype in dtypes)
    return ctx.add_many(op, [x], {"kernel": window.kernel, **window.attrs, "output_shape": shape, **attrs})


@converter("MaxPool", limits=_RANKS)
def max_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    if len(node.outputs) > 1 and node.outputs[1]:
        column_major = bool(node.attr("storage_order", 0))
        return [*_pool(ctx, "max_pool_with_indices", node, inputs[0], column_major=column_major)]
    return [*_pool(ctx, "max_pool", node, inputs[0])]


@converter("AveragePool", limits=_RANKS)
def average_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    include_pad = bool(node.attr("count_include_pad", 0))
    return [*_pool(ctx, "avg_pool", node, inputs[0], count_include_pad=include_pad)]


@converter("LpPool", since=2, limits=_RANKS)
def lp_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [*_pool(ctx, "lp_pool", node, inputs[0], p=node.attr("p", 2))]


def _space(x: Value) -> tuple[int, ...]:
    """Every axis behind batch and channel."""
    return tuple(range(2, need_rank(x, "X", 3)))


@converter("GlobalAveragePool", "GlobalMaxPool")
def global_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    op = "reduce_mean" if node.op_type == "GlobalAveragePool" else "reduce_max"
    return [ctx.add(op, inputs, axes=_space(inputs[0]), keepdims=True)]


@converter("GlobalLpPool", since=2)
def global_lp_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [lp_norm(ctx, inputs[0], _space(inputs[0]), node.attr("p", 2))]


def lp_norm(ctx: Context, x: Value, axes: tuple[int, ...], p: int) -> Value:
    """``sum(|x| ** p) ** (1 / p)`` over ``axes``, which stay with extent 1.

    Raises:
        ImportModelError: ``p`` is below 1.
    """
    if p < 1:
        raise ImportModelError(f"a norm of order {p}")
    if p == 2:
        return ctx.add("sqrt", [ctx.add("reduce_sum", [ctx.add("mul", [x, x])], axes=axes, keepdims=True)])
    size = ctx.add("abs", [x])
    if p == 1:
        return ctx.add("reduce_sum", [size], axes=axes, keepdims=True)
    total = ctx.add("reduce_sum", [arith(ctx, "pow", size, p)], axes=axes, keepdims=True)
    return arith(ctx, "pow", total, 1.0 / p)


@converter("MaxUnpool", since=9, limits=_RANKS)
def max_unpool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Scatters the maxima back; positions count in the shape that the window arithmetic gives."""
    x, indices, wanted = (*inputs, None)[:3]
    window = _window(node, x)
    rank = x.type.rank - 2
    pads = int_list(node, "pads", 2 * rank, 0)
    space = [
        (n - 1) * window.strides[d] - pads[d] - pads[rank + d] + window.kernel[d]
        for d, n in enumerate(x.type.shape[2:])
    ]
    shape = (*x.type.shape[:2], *space)
    if indices.type.shape != x.type.shape:
        raise ImportModelError(f"X has shape {x.type.shape}, its indices {indices.type.shape}")
    if min(shape) < 1:
        raise ImportModelError(f"the output would have shape {shape}")
    flat = zeros(ctx, (int(np.prod(shape)),), x.type.dtype)
    y = ctx.add("scatter_elements", [flat, reshape(ctx, indices, [-1]), reshape(ctx, x, [-1])], axis=0)
    y = reshape(ctx, y, shape)
    if wanted is None:
        return [y]
    target = tuple(int(n) for n in ctx.require_const(wanted, "the output shape"))
    if len(target) != len(shape) or any(t < n for t, n in zip(target, shape, strict=True)):
        raise ImportModelError(f"output_shape {target} is smaller than {shape}")
    after = tuple(t - n for t, n in zip(target, shape, strict=True))
    return [y if not any(after) else ctx.add("pad", [y], pads=(0,) * len(shape) + after)]
