"""Operators on each element: functions, activations, arithmetic, logic, conversions, batch normalisation."""

from __future__ import annotations

from functools import reduce
from typing import Any

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, need_rank, normal_axis, per_channel, reshape, scalar
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.frontend.onnx.tensors import element_type
from mlc.ir.graph import Value
from mlc.ir.types import DType, boolean, f32, f64, i32, i64

# ONNX name -> (core operator, its float attributes with their defaults)
_UNARY: dict[str, tuple[str, dict[str, float]]] = {
    **{
        name: (name.lower(), {})
        for name in (
            "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor",
            "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
            "Softsign", "Sqrt", "Tan", "Tanh", "IsNaN",
        )
    },
    "BitwiseNot": ("bitwise_not", {}),
    "HardSwish": ("hard_swish", {}),
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Selu": ("selu", {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Celu": ("celu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "Swish": ("swish", {"alpha": 1.0}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
    "Shrink": ("shrink", {"lambd": 0.5, "bias": 0.0}),
}  # fmt: skip

_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor", "Equal": "eq",
    "Less": "lt", "Greater": "gt", "LessOrEqual": "le", "GreaterOrEqual": "ge", "BitwiseAnd": "and",
    "BitwiseOr": "or", "BitwiseXor": "xor",
}  # fmt: skip

_VARIADIC = {"Sum": "add", "Mean": "add", "Max": "max", "Min": "min"}


