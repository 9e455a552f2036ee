"""Normalisations, and scaling of inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.axes import normal_axes
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, transpose
from mlc.frontend.keras.config import Config, plain
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.registry import Arguments, compute_dtype, floats, layer, weight
from mlc.frontend.keras.weights import Variable
from mlc.ir.graph import Value
from mlc.ir.types import f32


def _affine(config: Config) -> list[Variable]:
    names = [n for n, key in (("gamma", "scale"), ("beta", "center")) if config.flag(key, True)]
    return [Variable(n) for n in names]


def _batch_norm_variables(config: Config) -> Sequence[Variable]:
    config.refuse("renorm")
    return [*_affine(config), Variable("moving_mean", False), Variable("moving_variance", False)]


def _axes(config: Config, rank: int, default: int = -1) -> tuple[int, ...]:
    """The axes that ``axis`` names, an integer or a list of them."""
    value = plain(config.get("axis", default))
    axes = [value] if type(value) is int else value
    if not isinstance(axes, list) or not axes or any(type(a) is not int for a in axes):
        raise ImportModelError(f"setting 'axis' is {value!r:.60}")
    return normal_axes(axes, rank)


def _one_axis(config: Config, rank: int) -> int:
    axes = _axes(config, rank)
    if len(axes) != 1:
        raise UnsupportedError(f"axes {list(axes)}", hint="one axis is supported")
    return axes[0]


def _parameter(ctx: Context, layer: Layer, name: str, shape: Sequence[int], default: float) -> np.ndarray:
    """A variable in single precision, where its sums are kept; ``default`` where the layer has none."""
    if name in layer.weights.stored:
        return weight(ctx, layer, name, shape).astype(np.float32)
    return np.full(tuple(shape), default, np.float32)


@layer(
    "BatchNormalization",
    "BatchNormalizationV1",
    "SyncBatchNormalization",
    variables=_batch_norm_variables,
    masks="keep",
)
def _batch_norm(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = floats(ctx, layer, call.one())
    rank, config = x.type.rank, layer.config
    axis = _one_axis(config, rank)
    order = (0, axis, *(d for d in range(1, rank) if d != axis))
    if axis == 0:
        raise UnsupportedError("normalisation of the batch axis")
    c = (x.type.shape[axis],)
    names = (("gamma", 1.0), ("beta", 0.0), ("moving_mean", 0.0), ("moving_variance", 1.0))
    dtype = compute_dtype(layer)
    wide = dtype if dtype.bits >= 32 else f32
    params = [ctx.constant(_parameter(ctx, layer, n, c, d).astype(wide.numpy)) for n, d in names]
    first = cast(ctx, transpose(ctx, x, order), wide)
    y = cast(ctx, ctx.add("batch_norm", [first, *params], epsilon=config.number("epsilon", 1e-3)), dtype)
    return transpose(ctx, y, [order.index(d) for d in range(rank)])


@layer("LayerNormalization", variables=_affine, masks="keep", limits="no rms_scaling")
def _layer_norm(ctx: Context, layer: Layer, call: Arguments) -> Value:
    layer.config.refuse("rms_scaling")
    return _row_norm(ctx, layer, floats(ctx, layer, call.one()), ("gamma", "beta"))


@layer("RMSNormalization", variables=lambda config: [Variable("scale")])
def _rms_norm(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return _row_norm(ctx, layer, floats(ctx, layer, call.one()), ("scale",))


def _row_norm(ctx: Context, layer: Layer, x: Value, names: tuple[str, ...]) -> Value:
    """Normalisation over some axes, which are brought to the end first."""
    rank = x.type.rank
    axes = sorted(_axes(layer.config, rank))
    order = [*(d for d in range(rank) if d not in axes), *axes]
    shape = tuple(x.type.shape[a] for a in axes)
    dtype = x.type.dtype.numpy
    params = [ctx.constant(_parameter(ctx, layer, n, shape, float(k == 0)).astype(dtype)) for k, n in enumerate(names)]
    default = 1e-3 if len(names) == 2 else 1e-6
    attrs = {"axis": rank - len(axes), "epsilon": layer.config.number("epsilon", default)}
    op = "layer_norm" if len(names) == 2 else "rms_norm"
    y = ctx.add(op, [transpose(ctx, x, order), *params], **attrs)
    return transpose(ctx, y, [order.index(d) for d in range(rank)])


@layer("GroupNormalization", variables=_affine)
def _group_norm(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = floats(ctx, layer, call.one())
    rank = x.type.rank
    axis = _one_axis(layer.config, rank)
    channels, groups = x.type.shape[axis], layer.config.whole("groups", 32)
    groups = channels if groups == -1 else groups
    if axis == 0 or groups < 1 or channels % groups:
        raise ImportModelError(f"{channels} channels on axis {axis} in {groups} groups")
    order = (0, axis, *(d for d in range(1, rank) if d != axis))
    dtype = x.type.dtype.numpy
    params = [
        ctx.constant(_parameter(ctx, layer, n, (channels,), d).astype(dtype))
        for n, d in (("gamma", 1.0), ("beta", 0.0))
    ]
    epsilon = layer.config.number("epsilon", 1e-3)
    y = ctx.add("group_norm", [transpose(ctx, x, order), *params], groups=groups, epsilon=epsilon)
    return transpose(ctx, y, [order.index(d) for d in range(rank)])


@layer("UnitNormalization", masks="keep")
def _unit_norm(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = floats(ctx, layer, call.one())
    return unit_length(ctx, x, _axes(layer.config, x.type.rank))


def unit_length(ctx: Context, x: Value, axes: Sequence[int]) -> Value:
    """``x`` divided by its length along some axes, which is taken to be 1e-6 at least."""
    square = ctx.add("reduce_sum", [ctx.add("mul", [x, x])], axes=tuple(axes), keepdims=True)
    return ctx.add("mul", [x, ctx.add("rsqrt", [arith(ctx, "max", square, 1e-12)])])


# -- scaling ----------------------------------------------------------------------------------------------------------
@layer("Rescaling", masks="keep")
def _rescaling(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = floats(ctx, layer, call.one())
    scale, offset = (_numbers(layer.config, key, d, x) for key, d in (("scale", 1.0), ("offset", 0.0)))
    if scale.ndim and not layer.config.channels_last() and "data_format" in layer.config:
        scale, offset = (v.reshape(-1, *[1] * (x.type.rank - 2)) if v.ndim == 1 else v for v in (scale, offset))
    y = ctx.add("mul", [x, ctx.constant(scale)])
    return y if not np.any(offset) else ctx.add("add", [y, ctx.constant(offset)])


def _numbers(config: Config, key: str, default: object, x: Value) -> np.ndarray:
    """Numbers of a setting, in the element type of ``x``; they must broadcast against it."""
    value = plain(config.get(key, default))
    try:
        array = np.asarray(value, np.float64)
        np.broadcast_shapes(array.shape, x.type.shape)
    except (TypeError, ValueError) as error:
        raise ImportModelError(f"setting {key!r} is {value!r:.60}, numbers for {x.type} are needed") from error
    return array.astype(x.type.dtype.numpy)


def _normalization_variables(config: Config) -> Sequence[Variable]:
    if config.get("mean") is not None:
        return []
    return [Variable(n, False) for n in ("mean", "variance", "count")]


@layer("Normalization", variables=_normalization_variables, masks="keep")
def _normalization(ctx: Context, layer: Layer, call: Arguments) -> Value:
    """``(x - mean) / max(sqrt(variance), epsilon)`` with numbers that were found beforehand."""
    x, config = floats(ctx, layer, call.one()), layer.config
    rank, dtype = x.type.rank, x.type.dtype.numpy
    none = config.get("axis", -1) is None or config.get("axis") == []
    axes = () if none else tuple(sorted(_axes(config, rank)))
    shape = tuple(x.type.shape[a] for a in axes)
    place = [n if d in axes else 1 for d, n in enumerate(x.type.shape)]
    if config.get("mean") is not None:
        arrays = [_spread(_listed(config, key), shape) for key in ("mean", "variance")]
    else:
        arrays = [weight(ctx, layer, key, shape).astype(np.float64) for key in ("mean", "variance")]
    mean = ctx.constant(arrays[0].reshape(place).astype(dtype))
    spread = np.maximum(np.sqrt(arrays[1].astype(dtype)), np.asarray(1e-7, dtype)).reshape(place)
    if config.flag("invert"):
        return ctx.add("add", [mean, ctx.add("mul", [x, ctx.constant(spread)])])
    return ctx.add("div", [ctx.add("sub", [x, mean]), ctx.constant(spread)])


def _listed(config: Config, key: str) -> np.ndarray:
    try:
        return np.asarray(plain(config.get(key)), np.float64)
    except (TypeError, ValueError) as error:
        raise ImportModelError(f"setting {key!r} holds no numbers") from error


def _spread(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers over the axes that are kept; those may be padded with axes of extent 1, as Keras saves them."""
    if array.size == np.prod(shape):
        return array.reshape(shape)
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise ImportModelError(f"numbers of shape {list(array.shape)} for {list(shape)}") from error
