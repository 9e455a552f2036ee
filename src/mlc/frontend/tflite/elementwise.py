"""Operators that work on each element alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, scalar
from mlc.frontend.tflite.activations import fused
from mlc.frontend.tflite.quant import (
    activation_range,
    centred,
    dequantised,
    finished,
    power_of_two,
    quantised,
    round_away,
    scale_of,
    scaled,
    zero_of,
)
from mlc.frontend.tflite.registry import Operator, converter
from mlc.ir.graph import Value
from mlc.ir.types import f32, i8, i16, i32, u8

_UNARY = {"CEIL": "ceil", "FLOOR": "floor", "ROUND": "round", "LOGICAL_NOT": "not", "SIGN": "sign"}


@converter(*_UNARY)
def unary(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    if x.type.dtype.is_int and op.name != "SIGN":
        return [x]
    return [ctx.add(_UNARY[op.name], [x])]


@converter("NEG", "ABS", "SQUARE", limits="SQUARE not quantised; NEG of stored integers, whatever their zero point")
def sign(ctx: Context, op: Operator) -> list[Value]:
    """The kernels negate quantised numbers as they are stored."""
    x = op.input(0)
    if not op.quantised() or op.name == "NEG":
        return [ctx.add("mul", [x, x]) if op.name == "SQUARE" else ctx.add(op.name.lower(), [x])]
    if op.name == "SQUARE":
        raise UnsupportedError("SQUARE of quantised numbers")
    q, out = op.scale_of(0), op.result_scale()
    number = ctx.add("abs", [centred(ctx, x, q, i32)])
    if scale_of(q) != scale_of(out):
        number = scaled(ctx, number, float(np.float32(scale_of(q)) / np.float32(scale_of(out))))
    return [finished(ctx, number, op)]


@converter("ZEROS_LIKE")
def zeros_like(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    return [ctx.add("broadcast_to", [scalar(ctx, 0, x.type.dtype)], shape=x.type.shape)]


@converter("CAST")
def cast_to(ctx: Context, op: Operator) -> list[Value]:
    return [cast(ctx, op.input(0), op.dtype())]


# -- two operands -------------------------------------------------------------------------------------------------
@converter("ADD", "SUB", limits="integers and floats of one type; quantised: 8 and 16 bits")
def add(ctx: Context, op: Operator) -> list[Value]:
    a, b = op.input(0), op.input(1)
    name = op.name.lower()
    if not op.quantised():
        return [_activated(ctx, op, ctx.add(name, [a, b]))]
    first, second, out = (scale_of(q) for q in (op.scale_of(0), op.scale_of(1), op.result_scale()))
    narrow = op.dtype() is i16
    zeros = [zero_of(q) for q in (op.scale_of(0), op.scale_of(1), op.result_scale())]
    if narrow and op.option("pot_scale_int16", True) and not any(zeros):
        exponents = [e for e in map(power_of_two, (first, second, out)) if e is not None]
        if len(exponents) == 3:
            return [_powers_of_two(ctx, op, a, b, exponents)]
    # both numbers at twice the greater scale, moved left so that nothing is lost
    places = 15 if narrow else 20
    twice = 2 * max(first, second)
    parts = []
    for x, k, scale in ((a, 0, first), (b, 1, second)):
        wide = arith(ctx, "shl", centred(ctx, x, op.scale_of(k), i32), places)
        parts.append(scaled(ctx, wide, scale / twice))
    total = ctx.add(name, parts)
    y = scaled(ctx, total, twice / ((1 << places) * out))
    return [finished(ctx, y, op, _activation(op))]


def _powers_of_two(ctx: Context, op: Operator, a: Value, b: Value, exponents: Sequence[int]) -> Value:
    """16-bit numbers whose scales are powers of two: one operand is shifted, the sum saturates.

    ``exponents`` are those of the scales of ``a``, ``b`` and the result.
    """
    shifts = [e - exponents[2] for e in exponents[:2]]
    if max(shifts) != 0 and min(shifts) != 0:
        raise UnsupportedError("scales of which neither operand has the result's")
    if max(shifts) > 0:
        raise UnsupportedError("an operand with a greater scale than the result")
    parts = [x if n == 0 else _divided(ctx, cast(ctx, x, i32), -n) for x, n in zip((a, b), shifts, strict=True)]
    total = ctx.add(op.name.lower(), [cast(ctx, x, i32) for x in parts])
    lo, hi = activation_range(_activation(op), op.result_scale(), i16)
    total = ctx.add("clip", [total], lo=-32768, hi=32767)
    return cast(ctx, ctx.add("clip", [total], lo=lo, hi=hi), i16)


def _divided(ctx: Context, x: Value, by: int) -> Value:
    """``x / 2**by``, halves away from zero."""
    negative = cast(ctx, arith(ctx, "lt", x, 0), i32)
    return ctx.add("round_shift", [ctx.add("sub", [x, negative]), scalar(ctx, by, i32)])


def _activation(op: Operator) -> str:
    return op.choice("fused_activation_function", "ActivationFunctionType")


def _activated(ctx: Context, op: Operator, y: Value) -> Value:
    if y.type.dtype.is_float:
        return fused(ctx, op, y)
    lo, hi = {"NONE": (None, None), "RELU": (0, None), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1)}.get(
        _activation(op), ("no", "no")
    )
    if lo == "no":
        raise UnsupportedError(f"fused activation {_activation(op)} on integers")
    return y if lo is None else ctx.add("clip", [y], lo=lo, hi=hi)


@converter("MUL")
def mul(ctx: Context, op: Operator) -> list[Value]:
    a, b = op.input(0), op.input(1)
    if not op.quantised():
        return [_activated(ctx, op, ctx.add("mul", [a, b]))]
    # in single precision throughout, as the kernel
    first, second, out = (np.float32(scale_of(q)) for q in (op.scale_of(0), op.scale_of(1), op.result_scale()))
    factor = float(first * second / out)
    product = ctx.add("mul", [centred(ctx, a, op.scale_of(0), i32), centred(ctx, b, op.scale_of(1), i32)])
    return [finished(ctx, scaled(ctx, product, factor), op, _activation(op))]


@converter(
    "DIV",
    limits="quantised: by way of floats, within one step of the kernels, but for quotients near zero, where a shift of"
    " theirs overflows",
)
def div(ctx: Context, op: Operator) -> list[Value]:
    a, b = op.input(0), op.input(1)
    if not op.quantised():
        return [_activated(ctx, op, ctx.add("div", [a, b]))]
    y = ctx.add("div", [dequantised(ctx, a, op.scale_of(0)), dequantised(ctx, b, op.scale_of(1))])
    y = quantised(ctx, y, op.result_scale(), op.dtype())
    lo, hi = activation_range(_activation(op), op.result_scale(), op.dtype())
    return [ctx.add("clip", [y], lo=lo, hi=hi)]


@converter("SQUARED_DIFFERENCE")
def squared_difference(ctx: Context, op: Operator) -> list[Value]:
    a, b = op.input(0), op.input(1)
    if not op.quantised():
        gap = ctx.add("sub", [a, b])
        return [ctx.add("mul", [gap, gap])]
    first, second, out = (scale_of(q) for q in (op.scale_of(0), op.scale_of(1), op.result_scale()))
    twice, places = 2 * max(first, second), 7
    parts = []
    for x, k, scale in ((a, 0, first), (b, 1, second)):
        wide = arith(ctx, "shl", centred(ctx, x, op.scale_of(k), i32), places)
        parts.append(scaled(ctx, wide, scale / twice))
    gap = ctx.add("sub", parts)
    y = scaled(ctx, ctx.add("mul", [gap, gap]), twice * twice / ((1 << (2 * places)) * out))
    return [finished(ctx, y, op)]


@converter("MAXIMUM", "MINIMUM")
def extreme(ctx: Context, op: Operator) -> list[Value]:
    """Quantised operands share a scale with the result, as the kernels take for granted."""
    return [ctx.add("max" if op.name == "MAXIMUM" else "min", [op.input(0), op.input(1)])]


_PLAIN = {"POW": "pow", "FLOOR_MOD": "mod", "LOGICAL_AND": "and", "LOGICAL_OR": "or"}


@converter(*_PLAIN, limits="FLOOR_MOD of stored integers, whatever their scales; others not quantised")
def binary(ctx: Context, op: Operator) -> list[Value]:
    if op.quantised() and op.name != "FLOOR_MOD":
        raise UnsupportedError(f"{op.name} of quantised numbers")
    return [ctx.add(_PLAIN[op.name], [op.input(0), op.input(1)])]


@converter("FLOOR_DIV", limits="of stored integers, whatever their scales")
def floor_div(ctx: Context, op: Operator) -> list[Value]:
    a, b = op.input(0), op.input(1)
    if a.type.dtype.is_float:
        return [ctx.add("floor", [ctx.add("div", [a, b])])]
    # one less than the quotient towards zero where what is left would have another sign than the divisor
    below = ctx.add("ne", [ctx.add("mod", [a, b]), ctx.add("fmod", [a, b])])
    return [ctx.add("sub", [ctx.add("div", [a, b]), cast(ctx, below, a.type.dtype)])]


_COMPARISONS = {
    "EQUAL": "eq",
    "NOT_EQUAL": "ne",
    "LESS": "lt",
    "LESS_EQUAL": "le",
    "GREATER": "gt",
    "GREATER_EQUAL": "ge",
}


@converter(*_COMPARISONS)
def comparison(ctx: Context, op: Operator) -> list[Value]:
    """Quantised operands are compared at a fixed-point approximation of their scales, moved left by 8 places."""
    a, b = op.input(0), op.input(1)
    sources = op.sources
    if a.type.dtype in (i8, u8, i16) and all(s is not None and s.quantization for s in sources[:2]):
        parts = []
        for k, x in enumerate((a, b)):
            wide = arith(ctx, "shl", centred(ctx, x, op.scale_of(k), i32), 8)
            parts.append(scaled(ctx, wide, scale_of(op.scale_of(k))))
        a, b = parts
    return [ctx.add(_COMPARISONS[op.name], [a, b])]


@converter("ADD_N", limits="not quantised")
def add_n(ctx: Context, op: Operator) -> list[Value]:
    if op.quantised():
        raise UnsupportedError("ADD_N of quantised numbers")
    parts = [op.input(k) for k in range(len(op.inputs))]
    if not parts:
        raise ImportModelError("no operands")
    return [reduce(lambda a, b: ctx.add("add", [a, b]), parts)]


@converter("SELECT", "SELECT_V2")
def select(ctx: Context, op: Operator) -> list[Value]:
    """A condition of one axis chooses whole slices of SELECT's operands."""
    condition, a, b = op.input(0, "condition"), op.input(1), op.input(2)
    if op.name == "SELECT" and condition.type.rank == 1 and a.type.rank > 1:
        shape = (condition.type.shape[0], *[1] * (a.type.rank - 1))
        condition = ctx.add("reshape", [condition], shape=shape)
    return [ctx.add("where", [condition, a, b])]


