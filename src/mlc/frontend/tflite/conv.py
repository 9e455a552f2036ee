"""Convolutions and fully connected layers, over channels last.

Core operators take channels first: transposes stand around them, which passes cancel between neighbours.
"""

from __future__ import annotations

from math import prod

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.conv import convolve, convolve_transposed
from mlc.frontend.common.emit import cast, need_rank, reshape, scalar, transpose
from mlc.frontend.common.windows import Window, same_pads
from mlc.frontend.tflite.activations import fused
from mlc.frontend.tflite.hybrid import alone, by_own_range, ranged
from mlc.frontend.tflite.quant import centred, finished, per_channel, scale_of, scaled, zero_of
from mlc.frontend.tflite.registry import Operator, converter, known_ints
from mlc.ir.graph import Value
from mlc.ir.types import f16, f32, i8, i16, i32, i64, u8

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # from channels last to channels first, and back


def channels_first(ctx: Context, x: Value) -> Value:
    return transpose(ctx, x, FIRST)


def channels_last(ctx: Context, x: Value) -> Value:
    return transpose(ctx, x, LAST)


def rearranged(ctx: Context, w: Value, perm: tuple[int, ...], shape: tuple[int, ...] | None = None) -> Value:
    """Weights with their axes in another order, and then maybe another shape; constants stay constants."""
    array = ctx.const(w)
    if array is None:
        y = transpose(ctx, w, perm)
        return y if shape is None else reshape(ctx, y, shape)
    turned = np.ascontiguousarray(array.transpose(perm))
    return ctx.constant(turned if shape is None else turned.reshape(shape))


