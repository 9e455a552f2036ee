"""Rewriting rules: a name, a pattern written as text, and a builder.

A pattern reads like the text of the graph::

    batch_norm(conv|conv_transpose!(x, #w), #scale, #bias, #mean, #var)

======================  ==============================================================================
``x``                   any value; the same name twice must meet the same value
``#w``                  a constant
``0.5``                 a constant of one element, equal to within 0.1 % (constants rounded to f16 count)
``op(…)``               the only result of that operator; ``a|b(…)`` of either one
``op!(…)``              … that nothing else reads
``d=op(…)``             … which is called ``d`` from here on
``op(x, …)``            further operands may follow
``elementwise(…)``      any operator that works on each element alone
======================  ==============================================================================

Operands of commutative operators match in either order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.errors import UsageError
from mlc.ir.graph import Graph, Node, Value
from mlc.ops.registry import is_core
from mlc.rewrite.rewriter import Rewriter, replay

COMMUTATIVE = frozenset({"add", "mul", "min", "max", "and", "or", "xor", "eq", "ne"})
ELEMENTWISE = "elementwise"
LITERAL_TOLERANCE = 1e-3  # half precision keeps 11 bits
MAX_ROUNDS = 4  # replays of one rule set; each must have changed something

_INNER = "@"  # starts the names of matched applications in an environment
Env = Mapping[str, Value]


@dataclass(frozen=True)
class AnyValue:
    """``x``, or ``#x`` when it must be a constant."""

    name: str
    constant: bool = False


@dataclass(frozen=True)
class Literal:
    """A constant of one element."""

    value: float


@dataclass(frozen=True)
class Call:
    """An application of one of ``ops``."""

    ops: tuple[str, ...]
    args: tuple[Pattern, ...]
    rest: bool = False
    once: bool = False
    label: str = ""


Pattern = AnyValue | Literal | Call
_TOKEN = re.compile(r"\s*(?:(…)|(#?[A-Za-z_]\w*)|(-?\d+(?:\.\d+)?(?:e-?\d+)?)|([(),|!=]))")


def parse_pattern(text: str) -> Call:
    """The pattern that a text stands for; its outermost part must be an application.

    Raises:
        UsageError: the text cannot be read.
    """
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise UsageError(f"pattern {text!r}: cannot read {text[at:]!r}")
        tokens.append(found.group().strip())
        at = found.end()
    tokens.append("")
    result = _Parser(text, tokens).pattern()
    if not isinstance(result, Call) or len(tokens) != 1:
        raise UsageError(f"pattern {text!r}: one application is wanted")
    return result


