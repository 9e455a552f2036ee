"""Formulas over knobs, each distinct one evaluated once for a whole batch.

Extents and strides are combined by the thousand, and most combinations occur again and again; so they are built as one
graph, in which equal formulas are one object, and run as a list of array operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log2
from typing import Any

import numpy as np

from mlc.lower.symbolic import Sym, Term, Values

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
    """Formulas as a list of array operations.

    Args:
        outputs: what is wanted; ordinary numbers too.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._place: dict[int, int] = {}
        self._steps: list[tuple[str, tuple[Any, ...]]] = []
        self._outputs = [self._visit(o) if isinstance(o, Formula) else float(o) for o in outputs]
        self._keep = list(outputs)

    def _visit(self, root: Formula) -> int:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if id(node) in self._place:
                continue
            if ready:
                operands = tuple(_At(self._place[id(a)]) if isinstance(a, Formula) else a for a in node.args)
                self._place[id(node)] = len(self._steps)
                self._steps.append((node.fn, operands))
            else:
                stack.append((node, True))
                stack.extend((a, False) for a in node.args if isinstance(a, Formula))
        return self._place[id(root)]

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, values: Values) -> np.ndarray:
        """float32 ``[outputs, N]``."""
        n = len(values.rows)
        found: list[Any] = []
        for fn, operands in self._steps:
            if fn == "term":
                (term,) = operands
                assert isinstance(term, Term)
                found.append(np.asarray(values.of(term), np.float64))
            else:
                found.append(_ARRAY[fn](*(found[a.at] if isinstance(a, _At) else a for a in operands)))
        result = np.empty((len(self._outputs), n), np.float32)
        for row, output in zip(result, self._outputs, strict=True):
            row[:] = found[output] if isinstance(output, int) else output
        return result


class _At:
    """The result of an earlier step."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at
