"""Normalisations. Statistics take two passes: the mean, then the mean squared distance from it.

Arithmetic is in f32 for the 16-bit floats; the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mlc.ir import te
from mlc.ir.expr import Expr, binary, call, cast, select, within
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import IndexLike, Linear, as_index
from mlc.ir.types import TensorType
from mlc.ops._broadcast import check_count
from mlc.ops.common import (
    broadcast_load,
    broadcastable_to,
    check,
    check_float,
    check_same_dtype,
    normal_axis,
    wide,
)
from mlc.ops.registry import operator

# index of a row (outer), position inside it -> position in x
Place = Callable[[Sequence[IndexLike], Sequence[IndexLike]], tuple[IndexLike, ...]]


def _mean(outer: Sequence[int], inner: Sequence[int], term: Callable[..., Expr], name: str) -> te.Tensor:
    """Mean of ``term(row, position)`` over the ``inner`` extents, for every row."""
    axes = [te.reduce_axis(n, f"r{d}" if len(inner) > 1 else "r") for d, n in enumerate(inner)]
    at = [as_index(a) for a in axes]
    total = te.compute(outer, lambda *row: te.sum_of(term(row, at), axes), f"{name}_sum", tag="sum")
    return te.compute(outer, lambda *row: total[row] / float(prod(inner)), name)


def _moments(
    x: te.Tensor, outer: Sequence[int], inner: Sequence[int], place: Place, epsilon: float
) -> tuple[te.Tensor, te.Tensor]:
    """Mean and inverse standard deviation of every row."""
    mean = _mean(outer, inner, lambda row, at: wide(x[place(row, at)]), "mean")

    def squared(row: tuple[Linear, ...], at: Sequence[Linear]) -> Expr:
        distance = wide(x[place(row, at)]) - mean[row]
        return distance * distance

    variance = _mean(outer, inner, squared, "variance")
    return mean, te.compute(outer, lambda *row: call("rsqrt", variance[row] + float(epsilon)), "inverse_deviation")


# -- over trailing axes -------------------------------------------------------------------------------------------
def _trailing_type(op: str, operands: int) -> Callable[[Sequence[TensorType], Attrs], list[TensorType]]:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
        check_count(op, types, operands)
        x, *params = types
        check_float(op, x)
        check_same_dtype(op, x, *params)
        normal_axis(op, attrs["axis"], x.rank)
        for what, p in zip(("scale", "bias"), params, strict=False):
            check(broadcastable_to(p.shape, x.shape), op, f"{what} {p.shape} does not broadcast to x {x.shape}")
        return [TensorType(x.shape, x.dtype)]

    return infer


def _together(row: Sequence[IndexLike], at: Sequence[IndexLike]) -> tuple[IndexLike, ...]:
    return (*row, *at)


@operator("layer_norm", FusionKind.REDUCTION, _trailing_type("layer_norm", 3), axis=-1, epsilon=1e-5)
def layer_norm(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the axes from ``axis`` on.

    ``scale`` and ``bias`` broadcast to ``x``.
    """
    x, scale, bias = inputs
    axis = normal_axis("layer_norm", attrs["axis"], x.rank)
    mean, inverse = _moments(x, x.shape[:axis], x.shape[axis:], _together, attrs["epsilon"])

    def element(*i: Linear) -> Expr:
        y = (wide(x[i]) - mean[i[:axis]]) * inverse[i[:axis]]
        return cast(y * wide(broadcast_load(scale, i)) + wide(broadcast_load(bias, i)), x.dtype)

    return [te.compute(x.shape, element, "layer_norm", tag="layer_norm")]


