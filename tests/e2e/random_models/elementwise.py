"""Random elementwise nodes: functions of one tensor, of two with broadcasting, comparisons, choices, casts."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tests.e2e.random_models.builder import Builder, Tensor, UnfitError

ANYWHERE = (
    "Relu", "Neg", "Abs", "Exp", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Softplus", "Softsign", "Mish",
    "HardSwish", "Floor", "Ceil", "Round", "Sign", "Atan", "Asinh", "Sinh", "Cosh", "Identity",
)  # fmt: skip
POSITIVE = ("Sqrt", "Log", "Reciprocal")
WITH_ALPHA = {"LeakyRelu": 0.1, "Elu": 0.7, "Celu": 1.3, "ThresholdedRelu": 0.4, "HardSigmoid": 0.3, "Selu": 1.5}
ARITHMETIC = ("Add", "Mul", "Sub", "Div", "Max", "Min")
COMPARISONS = ("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")
NUMBERS = tuple(np.dtype(t) for t in ("float32", "int64", "int32", "float16", "uint8", "float64", "int8"))


def is_number(t: Tensor) -> bool:
    return t.dtype in NUMBERS


def nothing(b: Builder) -> None:
    """The simplest step: what Hypothesis puts in the place of those that do not matter."""


def unary(b: Builder) -> None:
    op = b.one_of(ANYWHERE)
    b.add(op, [b.pick_floats()])


def unary_of_positive(b: Builder) -> None:
    """A function that is not defined everywhere, of a tensor that it is defined on."""
    op = b.one_of(POSITIVE)
    x = b.pick(lambda t: t.dtype == np.float32 and (t.value > 1e-3).all())
    b.add(op, [x])


def activation(b: Builder) -> None:
    op = b.one_of(list(WITH_ALPHA))
    b.add(op, [b.pick_floats()], alpha=None if b.flag() else WITH_ALPHA[op])


def gelu(b: Builder) -> None:
    b.add("Gelu", [b.pick_floats()], approximate="tanh" if b.flag() else None)


def shrink(b: Builder) -> None:
    b.add("Shrink", [b.pick_floats()], lambd=0.5, bias=b.one_of((0.0, 0.25)))


def clip(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in (np.float32, np.int64, np.int32), lambda: b.fresh(b.shape(2)))
    lo = b.given(np.array(-1, x.dtype), constant=True) if b.flag() else None
    hi = b.given(np.array(2, x.dtype), constant=None) if b.flag() else None
    b.add("Clip", [x, lo, hi])


def partner(b: Builder, x: Tensor, dtype: Any = None) -> Tensor:
    """An operand that broadcasts with ``x``: itself, another tensor, or a fresh one with some dimensions 1 or gone."""
    dtype = x.dtype if dtype is None else np.dtype(dtype)

    def fits(t: Tensor) -> bool:
        if t.dtype != dtype:
            return False
        try:
            return prod(np.broadcast_shapes(t.shape, x.shape)) <= 8000
        except ValueError:
            return False

    def fresh() -> Tensor:
        shape = [1 if b.flag(3) else n for n in x.shape][b.whole(0, x.rank) if b.flag() else 0 :]
        return b.fresh(shape, dtype)

    return b.pick(fits, fresh)


def in_some_order(b: Builder, *operands: Tensor) -> list[Tensor]:
    return b.shuffled(operands)


def binary(b: Builder) -> None:
    op = b.one_of(ARITHMETIC)
    x = b.pick(is_number, lambda: b.fresh(b.shape(b.whole(0, 4))))
    left, right = in_some_order(b, x, partner(b, x))
    least = 0.05 if right.dtype.kind == "f" else 1
    if op == "Div" and (np.abs(right.value) < least).any():
        raise UnfitError("division by (nearly) zero")
    if op == "Sub" and left is right and b.flag():
        raise UnfitError("zeros")
    b.add(op, [left, right])


def power(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype == np.float32 and (t.value > 1e-2).all() and (t.value < 20).all())
    exponent = b.given(np.array(b.one_of((2.0, 0.5, -1.0, 3.0, 1.7)), np.float32), constant=None)
    b.add("Pow", [x, exponent])


def modulo(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype.kind == "i", lambda: b.fresh(b.shape(2), np.int64))
    y = b.given(np.array(b.one_of((3, -4, 7)), x.dtype))
    b.add("Mod", [x, y], fmod=b.whole(0, 1))


def prelu(b: Builder) -> None:
    x = b.pick_floats((1, 2, 3, 4))
    shape = (x.shape[1], *[1] * (x.rank - 2)) if x.rank >= 2 and b.flag() else (1,)
    b.add("PRelu", [x, b.fresh(shape)])


def variadic(b: Builder) -> None:
    x = b.pick_floats()
    y = partner(b, x)
    b.add(b.one_of(("Sum", "Mean", "Max", "Min")), in_some_order(b, x, y, *([partner(b, x)] if b.flag() else [])))


def comparison(b: Builder) -> None:
    x = b.pick(is_number, lambda: b.fresh(b.shape(b.whole(0, 4))))
    b.add(b.one_of(COMPARISONS), in_some_order(b, x, partner(b, x)))


def is_nan(b: Builder) -> None:
    b.add(b.one_of(("IsNaN", "IsInf")), [b.pick_floats()])


def logical(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype == bool, lambda: b.fresh(b.shape(b.whole(0, 3)), bool))
    op = b.one_of(("And", "Or", "Xor", "Not"))
    b.add(op, [x] if op == "Not" else in_some_order(b, x, partner(b, x)))


def bitwise(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype.kind in "iu", lambda: b.fresh(b.shape(b.whole(0, 3)), np.int32))
    op = b.one_of(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"))
    b.add(op, [x] if op == "BitwiseNot" else in_some_order(b, x, partner(b, x)))


def shift(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype == np.uint8, lambda: b.fresh(b.shape(b.whole(0, 3)), np.uint8))
    y = b.given(np.array(b.whole(0, 7), np.uint8), constant=None)
    b.add("BitShift", [x, y], direction=b.one_of(("LEFT", "RIGHT")))


def where(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in (np.float32, np.int64, np.uint8), lambda: b.fresh(b.shape(b.whole(0, 4))))
    b.add("Where", [partner(b, x, bool), *in_some_order(b, x, partner(b, x))])


def cast(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in NUMBERS or t.dtype == bool, lambda: b.fresh(b.shape(b.whole(0, 4))))
    to = b.one_of([t for t in (*NUMBERS, np.dtype(bool)) if t != x.dtype])
    if x.dtype.kind == "f" and to.kind in "iu" and not (0 if to.kind == "u" else -100) <= x.value.min() <= 100:
        raise UnfitError("what lies outside has no defined integer")
    if x.dtype.kind == "f" and to.kind in "iu" and x.value.max() > 100:
        raise UnfitError("as above")
    from onnx import helper

    b.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(to))


def batch_norm(b: Builder) -> None:
    x = b.pick_floats((2, 3, 4, 5))
    scale, bias, mean = (b.fresh((x.shape[1],), constant=True) for _ in range(3))
    variance = b.given(np.abs(b.fresh((x.shape[1],), constant=True).value) + np.float32(0.5))
    b.add("BatchNormalization", [x, scale, bias, mean, variance], epsilon=b.one_of((None, 0.01)))


def residual(b: Builder) -> None:
    """Two tensors of one shape added or multiplied: what skips over layers, and gates."""
    x = b.pick_floats()
    y = b.pick(lambda t: t.dtype == x.dtype and t.shape == x.shape and t is not x)
    b.add(b.one_of(("Add", "Mul")), in_some_order(b, x, y))


def dropout(b: Builder) -> None:
    b.add("Dropout", [b.pick_floats()])


FAMILY: dict[str, Callable[[Builder], None]] = {
    f.__name__: f
    for f in (
        nothing, unary, binary, activation, unary_of_positive, gelu, shrink, clip, power, modulo, prelu, variadic,
        comparison, is_nan, logical, bitwise, shift, where, cast, batch_norm, dropout, residual,
    )
}  # fmt: skip
