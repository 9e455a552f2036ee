"""Fused operators that onnxruntime's transformer optimiser writes into models (domain ``com.microsoft``).

No definition of them ships with ONNX; what they mean is in onnxruntime's ``docs/ContribOperators.md``.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, concat, need_rank, reshape, scalar, slice_axis, split, take, transpose, zeros
from mlc.frontend.onnx.attention import Scoring, attend, merge_heads, rotate, split_heads
from mlc.frontend.onnx.matmul import product
from mlc.frontend.onnx.norm import moments, standardise, wanted
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import boolean, f32, i32, i64

DOMAIN = "com.microsoft"


def operands(inputs: list[Any], count: int, needed: int) -> list[Any]:
    """The first ``count`` operands, ``None`` where one is left out.

    Raises:
        ImportModelError: one of the first ``needed`` is missing.
    """
    operands = [*inputs, *[None] * count][:count]
    if any(v is None for v in operands[:needed]):
        raise ImportModelError(f"{sum(v is not None for v in inputs)} inputs, {needed} are needed")
    return operands


def _sum(ctx: Context, *parts: Value | None) -> Value:
    present = [v for v in parts if v is not None]
    total = present[0]
    for v in present[1:]:
        total = ctx.add("add", [total, v])
    return total


# -- activations and normalisations -------------------------------------------------------------------------------
@converter("Gelu", "BiasGelu", domain=DOMAIN)
def gelu(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.add("gelu", [_sum(ctx, *operands(inputs, 2, 1))])]


@converter("FastGelu", domain=DOMAIN)
def fast_gelu(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.add("gelu", [_sum(ctx, *operands(inputs, 2, 1))], approximate="tanh")]


@converter("QuickGelu", domain=DOMAIN)
def quick_gelu(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """``x * sigmoid(alpha * x)``."""
    return [ctx.add("swish", operands(inputs, 1, 1), alpha=node.attr("alpha", 1.702))]


@converter("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_norm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    """Layer normalisation of ``input + skip + bias`` over the last axis; the sum is the fourth output."""
    x, skip, gamma, beta, bias = operands(inputs, 5, 3)
    total = _sum(ctx, x, skip, bias)
    epsilon, axis = node.attr("epsilon", 1e-12), total.type.rank - 1
    y = standardise(ctx, total, gamma, beta, axis, epsilon)
    statistics = moments(ctx, total, axis, epsilon, f32) if wanted(node, 1, 2) else (None, None)
    return [y, *statistics, total]


@converter("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_rms_norm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    x, skip, gamma, bias = operands(inputs, 4, 3)
    total = _sum(ctx, x, skip, bias)
    y = ctx.add("rms_norm", [total, gamma], axis=total.type.rank - 1, epsilon=node.attr("epsilon", 1e-12))
    return [y, None, None, total]


@converter("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_norm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Word, position and segment embeddings added and normalised; also how long each sequence is by its mask."""
    ids, segments, words, places, kinds, gamma, beta, mask, positions = operands(inputs, 9, 1)
    for what, v in (("word_embedding", words), ("position_embedding", places), ("gamma", gamma), ("beta", beta)):
        if v is None:
            raise ImportModelError(f"input {what!r} is missing")
    if ids.type.rank != 2:
        raise ImportModelError(f"input_ids has rank {ids.type.rank}, 2 is needed")
    batch, length = ids.type.shape
    if positions is None:
        positions = ctx.constant(np.arange(length, dtype=np.int64)[None, :])
    parts = [ctx.add("gather", [words, ids], axis=0), ctx.add("gather", [places, positions], axis=0)]
    if segments is not None and kinds is not None:
        parts.append(ctx.add("gather", [kinds, segments], axis=0))
    total = _sum(ctx, *parts)
    y = standardise(ctx, total, gamma, beta, 2, node.attr("epsilon", 1e-12))
    if mask is None:
        lengths = zeros(ctx, (batch,), i32)
    else:
        ones = ctx.add("eq", [mask, scalar(ctx, 1, mask.type.dtype)])
        lengths = ctx.add("reduce_sum", [cast(ctx, ones, i32)], axes=(1,), keepdims=False)
    return [y, lengths, total]


