"""Products of floats with integer weights: the floats are quantised by the range that they have as they come."""

from __future__ import annotations

import numpy as np

from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, scalar
from mlc.frontend.tflite.quant import rounded
from mlc.ir.graph import Value
from mlc.ir.types import f32, i8, i16


def by_own_range(
    ctx: Context, rows: Value, w: Value, scales: Value, *, signed_only: bool, transpose_b: bool = True
) -> Value:
    """``rows @ w.T`` in f32, each row quantised by its own range.

    Args:
        ctx: whose graph grows.
        rows: f32 ``[…, rows, size]``.
        w: i8 ``[…, units, size]``.
        scales: of the weights, f32, one or ``[units]``.
        signed_only: whether the rows' zero points are 0.
        transpose_b: otherwise the weights are ``[…, size, units]``.
    """
    q, scale, zero = ranged(ctx, rows, (rows.type.rank - 1,), signed_only=signed_only)
    data = q if zero is None else ctx.add("sub", [cast(ctx, q, i16), cast(ctx, zero, i16)])
    sums = cast(ctx, ctx.add("matmul", [data, w], transpose_b=transpose_b), f32)
    return alone(ctx, ctx.add("mul", [sums, ctx.add("mul", [scale, scales])]))


def alone(ctx: Context, product: Value) -> Value:
    """A product that is rounded before anything is added to it, also where that is not asked for otherwise.

    The next layer quantises what comes of it, and there a last digit that differs may become a whole step.
    """
    return ctx.add("clip", [product], lo=float(np.finfo(np.float32).min))


def ranged(ctx: Context, x: Value, axes: tuple[int, ...], *, signed_only: bool) -> tuple[Value, Value, Value | None]:
    """Floats quantised to int8 by the range that they have over ``axes``, as kernels with float data do.

    Args:
        ctx: whose graph grows.
        x: f32.
        axes: that share a scale; they stay with extent 1.
        signed_only: whether the zero point is 0.
    Returns:
        integers, scales, and zero points as f32 (``None`` where they are 0).
    """
    if signed_only:
        most = ctx.add("reduce_max", [ctx.add("abs", [x])], axes=axes, keepdims=True)
        empty = ctx.add("eq", [most, scalar(ctx, 0.0, f32)])
        safe = ctx.add("where", [empty, scalar(ctx, 1.0, f32), most])
        q = rounded(ctx, ctx.add("mul", [x, ctx.add("div", [scalar(ctx, 127.0, f32), safe])]))
        q = ctx.add("clip", [q], lo=-127.0, hi=127.0)
        return cast(ctx, q, i8), arith(ctx, "div", safe, 127.0), None
    least = arith(ctx, "min", ctx.add("reduce_min", [x], axes=axes, keepdims=True), 0.0)
    most = arith(ctx, "max", ctx.add("reduce_max", [x], axes=axes, keepdims=True), 0.0)
    empty = ctx.add("eq", [least, most])
    scale = arith(ctx, "div", ctx.add("sub", [most, least]), 255.0)
    scale = ctx.add("where", [empty, scalar(ctx, 1.0, f32), scale])
    from_least = arith(ctx, "sub", -128.0, ctx.add("div", [least, scale]))
    from_most = arith(ctx, "sub", 127.0, ctx.add("div", [most, scale]))
    # from the end of the range where the rounding errors are smaller
    error_least = arith(ctx, "add", ctx.add("abs", [ctx.add("div", [least, scale])]), 128.0)
    error_most = arith(ctx, "add", ctx.add("abs", [ctx.add("div", [most, scale])]), 127.0)
    zero = ctx.add("where", [ctx.add("lt", [error_least, error_most]), from_least, from_most])
    zero = rounded(ctx, ctx.add("clip", [zero], lo=-128.0, hi=127.0))
    # rounded before the zero point is added: halves go away from 0, not from the middle of the bytes
    q = ctx.add("add", [rounded(ctx, alone(ctx, ctx.add("mul", [x, arith(ctx, "div", 1.0, scale)]))), zero])
    return cast(ctx, ctx.add("clip", [q], lo=-128.0, hi=127.0), i8), scale, zero
