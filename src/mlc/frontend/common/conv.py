"""Convolutions with their bias: data ``[n, c, …]``, weights ``[o, c / groups, …]``, or ``[c, o / groups, …]``."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import per_channel
from mlc.frontend.common.windows import Window, check_spatial, slide
from mlc.ir.graph import Value


def with_bias(ctx: Context, y: Value, bias: Value | None) -> Value:
    """``y`` plus one number a channel.

    Raises:
        ImportModelError: there are not as many numbers as channels.
    """
    if bias is None:
        return y
    if bias.type.shape != y.type.shape[1:2]:
        raise ImportModelError(f"a bias of shape {bias.type.shape} for {y.type.shape[1]} channels")
    return ctx.add("add", [y, per_channel(ctx, bias, y.type.rank)])


def convolve(ctx: Context, x: Value, w: Value, bias: Value | None, window: Window, groups: int = 1) -> Value:
    """A convolution.

    Raises:
        ImportModelError: the window is larger than the padded input, or that beyond the limits.
    """
    _, window = slide(ctx, x, window)
    return with_bias(ctx, ctx.add("conv", [x, w], **window.attrs, groups=groups), bias)


def convolve_transposed(
    ctx: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    window: Window,
    outputs: Sequence[int],
    groups: int = 1,
) -> Value:
    """A transposed convolution with spatial output extents ``outputs``; the window's pads are cut off the result.

    Raises:
        ImportModelError: the output with its pads is beyond the limits.
    """
    space, pads = x.type.shape[2:], window.pads
    check_spatial(ctx, x, [n + pads[d] + pads[len(space) + d] for d, n in enumerate(outputs)])
    strides = tuple(1 if n == 1 else s for n, s in zip(space, window.strides, strict=True))
    dilations = tuple(1 if k == 1 else d for k, d in zip(window.kernel, window.dilations, strict=True))
    y = ctx.add(
        "conv_transpose", [x, w], strides=strides, pads=pads, dilations=dilations,
        groups=groups, output_shape=tuple(outputs),
    )  # fmt: skip
    return with_bias(ctx, y, bias)