@converter("RotaryEmbedding", domain=DOMAIN, limits="without scale")
def rotary_embedding(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Positions come as one a token, or as that of the first token."""
    x, positions, cosines, sines = operands(inputs, 4, 4)
    if node.attr("scale", 1.0) != 1:
        raise UnsupportedError(f"rotary embedding with scale {node.attr('scale')}")
    batch, length = x.type.shape[0], x.type.shape[2 if x.type.rank == 4 else 1]
    if positions.type.size == 1:
        steps = ctx.constant(np.arange(length, dtype=np.int64)[None, :])
        first = reshape(ctx, cast(ctx, positions, i64), (1, 1))
        positions = ctx.add("broadcast_to", [ctx.add("add", [steps, first])], shape=(batch, length))
    heads, turning = node.attr("num_heads", 0), node.attr("rotary_embedding_dim", 0)
    if x.type.rank == 3 and not heads:
        # a row of the tables is half a head then
        heads = x.type.shape[2] // (2 * cosines.type.shape[1])
    interleaved = bool(node.attr("interleaved", 0))
    return [rotate(ctx, x, cosines, sines, positions, heads=heads, turning=turning, interleaved=interleaved)]


# -- attention ----------------------------------------------------------------------------------------------------
@converter("Attention", domain=DOMAIN, limits="without rotary embedding")
def attention(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Self-attention with the projections inside: one product gives queries, keys and values of all heads."""
    x, weights, bias, mask, past, extra = operands(inputs, 6, 2)
    if need_rank(x, "input", 3, 3) and weights.type.rank != 2:
        raise ImportModelError(f"weights have rank {weights.type.rank}, 2 is needed")
    return self_attention(ctx, node, _sum(ctx, product(ctx, x, weights), bias), mask, past, extra)


def self_attention(
    ctx: Context,
    node: OnnxNode,
    projected: Value,
    mask: Value | None,
    past: Value | None,
    extra: Value | None = None,
) -> list[Value]:
    """Attention among queries, keys and values that one product has given, and keys and values if they are wanted.

    Args:
        ctx: whose graph grows.
        node: its attributes hold the number of heads.
        projected: queries, keys and values of all heads, along the last of three axes.
        mask: of keys, see ``_shown``.
        past: keys and values of earlier tokens.
        extra: what is added to the scores.
    Raises:
        UnsupportedError: positions are to be turned.
    """
    if node.attr("do_rotary", 0):
        raise UnsupportedError("rotary embedding inside Attention")
    heads = node.attr("num_heads", 0)
    sizes = node.attr("qkv_hidden_sizes") or (projected.type.shape[2] // 3,) * 3
    q, k, v = (split_heads(ctx, part, heads, "input") for part in split(ctx, projected, 2, sizes))
    before = past.type.shape[3] if past is not None else 0
    if past is not None:
        k, v = concat(ctx, [take(ctx, past, 0, 0), k], 2), concat(ctx, [take(ctx, past, 0, 1), v], 2)
    result = _attend(ctx, node, q, k, v, mask, extra, before)
    if not wanted(node, 1):
        return [result]
    return [result, concat(ctx, [reshape(ctx, t, (1, *t.type.shape)) for t in (k, v)], 0)]


@converter("MultiHeadAttention", domain=DOMAIN, limits="without a shared cache")
def multi_head_attention(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    q, k, v, bias, mask, extra, past_key, past_value, *cache = operands(inputs, 10, 1)
    if any(c is not None for c in cache):
        raise UnsupportedError("MultiHeadAttention with a shared cache")
    heads = node.attr("num_heads", 0)
    q, k, v = _unpacked(ctx, q, k, v, heads)
    if bias is not None:
        # one vector for queries, keys and values of all heads, one behind the other
        sizes = [t.type.shape[1] * t.type.shape[3] for t in (q, k, v)]
        pieces = split(ctx, bias, 0, sizes)
        q, k, v = (
            ctx.add("add", [t, reshape(ctx, b, (t.type.shape[1], 1, t.type.shape[3]))])
            for t, b in zip((q, k, v), pieces, strict=True)
        )
    before = past_key.type.shape[2] if past_key is not None else 0
    if past_key is not None and past_value is not None:
        k, v = concat(ctx, [past_key, k], 2), concat(ctx, [past_value, v], 2)
    return [_attend(ctx, node, q, k, v, mask, extra, before), k, v]


def _unpacked(ctx: Context, q: Value, k: Value | None, v: Value | None, heads: int) -> tuple[Value, Value, Value]:
    """Queries, keys and values as ``[batch, heads, length, size]``; they may come packed along the fourth axis."""
    if q.type.rank == 5:
        packed = transpose(ctx, q, (3, 0, 2, 1, 4))
        return take(ctx, packed, 0, 0), take(ctx, packed, 0, 1), take(ctx, packed, 0, 2)
    if k is None:
        raise ImportModelError("keys are missing")
    need_rank(q, "query", 3, 3)
    queries = split_heads(ctx, q, heads, "query")
    if k.type.rank == 5:
        packed = transpose(ctx, k, (3, 0, 2, 1, 4))
        return queries, take(ctx, packed, 0, 0), take(ctx, packed, 0, 1)
    if v is None:
        raise ImportModelError("values are missing")
    keys, values = (t if t.type.rank == 4 else split_heads(ctx, t, heads, "key or value") for t in (k, v))
    return queries, keys, values


def _attend(
    ctx: Context,
    node: OnnxNode,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    extra: Value | None,
    past: int,
) -> Value:
    """``[batch, length, channels]``; what ``mask`` hides gets a very low score, what is to come none at all."""
    queries, keys, dtype = q.type.shape[2], k.type.shape[2], q.type.dtype
    if mask is not None:
        low = scalar(ctx, node.attr("mask_filter_value", -10000.0), dtype)
        shown = _shown(ctx, mask, q.type.shape[0], queries, keys, past)
        penalty = ctx.add("where", [shown, scalar(ctx, 0, dtype), low])
        extra = penalty if extra is None else ctx.add("add", [extra, penalty])
    causal = None
    if node.attr("unidirectional", 0):
        causal = ctx.constant(np.tri(queries, keys, past, dtype=bool))
    scale = node.attr("scale", 0.0) or 1 / sqrt(q.type.shape[3])
    scoring = Scoring(scale=scale, bias=extra, allowed=causal, lost_rows=False)
    return merge_heads(ctx, attend(ctx, q, k, v, scoring).result)


def _shown(ctx: Context, mask: Value, batch: int, queries: int, keys: int, past: int) -> Value:
    """What an integer mask shows, broadcastable to ``[batch, heads, queries, keys]``.

    It holds the number of keys of each sequence, and perhaps where the first of them lies, or a 1 for every key shown.
    """
    shape = mask.type.shape
    if shape in ((batch,), (2 * batch,)):
        at = ctx.constant(np.arange(keys, dtype=mask.type.dtype.numpy))
        ends, *starts = (reshape(ctx, m, (batch, 1, 1, 1)) for m in split(ctx, mask, 0, [batch] * (shape[0] // batch)))
        shown = ctx.add("lt", [at, ends])
        return ctx.add("and", [shown, ctx.add("ge", [at, starts[0]])]) if starts else shown
    if mask.type.rank == 4:
        mask = slice_axis(ctx, slice_axis(ctx, mask, 2, past, past + queries), 3, 0, keys)
    elif mask.type.rank == 3:
        mask = reshape(ctx, mask, (shape[0], 1, *shape[1:]))
    elif mask.type.rank == 2:
        mask = reshape(ctx, mask, (shape[0], 1, 1, shape[1]))
    else:
        raise UnsupportedError(f"an attention mask of shape {shape} for a batch of {batch}")
    if mask.type.dtype is boolean:
        return mask
    return ctx.add("gt", [mask, scalar(ctx, 0, mask.type.dtype)])
