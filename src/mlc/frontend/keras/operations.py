"""Operations of ``keras.ops`` that stand in functional models: arithmetic, reductions, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.axes import normal_axes
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, concat, normal_axis, normal_index, reshape, scalar, slice_axis, transpose
from mlc.frontend.keras.activations import ACTIVATIONS
from mlc.frontend.keras.config import Config, plain
from mlc.frontend.keras.model import Layer, flatten
from mlc.frontend.keras.registry import FLOATS, Arguments, operation
from mlc.frontend.keras.reshaping import reshaped_to, resized
from mlc.ir.graph import Value
from mlc.ir.types import DType, boolean, dtype_of, f32, i32


# -- operands ---------------------------------------------------------------------------------------------------------
def _operand(ctx: Context, value: Any, like: DType) -> Value:
    """An argument as a value; Python numbers take the type of the other operand, unless that would cut them."""
    if isinstance(value, Value):
        return value
    found = plain(value)
    try:
        array = np.asarray(found)
        numbers = array.dtype.kind in "biuf"
    except (TypeError, ValueError):
        numbers = False
    if not numbers:
        raise UnsupportedError(f"the argument {value!r:.60}")
    if isinstance(value, dict):
        named = value.get("config", {}).get("dtype") if isinstance(value.get("config"), dict) else None
        return ctx.constant(array, _dtype(named).numpy if named else None)
    kind = f32 if array.dtype.kind == "f" and not like.is_float else like
    if like is boolean and array.dtype.kind != "b":
        kind = f32 if array.dtype.kind == "f" else i32
    return ctx.constant(array, kind.numpy)


def _dtype(name: object) -> DType:
    if name == "int":
        return i32
    if name == "bool":
        return boolean
    if not isinstance(name, str):
        raise UnsupportedError(f"element type {name!r:.60}")
    return FLOATS.get(name) or dtype_of(name)


def _pair(ctx: Context, call: Arguments, count: int = 2) -> list[Value]:
    """The first arguments, brought to one element type."""
    given = [*call.args, *call.kwargs.values()][:count]
    known = [v for v in given if isinstance(v, Value)]
    if len(given) < count or not known:
        raise ImportModelError(f"called on {len(given)} operands, {count} are needed")
    values = [_operand(ctx, v, known[0].type.dtype) for v in given]
    dtype = max((v.type.dtype for v in values), key=lambda t: (t.is_float, t is not boolean, t.bits))
    return [cast(ctx, v, dtype) for v in values]


def _axes(config: Config, rank: int, key: str = "axis") -> tuple[int, ...]:
    """Axes that a setting names; all where it is ``None``."""
    value = config.get(key)
    if value is None:
        return tuple(range(rank))
    axes = [value] if type(value) is int else value
    if not isinstance(axes, list) or any(type(a) is not int for a in axes):
        raise ImportModelError(f"setting {key!r} is {value!r:.60}")
    return normal_axes(axes, rank)


def _needs_float(ctx: Context, x: Value) -> Value:
    return x if x.type.dtype.is_float else cast(ctx, x, f32)


# -- element by element -----------------------------------------------------------------------------------------------
_UNARY = {
    "Absolute": "abs", "Abs": "abs", "Negative": "neg", "Sign": "sign", "LogicalNot": "not", "Relu": "relu",
}  # fmt: skip
_FLOAT_UNARY = {
    "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Rsqrt": "rsqrt", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Tanh": "tanh", "Sigmoid": "sigmoid", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Erf": "erf",
    "Reciprocal": "reciprocal", "Arcsin": "asin", "Arccos": "acos", "Arctan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Isnan": "isnan", "Isinf": "isinf",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Subtract": "sub", "Multiply": "mul", "Maximum": "max", "Minimum": "min", "Power": "pow",
    "Mod": "mod", "Equal": "eq", "NotEqual": "ne", "Greater": "gt", "GreaterEqual": "ge", "Less": "lt",
    "LessEqual": "le",
}  # fmt: skip
_LOGICAL = {"LogicalAnd": "and", "LogicalOr": "or", "LogicalXor": "xor"}
_ACTIVATIONS = {
    "Relu6": "relu6", "Silu": "silu", "HardSigmoid": "hard_sigmoid", "HardSilu": "hard_silu", "Softplus": "softplus",
    "Softsign": "softsign", "Selu": "selu", "Mish": "mish", "LogSigmoid": "log_sigmoid", "HardTanh": "hard_tanh",
}  # fmt: skip


@operation(*_UNARY)
def _unary(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add(_UNARY[layer.class_name], [call.one()])


@operation(*_FLOAT_UNARY)
def _float_unary(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add(_FLOAT_UNARY[layer.class_name], [_needs_float(ctx, call.one())])


@operation(*_ACTIVATIONS)
def _named(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ACTIVATIONS[_ACTIVATIONS[layer.class_name]](ctx, call.one())


@operation("Gelu")
def _gelu(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add("gelu", [call.one()], approximate="tanh" if layer.config.flag("approximate", True) else "none")


@operation("LeakyRelu")
def _leaky_relu(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add("leaky_relu", [call.one()], alpha=layer.config.number("negative_slope", 0.2))


@operation("Elu", "Celu")
def _elu(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add(layer.class_name.lower(), [call.one()], alpha=layer.config.number("alpha", 1.0))


@operation("Softmax", "LogSoftmax")
def _softmax(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    axis = normal_axis(layer.config.whole("axis", -1), x.type.rank)
    return ctx.add("softmax" if layer.class_name == "Softmax" else "log_softmax", [x], axis=axis)


@operation("Square")
def _square(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    return ctx.add("mul", [x, x])


@operation(*_BINARY)
def _binary(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add(_BINARY[layer.class_name], _pair(ctx, call))


@operation("Divide", "TrueDivide")
def _divide(ctx: Context, layer: Layer, call: Arguments) -> Value:
    a, b = (_needs_float(ctx, v) for v in _pair(ctx, call))
    return ctx.add("div", [a, b])


@operation("FloorDivide")
def _floor_divide(ctx: Context, layer: Layer, call: Arguments) -> Value:
    a, b = _pair(ctx, call)
    if not a.type.dtype.is_float:
        raise UnsupportedError("whole quotients of integers")
    return ctx.add("floor", [ctx.add("div", [a, b])])


@operation(*_LOGICAL)
def _logical(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add(_LOGICAL[layer.class_name], [cast(ctx, v, boolean) for v in _pair(ctx, call)])


@operation("Where")
def _where(ctx: Context, layer: Layer, call: Arguments) -> Value:
    condition = call.get(0, "condition")
    if not isinstance(condition, Value):
        raise UnsupportedError("a condition that is no tensor of the model")
    branches = Arguments((call.get(1, "x1"), call.get(2, "x2")), {})
    if not any(isinstance(v, Value) for v in branches.args):
        choices = [_operand(ctx, v, f32) for v in branches.args]
    else:
        choices = _pair(ctx, branches)
    return ctx.add("where", [cast(ctx, condition, boolean), *choices])


@operation("Clip")
def _clip(ctx: Context, layer: Layer, call: Arguments) -> Value:
    lo, hi = (layer.config.number(key) for key in ("x_min", "x_max"))
    return ctx.add("clip", [call.one()], lo=lo, hi=hi)


@operation("Cast")
def _cast(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return cast(ctx, call.one(), _dtype(layer.config.get("dtype")))


@operation("ConvertToTensor")
def _convert_to_tensor(ctx: Context, layer: Layer, call: Arguments) -> Value:
    wanted = layer.config.get("dtype")
    return call.one() if wanted is None else cast(ctx, call.one(), _dtype(wanted))


@operation("ZerosLike", "OnesLike")
def _like(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, wanted = call.one(), call.get(1, "dtype", layer.config.get("dtype"))
    dtype = x.type.dtype if wanted is None else _dtype(wanted)
    number = scalar(ctx, int(layer.class_name == "OnesLike"), dtype)
    return ctx.add("broadcast_to", [number], shape=x.type.shape)


# -- reductions and products ------------------------------------------------------------------------------------------
_REDUCTIONS = {
    "Mean": "reduce_mean", "Sum": "reduce_sum", "Max": "reduce_max", "Min": "reduce_min", "Prod": "reduce_prod",
    "All": "reduce_all", "Any": "reduce_any", "Amax": "reduce_max", "Amin": "reduce_min",
}  # fmt: skip


@operation(*_REDUCTIONS)
def _reduce(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    x = _needs_float(ctx, x) if layer.class_name == "Mean" else x
    axes = _axes(layer.config, x.type.rank)
    return ctx.add(_REDUCTIONS[layer.class_name], [x], axes=axes, keepdims=layer.config.flag("keepdims"))


@operation("Argmax", "Argmin")
def _arg(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, keepdims = call.one(), layer.config.flag("keepdims")
    if layer.config.get("axis") is None:
        x, axis = reshape(ctx, x, (x.type.size,)), 0
    else:
        axis = normal_axis(layer.config.whole("axis"), x.type.rank)
    return cast(ctx, ctx.add(layer.class_name.lower(), [x], axis=axis, keepdims=keepdims), i32)


@operation("Matmul")
def _matmul(ctx: Context, layer: Layer, call: Arguments) -> Value:
    a, b = _pair(ctx, call)
    if min(a.type.rank, b.type.rank) < 2:
        raise UnsupportedError("products of vectors", hint="operands of rank 2 or more")
    return ctx.add("matmul", [a, b])


@operation("Einsum")
def _einsum(ctx: Context, layer: Layer, call: Arguments) -> Value:
    values = [v for v in flatten(list(call.args)) if isinstance(v, Value)]
    equation = layer.config.get("subscripts")
    if not isinstance(equation, str) or len(equation) > 200:
        raise ImportModelError(f"subscripts {equation!r:.60}")
    return ctx.add("einsum", values, equation=equation)


# -- shapes -----------------------------------------------------------------------------------------------------------
@operation("Reshape")
def _reshape(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return reshaped_to(ctx, call.one(), layer.config.ints("newshape"))


@operation("Transpose")
def _transpose(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    rank = x.type.rank
    axes = layer.config.ints("axes") if layer.config.get("axes") is not None else tuple(reversed(range(rank)))
    return transpose(ctx, x, normal_axes(axes, rank))


@operation("Swapaxes")
def _swapaxes(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    a, b = (normal_axis(layer.config.whole(key), x.type.rank) for key in ("axis1", "axis2"))
    return transpose(ctx, x, [{a: b, b: a}.get(d, d) for d in range(x.type.rank)])


@operation("Concatenate")
def _concatenate(ctx: Context, layer: Layer, call: Arguments) -> Value:
    values = call.many()
    return concat(ctx, values, normal_axis(layer.config.whole("axis", -1), values[0].type.rank))


@operation("Stack")
def _stack(ctx: Context, layer: Layer, call: Arguments) -> Value:
    values = call.many()
    axis = normal_axis(layer.config.whole("axis", 0), values[0].type.rank + 1)
    return concat(ctx, [_expanded(ctx, v, [axis]) for v in values], axis)


@operation("Split")
def _split(ctx: Context, layer: Layer, call: Arguments) -> list[Value]:
    x = call.one()
    axis = normal_axis(layer.config.whole("axis", 0), x.type.rank)
    n, cuts = x.type.shape[axis], layer.config.get("indices_or_sections")
    if type(cuts) is int:
        if cuts < 1 or n % cuts:
            raise ImportModelError(f"{n} elements in {cuts} equal parts")
        ends = list(range(n // cuts, n + 1, n // cuts)) if n else []
    else:
        ends = [*layer.config.ints("indices_or_sections"), n]
    begins = [0, *ends[:-1]]
    if any(not 0 <= b <= e <= n for b, e in zip(begins, ends, strict=True)):
        raise ImportModelError(f"{n} elements cut at {ends[:-1]}")
    return [slice_axis(ctx, x, axis, b, e) for b, e in zip(begins, ends, strict=True)]


def _expanded(ctx: Context, x: Value, axes: Sequence[int]) -> Value:
    rank = x.type.rank + len(axes)
    rest = iter(x.type.shape)
    return reshape(ctx, x, [1 if d in axes else next(rest) for d in range(rank)])


@operation("ExpandDims")
def _expand_dims(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    axes = layer.config.ints("axis")
    return _expanded(ctx, x, normal_axes(axes, x.type.rank + len(axes)))


@operation("Squeeze")
def _squeeze(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    shape = x.type.shape
    if layer.config.get("axis") is None:
        axes: tuple[int, ...] = tuple(d for d, n in enumerate(shape) if n == 1)
    else:
        axes = _axes(layer.config, x.type.rank)
    if any(shape[a] != 1 for a in axes):
        raise ImportModelError(f"axes {list(axes)} of {x.type} are not of extent 1")
    return reshape(ctx, x, [n for d, n in enumerate(shape) if d not in axes])


@operation("GetItem", limits="integers, slices, ellipses and new axes")
def _get_item(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, key = call.one(), call.get(1, "key")
    keys = key if isinstance(key, list) else [key]
    taken = sum(k is not None and k is not Ellipsis for k in keys)
    if keys.count(Ellipsis) > 1 or taken > x.type.rank:
        raise ImportModelError(f"{taken} indices of {x.type}")
    at = next((k for k, v in enumerate(keys) if v is Ellipsis), len(keys))
    whole = [slice(None)] * (x.type.rank - taken)
    ranges: list[range] = []
    shape: list[int] = []
    for k in [*keys[:at], *whole, *keys[at + 1 :]]:
        if k is None:
            shape.append(1)
            continue
        n = x.type.shape[len(ranges)]
        if isinstance(k, slice) and all(v is None or type(v) is int for v in (k.start, k.stop, k.step)) and k.step != 0:
            ranges.append(range(n)[k])
            shape.append(len(ranges[-1]))
        elif type(k) is int:
            at_front = normal_index(k, n)
            ranges.append(range(at_front, at_front + 1))
        else:
            raise UnsupportedError(f"the index {k!r:.60}", hint="integers and slices are supported")
    y = ctx.add(
        "slice", [x], begin=tuple(r.start for r in ranges), end=tuple(r.stop for r in ranges),
        step=tuple(r.step for r in ranges),
    )  # fmt: skip
    return reshape(ctx, y, shape)


@operation("Flip")
def _flip(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    axes, shape = _axes(layer.config, x.type.rank), x.type.shape
    begin = tuple(n - 1 if d in axes else 0 for d, n in enumerate(shape))
    end = tuple(-1 if d in axes else n for d, n in enumerate(shape))
    return ctx.add("slice", [x], begin=begin, end=end, step=tuple(-1 if d in axes else 1 for d in range(len(shape))))


@operation("Tile")
def _tile(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, repeats = call.one(), layer.config.positive("repeats")
    rank = max(x.type.rank, len(repeats))
    x = reshape(ctx, x, (*[1] * (rank - x.type.rank), *x.type.shape))
    return ctx.add("tile", [x], repeats=(*[1] * (rank - len(repeats)), *repeats))


@operation("Repeat", limits="a number of times along an axis")
def _repeat(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    (times,) = layer.config.positive("repeats", 1)
    axis = normal_axis(layer.config.whole("axis"), x.type.rank)
    shape = list(x.type.shape)
    wide = _expanded(ctx, x, [axis + 1])
    spread = ctx.add("broadcast_to", [wide], shape=(*shape[: axis + 1], times, *shape[axis + 1 :]))
    shape[axis] *= times
    return reshape(ctx, spread, shape)


@operation("BroadcastTo")
def _broadcast_to(ctx: Context, layer: Layer, call: Arguments) -> Value:
    return ctx.add("broadcast_to", [call.one()], shape=layer.config.positive("shape"))


@operation("Pad", limits="modes constant and reflect")
def _pad(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    mode = layer.config.text("mode", ("constant", "reflect"), "constant")
    pairs: Any = layer.config.get("pad_width")
    rank = x.type.rank
    if type(pairs) is int:
        pairs = [[pairs, pairs]] * rank
    ok = isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 for p in pairs)
    if not ok or len(pairs) != rank or any(type(n) is not int or n < 0 for p in pairs for n in p):
        raise ImportModelError(f"setting 'pad_width' is {pairs!r:.60} for {x.type}")
    value = call.kwargs.get("constant_values") or 0
    if not isinstance(value, (int, float)):
        raise UnsupportedError(f"padding with {value!r:.60}")
    pads = (*(p[0] for p in pairs), *(p[1] for p in pairs))
    return ctx.add("pad", [x], pads=pads, mode=mode, value=float(value) if mode == "constant" else 0.0)


@operation(
    "Resize", limits="interpolation nearest and bilinear; neither crop nor pad to the aspect ratio; no antialias"
)
def _resize(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x, config = call.one(), layer.config
    for key in ("crop_to_aspect_ratio", "pad_to_aspect_ratio", "antialias"):
        config.refuse(key)
    mode = config.text("interpolation", ("nearest", "bilinear"), "bilinear")
    sizes = config.positive("size", 2)
    axes = [x.type.rank - 3, x.type.rank - 2] if config.channels_last() else [x.type.rank - 2, x.type.rank - 1]
    return resized(ctx, x, axes, list(sizes), mode)
