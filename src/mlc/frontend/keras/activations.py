"""Activations, by name inside of other layers and as layers of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.activations import activate
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, normal_axis, scalar, slice_axis
from mlc.frontend.keras.config import Config, plain
from mlc.frontend.keras.model import Layer
from mlc.frontend.keras.registry import Arguments, floats, layer, named, weight
from mlc.ir.graph import Value

Formula = Callable[[Context, Value], Value]


def _between(ctx: Context, x: Value, inner: Value, low: Value, high: Value) -> Value:
    """``low`` up to -1, ``high`` from 1 on, ``inner`` between."""
    below = ctx.add("le", [x, scalar(ctx, -1, x.type.dtype)])
    above = ctx.add("ge", [x, scalar(ctx, 1, x.type.dtype)])
    return ctx.add("where", [below, low, ctx.add("where", [above, high, inner])])


def _sparse_plus(ctx: Context, x: Value) -> Value:
    y = arith(ctx, "add", x, 1)
    quarter = arith(ctx, "mul", ctx.add("mul", [y, y]), 0.25)
    return _between(ctx, x, quarter, scalar(ctx, 0, x.type.dtype), x)


def _squareplus(ctx: Context, x: Value) -> Value:
    root = ctx.add("sqrt", [arith(ctx, "add", ctx.add("mul", [x, x]), 4)])
    return arith(ctx, "mul", ctx.add("add", [x, root]), 0.5)


def _glu(ctx: Context, x: Value) -> Value:
    axis, n = x.type.rank - 1, x.type.shape[-1]
    if n % 2:
        raise ImportModelError(f"glu of an axis of {n} elements")
    gate = ctx.add("sigmoid", [slice_axis(ctx, x, axis, n // 2, n)])
    return ctx.add("mul", [slice_axis(ctx, x, axis, 0, n // 2), gate])


def _log_sigmoid(ctx: Context, x: Value) -> Value:
    return ctx.add("neg", [ctx.add("softplus", [ctx.add("neg", [x])])])


def _hard_shrink(ctx: Context, x: Value) -> Value:
    outside = ctx.add("gt", [ctx.add("abs", [x]), scalar(ctx, 0.5, x.type.dtype)])
    return ctx.add("where", [outside, x, scalar(ctx, 0, x.type.dtype)])


def _along_last(op: str) -> Formula:
    return lambda ctx, x: ctx.add(op, [x], axis=x.type.rank - 1)


def _shared(name: str, **attrs: Any) -> Formula:
    return lambda ctx, x: activate(ctx, x, name, **attrs)


_SIXTH = {"alpha": 1 / 6, "beta": 0.5}
ACTIVATIONS: dict[str, Formula] = {
    "linear": lambda ctx, x: x,
    **{
        n: _shared(n)
        for n in ("relu", "relu6", "elu", "selu", "sigmoid", "softplus", "softsign", "tanh", "mish", "gelu")
    },
    "celu": lambda ctx, x: ctx.add("celu", [x]),
    "exponential": lambda ctx, x: ctx.add("exp", [x]),
    "glu": _glu,
    "hard_shrink": _hard_shrink,
    "hard_sigmoid": _shared("hard_sigmoid", **_SIXTH),
    "hard_silu": _shared("hard_swish"),
    "hard_tanh": _shared("relu_n1_to_1"),
    "leaky_relu": _shared("leaky_relu", alpha=0.2),
    "log_sigmoid": _log_sigmoid,
    "log_softmax": _along_last("log_softmax"),
    "silu": _shared("swish"),
    "soft_shrink": lambda ctx, x: ctx.add("shrink", [x], lambd=0.5, bias=0.5),
    "softmax": _along_last("softmax"),
    "sparse_plus": _sparse_plus,
    "sparse_sigmoid": _shared("hard_sigmoid", alpha=0.5, beta=0.5),
    "squareplus": _squareplus,
    "tanh_shrink": lambda ctx, x: ctx.add("sub", [x, ctx.add("tanh", [x])]),
}
_OTHER_NAMES = {"swish": "silu", "hard_swish": "hard_silu", "exp": "exponential"}


def apply_activation(ctx: Context, layer: Layer, x: Value, key: str = "activation") -> Value:
    """``x`` through the activation that a setting names; ``None`` is none.

    Raises:
        UnsupportedError: it is not known, or the user's own function.
    """
    value = layer.config.get(key)
    if value is None:
        return x
    if isinstance(value, dict):
        return _described(ctx, layer, x, value)
    return named_activation(ctx, layer, x, value)


def named_activation(ctx: Context, layer: Layer, x: Value, value: object) -> Value:
    """``x`` through an activation by its name.

    Raises:
        UnsupportedError: there is none of that name.
    """
    name = _OTHER_NAMES.get(value, value) if isinstance(value, str) else value
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise UnsupportedError(f"activation {value!r:.60}", hint=f"known: {', '.join(sorted(ACTIVATIONS))}")
    if name == "hard_sigmoid" and layer.version < 3:
        return activate(ctx, x, "hard_sigmoid", alpha=0.2, beta=0.5)  # Keras 3 gave the name to another slope
    return ACTIVATIONS[name](ctx, x)


def _described(ctx: Context, outer: Layer, x: Value, value: dict[str, Any]) -> Value:
    """An activation as an object: a function of Keras's by name, or a layer without weights."""
    config, class_name = value.get("config"), value.get("class_name")
    registered, module = value.get("registered_name"), value.get("module")
    own = isinstance(registered, str) and ">" in registered
    ours = isinstance(module, str) and module.split(".")[0] in ("keras", "tf_keras", "builtins")
    if not own and class_name == "function" and isinstance(config, str) and ">" not in config:
        return named_activation(ctx, outer, x, config)
    if not own and ours and isinstance(config, dict) and class_name in _PLAIN:
        inner = Layer(class_name, f"{outer.name}/{class_name}", Config(config), version=outer.version)
        return _PLAIN[class_name](ctx, inner, x)
    raise UnsupportedError(f"activation {registered or config or class_name!r:.60}, a function of the user's own")


