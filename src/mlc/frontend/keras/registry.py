"""The tables of Keras layers and operations, and what each converter is given.

A converter is one function a class: ``(ctx, layer, call) -> results``. It reads settings from ``layer.config``, weights
by :func:`weight`, and appends core operators through ``ctx``. Beside its name stands which variables the class has, in
the order of files, which layers it keeps inside, and what it does with masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast
from mlc.frontend.keras.config import Config
from mlc.frontend.keras.model import Layer, flatten
from mlc.frontend.keras.weights import Variable
from mlc.frontend.limits import Limits
from mlc.ir.graph import Value
from mlc.ir.types import DType, bf16, f16, f32, f64

FLOATS = {"float16": f16, "bfloat16": bf16, "float32": f32, "float64": f64}
_POLICIES = {**FLOATS, "mixed_float16": f16, "mixed_bfloat16": bf16}


@dataclass(frozen=True)
class Arguments:
    """What a layer is called with.

    Args:
        args: positional arguments; tensors are values.
        kwargs: the others.
        mask: which steps of the first argument count, ``[batch, steps]``; ``None`` for all.
        masks: the masks of tensors, for layers that look at more than one.
        apply: converts another layer on arguments of its own, for those that have layers inside.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mask: Value | None = None
    masks: Mapping[Value, Value] = field(default_factory=dict)
    apply: Callable[[Layer, Arguments], list[Value]] = field(default=lambda layer, call: [])

    def one(self) -> Value:
        """The tensor that the layer is called on.

        Raises:
            ImportModelError: it is not exactly one.
        """
        values = self.many()
        if len(values) != 1:
            raise ImportModelError(f"called on {len(values)} tensors, one is needed")
        return values[0]

    def many(self) -> list[Value]:
        """The tensors of the first argument.

        Raises:
            ImportModelError: one is no tensor.
        """
        given = self.args[0] if self.args else next(iter(self.kwargs.values()), None)
        values = list(flatten(given))
        if not values or not all(isinstance(v, Value) for v in values):
            raise ImportModelError("called on what is no tensor")
        return values

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


@dataclass(frozen=True)
class Masked:
    """A result with the mask that the layer makes for it, ``[batch, steps]``."""

    value: Value
    mask: Value


ConvertFn = Callable[[Context, Layer, Arguments], Any]
Variables = Callable[[Config], Sequence[Variable]]
Parts = Callable[[Layer, Limits], Mapping[str, Layer]]


@dataclass(frozen=True)
class Kind:
    """A class of layers that can be converted.

    Args:
        name: Keras's name.
        convert: the function.
        variables: what it has, in the order of files.
        parts: the layers inside, by the path of attributes that leads to them.
        masks: ``keep`` hands a mask on, ``read`` reads it, ``use`` does both, ``drop`` loses it as Keras does, ``own``
            reads those of all arguments and says which results have one, ``take`` takes them away from its arguments
            besides, and ``refuse`` cannot do what Keras does.
        limits: what is not covered, in words, printed by ``mlc ops``.
    """

    name: str
    convert: ConvertFn
    variables: Variables
    parts: Parts
    masks: str
    limits: str


LAYERS: dict[str, Kind] = {}
OPERATIONS: dict[str, Kind] = {}


def _none(config: Config) -> Sequence[Variable]:
    return ()


def _no_parts(layer: Layer, limits: Limits) -> Mapping[str, Layer]:
    return {}


def layer(
    name: str,
    *more: str,
    variables: Variables = _none,
    parts: Parts = _no_parts,
    masks: str = "drop",
    limits: str = "",
) -> Callable[[ConvertFn], ConvertFn]:
    """Decorator that enters a converter for one or more classes of layers."""
    return _entered(LAYERS, (name, *more), variables, parts, masks, limits)


def operation(name: str, *more: str, limits: str = "") -> Callable[[ConvertFn], ConvertFn]:
    """Decorator that enters a converter for one or more operations of ``keras.ops``."""
    return _entered(OPERATIONS, (name, *more), _none, _no_parts, "drop", limits)


def _entered(
    table: dict[str, Kind], names: Sequence[str], variables: Variables, parts: Parts, masks: str, limits: str
) -> Callable[[ConvertFn], ConvertFn]:
    def wrap(fn: ConvertFn) -> ConvertFn:
        for name in names:
            if name in table:
                raise ValueError(f"converter for {name} is registered twice")
            table[name] = Kind(name, fn, variables, parts, masks, limits)
        return fn

    return wrap


def named(*names: str) -> Variables:
    """Variables that a class always has; its bias only with ``use_bias``."""

    def variables(config: Config) -> Sequence[Variable]:
        return [Variable(n) for n in names if n != "bias" or config.flag("use_bias", True)]

    return variables


def find_kind(layer: Layer) -> Kind | None:
    """The entry of a layer or operation; ``None`` when there is none, or the class is the user's own."""
    return None if layer.custom else (OPERATIONS if layer.operation else LAYERS).get(layer.class_name)


# -- what converters share --------------------------------------------------------------------------------------------
def compute_dtype(layer: Layer) -> DType:
    """The float type that a layer computes in.

    Raises:
        UnsupportedError: its policy is another one, for example of quantised weights.
    """
    policy = layer.config.get("dtype") or "float32"
    if isinstance(policy, dict):
        inner = policy.get("config")
        policy = (
            inner.get("name")
            if isinstance(inner, dict) and policy.get("class_name") != "QuantizedDTypePolicy"
            else policy
        )
    if not isinstance(policy, str) or policy not in _POLICIES:
        name = policy if isinstance(policy, str) else policy.get("class_name") if isinstance(policy, dict) else policy
        raise UnsupportedError(f"dtype policy {name!r:.60}", hint=f"supported: {', '.join(_POLICIES)}")
    return _POLICIES[policy]


def weight(ctx: Context, layer: Layer, name: str, shape: Sequence[int]) -> np.ndarray:
    """A variable as an array of the type that the layer computes in.

    Raises:
        ImportModelError: it is not there, or has another shape.
    """
    array = layer.weights.read(name, shape)
    ctx.note_stored(array)
    dtype = compute_dtype(layer).numpy
    return array if array.dtype == dtype else array.astype(dtype)


def bias(ctx: Context, layer: Layer, size: int) -> Value | None:
    """The bias, ``None`` where the layer has none."""
    if not layer.config.flag("use_bias", True):
        return None
    return ctx.constant(weight(ctx, layer, "bias", (size,)))


def floats(ctx: Context, layer: Layer, x: Value) -> Value:
    """``x`` in the type that the layer computes in."""
    return cast(ctx, x, compute_dtype(layer))
