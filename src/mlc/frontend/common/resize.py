"""Resizing along axes. Where each output position reads is worked out here, in tables of indices and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isclose
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, scalar, transpose
from mlc.ir.graph import Value
from mlc.ir.types import f32
from mlc.ops.resize import MAX_TAPS

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Axis:
    """One axis to be resized.

    Args:
        axis: which one.
        extent: of the input.
        out: of the output.
        scale: ratio of output to input; ``extent * scale`` need not be whole.
        roi: begin and end of the region of interest, 0 and 1 being the whole.
    """

    axis: int
    extent: int
    out: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Method:
    """How to resize, in the words of ONNX's Resize, which has names for what all formats do.

    Args:
        mode: ``nearest``, ``linear`` or ``cubic``.
        coordinates: a name of :data:`COORDINATES`: from positions of the output to those of the input.
        nearest_mode: a name of :data:`NEAREST`: which neighbour a position between two takes.
        cubic_a: parameter of Keys' kernel.
        exclude_outside: whether neighbours outside of the input have no weight, instead of the border's value.
        antialias: whether kernels widen as the image shrinks.
        extrapolation: what positions outside of the input give with ``tf_crop_and_resize``.
    """

    mode: str
    coordinates: str
    nearest_mode: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


def _align_corners(x: Array, a: Axis) -> Array:
    # with the length that the scale asks for, whole or not, as the definition's own test data has it
    length = a.extent * a.scale
    return x * (a.extent - 1) / (length - 1) if length != 1 else 0 * x


def _crop(x: Array, a: Axis) -> Array:
    start, end = a.roi
    last, length = a.extent - 1, a.extent * a.scale
    if length == 1:
        return 0 * x + 0.5 * (start + end) * last
    return start * last + x * (end - start) * last / (length - 1)


def _symmetric(x: Array, a: Axis) -> Array:
    # written so that the middle of the output is exactly that of the input, where floor and ceil would show any noise
    return a.extent / 2 - 0.5 + (x + 0.5 - a.out / 2) / a.scale


COORDINATES: dict[str, Callable[[Array, Axis], Array]] = {
    "half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5 if a.out > 1 else 0 * x,
    "align_corners": _align_corners,
    "asymmetric": lambda x, a: x / a.scale,
    "tf_half_pixel_for_nn": lambda x, a: (x + 0.5) / a.scale,
    "tf_crop_and_resize": _crop,
}

NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear_kernel(d: Array) -> Array:
    return np.maximum(0, 1 - np.abs(d))


def _cubic_kernel(d: Array, a: float) -> Array:
    """Keys' cubic convolution kernel with parameter ``a``."""
    d = np.abs(d)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _taps(method: Method, a: Axis, x: Array) -> tuple[Array, Array]:
    """Indices (not yet clamped) and weights, ``[taps, out]``, for the source positions ``x``."""
    reach = 2 if method.mode == "cubic" else 1
    stretch = min(a.scale, 1.0) if method.antialias else 1.0
    before = ceil(reach / stretch)
    index = np.floor(x)[None, :] + np.arange(1 - before, before + 1)[:, None]
    distance = (index - x) * stretch
    weight = _cubic_kernel(distance, method.cubic_a) if method.mode == "cubic" else _linear_kernel(distance)
    if method.exclude_outside:
        weight = np.where((index < 0) | (index >= a.extent), 0.0, weight)
    if method.exclude_outside or method.antialias:
        total = weight.sum(axis=0)
        weight = weight / np.where(total == 0, 1.0, total)
    used = np.flatnonzero((weight != 0).any(axis=1))
    first, last = (used[0], used[-1] + 1) if used.size else (0, 1)
    return index[first:last].astype(np.int64), weight[first:last]


def _positions(method: Method, a: Axis) -> Array:
    return COORDINATES[method.coordinates](np.arange(a.out, dtype=np.float64), a)


