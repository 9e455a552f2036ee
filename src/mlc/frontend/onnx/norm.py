"""Softmax and normalisations."""

from __future__ import annotations

from math import prod
from typing import Any

from onnx import TensorProto

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, need_rank, normal_axis, reshape, scalar
from mlc.frontend.common.pooling import lp_norm
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import DType, bf16, f16, f32, f64

# where attributes name an element type, they do it by these numbers
FLOAT_TYPES = {TensorProto.FLOAT: f32, TensorProto.FLOAT16: f16, TensorProto.DOUBLE: f64, TensorProto.BFLOAT16: bf16}


def float_type(node: OnnxNode, name: str, default: int) -> DType:
    """The element type that an attribute names.

    Raises:
        ImportModelError: it is no float type.
    """
    number = node.attr(name, default)
    if number not in FLOAT_TYPES:
        raise ImportModelError(f"attribute {name!r} is {number}, which is no float type")
    return FLOAT_TYPES[number]


@converter("Softmax", "LogSoftmax")
def softmax(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Along one axis since opset 13; before, over everything from ``axis`` on, seen as rows."""
    (x,) = inputs
    op = "softmax" if node.op_type == "Softmax" else "log_softmax"
    shape, rank = x.type.shape, need_rank(x, "the input", 1)
    if node.opset >= 13:
        return [ctx.add(op, [x], axis=normal_axis(node.attr("axis", -1), rank))]
    axis = normal_axis(node.attr("axis", 1), rank) if rank > 1 else 0
    rows = reshape(ctx, x, (prod(shape[:axis]), prod(shape[axis:]))) if axis < rank - 1 else x
    return [reshape(ctx, ctx.add(op, [rows], axis=rows.type.rank - 1), shape)]


def standardise(ctx: Context, x: Value, scale: Value, bias: Value | None, axis: int, epsilon: float) -> Value:
    """Layer normalisation over the axes from ``axis`` on; the bias may be left out."""
    shift = bias if bias is not None else scalar(ctx, 0, x.type.dtype)
    return ctx.add("layer_norm", [x, scale, shift], axis=axis, epsilon=epsilon)


def moments(ctx: Context, x: Value, axis: int, epsilon: float, dtype: DType) -> tuple[Value, Value]:
    """Mean and inverse standard deviation over the axes from ``axis`` on, which stay with extent 1."""
    wide = cast(ctx, x, dtype)
    axes = tuple(range(axis, x.type.rank))
    mean = ctx.add("reduce_mean", [wide], axes=axes, keepdims=True)
    distance = ctx.add("sub", [wide, mean])
    variance = ctx.add("reduce_mean", [ctx.add("mul", [distance, distance])], axes=axes, keepdims=True)
    return mean, ctx.add("rsqrt", [arith(ctx, "add", variance, epsilon)])


def wanted(node: OnnxNode, *positions: int) -> bool:
    """Whether the model uses any of the outputs at these positions."""
    return any(k < len(node.outputs) and node.outputs[k] for k in positions)


# before opset 17 it stands in models that onnxruntime has optimised, in the standard domain nevertheless
@converter("LayerNormalization")
def layer_normalization(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, scale, bias = (*inputs, None)[:3]
    axis = normal_axis(node.attr("axis", -1), need_rank(x, "X", 1))
    epsilon = node.attr("epsilon", 1e-5)
    outputs = [standardise(ctx, x, scale, bias, axis, epsilon)]
    if wanted(node, 1, 2):
        outputs += moments(ctx, x, axis, epsilon, float_type(node, "stash_type", TensorProto.FLOAT))
    return outputs


@converter("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, scale = inputs
    axis = normal_axis(node.attr("axis", -1), need_rank(x, "X", 1))
    if wanted(node, 1):
        raise UnsupportedError(f"the second output of {node.op_type}")
    return [ctx.add("rms_norm", [x, scale], axis=axis, epsilon=node.attr("epsilon", 1e-5))]


@converter("InstanceNormalization")
def instance_normalization(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.add("instance_norm", inputs, epsilon=node.attr("epsilon", 1e-5))]


@converter("GroupNormalization", since=18)
def group_normalization(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Scale and bias are one number a channel since opset 21, one a group before."""
    x, *params = inputs
    need_rank(x, "X", 2)
    groups, channels = node.attr("num_groups", 1), x.type.shape[1]
    if groups < 1 or channels % groups:
        raise ImportModelError(f"{channels} channels in {groups} groups")
    if node.opset < 21:
        params = [_repeated(ctx, p, groups, channels) for p in params]
    return [ctx.add("group_norm", [x, *params], groups=groups, epsilon=node.attr("epsilon", 1e-5))]


def _repeated(ctx: Context, x: Value, groups: int, channels: int) -> Value:
    """One number a group as one a channel."""
    if x.type.shape != (groups,):
        raise ImportModelError(f"scale or bias of shape {x.type.shape} for {groups} groups")
    wide = ctx.add("broadcast_to", [reshape(ctx, x, (groups, 1))], shape=(groups, channels // groups))
    return reshape(ctx, wide, (channels,))


@converter("LpNormalization")
def lp_normalization(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """A row of zeros stays one."""
    (x,) = inputs
    axis = normal_axis(node.attr("axis", -1), need_rank(x, "the input", 1))
    norm = lp_norm(ctx, x, (axis,), node.attr("p", 2))
    zero, one = scalar(ctx, 0, x.type.dtype), scalar(ctx, 1, x.type.dtype)
    safe = ctx.add("where", [ctx.add("eq", [norm, zero]), one, norm])
    return [ctx.add("div", [x, safe])]


@converter("LRN")
def lrn(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    attrs = {"alpha": node.attr("alpha", 1e-4), "beta": node.attr("beta", 0.75), "bias": node.attr("bias", 1.0)}
    return [ctx.add("lrn", inputs, size=node.attr("size"), **attrs)]
