"""Symbolic sizes: one run of a template stands for all configurations that take the same way through it.

The template is run once with numbers that remember how they came about (:class:`Sym` is an ``int`` with an expression
over knobs). Every comparison whose outcome the template saw becomes a guard. For an array of configurations the guards
say which of them would have run the same way, and for those every split factor and extent is an array, evaluated from
its expression. So thousands of candidates are described from one schedule (AutoTVM's features need no more than that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np

from mlc.errors import ScheduleError
from mlc.lower.knobs import Config, Knobs, Space

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """An expression over knobs.

    Args:
        fn: takes the values of ``args``, arrays or numbers; ``None`` for a knob's value.
        args: operands, terms or numbers.
        knob: name of the knob, and which of its parts.
        part: index into a value that is a tuple; ``None`` for the value itself.
    """

    fn: Callable[..., Any] | None
    args: tuple[Any, ...] = ()
    knob: str = ""
    part: int | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison that the template has seen the outcome of."""

    left: Any
    right: Any
    compare: str
    outcome: bool


class Sym(int):
    """A number of a template under trace: its value in this run, and its expression over knobs."""

    term: Term
    trace: Tracer

    def __new__(cls, value: int, term: Term, trace: Tracer) -> Sym:
        self = super().__new__(cls, value)
        self.term = term
        self.trace = trace
        return self

    __hash__ = int.__hash__

    def __neg__(self) -> Sym:
        return Sym(-int(self), Term(_ARITHMETIC["sub"], (0, self.term)), self.trace)

    def __bool__(self) -> bool:
        return self != 0

    def __divmod__(self, other: int) -> tuple[Any, Any]:
        return self // other, self % other

    def __truediv__(self, other: float) -> float:
        return self.pinned() / (other.pinned() if isinstance(other, Sym) else other)

    def __rtruediv__(self, other: float) -> float:
        return other / self.pinned()

    def pinned(self) -> int:
        """The value of this run; other values take another way."""
        self.trace.guards.append(Guard(self.term, int(self), "eq", True))
        return int(self)


def _operand(x: int) -> Any:
    return x.term if isinstance(x, Sym) else int(x)


def _install() -> None:
    """Give :class:`Sym` the operators of the two tables."""

    def arithmetic(name: str, fn: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Sym, Any], Any]:
        def method(self: Sym, other: Any) -> Any:
            if not isinstance(other, int):  # a float: an estimate, no size
                return fn(other, self.pinned()) if swapped else fn(self.pinned(), other)
            a, b = (other, self) if swapped else (self, other)
            return Sym(fn(int(a), int(b)), Term(fn, (_operand(a), _operand(b))), self.trace)

        return method

    def comparison(name: str, fn: Callable[[Any, Any], Any]) -> Callable[[Sym, Any], Any]:
        def method(self: Sym, other: Any) -> Any:
            if not isinstance(other, (int, float)):
                return NotImplemented
            outcome = bool(fn(int(self), int(other) if isinstance(other, int) else other))
            right = _operand(other) if isinstance(other, int) else other
            self.trace.guards.append(Guard(self.term, right, name, outcome))
            return outcome

        return method

    for name, fn in _ARITHMETIC.items():
        setattr(Sym, f"__{name}__", arithmetic(name, fn, swapped=False))
        setattr(Sym, f"__r{name}__", arithmetic(name, fn, swapped=True))
    for name, fn in _COMPARISONS.items():
        setattr(Sym, f"__{name}__", comparison(name, fn))


_install()


def opaque(fn: Callable[..., int]) -> Callable[..., int]:
    """Let a function of numbers be one step of a trace, without a guard for each comparison inside it."""

    @wraps(fn)
    def call(*args: int) -> int:
        traced = next((a for a in args if isinstance(a, Sym)), None)
        if traced is None:
            return fn(*args)
        value = fn(*(int(a) if isinstance(a, int) else a for a in args))
        each = np.vectorize(fn, otypes=[np.int64])
        term = Term(each, tuple(_operand(a) if isinstance(a, int) else a for a in args))
        return Sym(value, term, traced.trace)

    return call


