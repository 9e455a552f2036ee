"""Symbolic sizes: one run of a template stands for all configurations that take the same way through it.

The template is run once with numbers that remember how they came about (:class:`Sym` is an ``int`` with an expression
over knobs). Every comparison whose outcome the template saw becomes a guard. For an array of configurations the guards
say which of them would have run the same way, and for those every split factor and extent is an array, evaluated from
its expression. So thousands of candidates are described from one schedule (AutoTVM's features need no more than that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np

from mlc.errors import ScheduleError
from mlc.lower.knobs import Config, Factors, Knob, Knobs, Permutation, Space
from mlc.lower.terms import Term, Terms


def _divisor(b: Any) -> Any:
    """An array is divided by before the guard that keeps zeros away is looked at."""
    return np.where(b == 0, 1, b) if isinstance(b, np.ndarray) else b


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // _divisor(b),
    "mod": lambda a, b: a % _divisor(b),
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


@dataclass(frozen=True, slots=True)
class Guard:
    """Something that the template has found out about the configuration.

    Args:
        left: a term.
        compare: a comparison of it with ``right``; ``is`` where the template has looked at the value itself.
        right: a term or a number.
        outcome: what the template has seen: true or false, or the value.
    """

    left: Term
    compare: str
    right: Any
    outcome: Any

    @property
    def question(self) -> tuple[int, str, Any]:
        """What was asked, whatever the answer; runs that agree so far ask the same next."""
        return id(self.left), self.compare, id(self.right) if isinstance(self.right, Term) else self.right


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
        return self.trace.number(-int(self), _ARITHMETIC["sub"], (0, self.term))

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
        self.trace.guards.append(Guard(self.term, "is", None, int(self)))
        return int(self)


class _Name(str):
    """A value of a category under trace: which one it is becomes a guard once that matters."""

    guard: Guard
    trace: Tracer

    def __new__(cls, value: str, guard: Guard, trace: Tracer) -> _Name:
        self = super().__new__(cls, value)
        self.guard, self.trace = guard, trace
        return self

    def __eq__(self, other: object) -> bool:
        self.trace.guards.append(self.guard)
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self.trace.guards.append(self.guard)
        return str.__hash__(self)


class _Order(tuple[Any, ...]):
    """An order of items under trace. Places are symbolic, so that items are compared without a look at the others."""

    knob: str
    trace: Tracer
    guard: Guard

    def __new__(cls, value: tuple[Any, ...], knob: str, guard: Guard, trace: Tracer) -> _Order:
        self = super().__new__(cls, value)
        self.knob, self.guard, self.trace = knob, guard, trace
        return self

    def index(self, item: Any, *more: Any) -> int:
        return self.trace.number(super().index(item, *more), None, (), self.knob, item)

    def _whole(self) -> tuple[Any, ...]:
        self.trace.guards.append(self.guard)
        return tuple(super().__iter__())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._whole())

    def __getitem__(self, at: Any) -> Any:
        return self._whole()[at]

    def __eq__(self, other: object) -> bool:
        return self._whole() == other

    def __ne__(self, other: object) -> bool:
        return self._whole() != other

    def __hash__(self) -> int:
        return hash(self._whole())


def _operand(x: int) -> Any:
    return x.term if isinstance(x, Sym) else int(x)


def _install() -> None:
    """Give :class:`Sym` the operators of the two tables."""

    def arithmetic(name: str, fn: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Sym, Any], Any]:
        def method(self: Sym, other: Any) -> Any:
            if not isinstance(other, int):  # a float: an estimate, no size
                return fn(other, self.pinned()) if swapped else fn(self.pinned(), other)
            a, b = (other, self) if swapped else (self, other)
            return self.trace.number(fn(int(a), int(b)), fn, (_operand(a), _operand(b)))

        return method

    def comparison(name: str, fn: Callable[[Any, Any], Any]) -> Callable[[Sym, Any], Any]:
        def method(self: Sym, other: Any) -> Any:
            if not isinstance(other, (int, float)):
                return NotImplemented
            outcome = bool(fn(int(self), int(other) if isinstance(other, int) else other))
            right = _operand(other) if isinstance(other, int) else other
            self.trace.guards.append(Guard(self.term, name, right, outcome))
            return outcome

        return method

    for name, fn in _ARITHMETIC.items():
        setattr(Sym, f"__{name}__", arithmetic(name, fn, swapped=False))
        setattr(Sym, f"__r{name}__", arithmetic(name, fn, swapped=True))
    for name, fn in _COMPARISONS.items():
        setattr(Sym, f"__{name}__", comparison(name, fn))


_install()


def opaque(fn: Callable[..., int], of_arrays: Callable[..., Any] | None = None) -> Callable[..., int]:
    """Let a function of numbers be one step of a trace, without a guard for each comparison inside it.

    Args:
        fn: the function.
        of_arrays: the same of arrays, where there is such.
    """
    each = np.vectorize(fn, otypes=[np.int64]) if of_arrays is None else of_arrays

    @wraps(fn)
    def call(*args: int) -> int:
        traced = next((a for a in args if isinstance(a, Sym)), None)
        if traced is None:
            return fn(*args)
        return traced.trace.number(fn(*map(int, args)), each, tuple(map(_operand, args)))

    return call


least = opaque(min, np.minimum)  # the smaller of two sizes
most = opaque(max, np.maximum)


def several(iterations: int) -> bool:
    """Whether a loop that may be left out is there: it has more than one iteration.

    Under a trace every such loop is there, of one iteration or more, so that both go the same way.
    """
    return isinstance(iterations, Sym) or iterations > 1


def assumed(choice: bool) -> bool:
    """A choice that no loop depends on; a trace takes it for made, so that both ways are one."""
    return isinstance(choice, Sym) or choice


def pinned(x: int) -> int:
    """A number as it is in this run; configurations with another one take another way."""
    return x.pinned() if isinstance(x, Sym) else x


class Tracer(Knobs):
    """Knobs that answer with symbolic numbers.

    Args:
        config: the configuration of this run; a knob that it does not name is fixed, whatever else is chosen.
        terms: all terms so far, so that equal ones of several runs are one object.
        fixed: knobs of the space that have one value in all of it. Where the template would have several, as of a
            layout under which loops are searched, it gets that value as it is, and traces nothing that follows of it.

    Attributes:
        guards: what the template has found out so far, in order.
    """

    def __init__(
        self, config: Config | None = None, terms: Terms | None = None, fixed: Mapping[str, Knob] | None = None
    ) -> None:
        super().__init__(config)
        self.guards: list[Guard] = []
        self._terms = Terms() if terms is None else terms
        self._fixed = {} if fixed is None else fixed

    def number(
        self,
        value: int,
        fn: Callable[..., Any] | None,
        args: tuple[Any, ...] = (),
        knob: str = "",
        part: int | str | None = None,
    ) -> Sym:
        """A number with its term."""
        return Sym(value, self._terms.whole(fn, args, knob, part), self)

    def _ask(self, knob: Any, default: Any) -> Any:
        if knob.name not in self.config:  # nobody can choose it
            default = default() if callable(default) else default
            super()._ask(knob, plain(default))
            return default
        if callable(default):  # what it would be untuned is no matter
            default = knob.values[0]
        value = super()._ask(knob, plain(default))
        if self._fixed.get(knob.name, knob) != knob:
            return value
        if isinstance(value, tuple) and isinstance(knob, Factors):
            return tuple(self.number(v, None, (), knob.name, k) for k, v in enumerate(value))
        if isinstance(value, int):
            return self.number(value, None, (), knob.name)
        guard = Guard(self.number(0, None, (), knob.name).term, "is", None, value)
        if isinstance(knob, Permutation):
            return _Order(value, knob.name, guard, self)
        if isinstance(value, str):
            return _Name(value, guard, self)
        self.guards.append(guard)  # the template may do anything with what is no number
        return value


def real(x: int) -> Any:
    """A real number for formulas: a float for an ordinary number, its term for a symbolic one."""
    return x.term if isinstance(x, Sym) else float(x)


def plain(value: Any) -> Any:
    """A value with ordinary numbers for symbolic ones, without a guard."""
    if isinstance(value, _Name):
        return str.__str__(value)
    if isinstance(value, tuple):
        return tuple(plain(v) for v in tuple.__iter__(value))
    return int(value) if isinstance(value, Sym) else value


@dataclass(eq=False)
class Values:
    """Values of terms for many configurations, each term evaluated once.

    Args:
        space: what the rows index.
        rows: int64 ``[N, knobs]``.
    """

    space: Space
    rows: np.ndarray
    _known: dict[int, Any] = field(default_factory=dict)
    _answers: dict[tuple[int, str, Any], Any] = field(default_factory=dict)

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
        return found

    def answers(self, guard: Guard, at: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        """What some configurations answer to a guard's question.

        Args:
            guard: whose question.
            at: indices of the configurations, int64 ``[n]``, at least one.
        Returns:
            each outcome, with the indices of those that give it.
        """
        if guard.compare == "is":
            return self._values_of(guard.left, at)
        found = self._answers.get(guard.question)  # many ways ask the same
        if found is None:
            found = _COMPARISONS[guard.compare](self.of(guard.left), self.of(guard.right))
            self._answers[guard.question] = found
        if not isinstance(found, np.ndarray):
            return [(bool(found), at)]
        mine = found[at]
        # nearly always all answer alike
        yes = int(np.count_nonzero(mine))
        if yes in (0, len(at)):
            return [(yes > 0, at)]
        return [(False, at[~mine]), (True, at[mine])]

    def all_answer(self, guard: Guard, at: np.ndarray) -> bool:
        """Whether some configurations all answer as the guard's run did."""
        return [outcome for outcome, _ in self.answers(guard, at)] == [guard.outcome]

    def _values_of(self, term: Term, at: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        knob = next((k for k, knob in enumerate(self.space.knobs) if knob.name == term.knob), None)
        whole = term.fn is None and term.part is None and knob is not None
        numbers = self.rows[at, knob] if whole else np.broadcast_to(self.of(term), len(self.rows))[at]
        outcomes: Any = self.space.knobs[knob].values if whole and knob is not None else None
        distinct = [numbers[0]] if (numbers == numbers[0]).all() else np.unique(numbers)
        return [
            (n.item() if outcomes is None else outcomes[n], at if len(distinct) == 1 else at[numbers == n])
            for n in distinct
        ]


@dataclass(frozen=True, eq=False)
class Way:
    """One way through a template.

    Args:
        result: what the template gave, with symbolic numbers inside; ``None`` where it refused the configuration.
        guards: what tells that a configuration goes this way.
    """

    result: Any
    guards: tuple[Guard, ...]


class _Stretch:
    """Questions that were always answered alike so far, and what comes then: a question that was not, or the end.

    Args:
        alike: guards whose outcomes are those answers.
        way: the end.

    Attributes:
        guard: the question that follows; nothing at the end.
        ways: where its answers lead.
        tests: for some knobs, which of their values answer everything in ``alike`` that depends on that knob alone, and
            the other guards of ``alike``; nothing until it is needed.
    """

    def __init__(self, alike: Sequence[Guard], way: Way | None) -> None:
        self.alike = alike
        self.way = way
        self.guard: Guard | None = None
        self.ways: dict[Any, _Stretch] = {}
        self.tests: tuple[list[tuple[int, np.ndarray]], list[Guard]] | None = None

    def cut(self, at: int) -> None:
        """Some configuration answers number ``at`` of ``alike`` differently."""
        guard = self.alike[at]
        rest = _Stretch(self.alike[at + 1 :], self.way)
        rest.guard, rest.ways = self.guard, self.ways
        self.alike, self.way, self.guard, self.ways = self.alike[:at], None, guard, {guard.outcome: rest}
        self.tests = None


class _Tables:
    """What the values of single knobs answer; most questions are about one knob, and it has few values."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._places = {knob.name: k for k, knob in enumerate(space.knobs)}
        self._values: dict[int, Values] = {}
        self._knobs: dict[int, frozenset[int]] = {}
        self._known: dict[tuple[Any, ...], tuple[int, np.ndarray] | None] = {}

    def of(self, guard: Guard) -> tuple[int, np.ndarray] | None:
        """The knob that a guard's answer depends on and which of its values give it, bool ``[values]``.

        Nothing where it depends on several.
        """
        key = (guard.question, guard.outcome)
        if key not in self._known:
            knobs = self._behind(guard.left) | self._behind(guard.right)
            self._known[key] = self._answers(guard, *knobs) if len(knobs) == 1 else None
        return self._known[key]

    def _behind(self, x: Any) -> frozenset[int]:
        """Knobs that a term depends on."""
        if not isinstance(x, Term):
            return frozenset()
        found = self._knobs.get(id(x))
        if found is None:
            knobs = [self._behind(a) for a in x.args] if x.fn is not None else [{self._places[x.knob]}]
            found = self._knobs[id(x)] = frozenset().union(*knobs)
        return found

    def _answers(self, guard: Guard, k: int) -> tuple[int, np.ndarray]:
        values = self._values.get(k)
        if values is None:
            rows = np.zeros((len(self._space.knobs[k].values), len(self._space.knobs)), np.int64)
            rows[:, k] = np.arange(len(rows))
            values = self._values[k] = Values(self._space, rows)
        found = np.zeros(len(values.rows), bool)
        for outcome, at in values.answers(guard, np.arange(len(found))):
            found[at] = outcome == guard.outcome
        return k, found


class Ways:
    """All ways through a template that have been needed so far, as a tree of questions.

    Args:
        template: takes knobs, and must ask the same questions whenever it got the same answers.
        space: its space.

    Attributes:
        terms: all that numbers of its results are made of.
    """

    def __init__(self, template: Callable[[Knobs], Any], space: Space) -> None:
        self._template = template
        self._root: _Stretch | None = None
        self.terms = Terms()
        self._tables = _Tables(space)
        self._fixed = {k.name: k for k in space.knobs if len(k.values) == 1}
        self.space = space
        self.count = 0

    def split(self, rows: np.ndarray) -> list[tuple[Way, np.ndarray]]:
        """The configurations by the way that they take.

        Args:
            rows: int64 ``[N, knobs]``.
        Returns:
            ways with the indices of their rows; every row is in exactly one.
        """
        if not len(rows):
            return []
        values = Values(self.space, rows)
        if self._root is None:
            self._root = self._run(rows[0], 0)
        found: list[tuple[Way, np.ndarray]] = []
        work: list[tuple[_Stretch, int, np.ndarray]] = [(self._root, 0, np.arange(len(rows)))]
        while work:
            node, depth, at = work.pop()
            if node.alike and not self._alike(node, values, at):
                node.cut(self._first(node, values, at))
            if node.guard is None:
                assert node.way is not None
                found.append((node.way, at))
                continue
            depth += len(node.alike) + 1
            for outcome, some in values.answers(node.guard, at):
                if outcome not in node.ways:
                    node.ways[outcome] = self._run(rows[some[0]], depth)
                work.append((node.ways[outcome], depth, some))
        return found

    def _alike(self, node: _Stretch, values: Values, at: np.ndarray) -> bool:
        """Whether some configurations answer a node's questions as those before them did."""
        if node.tests is None:
            found: dict[int, np.ndarray] = {}
            others = []
            for guard in node.alike:
                known = self._tables.of(guard)
                if known is None:
                    others.append(guard)
                else:
                    k, answers = known
                    found[k] = found[k] & answers if k in found else answers
            node.tests = [(k, table) for k, table in found.items() if not table.all()], others
        tables, others = node.tests
        return all(table[values.rows[at, k]].all() for k, table in tables) and all(
            values.all_answer(guard, at) for guard in others
        )

    def _first(self, node: _Stretch, values: Values, at: np.ndarray) -> int:
        """Which of a node's questions is the first that some of the configurations answer differently."""
        chosen: dict[int, np.ndarray] = {}
        for number, guard in enumerate(node.alike):
            known = self._tables.of(guard)
            if known is None:
                alike = values.all_answer(guard, at)
            else:
                k, answers = known
                if k not in chosen:
                    chosen[k] = np.unique(values.rows[at, k])
                alike = answers[chosen[k]].all()
            if not alike:
                return number
        raise AssertionError("they answer all of them alike")

    def _run(self, row: np.ndarray, depth: int) -> _Stretch:
        """Traces a configuration; gives the part of its way after ``depth`` questions."""
        tracer = Tracer(self.space.config(row), self.terms, self._fixed)
        try:
            result = self._template(tracer)
        except ScheduleError:
            result = None
        self.count += 1
        return _Stretch(tracer.guards[depth:], Way(result, tuple(tracer.guards)))
