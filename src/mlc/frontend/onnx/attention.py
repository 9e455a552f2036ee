"""Scaled dot-product attention and rotary embeddings of the standard domain."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, reshape, scalar, slice_axis, split, transpose
from mlc.frontend.onnx.norm import FLOAT_TYPES
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import DType, boolean, i64


@dataclass(frozen=True)
class Scoring:
    """How products of queries and keys become weights.

    Args:
        scale: factor on the products.
        softcap: the products are bounded to plus or minus this; 0 for no bound.
        bias: added, broadcasts to ``[batch, heads, queries, keys]``.
        allowed: which pairs take part (bool, broadcasts likewise).
        dtype: element type of the softmax; ``None`` for that of the queries.
        lost_rows: whether there may be queries without any key; they give zeros.
    """

    scale: float
    softcap: float = 0.0
    bias: Value | None = None
    allowed: Value | None = None
    dtype: DType | None = None
    lost_rows: bool = True


@dataclass(frozen=True)
class Attended:
    """What attention gives: the result, and the stages on the way that an operator may show."""

    result: Value
    products: Value
    capped: Value
    biased: Value
    weights: Value


def attend(ctx: Context, q: Value, k: Value, v: Value, scoring: Scoring) -> Attended:
    """Attention of every head.

    Heads of queries that share a head of keys become more rows of one product, so keys are never repeated.

    Args:
        ctx: where to append.
        q: queries ``[batch, heads, queries, size]``.
        k: keys ``[batch, groups, keys, size]``, ``heads`` a multiple of ``groups``.
        v: values ``[batch, groups, keys, value size]``.
        scoring: how weights are made.
    Raises:
        ImportModelError: the shapes do not fit together.
    """
    batch, heads, queries, size = q.type.shape
    groups, keys = k.type.shape[1:3]
    if k.type.shape != (batch, groups, keys, size) or v.type.shape[:3] != (batch, groups, keys):
        raise ImportModelError(f"Q {q.type.shape}, K {k.type.shape} and V {v.type.shape} do not fit together")
    if groups == 0 or heads % groups:
        raise ImportModelError(f"{heads} heads of queries for {groups} heads of keys")
    rows = (batch, groups, heads // groups * queries)
    grid = (batch, heads, queries, keys)
    scaled = reshape(ctx, arith(ctx, "mul", q, scoring.scale), (*rows, size))
    products = reshape(ctx, ctx.add("matmul", [scaled, k], transpose_b=True), grid)
    capped = products
    if scoring.softcap > 0:
        bounded = ctx.add("tanh", [arith(ctx, "div", products, scoring.softcap)])
        capped = arith(ctx, "mul", bounded, scoring.softcap)
    biased = capped if scoring.bias is None else ctx.add("add", [capped, scoring.bias])
    if scoring.allowed is not None:
        biased = ctx.add("where", [scoring.allowed, biased, scalar(ctx, -np.inf, biased.type.dtype)])
    if biased.type.shape != grid:
        raise ImportModelError(f"a mask makes {biased.type.shape} of {grid}")
    weights = ctx.add("softmax", [cast(ctx, biased, scoring.dtype or q.type.dtype)], axis=3)
    weights = cast(ctx, weights, q.type.dtype)
    if scoring.lost_rows:
        weights = _without_lost_rows(ctx, weights, scoring)
    result = ctx.add("matmul", [reshape(ctx, weights, (*rows, keys)), v])
    result = reshape(ctx, result, (batch, heads, queries, v.type.shape[3]))
    return Attended(result, products, capped, biased, weights)


def _without_lost_rows(ctx: Context, weights: Value, scoring: Scoring) -> Value:
    """Zero instead of NaN where a query may attend to nothing."""
    bias, allowed = scoring.bias, scoring.allowed
    if bias is not None:
        if allowed is not None:
            bias = ctx.add("where", [allowed, bias, scalar(ctx, -np.inf, bias.type.dtype)])
        best = ctx.add("reduce_max", [bias], axes=(bias.type.rank - 1,), keepdims=True)
        found = ctx.add("gt", [best, scalar(ctx, -np.inf, best.type.dtype)])
    elif allowed is not None:
        found = ctx.add("reduce_any", [allowed], axes=(allowed.type.rank - 1,), keepdims=True)
    else:
        return weights
    known = ctx.const(found)
    if known is not None and known.all():
        return weights
    return ctx.add("where", [found, weights, scalar(ctx, 0, weights.type.dtype)])


def split_heads(ctx: Context, x: Value, heads: int, what: str) -> Value:
    """``[batch, length, heads * size]`` as ``[batch, heads, length, size]``.

    Raises:
        ImportModelError: the last axis does not divide.
    """
    batch, length, hidden = x.type.shape
    if heads < 1 or hidden % heads:
        raise ImportModelError(f"{what} has {hidden} channels for {heads} heads")
    return transpose(ctx, reshape(ctx, x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))


def merge_heads(ctx: Context, x: Value) -> Value:
    """``[batch, heads, length, size]`` as ``[batch, length, heads * size]``."""
    batch, heads, length, size = x.type.shape
    return reshape(ctx, transpose(ctx, x, (0, 2, 1, 3)), (batch, length, heads * size))


def both(ctx: Context, a: Value | None, b: Value | None) -> Value | None:
    """The conjunction of two masks, either of which may be absent."""
    if a is None or b is None:
        return b if a is None else a
    return ctx.add("and", [a, b])


@converter("Attention", since=23)
def attention(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    q, k, v, mask, past_key, past_value, lengths = (*inputs, *[None] * 7)[:7]
    rank = q.type.rank
    if not rank == k.type.rank == v.type.rank or rank not in (3, 4):
        raise ImportModelError(f"Q, K and V have ranks {rank}, {k.type.rank} and {v.type.rank}, 3 or 4 is needed")
    if rank == 3:
        heads, groups = node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0)
        q = split_heads(ctx, q, heads, "Q")
        k, v = split_heads(ctx, k, groups, "K"), split_heads(ctx, v, groups, "V")
    if (past_key is None) != (past_value is None):
        raise ImportModelError("past_key and past_value come together")
    if past_key is not None:
        if lengths is not None:
            raise ImportModelError("nonpad_kv_seqlen with past_key: the cache is kept in one place only")
        k, v = concat(ctx, [past_key, k], 2), concat(ctx, [past_value, v], 2)
    past = past_key.type.shape[2] if past_key is not None else 0
    allowed = _visible(ctx, node, q.type.shape[2], k.type.shape[2], past, lengths)
    bias = None
    if mask is not None:
        mask = _lengthened(ctx, mask, k.type.shape[2])
        if mask.type.dtype is boolean:
            allowed = both(ctx, allowed, mask)
        else:
            bias = mask
    precision = node.attr("softmax_precision")
    if precision is not None and precision not in FLOAT_TYPES:
        raise ImportModelError(f"softmax_precision is {precision}, which is no float type")
    scoring = Scoring(
        scale=node.attr("scale", 1 / sqrt(q.type.shape[3])),
        softcap=node.attr("softcap", 0.0),
        bias=bias,
        allowed=allowed,
        dtype=FLOAT_TYPES.get(precision),
    )
    made = attend(ctx, q, k, v, scoring)
    stages = {0: made.products, 1: made.capped, 2: made.biased, 3: made.weights}
    mode = node.attr("qk_matmul_output_mode", 0)
    if mode not in stages:
        raise ImportModelError(f"qk_matmul_output_mode is {mode}, it may be 0 to 3")
    return [merge_heads(ctx, made.result) if rank == 3 else made.result, k, v, stages[mode]]


def _lengthened(ctx: Context, mask: Value, keys: int) -> Value:
    """The mask with what it lacks at the end of its last axis masked out."""
    missing = keys - mask.type.shape[-1] if mask.type.rank else 0
    if missing <= 0 or mask.type.shape[-1] == 1:
        return mask
    pads = (0,) * (2 * mask.type.rank - 1) + (missing,)
    return ctx.add("pad", [mask], pads=pads, value=0.0 if mask.type.dtype is boolean else -np.inf)


def _visible(ctx: Context, node: OnnxNode, queries: int, keys: int, past: int, lengths: Value | None) -> Value | None:
    """Pairs left by causality, the sliding window and the number of valid keys; ``None`` for all of them.

    Query ``i`` stands at position ``i + offset``: behind the past, or at the end of the valid keys.
    """
    # how far key j lies behind query i, if that had offset 0
    ahead = np.arange(keys, dtype=np.int64)[None, :] - np.arange(queries, dtype=np.int64)[:, None]
    right = node.attr("right_window_size", -1)
    if node.attr("is_causal", 0):
        right = 0
    left = node.attr("left_window_size", -1)
    if lengths is None:
        seen = np.ones_like(ahead, bool)
        if right >= 0:
            seen &= ahead <= past + right
        if left >= 0:
            seen &= ahead >= past - left
        return None if seen.all() else ctx.constant(seen)
    count = reshape(ctx, cast(ctx, lengths, i64), (lengths.type.size, 1, 1, 1))
    allowed: Value | None = ctx.add("lt", [ctx.constant(np.arange(keys, dtype=np.int64)), count])
    distance, offset = ctx.constant(ahead), arith(ctx, "sub", count, queries)
    if right >= 0:
        allowed = both(ctx, allowed, ctx.add("le", [distance, arith(ctx, "add", offset, right)]))
    if left >= 0:
        allowed = both(ctx, allowed, ctx.add("ge", [distance, arith(ctx, "sub", offset, left)]))
    return allowed


@converter("RotaryEmbedding", since=23)
def rotary_embedding(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, cosines, sines, positions = (*inputs, None)[:4]
    heads, turning = node.attr("num_heads", 0), node.attr("rotary_embedding_dim", 0)
    interleaved = bool(node.attr("interleaved", 0))
    return [rotate(ctx, x, cosines, sines, positions, heads=heads, turning=turning, interleaved=interleaved)]


def rotate(
    ctx: Context,
    x: Value,
    cosines: Value,
    sines: Value,
    positions: Value | None,
    *,
    heads: int,
    turning: int,
    interleaved: bool,
) -> Value:
    """Rotary embedding of ``[batch, heads, length, size]`` or ``[batch, length, heads * size]``.

    Args:
        ctx: where to append.
        x: what is rotated.
        cosines: a row of half the rotated size a position, or with ``positions`` absent ``[batch, length, half]``.
        sines: likewise.
        positions: ``[batch, length]``, which row to take.
        heads: how many there are, where they lie along the last axis.
        turning: how many channels of a head are rotated; 0 for all.
        interleaved: whether neighbours make a pair, rather than channels half of ``turning`` apart.
    Raises:
        ImportModelError: shapes or attributes do not fit together.
    """
    if x.type.rank not in (3, 4):
        raise ImportModelError(f"X has rank {x.type.rank}, 3 or 4 is needed")
    flat = x.type.rank == 3
    x = split_heads(ctx, x, heads, "X") if flat else x
    batch, _, length, size = x.type.shape
    turning = turning or size
    if turning > size or turning % 2:
        raise ImportModelError(f"{turning} of {size} channels are to be rotated in pairs")
    half = turning // 2
    if positions is not None:
        cosines, sines = (ctx.add("gather", [t, positions], axis=0) for t in (cosines, sines))
    for what, table in (("cos_cache", cosines), ("sin_cache", sines)):
        if table.type.shape != (batch, length, half):
            raise ImportModelError(f"{what} gives {table.type.shape}, {(batch, length, half)} is needed")
    cosines, sines = (reshape(ctx, t, (batch, 1, length, half)) for t in (cosines, sines))
    moved, still = slice_axis(ctx, x, 3, 0, turning), slice_axis(ctx, x, 3, turning, size)
    if interleaved:
        pairs = reshape(ctx, moved, (*moved.type.shape[:3], half, 2))
        a, b = (reshape(ctx, slice_axis(ctx, pairs, 4, s, s + 1), pairs.type.shape[:4]) for s in (0, 1))
    else:
        a, b = split(ctx, moved, 3, [half, half])

    def mix(op: str, left: Value, right: Value) -> Value:
        return ctx.add(op, [ctx.add("mul", [cosines, left]), ctx.add("mul", [sines, right])])

    parts = [mix("sub", a, b), mix("add", b, a)]
    if interleaved:
        turned = reshape(ctx, concat(ctx, [reshape(ctx, p, (*p.type.shape, 1)) for p in parts], 4), moved.type.shape)
        whole = [turned]
    else:
        whole = parts
    result = concat(ctx, [*whole, still] if turning < size else whole, 3)
    return merge_heads(ctx, result) if flat else result
