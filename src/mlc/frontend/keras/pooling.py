"""Pools over windows and over all positions."""

from __future__ import annotations

from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, reshape
from mlc.frontend.common.pooling import pool
from mlc.frontend.common.windows import Window, same_pads
from mlc.frontend.keras.axes import as_given, channels_first, spatial_rank
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.registry import Arguments, floats, layer
from mlc.ir.graph import Value


@layer("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "AveragePooling1D", "AveragePooling2D", "AveragePooling3D")
def _pool(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = floats(ctx, layer, call.one())
    rank, config = spatial_rank(x, layer.class_name), layer.config
    size = config.positive("pool_size", rank)
    strides = size if config.get("strides") is None else config.positive("strides", rank)
    x = channels_first(ctx, x, config)
    ones, pads = (1,) * rank, (0,) * (2 * rank)
    if config.text("padding", ("valid", "same"), "valid") == "same":
        pads = same_pads(x.type.shape[2:], size, strides, ones)
    op = "max_pool" if layer.class_name.startswith("Max") else "avg_pool"
    (y,) = pool(ctx, op, x, Window(size, strides, ones, pads))
    return as_given(ctx, y, config)


@layer("GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D")
@layer("GlobalAveragePooling2D", "GlobalAveragePooling3D")
def _global_pool(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = floats(ctx, layer, call.one())
    rank, config = spatial_rank(x, layer.class_name), layer.config
    axes = tuple(range(1, rank + 1)) if config.channels_last() else tuple(range(2, rank + 2))
    op = "reduce_max" if layer.class_name.startswith("GlobalMax") else "reduce_mean"
    return ctx.add(op, [x], axes=axes, keepdims=config.flag("keepdims"))


@layer("GlobalAveragePooling1D", masks="read")
def _global_average_pool_1d(ctx: Context, layer: Layer, call: Arguments) -> Value:
    """The mean over steps; with a mask, over those that count."""
    if call.mask is None:
        return _global_pool(ctx, layer, call)
    x = floats(ctx, layer, call.one())
    spatial_rank(x, layer.class_name)
    steps = 1 if layer.config.channels_last() else 2
    batch, count = call.mask.type.shape
    shape = (batch, count, 1) if steps == 1 else (batch, 1, count)
    counted = reshape(ctx, cast(ctx, call.mask, x.type.dtype), shape)
    keep = {"axes": (steps,), "keepdims": layer.config.flag("keepdims")}
    total = ctx.add("reduce_sum", [ctx.add("mul", [x, counted])], **keep)
    return ctx.add("div", [total, ctx.add("reduce_sum", [counted], **keep)])