# -- layers -----------------------------------------------------------------------------------------------------------
@layer("Activation", masks="keep")
def _activation(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = call.one()
    linear = layer.config.get("activation") in (None, "linear")
    return x if linear else apply_activation(ctx, layer, floats(ctx, layer, x))


def _relu(ctx: Context, layer: Layer, x: Value) -> Value:
    """``max(x, 0)`` with a slope below the threshold and a bound above, each where it is set."""
    config = layer.config
    slope = config.number("negative_slope", 0.0) if config.get("negative_slope") is not None else 0.0
    threshold = config.number("threshold", 0.0) if config.get("threshold") is not None else 0.0
    most = config.get("max_value")
    bound = None if most is None else config.number("max_value")
    if slope == 0 and threshold == 0:
        return ctx.add("relu", [x]) if bound is None else ctx.add("clip", [x], lo=0.0, hi=bound)
    if threshold == 0 and bound is None:
        return ctx.add("leaky_relu", [x], alpha=slope)
    y = ctx.add("relu", [x]) if threshold == 0 else _thresholded(ctx, x, threshold)
    if bound is not None:
        y = ctx.add("clip", [y], lo=0.0, hi=bound)
    if slope == 0:
        return y
    below = ctx.add("relu", [arith(ctx, "sub", threshold, x)])
    return ctx.add("sub", [y, arith(ctx, "mul", below, slope)])


def _thresholded(ctx: Context, x: Value, threshold: float) -> Value:
    above = ctx.add("gt", [x, scalar(ctx, threshold, x.type.dtype)])
    return ctx.add("where", [above, x, scalar(ctx, 0, x.type.dtype)])


def _leaky_relu(ctx: Context, layer: Layer, x: Value) -> Value:
    key = "alpha" if "alpha" in layer.config else "negative_slope"
    return ctx.add("leaky_relu", [x], alpha=layer.config.number(key, 0.3))


def _elu(ctx: Context, layer: Layer, x: Value) -> Value:
    return ctx.add("elu", [x], alpha=layer.config.number("alpha", 1.0))


def _thresholded_relu(ctx: Context, layer: Layer, x: Value) -> Value:
    return ctx.add("thresholded_relu", [x], alpha=layer.config.number("theta", 1.0))


def _softmax(ctx: Context, layer: Layer, x: Value) -> Value:
    axes = plain(layer.config.get("axis", -1))
    axes = [axes] if isinstance(axes, int) else axes
    if not isinstance(axes, list) or len(axes) != 1 or type(axes[0]) is not int:
        raise UnsupportedError(f"softmax over axes {axes!r:.60}", hint="over one axis it is supported")
    return ctx.add("softmax", [x], axis=normal_axis(axes[0], x.type.rank))


_PLAIN: dict[str, Callable[[Context, Layer, Value], Value]] = {
    "ReLU": _relu,
    "LeakyReLU": _leaky_relu,
    "ELU": _elu,
    "ThresholdedReLU": _thresholded_relu,
    "Softmax": _softmax,
}


def _as_layer(fn: Callable[[Context, Layer, Value], Value]) -> Callable[[Context, Layer, Arguments], Value]:
    return lambda ctx, at, call: fn(ctx, at, floats(ctx, at, call.one()))


for _name, _fn in _PLAIN.items():
    _limits = "over one axis; without a mask" if _name == "Softmax" else ""
    layer(_name, masks="refuse" if _name == "Softmax" else "keep", limits=_limits)(_as_layer(_fn))


@layer("PReLU", variables=named("alpha"), masks="keep")
def _prelu(ctx: Context, layer: Layer, call: Arguments) -> Value:
    x = floats(ctx, layer, call.one())
    shape = list(x.type.shape[1:])
    for axis in layer.config.ints("shared_axes") if layer.config.get("shared_axes") else ():
        if not 1 <= axis < x.type.rank:
            raise ImportModelError(f"shared axis {axis} of {x.type}")
        shape[axis - 1] = 1
    slope = weight(ctx, layer, "alpha", shape)
    return ctx.add("prelu", [x, ctx.constant(np.asarray(slope))])
