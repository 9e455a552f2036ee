"""Reading at positions that operands give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import slice_axis, take
from mlc.ir.graph import Value


def check_range(ctx: Context, indices: Value, extents: Sequence[int]) -> None:
    """Refuse constant indices that are out of range.

    Args:
        ctx: knows the constants.
        indices: into one axis, or along its last axis into as many axes as there are ``extents``.
        extents: of those axes.
    Raises:
        ImportModelError: one index is out of range.
    """
    array = ctx.const(indices)
    if array is None or array.size == 0:
        return
    for k, n in enumerate(extents):
        column = array[..., k] if len(extents) > 1 or (array.ndim and array.shape[-1] == 1) else array
        least, most = int(column.min()), int(column.max())
        if least < -n or most >= n:
            raise ImportModelError(f"index {least if least < -n else most} of an axis of extent {n}")


def gather(ctx: Context, data: Value, indices: Value, axis: int) -> Value:
    """The slices of ``data`` along ``axis`` that ``indices`` name: a slice where these are known and neighbours.

    Raises:
        ImportModelError: a constant index is out of range.
    """
    check_range(ctx, indices, [data.type.shape[axis]])
    known = ctx.const(indices)
    plain = None if known is None else _as_slice(ctx, data, axis, known)
    return plain if plain is not None else ctx.add("gather", [data, indices], axis=axis)


def _as_slice(ctx: Context, data: Value, axis: int, indices: np.ndarray) -> Value | None:
    """A gather at one position, or at neighbouring ones in order, is a slice."""
    extent = data.type.shape[axis]
    at = indices.astype(np.int64)
    at = np.where(at < 0, at + extent, at)
    if at.ndim == 0:
        return take(ctx, data, axis, int(at))
    if at.ndim == 1 and at.size and (np.diff(at) == 1).all():
        return slice_axis(ctx, data, axis, int(at[0]), int(at[-1]) + 1)
    return None
