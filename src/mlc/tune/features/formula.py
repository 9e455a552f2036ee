"""Formulas over knobs, each distinct one evaluated once for a whole batch.

Extents and strides are combined by the thousand, and most combinations occur again and again; so they are built as one
graph, in which equal formulas are one object, and run as a list of array operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log2
from typing import Any

import numpy as np

from mlc.lower.symbolic import Sym, Term

_FLOAT: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "mod": lambda a, b: a % b,
    "least": min,
    "most": max,
    "at_least": lambda a, b: float(a >= b),
    "choose": lambda c, a, b: a if c else b,
    "ceil": lambda a: float(ceil(a)),
    "floor": lambda a: float(floor(a)),
    "abs": abs,
    "log": lambda a: log2(max(a, 1.0)),
}
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}  # right operands that change nothing
_ARRAY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "mod": np.mod,
    "least": np.minimum,
    "most": np.maximum,
    "at_least": np.greater_equal,
    "choose": lambda c, a, b: np.where(c, a, b),
    "ceil": np.ceil,
    "floor": np.floor,
    "abs": np.abs,
    "log": lambda a: np.log2(np.maximum(a, 1.0)),
}


class Formula:
    """A number that depends on knobs; made by a :class:`Formulas`, which never makes two equal ones."""

    __slots__ = ("args", "fn", "of")

    def __init__(self, of: Formulas, fn: str, args: tuple[Any, ...]) -> None:
        self.of, self.fn, self.args = of, fn, args

    def __add__(self, other: Any) -> Any:
        return self.of.call("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.of.call("add", self, other)

    def __sub__(self, other: Any) -> Any:
        return self.of.call("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.of.call("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.of.call("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.of.call("mul", self, other)

    def __truediv__(self, other: Any) -> Any:
        return self.of.call("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.of.call("div", other, self)

    def __mod__(self, other: Any) -> Any:
        return self.of.call("mod", self, other)

    def __abs__(self) -> Any:
        return self.of.call("abs", self)


class Formulas:
    """All formulas over the knobs of a template."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Formula] = {}

    def number(self, x: Any) -> Any:
        """A float for an ordinary number, a formula for a symbolic one."""
        if isinstance(x, Sym):
            return self._make("term", (x.term,), ("term", id(x.term)))
        return float(x)

    def call(self, fn: str, *args: Any) -> Any:
        """A function of numbers; of ordinary ones it is evaluated at once."""
        if len(args) == 2:  # nearly all are; a candidate's features take thousands of calls
            a, b = args
            if type(b) is not Formula:
                if type(a) is not Formula:
                    return _FLOAT[fn](a, b)
                if b == _NEUTRAL.get(fn):
                    return a
            elif type(a) is not Formula and fn in ("add", "mul"):
                a, b = b, a
                if b == _NEUTRAL[fn]:
                    return a
            if fn == "mul" and b == 0:
                return 0.0
            if a is b and fn in ("least", "most"):
                return a
            key = (fn, id(a) if type(a) is Formula else a, id(b) if type(b) is Formula else b)
            return self._make(fn, (a, b), key)
        if not any(type(a) is Formula for a in args):
            return _FLOAT[fn](*args)
        return self._make(fn, args, (fn, *(id(a) if type(a) is Formula else a for a in args)))

    def _make(self, fn: str, args: tuple[Any, ...], key: tuple[Any, ...]) -> Formula:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Formula(self, fn, args)
        return found


class Program:
    """Formulas as a list of array operations, over terms that are told when it is run.

    Args:
        order: all formulas that are needed, operands first.
        outputs: what is wanted; ordinary numbers too.
    """

    def __init__(self, order: Sequence[Formula], outputs: Sequence[Any]) -> None:
        # every term, number and result has a place: terms first, then plain numbers, then one result a step
        terms = [node for node in order if node.fn == "term"]
        rest = [node for node in order if node.fn != "term"]
        self._numbers = list(dict.fromkeys(a for node in rest for a in node.args if not isinstance(a, Formula)))
        place: dict[Any, int] = {a: len(terms) + k for k, a in enumerate(self._numbers)}
        place |= {node: k for k, node in enumerate(terms)}
        place |= {node: len(terms) + len(self._numbers) + k for k, node in enumerate(rest)}
        self._steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = [
            (_ARRAY[node.fn], tuple(place[a] for a in node.args)) for node in rest
        ]
        self._fixed = np.array([0.0 if isinstance(o, Formula) else float(o) for o in outputs])
        self._varying = [(k, place[o]) for k, o in enumerate(outputs) if isinstance(o, Formula)]

    def run(self, terms: Sequence[np.ndarray], into: np.ndarray) -> None:
        """Evaluates the formulas.

        Args:
            terms: float64 ``[N]`` each.
            into: where the outputs go, float64 ``[outputs, N]``.
        """
        found: list[Any] = [*terms, *self._numbers]
        for fn, at in self._steps:
            if len(at) == 2:  # nearly all; many small batches make this loop the whole cost
                found.append(fn(found[at[0]], found[at[1]]))
            else:
                found.append(fn(*(found[k] for k in at)))
        into[:] = self._fixed[:, None]
        for k, place in self._varying:
            into[k] = found[place]


class Programs:
    """Programs, one for all lists of formulas that are alike but for the terms in them.

    Orders of loops and choices of what to vectorise give the same formulas over other knobs. One program for all of
    them runs over all of their configurations at once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Program] = {}

    def of(self, outputs: Sequence[Any]) -> tuple[Program, tuple[Term, ...]]:
        """What evaluates some formulas and numbers, and the terms that it has to be told for them."""
        order = _in_order(outputs)
        place = {node: k for k, node in enumerate(order)}

        def named(x: Any) -> Any:
            return (place[x],) if isinstance(x, Formula) else x

        steps = (node.fn if node.fn == "term" else (node.fn, *map(named, node.args)) for node in order)
        key = (*steps, *map(named, outputs))
        program = self._known.get(key)
        if program is None:
            program = self._known[key] = Program(order, outputs)
        return program, tuple(node.args[0] for node in order if node.fn == "term")


def _in_order(outputs: Sequence[Any]) -> list[Formula]:
    """All formulas that some need, operands first, each once."""
    found: dict[Formula, None] = {}
    stack = [(o, False) for o in reversed(outputs) if isinstance(o, Formula)]
    while stack:
        node, ready = stack.pop()
        if node in found:
            continue
        if ready:
            found[node] = None
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in node.args if isinstance(a, Formula))
    return list(found)
