"""Tensorisation: a loop nest that computes what an intrinsic does becomes one use of it.

In: ``For`` nests that begin with ``pragma.tensorize``. Out: ``Evaluate(name, (kind, Access, …))`` in their place, under
those conditions of the nest that do not depend on its loops.

A nest and a behaviour match when some assignment of the intrinsic's axes to the loops makes their expressions equal,
where an operand of the intrinsic stands for a box of some buffer. Loops and axes of one iteration count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import gcd

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Within,
    all_of,
    children,
    conjuncts,
    index_vars,
    same,
    substitute_vars,
    within,
)
from mlc.ir.index import ZERO, Var, as_index, substitute
from mlc.ir.intrinsic import Kind, TensorIntrinsic
from mlc.ir.loop import (
    Access,
    Evaluate,
    For,
    ForKind,
    If,
    Seq,
    Stmt,
    Store,
    dense_strides,
    is_nothing,
    rebuild,
    seq,
)
from mlc.lower.rewrite import decided
from mlc.lower.stage import Stage

Operands = Mapping[te.Tensor, Access]

_MARK = "pragma.tensorize"
_FACTS = ("value", "op", "fn", "index", "lo", "hi")  # of a node, besides its type and operands
_COMMUTATIVE = {"add", "mul", "min", "max", "and", "or", "xor", "eq", "ne"}


def marked(stage: Stage, var: Var, body: Stmt) -> Stmt:
    """The loop from which on a stage is an intrinsic; there even with one iteration, to hold the nest together."""
    assert stage.tensorized is not None
    axis, intrinsic = stage.tensorized
    return For(var, var.hi + 1, ForKind.SERIAL, seq([Evaluate(_MARK, (stage.name, axis.name, intrinsic)), body]))


def tensorize(s: Stmt) -> Stmt:
    """Put intrinsics in the place of the nests that are marked.

    Raises:
        ScheduleError: a nest is not what its intrinsic computes; says of which stage and axis, and what differs.
    """
    if type(s) is For and type(s.body) is Seq and s.body.stmts:
        first = s.body.stmts[0]
        if type(first) is Evaluate and first.name == _MARK:
            stage, axis, intrinsic = first.args
            try:
                return _Match(intrinsic).nest(s)
            except _DiffersError as e:
                raise ScheduleError(f"tensorize: from {axis} on, stage {stage} is not {intrinsic.name}: {e}") from None
    return rebuild(s, tensorize)


class _DiffersError(Exception):
    """What a nest does that the intrinsic does not."""


@dataclass(frozen=True, slots=True)
class _Nest:
    """A store inside of loops: what a nest comes to once its conditions are taken out."""

    loops: tuple[Var, ...]
    guards: tuple[Expr, ...]
    store: Store


class _Match:
    def __init__(self, intrinsic: TensorIntrinsic) -> None:
        self.intrinsic = intrinsic
        self.op = intrinsic.op

    def nest(self, s: Stmt) -> Stmt:
        """The statements that stand for a marked nest."""
        nests = list(_nests(s, (), ()))
        uses = [self.use(n) for n in nests]
        kinds = [u.args[0] for u in uses]
        if kinds == [Kind.RESET, Kind.UPDATE]:
            early, late = nests
            # where terms count under more conditions than the result is set, the two stay two
            if Kind.BODY in self.intrinsic.kinds and len(early.guards) == len(late.guards):
                operands = uses[1].args[1:]
                uses, nests = [Evaluate(self.intrinsic.name, (Kind.BODY, *operands), self.intrinsic)], [late]
        elif len(uses) != 1:
            raise _DiffersError(f"there are {len(uses)} statements in these loops")
        for u in uses:
            if u.args[0] not in self.intrinsic.kinds:
                raise _DiffersError(f"there is no instruction for its {u.args[0]}")
        return seq([decided(all_of(n.guards), u, None) for n, u in zip(nests, uses, strict=True)])

    def use(self, nest: _Nest) -> Evaluate:
        """What one store in its loops is of the intrinsic."""
        value, combiner, axes = nest.store.value, self.op.combiner, [*self.op.axes]
        element = self.intrinsic.behaviour[tuple(axes)]
        (term,) = self.op.bodies
        wanted: list[tuple[Expr, Expr]] = [(element, Load(nest.store.buffer, nest.store.indices))]
        if combiner is not None and isinstance(value, Const):
            (first,) = combiner.identity([element.dtype])
            if not same(value, first):
                held = f"{value!r} as {value.dtype}, a reduction by {combiner} with {first!r} as {first.dtype}"
                raise _DiffersError(f"it begins with {held}")
            kind = Kind.RESET
        else:
            kind = Kind.BODY
            axes += self.op.reduce_axes
            if combiner is not None:
                kind, (term,) = Kind.UPDATE, combiner.combine((element,), (term,))
            wanted.append((term, value))
        found = self.assign([a for a in axes if a.hi > 0], nest, wanted)
        tensors = (self.intrinsic.behaviour, *self.intrinsic.inputs)
        operands = [found[t] for t in (tensors[:1] if kind is Kind.RESET else tensors)]
        return Evaluate(self.intrinsic.name, (kind, *operands), self.intrinsic)

    def assign(self, axes: Sequence[Var], nest: _Nest, wanted: Sequence[tuple[Expr, Expr]]) -> Operands:
        """Operands under the first assignment of axes to loops that makes all pairs of expressions equal."""
        have, want = [v.hi + 1 for v in nest.loops], [a.hi + 1 for a in axes]
        if sorted(have) != sorted(want):
            raise _DiffersError(f"its loops have the extents {_list(have)}, those of the intrinsic {_list(want)}")
        behaviour, value = wanted[-1]
        why = f"it computes {value!r}, the intrinsic {behaviour!r}"
        for order in permutations(nest.loops):
            if any(v.hi != a.hi for v, a in zip(order, axes, strict=True)):
                continue
            env = dict(zip(axes, order, strict=True))
            matches: Iterable[Operands] = [{}]
            for behaviour, value in wanted:
                here = substitute_vars(behaviour, env)
                matches = [new for old in matches for new in _unify(here, value, set(nest.loops), old)]
            for found in matches:
                wrong = next(filter(None, (self.misplaced(t, a) for t, a in found.items())), None)
                if wrong is None:
                    return found
                why = wrong
        raise _DiffersError(why)

    def misplaced(self, t: te.Tensor, a: Access) -> str | None:
        """Why an operand does not lie where the intrinsic wants it."""
        want, name = self.intrinsic.operand(t), a.buffer.name
        if want.scope and a.buffer.scope != want.scope:
            return f"{name}, taken as {t.name}, lies in {a.buffer.scope}, not in {want.scope}"
        dense = dense_strides(t.shape)
        wrong = [n > 1 and have != s for n, have, s in zip(t.shape, a.strides, dense, strict=True)]
        if any(wrong if want.dense else wrong[-1:] if want.neighbours else ()):
            return f"{name}, taken as {t.name}, has neighbours at distances {_list(a.strides)}, not {_list(dense)}"
        # where a warp's first thread has its operand is known when it is proved where all of them have theirs
        if want.lanes is None and not a.offset.multiple_of(want.align):
            return f"{a!r}, taken as {t.name}, is at offset {a.offset}, not always a multiple of {want.align}"
        return None


def _nests(s: Stmt, loops: tuple[Var, ...], guards: tuple[Expr, ...]) -> Iterator[_Nest]:
    """Every store of a nest with the loops around it, in order; conditions on these loops are not allowed."""
    if isinstance(s, For):
        yield from _nests(s.body, (*loops, s.var) if s.extent > 1 else loops, guards)
    elif isinstance(s, Seq):
        for c in s.stmts:
            yield from _nests(c, loops, guards)
    elif isinstance(s, If) and s.orelse is None:
        yield from _nests(s.then, loops, (*guards, *(_settled(c, loops) for c in conjuncts(s.cond))))
    elif isinstance(s, Store):
        varying = next((g for g in guards if index_vars(g) & set(loops)), None)
        if varying is not None:
            raise _DiffersError(f"not all of its iterations count, only where {varying!r}")
        yield _Nest(loops, guards, s)
    elif not is_nothing(s):
        raise _DiffersError(f"more than one result is computed in these loops:\n{s!r}")


def _settled(condition: Expr, loops: Sequence[Var]) -> Expr:
    """A condition without loops that never change it: ``2*i + r < 8`` holds for both ``r`` or for none."""
    if type(condition) is not Within:
        return condition
    inner = ZERO
    for v in loops:
        inner = inner + as_index(v) * condition.index.terms.get(v, 0)
    rest = condition.index - inner
    low, high = inner.bounds()
    begin, end = condition.lo - rest.const, condition.hi - rest.const
    step = gcd(begin, end, *rest.terms.values())
    return within(rest, condition.lo, condition.hi) if low >= 0 and 0 < high < step else condition


def _unify(behaviour: Expr, value: Expr, inner: set[Var], found: Operands) -> Iterator[Operands]:
    """Every choice of operands that makes a behaviour over the nest's loops equal to an expression of the nest."""
    if type(behaviour) is not type(value) or behaviour.dtype is not value.dtype:
        return
    if isinstance(behaviour, Load) and isinstance(value, Load):
        yield from _bind(behaviour, value, inner, found)
        return
    if any(getattr(behaviour, k, None) != getattr(value, k, None) for k in _FACTS):
        return
    below, there = children(behaviour), children(value)
    swapped = isinstance(behaviour, Binary) and behaviour.op in _COMMUTATIVE
    for order in (there, there[::-1]) if swapped else (there,):
        matches: Iterable[Operands] = [found]
        for x, y in zip(below, order, strict=True):
            matches = [new for old in matches for new in _unify(x, y, inner, old)]
        yield from matches


def _bind(behaviour: Load, value: Load, inner: set[Var], found: Operands) -> Iterator[Operands]:
    """Take an element of a buffer for an element of an operand, both over the loops of the nest."""
    t, buffer = behaviour.source, value.source
    offset = Access(buffer, value.indices, ()).offset
    strides = list(dense_strides(t.shape))
    for d, ix in enumerate(behaviour.indices):
        for v in ix.vars():
            c, step = ix.coefficient(v), offset.coefficient(v)
            if not c or step is None:
                return
            strides[d] = step // c
    rest = offset - sum((ix * step for ix, step in zip(behaviour.indices, strides, strict=True)), ZERO)
    if rest.vars() & inner:
        return
    if t in found:
        old = found[t]
        if old.buffer is buffer and old.strides == tuple(strides) and old.offset == rest:
            yield found
    elif not any(ix.const for ix in behaviour.indices):  # only its first element says where an operand lies
        first: Mapping[Var, int] = dict.fromkeys(inner, 0)
        yield {**found, t: Access(buffer, tuple(substitute(ix, first) for ix in value.indices), tuple(strides))}


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
