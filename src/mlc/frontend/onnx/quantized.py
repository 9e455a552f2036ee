"""Quantised operators, in integers where sums are, in floating point where scales are.

A quantised number ``q`` with scale ``s`` and zero point ``z`` stands for ``(q - z) * s``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.conv import with_bias
from mlc.frontend.common.emit import arith, cast, concat, normal_axis, per_channel, reshape, slice_axis
from mlc.frontend.onnx.conv import convolve_node
from mlc.frontend.onnx.matmul import matmul, product
from mlc.frontend.onnx.registry import CONVERTERS, OnnxNode, converter
from mlc.frontend.onnx.tensors import element_type
from mlc.ir.graph import Value
from mlc.ir.types import DType, f32, i16, i32, u8

DOMAIN = "com.microsoft"  # onnxruntime's own quantised operators, in its docs/ContribOperators.md


def _dtype(node: OnnxNode, name: str) -> DType | None:
    number = node.attr(name, 0)
    return element_type(number, f"attribute {name!r}") if number else None


def _along(ctx: Context, node: OnnxNode, parameter: Value, x: Value) -> Value:
    """A scale or zero point shaped to broadcast against ``x``: for all of it, for an axis, or for blocks along one."""
    shape = x.type.shape
    if parameter.type.size == 1 and parameter.type.rank <= 1:
        return reshape(ctx, parameter, ())
    axis = normal_axis(node.attr("axis", 1), x.type.rank)
    block = node.attr("block_size", 0)
    if not block:
        if parameter.type.shape != (shape[axis],):
            raise ImportModelError(f"a scale or zero point of shape {parameter.type.shape} for axis {axis} of {shape}")
        return reshape(ctx, parameter, [n if d == axis else 1 for d, n in enumerate(shape)])
    blocks = -(-shape[axis] // block) if block > 0 else 0
    expected = tuple(blocks if d == axis else n for d, n in enumerate(shape))
    if parameter.type.shape != expected:
        raise ImportModelError(f"scales of shape {parameter.type.shape} for blocks of {block}, {expected} expected")
    column = reshape(ctx, parameter, (*shape[:axis], blocks, 1, *shape[axis + 1 :]))
    wide = ctx.add("broadcast_to", [column], shape=(*shape[:axis], blocks, block, *shape[axis + 1 :]))
    whole = reshape(ctx, wide, (*shape[:axis], blocks * block, *shape[axis + 1 :]))
    return slice_axis(ctx, whole, axis, 0, shape[axis])


def _centred(ctx: Context, x: Value, zero: Value | None, wide: DType = i16) -> Value:
    """``x - zero`` in a type that holds it; ``x`` itself where the zero point is known to be 0."""
    known = ctx.const(zero)
    if zero is None or (known is not None and not known.any()):
        return x
    return ctx.add("sub", [cast(ctx, x, wide), cast(ctx, zero, wide)])


def _to_integers(ctx: Context, scaled: Value, zero: Value | None, dtype: DType) -> Value:
    """``scaled`` rounded (halves to even), moved by the zero point, and saturated."""
    y = ctx.add("round", [cast(ctx, scaled, f32)])
    if zero is not None:
        y = ctx.add("add", [y, cast(ctx, zero, f32)])
    return cast(ctx, ctx.add("clip", [y], lo=float(dtype.min_value), hi=float(dtype.max_value)), dtype)


@converter("QuantizeLinear", since=10, limits="to integers of at most 16 bits")
def quantize_linear(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, scale, zero = (*inputs, None)[:3]
    dtype = zero.type.dtype if zero is not None else _dtype(node, "output_dtype") or u8
    if not dtype.is_int:
        raise UnsupportedError(f"to {dtype} is not supported")
    # the scale's type is the precision of the division, before that was an attribute as well
    wide = _dtype(node, "precision") or (scale.type.dtype if scale.type.dtype.is_float else f32)
    if x.type.dtype is f32 and wide is f32 and scale.type.dtype is f32 and dtype.bits <= 16:
        z = zero if zero is not None else ctx.constant(np.zeros(scale.type.shape), dtype.numpy)
        return [ctx.add("quantize", [x, _along(ctx, node, scale, x), _along(ctx, node, z, x)])]
    scaled = ctx.add("div", [cast(ctx, x, wide), cast(ctx, _along(ctx, node, scale, x), wide)])
    return [_to_integers(ctx, scaled, None if zero is None else _along(ctx, node, zero, x), dtype)]


@converter("DequantizeLinear", since=10, limits="from integers")
def dequantize_linear(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, scale, zero = (*inputs, None)[:3]
    if scale.type.dtype is f32 and (_dtype(node, "output_dtype") or f32) is f32:
        z = zero if zero is not None else ctx.constant(np.zeros(scale.type.shape), x.type.dtype.numpy)
        return [ctx.add("dequantize", [x, _along(ctx, node, scale, x), _along(ctx, node, z, x)])]
    wide = i16 if x.type.dtype.bits <= 8 else i32
    centred = _centred(ctx, x, None if zero is None else _along(ctx, node, zero, x), wide)
    y = ctx.add("mul", [cast(ctx, centred, f32), cast(ctx, _along(ctx, node, scale, x), f32)])
    return [cast(ctx, y, _dtype(node, "output_dtype") or scale.type.dtype)]


def _only(results: Sequence[Value | None]) -> Value:
    """The result of a converter that has one."""
    (y,) = results
    assert y is not None
    return y


def _rows(ctx: Context, parameter: Value, a: Value) -> Value:
    """A parameter of the left operand: a vector has an element for each row."""
    if parameter.type.size == 1 or parameter.type.rank != 1 or a.type.rank < 2:
        return parameter
    return reshape(ctx, parameter, (parameter.type.size, 1))


@converter("MatMulInteger", since=10)
def matmul_integer(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    a, b, a_zero, b_zero = (*inputs, None, None)[:4]
    rows = None if a_zero is None else _rows(ctx, a_zero, a)
    return [_only(matmul(ctx, node, [_centred(ctx, a, rows), _centred(ctx, b, b_zero)]))]


Quantised = tuple[Value, Value, Value | None]  # numbers, their scale, their zero point


def dynamic_quantized(ctx: Context, x: Value) -> Quantised:
    """f32 numbers as bytes without a sign, of a scale and zero point that fit them all and 0."""
    axes = tuple(range(x.type.rank))
    ends = [ctx.add(f"reduce_{end}", [x], axes=axes, keepdims=False) for end in ("min", "max")]
    nothing, one = (ctx.constant(np.full((), n), np.float32) for n in (0, 1))
    low, high = (ctx.add(op, [end, nothing]) for op, end in zip(("min", "max"), ends, strict=True))
    extent = ctx.add("sub", [high, low])
    scale = ctx.add("where", [ctx.add("eq", [extent, nothing]), one, arith(ctx, "div", extent, 255.0)])
    zero = ctx.add("clip", [arith(ctx, "sub", 0.0, ctx.add("div", [low, scale]))], lo=0.0, hi=255.0)
    zero = cast(ctx, ctx.add("round", [zero]), u8)
    return ctx.add("quantize", [x, scale, zero]), scale, zero


def quantised_product(ctx: Context, left: Quantised, right: Quantised) -> Value:
    """A matrix product, f32, of sums in integers.

    Args:
        ctx: whose graph grows.
        left: 8-bit integers ``[…, rows, inner]``, with one scale.
        right: 8-bit integers ``[inner, columns]``, with one scale, or one for each column.
    """
    (a, a_scale, a_zero), (b, b_scale, b_zero) = left, right
    a_scale, a_zero = reshape(ctx, a_scale, ()), None if a_zero is None else reshape(ctx, a_zero, ())
    if b_scale.type.size == 1:
        b_scale = reshape(ctx, b_scale, ())
    if b_zero is not None and b_zero.type.size == 1:
        b_zero = reshape(ctx, b_zero, ())
    sums = product(ctx, _centred(ctx, a, a_zero), _centred(ctx, b, b_zero))
    return ctx.add("mul", [cast(ctx, sums, f32), ctx.add("mul", [a_scale, b_scale])])


@converter("QLinearMatMul", since=10, limits="8-bit integers")
def qlinear_matmul(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    sums = _only(matmul_integer(ctx, node, [a, b, a_zero, b_zero]))
    rows, columns, out = (cast(ctx, s, f32) for s in (_rows(ctx, a_scale, a), b_scale, y_scale))
    return [_rescaled(ctx, sums, rows, columns, out, y_zero)]


def _rescaled(ctx: Context, sums: Value, a_scale: Value, b_scale: Value, y_scale: Value, y_zero: Value) -> Value:
    """Sums of products as quantised numbers of another scale."""
    factor = ctx.add("div", [ctx.add("mul", [a_scale, b_scale]), y_scale])
    # one-element vectors must not lift the rank of the result
    if factor.type.size == 1:
        factor = reshape(ctx, factor, ())
    if y_zero.type.size == 1:
        y_zero = reshape(ctx, y_zero, ())
    scaled = ctx.add("mul", [cast(ctx, sums, f32), factor])
    return _to_integers(ctx, scaled, y_zero, y_zero.type.dtype)


def _filters(ctx: Context, parameter: Value | None, rank: int) -> Value | None:
    """A parameter of the weights ``[filters, channels, …]``: a vector has an element for each filter."""
    if parameter is None or parameter.type.size == 1:
        return None if parameter is None else reshape(ctx, parameter, ())
    return reshape(ctx, parameter, (parameter.type.size, *[1] * (rank - 1)))


@converter("ConvInteger", since=10)
def conv_integer(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, w, x_zero, w_zero = (*inputs, None, None)[:4]
    # padding stands for the number 0, which is what it is once the zero point is gone
    x_zero = None if x_zero is None else reshape(ctx, x_zero, ())
    data, weights = _centred(ctx, x, x_zero), _centred(ctx, w, _filters(ctx, w_zero, w.type.rank))
    return [convolve_node(ctx, node, data, weights, None)]


@converter("QLinearConv", since=10)
def qlinear_conv(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*inputs, None)[:9]
    sums = _only(conv_integer(ctx, node, [x, w, x_zero, w_zero]))
    if w_scale.type.size > 1:
        w_scale = per_channel(ctx, w_scale, w.type.rank)
    return [_rescaled(ctx, with_bias(ctx, sums, bias), x_scale, w_scale, y_scale, y_zero)]


# -- operators of onnxruntime that work on the numbers meant: quantised on the way in and out


def _number(ctx: Context, q: Value, scale: Value, zero: Value | None) -> Value:
    """The number that a quantised one stands for; scale and zero point hold for all of it."""
    plain = None if zero is None else reshape(ctx, zero, ())
    return ctx.add("mul", [cast(ctx, _centred(ctx, q, plain), f32), reshape(ctx, scale, ())])


def _quantised(ctx: Context, y: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    plain = None if zero is None else reshape(ctx, zero, ())
    return _to_integers(ctx, ctx.add("div", [y, reshape(ctx, scale, ())]), plain, dtype)


@converter("QLinearAdd", "QLinearMul", domain=DOMAIN)
def qlinear_binary(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (*inputs, None)[:8]
    op = node.op_type.removeprefix("QLinear").lower()
    y = arith(ctx, op, _number(ctx, a, a_scale, a_zero), _number(ctx, b, b_scale, b_zero))
    return [_quantised(ctx, y, y_scale, y_zero, a.type.dtype)]


@converter("QLinearConcat", domain=DOMAIN)
def qlinear_concat(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    y_scale, y_zero, *rest = inputs
    parts = [_number(ctx, *rest[k : k + 3]) for k in range(0, len(rest) - 2, 3)]
    axis = normal_axis(node.attrs["axis"], parts[0].type.rank)
    return [_quantised(ctx, concat(ctx, parts, axis), y_scale, y_zero, y_zero.type.dtype)]


def _through(name: str, opset: int) -> Callable[[Context, OnnxNode, list[Any]], list[Value]]:
    """A converter by way of the floating-point operator ``name``, as operator set ``opset`` defines it."""

    def convert(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
        x, x_scale, x_zero, y_scale, y_zero = (*inputs, None)[:5]
        if node.attr("channels_last", 0):
            raise UnsupportedError("channels_last is not supported")
        plain = OnnxNode(node.name, name, "", node.attr("opset", opset), node.attrs, node.outputs)
        found = CONVERTERS.find("", name)
        assert found is not None
        y = _only(found.convert(ctx, plain, [_number(ctx, x, x_scale, x_zero)]))
        return [_quantised(ctx, y, y_scale, y_zero, x.type.dtype)]

    return convert


for _name in ("Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool"):
    converter(f"QLinear{_name}", domain=DOMAIN, limits="channels first")(_through(_name, 13))


@converter("QGemm", domain=DOMAIN, limits="bias in 32-bit integers")
def qgemm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*inputs, *[None] * 3)[:9]
    by_rows = bool(node.attr("transB", 0))
    if b_zero is not None and b_zero.type.size > 1 and by_rows:
        b_zero = reshape(ctx, b_zero, (b_zero.type.size, 1))
    transposes = {"transpose_a": bool(node.attr("transA", 0)), "transpose_b": by_rows}
    sums = ctx.add("matmul", [_centred(ctx, a, a_zero), _centred(ctx, b, b_zero)], **transposes)
    if node.attr("alpha", 1.0) != 1.0:
        a_scale = arith(ctx, "mul", a_scale, float(node.attr("alpha")))
    if c is not None:
        sums = ctx.add("add", [sums, c])
    if y_scale is not None:
        return [_rescaled(ctx, sums, a_scale, b_scale, y_scale, y_zero)]
    return [ctx.add("mul", [cast(ctx, sums, f32), ctx.add("mul", [a_scale, b_scale])])]