class _Parser:
    """Recursive descent over ``tokens``, which it consumes."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text = text
        self.tokens = tokens

    def take(self, expected: str = "") -> str:
        token = self.tokens.pop(0)
        if not token or (expected and token != expected):
            raise UsageError(f"pattern {self.text!r}: {expected or 'more'} expected, found {token or 'the end'}")
        return token

    def skip(self, token: str) -> bool:
        if self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def pattern(self) -> Pattern:
        token = self.take()
        if token.startswith("#"):
            return AnyValue(token[1:], constant=True)
        if token[0].isdigit() or token[0] == "-":
            return Literal(float(token))
        label = ""
        if self.skip("="):
            label, token = token, self.take()
        ops = [token]
        while self.skip("|"):
            ops.append(self.take())
        once = self.skip("!")
        if not self.skip("("):
            if label or once or len(ops) > 1:
                raise UsageError(f"pattern {self.text!r}: operands of {'|'.join(ops)} are missing")
            return AnyValue(token)
        args: list[Pattern] = []
        rest = False
        while not self.skip(")"):
            if args or rest:
                self.take(",")
            if self.skip("…"):
                rest = True
            else:
                args.append(self.pattern())
        return Call(tuple(ops), tuple(args), rest, once, label)


@dataclass(frozen=True)
class Match:
    """Where a pattern fits.

    Args:
        root: the node that the outermost application matched.
        values: what each name stands for.
    """

    root: Node
    values: Env

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def inner(self, rw: Rewriter) -> list[Node]:
        """The matched nodes below the root."""
        makers = [rw.maker(v) for name, v in self.values.items() if name.startswith(_INNER)]
        return [n for n in makers if n is not None]


def match(pattern: Call, node: Node, rewriter: Rewriter) -> Iterator[Match]:
    """Every way in which the pattern fits the node."""
    for env in _operands(pattern, node, {}, rewriter):
        yield Match(node, env)


def _operands(pattern: Call, node: Node, env: Env, rw: Rewriter) -> Iterator[Env]:
    given, wanted = node.inputs, pattern.args
    if len(given) < len(wanted) or (len(given) > len(wanted) and not pattern.rest):
        return
    yield from _sequence(wanted, given, env, rw)
    if node.op.name in COMMUTATIVE and len(wanted) == 2 and given[0] is not given[1]:
        yield from _sequence(wanted, (given[1], given[0]), env, rw)


def _sequence(wanted: Sequence[Pattern], given: Sequence[Value], env: Env, rw: Rewriter) -> Iterator[Env]:
    if not wanted:
        yield env
        return
    for extended in _value(wanted[0], given[0], env, rw):
        yield from _sequence(wanted[1:], given[1:], extended, rw)


def _value(pattern: Pattern, value: Value, env: Env, rw: Rewriter) -> Iterator[Env]:
    match pattern:
        case AnyValue(name, constant):
            if name in env:
                if env[name] is value:
                    yield env
            elif not constant or rw.constant(value) is not None:
                yield {**env, name: value}
        case Literal(number):
            scalar = scalar_of(rw, value)
            if scalar is not None and abs(scalar - number) <= LITERAL_TOLERANCE * abs(number):
                yield env
        case Call():
            node = rw.maker(value)
            if node is None or len(node.outputs) != 1 or not _op_fits(pattern, node):
                return
            if pattern.once and rw.uses(value) != 1:
                return
            for extended in _operands(pattern, node, env, rw):
                # every matched node is noted, so that its sources are not lost
                named = {**extended, f"{_INNER}{len(extended)}": value}
                yield {**named, pattern.label: value} if pattern.label else named


def _op_fits(pattern: Call, node: Node) -> bool:
    named = node.op.name in pattern.ops or (ELEMENTWISE in pattern.ops and node.op.elementwise)
    # a user's own operator may have the name of a core one, and shapes of its own
    return named and is_core(node.op)


def scalar_of(rw: Rewriter, value: Value) -> float | None:
    """The number that a constant of one element holds; ``None`` for anything else."""
    array = rw.constant(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


Built = Value | Sequence[Value] | None
Build = Callable[[Rewriter, Match], Built]


@dataclass(frozen=True)
class Rule:
    """A rewriting rule.

    Args:
        name: unique among all rules.
        patterns: texts of which any may fit.
        build: what stands for the results of the matched root; ``None`` where a further condition fails. It must not
            make nodes before all its conditions are known to hold.
        doc: one line for people.
    """

    name: str
    patterns: tuple[str, ...]
    build: Build
    doc: str
    parsed: tuple[Call, ...] = field(repr=False, compare=False, default=())

    def __str__(self) -> str:
        return f"{self.name}: {'; '.join(self.patterns)}"


def rule(name: str, *patterns: str) -> Callable[[Build], Rule]:
    """Decorator that turns a builder into a rule; its docstring becomes the rule's."""

    def wrap(build: Build) -> Rule:
        doc = " ".join((build.__doc__ or "").split())
        return Rule(name, patterns, build, doc, tuple(parse_pattern(p) for p in patterns))

    return wrap


class RuleSet:
    """Rules, found by the operator of the node they start from; earlier ones are tried first.

    Raises:
        UsageError: two rules have one name.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._by_op: dict[str, list[tuple[Rule, Call]]] = {}
        names: set[str] = set()
        for r in self.rules:
            if r.name in names:
                raise UsageError(f"two rewriting rules are called {r.name!r}")
            names.add(r.name)
            for p in r.parsed:
                for op in p.ops:
                    self._by_op.setdefault(op, []).append((r, p))

    def __call__(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        """What the first rule that fits makes of a node; ``None`` when none does."""
        candidates = self._by_op.get(node.op.name, [])
        if node.op.elementwise:
            candidates = [*candidates, *self._by_op.get(ELEMENTWISE, [])]
        for r, pattern in candidates:
            if not _op_fits(pattern, node):
                continue
            for found in match(pattern, node, rw):
                before = rw.claim_sources(found.inner(rw))
                built = r.build(rw, found)
                if built is not None:
                    return [built] if isinstance(built, Value) else built
                rw.sources = before
        return None


def apply_rules(graph: Graph, rules: RuleSet) -> Graph:
    """Apply rules wherever they fit, until nothing changes or after ``MAX_ROUNDS`` replays."""
    for _ in range(MAX_ROUNDS):
        new = replay(graph, rules, simplify=rules)
        if new is graph:
            break
        graph = new
    return graph


def all_equal(array: np.ndarray, number: float) -> bool:
    """Whether every element is ``number``, and there are not so many that asking costs much."""
    return array.size <= 1 << 16 and bool(np.all(array == array.dtype.type(number)))
