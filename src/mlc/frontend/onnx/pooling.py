"""Pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import need_rank, reshape, zeros
from mlc.frontend.common.pooling import lp_norm, pool
from mlc.frontend.common.windows import Window
from mlc.frontend.onnx.axes import int_list
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.frontend.onnx.windows import read_window
from mlc.ir.graph import Value

_RANKS = "1 to 3 spatial axes"


def _window(node: OnnxNode, x: Value) -> Window:
    need_rank(x, "X", 3, 5)
    return read_window(node, x.type.shape[2:], node.attr("kernel_shape", ()), crop=True)


@converter("MaxPool", limits=_RANKS)
def max_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    if len(node.outputs) > 1 and node.outputs[1]:
        column_major = bool(node.attr("storage_order", 0))
        return [*pool(ctx, "max_pool_with_indices", inputs[0], _window(node, inputs[0]), column_major=column_major)]
    return [*pool(ctx, "max_pool", inputs[0], _window(node, inputs[0]))]


@converter("AveragePool", limits=_RANKS)
def average_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    include_pad = bool(node.attr("count_include_pad", 0))
    return [*pool(ctx, "avg_pool", inputs[0], _window(node, inputs[0]), count_include_pad=include_pad)]


@converter("LpPool", since=2, limits=_RANKS)
def lp_pool(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [*pool(ctx, "lp_pool", inputs[0], _window(node, inputs[0]), p=node.attr("p", 2))]


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
