"""Attention: many heads with projections, and the plain layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, normal_axis, reshape, scalar, transpose
from mlc.frontend.keras.config import Config
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.registry import Arguments, Masked, floats, layer, weight
from mlc.frontend.keras.weights import Variable
from mlc.frontend.limits import Limits
from mlc.ir.graph import Value
from mlc.ir.types import boolean

_FORBIDDEN = -1e9  # a score that no exponential survives, and no sum of it overflows


def _projections(layer: Layer, limits: Limits) -> Mapping[str, Layer]:
    shared = {k: layer.config[k] for k in ("dtype", "trainable") if k in layer.config}
    config = {**shared, "bias_axes": "d" if layer.config.flag("use_bias", True) else None}
    names = ("query_dense", "key_dense", "value_dense", "output_dense")
    return {n: Layer("EinsumDense", n, Config({**config, "name": n}), version=layer.version) for n in names}


def _projected(ctx: Context, part: Layer, x: Value, inner: Sequence[int], outer: Sequence[int]) -> Value:
    """``x``, whose last axes are ``inner``, times a matrix that gives ``outer`` in their place, plus its bias."""
    wide, kept = int(np.prod(inner)), x.type.shape[: x.type.rank - len(inner)]
    w = weight(ctx, part, "kernel", (*inner, *outer)).reshape(wide, -1)
    y = ctx.add("matmul", [reshape(ctx, x, (*kept, wide)), ctx.constant(np.ascontiguousarray(w))])
    if "bias" in part.weights.stored:
        y = ctx.add("add", [y, ctx.constant(weight(ctx, part, "bias", tuple(outer)).reshape(-1))])
    return reshape(ctx, y, (*kept, *outer))


@layer(
    "MultiHeadAttention",
    parts=_projections,
    masks="take",
    limits="sequences of vectors; no gate, no sliding window; a tensor with a mask for one of them only",
)
def _multi_head(ctx: Context, layer: Layer, call: Arguments) -> list[Value | Masked]:
    config = layer.config
    for key in ("use_gate", "sliding_window"):
        config.refuse(key)
    query, value = call.get(0, "query"), call.get(1, "value")
    key = call.get(2, "key")
    key = value if key is None else key
    if not all(isinstance(v, Value) and v.type.rank == 3 for v in (query, value, key)):
        raise UnsupportedError("attention over more than one axis", hint="sequences of vectors, [batch, steps, size]")
    if config.get("attention_axes") is not None and [normal_axis(a, 3) for a in config.ints("attention_axes")] != [1]:
        raise UnsupportedError(f"setting 'attention_axes' is {config['attention_axes']!r:.60}")
    seen = call.masks.get(query)
    masks = [
        _over(ctx, seen, 2),
        *(
            _over(ctx, _mask_of(call, t, name), 1)
            for t, name in ((value, "value_mask"), (call.get(2, "key"), "key_mask"))
        ),
    ]
    q, k, v = (floats(ctx, layer, t) for t in (query, key, value))
    (heads,), (size,) = config.positive("num_heads", 1), config.positive("key_dim", 1)
    (depth,) = (size,) if config.get("value_dim") is None else config.positive("value_dim", 1)
    out = (q.type.shape[2],) if config.get("output_shape") is None else config.positive("output_shape")
    parts = layer.parts
    q = _heads(ctx, _projected(ctx, parts["query_dense"], q, q.type.shape[2:], (heads, size)))
    k = _heads(ctx, _projected(ctx, parts["key_dense"], k, k.type.shape[2:], (heads, size)))
    v = _heads(ctx, _projected(ctx, parts["value_dense"], v, v.type.shape[2:], (heads, depth)))
    scores = ctx.add("matmul", [arith(ctx, "mul", q, 1 / sqrt(size)), k], transpose_b=True)
    masks.append(_given(ctx, call.kwargs.get("attention_mask")))
    allowed = _all_of(ctx, [*masks, _causal(ctx, scores) if _asked(call, "use_causal_mask") else None], 4)
    probabilities = ctx.add("softmax", [_masked(ctx, scores, allowed)], axis=3)
    told = _asked(call, "return_attention_scores")
    if allowed is not None and (told or config.number("dropout", 0.0) > 0):
        # what Keras does where it keeps the scores: a query that may look at nothing gets nothing
        probabilities = ctx.add("where", [allowed, probabilities, scalar(ctx, 0, scores.type.dtype)])
    mixed = transpose(ctx, ctx.add("matmul", [probabilities, v]), (0, 2, 1, 3))
    y = _projected(ctx, parts["output_dense"], mixed, (heads, depth), out)
    first = y if seen is None else Masked(y, seen)
    return [first, probabilities] if told else [first]


def _asked(call: Arguments, name: str) -> bool:
    return call.kwargs.get(name) is True


def _heads(ctx: Context, x: Value) -> Value:
    """``[batch, steps, heads, size]`` with heads before steps."""
    return transpose(ctx, x, (0, 2, 1, 3))


def _mask_of(call: Arguments, x: Any, name: str) -> Value | None:
    """The mask of an argument: as given by name, or the tensor's own."""
    given = call.kwargs.get(name)
    if given is not None and not isinstance(given, Value):
        raise UnsupportedError("a mask that is no tensor of the model")
    return given if given is not None else call.masks.get(x) if isinstance(x, Value) else None


