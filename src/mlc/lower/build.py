"""Schedule and nests to one loop AST: loops, guards, reductions as init and update, buffers where they live."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import (
    Const,
    Expr,
    Load,
    Select,
    all_of,
    conjuncts,
    const,
    index_vars,
    loads,
    replace_loads,
    select,
    substitute_vars,
)
from mlc.ir.index import ZERO, Linear, Var, as_index, substitute
from mlc.ir.loop import NOTHING, Allocate, Buffer, Evaluate, For, ForKind, Function, Stmt, Store, seq
from mlc.lower.bounds import Nest, infer
from mlc.lower.facts import facts_of, is_inside
from mlc.lower.inline import inline
from mlc.lower.overlap import overlapped
from mlc.lower.prefetch import fetches
from mlc.lower.rewrite import decided, map_exprs
from mlc.lower.schedule import Schedule
from mlc.lower.sharing import loads_under
from mlc.lower.stage import Stage
from mlc.lower.tensorize import marked

_Along = TypeVar("_Along")


def build(schedule: Schedule, params: Sequence[te.Tensor], name: str) -> Function:
    """The loop AST of a schedule, guards and all.

    Args:
        schedule: what to build; every output of it must be among ``params``.
        params: tensors passed in by the caller, inputs before outputs.
        name: symbol of the kernel.
    Raises:
        ScheduleError: the schedule cannot be built.
    """
    inline(schedule)
    return _Builder(schedule, params, name).function()


def zero_margins(buffer: Buffer, margins: Sequence[tuple[int, int]], parallel: bool) -> Stmt:
    """Store zero wherever a margin is.

    Args:
        buffer: the array.
        margins: how many zeros there are before and after each dimension.
        parallel: whether threads share the work.
    """
    first = next((d for d, m in enumerate(margins) if m != (0, 0)), None)
    if first is None:
        return NOTHING
    outer = Var("outer", 0, prod(buffer.shape[:first]) - 1)
    lead: list[Linear] = []
    rest = as_index(outer)
    for n in reversed(buffer.shape[1:first]):
        lead.insert(0, rest % n)
        rest = rest // n
    lead = [rest, *lead] if first else []
    parts: list[Stmt] = []
    for d in range(first, len(margins)):
        for begin, count in ((0, margins[d][0]), (buffer.shape[d] - margins[d][1], margins[d][1])):
            if not count:
                continue
            loops = [Var(f"z{k}", 0, buffer.shape[k] - sum(margins[k]) - 1) for k in range(first, d)]
            loops.append(Var(f"z{d}", 0, count - 1))
            loops += [Var(f"z{k}", 0, n - 1) for k, n in enumerate(buffer.shape) if k > d]
            starts = [*(margins[k][0] for k in range(first, d)), begin, *[0] * (len(margins) - d - 1)]
            at = (*lead, *(as_index(v) + o for v, o in zip(loops, starts, strict=True)))
            part: Stmt = Store(buffer, at, const(0, buffer.dtype))
            # the innermost dimension of a blocked layout is the width of a vector
            kinds = [ForKind.SERIAL] * (len(loops) - 1) + [
                ForKind.VECTORIZED if d < len(margins) - 1 else ForKind.SERIAL
            ]
            for v, kind in reversed(list(zip(loops, kinds, strict=True))):
                if v.hi > 0:  # an axis of one iteration is the constant 0 in every index
                    part = For(v, v.hi + 1, kind, part)
            parts.append(part)
    whole = seq(parts)
    if outer.hi == 0 or not first:
        return whole
    return For(outer, outer.hi + 1, ForKind.PARALLEL if parallel else ForKind.SERIAL, whole)


class _Builder:
    def __init__(self, schedule: Schedule, params: Sequence[te.Tensor], name: str) -> None:
        self.schedule = schedule
        self.name = name
        self.nests = infer(schedule)
        self.buffers: dict[te.Tensor, Buffer] = {}
        self.names: set[str] = set()
        self.turns: dict[te.Tensor, Linear] = {}  # which version of its buffer a tensor is in
        self.homes = {t: t.home for t in schedule.outputs if t.home is not None}
        self.orders = {t: s.order for s in schedule.stages if s.order for t in s.op.outputs}
        self.params = tuple(
            self._buffer(t, self.homes[t].shape if t in self.homes else t.shape, "global") for t in params
        )
        self.outputs = len(schedule.outputs)
        for t in schedule.outputs:
            if t not in self.buffers:
                raise ScheduleError(f"output {t.name} is no parameter of {name}")
        self.inside: dict[tuple[Stage, Var], list[Stage]] = {}
        for s in schedule.stages:
            if s.attach is not None and not s.inlined:
                self.inside.setdefault((s.attach.stage, s.attach.axis), []).append(s)

    def _buffer(self, t: te.Tensor, shape: Sequence[int], scope: str) -> Buffer:
        base = "".join(c if c.isalnum() or c in "._" else "_" for c in t.name) or "t"
        unique, k = base, 0
        while unique in self.names:
            k += 1
            unique = f"{base}_{k}"
        self.names.add(unique)
        buffer = Buffer(unique, tuple(shape), t.dtype, scope)
        self.buffers[t] = buffer
        return buffer

    def function(self) -> Function:
        body: list[Stmt] = []
        owned: list[Buffer] = []
        for stage in self.schedule.stages:
            if stage.inlined or stage.attach is not None:
                continue
            for t in stage.op.outputs:
                if t not in self.buffers:
                    owned.append(self._buffer(t, self._ordered(t, t.shape), stage.scope or "global"))
            body.append(self._stage(stage))
            parallel = ForKind.PARALLEL in stage.kinds.values()
            homes = [t for t in stage.op.outputs if t in self.homes]
            body += [zero_margins(self.buffers[t], self.homes[t].margins, parallel) for t in homes]
        whole = seq(body)
        for b in reversed(owned):
            whole = Allocate(b, whole)
        return Function(self.name, self.params, self.outputs, whole)

    def _stage(self, stage: Stage) -> Stmt:
        nest = self.nests[stage]
        if stage.tensorized is not None and stage.tensorized[0] not in stage.leaves:
            axis, intrinsic = stage.tensorized
            raise ScheduleError(f"tensorize: {axis.name}, to be {intrinsic.name}, is no loop of {stage.name} any more")
        if stage.op.combiner is None:
            value = [substitute_vars(b, nest.values) for b in stage.op.bodies]
            store = self._guarded(self._data_guards(stage, nest), self._stores(stage, nest, value))
            return self._wrap(stage, nest, stage.leaves, store)
        return self._reduction(stage, nest)

    def _reduction(self, stage: Stage, nest: Nest) -> Stmt:
        """Shared outer loops, then the init nest, then the update nest."""
        op = stage.op
        assert op.combiner is not None
        first = next((k for k, a in enumerate(stage.leaves) if stage.is_reducing(a)), len(stage.leaves))
        outer, inner = stage.leaves[:first], stage.leaves[first:]
        _require_one_fold(stage, inner)
        ids = op.combiner.identity([b.dtype for b in op.bodies])
        fresh = {nest.loops[a]: Var(nest.loops[a].name, 0, nest.loops[a].hi) for a in inner if not stage.is_reducing(a)}
        init = self._stores(stage, nest, list(ids), fresh)
        data_guards = self._data_guards(stage, nest)
        init = self._guarded([substitute_vars(g, fresh) for g in data_guards], init)
        begin, data = _begin(stage), [a for a in inner if not stage.is_reducing(a)]
        if begin in inner:  # the loops of the intrinsic, as far as they are there where the result is set
            begin = next((a for a in data if inner.index(a) >= inner.index(begin)), None)
            if begin is None:
                init = marked(stage, Var("one", 0, 0), init)
        for a in reversed(data):
            init = self._loop(stage, a, fresh[nest.loops[a]], init, begins=a is begin)
        terms = [substitute_vars(b, nest.values) for b in op.bodies]
        unrolled = {
            loop for n in self.nests.values() for a, loop in n.loops.items() if n.stage.kinds.get(a) is ForKind.UNROLLED
        }
        exists, terms = _common_guard(terms, ids, set(fresh), unrolled)
        indices = self._indices(stage, nest)
        acc = tuple(
            Load(self.buffers[t], self._place(t, indices)) if t in self.buffers else t[indices] for t in op.outputs
        )
        folded = op.combiner.combine(acc, tuple(terms))
        update = self._update(stage, nest, list(folded))
        update = self._guarded([*data_guards, *nest.reduce_guards, *exists], update)
        update = self._wrap(stage, nest, inner, update)
        return self._wrap(stage, nest, outer, seq([init, update]))

    def _data_guards(self, stage: Stage, nest: Nest) -> list[Expr]:
        """Conditions on data axes under which a stage stores.

        A thread among others computes what nobody reads rather than ask, where it may: all of a block take one way.
        """
        at, private = stage.attach, stage.scope in (None, "local", "register")
        while at is not None and not at.stage.threads:
            at = at.stage.attach
        kept = [g for g in nest.data_guards if g not in nest.unread]
        if at is None or not private or not self._reads_inside(stage, nest, [*kept, *nest.reduce_guards]):
            return nest.data_guards
        return kept

    def _reads_inside(self, stage: Stage, nest: Nest, guards: Sequence[Expr]) -> bool:
        """Whether all that a stage reads is there under no more than some conditions."""
        facts = tuple(f for g in guards for f in facts_of(g))
        for body in stage.op.bodies:
            for ld, known in loads_under(substitute_vars(body, nest.values), facts):
                source = self.schedule.find(ld.source)
                region = self.nests[source] if source is not None else None
                origin = region.origin if region is not None else tuple(ZERO for _ in ld.indices)
                extents = region.extents if region is not None else ld.source.shape
                if not all(is_inside(ix - o, n, known) for ix, o, n in zip(ld.indices, origin, extents, strict=True)):
                    return False
        return True

    def _indices(self, stage: Stage, nest: Nest) -> tuple[Linear, ...]:
        """Where in its own buffer the stage stores the current element."""
        return tuple(nest.values[a] - o for a, o in zip(stage.op.axes, nest.origin, strict=True))

    def _stores(self, stage: Stage, nest: Nest, values: Sequence[Expr], env: dict[Var, Var] | None = None) -> Stmt:
        indices = self._indices(stage, nest)
        if env:
            indices = tuple(substitute(ix, env) for ix in indices)
        stores: list[Stmt] = []
        for t, v in zip(stage.op.outputs, values, strict=True):
            copied = stage.asynchronous and t in self.turns
            store: Stmt = Store(self.buffers[t], self._place(t, indices), self._resolve(v), None, copied)
            stores.append(self._guarded([self.homes[t].holds(indices)], store) if t in self.homes else store)
        return seq(stores)

    def _place(self, t: te.Tensor, indices: tuple[Linear, ...]) -> tuple[Linear, ...]:
        """Where an element of a tensor lies in its buffer."""
        indices = self._ordered(t, indices)
        if t in self.turns:
            return (self.turns[t], *indices)
        return self.homes[t].place(indices) if t in self.homes else indices

    def _ordered(self, t: te.Tensor, along: tuple[_Along, ...]) -> tuple[_Along, ...]:
        """What there is of each data axis of a tensor, in the order of the dimensions of its buffer."""
        return tuple(along[d] for d in self.orders[t]) if t in self.orders else along

    def _update(self, stage: Stage, nest: Nest, values: Sequence[Expr]) -> Stmt:
        """Stores of folded values; several outputs are computed before any is stored."""
        if len(values) == 1:
            return self._stores(stage, nest, values)
        lanes = [nest.loops[a] for a in stage.leaves if stage.kinds.get(a) is ForKind.VECTORIZED]
        shape = tuple(v.hi + 1 for v in lanes)
        at = tuple(as_index(v) for v in lanes)
        temps = [self._buffer(te.Tensor(f"{t.name}.new", shape, t.dtype), shape, "register") for t in stage.op.outputs]
        first = [Store(tmp, at, self._resolve(v)) for tmp, v in zip(temps, values, strict=True)]
        indices = self._indices(stage, nest)
        then = [
            Store(self.buffers[t], self._place(t, indices), Load(tmp, at))
            for t, tmp in zip(stage.op.outputs, temps, strict=True)
        ]
        body = seq([*first, *then])
        for tmp in temps:
            body = Allocate(tmp, body)
        return body

    def _guarded(self, guards: Sequence[Expr], body: Stmt) -> Stmt:
        cond = all_of(guards)
        return decided(cond, body, None)

    def _wrap(self, stage: Stage, nest: Nest, leaves: Sequence[Var], body: Stmt) -> Stmt:
        """Loops over ``leaves`` around ``body``, with what is computed inside each."""
        for a in reversed(leaves):
            guests = self.inside.get((stage, a), ())
            ahead = [g for g in guests if g.versions > 1]
            if ahead and nest.loops[a].hi > 0:
                body = self._ahead(stage, a, ahead, [g for g in guests if g not in ahead], body)
                continue
            if guests:
                body = self._with_guests(guests, body)
            body = self._loop(stage, a, nest.loops[a], body, begins=a is _begin(stage))
        return body

    def _with_guests(self, guests: Sequence[Stage], body: Stmt) -> Stmt:
        parts: list[Stmt] = []
        owned: list[Buffer] = []
        for g in guests:
            nest = self.nests[g]
            for t in g.op.outputs:
                owned.append(self._buffer(t, self._ordered(t, _with_gaps(g, nest)), g.scope or "local"))
        for g in guests:
            parts.append(self._stage(g))
        # reads inside ``body`` were built before the guests' buffers existed: resolve them now
        whole = seq([*parts, map_exprs(body, self._resolve)])
        for b in reversed(owned):
            whole = Allocate(b, whole)
        return whole

    def _ahead(self, stage: Stage, leaf: Var, ahead: Sequence[Stage], others: Sequence[Stage], body: Stmt) -> Stmt:
        """The loop ``leaf``, with some of what is computed inside ahead of the rest."""
        (first, *more), var = ahead, self.nests[stage].loops[leaf]
        for g in more:
            if g.versions != first.versions:
                raise ScheduleError(
                    f"double_buffer: {first.versions} versions of {first.name}, {g.versions} of {g.name}, in one loop"
                )
        if leaf in stage.kinds or _begin(stage) is leaf or any(f.at is leaf for f in stage.fetches):
            raise ScheduleError(f"double_buffer: loop {leaf.name} of stage {stage.name} is no plain one")
        for g in ahead:
            if any(t in g.op.inputs for o in others for t in o.op.outputs):
                raise ScheduleError(f"double_buffer: {g.name} is computed ahead of what it reads")
        owned: list[Buffer] = []
        for g in ahead:
            for t in g.op.outputs:
                shape = (g.versions, *self._ordered(t, _with_gaps(g, self.nests[g])))
                owned.append(self._buffer(t, shape, g.scope or "local"))
                self.turns[t] = as_index(var) % g.versions
        before = seq([self._stage(g) for g in ahead])
        rest = self._with_guests(others, body)
        asynchronous = any(g.asynchronous for g in ahead)
        whole = overlapped(var, first.versions, before, rest, asynchronous=asynchronous)
        for b in reversed(owned):
            whole = Allocate(b, whole)
        return whole

    def _loop(self, stage: Stage, leaf: Var, var: Var, body: Stmt, *, begins: bool) -> Stmt:
        """One loop; ``begins`` says whether it is the outermost one of an intrinsic."""
        facts = {key: value for (a, key), value in stage.pragmas.items() if a is leaf}
        marks: list[Stmt] = [Evaluate(f"pragma.{key}", (value,)) for key, value in facts.items()]
        if var is self.nests[stage].loops[leaf]:  # not where a reduction is set to its identity
            marks += fetches(stage, leaf, self.nests, self.buffers)
        if marks:
            body = seq([*marks, body])
        if var.hi < 0:
            return NOTHING
        if begins:
            return marked(stage, var, body)
        if var.hi == 0:
            return body  # an extent of one folded into constants when the forms were built
        return For(var, var.hi + 1, stage.kinds.get(leaf, ForKind.SERIAL), body, stage.threads.get(leaf, ""))

    def _resolve(self, e: Expr) -> Expr:
        """Loads of tensors become loads of their buffers, relative to the region held."""

        def swap(ld: Load) -> Expr:
            t = ld.source
            buffer = self.buffers.get(t)
            if buffer is None:
                return ld
            stage = self.schedule.find(t)
            origin = self.nests[stage].origin if stage is not None else ()
            indices = ld.indices
            if any(o is not ZERO for o in origin):
                indices = tuple(ix - o for ix, o in zip(indices, origin, strict=True))
            return Load(buffer, self._place(t, indices))

        return replace_loads(e, swap) if any(type(ld.source) is te.Tensor for ld in loads(e)) else e


def _require_one_fold(stage: Stage, inner: Sequence[Var]) -> None:
    """What threads fold together, they do once for every element, which each of them has for itself.

    Raises:
        ScheduleError: the schedule says otherwise.
    """
    bound = [a for a in inner if stage.kinds.get(a) is ForKind.THREAD and stage.is_reducing(a)]
    if not bound:
        return
    kept = stage.attach is not None and stage.scope in (None, "local", "register")
    if not kept or len(stage.op.bodies) != 1:
        raise ScheduleError(
            f"threads fold {stage.name} together, so each must have the result, a single one, for itself: it is "
            "computed inside of another stage and kept in local memory"
        )
    if inner[0] is not bound[0] or not all(map(stage.is_reducing, inner)):
        raise ScheduleError(f"threads fold {stage.name} together by {bound[0].name}: no other loop of it may be around")


def _with_gaps(stage: Stage, nest: Nest) -> tuple[int, ...]:
    """Extents of the buffer of an attached stage."""
    extents = list(nest.extents)
    for axis, (factor, offset) in stage.pitches.items():
        d = stage.op.axes.index(axis) + 1
        extents[d] += (offset - extents[d]) % factor
    return tuple(extents)


def _begin(stage: Stage) -> Var | None:
    """The leaf from which on a stage is an intrinsic."""
    return stage.tensorized[0] if stage.tensorized is not None else None


def _common_guard(
    terms: list[Expr], ids: Sequence[Const], own: set[Var], unrolled: set[Var]
) -> tuple[list[Expr], list[Expr]]:
    """Conditions under which an iteration folds anything at all, and the terms without them.

    ``select(a and b, x, 0)``, summed, need not be added where ``a`` fails. Conditions that do not depend on ``own``,
    the data loops inside the reduction, are taken out: these can move in front of loops, while others would become
    branches between the lanes of a vector. So are those that depend on nothing but ``unrolled`` loops, where they are
    constants.
    """
    if len(terms) != 1:
        return [], terms
    (term,), (identity,) = terms, ids
    if not (isinstance(term, Select) and isinstance(term.b, Const) and term.b.value == identity.value):
        return [], terms
    conds = conjuncts(term.cond)
    common = [c for c in conds if not loads(c) and (not index_vars(c) & own or index_vars(c) <= unrolled)]
    if not common:
        return [], terms
    return common, [select(all_of([c for c in conds if c not in common]), term.a, term.b)]
