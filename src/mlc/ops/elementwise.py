"""Operators that work on each element alone: unary, binary and ternary functions, activations, conversions.

Binary and ternary operators broadcast numpy style and take operands of one element type. Functions that are more than
one rounding of an exact result are evaluated in f32 for the 16-bit floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, pi, sqrt
from typing import Any

from mlc.ir import te
from mlc.ir.expr import BINARY, INTRINSICS, Expr, binary, call, cast, select
from mlc.ir.graph import Attrs, FusionKind, Operator
from mlc.ir.types import DType, TensorType, boolean, dtype_of, f64, i32
from mlc.ops._broadcast import broadcast_shape, check_count, check_kinds
from mlc.ops.common import broadcast_load, check, check_float, check_same_dtype, wide
from mlc.ops.registry import operator, register

Formula = Callable[..., Expr]

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # ONNX, Selu


@dataclass(frozen=True)
class _Unary:
    """One row of the unary table: kinds of operand, formula over ``(x, attributes)``, attributes, result type."""

    kinds: str
    formula: Formula
    attrs: dict[str, Any] = field(default_factory=dict)
    result: DType | None = None
    through_f32: bool = True


def _max(a: Expr, b: Any) -> Expr:
    return binary("max", a, b)


def _min(a: Expr, b: Any) -> Expr:
    return binary("min", a, b)


def _softplus(x: Expr) -> Expr:
    # log(1 + e^x) without overflow for large x
    return _max(x, 0) + call("log", call("exp", -call("abs", x)) + 1)


def _gelu(x: Expr, approximate: str) -> Expr:
    if approximate == "tanh":
        return 0.5 * x * (1 + call("tanh", sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + call("erf", x * (1 / sqrt(2))))


def _elu(x: Expr, alpha: float) -> Expr:
    return select(binary("lt", x, 0), alpha * (call("exp", x) - 1), x)


def _selu(x: Expr, alpha: float, gamma: float) -> Expr:
    return gamma * select(binary("gt", x, 0), x, alpha * (call("exp", x) - 1))


def _celu(x: Expr, alpha: float) -> Expr:
    return _max(x, 0) + _min(alpha * (call("exp", x * (1 / alpha)) - 1), 0)


def _shrink(x: Expr, lambd: float, bias: float) -> Expr:
    v = x if x.dtype.is_float else cast(x, f64)
    shrunk = select(binary("lt", v, -lambd), v + bias, select(binary("gt", v, lambd), v - bias, 0.0))
    return cast(shrunk, x.dtype)


def _isinf(x: Expr, detect_positive: bool, detect_negative: bool) -> Expr:
    if detect_positive and detect_negative:
        return call("isinf", x)
    return binary("eq", x, inf if detect_positive else -inf)


def _clip(x: Expr, lo: float | None, hi: float | None) -> Expr:
    y = x if lo is None else _max(x, lo)
    return y if hi is None else _min(y, hi)


def _intrinsic(fn: str) -> Formula:
    return lambda x: call(fn, x)


_UNARY: dict[str, _Unary] = {
    **{
        fn: _Unary("f", _intrinsic(fn))
        for fn, (_, kinds, result) in INTRINSICS.items()
        if kinds == "f" and result is None
    },
    **{fn: _Unary("fiu", _intrinsic(fn), through_f32=False) for fn in ("neg", "abs", "sign")},
    "identity": _Unary("fiub", lambda x: x, through_f32=False),
    "not": _Unary("b", _intrinsic("not")),
    "bitwise_not": _Unary("iu", _intrinsic("not")),
    "nearest": _Unary("f", lambda x: call("nearest", wide(x)), result=i32, through_f32=False),
    "isnan": _Unary("f", _intrinsic("isnan"), result=boolean, through_f32=False),
    "isinf": _Unary("f", _isinf, {"detect_positive": True, "detect_negative": True}, result=boolean, through_f32=False),
    "reciprocal": _Unary("f", lambda x: 1 / x),
    "relu": _Unary("fiu", lambda x: _max(x, 0), through_f32=False),
    "clip": _Unary("fiu", _clip, {"lo": None, "hi": None}, through_f32=False),
    "leaky_relu": _Unary("f", lambda x, alpha: select(binary("lt", x, 0), alpha * x, x), {"alpha": 0.01}),
    "elu": _Unary("f", _elu, {"alpha": 1.0}),
    "selu": _Unary("f", _selu, {"alpha": _SELU_ALPHA, "gamma": _SELU_GAMMA}),
    "celu": _Unary("f", _celu, {"alpha": 1.0}),
    "hard_sigmoid": _Unary("f", lambda x, alpha, beta: _clip(alpha * x + beta, 0, 1), {"alpha": 0.2, "beta": 0.5}),
    "hard_swish": _Unary("f", lambda x: x * _clip(x * (1 / 6) + 0.5, 0, 1)),
    "softplus": _Unary("f", _softplus),
    "softsign": _Unary("f", lambda x: x / (1 + call("abs", x))),
    "mish": _Unary("f", lambda x: x * call("tanh", _softplus(x))),
    "gelu": _Unary("f", _gelu, {"approximate": "none"}),
    "swish": _Unary("f", lambda x, alpha: x * call("sigmoid", alpha * x), {"alpha": 1.0}),
    # written so that a NaN stays one
    "thresholded_relu": _Unary("f", lambda x, alpha: select(binary("le", x, alpha), 0, x), {"alpha": 1.0}),
    "shrink": _Unary("fiu", _shrink, {"lambd": 0.5, "bias": 0.0}),
}


def _check_unary_attrs(name: str, attrs: Attrs) -> None:
    if name == "gelu":
        check(attrs["approximate"] in ("none", "tanh"), name, f"approximate={attrs['approximate']!r}")
    elif name == "isinf":
        check(attrs["detect_positive"] or attrs["detect_negative"], name, "detects neither sign")
    elif name == "celu":
        check(attrs["alpha"] != 0, name, "alpha is 0")


def _register_unary(name: str, row: _Unary) -> Operator:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
        check_count(name, types, 1)
        check_kinds(name, types[0], row.kinds)
        _check_unary_attrs(name, attrs)
        return [TensorType(types[0].shape, row.result or types[0].dtype)]

    def element(x: Expr, attrs: Attrs) -> Expr:
        if not row.through_f32 or not x.dtype.is_float:
            return row.formula(x, **attrs)
        return cast(row.formula(wide(x), **attrs), x.dtype)

    def express(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
        (x,) = inputs
        return [te.compute(x.shape, lambda *i: element(x[i], attrs), name)]

    return register(Operator(name, FusionKind.INJECTIVE, infer, express, elementwise=True, attrs=row.attrs))


for _name, _row in _UNARY.items():
    _register_unary(_name, _row)


def _infer_cast(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("cast", types, 1)
    return [TensorType(types[0].shape, dtype_of(attrs["to"]))]


@operator("cast", FusionKind.INJECTIVE, _infer_cast, elementwise=True, to=...)
def _cast(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """Conversion to the element type called ``to``; see :class:`mlc.ir.expr.Cast`."""
    (x,) = inputs
    to = dtype_of(attrs["to"])
    return [te.compute(x.shape, lambda *i: cast(x[i], to), "cast")]


def _through_f32(fn: str) -> Formula:
    return lambda a, b: cast(binary(fn, wide(a), wide(b)), a.dtype)


def _operation(fn: str) -> Formula:
    return lambda a, b: binary(fn, a, b)


_BINARY: dict[str, Formula] = {fn: _operation(fn) for fn in BINARY} | {
    fn: _through_f32(fn) for fn in ("mod", "fmod", "pow")
}


def _register_binary(name: str, formula: Formula) -> Operator:
    kinds, gives_bool = BINARY[name]

    def infer(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
        check_count(name, types, 2)
        check_same_dtype(name, *types)
        check_kinds(name, types[0], kinds)
        return [TensorType(broadcast_shape(name, *types), boolean if gives_bool else types[0].dtype)]

    def express(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
        a, b = inputs
        shape = broadcast_shape(name, *[TensorType(t.shape, t.dtype) for t in inputs])
        return [te.compute(shape, lambda *i: formula(broadcast_load(a, i), broadcast_load(b, i)), name)]

    return register(Operator(name, FusionKind.INJECTIVE, infer, express, elementwise=True))


for _name, _formula in _BINARY.items():
    _register_binary(_name, _formula)


def _infer_prelu(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("prelu", types, 2)
    check_same_dtype("prelu", *types)
    check_kinds("prelu", types[0], "fiu")
    x, slope = types
    check(broadcast_shape("prelu", x, slope) == x.shape, "prelu", f"slope {slope} does not broadcast to {x}")
    return [x]


@operator("prelu", FusionKind.INJECTIVE, _infer_prelu, elementwise=True)
def _prelu(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``slope * x`` where x is negative; ``slope`` broadcasts to ``x``."""
    x, slope = inputs

    def element(*i: Any) -> Expr:
        return select(binary("lt", x[i], 0), broadcast_load(slope, i) * x[i], x[i])

    return [te.compute(x.shape, element, "prelu")]


