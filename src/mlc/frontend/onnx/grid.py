"""Sampling at positions that a grid gives, and the grids of affine maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import ints
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, reshape, slice_axis
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import f32, f64

# names of the modes before and since opset 20
_SAMPLE_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


@converter("GridSample", since=16)
def grid_sample(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, grid = inputs
    dtype = x.type.dtype
    mode = node.attr("mode", "linear")
    if mode not in _SAMPLE_MODES:
        raise ImportModelError(f"mode {mode!r}, known: {', '.join(_SAMPLE_MODES)}")
    wide = f64 if f64 in (dtype, grid.type.dtype) else f32
    out = ctx.add(
        "grid_sample",
        [cast(ctx, x, wide), cast(ctx, grid, wide)],
        mode=_SAMPLE_MODES[mode],
        padding_mode=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )
    return [cast(ctx, out, dtype)]


@converter("AffineGrid", since=20)
def affine_grid(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Where each pixel of the output lies in the input, in [-1, 1] along every axis: ``theta @ (x, y, (z,) 1)``.

    The definition that ONNX gives in other operators squeezes a batch of one away, and fails.
    """
    theta, size = inputs[0], ints(ctx, inputs[1], "the size")
    rank = len(size) - 2
    if rank not in (2, 3) or min(size) < 0 or theta.type.shape != (size[0], rank, rank + 1):
        raise ImportModelError(f"theta has shape {theta.type.shape} for images of shape {size}")
    batch, space = size[0], size[2:]
    total: Value | None = None
    for d, extent in enumerate(reversed(space)):  # x, the innermost axis, comes first
        along = [1] * (rank + 2)
        along[rank - d] = extent
        places = _places(extent, bool(node.attr("align_corners", 0))).astype(theta.type.dtype.numpy)
        part = ctx.add("mul", [ctx.constant(places.reshape(along)), _column(ctx, theta, batch, rank, d)])
        total = part if total is None else ctx.add("add", [total, part])
    assert total is not None
    grid = ctx.add("add", [total, _column(ctx, theta, batch, rank, rank)])
    return [grid]


def _column(ctx: Context, theta: Value, batch: int, rank: int, which: int) -> Value:
    """One column of every matrix, along the last axis of the grid."""
    return reshape(ctx, slice_axis(ctx, theta, 2, which, which + 1), (batch, *[1] * rank, rank))


def _places(extent: int, corners: bool) -> np.ndarray:
    """Positions of pixels between -1 and 1: their centres, or with ``corners`` from the first one to the last."""
    if corners:
        return np.linspace(-1.0, 1.0, extent)
    return (np.arange(extent) * 2 + 1) / max(extent, 1) - 1
