"""Resize and Upsample. Where each output position reads is worked out here, in tables of indices and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isclose
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.onnx.axes import ints, normal_axes
from mlc.frontend.onnx.emit import cast, scalar, transpose
from mlc.frontend.onnx.registry import Context, OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import f32
from mlc.ops.resize import MAX_TAPS

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class _Axis:
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
class _Method:
    """How to resize: the attributes of ONNX's Resize."""

    mode: str
    coordinates: str
    nearest_mode: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def _align_corners(x: Array, a: _Axis) -> Array:
    # with the length that the scale asks for, whole or not, as the definition's own test data has it
    length = a.extent * a.scale
    return x * (a.extent - 1) / (length - 1) if length != 1 else 0 * x


def _crop(x: Array, a: _Axis) -> Array:
    start, end = a.roi
    last, length = a.extent - 1, a.extent * a.scale
    if length == 1:
        return 0 * x + 0.5 * (start + end) * last
    return start * last + x * (end - start) * last / (length - 1)


def _symmetric(x: Array, a: _Axis) -> Array:
    # written so that the middle of the output is exactly that of the input, where floor and ceil would show any noise
    return a.extent / 2 - 0.5 + (x + 0.5 - a.out / 2) / a.scale


_COORDINATES: dict[str, Callable[[Array, _Axis], Array]] = {
    "half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda x, a: (x + 0.5) / a.scale - 0.5 if a.out > 1 else 0 * x,
    "align_corners": _align_corners,
    "asymmetric": lambda x, a: x / a.scale,
    "tf_half_pixel_for_nn": lambda x, a: (x + 0.5) / a.scale,
    "tf_crop_and_resize": _crop,
}