def read_window(op: Operator, space: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """The window of a convolution or pool over spatial extents ``space``.

    Raises:
        ImportModelError: a stride or dilation is no positive number.
    """
    strides = (op.option("stride_h"), op.option("stride_w"))
    dilations = (op.option("dilation_h_factor", 1), op.option("dilation_w_factor", 1))
    if min(*strides, *dilations, *kernel) < 1:
        raise ImportModelError(f"kernel {kernel}, strides {strides} and dilations {dilations} must be positive")
    same = op.choice("padding", "Padding") == "SAME"
    pads = same_pads(space, kernel, strides, dilations) if same else (0, 0, 0, 0)
    return Window(kernel, strides, dilations, pads)


@converter("CONV_2D", limits="weights known at compile time where quantised")
def conv_2d(ctx: Context, op: Operator) -> list[Value]:
    x, w = op.input(0, "data"), op.input(1, "filter")
    need_rank(x, "the input", 4, 4)
    need_rank(w, "the filter", 4, 4)
    channels, takes = x.type.shape[3], w.type.shape[3]
    if takes < 1 or channels % takes or w.type.shape[0] % max(1, channels // takes):
        raise ImportModelError(f"{channels} channels, where the filter {w.type.shape} takes {takes}")
    kernel = w.type.shape[1:3]
    return [_layer(ctx, op, rearranged(ctx, w, (0, 3, 1, 2)), kernel, channels // takes)]


@converter("DEPTHWISE_CONV_2D", limits="weights known at compile time where quantised")
def depthwise_conv_2d(ctx: Context, op: Operator) -> list[Value]:
    x, w = op.input(0, "data"), op.input(1, "filter")
    need_rank(x, "the input", 4, 4)
    need_rank(w, "the filter", 4, 4)
    channels, outputs = x.type.shape[3], w.type.shape[3]
    if w.type.shape[0] != 1 or channels < 1 or outputs % channels:
        raise ImportModelError(f"a filter of shape {w.type.shape} for {channels} channels")
    kernel = w.type.shape[1:3]
    return [_layer(ctx, op, rearranged(ctx, w, (3, 0, 1, 2)), kernel, channels)]


def _layer(ctx: Context, op: Operator, w: Value, kernel: tuple[int, ...], groups: int) -> Value:
    """A convolution with bias and activation; ``w`` is ``[o, c / groups, h, w]`` by now."""
    x, bias = op.input(0), op.optional(2)
    window = read_window(op, x.type.shape[1:3], (kernel[0], kernel[1]))
    if x.type.dtype.is_float and w.type.dtype is i8:
        return _hybrid(ctx, op, w, window, groups)
    data = channels_first(ctx, x)
    if x.type.dtype.is_float:
        if bias is not None and not bias.type.dtype.is_float:
            raise ImportModelError(f"the bias is {bias.type.dtype}, the data {x.type.dtype}")
        y = convolve(ctx, data, cast(ctx, w, x.type.dtype), bias, window, groups)
        return channels_last(ctx, fused(ctx, op, y))
    data, w, bias = integers(ctx, op, data, w, bias)
    sums = convolve(ctx, data, w, bias, window, groups)
    return channels_last(ctx, requantised(ctx, op, sums, axis=1))


def integers(ctx: Context, op: Operator, x: Value, w: Value, bias: Value | None) -> tuple[Value, Value, Value | None]:
    """Data and weights less their zero points, with the bias, in types that make sums exact: i32, or i64 for 16 bits.

    Raises:
        UnsupportedError: element types that kernels do not mix.
        ImportModelError: the bias has a zero point.
    """
    stored = op.sources[2] if bias is not None else None
    if stored is not None and stored.quantization is not None and stored.quantization.zero.any():
        raise ImportModelError(f"the bias has the zero point {stored.quantization.zero.max()}, 0 is needed")
    if w.type.dtype not in (i8, u8):
        raise UnsupportedError(f"weights are {w.type.dtype}, int8 or uint8 is supported with {x.type.dtype}")
    zero = zero_of(op.scale_of(1))
    weights = w if zero == 0 else ctx.add("sub", [cast(ctx, w, i16), scalar(ctx, zero, i16)])
    data = centred(ctx, x, op.scale_of(0))
    if x.type.dtype is i16:
        data, weights = cast(ctx, data, i64), cast(ctx, weights, i64)
        return data, weights, None if bias is None else cast(ctx, bias, i64)
    return data, weights, bias


def requantised(ctx: Context, op: Operator, sums: Value, axis: int, *, roundings: int = 2) -> Value:
    """Sums of products, brought to the scale of the result; channels lie along ``axis``.

    Raises:
        ImportModelError: there are not as many scales as channels.
    """
    data, weights, out = op.scale_of(0), op.scale_of(1), op.result_scale()
    factors = float(scale_of(data)) * weights.scale.astype(np.float64) / float(scale_of(out))
    if factors.size not in (1, sums.type.shape[axis]):
        raise ImportModelError(f"{factors.size} scales of weights for {sums.type.shape[axis]} channels")
    place = [factors.size if d == axis else 1 for d in range(sums.type.rank)]
    y = scaled(ctx, sums, factors.tolist(), place, roundings=roundings)
    return finished(ctx, y, op, op.choice("fused_activation_function", "ActivationFunctionType"))


def _hybrid(ctx: Context, op: Operator, w: Value, window: Window, groups: int) -> Value:
    """Float data, integer weights: each sample of the batch is quantised as it comes, with a zero point of its own."""
    x, bias, weights = op.input(0), op.optional(2), op.scale_of(1)
    # the depthwise kernel takes one scale for the only channel it has as a scale by channel
    data, by_data = _by_sample(ctx, x, signed_only=op.name == "CONV_2D" and not weights.per_channel)
    sums = cast(ctx, convolve(ctx, data, w, None, window, groups), f32)
    # in the order of the kernels, which only convolutions with scales by channel multiply one after the other
    by_channel = per_channel(ctx, weights.scale, 4, 1)
    if weights.per_channel and op.name == "CONV_2D":
        y = ctx.add("mul", [ctx.add("mul", [sums, by_channel]), by_data])
    else:
        y = ctx.add("mul", [sums, ctx.add("mul", [by_channel, by_data])])
    if bias is not None:
        y = ctx.add("add", [alone(ctx, y), reshape(ctx, bias, (1, bias.type.size, 1, 1))])
    return channels_last(ctx, fused(ctx, op, y))


def _by_sample(ctx: Context, x: Value, *, signed_only: bool) -> tuple[Value, Value]:
    """Floats quantised sample by sample, less their zero points and with channels first, and the samples' scales."""
    q, scale, zero = ranged(ctx, x, (1, 2, 3), signed_only=signed_only)
    data = channels_first(ctx, q)
    if zero is not None:
        data = ctx.add("sub", [cast(ctx, data, i16), cast(ctx, channels_first(ctx, zero), i16)])
    return data, channels_first(ctx, scale)


@converter("TRANSPOSE_CONV", limits="output shape known at compile time; weights known where quantised")
def transpose_conv(ctx: Context, op: Operator) -> list[Value]:
    shape = known_ints(ctx, op, 0, "the output shape")
    w, x, bias = op.input(1, "filter"), op.input(2, "data"), op.optional(3)
    need_rank(x, "the input", 4, 4)
    need_rank(w, "the filter", 4, 4)
    if len(shape) != 4 or min(shape) < 1 or shape[3] != w.type.shape[0] or x.type.shape[3] != w.type.shape[3]:
        raise ImportModelError(f"an output of shape {shape}, data {x.type.shape} and a filter {w.type.shape}")
    outputs, kernel = shape[1:3], w.type.shape[1:3]
    # the window slides over the output
    window = read_window(op, outputs, (kernel[0], kernel[1]))
    if window.outputs(outputs) != x.type.shape[1:3]:
        raise ImportModelError(f"data {x.type}, where an output {outputs} has {window.outputs(outputs)} windows")
    taps = rearranged(ctx, w, (3, 0, 1, 2))
    data = channels_first(ctx, x)
    if x.type.dtype.is_float:
        if w.type.dtype is i8:
            weights = op.scale_of(1)
            data, by_data = _by_sample(ctx, x, signed_only=False)
            sums = cast(ctx, convolve_transposed(ctx, data, taps, None, window, outputs), f32)
            y = ctx.add("mul", [ctx.add("mul", [sums, per_channel(ctx, weights.scale, 4, 1)]), by_data])
            if bias is not None:
                y = ctx.add("add", [alone(ctx, y), reshape(ctx, bias, (1, bias.type.size, 1, 1))])
        else:
            y = convolve_transposed(ctx, data, cast(ctx, taps, x.type.dtype), bias, window, outputs)
        return [channels_last(ctx, fused(ctx, op, y))]
    sources = op.sources[2], op.sources[1], *op.sources[3:]
    moved = Operator(op.name, op.options, (x, w, bias), sources, op.results)
    data, taps, bias = integers(ctx, moved, data, taps, bias)
    sums = convolve_transposed(ctx, data, taps, bias, window, outputs)
    return [channels_last(ctx, requantised(ctx, moved, sums, axis=1))]


@converter("FULLY_CONNECTED", limits="no shuffled weights")
def fully_connected(ctx: Context, op: Operator) -> list[Value]:
    x, w, bias = op.input(0, "data"), op.input(1, "weights"), op.optional(2)
    if op.choice("weights_format", "FullyConnectedOptionsWeightsFormat") != "DEFAULT":
        raise UnsupportedError("weights in shuffled order")
    need_rank(w, "the weights", 2, 2)
    units, size = w.type.shape
    if size < 1 or x.type.size % size:
        raise ImportModelError(f"data of shape {x.type.shape} for weights of shape {w.type.shape}")
    if bias is not None and bias.type.size != units:
        raise ImportModelError(f"a bias of {bias.type.size} numbers for {units} units")
    kept = bool(op.option("keep_num_dims", False))
    if kept and (not x.type.rank or x.type.shape[-1] != size):
        raise ImportModelError(f"data of shape {x.type.shape} for weights of shape {w.type.shape}")
    shape = (*x.type.shape[:-1], units) if kept else (x.type.size // size, units)
    rows = reshape(ctx, x, (prod(shape[:-1]), size))
    if x.type.dtype.is_float:
        y = _dense_floats(ctx, op, rows, w)
        if bias is not None:
            y = ctx.add("add", [y, cast(ctx, bias, y.type.dtype)])
        return [reshape(ctx, fused(ctx, op, y), shape)]
    data, weights, bias = integers(ctx, op, rows, w, bias)
    sums = ctx.add("matmul", [data, weights], transpose_b=True)
    if bias is not None:
        sums = ctx.add("add", [sums, bias])
    # unlike convolutions, this kernel rounds once
    return [reshape(ctx, requantised(ctx, op, sums, axis=1, roundings=1), shape)]


def _dense_floats(ctx: Context, op: Operator, rows: Value, w: Value) -> Value:
    if w.type.dtype is not i8:
        return ctx.add("matmul", [rows, cast(ctx, w, rows.type.dtype)], transpose_b=True)
    signed_only = not op.option("asymmetric_quantize_inputs", False)
    return by_own_range(ctx, rows, w, ctx.constant(op.scale_of(1).scale), signed_only=signed_only)


@converter("BATCH_MATMUL")
def batch_matmul(ctx: Context, op: Operator) -> list[Value]:
    a, b = op.input(0, "left operand"), op.input(1, "right operand")
    need_rank(a, "the left operand", 2)
    need_rank(b, "the right operand", 2)
    turned = {"transpose_a": bool(op.option("adj_x", False)), "transpose_b": bool(op.option("adj_y", False))}
    if a.type.dtype.is_float:
        if b.type.dtype is i8:
            rows = transpose(ctx, a, (*range(a.type.rank - 2), a.type.rank - 1, a.type.rank - 2))
            return [
                by_own_range(
                    ctx, rows if turned["transpose_a"] else a, b, scalar(ctx, scale_of(op.scale_of(1)), f32),
                    signed_only=not op.option("asymmetric_quantize_inputs", False), transpose_b=turned["transpose_b"],
                )
            ]  # fmt: skip
        return [ctx.add("matmul", [a, cast(ctx, b, a.type.dtype)], **turned)]
    if a.type.dtype is i32:
        return [ctx.add("matmul", [a, b], **turned)]
    left, right = centred(ctx, a, op.scale_of(0)), centred(ctx, b, op.scale_of(1))
    if a.type.dtype is i16:
        left, right = cast(ctx, left, i64), cast(ctx, right, i64)
    sums = ctx.add("matmul", [left, right], **turned)
    if op.dtype() is i32:
        return [sums]
    factor = scale_of(op.scale_of(0)) * scale_of(op.scale_of(1)) / scale_of(op.result_scale())
    return [finished(ctx, scaled(ctx, sums, factor), op)]


__all__ = ["FIRST", "LAST", "channels_first", "channels_last", "f16", "i32", "read_window"]