def _over(ctx: Context, mask: Value | None, axis: int) -> Value | None:
    """A mask ``[batch, steps]`` with a new axis, over queries (1) or keys (2)."""
    if mask is None:
        return None
    batch, steps = mask.type.shape
    return reshape(ctx, cast(ctx, mask, boolean), (batch, 1, steps) if axis == 1 else (batch, steps, 1))


def _given(ctx: Context, mask: Any) -> Value | None:
    if mask is not None and not isinstance(mask, Value):
        raise UnsupportedError("an attention mask that is no tensor of the model")
    return None if mask is None else cast(ctx, mask, boolean)


def _causal(ctx: Context, scores: Value) -> Value:
    """Queries look at no later keys, ``[1, queries, keys]``."""
    queries, keys = scores.type.shape[-2:]
    ctx.check_constant((queries, keys), 1)
    return ctx.constant(np.tril(np.ones((1, queries, keys), bool)))


def _all_of(ctx: Context, masks: Sequence[Value | None], rank: int) -> Value | None:
    """What all masks allow; those of lower rank get axes behind the batch."""
    found: Value | None = None
    for mask in masks:
        if mask is None:
            continue
        batch, *rest = mask.type.shape
        wide = reshape(ctx, mask, (batch, *[1] * (rank - mask.type.rank), *rest))
        found = wide if found is None else ctx.add("and", [found, wide])
    return found


def _masked(ctx: Context, scores: Value, allowed: Value | None) -> Value:
    """Scores of ``[…, queries, keys]`` with those that must not count made very small."""
    if allowed is None:
        return scores
    return ctx.add("where", [allowed, scores, scalar(ctx, _FORBIDDEN, scores.type.dtype)])


def _scale(config: Config) -> Sequence[Variable]:
    return [Variable("scale")] if config.flag("use_scale") else []


def _additive_scale(config: Config) -> Sequence[Variable]:
    return [Variable("scale")] if config.flag("use_scale", True) else []


def _triple(ctx: Context, layer: Layer, call: Arguments) -> tuple[Value, Value, Value]:
    """Query, value and key, each ``[batch, steps, size]``."""
    values = [floats(ctx, layer, v) for v in call.many()]
    if len(values) not in (2, 3) or any(v.type.rank != 3 for v in values):
        raise ImportModelError("called on what is not query, value and maybe key, each of rank 3")
    return values[0], values[1], values[-1]


def _mixed(ctx: Context, layer: Layer, call: Arguments, scores: Value, value: Value) -> list[Value | Masked]:
    """Values mixed as scores say; queries that do not count become zeros."""
    query, other = call.many()[:2]
    causal = _asked(call, "use_causal_mask") or layer.config.flag("causal")
    masks = [_over(ctx, call.masks.get(other), 1), _causal(ctx, scores) if causal else None]
    probabilities = ctx.add("softmax", [_masked(ctx, scores, _all_of(ctx, masks, 3))], axis=2)
    y = ctx.add("matmul", [probabilities, value])
    seen = call.masks.get(query)
    shown = _over(ctx, seen, 2)
    if shown is not None and seen is not None:
        y = ctx.add("where", [shown, y, scalar(ctx, 0, y.type.dtype)])
    first = y if seen is None else Masked(y, seen)
    return [first, probabilities] if _asked(call, "return_attention_scores") else [first]


@layer("Attention", variables=_scale, masks="own", limits="score_mode dot")
def _attention(ctx: Context, layer: Layer, call: Arguments) -> list[Value | Masked]:
    layer.config.text("score_mode", ("dot",), "dot")
    query, value, key = _triple(ctx, layer, call)
    scores = ctx.add("matmul", [query, key], transpose_b=True)
    if layer.config.flag("use_scale"):
        scores = ctx.add("mul", [scores, ctx.constant(weight(ctx, layer, "scale", ()))])
    return _mixed(ctx, layer, call, scores, value)


@layer("AdditiveAttention", variables=_additive_scale, masks="own")
def _additive_attention(ctx: Context, layer: Layer, call: Arguments) -> list[Value | Masked]:
    query, value, key = _triple(ctx, layer, call)
    (batch, queries, size), keys = query.type.shape, key.type.shape[1]
    total = ctx.add("add", [reshape(ctx, query, (batch, queries, 1, size)), reshape(ctx, key, (batch, 1, keys, size))])
    terms = ctx.add("tanh", [total])
    if layer.config.flag("use_scale", True):
        terms = ctx.add("mul", [terms, ctx.constant(weight(ctx, layer, "scale", (size,)))])
    return _mixed(ctx, layer, call, ctx.add("reduce_sum", [terms], axes=(3,), keepdims=False), value)
