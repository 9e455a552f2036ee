"""Layers that move, repeat, pad, cut and resize."""

from __future__ import annotations

from math import prod

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, reshape, transpose
from mlc.frontend.common.resize import Method, by_sizes, resize
from mlc.frontend.keras.axes import as_given, channels_first, spatial_rank
from mlc.frontend.keras.config import Config
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.registry import Arguments, floats, layer
from mlc.ir.graph import Value
from mlc.ir.types import f32


@layer("Flatten")
def _flatten(ctx: Context, layer: Layer, call: Arguments) -> Value:
    """Channels first are brought last before, as Keras does."""
    x = call.one()
    rank = x.type.rank
    if not layer.config.channels_last() and rank > 2:
        x = transpose(ctx, x, (0, *range(2, rank), 1))
    return reshape(ctx, x, (x.type.shape[0], prod(x.type.shape[1:])))


@layer("Reshape")
def _reshape(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    return reshaped_to(ctx, x, (x.type.shape[0], *layer.config.ints("target_shape")))


def reshaped_to(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """``x`` in a shape of which one extent may be -1.

    Raises:
        ImportModelError: the elements do not fit.
    """
    rest = prod(n for n in shape if n != -1)
    fits = rest == x.type.size if -1 not in shape else rest and x.type.size % rest == 0
    if shape.count(-1) > 1 or any(n < -1 for n in shape) or not fits:
        raise ImportModelError(f"{x.type} to shape {list(shape)}")
    return reshape(ctx, x, shape)


@layer("Permute")
def _permute(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return transpose(ctx, call.one(), (0, *layer.config.ints("dims")))


@layer("RepeatVector")
def _repeat_vector(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    if x.type.rank != 2:
        raise ImportModelError(f"called on {x.type}, which is not of rank 2")
    (n,) = layer.config.positive("n", 1)
    batch, size = x.type.shape
    return ctx.add("broadcast_to", [reshape(ctx, x, (batch, 1, size))], shape=(batch, n, size))


def _pairs(config: Config, key: str, rank: int) -> list[tuple[int, int]]:
    """What is added or cut before and after each axis: a number, one an axis, or two an axis."""
    value = config.get(key)
    if rank == 1 and isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value):
        value = [value]
    if type(value) is int:
        value = [value] * rank
    if isinstance(value, list) and len(value) == rank:
        pairs = [(v, v) if type(v) is int else v for v in value]
        if all(
            isinstance(p, (list, tuple)) and len(p) == 2 and all(type(n) is int and n >= 0 for n in p) for p in pairs
        ):
            return [(p[0], p[1]) for p in pairs]
    raise ImportModelError(f"setting {key!r} is {value!r:.60}")


@layer("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")
def _zero_padding(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    pairs = _pairs(layer.config, "padding", spatial_rank(x, layer.class_name))
    pads = (0, 0, *(p[0] for p in pairs), 0, 0, *(p[1] for p in pairs))
    return as_given(ctx, ctx.add("pad", [channels_first(ctx, x, layer.config)], pads=pads), layer.config)


@layer("Cropping1D", "Cropping2D", "Cropping3D")
def _cropping(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    pairs = _pairs(layer.config, "cropping", spatial_rank(x, layer.class_name))
    first = channels_first(ctx, x, layer.config)
    shape = first.type.shape
    begin = (0, 0, *(p[0] for p in pairs))
    end = (*shape[:2], *(n - p[1] for n, p in zip(shape[2:], pairs, strict=True)))
    if any(b >= e for b, e in zip(begin, end, strict=True)):
        raise ImportModelError(f"cropping {pairs} leaves nothing of {x.type}")
    y = ctx.add("slice", [first], begin=begin, end=end, step=(1,) * len(shape))
    return as_given(ctx, y, layer.config)


@layer("UpSampling1D", "UpSampling2D", "UpSampling3D", limits="interpolation nearest and bilinear")
def _up_sampling(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    rank = spatial_rank(x, layer.class_name)
    factors = layer.config.positive("size", rank)
    mode = layer.config.text("interpolation", ("nearest", "bilinear"), "nearest")
    last = layer.config.channels_last() or rank == 1
    axes = list(range(1, rank + 1)) if last else list(range(2, rank + 2))
    sizes = [x.type.shape[a] * f for a, f in zip(axes, factors, strict=True)]
    return resized(ctx, floats(ctx, layer, x) if mode == "bilinear" else x, axes, sizes, mode)


def resized(ctx: Context, x: Value, axes: list[int], sizes: list[int], mode: str, antialias: bool = False) -> Value:
    """``x`` with some axes resized, pixels counted from their middles."""
    linear = mode == "bilinear"
    method = Method(
        "linear" if linear else "nearest", "half_pixel", "round_prefer_ceil", antialias=antialias and linear
    )
    return resize(ctx, x, method, by_sizes(x, sizes, axes))


@layer("Resizing", limits="interpolation nearest and bilinear; neither crop nor pad to the aspect ratio; no antialias")
def _resizing(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, config = call.one(), layer.config
    for key in ("crop_to_aspect_ratio", "pad_to_aspect_ratio", "antialias"):
        config.refuse(key)
    if x.type.rank != 4:
        raise ImportModelError(f"called on {x.type}, which is not of rank 4")
    (height,), (width,) = config.positive("height", 1), config.positive("width", 1)
    mode = config.text("interpolation", ("nearest", "bilinear"), "bilinear")
    axes = [1, 2] if config.channels_last() else [2, 3]
    return resized(ctx, cast(ctx, x, f32) if x.type.dtype.is_int else x, axes, [height, width], mode)
