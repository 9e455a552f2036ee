"""Who touches what: the accesses of threads to memory that others see, and whether two of them can meet.

Loop variables are enumerated, not approximated: what lies in a block's shared memory is small, so for every access the
set of (element, thread) pairs is written down. Conditions that threads and the loops of the access decide count; others
are taken to hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import gcd, lcm, prod
from typing import Any

import numpy as np

from mlc.ir.expr import Expr, Load, Select, children, indices_of
from mlc.ir.index import IndexLike, Linear, Remainder, Var, as_index, dynamics, evaluate, substitute, weighted
from mlc.ir.intrinsic import Kind
from mlc.ir.loop import (
    THREAD_AXES,
    Access,
    Buffer,
    Evaluate,
    For,
    ForRange,
    If,
    Prefetch,
    Shuffle,
    Stmt,
    Store,
    dense_strides,
)
from mlc.lower.facts import POINTS, Fact, Facts, facts_of, grids
from mlc.lower.rewrite import exprs_of

Grid = Any  # a numpy array of values, shaped to broadcast


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """An access.

    Args:
        buffer: what is accessed,
        indices: and where.
        write: whether it is written.
        facts: what holds there.
        stmt: the statement that does it, for messages.
        age: of an asynchronous copy that nobody has waited for, how many groups have been committed since; ``None`` of
            what is over when the statement is.
    """

    buffer: Buffer
    indices: tuple[Linear, ...]
    write: bool
    facts: Facts
    stmt: Stmt
    age: int | None = None

    def renamed(self, env: Mapping[Var, IndexLike], more: Facts = ()) -> Touch:
        """The access with loop variables replaced, and further facts."""
        indices = tuple(substitute(ix, env) for ix in self.indices)
        facts = tuple(replace(f, index=substitute(f.index, env)) for f in self.facts)
        return Touch(self.buffer, indices, self.write, (*facts, *more), self.stmt, self.age)

    def vars(self) -> set[Var]:
        return {v for ix in self.indices for v in ix.vars()} | {v for f in self.facts for v in f.index.vars()}


def loads_under(e: Expr, facts: Facts) -> Iterator[tuple[Load, Facts]]:
    """Every load of an expression, those inside of indices included, and what holds where it is made."""
    seen: set[tuple[int, Facts]] = set()
    stack = [(e, facts)]
    while stack:
        node, known = stack.pop()
        if (id(node), known) in seen:
            continue
        seen.add((id(node), known))
        if type(node) is Load:
            yield node, known
        stack += [(d.expr, known) for ix in indices_of(node) for d in dynamics(ix)]
        if type(node) is Select:
            stack += [
                (node.cond, known),
                (node.a, (*known, *facts_of(node.cond))),
                (node.b, (*known, *facts_of(node.cond, holds=False, given=known))),
            ]
        else:
            stack += [(c, known) for c in children(node)]


def touches_of(s: Stmt, facts: Facts) -> Iterator[Touch]:
    """What a statement itself accesses, reads first; not what is inside of it."""
    indices: Sequence[Linear] = s.indices if isinstance(s, (Store, Prefetch)) else ()
    for e in (*exprs_of(s), *(d.expr for ix in indices for d in dynamics(ix))):
        for ld, known in loads_under(e, facts):
            yield Touch(ld.source, ld.indices, False, known, s)
    if isinstance(s, Store):
        yield Touch(s.buffer, s.indices, True, facts, s, 0 if s.asynchronous else None)
    elif isinstance(s, Shuffle):
        yield Touch(s.source, s.at, False, facts, s)
        yield Touch(s.buffer, s.indices, True, facts, s)
    elif isinstance(s, Evaluate) and s.intrinsic is not None:
        kind, out, *ins = s.args
        tensors = (s.intrinsic.behaviour, *s.intrinsic.inputs)
        for t, a in zip(tensors, (out, *ins), strict=False):
            at = _elements(a, t.shape)
            if a is not out or kind == Kind.UPDATE:
                yield Touch(a.buffer, at, False, facts, s)
            if a is out:
                yield Touch(a.buffer, at, True, facts, s)


def _elements(a: Access, shape: Sequence[int]) -> tuple[Linear, ...]:
    """Indices of all elements of an operand, over variables of their own."""
    at = list(a.indices)
    steps = a.buffer.strides()
    for n, stride in zip(shape, a.strides, strict=True):
        v = Var("e", 0, n - 1)
        for d, step in enumerate(steps):
            count, stride = divmod(stride, step)
            at[d] = at[d] + as_index(v) * count
    return tuple(at)


@dataclass(frozen=True, eq=False)
class Threads:
    """The threads that may meet: those of a block, or of a grid of blocks.

    Args:
        vars: their axes.
        lane: the one along which threads of a warp lie next to each other.
    """

    vars: tuple[Var, ...]
    lane: Var | None = None

    @classmethod
    def of(cls, loops: Mapping[str, For], axes: Sequence[str]) -> Threads:
        """Those of a launch's loops over some axes."""
        lane = loops.get(THREAD_AXES[-1])
        return cls(tuple(loops[a].var for a in axes if a in loops), None if lane is None else lane.var)

    def touches(self, s: Stmt, facts: Facts) -> Iterator[Touch]:
        """What a statement itself accesses; of what a warp does together, any of its threads may access any part."""
        for t in touches_of(s, facts):
            if isinstance(s, Evaluate) and t.buffer.scope == "shared" and self.lane is not None:
                yield t.renamed({self.lane: Var("lane", 0, self.lane.hi)})
            else:
                yield t

    def varies(self, e: Expr | Linear) -> bool:
        """Whether threads may find different values; what is loaded may be anything."""
        stack: list[Expr | Linear] = [e]
        while stack:
            node = stack.pop()
            if isinstance(node, Linear):
                if node.vars() & set(self.vars) or dynamics(node):
                    return True
            elif type(node) is Load:
                return True
            else:
                stack += (*children(node), *indices_of(node))
        return False

    def conflict(self, a: Touch, b: Touch, common: Collection[Var], *, one: bool = False) -> bool | None:
        """Whether two threads can touch the same element, one of them writing.

        Args:
            a, b: the accesses; they may be one and the same.
            common: variables of loops around both: in each iteration, the accesses of that one meet.
            one: whether it may be one thread that does both.
        Returns:
            ``None`` where there are too many elements to tell.
        """
        if a.buffer is not b.buffer or not (a.write or b.write):
            return False
        if self._told_in_iterations(a, b, common) if one else self._told_apart(a, b, common):
            return False
        # where one alone goes by a variable, it is all the same in which iteration they meet
        dims, both = {*self._dims(a), *self._dims(b)}, a.vars() & b.vars()
        joint = {v: _telling(v, (a, b)) for v in common if v not in self.vars and v in dims and v in both}
        whole = prod(len(values) for values in joint.values()) * a.buffer.size
        first, second = (self._spans(t, joint) for t in (a, b))
        if first is None or second is None or whole > POINTS:
            return None
        (least_a, most_a), (least_b, most_b) = first, second
        met = (most_a >= 0) & (most_b >= 0)
        if one:
            return bool(met.any())
        return bool((met & ~((least_a == most_a) & (least_b == most_b) & (least_a == least_b))).any())

    def _told_apart(self, a: Touch, b: Touch, common: Collection[Var]) -> bool:
        """Whether an element's place tells the thread, whatever loops do that are in the same iteration for both:
        what their variables add to an index, they add for all threads."""
        if a.indices != b.indices or any(dynamics(ix) for ix in a.indices):
            return False
        return _tells(a.indices, self.vars, set(common) - set(self.vars))

    def _told_in_iterations(self, a: Touch, b: Touch, common: Collection[Var]) -> bool:
        """Whether an element's place tells thread and iteration, and the accesses are of different iterations of one
        loop, but alike otherwise."""
        if any(dynamics(ix) for ix in a.indices):
            return False
        for f in a.facts:
            for v, before in permutations(f.index.vars(), 2):
                later = f.index == as_index(v) - before and f.lo >= 1 and v in common
                if later and tuple(substitute(ix, {before: v}) for ix in a.indices) == b.indices:
                    return _tells(b.indices, (*self.vars, v), set(common) - {v, *self.vars})
        return False

    def _dims(self, t: Touch) -> dict[Var, None]:
        """Variables to enumerate: those of indices, and axes of threads in conditions upon these."""
        found = dict.fromkeys(v for ix in t.indices for v in ix.vars())
        for f in self._deciding(t):
            found |= dict.fromkeys(f.index.vars())
        return found

    def _deciding(self, t: Touch) -> list[Fact]:
        known = {v for ix in t.indices for v in ix.vars()} | set(self.vars)
        return [f for f in t.facts if f.index.vars() <= known and not dynamics(f.index)]

    def _spans(self, t: Touch, joint: Mapping[Var, Grid]) -> tuple[Grid, Grid] | None:
        """Least and greatest number of a thread that touches each element, for given values of the joint variables.

        The greatest is -1 where none does.
        """
        fixed = not any(dynamics(ix) for ix in t.indices)
        dims = [*joint, *(v for v in self._dims(t) if v not in joint)]
        if not fixed:
            dims = [*joint, *(v for v in self.vars if any(v in f.index.vars() for f in self._deciding(t)))]
        shape = [len(joint[v]) if v in joint else v.hi + 1 for v in dims]
        if prod(shape) > POINTS:
            return None
        env = grids({v: v.hi + 1 for v in dims})
        for d, (v, values) in enumerate(joint.items()):
            env[v] = values.reshape([-1 if k == d else 1 for k in range(len(dims))])
        holds = np.ones(shape, bool)
        for f in t.facts:
            if f.index.vars() <= set(dims) and not dynamics(f.index):
                value = evaluate(f.index, env)
                holds &= (value >= f.lo) & (value < f.hi)
        thread: Grid = 0
        for v in self.vars:
            thread = thread * (v.hi + 1) + env.get(v, 0)
        alone = all(v.hi == 0 or v in env for v in self.vars)
        count, size = prod(shape[: len(joint)]), t.buffer.size
        rows: Grid = np.arange(count).reshape([*shape[: len(joint)], *[1] * (len(dims) - len(joint))])
        least = np.full((count, size), np.iinfo(np.int64).max)
        most = np.full((count, size), -1)
        if fixed:
            for ix, n in zip(t.indices, t.buffer.shape, strict=True):
                value = evaluate(ix, env)
                holds &= (value >= 0) & (value < n)
            at = evaluate(weighted(t.indices, dense_strides(t.buffer.shape)), env)
            where: Any = (np.broadcast_to(rows, shape)[holds], np.broadcast_to(at, shape)[holds])
            who = np.broadcast_to(thread, shape)[holds]
        else:  # any element
            where = np.broadcast_to(rows, shape)[holds]
            who = np.broadcast_to(thread, shape)[holds]
            if where.size:
                where, who = (where[:, None], np.arange(size)[None, :]), who[:, None]
        np.minimum.at(least, where, who if alone else 0)
        np.maximum.at(most, where, who if alone else np.iinfo(np.int64).max)
        return least, most


