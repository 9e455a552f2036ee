"""Terms: numbers that depend on knobs, each distinct one built once and evaluated once for many configurations.

What a template counts are whole numbers (:mod:`mlc.lower.symbolic`); what is made of them for a cost model, extents and
strides above all, are real ones. Both are nodes of one graph, in which equal terms are one object.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log2
from typing import Any

import numpy as np

# functions of real numbers: of plain ones, and of arrays
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


class Term:
    """A number that depends on knobs; made by a :class:`Terms`. Its operators are those of real numbers.

    Attributes:
        of: the table that made it.
        fn: takes the values of ``args``, arrays or numbers; ``None`` for a knob's value.
        args: operands, terms or numbers.
        knob: name of the knob.
        part: index into a value of the knob that is a tuple, or the item whose place in an order is meant; ``None`` for
            the value itself.
        whole: whether it is a whole number of the template.
    """

    __slots__ = ("args", "fn", "knob", "of", "part", "whole")

    def __init__(
        self,
        of: Terms,
        fn: Callable[..., Any] | None,
        args: tuple[Any, ...],
        knob: str = "",
        part: int | str | None = None,
        whole: bool = False,
    ) -> None:
        self.of, self.fn, self.args, self.knob, self.part, self.whole = of, fn, args, knob, part, whole

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

    def __rmod__(self, other: Any) -> Any:
        return self.of.call("mod", other, self)

    def __abs__(self) -> Any:
        return self.of.call("abs", self)


class Terms:
    """All terms over the knobs of a template: equal ones are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Term] = {}

    def whole(
        self,
        fn: Callable[..., Any] | None,
        args: tuple[Any, ...] = (),
        knob: str = "",
        part: int | str | None = None,
    ) -> Term:
        """A whole number: a function of others, or a knob's value or a part of it."""
        key = (fn, tuple(id(a) if isinstance(a, Term) else (a,) for a in args), knob, part)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Term(self, fn, args, knob, part, whole=True)
        return found

    def call(self, fn: str, *args: Any) -> Any:
        """A function of real numbers by its name; of plain ones it is evaluated at once."""
        if len(args) == 2:  # nearly all are; a candidate's features take thousands of calls
            a, b = args
            if type(b) is not Term:
                if type(a) is not Term:
                    return _FLOAT[fn](a, b)
                if b == _NEUTRAL.get(fn):
                    return a
            elif type(a) is not Term and fn in ("add", "mul"):
                if a == _NEUTRAL[fn]:
                    return b
                a, b = b, a
            if fn == "mul" and type(b) is not Term and not b:
                return 0.0
            if a is b and fn in ("least", "most"):
                return a
            key = (fn, id(a) if type(a) is Term else a, id(b) if type(b) is Term else b)
            return self._real(fn, (a, b), key)
        if not any(type(a) is Term for a in args):
            return _FLOAT[fn](*args)
        return self._real(fn, args, (fn, *(id(a) if type(a) is Term else a for a in args)))

    def _real(self, fn: str, args: tuple[Any, ...], key: tuple[Any, ...]) -> Term:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Term(self, _ARRAY[fn], args)
        return found
