"""Operators that look up, scatter or select by position."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import one_int
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, normal_axis, reshape
from mlc.frontend.common.index import check_range, gather
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import i64


@converter("Gather")
def convert_gather(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    data, indices = inputs
    return [gather(ctx, data, indices, normal_axis(node.attr("axis", 0), data.type.rank))]


@converter("GatherElements", since=11)
def gather_elements(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    data, indices = inputs
    axis = normal_axis(node.attr("axis", 0), data.type.rank)
    check_range(ctx, indices, [data.type.shape[axis]])
    return [ctx.add("gather_elements", [data, indices], axis=axis)]


@converter("GatherND", since=11)
def gather_nd(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    data, indices = inputs
    batch = node.attr("batch_dims", 0)
    depth = indices.type.shape[-1] if indices.type.rank else 0
    check_range(ctx, indices, data.type.shape[batch : batch + depth])
    return [ctx.add("gather_nd", [data, indices], batch_dims=batch)]


@converter("ScatterElements", "Scatter", since=9)
def scatter_elements(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    data, indices, updates = inputs
    axis = normal_axis(node.attr("axis", 0), data.type.rank)
    check_range(ctx, indices, [data.type.shape[axis]])
    reduction = node.attr("reduction", "none")
    return [ctx.add("scatter_elements", [data, indices, updates], axis=axis, reduction=reduction)]


@converter("ScatterND", since=11)
def scatter_nd(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    data, indices, _ = inputs
    depth = indices.type.shape[-1] if indices.type.rank else 0
    check_range(ctx, indices, data.type.shape[:depth])
    return [ctx.add("scatter_nd", inputs, reduction=node.attr("reduction", "none"))]


@converter("OneHot", since=9)
def one_hot(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    indices, depth, values = inputs
    if not indices.type.dtype.is_int:
        indices = cast(ctx, indices, i64)
    axis = normal_axis(node.attr("axis", -1), indices.type.rank + 1)
    return [ctx.add("one_hot", [indices, values], depth=one_int(ctx, depth, "depth"), axis=axis)]


@converter("Compress", since=9, limits="condition known at compile time")
def compress(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    data, condition = inputs
    kept = np.flatnonzero(ctx.require_const(condition, "the condition"))
    axis = node.attr("axis")
    if axis is None:
        data, axis = reshape(ctx, data, (data.type.size,)), 0
    axis = normal_axis(axis, data.type.rank)
    indices = ctx.constant(kept, np.int64)
    check_range(ctx, indices, [data.type.shape[axis]])
    return [ctx.add("gather", [data, indices], axis=axis)]


@converter("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Some positions of the last axis; a vector is one row."""
    data, indices = inputs
    if not data.type.rank:
        raise ImportModelError("X has no axes")
    data = reshape(ctx, data, (1, *data.type.shape)) if data.type.rank == 1 else data
    indices = reshape(ctx, indices, (indices.type.size,))
    check_range(ctx, indices, [data.type.shape[-1]])
    return [ctx.add("gather", [data, indices], axis=data.type.rank - 1)]


@converter("ReverseSequence", since=10)
def reverse_sequence(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    data, lengths = inputs
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    if sorted((time, batch)) != [0, 1]:
        raise ImportModelError(f"time_axis {time} and batch_axis {batch}, 0 and 1 are needed")
    steps, count = data.type.shape[time], data.type.shape[batch]
    if lengths.type.shape != (count,):
        raise ImportModelError(f"lengths are {lengths.type}, [{count}] is needed")
    # within a sequence step t comes from length - 1 - t, behind it from t itself
    t = ctx.constant(np.arange(steps).reshape((steps, 1) if time == 0 else (1, steps)), np.int64)
    length = reshape(ctx, lengths, (1, count) if time == 0 else (count, 1))
    mirrored = ctx.add("sub", [arith(ctx, "sub", length, 1), t])
    source = ctx.add("where", [ctx.add("lt", [t, length]), mirrored, t])
    shape = data.type.shape[:2]
    own = np.arange(count).reshape((1, count) if time == 0 else (count, 1))
    sequence = ctx.constant(np.broadcast_to(own, shape), np.int64)
    pair = [source, sequence] if time == 0 else [sequence, source]
    return [ctx.add("gather_nd", [data, concat(ctx, [reshape(ctx, v, (*shape, 1)) for v in pair], 2)])]


@converter("TensorScatter", since=24)
def tensor_scatter(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Writes ``update`` into a cache, from a position of its own for every sample of the batch."""
    cache, update, begins = inputs
    axis = normal_axis(node.attr("axis", -2), cache.type.rank)
    mode = node.attr("mode", "linear")
    if axis == 0 or mode not in ("linear", "circular"):
        raise ImportModelError(f"axis {axis}, mode {mode!r}: the batch axis or an unknown mode")
    steps = np.arange(update.type.shape[axis]).reshape(-1, *[1] * (update.type.rank - 1 - axis))
    at = ctx.constant(steps, np.int64)
    if begins is not None:
        at = ctx.add("add", [reshape(ctx, begins, (begins.type.size, *[1] * (update.type.rank - 1))), at])
    if mode == "circular":
        at = arith(ctx, "mod", at, cache.type.shape[axis])
    indices = ctx.add("broadcast_to", [at], shape=update.type.shape)
    return [ctx.add("scatter_elements", [cache, indices, update], axis=axis)]


@converter("NonZero", since=9, limits="operand known at compile time")
def non_zero(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    array = ctx.require_const(inputs[0], "the operand, which decides the shape of the result,")
    found = np.argwhere(array).T if array.ndim else np.zeros((0, np.count_nonzero(array)))
    return [ctx.constant(found, np.int64)]


@converter("Unique", since=11, limits="operand known at compile time")
def unique(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    array = ctx.require_const(inputs[0], "the operand, which decides the shape of the result,")
    axis = node.attr("axis")
    if axis is None:
        array, axis = array.reshape(-1), 0
    axis = normal_axis(axis, array.ndim)
    values, first, inverse, counts = np.unique(array, True, True, True, axis=axis)
    if not node.attr("sorted", 1):
        order = np.argsort(first)
        values, first, counts = np.take(values, order, axis), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    rest = [ctx.constant(a.reshape(-1), np.int64) for a in (first, inverse, counts)]
    return [ctx.constant(values), *rest]
