"""Pools, over channels last."""

from __future__ import annotations

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, need_rank, scalar
from mlc.frontend.common.pooling import pool
from mlc.frontend.common.windows import Window, slide
from mlc.frontend.tflite.activations import fused
from mlc.frontend.tflite.conv import channels_first, channels_last, read_window
from mlc.frontend.tflite.quant import activation_range
from mlc.frontend.tflite.registry import Operator, converter
from mlc.ir.graph import Value
from mlc.ir.types import i32


def _window(op: Operator, x: Value) -> Window:
    need_rank(x, "the input", 4, 4)
    return read_window(op, x.type.shape[1:3], (op.option("filter_height"), op.option("filter_width")))


def _clipped(ctx: Context, op: Operator, y: Value) -> Value:
    """Integers at the scale of the result through the fused activation."""
    activation = op.choice("fused_activation_function", "ActivationFunctionType")
    lo, hi = activation_range(activation, op.result_scale(), op.dtype())
    full = (int(op.dtype().min_value), int(op.dtype().max_value))
    if y.type.dtype is not op.dtype() or (lo, hi) != full:
        y = ctx.add("clip", [y], lo=lo, hi=hi)
    return cast(ctx, y, op.dtype())


@converter("MAX_POOL_2D")
def max_pool(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    (y,) = pool(ctx, "max_pool", channels_first(ctx, x), _window(op, x))
    return [channels_last(ctx, _clipped(ctx, op, y) if op.quantised() else fused(ctx, op, y))]


@converter("AVERAGE_POOL_2D")
def average_pool(ctx: Context, op: Operator) -> list[Value]:
    """Padding counts for nothing; integers are divided by rounding halves away from zero."""
    x = op.input(0)
    window = _window(op, x)
    data = channels_first(ctx, x)
    if not op.quantised():
        (y,) = pool(ctx, "avg_pool", data, window)
        return [channels_last(ctx, fused(ctx, op, y))]
    sums, counts = _sums(ctx, data, window)
    half = ctx.constant((counts // 2).astype(np.int32))
    away = ctx.add("where", [arith(ctx, "gt", sums, 0), half, ctx.add("neg", [half])])
    y = ctx.add("div", [ctx.add("add", [sums, away]), ctx.constant(counts.astype(np.int32))])
    return [channels_last(ctx, _clipped(ctx, op, y))]


def _sums(ctx: Context, data: Value, window: Window) -> tuple[Value, np.ndarray]:
    """Sums over windows in i32, and how many elements each has, as ``[1, 1, h, w]``."""
    space, channels = data.type.shape[2:], data.type.shape[1]
    outputs, slid = slide(ctx, data, window)
    if min(outputs) < 1:
        raise ImportModelError(f"windows {window.kernel} over {space} give nothing")
    if outputs == (1, 1) and window.kernel == space and not any(window.pads):
        total = ctx.add("reduce_sum", [cast(ctx, data, i32)], axes=(2, 3), keepdims=True)
        return total, np.full((1, 1, 1, 1), space[0] * space[1])
    ones = np.ones((channels, 1, *slid.kernel), data.type.dtype.numpy)
    ctx.check_constant(ones.shape, ones.itemsize)
    weights = ctx.add("broadcast_to", [scalar(ctx, 1, data.type.dtype)], shape=ones.shape)
    sums = ctx.add("conv", [data, weights], **slid.attrs, groups=channels)
    ctx.check_constant(outputs, 8)
    per_axis = []
    for d in (0, 1):
        begins = np.arange(outputs[d]) * window.strides[d] - window.pads[d]
        per_axis.append(np.minimum(begins + window.kernel[d], space[d]) - np.maximum(begins, 0))
    return sums, (per_axis[0][:, None] * per_axis[1][None, :]).reshape(1, 1, *outputs)


@converter("L2_POOL_2D")
def l2_pool(ctx: Context, op: Operator) -> list[Value]:
    """The root of the mean square of each window."""
    x = op.input(0)
    (y,) = pool(ctx, "avg_pool", channels_first(ctx, ctx.add("mul", [x, x])), _window(op, x))
    return [channels_last(ctx, fused(ctx, op, ctx.add("sqrt", [y])))]
