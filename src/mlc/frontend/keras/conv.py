"""Convolutions: plain, transposed, depthwise and separable, over one to three spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.conv import convolve, convolve_transposed
from mlc.frontend.common.windows import Window, same_pads
from mlc.frontend.keras.activations import apply_activation
from mlc.frontend.keras.axes import as_given, channels_first, spatial_rank
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.registry import Arguments, bias, floats, layer, named, weight
from mlc.ir.graph import Value
from mlc.ops.window import span


def _start(ctx: Context, layer: Layer, call: Arguments) -> tuple[Value, tuple[int, ...]]:
    """The data with channels first, and the kernel's extents."""
    x = floats(ctx, layer, call.one())
    rank = spatial_rank(x, layer.class_name)
    return channels_first(ctx, x, layer.config), layer.config.positive("kernel_size", rank)


def window_of(layer: Layer, x: Value, kernel: tuple[int, ...]) -> Window:
    """The window of a convolution over ``x``, ``[n, c, …]``."""
    space, config = x.type.shape[2:], layer.config
    strides, dilations = config.positive("strides", len(space), 1), config.positive("dilation_rate", len(space), 1)
    padding = config.text("padding", ("valid", "same", "causal"), "valid")
    pads: tuple[int, ...] = (0,) * (2 * len(space))
    if padding == "same":
        pads = same_pads(space, kernel, strides, dilations)
    elif padding == "causal":
        if len(space) != 1:
            raise ImportModelError("causal padding is for one spatial axis")
        pads = (span(kernel[0], dilations[0]) - 1, 0)
    return Window(kernel, strides, dilations, pads)


def _finish(ctx: Context, layer: Layer, y: Value) -> Value:
    """The activation, then channels where the layer has them; most activations do not care where these are."""
    if layer.config.get("activation") in ("softmax", "log_softmax", "glu"):
        return apply_activation(ctx, layer, as_given(ctx, y, layer.config))
    return as_given(ctx, apply_activation(ctx, layer, y), layer.config)


def turned_weights(ctx: Context, w: np.ndarray, perm: Sequence[int], shape: Sequence[int]) -> Value:
    """Weights in the order of core operators."""
    return ctx.constant(np.ascontiguousarray(w.transpose(tuple(perm))).reshape(tuple(shape)))


@layer("Conv1D", "Conv2D", "Conv3D", variables=named("kernel", "bias"))
def _conv(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, kernel = _start(ctx, layer, call)
    (filters,), groups = layer.config.positive("filters", 1), layer.config.whole("groups", 1)
    channels, rank = x.type.shape[1], len(kernel)
    if groups < 1 or channels % groups or filters % groups:
        raise ImportModelError(f"{channels} channels and {filters} filters in {groups} groups")
    w = weight(ctx, layer, "kernel", (*kernel, channels // groups, filters))
    turned = turned_weights(ctx, w, (rank + 1, rank, *range(rank)), (filters, channels // groups, *kernel))
    return _finish(ctx, layer, convolve(ctx, x, turned, bias(ctx, layer, filters), window_of(layer, x, kernel), groups))


def _depthwise(ctx: Context, layer: Layer, x: Value, kernel: tuple[int, ...], name: str, offset: Value | None) -> Value:
    channels, rank = x.type.shape[1], len(kernel)
    (times,) = layer.config.positive("depth_multiplier", 1, 1)
    w = weight(ctx, layer, name, (*kernel, channels, times))
    turned = turned_weights(ctx, w, (rank, rank + 1, *range(rank)), (channels * times, 1, *kernel))
    return convolve(ctx, x, turned, offset, window_of(layer, x, kernel), channels)


@layer("DepthwiseConv1D", "DepthwiseConv2D", variables=named("kernel", "bias"))
def _depthwise_conv(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, kernel = _start(ctx, layer, call)
    layer.config.refuse("groups", 1, x.type.shape[1])
    (times,) = layer.config.positive("depth_multiplier", 1, 1)
    offset = bias(ctx, layer, x.type.shape[1] * times)
    return _finish(ctx, layer, _depthwise(ctx, layer, x, kernel, "kernel", offset))


@layer("SeparableConv1D", "SeparableConv2D", variables=named("depthwise_kernel", "pointwise_kernel", "bias"))
def _separable_conv(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, kernel = _start(ctx, layer, call)
    (filters,), rank = layer.config.positive("filters", 1), len(kernel)
    y = _depthwise(ctx, layer, x, kernel, "depthwise_kernel", None)
    ones, wide = (1,) * rank, y.type.shape[1]
    w = weight(ctx, layer, "pointwise_kernel", (*ones, wide, filters))
    turned = turned_weights(ctx, w, (rank + 1, rank, *range(rank)), (filters, wide, *ones))
    return _finish(
        ctx, layer, convolve(ctx, y, turned, bias(ctx, layer, filters), Window(ones, ones, ones, (0,) * 2 * rank))
    )


@layer("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", variables=named("kernel", "bias"), limits="no groups")
def _conv_transpose(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, kernel = _start(ctx, layer, call)
    config, rank, channels = layer.config, len(kernel), x.type.shape[1]
    config.refuse("groups", 1)
    (filters,) = config.positive("filters", 1)
    strides, dilations = config.positive("strides", rank, 1), config.positive("dilation_rate", rank, 1)
    if any(s > 1 and d > 1 for s, d in zip(strides, dilations, strict=True)):
        raise UnsupportedError("strides together with dilations")
    same = config.text("padding", ("valid", "same"), "valid") == "same"
    extra = config.ints("output_padding", rank) if config.get("output_padding") is not None else None
    begins, ends, outputs = [], [], []
    for d, n in enumerate(x.type.shape[2:]):
        begin, out = _crop(n, span(kernel[d], dilations[d]), strides[d], same, None if extra is None else extra[d])
        begins.append(begin)
        outputs.append(out)
        ends.append(max(0, (n - 1) * strides[d] + span(kernel[d], dilations[d]) - begin - out))
    w = weight(ctx, layer, "kernel", (*kernel, filters, channels))
    turned = turned_weights(ctx, w, (rank + 1, rank, *range(rank)), (channels, filters, *kernel))
    window = Window(kernel, strides, dilations, (*begins, *ends))
    return _finish(ctx, layer, convolve_transposed(ctx, x, turned, bias(ctx, layer, filters), window, outputs))


def _crop(n: int, reach: int, stride: int, same: bool, extra: int | None) -> tuple[int, int]:
    """What is cut off before the result of a transposed convolution along one axis, and how long that is.

    As the gradient of a convolution with this padding has it; ``extra`` is what Keras calls ``output_padding``.

    Raises:
        ImportModelError: nothing would be left.
    """
    if not same:
        out = (n - 1) * stride + (max(reach, stride) if extra is None else reach + extra)
        begin = 0
    else:
        out = n * stride if extra is None else (n - 1) * stride + reach % 2 + extra
        total = stride + reach - 2 if extra is None else reach + reach % 2 - 2 + extra
        begin = reach - 1 - min(total // 2 + total % 2, reach - 1)
    if out < 1:
        raise ImportModelError(f"an axis of {n} elements would get {out}")
    return begin, out
