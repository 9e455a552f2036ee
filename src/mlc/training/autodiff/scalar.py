"""Derivatives of scalar expressions, backwards: from the derivative by a result to those by what it loads."""

from __future__ import annotations

import math
from collections.abc import Callable

from mlc.errors import UnsupportedError
from mlc.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    all_of,
    binary,
    call,
    cast,
    const,
    loads,
    select,
    walk,
)  # fmt: skip


def times(a: Expr, b: Expr) -> Expr:
    """``a * b``, where a choice against zero stays outermost.

    A product that is not chosen is zero, whatever its factors are there.
    """
    if _chosen(a):
        assert isinstance(a, Select)
        return select(a.cond, times(a.a, b), a.b)
    return binary("mul", a, b)


def chosen(cond: Expr, value: Expr) -> Expr:
    """``value if cond else 0``; a choice in a choice is one, unless it rests on what may only be read if ``cond``."""
    if isinstance(value, Select) and _chosen(value) and not loads(value.cond):
        return select(all_of([cond, value.cond]), value.a, value.b)
    return select(cond, value, const(0, value.dtype))


def _chosen(e: Expr) -> bool:
    return isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0


def by_loads(result: Expr, seed: Expr) -> list[tuple[Load, Expr]]:
    """``seed * d(result)/d(load)`` for every element of float type that a result depends on, once an element.

    At a corner, one of the derivatives beside it: of ``min`` and ``max`` of equal operands, the second one's. Steps
    (rounding, comparisons, conversions to integers) have derivative zero.

    Args:
        seed: the derivative by the result, of its type.
    Raises:
        UnsupportedError: a function has no derivative here.
    """
    nodes = walk(result)
    found: dict[int, Expr] = {id(result): seed}
    by_element: list[tuple[Load, Expr]] = []
    for node in reversed(nodes):
        derivative = found.pop(id(node), None)
        if derivative is None:
            continue
        if isinstance(node, Load):
            _gather(by_element, node, derivative)
            continue
        for operand, partial in _operands(node, derivative):
            if not operand.dtype.is_float or isinstance(operand, Const):
                continue
            old = found.get(id(operand))
            found[id(operand)] = partial if old is None else binary("add", old, partial)
    return by_element


def _gather(by_element: list[tuple[Load, Expr]], node: Load, derivative: Expr) -> None:
    for k, (other, old) in enumerate(by_element):
        if other.same_as(node):
            by_element[k] = other, binary("add", old, derivative)
            return
    by_element.append((node, derivative))


def _operands(e: Expr, d: Expr) -> list[tuple[Expr, Expr]]:
    """Operands with what the derivative ``d`` by a node is by each of them."""
    if isinstance(e, Binary):
        return _of_binary(e, d)
    if isinstance(e, Call):
        return _of_call(e, d)
    if isinstance(e, Cast):
        return [(e.a, cast(d, e.a.dtype))] if e.a.dtype.is_float and e.dtype.is_float else []
    if isinstance(e, Select):
        return [(e.a, chosen(e.cond, d)), (e.b, chosen(call("not", e.cond), d))]
    return []


def _of_binary(e: Binary, d: Expr) -> list[tuple[Expr, Expr]]:
    a, b = e.a, e.b
    if not e.dtype.is_float:
        return []
    if e.op == "add":
        return [(a, d), (b, d)]
    if e.op == "sub":
        return [(a, d), (b, _minus(d))]
    if e.op == "mul":
        return [(a, times(d, b)), (b, times(d, a))]
    if e.op == "div":
        return [(a, _over(d, b)), (b, _minus(_over(times(d, a), b * b)))]
    if e.op in ("min", "max"):
        first = binary("lt" if e.op == "min" else "gt", a, b)
        return [(a, chosen(first, d)), (b, chosen(call("not", first), d))]
    if e.op == "pow":
        slope = times(d, b * binary("pow", a, b - 1.0))
        growth = times(d, select(binary("gt", a, 0.0), e * call("log", a), 0.0))
        return [(a, slope), (b, growth)]
    if e.op in ("mod", "fmod"):
        whole = call("floor" if e.op == "mod" else "trunc", a / b)
        return [(a, d), (b, _minus(times(d, whole)))]
    raise UnsupportedError(f"{e.op} has no derivative")


def _minus(d: Expr) -> Expr:
    if isinstance(d, Select) and _chosen(d):
        return select(d.cond, _minus(d.a), d.b)
    return -d


def _over(d: Expr, b: Expr) -> Expr:
    if isinstance(d, Select) and _chosen(d):
        return select(d.cond, _over(d.a, b), d.b)
    return d / b


def _one_minus_square(x: Expr, y: Expr) -> Expr:
    return 1.0 - y * y


# function -> the derivative at x, where it is y
SLOPES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "exp": lambda x, y: y,
    "log": lambda x, y: 1.0 / x,
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: -0.5 * y / x,
    "tanh": _one_minus_square,
    "sigmoid": lambda x, y: y * (1.0 - y),
    "erf": lambda x, y: 2.0 / math.sqrt(math.pi) * call("exp", -(x * x)),
    "sin": lambda x, y: call("cos", x),
    "cos": lambda x, y: -call("sin", x),
    "tan": lambda x, y: 1.0 + y * y,
    "asin": lambda x, y: 1.0 / call("sqrt", 1.0 - x * x),
    "acos": lambda x, y: -1.0 / call("sqrt", 1.0 - x * x),
    "atan": lambda x, y: 1.0 / (1.0 + x * x),
    "sinh": lambda x, y: call("cosh", x),
    "cosh": lambda x, y: call("sinh", x),
    "asinh": lambda x, y: 1.0 / call("sqrt", x * x + 1.0),
    "acosh": lambda x, y: 1.0 / call("sqrt", x * x - 1.0),
    "atanh": lambda x, y: 1.0 / (1.0 - x * x),
    "neg": lambda x, y: const(-1, x.dtype),
    "abs": lambda x, y: call("sign", x),
}
STEPS = ("floor", "ceil", "round", "nearest", "trunc", "sign")


def _of_call(e: Call, d: Expr) -> list[tuple[Expr, Expr]]:
    if e.fn in STEPS or not e.dtype.is_float:
        return []
    (x,) = e.args
    if e.fn == "neg":
        return [(x, _minus(d))]
    slope = SLOPES.get(e.fn)
    if slope is None:
        raise UnsupportedError(f"{e.fn} has no derivative")
    return [(x, times(d, slope(x, e)))]