class Tracer(Knobs):
    """Knobs that answer with symbolic numbers.

    Attributes:
        guards: what the template has compared so far, in order.
    """

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self.guards: list[Guard] = []

    def _ask(self, knob: Any, default: Any) -> Any:
        value = super()._ask(knob, plain(default))
        if isinstance(value, (bool, str, float)):
            return self._fixed(knob.name, value)
        if isinstance(value, tuple):
            if all(isinstance(v, int) for v in value) and hasattr(knob, "extent"):
                return tuple(Sym(v, Term(None, (), knob.name, k), self) for k, v in enumerate(value))
            return self._fixed(knob.name, value)
        return Sym(value, Term(None, (), knob.name), self)

    def _fixed(self, name: str, value: Any) -> Any:
        """A value that is no number: the template may do anything with it, so it is a guard."""
        self.guards.append(Guard(Term(None, (), name), value, "eq", True))
        return value


def plain(value: Any) -> Any:
    """A value with ordinary numbers for symbolic ones, without a guard."""
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    return int(value) if isinstance(value, Sym) else value


@dataclass
class Values:
    """Values of terms for many configurations.

    Args:
        space: what the rows index.
        rows: int64 ``[N, knobs]``.
    """

    space: Space
    rows: np.ndarray
    _known: dict[int, Any] = field(default_factory=dict)
    _keep: list[Term] = field(default_factory=list)

    def of(self, x: Any) -> Any:
        """An int64 array ``[N]`` for a symbolic number or term, a number for a plain one."""
        term = x.term if isinstance(x, Sym) else x
        if not isinstance(term, Term):
            return term
        found = self._known.get(id(term))
        if found is None:
            if term.fn is None:
                found = self.space.column(self.rows, term.knob, term.part)
            else:
                found = term.fn(*(self.of(a) for a in term.args))
            self._known[id(term)] = found
            self._keep.append(term)
        return found

    def agree(self, guards: Sequence[Guard]) -> np.ndarray:
        """Which configurations give every guard its outcome: bool ``[N]``."""
        good = np.ones(len(self.rows), bool)
        for g in guards:
            if isinstance(g.right, (str, tuple)) or (isinstance(g.right, bool) and isinstance(g.left, Term)):
                good &= self._is(g.left, g.right) == g.outcome
            else:
                good &= np.broadcast_to(_COMPARISONS[g.compare](self.of(g.left), self.of(g.right)), good.shape) == (
                    g.outcome
                )
            if not good.any():
                break
        return good

    def _is(self, term: Term, value: Any) -> np.ndarray:
        """Whether a knob has a value that is no number."""
        at = next(k for k, knob in enumerate(self.space.knobs) if knob.name == term.knob)
        index = next(k for k, v in enumerate(self.space.knobs[at].values) if v == value)
        same: np.ndarray = self.rows[:, at] == index
        return same


@dataclass(frozen=True, eq=False)
class Way:
    """One way through a template.

    Args:
        result: what the template gave, with symbolic numbers inside; ``None`` where it refused the configuration.
        guards: what tells that a configuration goes this way.
    """

    result: Any
    guards: tuple[Guard, ...]


class Ways:
    """All ways through a template that have been needed so far.

    Args:
        template: takes knobs.
        space: its space.
    """

    def __init__(self, template: Callable[[Knobs], Any], space: Space) -> None:
        self._template = template
        self.space = space
        self.known: list[Way] = []

    def split(self, rows: np.ndarray) -> list[tuple[Way, np.ndarray]]:
        """The configurations by the way that they take.

        Args:
            rows: int64 ``[N, knobs]``.
        Returns:
            ways with the indices of their rows; every row is in exactly one.
        """
        left = np.arange(len(rows))
        found = []
        at = 0
        while len(left):
            if at == len(self.known):
                self.known.append(self._run(self.space.config(rows[left[0]])))
            way = self.known[at]
            at += 1
            same = Values(self.space, rows[left]).agree(way.guards)
            if same.any():
                found.append((way, left[same]))
                left = left[~same]
        return found

    def _run(self, config: Mapping[str, Any]) -> Way:
        tracer = Tracer(config)
        try:
            result = self._template(tracer)
        except ScheduleError:
            result = None
        return Way(result, tuple(tracer.guards))
