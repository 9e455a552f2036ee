"""Operators that look up by position, and that order by value."""

from __future__ import annotations

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import normal_axes
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, normal_axis, reshape, scalar
from mlc.frontend.common.index import check_range, gather
from mlc.frontend.tflite.registry import Operator, converter, known_ints
from mlc.ir.graph import Value
from mlc.ir.types import f32, i32, i64


@converter("GATHER")
def convert_gather(ctx: Context, op: Operator) -> list[Value]:
    x, indices = op.input(0), op.input(1, "indices")
    at = normal_axis(op.option("axis"), x.type.rank)
    batch = op.option("batch_dims")
    if batch < 0:
        batch += indices.type.rank
    if batch == 0:
        return [gather(ctx, x, indices, at)]
    if not 0 < batch <= min(at, indices.type.rank) or x.type.shape[:batch] != indices.type.shape[:batch]:
        raise ImportModelError(f"{batch} batch axes of {x.type} at {indices.type} along axis {at}")
    return [_batched(ctx, x, indices, at, batch)]


def _batched(ctx: Context, x: Value, indices: Value, at: int, batch: int) -> Value:
    """A gather along ``at`` in every slice of the first ``batch`` axes: coordinates for all axes up to ``at``."""
    check_range(ctx, indices, [x.type.shape[at]])
    lead, between = indices.type.shape[:batch], x.type.shape[batch:at]
    rest = indices.type.shape[batch:]
    shape = (*lead, *between, *rest)
    ctx.check_constant(shape, 8)
    last = reshape(ctx, indices, (*lead, *[1] * len(between), *rest))
    columns = []
    for d, n in enumerate((*lead, *between)):
        along = np.arange(n).reshape([n if k == d else 1 for k in range(len(shape))])
        columns.append(ctx.constant(np.broadcast_to(along, shape).reshape(*shape, 1), indices.type.dtype.numpy))
    wide = ctx.add("broadcast_to", [last], shape=shape)
    return ctx.add("gather_nd", [x, concat(ctx, [*columns, reshape(ctx, wide, (*shape, 1))], len(shape))])


@converter("GATHER_ND")
def gather_nd(ctx: Context, op: Operator) -> list[Value]:
    x, indices = op.input(0), op.input(1, "indices")
    depth = indices.type.shape[-1] if indices.type.rank else 0
    check_range(ctx, indices, x.type.shape[:depth])
    return [ctx.add("gather_nd", [x, indices])]


@converter("EMBEDDING_LOOKUP")
def embedding_lookup(ctx: Context, op: Operator) -> list[Value]:
    """Rows of a quantised table become floats where the result holds floats."""
    indices, table = op.input(0, "indices"), op.input(1, "table")
    if not op.dtype().is_float or table.type.dtype.is_float:
        return [gather(ctx, table, indices, 0)]
    q = op.scale_of(1)
    rows = cast(ctx, gather(ctx, table, indices, 0), f32)
    scales = ctx.constant(q.scale)
    if q.per_channel:
        scales = gather(ctx, reshape(ctx, scales, (q.scale.size, *[1] * (table.type.rank - 1))), indices, 0)
    return [ctx.add("mul", [rows, scales])]


@converter("SCATTER_ND", limits="shape known at compile time")
def scatter_nd(ctx: Context, op: Operator) -> list[Value]:
    """Updates that meet are added up."""
    indices, updates = op.input(0, "indices"), op.input(1, "updates")
    shape = known_ints(ctx, op, 2, "the shape")
    empty = ctx.add("broadcast_to", [scalar(ctx, 0, updates.type.dtype)], shape=shape)
    return [ctx.add("scatter_nd", [empty, indices, updates], reduction="add")]


@converter("SPARSE_TO_DENSE", limits="shape known at compile time")
def sparse_to_dense(ctx: Context, op: Operator) -> list[Value]:
    indices, values, default = op.input(0, "indices"), op.input(2, "values"), op.input(3, "default")
    shape = known_ints(ctx, op, 1, "the shape")
    rank = len(shape)
    if indices.type.rank == 0:
        indices = reshape(ctx, indices, (1, 1))
    elif indices.type.rank == 1:
        indices = reshape(ctx, indices, (indices.type.size, 1) if rank == 1 else (1, indices.type.size))
    if indices.type.rank != 2 or indices.type.shape[1] != rank:
        raise ImportModelError(f"indices {indices.type} into a tensor of rank {rank}")
    check_range(ctx, indices, shape)
    count = indices.type.shape[0]
    updates = values if values.type.rank else ctx.add("broadcast_to", [values], shape=(count,))
    empty = ctx.add("broadcast_to", [reshape(ctx, default, ())], shape=shape)
    return [ctx.add("scatter_nd", [empty, indices, updates])]


@converter("ONE_HOT", limits="depth known at compile time")
def one_hot(ctx: Context, op: Operator) -> list[Value]:
    indices, on, off = op.input(0, "indices"), op.input(2, "on value"), op.input(3, "off value")
    (depth,) = known_ints(ctx, op, 1, "the depth")
    values = concat(ctx, [reshape(ctx, v, (1,)) for v in (off, on)], 0)
    at = normal_axis(op.option("axis", -1), indices.type.rank + 1)
    # a negative index is no position here, as it is for the core operator
    wide = cast(ctx, indices, i64)
    known = ctx.add("where", [arith(ctx, "lt", wide, 0), scalar(ctx, depth, i64), wide])
    return [ctx.add("one_hot", [known, values], depth=depth, axis=at)]


