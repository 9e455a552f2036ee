"""Activations: fused into layers, and as operators of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.activations import activate
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, scalar
from mlc.frontend.tflite.fixedpoint import inverse_root
from mlc.frontend.tflite.model import Quantization
from mlc.frontend.tflite.quant import (
    by_table,
    centred,
    finished,
    fixed_point,
    function_table,
    round_away,
    scale_of,
    scaled,
    scaled_by,
    sqrt_table,
    zero_of,
)
from mlc.frontend.tflite.registry import Operator, converter
from mlc.frontend.tflite.tables import function_table_16, sigmoid_table, tanh_table
from mlc.ir.graph import Value
from mlc.ir.types import DType, i32

_FUSED = {"NONE": "", "RELU": "relu", "RELU6": "relu6", "RELU_N1_TO_1": "relu_n1_to_1", "TANH": "tanh"}


def fused(ctx: Context, op: Operator, y: Value) -> Value:
    """``y``, of floats, through the activation that the operator has fused in.

    Raises:
        UnsupportedError: kernels do not know it either.
    """
    name = op.choice("fused_activation_function", "ActivationFunctionType")
    if name not in _FUSED:
        raise UnsupportedError(f"fused activation {name}")
    return activate(ctx, y, _FUSED[name])


_RANGES = {"RELU": (0.0, math.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}


@converter("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    least, most = _RANGES[op.name]
    if not op.quantised():
        hi = None if math.isinf(most) else most
        return [ctx.add("relu", [x]) if hi is None else ctx.add("clip", [x], lo=least, hi=hi)]
    q, out, dtype = op.scale_of(0), op.result_scale(), op.dtype()
    factor = float(np.float32(scale_of(q)) / np.float32(scale_of(out)))
    y = scaled(ctx, centred(ctx, x, q, i32), factor)
    zero, scale = zero_of(out), np.float32(scale_of(out))
    lo = max(int(dtype.min_value), zero + round_away(float(np.float32(least) / scale)))
    hi = int(dtype.max_value)
    if not math.isinf(most):
        hi = min(hi, zero + round_away(float(np.float32(most) / scale)))
    y = ctx.add("add", [y, scalar(ctx, zero, i32)])
    return [cast(ctx, ctx.add("clip", [y], lo=lo, hi=hi), dtype)]


def _gelu(x: np.ndarray, approximate: bool) -> np.ndarray:
    wide = x.astype(np.float64)
    if approximate:
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return (0.5 * wide * (1 + np.tanh(inner))).astype(np.float32)
    erf = np.array([math.erf(v / math.sqrt(2)) for v in wide.reshape(-1)]).reshape(wide.shape)
    return (0.5 * wide * (1 + erf)).astype(np.float32)


def _rounded_once(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of single-precision numbers with results that are rounded once, like those of the C library."""
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


_exp = _rounded_once(np.exp)

# operator -> core operator, and the function that a table of results is made with
_FUNCTIONS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "LOGISTIC": ("sigmoid", lambda x: np.float32(1) / (np.float32(1) + _exp(-x))),
    "TANH": ("tanh", _rounded_once(np.tanh)),
    "ELU": ("elu", lambda x: np.where(x < 0, _rounded_once(np.expm1)(x), x)),
    "EXP": ("exp", _exp),
    "LOG": ("log", _rounded_once(np.log)),
    "RSQRT": ("rsqrt", lambda x: np.float32(1) / np.sqrt(x)),
    "SQRT": ("sqrt", np.sqrt),
    "SIN": ("sin", _rounded_once(np.sin)),
    "COS": ("cos", _rounded_once(np.cos)),
}


