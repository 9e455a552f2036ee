"""Softmax, its logarithm, and the norm of rows; the last axis is the row."""

from __future__ import annotations

import math

import numpy as np

from mlc.errors import UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, need_rank, scalar
from mlc.frontend.tflite.fixedpoint import high_mul, inverse_root, leading_zeros, times_power
from mlc.frontend.tflite.quant import centred, dequantised, fixed_point, quantised, scale_of
from mlc.frontend.tflite.registry import Operator, converter
from mlc.frontend.tflite.tables import entries, interpolated, over_all
from mlc.ir.graph import Value
from mlc.ir.types import i16, i32, i64, u8

_DIFF_BITS, _SUM_BITS = 5, 12  # integer bits of what is exponentiated, and of sums


@converter("SOFTMAX")
def softmax(ctx: Context, op: Operator) -> list[Value]:
    x, beta = op.input(0), float(op.option("beta", 0.0))
    last = need_rank(x, "the input", 1) - 1
    if not op.quantised():
        if x.type.dtype.is_int:
            x = dequantised(ctx, x, op.scale_of(0))
        return [ctx.add("softmax", [x if beta == 1 else arith(ctx, "mul", x, beta)], axis=last)]
    dtype = op.dtype()
    op.need_result_scale(1 / 32768 if dtype is i16 else 1 / 256, 0 if dtype is i16 else int(dtype.min_value))
    if x.type.dtype is i16:
        return [_of_16_bits(ctx, op, x, beta, last)]
    return [_in_integers(ctx, op, x, beta, last)]


def _in_integers(ctx: Context, op: Operator, x: Value, beta: float, last: int) -> Value:
    """The kernel's fixed-point softmax: powers from a table, then a reciprocal of every row's sum by Newton."""
    real = min(float(np.float32(beta) * np.float64(scale_of(op.scale_of(0)))) * (1 << 26), (1 << 31) - 1.0)
    powers = _powers(real)
    wide = cast(ctx, x, i32)
    most = ctx.add("reduce_max", [wide], axes=(last,), keepdims=True)
    below = ctx.add("sub", [most, wide])
    row = ctx.add("gather", [ctx.constant(powers), below], axis=0)
    shift = scalar(ctx, _SUM_BITS, i32)
    total = ctx.add("reduce_sum", [_divided(ctx, row, shift)], axes=(last,), keepdims=True)
    zeros = leading_zeros(ctx, total)
    # the sum with its highest bit at 2**31, less that bit
    shifted = ctx.add("shl", [cast(ctx, total, i64), cast(ctx, zeros, i64)])
    fraction = cast(ctx, arith(ctx, "sub", shifted, 1 << 31), i32)
    scale = _reciprocal(ctx, fraction)
    dtype = op.dtype()
    exponent = arith(ctx, "sub", _SUM_BITS + 31 - dtype.bits, zeros)
    y = _divided(ctx, high_mul(ctx, scale, row), exponent)
    lo, hi = int(dtype.min_value), int(dtype.max_value)
    # differences beyond what the kernel exponentiates have a power of 0, and so the least result
    return cast(ctx, ctx.add("clip", [arith(ctx, "add", y, lo)], lo=lo, hi=hi), dtype)


def _of_16_bits(ctx: Context, op: Operator, x: Value, beta: float, last: int) -> Value:
    """Powers and the reciprocal of their sum from interpolated tables."""
    multiplier, shift = fixed_point(scale_of(op.scale_of(0)) * beta / (10.0 / 65535.0))
    wide = cast(ctx, x, i32)
    most = ctx.add("reduce_max", [wide], axes=(last,), keepdims=True)
    gaps = -np.arange(65536, dtype=np.int64)
    scaled_gaps = _np_scaled(gaps, multiplier, shift)
    powers = interpolated(entries(np.exp, -10.0, 0.0), np.clip(scaled_gaps + 32767, -32768, 32767))
    row = ctx.add("gather", [ctx.constant(powers.astype(np.int32)), ctx.add("sub", [most, wide])], axis=0)
    total = ctx.add("reduce_sum", [row], axes=(last,), keepdims=True)
    zeros = cast(ctx, leading_zeros(ctx, total), i64)
    # the sum between 1 and 2, with 16 places; what is over 1 is the table's argument
    lifted = ctx.add("shl", [cast(ctx, total, i64), arith(ctx, "sub", zeros, 1)])
    over = arith(ctx, "sub", ctx.add("round_shift", [lifted, scalar(ctx, 14, i64)]), 1 << 16)
    table = over_all(entries(lambda v: np.float32(1) / (np.float32(1) + v), 0.0, 1.0))
    place = cast(ctx, ctx.add("clip", [over], lo=0, hi=65535), i32)
    reciprocal = ctx.add("gather", [ctx.constant(table), place], axis=0)
    product = ctx.add("mul", [cast(ctx, row, i64), reciprocal])
    y = ctx.add("round_shift", [product, arith(ctx, "sub", 31, zeros)])
    return cast(ctx, ctx.add("clip", [y], lo=0, hi=32767), i16)


def _np_scaled(x: np.ndarray, multiplier: int, shift: int) -> np.ndarray:
    return _np_divided(_np_high_mul(x << max(shift, 0), multiplier), max(-shift, 0))


