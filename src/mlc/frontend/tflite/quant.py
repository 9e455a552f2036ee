"""Arithmetic of quantised operators as TensorFlow Lite's reference kernels define it.

A quantised number ``q`` with scale ``s`` and zero point ``z`` stands for ``(q - z) * s``. Kernels add products up in
32-bit integers and bring sums to the scale of the result by a fixed-point multiplication, ``fixed_scale``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, reshape, scalar
from mlc.frontend.tflite.model import Quantization
from mlc.frontend.tflite.registry import Operator
from mlc.ir.graph import Value
from mlc.ir.types import DType, f32, i8, i16, i32

Array = np.ndarray


def fixed_point(factor: float) -> tuple[int, int]:
    """Multiplier and shift with ``factor = multiplier * 2**(shift - 31)``, the multiplier having 31 bits.

    Raises:
        ImportModelError: the factor is negative, or beyond 2**30.
    """
    if not 0 <= factor < 2.0**30:
        raise ImportModelError(f"scales give the factor {factor}, which fixed-point numbers cannot hold")
    if factor == 0:
        return 0, 0
    fraction, shift = math.frexp(factor)
    multiplier = math.floor(fraction * (1 << 31) + 0.5)
    if multiplier == 1 << 31:
        multiplier, shift = multiplier // 2, shift + 1
    return (0, 0) if shift < -31 else (multiplier, shift)


def power_of_two(scale: float) -> int | None:
    """The exponent of a scale that the kernels take for a power of two, ``None`` for any other.

    They let its logarithm miss by a thousandth, and scales that calibration found do come as near by chance.
    """
    exponent = math.log2(scale) if scale > 0 else 0.5
    return round(exponent) if abs(exponent - round(exponent)) < 1e-3 else None


def scaled(
    ctx: Context, x: Value, factors: float | Sequence[float], shape: Sequence[int] = (), *, roundings: int = 2
) -> Value:
    """``x`` times a factor in fixed point, in i32.

    Args:
        ctx: whose graph grows.
        x: i32 or i64.
        factors: one, or several that ``shape`` broadcasts against ``x``.
        shape: of several factors.
        roundings: of the kernel at hand, 1 or 2.
    """
    several = [factors] if isinstance(factors, (int, float)) else list(factors)
    pairs = np.array([fixed_point(float(f)) for f in several], np.int32).reshape(-1, 2)
    place = tuple(shape) if len(several) > 1 else ()
    multiplier, shift = (ctx.constant(pairs[:, k].reshape(place)) for k in (0, 1))
    return ctx.add("fixed_scale", [x, multiplier, shift], roundings=roundings)


def scaled_by(ctx: Context, x: Value, multiplier: int, shift: int) -> Value:
    """``x`` times a factor given as multiplier and shift."""
    return ctx.add("fixed_scale", [x, scalar(ctx, multiplier, i32), scalar(ctx, shift, i32)])


def zero_of(q: Quantization) -> int:
    """The one zero point.

    Raises:
        UnsupportedError: there are several different ones.
    """
    if (q.zero != q.zero[0]).any():
        raise UnsupportedError("zero points that differ from channel to channel")
    return int(q.zero[0])


def scale_of(q: Quantization) -> float:
    """The one scale, a float32.

    Raises:
        ImportModelError: there are several.
    """
    if q.per_channel:
        raise ImportModelError(f"{q.scale.size} scales where one is needed")
    return float(q.scale[0])


def centred(ctx: Context, x: Value, q: Quantization, wide: DType | None = None) -> Value:
    """``x`` less its zero point, in ``wide`` or else in a type that just holds it; ``x`` itself where that is 0."""
    zero = zero_of(q)
    if wide is None:
        wide = x.type.dtype if zero == 0 and x.type.dtype in (i8, i16) else i16 if x.type.dtype.bits == 8 else i32
    y = cast(ctx, x, wide)
    return y if zero == 0 else ctx.add("sub", [y, scalar(ctx, zero, wide)])


def activation_range(activation: str, q: Quantization, dtype: DType) -> tuple[int, int]:
    """The least and greatest quantised result that a fused activation lets through.

    Raises:
        UnsupportedError: it is no clipping one.
    """
    scale, zero = np.float32(scale_of(q)), zero_of(q)
    lo, hi = int(dtype.min_value), int(dtype.max_value)

    def place(number: float) -> int:
        return zero + round_away(float(np.float32(number) / scale))

    match activation:
        case "NONE":
            return lo, hi
        case "RELU":
            return max(lo, place(0)), hi
        case "RELU6":
            return max(lo, place(0)), min(hi, place(6))
        case "RELU_N1_TO_1":
            return max(lo, place(-1)), min(hi, place(1))
    raise UnsupportedError(f"fused activation {activation} on quantised numbers")


def round_away(x: float) -> int:
    """The nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def finished(ctx: Context, y: Value, op: Operator, activation: str = "NONE", k: int = 0) -> Value:
    """Numbers in i32 at the scale of output ``k``, with its zero point added, clipped and narrowed."""
    q, dtype = op.result_scale(k), op.dtype(k)
    zero = zero_of(q)
    lo, hi = activation_range(activation, q, dtype)
    if zero:
        y = ctx.add("add", [y, scalar(ctx, zero, y.type.dtype)])
    return cast(ctx, ctx.add("clip", [y], lo=lo, hi=hi), dtype)


