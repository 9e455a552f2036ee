"""Small phrases that converters are written with: numbers as constants, reshapes that vanish, slices by axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.ir.graph import Value
from mlc.ir.types import DType
from mlc.ops.shape import concat_or_join

Number = int | float


def scalar(ctx: Context, value: Number, dtype: DType) -> Value:
    """A constant of rank 0."""
    return ctx.constant(np.asarray(value, dtype.numpy))


def arith(ctx: Context, op: str, a: Value | Number, b: Value | Number) -> Value:
    """A binary operator; a number takes the type of the other operand.

    Raises:
        TypeError: both are numbers.
    """
    if isinstance(a, Value):
        other = b if isinstance(b, Value) else scalar(ctx, b, a.type.dtype)
        return ctx.add(op, [a, other])
    if not isinstance(b, Value):
        raise TypeError(f"{op} of two numbers")
    return ctx.add(op, [scalar(ctx, a, b.type.dtype), b])


def cast(ctx: Context, x: Value, dtype: DType) -> Value:
    """``x`` as ``dtype``; ``x`` itself when it is that already."""
    return x if x.type.dtype is dtype else ctx.add("cast", [x], to=dtype.name)


def reshape(ctx: Context, x: Value, shape: Sequence[int]) -> Value:
    """``x`` under another shape, where one extent may be -1; ``x`` itself when it has that shape.

    A constant stays one, however large: it is the same memory.
    """
    target = tuple(shape)
    if -1 in target:
        known = prod(n for n in target if n != -1)
        target = tuple(x.type.size // max(known, 1) if n == -1 else n for n in target)
    if x.type.shape == target:
        return x
    array = ctx.const(x)
    if array is not None and prod(target) == array.size and min(target, default=0) >= 0:
        return ctx.constant(array.reshape(target))
    return ctx.add("reshape", [x], shape=target)


def transpose(ctx: Context, x: Value, perm: Sequence[int]) -> Value:
    """``x`` with its axes in the order ``perm``; a reshape where only axes of extent 1 move.

    Raises:
        ImportModelError: ``perm`` is no order of its axes.
    """
    shape = x.type.shape
    if sorted(perm) != list(range(len(shape))):
        raise ImportModelError(f"{list(perm)} is no order of {len(shape)} axes")
    moving = [p for p in perm if shape[p] != 1]
    if moving == sorted(moving):
        return reshape(ctx, x, [shape[p] for p in perm])
    return ctx.add("transpose", [x], perm=tuple(perm))


def slice_axis(ctx: Context, x: Value, axis: int, begin: int, end: int) -> Value:
    """``x[begin:end]`` along one axis; ``x`` itself when that is all of it. A piece of a constant is a constant."""
    shape = x.type.shape
    if (begin, end) == (0, shape[axis]):
        return x
    array = ctx.const(x)
    if array is not None and 0 <= begin <= end <= shape[axis]:
        cut = array[(slice(None),) * axis + (slice(begin, end),)]
        return ctx.constant(np.asarray(cut, order="C"))
    begins = tuple(begin if d == axis else 0 for d in range(len(shape)))
    ends = tuple(end if d == axis else n for d, n in enumerate(shape))
    return ctx.add("slice", [x], begin=begins, end=ends, step=(1,) * len(shape))


def split(ctx: Context, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """``x`` cut along an axis into pieces of the given extents."""
    ends = np.cumsum(sizes)
    return [slice_axis(ctx, x, axis, int(e) - n, int(e)) for e, n in zip(ends, sizes, strict=True)]


def take(ctx: Context, x: Value, axis: int, index: int) -> Value:
    """``x`` at one position of an axis, which vanishes."""
    piece = slice_axis(ctx, x, axis, index, index + 1)
    return reshape(ctx, piece, [n for d, n in enumerate(x.type.shape) if d != axis])


def concat(ctx: Context, parts: Sequence[Value], axis: int) -> Value:
    """The parts one after the other; a single part stays itself."""
    return parts[0] if len(parts) == 1 else ctx.add(concat_or_join([v.type for v in parts], axis), parts, axis=axis)


def zeros(ctx: Context, shape: Sequence[int], dtype: DType) -> Value:
    """A tensor of zeros, computed rather than stored."""
    return ctx.add("broadcast_to", [scalar(ctx, 0, dtype)], shape=tuple(shape))


def per_channel(ctx: Context, x: Value, rank: int) -> Value:
    """A vector over channels shaped to broadcast against data of ``rank``: ``[c, 1, 1, …]``."""
    return reshape(ctx, x, [x.type.size, *[1] * (rank - 2)])


def normal_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front.

    Raises:
        ImportModelError: there is no such axis.
    """
    return _from_front(axis, rank, f"axis {axis} of a tensor of rank {rank}")


def normal_index(index: int, extent: int) -> int:
    """``index`` along an axis counted from the front.

    Raises:
        ImportModelError: it is out of range.
    """
    return _from_front(index, extent, f"index {index} of an axis of extent {extent}")


def _from_front(k: int, count: int, what: str) -> int:
    if not -count <= k < count:
        raise ImportModelError(what)
    return k % count


def need_rank(x: Value, what: str, least: int, most: int | None = None) -> int:
    """The rank of ``x``.

    Raises:
        ImportModelError: it is below ``least``.
        UnsupportedError: it is above ``most``.
    """
    rank = x.type.rank
    if rank < least:
        raise ImportModelError(f"{what} has rank {rank}, {least} or more is needed")
    if most is not None and rank > most:
        raise UnsupportedError(f"{what} has rank {rank}, up to {most} is supported")
    return rank