_NEAREST: dict[str, Callable[[Array], Array]] = {
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


def _taps(method: _Method, a: _Axis, x: Array) -> tuple[Array, Array]:
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


def _positions(method: _Method, a: _Axis) -> Array:
    return _COORDINATES[method.coordinates](np.arange(a.out, dtype=np.float64), a)


def _nearest(ctx: Context, x: Value, method: _Method, axes: Sequence[_Axis]) -> Value:
    """Axes whose positions follow ``i * n // m`` become index arithmetic, the others look up a table."""
    shape = list(x.type.shape)
    tables: list[tuple[int, Array]] = []
    for a in axes:
        table = np.clip(_NEAREST[method.nearest_mode](_positions(method, a)), 0, a.extent - 1).astype(np.int64)
        if (table == np.arange(a.out, dtype=np.int64) * a.extent // a.out).all():
            shape[a.axis] = a.out
        else:
            tables.append((a.axis, table))
    if tuple(shape) != x.type.shape:
        x = ctx.add("resize_nearest", [x], shape=tuple(shape))
    for axis, table in tables:
        x = ctx.add("gather", [x, ctx.constant(table, np.int32)], axis=axis)
    return x


def _weighted(ctx: Context, x: Value, method: _Method, a: _Axis) -> Value:
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


def _resize(ctx: Context, x: Value, method: _Method, axes: Sequence[_Axis]) -> Value:
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
        y = _nearest(ctx, x, method, axes)
    else:
        y = x if dtype.is_float and dtype.bits >= 32 else cast(ctx, x, f32)
        for a in axes:
            y = _weighted(ctx, y, method, a)
    if method.coordinates == "tf_crop_and_resize":
        y = _extrapolated(ctx, y, method, axes)
    if dtype.is_int and not y.type.dtype.is_int:
        y = ctx.add("clip", [ctx.add("round", [y])], lo=float(dtype.min_value), hi=float(dtype.max_value))
    return cast(ctx, y, dtype)


def _extrapolated(ctx: Context, y: Value, method: _Method, axes: Sequence[_Axis]) -> Value:
    """``y`` with the value for positions outside of the input filled in."""
    for a in axes:
        x = _positions(method, a)
        outside = (x < 0) | (x > a.extent - 1)
        if outside.any():
            mask = ctx.constant(outside.reshape(-1, *[1] * (y.type.rank - 1 - a.axis)))
            y = ctx.add("where", [mask, scalar(ctx, method.extrapolation, y.type.dtype), y])
    return y


def _by_scales(ctx: Context, x: Value, scales: Sequence[float], axes: Sequence[int]) -> list[_Axis]:
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
        found.append(_Axis(d, extent, out, exact))
    return found


def _by_sizes(x: Value, sizes: Sequence[int], axes: Sequence[int], policy: str) -> list[_Axis]:
    if len(sizes) != len(axes) or min(sizes, default=0) < 0:
        raise ImportModelError(f"sizes {list(sizes)} for {len(axes)} axes")
    extents = [x.type.shape[d] for d in axes]
    if 0 in extents:
        return [_Axis(d, n, m, 1.0) for d, n, m in zip(axes, extents, sizes, strict=True)]
    scales = [m / n for m, n in zip(sizes, extents, strict=True)]
    if policy == "stretch":
        return [_Axis(d, n, m, s) for d, n, m, s in zip(axes, extents, sizes, scales, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ImportModelError(f"keep_aspect_ratio_policy {policy!r}")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [_Axis(d, n, floor(scale * n + 0.5), scale) for d, n in zip(axes, extents, strict=True)]


def _floats(ctx: Context, value: Value, what: str) -> tuple[float, ...]:
    array = ctx.require_const(value, what)
    return tuple(float(v) for v in array.reshape(-1))


def _method(node: OnnxNode) -> _Method:
    method = _Method(
        mode=node.attr("mode", "nearest"),
        coordinates=node.attr("coordinate_transformation_mode", "half_pixel"),
        nearest_mode=node.attr("nearest_mode", "round_prefer_floor"),
        cubic_a=node.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attr("exclude_outside", 0)),
        antialias=bool(node.attr("antialias", 0)),
        extrapolation=node.attr("extrapolation_value", 0.0),
    )
    known = {"nearest", "linear", "cubic"}, set(_COORDINATES), set(_NEAREST)
    for value, names in zip((method.mode, method.coordinates, method.nearest_mode), known, strict=True):
        if value not in names:
            raise ImportModelError(f"{value!r}, known: {', '.join(sorted(names))}")
    return method


@converter("Upsample", since=7)
def upsample(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    scales = node.attr("scales") if node.opset < 9 else _floats(ctx, inputs[1], "scales")
    return [_asymmetric(ctx, node, x, scales)]


def _asymmetric(ctx: Context, node: OnnxNode, x: Value, scales: Sequence[float]) -> Value:
    """The only way of resizing there was before opset 11."""
    mode = "nearest" if node.attr("mode", "nearest") == "nearest" else "linear"
    method = _Method(mode, "asymmetric", "floor", -0.75, False, False, 0.0)
    return _resize(ctx, x, method, _by_scales(ctx, x, scales, range(x.type.rank)))


@converter("Resize", since=10)
def resize(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    if node.opset == 10:
        return [_asymmetric(ctx, node, x, _floats(ctx, inputs[1], "scales"))]
    method, rank = _method(node), x.type.rank
    axes = normal_axes(node.attr("axes", range(rank)), rank)
    _, roi, scales, sizes = inputs
    given = () if scales is None else _floats(ctx, scales, "scales")
    if given:
        found = _by_scales(ctx, x, given, axes)
    elif sizes is not None:
        found = _by_sizes(x, ints(ctx, sizes, "sizes"), axes, node.attr("keep_aspect_ratio_policy", "stretch"))
    else:
        raise ImportModelError("neither scales nor sizes")
    if method.coordinates == "tf_crop_and_resize":
        region = () if roi is None else _floats(ctx, roi, "roi")
        if len(region) != 2 * len(axes):
            raise ImportModelError(f"roi has {len(region)} values for {len(axes)} axes")
        pairs = zip(found, region[: len(axes)], region[len(axes) :], strict=True)
        found = [_Axis(a.axis, a.extent, a.out, a.scale, (b, e)) for a, b, e in pairs]
    if method.mode == "nearest" and method.antialias:
        raise UnsupportedError("antialias of mode nearest has no meaning")
    return [_resize(ctx, x, method, found)]