def _infer_where(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("where", types, 3)
    check_kinds("where", types[0], "b", "condition")
    check_same_dtype("where", types[1], types[2])
    return [TensorType(broadcast_shape("where", *types), types[1].dtype)]


@operator("where", FusionKind.INJECTIVE, _infer_where, elementwise=True)
def _where(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``a`` where the condition holds, else ``b``."""
    shape = broadcast_shape("where", *[TensorType(t.shape, t.dtype) for t in inputs])
    return [te.compute(shape, lambda *i: select(*[broadcast_load(t, i) for t in inputs]), "where")]


def _infer_batch_norm(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("batch_norm", types, 5)
    x = types[0]
    check_float("batch_norm", x)
    check_same_dtype("batch_norm", *types)
    check(x.rank >= 2, "batch_norm", f"x has rank {x.rank}, at least 2 is needed")
    for what, t in zip(("scale", "bias", "mean", "variance"), types[1:], strict=True):
        check(t.shape == (x.shape[1],), "batch_norm", f"{what} has shape {list(t.shape)}, [{x.shape[1]}] is needed")
    return [x]


# not `elementwise`: the parameters run along axis 1, which is no numpy broadcast
@operator("batch_norm", FusionKind.INJECTIVE, _infer_batch_norm, epsilon=1e-5)
def _batch_norm(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``(x - mean) / sqrt(var + epsilon) * scale + bias`` with one parameter a channel (axis 1)."""
    x = inputs[0]

    def element(*i: Any) -> Expr:
        scale, bias, mean, var = (wide(t[i[1]]) for t in inputs[1:])
        y = (wide(x[i]) - mean) / call("sqrt", var + attrs["epsilon"]) * scale + bias
        return cast(y, x.dtype)

    return [te.compute(x.shape, element, "batch_norm")]