@converter("ARG_MAX", "ARG_MIN", limits="axis known at compile time")
def arg(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    (axis,) = known_ints(ctx, op, 1, "the axis")
    name = op.name.lower().replace("_", "")
    return [cast(ctx, ctx.add(name, [x], axis=normal_axis(axis, x.type.rank), keepdims=False), op.dtype())]


@converter("TOPK_V2", limits="k known at compile time")
def top_k(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    (k,) = known_ints(ctx, op, 1, "k")
    if not x.type.rank or not 0 <= k <= x.type.shape[-1]:
        raise ImportModelError(f"k is {k} for {x.type}")
    values, places = ctx.add_many("top_k", [x], {"k": k, "axis": x.type.rank - 1, "largest": True, "sorted": True})
    return [values, cast(ctx, places, op.dtype(1) if len(op.results) > 1 else i32)]


@converter("WHERE", limits="a condition known at compile time")
def where(ctx: Context, op: Operator) -> list[Value]:
    array = ctx.require_const(op.input(0), "the condition, which decides the shape of the result,")
    return [ctx.constant(np.argwhere(array), np.int64)]


@converter("REVERSE_V2", limits="axes known at compile time")
def reverse(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    axes = normal_axes(known_ints(ctx, op, 1, "the axes"), x.type.rank)
    shape = x.type.shape
    begin = tuple(n - 1 if d in axes else 0 for d, n in enumerate(shape))
    end = tuple(-1 if d in axes else n for d, n in enumerate(shape))
    step = tuple(-1 if d in axes else 1 for d in range(len(shape)))
    return [ctx.add("slice", [x], begin=begin, end=end, step=step)]


@converter("REVERSE_SEQUENCE")
def reverse_sequence(ctx: Context, op: Operator) -> list[Value]:
    """The first elements along one axis in reverse, as many as every sample of the batch axis says."""
    x, lengths = op.input(0), op.input(1, "lengths")
    rank = x.type.rank
    time, batch = normal_axis(op.option("seq_dim"), rank), normal_axis(op.option("batch_dim"), rank)
    if time == batch or lengths.type.shape != (x.type.shape[batch],):
        raise ImportModelError(f"lengths {lengths.type} along axis {batch} of {x.type}, time along axis {time}")
    kind = lengths.type.dtype.numpy
    steps, count = x.type.shape[time], x.type.shape[batch]
    ctx.check_constant((steps,), 8)
    at = ctx.constant(np.arange(steps).reshape(1, steps), kind)
    length = reshape(ctx, lengths, (count, 1))
    mirrored = ctx.add("sub", [arith(ctx, "sub", length, 1), at])
    source = ctx.add("where", [ctx.add("lt", [at, length]), mirrored, at])
    place = [count if d == batch else steps if d == time else 1 for d in range(rank)]
    source = source if batch < time else ctx.add("transpose", [source], perm=(1, 0))
    wide = ctx.add("broadcast_to", [reshape(ctx, source, place)], shape=x.type.shape)
    return [ctx.add("gather_elements", [x, wide], axis=time)]


@converter("MATRIX_DIAG")
def matrix_diag(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    if not x.type.rank:
        raise ImportModelError("a scalar has no diagonal")
    n = x.type.shape[-1]
    ctx.check_constant((n, n), 1)
    eye = ctx.constant(np.eye(n, dtype=bool))
    column = reshape(ctx, x, (*x.type.shape, 1))
    return [ctx.add("where", [eye, column, scalar(ctx, 0, x.type.dtype)])]


@converter("MATRIX_SET_DIAG")
def matrix_set_diag(ctx: Context, op: Operator) -> list[Value]:
    x, diagonal = op.input(0), op.input(1, "diagonal")
    if x.type.rank < 2 or diagonal.type.shape != (*x.type.shape[:-2], min(x.type.shape[-2:])):
        raise ImportModelError(f"{diagonal.type} as the diagonal of {x.type}")
    rows, columns = x.type.shape[-2:]
    ctx.check_constant((rows, columns), 1)
    eye = ctx.constant(np.eye(rows, columns, dtype=bool))
    wide = (*diagonal.type.shape, 1) if rows <= columns else (*diagonal.type.shape[:-1], 1, columns)
    return [ctx.add("where", [eye, reshape(ctx, diagonal, wide), x])]


@converter("CUMSUM", limits="axis known at compile time")
def cumsum(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    (axis,) = known_ints(ctx, op, 1, "the axis")
    flags = {"exclusive": bool(op.option("exclusive", False)), "reverse": bool(op.option("reverse", False))}
    return [ctx.add("cumsum", [x], axis=normal_axis(axis, x.type.rank), **flags)]


@converter("DENSIFY")
def densify(ctx: Context, op: Operator) -> list[Value]:
    """What is stored sparsely is made dense when it is read."""
    return [op.input(0)]