# -- between integers and floats ----------------------------------------------------------------------------------
@converter("QUANTIZE")
def quantize(ctx: Context, op: Operator) -> list[Value]:
    x, out, dtype = op.input(0), op.results[0].quantization, op.dtype()
    if out is None:
        raise ImportModelError("the output has no scale")
    if x.type.dtype.is_float:
        return [quantised(ctx, x, out, dtype)]
    q = op.scale_of(0)
    return [finished(ctx, scaled(ctx, centred(ctx, x, q, i32), scale_of(q) / scale_of(out)), op)]


@converter("DEQUANTIZE")
def dequantize(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    if x.type.dtype.is_float:
        return [cast(ctx, x, f32)]
    return [dequantised(ctx, x, op.scale_of(0))]


@converter("FAKE_QUANT")
def fake_quant(ctx: Context, op: Operator) -> list[Value]:
    """Floats rounded to the numbers that some bits can stand for between two bounds, which are nudged to hold 0."""
    x, bits = op.input(0), int(op.option("num_bits"))
    lo, hi = np.float32(op.option("min", 0.0)), np.float32(op.option("max", 0.0))
    if not 2 <= bits <= 16 or not lo <= 0 <= hi or lo == hi:
        raise ImportModelError(f"{bits} bits between {lo} and {hi}")
    least, most = (1 if op.option("narrow_range", False) else 0), (1 << bits) - 1
    scale = (hi - lo) / np.float32(most - least)
    zero = round_away(min(max(float(np.float32(least) - lo / scale), least), most))
    nudged = float(np.float32(least - zero) * scale), float(np.float32(most - zero) * scale)
    y = ctx.add("clip", [x], lo=nudged[0], hi=nudged[1])
    y = arith(ctx, "div", arith(ctx, "sub", y, nudged[0]), float(scale))
    y = ctx.add("floor", [arith(ctx, "add", y, 0.5)])
    return [arith(ctx, "add", arith(ctx, "mul", y, float(scale)), nudged[0])]