def rounded(ctx: Context, x: Value) -> Value:
    """Floats to the nearest whole number, halves away from zero."""
    size = ctx.add("abs", [x])
    below = ctx.add("floor", [size])
    up = ctx.add("ge", [ctx.add("sub", [size, below]), scalar(ctx, 0.5, x.type.dtype)])
    return ctx.add("mul", [ctx.add("sign", [x]), ctx.add("add", [below, cast(ctx, up, x.type.dtype)])])


def along(ctx: Context, q: Quantization, values: Array, rank: int) -> Value:
    """A number for all of a tensor, or one for each position of the quantised axis, to broadcast against it."""
    place = [values.size if d == q.axis else 1 for d in range(rank)] if values.size > 1 else []
    return ctx.constant(values.reshape(place))


def dequantised(ctx: Context, x: Value, q: Quantization) -> Value:
    """The numbers that quantised ones stand for, in f32."""
    rank = x.type.rank
    y = cast(ctx, x, i32)
    if q.zero.any():
        y = ctx.add("sub", [y, along(ctx, q, q.zero.astype(np.int32), rank)])
    return ctx.add("mul", [cast(ctx, y, f32), along(ctx, q, q.scale, rank)])


def quantised(ctx: Context, x: Value, q: Quantization, dtype: DType) -> Value:
    """Floats as quantised numbers: divided by the scale, rounded away from zero, moved and saturated."""
    y = rounded(ctx, ctx.add("div", [cast(ctx, x, f32), along(ctx, q, q.scale, x.type.rank)]))
    if q.zero.any():
        y = ctx.add("add", [y, along(ctx, q, q.zero.astype(np.float32), x.type.rank)])
    return cast(ctx, ctx.add("clip", [y], lo=float(dtype.min_value), hi=float(dtype.max_value)), dtype)


def by_table(ctx: Context, x: Value, table: Array) -> Value:
    """An element of a table for each element of ``x``, which has 8 or 16 bits: the least value has the first."""
    least = int(x.type.dtype.min_value)
    index = cast(ctx, x, i32)
    if least:
        index = ctx.add("sub", [index, scalar(ctx, least, i32)])
    return ctx.add("gather", [ctx.constant(table), index], axis=0)


def function_table(function: Callable[[Array], Array], q: Quantization, out: Quantization, dtype: DType) -> Array:
    """The quantised results of a function of one number, for every number that 8 bits can stand for."""
    scale, zero = np.float32(scale_of(q)), zero_of(q)
    values = np.arange(int(dtype.min_value), int(dtype.max_value) + 1)
    numbers = scale * (values - zero).astype(np.float32)
    with np.errstate(all="ignore"):
        results = function(numbers).astype(np.float32) * (np.float32(1) / np.float32(scale_of(out)))
    away = np.copysign(np.floor(np.abs(results) + np.float32(0.5)), results) + zero_of(out)
    return np.clip(away, int(dtype.min_value), int(dtype.max_value)).astype(dtype.numpy)


def sqrt_table(q: Quantization, out: Quantization, dtype: DType) -> Array:
    """Quantised square roots of every number: the kernel rounds towards zero; what is below 0 counts as 0."""
    values = np.arange(int(dtype.min_value), int(dtype.max_value) + 1) - zero_of(q)
    roots = np.sqrt(np.float32(scale_of(q)) * np.maximum(values, 0).astype(np.float32)) / np.float32(scale_of(out))
    return np.clip(roots.astype(np.int64) + zero_of(out), int(dtype.min_value), int(dtype.max_value)).astype(
        dtype.numpy
    )


def per_channel(ctx: Context, vector: Array, rank: int, axis: int) -> Value:
    """A vector as a constant that broadcasts along one axis."""
    return reshape(ctx, ctx.constant(vector), [vector.size if d == axis else 1 for d in range(rank)])
