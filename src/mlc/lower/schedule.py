"""Schedules: how each tensor's loop nest runs, as a list of primitives applied to stages.

A :class:`Schedule` has one :class:`Stage` a compute. Applying a primitive changes the stage and is recorded in
``Schedule.history``; a wrong one fails at once with :class:`ScheduleError`, naming stage and axis.

Its docstrings show the nests of :mod:`mlc.lower.stage_loops`, before and after.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Load, as_expr, replace_loads, select, substitute_vars, within
from mlc.ir.index import Linear, Var, as_index
from mlc.lower.relations import Split
from mlc.lower.stage import Stage


class Schedule:
    """Stages of everything that ``outputs`` need, producers first.

    Args:
        outputs: tensors to compute; each is stored in full.
    """

    def __init__(self, outputs: Sequence[te.Tensor]) -> None:
        self.outputs = tuple(outputs)
        self.history: list[str] = []
        self.stages: list[Stage] = [Stage(self, op) for op in te.topological(outputs)]
        self._by_tensor: dict[te.Tensor, Stage] = {t: s for s in self.stages for t in s.op.outputs}

    def __getitem__(self, tensor: te.Tensor) -> Stage:
        stage = self._by_tensor.get(tensor)
        if stage is None:
            raise ScheduleError(f"{tensor.name} is an input or no tensor of this schedule; it has no stage")
        return stage

    def find(self, tensor: te.Tensor) -> Stage | None:
        """The stage that computes ``tensor``; ``None`` for inputs."""
        return self._by_tensor.get(tensor)

    def cache_write(self, tensor: te.Tensor, scope: str, order: Sequence[int] | None = None) -> te.Tensor:
        """Compute ``tensor`` in a new stage in ``scope``; the old stage becomes a copy of it.

        Args:
            tensor: of the stage.
            scope: where the new one lies.
            order: its axes by their positions in the old one, where it is to lie otherwise; the same unless given.

        >>> s, x, y = rows()
        >>> cache = s.cache_write(y, "local")
        >>> s[cache].compute_at(s[y], s[y].axes[0])
        >>> show(s)
        for i in range(6):
          y.local: f32[1,10] in local
          for j in range(10):
            y.local[0, j] = x[i, j] + 1.0
          for j in range(10):
            y[i, j] = y.local[0, j]

        Returns:
            the new tensor.
        Raises:
            ScheduleError: the stage is scheduled already, another is computed inside it, or the order is none.
        """
        stage = self[tensor]
        order = range(len(stage.op.axes)) if order is None else order
        if sorted(order) != [*range(len(stage.op.axes))]:
            raise ScheduleError(f"cache_write: {list(order)} is no order of the axes of stage {stage.name}")
        plain = [*stage.op.axes, *stage.op.reduce_axes]
        if stage.leaves != plain or stage.relations or stage.kinds or stage.attach or stage.inlined:
            raise ScheduleError(f"cache_write: stage {stage.name} is scheduled already; cache it first")
        self._require_no_guests(stage, "cache_write")
        old = stage.op
        fresh = [Var(a.name, 0, a.hi) for a in (*old.axes, *old.reduce_axes)]
        env = dict(zip((*old.axes, *old.reduce_axes), fresh, strict=True))
        n = len(old.axes)
        inner = te.Compute(
            f"{old.name}.{scope}", tuple(fresh[d] for d in order), tuple(fresh[n:]),
            tuple(substitute_vars(b, env) for b in old.bodies), old.combiner, old.tag, old.attrs,
        )  # fmt: skip
        caches = te.finish(inner)
        copy = te.Compute(
            old.name, old.axes, (), tuple(c[tuple(as_index(old.axes[d]) for d in order)] for c in caches), None, "copy",
            {}, old.outputs,
        )  # fmt: skip
        self._insert(inner, before=stage, scope=scope)
        k = self.stages.index(stage)
        replacement = Stage(self, copy)
        replacement.scope = stage.scope
        self.stages[k] = replacement
        for t in old.outputs:
            self._by_tensor[t] = replacement
        otherwise = "" if [*order] == sorted(order) else f", {list(order)}"
        self.history.append(f"cache_write({tensor.name}, {scope!r}{otherwise})")
        return caches[tensor.which]

    def cache_read(self, tensor: te.Tensor, scope: str, readers: Sequence[te.Tensor]) -> te.Tensor:
        """Copy ``tensor`` into ``scope`` and let the given readers read the copy.

        >>> s, x, y = rows()
        >>> cache = s.cache_read(x, "local", [y])
        >>> s[cache].compute_at(s[y], s[y].axes[0])
        >>> show(s)
        for i in range(6):
          x.local: f32[1,10] in local
          for j in range(10):
            x.local[0, j] = x[i, j]
          for j in range(10):
            y[i, j] = x.local[0, j] + 1.0

        Returns:
            the copy.
        Raises:
            ScheduleError: one of the readers does not read it.
        """
        users = [self[r] for r in dict.fromkeys(readers)]
        cache = te.compute(tensor.shape, lambda *ix: tensor[tuple(ix)], f"{tensor.name}.{scope}", tag="copy")
        assert cache.op is not None
        for user in users:
            if not any(ld is tensor for ld in user.op.inputs):
                raise ScheduleError(f"cache_read: stage {user.name} does not read {tensor.name}")

            def swap(ld: Load) -> Load:
                return Load(cache, ld.indices) if ld.source is tensor else ld

            user.op = te.with_bodies(user.op, [replace_loads(b, swap) for b in user.op.bodies])
        first = min(users, key=self.stages.index)
        self._insert(cache.op, before=first, scope=scope)
        self.history.append(f"cache_read({tensor.name}, {scope!r})")
        return cache

    def rfactor(self, tensor: te.Tensor, axis: Var) -> te.Tensor:
        """Turn a reduction axis into a data axis of a new stage of partial results.

        >>> s, x, y = sums()
        >>> ko, ki = s[y].split(s[y].reduce_axes[0], 5)
        >>> _ = s.rfactor(y, ki)
        >>> show(s)
        y.rf: f32[5,6] in local
        for ki in range(5):
          for i in range(6):
            y.rf[ki, i] = 0.0
            for ko in range(2):
              y.rf[ki, i] = y.rf[ki, i] + x[i, 5*ko + ki]
        for i in range(6):
          y[i] = 0.0
          for ki in range(5):
            y[i] = y[i] + y.rf[ki, i]

        Returns:
            the tensor of partial results, whose first dimension is ``axis``.
        Raises:
            ScheduleError: ``axis`` is no reduction axis nor one half of a split of one, or another stage is computed
                inside this one.
        """
        stage = self[tensor]
        op = stage.op
        stage._leaf(axis, "rfactor")
        if op.combiner is None or not stage.is_reducing(axis):
            raise ScheduleError(f"rfactor: {axis.name} of stage {stage.name} is no reduction axis")
        self._require_no_guests(stage, "rfactor")
        fresh = {a: Var(a.name, 0, a.hi) for a in op.axes}
        partial = Var(axis.name, 0, axis.hi)
        rest: list[Var] = []
        env: dict[Var, Var | Linear] = dict(fresh)
        guard = None
        found = False
        for r in op.reduce_axes:
            split = next((x for x in stage.relations if isinstance(x, Split) and x.parent is r), None)
            if r is axis:
                env[r] = partial
                found = True
            elif split is not None and axis in (split.outer, split.inner):
                other = split.inner if axis is split.outer else split.outer
                loop = Var(other.name, 0, other.hi)
                rest.append(loop)
                outer, inner = (partial, loop) if axis is split.outer else (loop, partial)
                value = as_index(outer) * (inner.hi + 1) + inner
                env[r] = value
                guard = within(value, 0, r.hi + 1)
                found = True
            else:
                loop = Var(r.name, 0, r.hi)
                rest.append(loop)
                env[r] = loop
        if not found:
            raise ScheduleError(
                f"rfactor: {axis.name} of stage {stage.name} does not come from one split of a reduction axis"
            )
        if not rest:  # nothing left to fold: keep the form of a reduction with one term
            rest.append(Var("one", 0, 0))
        ids = op.combiner.identity([b.dtype for b in op.bodies])
        terms = [substitute_vars(b, env) for b in op.bodies]
        if guard is not None:
            terms = [select(guard, t, c) for t, c in zip(terms, ids, strict=True)]
        inner_op = te.Compute(
            f"{op.name}.rf", (partial, *fresh.values()), tuple(rest), tuple(terms), op.combiner, op.tag, op.attrs
        )
        partials = te.finish(inner_op)
        last = Var(axis.name, 0, axis.hi)
        position = (as_index(last), *[as_index(a) for a in op.axes])
        outer_op = te.Compute(
            op.name,
            op.axes,
            (last,),
            tuple(as_expr(p[position]) for p in partials),
            op.combiner,
            "rfactor",
            {},
            op.outputs,
        )
        k = self.stages.index(stage)
        replacement = Stage(self, outer_op)
        replacement.attach, replacement.scope = stage.attach, stage.scope
        self.stages[k] = replacement
        for t in op.outputs:
            self._by_tensor[t] = replacement
        self._insert(inner_op, before=replacement, scope="local")
        self.history.append(f"rfactor({tensor.name}, {axis.name})")
        return partials[tensor.which]

    def _require_no_guests(self, host: Stage, primitive: str) -> None:
        for s in self.stages:
            if s.attach is not None and s.attach.stage is host:
                where = f"stage {s.name} is computed inside {host.name}"
                raise ScheduleError(f"{primitive}: {where}; {primitive} comes first")

    def _insert(self, op: te.Compute, *, before: Stage, scope: str) -> Stage:
        stage = Stage(self, op)
        stage.scope = scope
        self.stages.insert(self.stages.index(before), stage)
        for t in op.outputs:
            self._by_tensor[t] = stage
        return stage
