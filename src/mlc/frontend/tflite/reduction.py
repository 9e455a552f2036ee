"""Reductions."""

from __future__ import annotations

from math import prod

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import normal_axes
from mlc.frontend.common.body import Body, Rows
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, reshape, slice_axis, transpose
from mlc.frontend.tflite.quant import centred, finished, fixed_point, scale_of, scaled, scaled_by, zero_of
from mlc.frontend.tflite.registry import Operator, converter, known_ints
from mlc.ir.graph import Value
from mlc.ir.types import boolean, i32, i64

_FOLDS = {
    "SUM": "reduce_sum", "MEAN": "reduce_mean", "REDUCE_PROD": "reduce_prod",
    "REDUCE_MAX": "reduce_max", "REDUCE_MIN": "reduce_min", "REDUCE_ANY": "reduce_max", "REDUCE_ALL": "reduce_min",
}  # fmt: skip


@converter(*_FOLDS, limits="axes known at compile time")
def reduction(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    axes = _axes(ctx, op, x)
    kept = bool(op.option("keep_dims", False))
    rescaled = op.quantised() and op.name in ("SUM", "MEAN", "REDUCE_PROD")
    if not axes and not rescaled:
        return [x]
    if x.type.dtype is boolean:
        y = ctx.add(_FOLDS[op.name], [cast(ctx, x, i32)], axes=axes, keepdims=kept)
        return [cast(ctx, y, boolean)]
    if rescaled:  # also where there is nothing to reduce
        return [(_product if op.name == "REDUCE_PROD" else _sum)(ctx, op, x, axes, kept)]
    if op.name == "MEAN" and x.type.dtype.is_int:
        total = ctx.add("reduce_sum", [x], axes=axes, keepdims=kept)
        return [arith(ctx, "div", total, prod(x.type.shape[a] for a in axes))]
    return [ctx.add(_FOLDS[op.name], [x], axes=axes, keepdims=kept)]


def _axes(ctx: Context, op: Operator, x: Value) -> tuple[int, ...]:
    given = dict.fromkeys(a % x.type.rank if -x.type.rank <= a < x.type.rank else a for a in
                          known_ints(ctx, op, 1, "the axes"))  # fmt: skip
    return tuple(sorted(normal_axes(given, x.type.rank)))


def _sum(ctx: Context, op: Operator, x: Value, axes: tuple[int, ...], kept: bool) -> Value:
    """Sums and means of quantised numbers: added up as they are, then scaled."""
    q, out = op.scale_of(0), op.result_scale()
    count = prod(x.type.shape[a] for a in axes)
    total = cast(ctx, x, i32)
    if axes:
        total = ctx.add("reduce_sum", [total], axes=axes, keepdims=kept)
    total = arith(ctx, "sub", total, zero_of(q) * count)
    multiplier, shift = fixed_point(scale_of(q) / scale_of(out))
    if op.name == "MEAN":
        # divided by the count as far as the multiplier has places for it
        places = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << places) // count, shift - places
    return finished(ctx, scaled_by(ctx, total, multiplier, shift), op)


def _product(ctx: Context, op: Operator, x: Value, axes: tuple[int, ...], kept: bool) -> Value:
    """Products of quantised numbers: element after element, brought to a root of the result's scale each time."""
    shape = x.type.shape
    count, rest = prod(shape[a] for a in axes), [d for d in range(x.type.rank) if d not in axes]
    if not count:
        raise ImportModelError(f"a product over axes {list(axes)} of {x.type}, which hold nothing")
    factor = scale_of(op.scale_of(0)) / scale_of(op.result_scale()) ** (1 / count)

    def next_product(y: Value, element: Value) -> Value:
        return scaled(ctx, ctx.add("mul", [cast(ctx, y, i64), cast(ctx, element, i64)]), factor)

    number = transpose(ctx, centred(ctx, x, op.scale_of(0), i32), (*axes, *rest))
    rows = reshape(ctx, number, (count, *(shape[d] for d in rest)))
    y = reshape(ctx, slice_axis(ctx, rows, 0, 0, 1), rows.type.shape[1:])
    if count > 1:
        body = Body(ctx, [y], [Rows(slice_axis(ctx, rows, 0, 1, count))])
        (y,) = body.close(count - 1, [next_product(body.state[0], body.rows[0])], [])
    y = scaled(ctx, cast(ctx, y, i64), factor)
    if kept:
        y = reshape(ctx, y, [1 if d in axes else n for d, n in enumerate(shape)])
    return finished(ctx, y, op)
