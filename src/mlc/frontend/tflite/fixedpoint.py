"""Arithmetic of 32-bit fixed-point numbers in the graph, as the kernels do it step by step."""

from __future__ import annotations

import numpy as np

from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, scalar
from mlc.ir.graph import Value
from mlc.ir.types import i32, i64

_MOST = (1 << 31) - 1


def leading_zeros(ctx: Context, x: Value) -> Value:
    """Of positive numbers in i32, by comparing them with all powers of two."""
    rank = x.type.rank
    bits = ctx.constant((np.int64(1) << np.arange(31)).astype(np.int32).reshape(*[1] * rank, 31))
    reached = cast(ctx, ctx.add("ge", [ctx.add("reshape", [x], shape=(*x.type.shape, 1)), bits]), i32)
    return arith(ctx, "sub", 32, ctx.add("reduce_sum", [reached], axes=(rank,), keepdims=False))


def high_mul(ctx: Context, a: Value, b: Value) -> Value:
    """The high half of twice a product of i32, rounded."""
    product = ctx.add("mul", [cast(ctx, a, i64), cast(ctx, b, i64)])
    return cast(ctx, ctx.add("round_shift", [product, scalar(ctx, 31, i64)]), i32)


def saturated(ctx: Context, x: Value) -> Value:
    """i64 as i32, the nearest that there is."""
    return cast(ctx, ctx.add("clip", [x], lo=-(1 << 31), hi=_MOST), i32)


def times_power(ctx: Context, x: Value, places: int) -> Value:
    """i32 times ``2**places``, saturating."""
    return saturated(ctx, arith(ctx, "mul", cast(ctx, x, i64), 1 << places))


def inverse_root(ctx: Context, x: Value) -> tuple[Value, Value]:
    """``1 / sqrt(x)`` of numbers in i32, as multiplier and shift of ``fixed_scale``; what is below 2 counts as 1.

    The number is brought between ``2**27`` and ``2**29`` by an even shift; five rounds of Newton's method follow, on
    numbers with 28 binary places.
    """
    great = arith(ctx, "ge", x, 1 << 29)
    y = ctx.add("where", [great, arith(ctx, "shr", x, 2), x])
    pairs = arith(ctx, "sub", arith(ctx, "shr", arith(ctx, "sub", leading_zeros(ctx, y), 1), 1), 1)
    right = ctx.add("sub", [arith(ctx, "add", cast(ctx, great, i32), 11), pairs])
    y = ctx.add("shl", [y, arith(ctx, "mul", pairs, 2)])
    half = ctx.add("round_shift", [arith(ctx, "shr", y, 1), scalar(ctx, 1, i32)])
    three_halves = scalar(ctx, (1 << 28) + (1 << 27), i32)
    root = scalar(ctx, 1 << 28, i32)
    for _ in range(5):
        cube = times_power(ctx, high_mul(ctx, high_mul(ctx, root, root), root), 6)
        gap = ctx.add("sub", [high_mul(ctx, three_halves, root), high_mul(ctx, half, cube)])
        root = times_power(ctx, gap, 3)
    root = high_mul(ctx, root, scalar(ctx, 1518500250, i32))  # half the root of 2
    root = ctx.add("shl", [root, arith(ctx, "max", ctx.add("neg", [right]), 0)])
    small = arith(ctx, "le", x, 1)
    multiplier = ctx.add("where", [small, scalar(ctx, _MOST, i32), root])
    shift = ctx.add("neg", [arith(ctx, "max", right, 0)])
    return multiplier, ctx.add("where", [small, scalar(ctx, 0, i32), shift])
