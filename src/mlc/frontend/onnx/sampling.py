"""Images read between their pixels at places that are known at run time only: RoiAlign, DeformConv."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.conv import with_bias
from mlc.frontend.common.emit import arith, cast, concat, need_rank, reshape, slice_axis, transpose
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.frontend.onnx.windows import read_window
from mlc.ir.graph import Value
from mlc.ir.types import i64
from mlc.ops.window import output_extents


def _neighbours(
    ctx: Context, y: Value, x: Value, extents: tuple[int, int], *, zeros: bool
) -> Iterator[tuple[Value, Value, Value]]:
    """The four pixels around every place: rows and columns, as integers inside the image, and weights.

    Args:
        y: rows, as floats.
        x: columns, of the same shape.
        extents: rows and columns that there are.
        zeros: whether what lies outside the image weighs nothing; else places must be inside, and pixels beyond the
            last one are the last one.
    """
    sides = []
    for place, extent in ((y, extents[0]), (x, extents[1])):
        low = ctx.add("floor", [place])
        share = ctx.add("sub", [place, low])
        both = []
        for step, weight in ((0, arith(ctx, "sub", 1, share)), (1, share)):
            at = arith(ctx, "add", low, step) if step else low
            inside = arith(ctx, "min", arith(ctx, "max", at, 0), extent - 1)
            if zeros:
                kept = ctx.add("eq", [at, inside])
                weight = ctx.add("mul", [weight, cast(ctx, kept, weight.type.dtype)])
            both.append((cast(ctx, inside, i64), weight))
        sides.append(both)
    for row, row_weight in sides[0]:
        for column, column_weight in sides[1]:
            yield row, column, ctx.add("mul", [row_weight, column_weight])


@converter("RoiAlign", since=10, limits="sampling_ratio above 0")
def roi_align(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Regions of images, divided into bins, each the mean or maximum of a few places between pixels."""
    image, regions, batch = inputs
    need_rank(image, "X", 4, 4)
    mode, ratio = node.attr("mode", "avg"), node.attr("sampling_ratio", 0)
    if regions.type.rank != 2 or regions.type.shape[1] != 4 or batch.type.shape != regions.type.shape[:1]:
        raise ImportModelError(f"rois are {regions.type} and batch_indices {batch.type}: [n, 4] and [n] are needed")
    if mode not in ("avg", "max"):
        raise ImportModelError(f"mode {mode!r}, known: avg, max")
    if ratio < 1:
        raise UnsupportedError("sampling_ratio 0: how many places are read would depend on the regions")
    half = node.opset >= 16 and node.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    count, (channels, *extents) = regions.type.shape[0], image.type.shape[1:]
    bins = [node.attr(name, 1) for name in ("output_height", "output_width")]
    dtype = image.type.dtype
    places = []
    outside: Value | None = None
    for axis, (number, extent) in enumerate(zip(bins, extents, strict=True)):
        begin, end = (
            arith(ctx, "sub", arith(ctx, "mul", slice_axis(ctx, regions, 1, k, k + 1), node.attr("spatial_scale", 1.0)),
                  0.5 if half else 0.0)
            for k in (1 - axis, 3 - axis)
        )  # fmt: skip
        size = ctx.add("sub", [end, begin])
        if not half:
            size = arith(ctx, "max", size, 1.0)  # regions without an extent are a pixel
        steps = (np.arange(number * ratio) + 0.5) / (number * ratio)
        at = ctx.add("add", [begin, ctx.add("mul", [size, ctx.constant(steps[None], dtype.numpy)])])
        far = ctx.add("or", [ctx.add("lt", [at, ctx.constant(-1, dtype.numpy)]),
                             ctx.add("gt", [at, ctx.constant(extent, dtype.numpy)])])  # fmt: skip
        shape = (count, -1, 1) if axis == 0 else (count, 1, number * ratio)
        far = reshape(ctx, far, (count, number * ratio, 1) if axis == 0 else shape)
        outside = far if outside is None else ctx.add("or", [outside, far])
        inside = arith(ctx, "min", arith(ctx, "max", at, 0), extent - 1)
        places.append(reshape(ctx, inside, (count, number * ratio, 1) if axis == 0 else shape))
    assert outside is not None
    grid = (count, bins[0] * ratio, bins[1] * ratio)
    y, x = (ctx.add("broadcast_to", [p], shape=grid) for p in places)
    kept = cast(ctx, ctx.add("not", [outside]), dtype)
    whose = ctx.add("broadcast_to", [reshape(ctx, cast(ctx, batch, i64), (count, 1, 1))], shape=grid)
    pixels = transpose(ctx, image, [0, 2, 3, 1])
    total: Value | None = None
    for row, column, weight in _neighbours(ctx, y, x, (extents[0], extents[1]), zeros=False):
        where = concat(ctx, [reshape(ctx, v, (*grid, 1)) for v in (whose, row, column)], 3)
        read = ctx.add("gather_nd", [pixels, where], batch_dims=0)
        part = ctx.add("mul", [read, reshape(ctx, ctx.add("mul", [weight, kept]), (*grid, 1))])
        # the specification's maximum is over the weighted pixels, not over their sums
        total = part if total is None else ctx.add("add" if mode == "avg" else "max", [total, part])
    assert total is not None
    total = reshape(ctx, total, (count, bins[0], ratio, bins[1], ratio, channels))
    reduction = "reduce_mean" if mode == "avg" else "reduce_max"
    return [transpose(ctx, ctx.add(reduction, [total], axes=(2, 4), keepdims=False), [0, 3, 1, 2])]


