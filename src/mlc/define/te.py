"""The language that elements of tensors are written in, as users import it: ``from mlc import te``.

A tensor is what ``compute`` says of its elements, over indices that may be added, multiplied by integers, divided by
them (``//``) and taken modulo (``%``). Sums and their like run over axes of ``reduce_axis``.

>>> from mlc.define import te
>>> from mlc.ir.types import f32
>>> a, b = te.placeholder((4, 8), f32, "a"), te.placeholder((8, 3), f32, "b")
>>> k = te.reduce_axis(8, "k")
>>> c = te.compute((4, 3), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
>>> print(c.op)
c[i:4, j:3] = sum(a[i, k] * b[k, j] for k in (8))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlc.errors import UsageError
from mlc.ir import te
from mlc.ir.expr import Expr, ExprLike, as_expr, binary, call, const
from mlc.ir.expr import cast as _cast
from mlc.ir.expr import select as _select
from mlc.ir.expr import within as inside
from mlc.ir.index import Var
from mlc.ir.te import Tensor, compute_many, placeholder
from mlc.ir.te import max_of as max
from mlc.ir.te import min_of as min
from mlc.ir.te import prod_of as prod
from mlc.ir.te import sum_of as sum
from mlc.ir.types import DType, dtype_of

compute = te.compute


def reduce_axis(extent: int, name: str = "r") -> Var:
    """An index that sums and their like run over: ``range(extent)``."""
    return te.reduce_axis(extent, name)


def combiner(
    combine: Callable[[Any, Any], Any], identity: float | tuple[float, ...], name: str = "fold"
) -> Callable[[Any, Var | Sequence[Var]], te.Reduction]:
    """A fold of one's own, which is used as ``sum`` is.

    Terms are folded in any order and grouping, so ``combine`` has to be associative and commutative. Its derivative
    folds all other terms for each one, so it takes as many operations as there are pairs of terms.

    Args:
        combine: takes what is folded so far and a term, gives what is folded then; tuples, where ``identity`` is one.
        identity: what changes nothing that it is combined with, itself included; a tuple where several values are
            folded together.
        name: for printing.
    Returns:
        a function of the term, or of a tuple of them, and of the axes to fold over.
    Raises:
        UsageError: the name is that of another fold; as it is used: terms or results are not what was said.

    >>> from mlc.ir.types import f32
    >>> either = combiner(lambda a, b: a + b - a * b, 0.0, "either")
    >>> p, k = placeholder((4, 8), f32, "p"), reduce_axis(8, "k")
    >>> print(compute((4,), lambda i: either(p[i, k], k), "any").op)
    any[i:4] = either(p[i, k] for k in (8))
    """
    if name in te.COMBINERS:
        raise UsageError(f"a fold is called {name!r} already", hint=f"other names than {', '.join(te.COMBINERS)}")
    many = isinstance(identity, tuple)
    begins = identity if isinstance(identity, tuple) else (identity,)

    def values(given: Any, what: str) -> tuple[Expr, ...]:
        found = tuple(map(as_expr, given if isinstance(given, tuple) else (given,)))
        if len(found) != len(begins):
            raise UsageError(f"{name}: {what} {len(found)} values, {len(begins)} are folded together")
        return found

    def combined(acc: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return values(combine(acc, new) if many else combine(*acc, *new), "combine gives")

    def fold(terms: Any, axes: Var | Sequence[Var]) -> te.Reduction:
        given = values(terms, "is given")
        types = [t.dtype for t in given]
        neutral = tuple(const(b, t) for b, t in zip(begins, types, strict=True))
        own = te.combiner_of(te.fold_of(te.Combiner(name, lambda _: neutral, combined), types))
        return te.Reduction(own, given, (axes,) if isinstance(axes, Var) else tuple(axes))

    return fold


def where(condition: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """``a`` where the condition holds, else ``b``; what is not chosen may lie outside of its tensor."""
    return _select(condition, a, b)


def cast(value: ExprLike, dtype: DType | str) -> Expr:
    """The value in another element type: ``"f32"``, ``"i64"`` …"""
    return _cast(value, dtype_of(dtype))


def number(value: ExprLike) -> Expr:
    """An index, or a number, as a value to compute with."""
    return as_expr(value)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The greater of two values."""
    return binary("max", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The lesser of two values."""
    return binary("min", a, b)


def power(a: ExprLike, b: ExprLike) -> Expr:
    """``a`` to the power of ``b``."""
    return binary("pow", a, b)


def equal(a: ExprLike, b: ExprLike) -> Expr:
    """Whether two values are equal."""
    return binary("eq", a, b)


def less(a: ExprLike, b: ExprLike) -> Expr:
    """Whether one value is less than another."""
    return binary("lt", a, b)


def exp(x: ExprLike) -> Expr:
    """The exponential of a value."""
    return call("exp", x)


def log(x: ExprLike) -> Expr:
    """The natural logarithm of a value."""
    return call("log", x)


def sqrt(x: ExprLike) -> Expr:
    """The square root of a value."""
    return call("sqrt", x)


def rsqrt(x: ExprLike) -> Expr:
    """One over the square root of a value."""
    return call("rsqrt", x)


def tanh(x: ExprLike) -> Expr:
    """The hyperbolic tangent of a value."""
    return call("tanh", x)


def sigmoid(x: ExprLike) -> Expr:
    """``1 / (1 + exp(-x))``."""
    return call("sigmoid", x)


def erf(x: ExprLike) -> Expr:
    """The error function of a value."""
    return call("erf", x)


def sin(x: ExprLike) -> Expr:
    """The sine of a value."""
    return call("sin", x)


def cos(x: ExprLike) -> Expr:
    """The cosine of a value."""
    return call("cos", x)


def abs(x: ExprLike) -> Expr:
    """A value without its sign."""
    return call("abs", x)


def floor(x: ExprLike) -> Expr:
    """The greatest whole number that is not greater."""
    return call("floor", x)


def relu(x: ExprLike) -> Expr:
    """``max(x, 0)``."""
    return maximum(x, 0.0)


__all__ = [
    "Tensor", "abs", "cast", "combiner", "compute", "compute_many", "cos", "equal", "erf", "exp", "floor", "inside",
    "less", "log", "max", "maximum", "min", "minimum", "number", "placeholder", "power", "prod", "reduce_axis", "relu",
    "rsqrt", "sigmoid", "sin", "sqrt", "sum", "tanh", "where",
]  # fmt: skip
