"""Formulas over knobs, each distinct one evaluated once for a whole batch.

Extents and strides are combined by the thousand, and most combinations occur again and again; so they are built as one
graph, in which equal formulas are one object, and run as a list of array operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log2
from typing import Any

import numpy as np

from mlc.lower.symbolic import Sym, Values

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
        # every number and every result has a place: plain numbers first, then one result a step
        self._numbers: dict[float, int] = {}
        order = _in_order(outputs)
        for node in order:
            for a in node.args if node.fn != "term" else ():
                if not isinstance(a, Formula):
                    self._numbers.setdefault(a, len(self._numbers))
        place = {id(node): len(self._numbers) + k for k, node in enumerate(order)}
        self._steps: list[tuple[Callable[..., Any] | None, Any]] = []
        for node in order:
            if node.fn == "term":
                self._steps.append((None, node.args[0]))
            else:
                at = tuple(place[id(a)] if isinstance(a, Formula) else self._numbers[a] for a in node.args)
                self._steps.append((_ARRAY[node.fn], at))
        self._fixed = np.array([0.0 if isinstance(o, Formula) else float(o) for o in outputs], np.float32)
        self._varying = [(k, place[id(o)]) for k, o in enumerate(outputs) if isinstance(o, Formula)]
        self._keep = list(outputs)

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, values: Values) -> np.ndarray:
        """float32 ``[outputs, N]``."""
        found: list[Any] = list(self._numbers)
        for fn, at in self._steps:
            if fn is None:
                found.append(np.asarray(values.of(at), np.float64))
            elif len(at) == 2:  # nearly all; many small batches make this loop the whole cost
                found.append(fn(found[at[0]], found[at[1]]))
            else:
                found.append(fn(*(found[k] for k in at)))
        result = np.repeat(self._fixed[:, None], len(values.rows), axis=1)
        for k, at in self._varying:
            result[k] = found[at]
        return result


def _in_order(outputs: Sequence[Any]) -> list[Formula]:
    """All formulas that some need, operands first, each once."""
    found: dict[int, Formula] = {}
    stack = [(o, False) for o in reversed(outputs) if isinstance(o, Formula)]
    while stack:
        node, ready = stack.pop()
        if id(node) in found:
            continue
        if ready:
            found[id(node)] = node
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in node.args if isinstance(a, Formula))
    return list(found.values())
