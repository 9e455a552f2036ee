"""Resizing of images, over channels last."""

from __future__ import annotations

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, need_rank, scalar
from mlc.frontend.common.resize import Axis, Method, nearest, resize
from mlc.frontend.tflite.conv import channels_first, channels_last
from mlc.frontend.tflite.registry import Operator, converter, known_ints
from mlc.ir.graph import Value
from mlc.ir.types import f32, i8, i32, i64, u8


def _axes(ctx: Context, op: Operator) -> list[Axis]:
    """Height and width, once channels come first; with aligned corners the scale is that between the corners."""
    x = op.input(0)
    need_rank(x, "the input", 4, 4)
    sizes = known_ints(ctx, op, 1, "the size")
    if len(sizes) != 2 or min(sizes) < 1 or min(x.type.shape[1:3]) < 1:
        raise ImportModelError(f"{x.type} to the size {list(sizes)}")
    ctx.check_constant((max(sizes),), 8)
    return [Axis(d + 2, x.type.shape[d + 1], m, m / x.type.shape[d + 1]) for d, m in enumerate(sizes)]


def _coordinates(op: Operator) -> str:
    if op.option("align_corners", False):
        return "align_corners"
    return "half_pixel" if op.option("half_pixel_centers", False) else "asymmetric"


@converter("RESIZE_NEAREST_NEIGHBOR", limits="size known at compile time")
def resize_nearest(ctx: Context, op: Operator) -> list[Value]:
    corners, half = bool(op.option("align_corners", False)), bool(op.option("half_pixel_centers", False))
    tables = {a.axis: _nearest(a, corners=corners, half=half) for a in _axes(ctx, op)}
    return [channels_last(ctx, nearest(ctx, channels_first(ctx, op.input(0)), tables))]


def _nearest(a: Axis, *, corners: bool, half: bool) -> np.ndarray:
    """Where every output position reads, in single precision like the kernel, which takes both options together."""
    scale = np.float32(a.extent) / np.float32(a.out)
    if corners and a.out > 1:
        scale = np.float32(a.extent - 1) / np.float32(a.out - 1)
    places = (np.arange(a.out, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
    found = np.floor(places + np.float32(0.5) if corners else places)
    return np.clip(found, 0, a.extent - 1).astype(np.int32)


@converter("RESIZE_BILINEAR", limits="size known at compile time")
def resize_bilinear(ctx: Context, op: Operator) -> list[Value]:
    axes, coordinates = _axes(ctx, op), _coordinates(op)
    if op.option("align_corners", False) and op.option("half_pixel_centers", False):
        raise ImportModelError("aligned corners with centers at half pixels")
    return [channels_last(ctx, _bilinear(ctx, op, channels_first(ctx, op.input(0)), axes, coordinates))]


def _bilinear(ctx: Context, op: Operator, x: Value, axes: list[Axis], coordinates: str) -> Value:
    if not op.quantised():
        return resize(ctx, x, Method("linear", coordinates), axes)
    if op.dtype() is u8:  # the one type for which the kernel goes by way of floats
        y = resize(ctx, cast(ctx, x, f32), Method("linear", coordinates), axes)
        return cast(ctx, arith(ctx, "add", y, 0.5), u8)
    wide = i32 if x.type.dtype is i8 else i64
    y = cast(ctx, x, wide)
    for a in axes:
        y = _in_fixed_point(ctx, y, a, coordinates)
    # twenty places, rounded with halves away from zero
    half = ctx.add("where", [arith(ctx, "gt", y, 0), scalar(ctx, 1 << 19, wide), scalar(ctx, -(1 << 19), wide)])
    y = arith(ctx, "div", ctx.add("add", [y, half]), 1 << 20)
    return cast(ctx, y, op.dtype())


def _in_fixed_point(ctx: Context, x: Value, a: Axis, coordinates: str) -> Value:
    """One axis with weights of ten binary places, which the result keeps."""
    if coordinates == "align_corners" and a.out > 1:
        scale = ((1 << 10) * (a.extent - 1) + (a.out - 1) // 2) // (a.out - 1)
    else:
        scale = ((1 << 10) * a.extent + a.out // 2) // a.out
    places = np.arange(a.out, dtype=np.int64) * scale
    if coordinates == "half_pixel":
        places = places + scale // 2 - (1 << 9)
    lower = np.maximum(places >> 10, 0)
    upper = np.minimum((places + (1 << 10) - 1) >> 10, a.extent - 1)
    shape = [a.out if d == a.axis else 1 for d in range(x.type.rank)]
    weight = (places - (lower << 10)).astype(x.type.dtype.numpy).reshape(shape)
    parts = []
    for index, w in ((lower, (1 << 10) - weight), (upper, weight)):
        taken = ctx.add("gather", [x, ctx.constant(index, np.int32)], axis=a.axis)
        parts.append(ctx.add("mul", [taken, ctx.constant(w.astype(x.type.dtype.numpy))]))
    return ctx.add("add", parts)
