"""Layers that make one tensor of several."""

from __future__ import annotations

from functools import reduce

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, normal_axis, reshape
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.norm import unit_length
from mlc.frontend.keras.registry import Arguments, Masked, layer
from mlc.ir.graph import Value


def _aligned(ctx: Context, values: list[Value]) -> list[Value]:
    """Tensors of one rank and type: those of lower rank get axes of extent 1 behind the batch."""
    rank = max(v.type.rank for v in values)
    floats = [v.type.dtype for v in values if v.type.dtype.is_float]
    dtype = max(floats, key=lambda t: t.bits) if floats else values[0].type.dtype
    ones = [(*v.type.shape[:1], *[1] * (rank - v.type.rank), *v.type.shape[1:]) for v in values]
    return [reshape(ctx, cast(ctx, v, dtype), s) for v, s in zip(values, ones, strict=True)]


_FOLDS = {"Add": "add", "Average": "add", "Multiply": "mul", "Maximum": "max", "Minimum": "min", "Subtract": "sub"}


@layer(*_FOLDS, masks="keep")
def _fold(ctx: Context, layer: Layer, call: Arguments) -> Value:
    values = _aligned(ctx, call.many())
    if layer.class_name == "Subtract" and len(values) != 2:
        raise ImportModelError(f"called on {len(values)} tensors, two are needed")
    y = values[0]
    for v in values[1:]:
        y = ctx.add(_FOLDS[layer.class_name], [y, v])
    return arith(ctx, "mul", y, 1 / len(values)) if layer.class_name == "Average" else y


@layer("Concatenate", masks="own", limits="with masks, along steps or the last axis")
def _concatenate(ctx: Context, layer: Layer, call: Arguments) -> Value | Masked:
    values = call.many()
    dtype = values[0].type.dtype
    if any(v.type.dtype is not dtype for v in values):
        values = _aligned(ctx, values)
    axis = normal_axis(layer.config.whole("axis", -1), values[0].type.rank)
    masks = [call.masks.get(v) for v in call.many()]
    y = concat(ctx, values, axis)
    if all(m is None for m in masks):
        return y
    if axis == values[0].type.rank - 1:  # steps count that count in any part; in one without a mask all do
        return y if None in masks else Masked(y, reduce(lambda a, b: ctx.add("or", [a, b]), filter(None, masks)))
    if axis != 1:
        raise UnsupportedError(f"masks of what is joined along axis {axis}")
    full = [
        ctx.constant(np.ones(v.type.shape[:2], bool)) if m is None else m for v, m in zip(values, masks, strict=True)
    ]
    return Masked(y, concat(ctx, full, 1))


@layer("Dot", limits="operands of up to 5 axes")
def _dot(ctx: Context, layer: Layer, call: Arguments) -> Value:
    """Products summed over one axis of each, for every element of the batch."""
    values = call.many()
    if len(values) != 2:
        raise ImportModelError(f"called on {len(values)} tensors, two are needed")
    axes = layer.config.ints("axes", 2)
    a, b = _aligned_types(ctx, values)
    i, j = normal_axis(axes[0], a.type.rank), normal_axis(axes[1], b.type.rank)
    if i == 0 or j == 0 or a.type.shape[i] != b.type.shape[j]:
        raise ImportModelError(f"axes {list(axes)} of {a.type} and {b.type}")
    if max(a.type.rank, b.type.rank) > 5:
        raise UnsupportedError(f"operands of rank {a.type.rank} and {b.type.rank}")
    if layer.config.flag("normalize"):
        a, b = unit_length(ctx, a, (i,)), unit_length(ctx, b, (j,))
    left = ["n", *"abcd"[: a.type.rank - 1]]
    right = ["n", *"efgh"[: b.type.rank - 1]]
    left[i] = right[j] = "k"
    result = [c for c in left if c != "k"] + [c for c in right[1:] if c != "k"]
    y = ctx.add("einsum", [a, b], equation=f"{''.join(left)},{''.join(right)}->{''.join(result)}")
    return reshape(ctx, y, (*y.type.shape, 1)) if y.type.rank == 1 else y


def _aligned_types(ctx: Context, values: list[Value]) -> list[Value]:
    dtype = max((v.type.dtype for v in values), key=lambda t: (t.is_float, t.bits))
    return [cast(ctx, v, dtype) for v in values]