def nearest(ctx: Context, x: Value, tables: Mapping[int, Array]) -> Value:
    """``x`` read at the positions of a table for every axis to be resized.

    Tables that follow ``i * n // m`` become index arithmetic.
    """
    shape = list(x.type.shape)
    looked_up: list[tuple[int, Array]] = []
    for axis, table in tables.items():
        count = len(table)
        if (table == np.arange(count, dtype=np.int64) * x.type.shape[axis] // count).all():
            shape[axis] = count
        else:
            looked_up.append((axis, table))
    if tuple(shape) != x.type.shape:
        x = ctx.add("resize_nearest", [x], shape=tuple(shape))
    for axis, table in looked_up:
        x = ctx.add("gather", [x, ctx.constant(table, np.int32)], axis=axis)
    return x


def _nearest_table(method: Method, a: Axis) -> Array:
    return np.clip(NEAREST[method.nearest_mode](_positions(method, a)), 0, a.extent - 1).astype(np.int64)


def _weighted(ctx: Context, x: Value, method: Method, a: Axis) -> Value:
    """One axis of a linear or cubic resize, in the floating type of ``x``."""
    index, weight = _taps(method, a, _positions(method, a))
    index = np.clip(index, 0, a.extent - 1)
    taps = len(index)
    if taps == 1 and (weight == 1).all() and (index[0] == np.arange(a.extent)[: a.out]).all() and a.out == a.extent:
        return x
    if taps <= MAX_TAPS:
        operands = [ctx.constant(index, np.int32), ctx.constant(weight, x.type.dtype.numpy)]
        return ctx.add("resample", [x, *operands], axis=a.axis)
    ctx.check_constant((a.extent, a.out), x.type.dtype.itemsize)
    matrix = np.zeros((a.extent, a.out))
    np.add.at(matrix, (index, np.arange(a.out)), weight)
    last = x.type.rank - 1
    order = [d for d in range(last + 1) if d != a.axis] + [a.axis]
    rows = transpose(ctx, x, order)
    product = ctx.add("matmul", [rows, ctx.constant(matrix, x.type.dtype.numpy)])
    return transpose(ctx, product, [order.index(d) for d in range(last + 1)])


def resize(ctx: Context, x: Value, method: Method, axes: Sequence[Axis]) -> Value:
    """``x`` with some axes resized; integers are rounded and saturated.

    Raises:
        ImportModelError: an empty axis is to grow, or the tables are beyond the limits.
    """
    axes = [a for a in axes if a.out != a.extent or a.scale != 1.0 or a.roi != (0.0, 1.0)]
    for a in axes:
        if a.out and not a.extent:
            raise ImportModelError(f"axis {a.axis} is empty, it cannot be resized to {a.out}")
        # the tables below have a row a tap and an entry a position
        stretch = min(a.scale, 1.0) if method.antialias else 1.0
        ctx.check_constant((ceil(4 / stretch), a.out), 8)
    if any(a.out == 0 for a in axes):
        shape = {a.axis: a.out for a in axes}
        final = tuple(shape.get(d, n) for d, n in enumerate(x.type.shape))
        return ctx.add("broadcast_to", [scalar(ctx, 0, x.type.dtype)], shape=final)
    dtype = x.type.dtype
    if method.mode == "nearest":
        y = nearest(ctx, x, {a.axis: _nearest_table(method, a) for a in axes})
    else:
        y = x if dtype.is_float and dtype.bits >= 32 else cast(ctx, x, f32)
        for a in axes:
            y = _weighted(ctx, y, method, a)
    if method.coordinates == "tf_crop_and_resize":
        y = _extrapolated(ctx, y, method, axes)
    if dtype.is_int and not y.type.dtype.is_int:
        y = ctx.add("clip", [ctx.add("round", [y])], lo=float(dtype.min_value), hi=float(dtype.max_value))
    return cast(ctx, y, dtype)


def _extrapolated(ctx: Context, y: Value, method: Method, axes: Sequence[Axis]) -> Value:
    """``y`` with the value for positions outside of the input filled in."""
    for a in axes:
        x = _positions(method, a)
        outside = (x < 0) | (x > a.extent - 1)
        if outside.any():
            mask = ctx.constant(outside.reshape(-1, *[1] * (y.type.rank - 1 - a.axis)))
            y = ctx.add("where", [mask, scalar(ctx, method.extrapolation, y.type.dtype), y])
    return y


def by_scales(x: Value, scales: Sequence[float], axes: Sequence[int]) -> list[Axis]:
    """Axes that each grow by a factor; what is left of a position is dropped.

    Raises:
        ImportModelError: not one factor an axis, or one that is not positive.
    """
    if len(scales) != len(axes):
        raise ImportModelError(f"{len(scales)} scales for {len(axes)} axes")
    found = []
    for d, s in zip(axes, scales, strict=True):
        if not 0 < s < float("inf"):
            raise ImportModelError(f"scale {s}")
        extent = x.type.shape[d]
        # in single precision, as every other implementation of shape inference
        out = floor(np.float32(extent) * np.float32(s))
        # 0.33333334 means a third
        exact = out / extent if extent and out and isclose(extent * s, out, rel_tol=1e-6) else float(s)
        found.append(Axis(d, extent, out, exact))
    return found


def by_sizes(x: Value, sizes: Sequence[int], axes: Sequence[int], policy: str = "stretch") -> list[Axis]:
    """Axes that each get an extent; with ``policy`` the smallest (``not_larger``) or largest ratio holds for all.

    Raises:
        ImportModelError: not one extent an axis, or no such policy.
    """
    if len(sizes) != len(axes) or min(sizes, default=0) < 0:
        raise ImportModelError(f"sizes {list(sizes)} for {len(axes)} axes")
    extents = [x.type.shape[d] for d in axes]
    if 0 in extents:
        return [Axis(d, n, m, 1.0) for d, n, m in zip(axes, extents, sizes, strict=True)]
    scales = [m / n for m, n in zip(sizes, extents, strict=True)]
    if policy == "stretch":
        return [Axis(d, n, m, s) for d, n, m, s in zip(axes, extents, sizes, scales, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ImportModelError(f"keep_aspect_ratio_policy {policy!r}")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [Axis(d, n, floor(scale * n + 0.5), scale) for d, n in zip(axes, extents, strict=True)]