@converter("DeformConv", since=19, limits="2 spatial axes")
def deform_conv(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """A convolution each of whose taps is moved by an offset of its own at every output pixel, and may be weighted."""
    image, weights, offset, bias, mask = (*inputs, None, None)[:5]
    need_rank(image, "X", 4, 4)
    need_rank(weights, "W", 4, 4)
    n, channels, *extents = image.type.shape
    kernel = weights.type.shape[2:]
    window = read_window(node, extents, kernel)
    groups, parts = node.attr("group", 1), node.attr("offset_group", 1)
    space = output_extents("DeformConv", extents, kernel, window.strides, window.pads, window.dilations)
    taps = kernel[0] * kernel[1]
    wanted = (n, parts * taps * 2, *space)
    if offset.type.shape != wanted or channels % parts or channels % groups or weights.type.shape[0] % groups:
        raise ImportModelError(f"offset is {offset.type}, {wanted} is needed; {channels} channels in {groups} groups")
    if mask is not None and mask.type.shape != (n, parts * taps, *space):
        raise ImportModelError(f"mask is {mask.type}, {(n, parts * taps, *space)} is needed")
    dtype, size = image.type.dtype, space[0] * space[1]
    moved = reshape(ctx, offset, (n, parts, taps, 2, size))
    pixels = transpose(ctx, image, [0, 2, 3, 1])
    columns = []
    for k in range(parts):
        own = slice_axis(ctx, moved, 1, k, k + 1)

        def place(axis: int, own: Value = own) -> Value:
            taken = reshape(ctx, slice_axis(ctx, own, 3, axis, axis + 1), (n, taps * size))
            return arith(ctx, "add", taken, ctx.constant(_regular(window, kernel, space, axis), dtype.numpy))

        total: Value | None = None
        data = slice_axis(ctx, pixels, 3, k * (channels // parts), (k + 1) * (channels // parts))
        for row, column, weight in _neighbours(ctx, place(0), place(1), (extents[0], extents[1]), zeros=True):
            where = concat(ctx, [reshape(ctx, v, (n, taps * size, 1)) for v in (row, column)], 2)
            part = ctx.add("gather_nd", [data, where], batch_dims=1)
            part = ctx.add("mul", [part, reshape(ctx, weight, (n, taps * size, 1))])
            total = part if total is None else ctx.add("add", [total, part])
        assert total is not None
        if mask is not None:
            factor = slice_axis(ctx, mask, 1, k * taps, (k + 1) * taps)
            total = ctx.add("mul", [total, reshape(ctx, factor, (n, taps * size, 1))])
        columns.append(transpose(ctx, reshape(ctx, total, (n, taps, size, channels // parts)), [0, 3, 1, 2]))
    read = concat(ctx, columns, 1)  # [n, channels, taps, pixels]
    outputs = weights.type.shape[0]
    rows = reshape(ctx, weights, (1, groups, outputs // groups, channels // groups * taps))
    read = reshape(ctx, read, (n, groups, channels // groups * taps, size))
    y = reshape(ctx, ctx.add("matmul", [rows, read]), (n, outputs, *space))
    return [with_bias(ctx, y, bias)]


def _regular(window: Any, kernel: tuple[int, ...], space: tuple[int, ...], axis: int) -> np.ndarray:
    """Where each tap of each output pixel would read without an offset, along one axis: ``[taps * pixels]``."""
    taps = np.indices(kernel)[axis].reshape(-1, 1) * window.dilations[axis]
    pixels = np.indices(space)[axis].reshape(1, -1) * window.strides[axis]
    return (taps + pixels - window.pads[axis]).reshape(-1)