@converter(*_UNARY)
def unary(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    op, defaults = _UNARY[node.op_type]
    return [ctx.add(op, inputs[:1], **{name: float(node.attr(name, value)) for name, value in defaults.items()})]


@converter("Binarizer", domain="ai.onnx.ml")
def binarizer(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    above = ctx.add("gt", [x, scalar(ctx, node.attr("threshold", 0.0), x.type.dtype)])
    return [cast(ctx, above, x.type.dtype)]


@converter("Gelu", since=20)
def gelu(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.add("gelu", inputs, approximate=node.attr("approximate", "none"))]


@converter("IsInf", since=10)
def isinf(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    positive, negative = bool(node.attr("detect_positive", 1)), bool(node.attr("detect_negative", 1))
    if not positive and not negative:
        return [ctx.add("broadcast_to", [scalar(ctx, 0, boolean)], shape=inputs[0].type.shape)]
    return [ctx.add("isinf", inputs, detect_positive=positive, detect_negative=negative)]


def _operands(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Both operands, shaped to broadcast numpy style: before opset 7 the second one could be laid along an axis."""
    a, b = inputs
    axis = node.attr("axis")
    if node.opset >= 7 or axis is None:
        return [a, b]
    axis = normal_axis(axis, a.type.rank)
    if axis + b.type.rank > a.type.rank:
        raise ImportModelError(f"{b.type} does not lie along axis {axis} of {a.type}")
    return [a, reshape(ctx, b, (*b.type.shape, *[1] * (a.type.rank - axis - b.type.rank)))]


@converter(*_BINARY)
def binary(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.add(_BINARY[node.op_type], _operands(ctx, node, inputs))]


@converter(*_VARIADIC, since=6)
def variadic(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    total = reduce(lambda a, b: ctx.add(_VARIADIC[node.op_type], [a, b]), inputs)
    return [arith(ctx, "div", total, len(inputs)) if node.op_type == "Mean" else total]


@converter("Mod", since=10)
def mod(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.add("fmod" if node.attr("fmod", 0) else "mod", inputs)]


def _power_type(base: DType, exponent: DType) -> DType:
    """The type in which a power of mixed types is computed; the result has the type of the base."""
    if base is exponent:
        return base
    if base.is_float and exponent.is_float:
        return base if base.bits > exponent.bits else exponent if exponent.bits > base.bits else f32
    if base.is_float:
        return base
    # integer bases have at least 32 bits, more digits than f32
    return f64 if exponent.is_float else i64


@converter("Pow")
def power(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, y = _operands(ctx, node, inputs)
    known = ctx.const(y)
    if known is not None and known.size == 1 and known.ndim <= x.type.rank and known.reshape(-1)[0] == 2:
        return [ctx.add("mul", [x, x])]
    dtype = _power_type(x.type.dtype, y.type.dtype)
    return [cast(ctx, ctx.add("pow", [cast(ctx, x, dtype), cast(ctx, y, dtype)]), x.type.dtype)]


@converter("BitShift", since=11)
def bit_shift(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, y = inputs
    direction = node.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise ImportModelError(f"direction {direction!r}, LEFT or RIGHT is needed")
    if direction == "LEFT":
        return [ctx.add("shl", inputs)]
    if x.type.dtype.kind == "i":
        # an amount out of range leaves nothing but copies of the sign, as does the greatest one in range
        most = x.type.dtype.bits - 1
        bad = ctx.add("or", [arith(ctx, "lt", y, 0), arith(ctx, "gt", y, most)])
        y = ctx.add("where", [bad, scalar(ctx, most, y.type.dtype), y])
    return [ctx.add("shr", [x, y])]


@converter("PRelu")
def prelu(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, slope = inputs
    if node.opset < 7 and slope.type.size > 1:
        slope = per_channel(ctx, slope, x.type.rank)
    return [ctx.add("prelu", [x, slope])]


@converter("Where", since=9)
def where(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.add("where", inputs)]


def _bound(ctx: Context, value: Value | None) -> float | int | None:
    """A bound known at compile time."""
    array = ctx.const(value)
    return None if array is None or array.size != 1 else array.reshape(-1)[0].item()


@converter("Clip", since=6)
def clip(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    if node.opset < 11:
        return [ctx.add("clip", [x], lo=node.attr("min"), hi=node.attr("max"))]
    bounds = dict(zip(("lo", "hi"), inputs[1:3], strict=True))
    known = {name: _bound(ctx, v) for name, v in bounds.items() if v is not None}
    if None not in known.values():
        return [ctx.add("clip", [x], **known)]
    for name, op in (("lo", "max"), ("hi", "min")):
        v = bounds[name]
        if v is not None:
            if v.type.size != 1:
                raise ImportModelError(f"a bound has {v.type.size} elements, not one")
            x = ctx.add(op, [x, reshape(ctx, v, ())])
    return [x]


@converter("Cast", since=6, limits="no strings, no floats of less than 16 bits")
def cast_to(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [_converted(ctx, inputs[0], element_type(node.attr("to"), "attribute 'to'"))]


@converter("CastLike", since=15)
def cast_like(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [_converted(ctx, inputs[0], inputs[1].type.dtype)]


def _converted(ctx: Context, x: Value, to: DType) -> Value:
    """A conversion that the model asks for.

    ONNX leaves open what floats become that are too large for an integer type: they saturate. But integers of less than
    a byte keep the low bits, as in ONNX's reference and as its tests want.
    """
    return cast(ctx, cast(ctx, x, i32) if x.type.dtype.is_float and to.is_int and to.bits < 8 else x, to)


@converter("BitCast", since=26, limits="constants, or between integers")
def bit_cast(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    to = element_type(node.attr("to"), "attribute 'to'")
    if to is x.type.dtype:
        return [x]
    if to.bits != x.type.dtype.bits:
        raise ImportModelError(f"{x.type.dtype} and {to} differ in width")
    if to.is_int and x.type.dtype.is_int:
        return [cast(ctx, x, to)]  # which wraps
    return [ctx.constant(ctx.require_const(x, "the operand").view(to.numpy))]


@converter("Identity")
def identity(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [inputs[0]]


@converter("BatchNormalization", limits="no training mode before opset 14")
def batch_normalization(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, *parameters = inputs
    if (node.opset < 14 and any(node.outputs[1:])) or (node.opset < 7 and not node.attr("is_test", 0)):
        raise UnsupportedError("computes statistics: it is in training mode", hint="export the model for inference")
    if not node.attr("spatial", 1):
        raise UnsupportedError("spatial=0 (statistics for each element) is not supported")
    types = [p.type.dtype for p in parameters]
    dtype, shape = x.type.dtype, x.type.shape
    training = bool(node.attr("training_mode", 0))
    if training or any(t is not dtype for t in types):
        # the parameters may be wider than the data: nothing is gained by rounding them first
        wide = f64 if f64 in (dtype, *types) else f32
        x, parameters = cast(ctx, x, wide), [cast(ctx, p, wide) for p in parameters]
    if need_rank(x, "X", 1) == 1:
        x = reshape(ctx, x, (shape[0], 1))
    scale, bias, mean, var = parameters
    running: list[Value] = []
    if training:
        old, momentum = (mean, var), float(node.attr("momentum", 0.9))
        mean, var = _channel_statistics(ctx, x)
        for before, now, t in zip(old, (mean, var), types[2:], strict=True):
            blend = ctx.add("add", [arith(ctx, "mul", before, momentum), arith(ctx, "mul", now, 1 - momentum)])
            running.append(cast(ctx, blend, t))
    y = ctx.add("batch_norm", [x, scale, bias, mean, var], epsilon=float(node.attr("epsilon", 1e-5)))
    return [cast(ctx, reshape(ctx, y, shape), dtype), *running]


def _channel_statistics(ctx: Context, x: Value) -> tuple[Value, Value]:
    """Mean and variance of each channel (axis 1)."""
    axes = tuple(d for d in range(x.type.rank) if d != 1)
    mean = ctx.add("reduce_mean", [x], axes=axes, keepdims=True)
    centred = ctx.add("sub", [x, mean])
    var = ctx.add("reduce_mean", [ctx.add("mul", [centred, centred])], axes=axes, keepdims=False)
    return reshape(ctx, mean, var.type.shape), var


@converter("MeanVarianceNormalization", since=9)
def mean_variance_normalization(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    axes = tuple(normal_axis(a, x.type.rank) for a in node.attr("axes", (0, 2, 3)))
    dtype = x.type.dtype
    x = cast(ctx, x, f32 if dtype.bits == 16 else dtype)
    centred = ctx.add("sub", [x, ctx.add("reduce_mean", [x], axes=axes, keepdims=True)])
    square = ctx.add("mul", [centred, centred])
    deviation = ctx.add("sqrt", [ctx.add("reduce_mean", [square], axes=axes, keepdims=True)])
    # the summand that keeps a constant input from dividing by zero is part of the definition
    return [cast(ctx, ctx.add("div", [centred, arith(ctx, "add", deviation, 1e-9)]), dtype)]