@operator("rms_norm", FusionKind.REDUCTION, _trailing_type("rms_norm", 2), axis=-1, epsilon=1e-5)
def rms_norm(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``x / sqrt(mean(x * x) + epsilon) * scale`` over the axes from ``axis`` on; ``scale`` broadcasts to ``x``."""
    x, scale = inputs
    axis = normal_axis("rms_norm", attrs["axis"], x.rank)

    def squared(row: tuple[Linear, ...], at: Sequence[Linear]) -> Expr:
        value = wide(x[(*row, *at)])
        return value * value

    square = _mean(x.shape[:axis], x.shape[axis:], squared, "mean_square")
    inverse = te.compute(square.shape, lambda *row: call("rsqrt", square[row] + float(attrs["epsilon"])), "inverse_rms")

    def element(*i: Linear) -> Expr:
        return cast(wide(x[i]) * inverse[i[:axis]] * wide(broadcast_load(scale, i)), x.dtype)

    return [te.compute(x.shape, element, "rms_norm", tag="rms_norm")]


# -- over channels and space --------------------------------------------------------------------------------------
def _channel_type(op: str) -> Callable[[Sequence[TensorType], Attrs], list[TensorType]]:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
        check_count(op, types, 3)
        x, *params = types
        check_float(op, x)
        check_same_dtype(op, x, *params)
        least = 3 if op == "instance_norm" else 2
        check(x.rank >= least, op, f"x has rank {x.rank}, {least} or more is needed")
        for what, p in zip(("scale", "bias"), params, strict=False):
            check(p.shape == x.shape[1:2], op, f"{what} {p.shape} for {x.shape[1]} channels")
        groups = attrs.get("groups", 1)
        check(groups >= 1 and x.shape[1] % groups == 0, op, f"{x.shape[1]} channels in {groups} groups")
        return [TensorType(x.shape, x.dtype)]

    return infer


def _scaled(
    inputs: Sequence[te.Tensor], moments: tuple[te.Tensor, te.Tensor], row: Callable[..., tuple[Linear, ...]], tag: str
) -> list[te.Tensor]:
    """``(x - mean) * inverse * scale[c] + bias[c]``."""
    x, scale, bias = inputs
    mean, inverse = moments

    def element(n: Linear, c: Linear, *at: Linear) -> Expr:
        y = (wide(x[(n, c, *at)]) - mean[row(n, c)]) * inverse[row(n, c)]
        return cast(y * wide(scale[c]) + wide(bias[c]), x.dtype)

    return [te.compute(x.shape, element, tag, tag=tag)]


@operator("instance_norm", FusionKind.REDUCTION, _channel_type("instance_norm"), epsilon=1e-5)
def instance_norm(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """Every ``x[n, c]`` brought to mean 0 and variance 1, then ``* scale[c] + bias[c]``."""
    x = inputs[0]
    moments = _moments(x, x.shape[:2], x.shape[2:], _together, attrs["epsilon"])
    return _scaled(inputs, moments, lambda n, c: (n, c), "instance_norm")


@operator("group_norm", FusionKind.REDUCTION, _channel_type("group_norm"), groups=..., epsilon=1e-5)
def group_norm(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """Like ``instance_norm``, with the statistics of ``groups`` blocks of neighbouring channels."""
    x = inputs[0]
    size = x.shape[1] // attrs["groups"]

    def place(row: Sequence[IndexLike], at: Sequence[IndexLike]) -> tuple[IndexLike, ...]:
        return (row[0], as_index(row[1]) * size + at[0], *at[1:])

    outer, inner = (x.shape[0], attrs["groups"]), (size, *x.shape[2:])
    moments = _moments(x, outer, inner, place, attrs["epsilon"])
    return _scaled(inputs, moments, lambda n, c: (n, c // size), "group_norm")


# -- local response -----------------------------------------------------------------------------------------------
def _lrn_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("lrn", types, 1)
    (x,) = types
    check_float("lrn", x)
    check(x.rank >= 2, "lrn", f"x has rank {x.rank}, 2 or more is needed")
    check(attrs["size"] >= 1, "lrn", f"size {attrs['size']} must be at least 1")
    return [TensorType(x.shape, x.dtype)]


@operator("lrn", FusionKind.REDUCTION, _lrn_type, size=..., alpha=1e-4, beta=0.75, bias=1.0)
def lrn(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``x / (bias + alpha / size * sum of x² over size neighbouring channels) ** beta``, zero beyond the ends.

    The window of channel ``c`` starts at ``c - (size - 1) // 2``.
    """
    (x,) = inputs
    size, channels = attrs["size"], x.shape[1]
    # what lies further away than the other end of the channels adds nothing
    before = min((size - 1) // 2, channels - 1)
    after = min(size // 2, channels - 1)

    def shifted(n: Linear, c: Linear, *at: Linear) -> Expr:
        return select(within(c - before, 0, channels), wide(x[(n, c - before, *at)]), 0.0)

    pad = te.compute((x.shape[0], before + channels + after, *x.shape[2:]), shifted, "pad", tag="pad")
    r = te.reduce_axis(before + 1 + after, "r")

    def squares(n: Linear, c: Linear, *at: Linear) -> te.Reduction:
        value = pad[(n, c + as_index(r), *at)]
        return te.sum_of(value * value, r)

    total = te.compute(x.shape, squares, "squares", tag="sum")

    def element(*i: Linear) -> Expr:
        scale = total[i] * (attrs["alpha"] / size) + float(attrs["bias"])
        return cast(wide(x[i]) * binary("pow", scale, -float(attrs["beta"])), x.dtype)

    return [te.compute(x.shape, element, "lrn", tag="lrn")]