def _powers(factor: float) -> np.ndarray:
    """``exp(-d * beta * scale)`` for differences ``d`` of 8-bit numbers, with 31 binary places."""
    multiplier, shift = fixed_point(min(factor, 2.0**30 - 1))
    if factor >= 2.0**30:
        multiplier, shift = fixed_point(factor / 2)
        shift += 1
    radius = math.floor(((1 << _DIFF_BITS) - 1) * (1 << (31 - _DIFF_BITS)) / 2.0**shift)
    diffs = -np.arange(256, dtype=np.int64)
    kept = np.maximum(diffs, -radius)
    rescaled = _np_high_mul(kept << max(shift, 0), multiplier)
    return np.where(diffs >= -radius, _np_exp(rescaled), 0).astype(np.int32)


def _np_exp(a: np.ndarray) -> np.ndarray:
    """``exp`` of negative numbers with 26 binary places: a polynomial on a quarter, then a factor for each bit."""
    quarter = 1 << 24
    within = (a & (quarter - 1)) - quarter
    x = (within << _DIFF_BITS) + (1 << 28)
    x2 = _np_high_mul(x, x)
    x3, x4 = _np_high_mul(x2, x), _np_high_mul(x2, x2)
    inner = _np_high_mul(_np_divided(x4, 2) + x3, 715827883) + x2  # a third
    result = 1895147668 + _np_high_mul(x + _np_divided(inner, 1), 1895147668)  # exp(-1/8)
    rest = within - a
    # exp of minus a quarter, a half, 1, 2, 4, 8, 16
    for k, factor in enumerate((1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)):
        result = np.where(rest & (quarter << k), _np_high_mul(result, factor), result)
    return np.where(a == 0, (1 << 31) - 1, result)


def _np_high_mul(a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
    return (a.astype(np.int64) * b + (1 << 30)) >> 31


def _np_divided(x: np.ndarray, by: int) -> np.ndarray:
    mask = (1 << by) - 1
    return (x >> by) + ((x & mask) > (mask >> 1) + (x < 0))


def _divided(ctx: Context, x: Value, by: Value) -> Value:
    """``x / 2**by`` of numbers that are not negative, rounded to the nearest, halves up."""
    return ctx.add("round_shift", [x, by])


def _reciprocal(ctx: Context, x: Value) -> Value:
    """``1 / (1 + x)`` for ``x`` in [0, 1), both with 31 binary places: three rounds of Newton's method."""
    half = ctx.add("round_shift", [arith(ctx, "add", cast(ctx, x, i64), (1 << 31) - 1), scalar(ctx, 1, i64)])
    half = cast(ctx, half, i32)
    # with 29 binary places: 48/17 - 32/17 * half
    y = arith(ctx, "add", high_mul(ctx, half, scalar(ctx, -1010580540, i32)), 1515870810)
    for _ in range(3):
        miss = arith(ctx, "sub", 1 << 29, high_mul(ctx, half, y))
        step = high_mul(ctx, y, miss)
        y = ctx.add("add", [y, times_power(ctx, step, 2)])
    return times_power(ctx, y, 1)


@converter("LOG_SOFTMAX", limits="8-bit integers as the optimised kernels, within one step of the reference")
def log_softmax(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    last = need_rank(x, "the input", 1) - 1
    if not op.quantised():
        return [ctx.add("log_softmax", [x], axis=last)]
    if x.type.dtype is i16:
        raise UnsupportedError("LOG_SOFTMAX of 16-bit integers")
    y = ctx.add("log_softmax", [dequantised(ctx, x, op.scale_of(0))], axis=last)
    return [quantised(ctx, y, op.result_scale(), op.dtype())]


@converter("L2_NORMALIZATION", limits="8-bit integers and floats")
def l2_normalization(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    last = need_rank(x, "the input", 1) - 1
    if op.quantised():
        return [_l2_in_integers(ctx, op, x, last)]
    squares = ctx.add("reduce_sum", [ctx.add("mul", [x, x])], axes=(last,), keepdims=True)
    return [ctx.add("div", [x, arith(ctx, "max", ctx.add("sqrt", [squares]), 1e-6)])]


def _l2_in_integers(ctx: Context, op: Operator, x: Value, last: int) -> Value:
    """Divided by the root of the sum of squares in fixed point; results have 7 binary places."""
    dtype = op.dtype()
    if dtype.bits != 8:
        raise UnsupportedError(f"L2_NORMALIZATION of {dtype.bits}-bit integers")
    op.need_result_scale(1 / 128, 128 if dtype is u8 else 0)
    numbers = centred(ctx, x, op.scale_of(0), i32)
    squares = ctx.add("reduce_sum", [ctx.add("mul", [numbers, numbers])], axes=(last,), keepdims=True)
    multiplier, shift = inverse_root(ctx, squares)
    if dtype is u8:
        y = ctx.add("fixed_scale", [arith(ctx, "mul", numbers, 128), multiplier, shift], roundings=2)
        y = arith(ctx, "add", y, 128)
    else:
        y = ctx.add("fixed_scale", [numbers, multiplier, arith(ctx, "add", shift, 7)], roundings=2)
    return cast(ctx, ctx.add("clip", [y], lo=int(dtype.min_value), hi=int(dtype.max_value)), dtype)


@converter("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(ctx: Context, op: Operator) -> list[Value]:
    """Divided by a power of the squares of neighbouring channels, the last axis; ``radius`` of them on either side."""
    x = op.input(0)
    need_rank(x, "the input", 4, 4)
    radius = int(op.option("radius"))
    alpha, beta, bias = (float(op.option(name, 0.0)) for name in ("alpha", "beta", "bias"))
    # the core operator's channels are axis 1, and its factor is shared among the window
    size = 2 * radius + 1
    first = ctx.add("transpose", [x], perm=(0, 3, 1, 2))
    y = ctx.add("lrn", [first], size=size, alpha=alpha * size, beta=beta, bias=bias)
    return [ctx.add("transpose", [y], perm=(0, 2, 3, 1))]