@converter(*_FUNCTIONS)
def function(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    name, table = _FUNCTIONS[op.name]
    if not op.quantised():
        return [ctx.add(name, [x])]
    q, out, dtype = op.scale_of(0), op.result_scale(), op.dtype()
    if op.name == "SQRT":
        return [by_table(ctx, x, sqrt_table(q, out, dtype))]
    if op.name == "RSQRT" and dtype.bits == 8:
        return [by_table(ctx, x, _inverse_root_table(ctx, q, out, dtype))]
    if dtype.bits == 8:
        return [by_table(ctx, x, function_table(_defined(op, table), q, out, dtype))]
    if op.name in ("LOGISTIC", "TANH"):
        op.need_result_scale(1 / 32768, 0)
        return [by_table(ctx, x, sigmoid_table(q) if op.name == "LOGISTIC" else tanh_table(q))]
    return [by_table(ctx, x, function_table_16(_defined(op, table), q, out))]


def _defined(op: Operator, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A function that gives the least, or for RSQRT the greatest, result that can be stored where it has none."""
    if op.name not in ("LOG", "RSQRT"):
        return function
    q, dtype = op.result_scale(), op.dtype()
    extreme = int(dtype.min_value if op.name == "LOG" else dtype.max_value)
    otherwise = np.float32(scale_of(q)) * np.float32(extreme - zero_of(q))
    return lambda x: np.where(x > 0, function(np.where(x > 0, x, np.float32(1))), otherwise)


def _inverse_root_table(ctx: Context, q: Quantization, out: Quantization, dtype: DType) -> np.ndarray:
    """``1 / sqrt(x)`` of every number of 8 bits, the greatest where there is none: in fixed point with 20 places."""
    values = np.arange(int(dtype.min_value), int(dtype.max_value) + 1) - zero_of(q)
    multiplier, shift = inverse_root(ctx, ctx.constant(values.clip(1).astype(np.int32)))
    ones = ctx.constant(np.ones(values.shape, np.int32))
    roots = ctx.add("fixed_scale", [ones, multiplier, arith(ctx, "add", shift, 20)], roundings=2)
    factor, places = fixed_point(1 / float(np.sqrt(np.float32(scale_of(q))) * np.float32(scale_of(out))))
    results = ctx.require_const(scaled_by(ctx, roots, factor, places - 20), "a table") + zero_of(out)
    greatest = int(dtype.max_value)
    return np.where(values > 0, results.clip(int(dtype.min_value), greatest), greatest).astype(dtype.numpy)


@converter("GELU")
def gelu(ctx: Context, op: Operator) -> list[Value]:
    x, approximate = op.input(0), bool(op.option("approximate", False))
    if not op.quantised():
        return [ctx.add("gelu", [x], approximate="tanh" if approximate else "none")]
    q, out, dtype = op.scale_of(0), op.result_scale(), op.dtype()

    def function(values: np.ndarray) -> np.ndarray:
        return _gelu(values, approximate)

    table = function_table(function, q, out, dtype) if dtype.bits == 8 else function_table_16(function, q, out)
    return [by_table(ctx, x, table)]


@converter("LEAKY_RELU")
def leaky_relu(ctx: Context, op: Operator) -> list[Value]:
    x, alpha = op.input(0), float(op.option("alpha", 0.0))
    if not op.quantised():
        return [ctx.add("leaky_relu", [x], alpha=alpha)]
    q, out = op.scale_of(0), op.result_scale()
    scale = np.float32(scale_of(q))
    slope = float(scale * np.float32(alpha) / np.float32(scale_of(out)))
    identity = float(scale / np.float32(scale_of(out)))
    number = centred(ctx, x, q, i32)
    y = ctx.add(
        "where",
        [
            ctx.add("ge", [number, scalar(ctx, 0, i32)]),
            scaled(ctx, number, identity),
            _signed_scaled(ctx, number, slope),
        ],
    )
    return [finished(ctx, y, op)]


def _signed_scaled(ctx: Context, x: Value, factor: float) -> Value:
    """``x`` times a factor that may be negative."""
    y = scaled(ctx, x, abs(factor))
    return ctx.add("neg", [y]) if factor < 0 else y


@converter("PRELU", limits="slopes of 8 bits and floats")
def prelu(ctx: Context, op: Operator) -> list[Value]:
    x, slope = op.input(0), op.input(1, "alpha")
    if not op.quantised():
        return [ctx.add("prelu", [x, slope])]
    if slope.type.dtype.bits != 8:
        raise UnsupportedError(f"slopes of {slope.type.dtype.bits} bits")
    q, alpha, out = op.scale_of(0), op.scale_of(1), op.result_scale()
    scale = np.float32(scale_of(q))
    identity = float(scale / np.float32(scale_of(out)))
    steep = float(scale * np.float32(scale_of(alpha)) / np.float32(scale_of(out)))
    number = centred(ctx, x, q, i32)
    product = ctx.add("mul", [number, centred(ctx, slope, alpha, i32)])
    positive = ctx.add("ge", [number, scalar(ctx, 0, i32)])
    y = ctx.add("where", [positive, scaled(ctx, number, identity), scaled(ctx, product, steep)])
    return [finished(ctx, y, op)]


@converter("HARD_SWISH", limits="8-bit integers and floats")
def hard_swish(ctx: Context, op: Operator) -> list[Value]:
    """In integers every 8-bit number has one result, so the kernel's arithmetic is done here, once, for all of them."""
    x = op.input(0)
    if not op.quantised():
        return [ctx.add("hard_swish", [x])]
    if op.dtype().bits != 8:
        raise UnsupportedError("HARD_SWISH of 16-bit integers")
    return [by_table(ctx, x, _hard_swish_table(op))]


def _hard_swish_table(op: Operator) -> np.ndarray:
    """The kernel's 16-bit arithmetic: ``x * relu6(x + 3) / 6`` with the input at 128 times its resolution."""
    q, out, dtype = op.scale_of(0), op.result_scale(), op.dtype()
    fine = np.float32(1 / 128) * np.float32(scale_of(q))
    output, output_shift = fixed_point(float(fine / np.float32(scale_of(out))))
    reluish, reluish_shift = fixed_point(float(fine / (np.float32(3) / np.float32(32768))))
    if output_shift > 0:
        raise ImportModelError("the output's scale is too small for the kernel's arithmetic")
    values = np.arange(int(dtype.min_value), int(dtype.max_value) + 1, dtype=np.int64) - zero_of(q)
    high = values * 128
    pre = _high_mul(high, _to_16(output))
    relu = high
    if reluish_shift > 0:
        relu = np.clip(relu << (reluish_shift - 1), -32768, 32767)
    relu = _high_mul(relu, _to_16(reluish))
    if reluish_shift > 0:
        relu = np.clip(relu << 1, -32768, 32767)
    elif reluish_shift < 0:
        relu = _shift_right(relu, -reluish_shift)
    relu = (relu + (1 << 15)) >> 1
    product = np.sign(relu * pre) * (np.abs(relu * pre) >> 15)  # towards zero
    y = _shift_right(product, -output_shift) + zero_of(out)
    return np.clip(y, int(dtype.min_value), int(dtype.max_value)).astype(dtype.numpy)


def _to_16(multiplier: int) -> int:
    return 32767 if multiplier >= (1 << 31) - 1 - (1 << 15) else (multiplier + (1 << 15)) >> 16


def _high_mul(a: np.ndarray, b: int) -> np.ndarray:
    """The high half of twice the product of 16-bit numbers, rounded."""
    return (a * b + (1 << 14)) >> 15


def _shift_right(x: np.ndarray, by: int) -> np.ndarray:
    """Divided by ``2**by``, halves away from zero."""
    mask = (1 << by) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> by) + ((x & mask) > threshold)