def _tells(indices: Sequence[Linear], vars: Sequence[Var], same: Collection[Var]) -> bool:
    """Whether indices have different values wherever some variables have; others have the same values in both."""
    axes = [v for v in vars if v.hi]
    count = prod(v.hi + 1 for v in axes)
    if count > POINTS:
        return False
    env = grids({v: v.hi + 1 for v in axes})
    place: Grid = np.zeros([1] * len(axes), np.int64)
    for ix in indices:
        own = Linear({x: c for x, c in ix.terms.items() if not Linear({x: 1}, 0).vars() <= set(same)}, 0)
        if own.vars() <= set(axes):
            value = evaluate(own, env)
            place = place * int(np.ptp(value) + 1) + (value - np.min(value))
    return len(np.unique(place)) == count


def _telling(v: Var, touches: Sequence[Touch]) -> Grid:
    """Values of a variable that stand for all others, for accesses that tell them apart by remainders and conditions.

    Where indices go by remainders of a loop's variable alone, as those of buffers in turns do, and conditions compare
    it with numbers, all of its values with the same remainder are alike, as far as there are both accesses at all.
    """
    values: Grid = np.arange(v.hi + 1, dtype=np.int64)
    period = 1
    forms = [ix for t in touches for ix in t.indices]
    for f in (f for t in touches for f in t.facts):
        if f.index.vars() == {v} and not dynamics(f.index):
            value = evaluate(f.index, {v: values})
            values = values[(value >= f.lo) & (value < f.hi)]
        else:
            forms.append(f.index)
    for form in forms:
        for atom in form.terms:
            if atom is v or (type(atom) is not Var and v in Linear({atom: 1}, 0).vars()):
                step = atom.form.coefficient(v) if isinstance(atom, Remainder) else None
                if not isinstance(atom, Remainder) or step is None:
                    return values
                period = lcm(period, atom.divisor // gcd(step, atom.divisor))
    return values[np.unique(values % period, return_index=True)[1]]


def thread_dependent(s: Stmt, threads: Threads) -> bool:
    """Whether threads may go different ways through a branch, or around a loop a different number of times."""
    return isinstance(s, (If, ForRange)) and any(threads.varies(e) for e in exprs_of(s))
