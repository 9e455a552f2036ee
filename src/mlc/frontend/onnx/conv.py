"""Convolutions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.activations import activate
from mlc.frontend.common.axes import ints
from mlc.frontend.common.context import Context
from mlc.frontend.common.conv import convolve, convolve_transposed
from mlc.frontend.common.emit import need_rank, reshape
from mlc.frontend.common.windows import Window, split_pads
from mlc.frontend.onnx.axes import int_list
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.frontend.onnx.windows import auto_pad, read_window
from mlc.ir.graph import Value
from mlc.ops.window import span

_RANKS = "1 to 3 spatial axes"


def _check_kernel(node: OnnxNode, w: Value) -> tuple[int, ...]:
    """The spatial extents of the weights, which ``kernel_shape`` must repeat if it is there."""
    kernel = w.type.shape[2:]
    declared = node.attr("kernel_shape")
    if declared and tuple(declared) != kernel:
        raise ImportModelError(f"kernel_shape is {tuple(declared)}, the weights have {kernel}")
    return kernel


def convolve_node(ctx: Context, node: OnnxNode, x: Value, w: Value, bias: Value | None) -> Value:
    """The convolution that ``node``'s attributes describe.

    Raises:
        ImportModelError: its operands and attributes do not fit together.
    """
    need_rank(x, "X", 3, 5)
    if w.type.rank != x.type.rank:
        raise ImportModelError(f"X has rank {x.type.rank} but W has rank {w.type.rank}")
    window = read_window(node, x.type.shape[2:], _check_kernel(node, w))
    return convolve(ctx, x, w, bias, window, node.attr("group", 1))


@converter("Conv", limits=_RANKS)
def conv(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, w, bias = (*inputs, None)[:3]
    return [convolve_node(ctx, node, x, w, bias)]


@converter("FusedConv", domain="com.microsoft", limits=_RANKS)
def fused_conv(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, w, bias, residual = (*inputs, None, None)[:4]
    y = convolve_node(ctx, node, x, w, bias)
    if residual is not None:
        y = ctx.add("add", [y, residual])
    return [_activated(ctx, node, y)]


def _activated(ctx: Context, node: OnnxNode, y: Value) -> Value:
    """``y`` through the activation that onnxruntime's optimiser fused in."""
    kind, params = node.attr("activation", ""), node.attr("activation_params", ())
    names = {
        "LeakyRelu": ("leaky_relu", ("alpha",)),
        "Clip": ("clip", ("lo", "hi")),
        "HardSigmoid": ("hard_sigmoid", ("alpha", "beta")),
    }
    name, attrs = names.get(kind, (kind.lower(), ()))
    return activate(ctx, y, name, **dict(zip(attrs, params, strict=False)))


@converter("ConvTranspose", limits=_RANKS)
def conv_transpose(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, w, bias = (*inputs, None)[:3]
    need_rank(x, "X", 3, 5)
    if w.type.rank != x.type.rank:
        raise ImportModelError(f"X has rank {x.type.rank} but W has rank {w.type.rank}")
    space, kernel = x.type.shape[2:], _check_kernel(node, w)
    window = read_window(node, space, kernel)
    extra = int_list(node, "output_padding", len(space), 0)
    pads, outputs = _transposed_pads(node, window, space, extra)
    window = replace(window, pads=pads)
    return [convolve_transposed(ctx, x, w, bias, window, outputs, node.attr("group", 1))]


@converter("Col2Im", since=18, limits="shapes known at compile time; 1 to 3 spatial axes")
def col2im(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Columns of windows added up where they overlap: a transposed convolution, every tap a channel."""
    columns, image, block = inputs
    space, kernel = ints(ctx, image, "the image's shape"), ints(ctx, block, "the window's shape")
    rank, taps = len(space), math.prod(kernel)
    if columns.type.rank != 3 or len(kernel) != rank or not 1 <= rank <= 3 or columns.type.shape[1] % max(taps, 1):
        raise ImportModelError(f"columns are {columns.type}, of windows {kernel} over an image {space}")
    window = read_window(node, space, kernel)
    counts = [
        (n + a + b - span(k, d)) // s + 1
        for n, a, b, k, d, s in zip(
            space, window.pads[:rank], window.pads[rank:], kernel, window.dilations, window.strides, strict=True
        )
    ]
    batch, channels = columns.type.shape[0], columns.type.shape[1] // taps
    if min(counts) < 1 or math.prod(counts) != columns.type.shape[2]:
        raise ImportModelError(f"{columns.type.shape[2]} columns, where an image {space} has {counts} windows")
    ctx.check_constant((channels * taps, taps), columns.type.dtype.itemsize)
    weights = np.tile(np.eye(taps), (channels, 1)).reshape(channels * taps, 1, *kernel)
    x = reshape(ctx, columns, (batch, channels * taps, *counts))
    w = ctx.constant(weights, columns.type.dtype.numpy)
    return [convolve_transposed(ctx, x, w, None, window, space, channels)]


def _transposed_pads(
    node: OnnxNode, window: Window, space: tuple[int, ...], extra: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pads and output extents: where the output shape is given, the pads follow from it."""
    rank = len(space)
    full = [
        s * (n - 1) + e + span(k, d)
        for s, n, e, k, d in zip(window.strides, space, extra, window.kernel, window.dilations, strict=True)
    ]
    mode = auto_pad(node)
    wanted = tuple(node.attr("output_shape", ()))
    if wanted:
        # older exporters give the whole shape
        wanted = wanted[-rank:]
        if len(wanted) != rank:
            raise ImportModelError(f"output_shape {wanted} for {rank} spatial axes")
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(space, window.strides, strict=True))
    else:
        pads = window.pads
        return pads, tuple(f - pads[d] - pads[rank + d] for d, f in enumerate(full))
    totals = [max(0, f - w) for f, w in zip(full, wanted, strict=True)]
    return split_pads(totals, upper=mode == "SAME_UPPER"), wanted
