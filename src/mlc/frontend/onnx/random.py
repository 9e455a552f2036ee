"""Operators that draw random numbers when the model runs.

A node with a ``seed`` draws the same numbers in every run, as one who writes a seed into a model wants it; all others
draw by the seed of the run, an input that the importer adds to the graph. No two nodes draw the same numbers, nor does
a node in two iterations of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, need_rank, reshape, scalar
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.frontend.onnx.tensors import element_type
from mlc.ir.graph import Value
from mlc.ir.types import DType, boolean, f32, f64, i32, i64


def _uniform(ctx: Context, node: OnnxNode, shape: Sequence[int], dtype: DType = f32) -> Value:
    """Numbers in ``[0, 1)`` that no other call draws."""
    key, stream = ctx.randomness(node.attr("seed"))
    return ctx.add("uniform", [key], shape=tuple(shape), stream=stream, dtype=dtype.name)


def _normal(ctx: Context, node: OnnxNode, shape: Sequence[int], dtype: DType) -> Value:
    """Standard normal numbers, by the transform of Box and Muller (1958)."""
    first, second = (_uniform(ctx, node, shape, dtype) for _ in range(2))
    # of what is below 1 there is a logarithm of its distance to 1, and 0 is among it
    radius = ctx.add("sqrt", [arith(ctx, "mul", ctx.add("log", [arith(ctx, "sub", 1.0, first)]), -2.0)])
    return arith(ctx, "mul", radius, ctx.add("cos", [arith(ctx, "mul", second, 2 * pi)]))


def _of_type(node: OnnxNode, inputs: Sequence[Any], default: DType) -> DType:
    code = node.attr("dtype")
    if code is not None:
        return element_type(code, "attribute 'dtype'")
    return inputs[0].type.dtype if inputs else default


@converter("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def random_numbers(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    shape = inputs[0].type.shape if inputs else tuple(node.attr("shape"))
    dtype = _of_type(node, inputs, f32)
    if not dtype.is_float:
        raise ImportModelError(f"random numbers of type {dtype}")
    wide = f64 if dtype is f64 else f32
    if node.op_type.startswith("RandomNormal"):
        drawn = _normal(ctx, node, shape, wide)
        low, span = node.attr("mean", 0.0), node.attr("scale", 1.0)
    else:
        low, high = node.attr("low", 0.0), node.attr("high", 1.0)
        # the numbers of a narrow type are drawn with its own digits: none of them is rounded up to `high`
        drawn, span = cast(ctx, _uniform(ctx, node, shape, dtype), wide), high - low
    if span != 1.0:
        drawn = arith(ctx, "mul", drawn, span)
    if low != 0.0:
        drawn = arith(ctx, "add", drawn, low)
    return [cast(ctx, drawn, dtype)]


@converter("Bernoulli", since=15)
def bernoulli(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (probability,) = inputs
    wide = f64 if probability.type.dtype is f64 else f32
    drawn = _uniform(ctx, node, probability.type.shape, wide)
    ones = arith(ctx, "lt", drawn, cast(ctx, probability, wide))
    return [cast(ctx, ones, _of_type(node, inputs, f32))]


@converter("Multinomial", since=7)
def multinomial(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """The largest of the logarithms of probabilities plus noise of Gumbel: no sum over the classes is needed."""
    (logits,) = inputs
    need_rank(logits, "the input", 2, 2)
    dtype = element_type(node.attr("dtype", 6), "attribute 'dtype'")
    if dtype not in (i32, i64):
        raise ImportModelError(f"classes of type {dtype}")
    batch, classes = logits.type.shape
    count = node.attr("sample_size", 1)
    if count < 0:
        raise ImportModelError(f"{count} samples")
    if not classes:
        raise ImportModelError("there are no classes to draw from")
    wide = f64 if logits.type.dtype is f64 else f32
    drawn = _uniform(ctx, node, (batch, count, classes), wide)
    # 1 - u is above 0; where it is 1 the inner logarithm is 0, and the noise the largest there is
    exponential = ctx.add("neg", [ctx.add("log", [arith(ctx, "sub", 1.0, drawn)])])
    noise = ctx.add("log", [exponential])
    spread = reshape(ctx, cast(ctx, logits, wide), (batch, 1, classes))
    return [cast(ctx, ctx.add("argmax", [arith(ctx, "sub", spread, noise)], axis=2, keepdims=False), dtype)]


@converter("Dropout")
def dropout(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """What is kept grows by ``1 / (1 - ratio)``, so that the mean stays."""
    x, *more = inputs
    training, ratio = False, float(node.attr("ratio", 0.5))
    if node.opset < 7:
        training = not node.attr("is_test", 0)
    elif node.opset >= 12:
        given, mode = (*more, None, None)[:2]
        training = mode is not None and bool(ctx.require_const(mode, "training_mode").all())
        if training and given is not None:
            ratio = float(ctx.require_const(given, "ratio"))
    shape, dtype = x.type.shape, x.type.dtype
    mask_type = boolean if node.opset >= 10 else dtype
    if not training or ratio == 0:
        wants_mask = len(node.outputs) > 1 and node.outputs[1]
        return [x, *([ctx.add("broadcast_to", [scalar(ctx, 1, mask_type)], shape=shape)] if wants_mask else [])]
    if not 0 < ratio < 1:
        raise ImportModelError(f"a ratio of {ratio} to drop, which is not in 0 .. 1")
    kept = arith(ctx, "ge", _uniform(ctx, node, shape), ratio)
    grown = arith(ctx, "mul", x, 1 / (1 - ratio))
    return [ctx.add("where", [kept, grown, scalar(ctx, 0, dtype)]), cast(ctx, kept, mask_type)][: len(node.outputs)]
