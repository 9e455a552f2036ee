"""Schedules: how each tensor's loop nest runs, as a list of primitives applied to stages.

A :class:`Schedule` has one :class:`Stage` a compute. Applying a primitive changes the stage and is recorded in
``Schedule.history``; a wrong one fails at once with :class:`ScheduleError`, naming stage and axis.

Not here yet: ``bind``, ``double_buffer`` and ``storage_align``: they come with the targets that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Load, as_expr, replace_loads, select, substitute_vars, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.intrinsic import TensorIntrinsic
from mlc.ir.loop import ForKind


@dataclass(slots=True, eq=False)
class Split:
    """``parent == outer * (extent of inner) + inner``; ``inner`` has ``factor`` iterations or the whole parent's."""

    parent: Var
    outer: Var
    inner: Var
    factor: int


@dataclass(slots=True, eq=False)
class Fuse:
    """``fused == outer * (extent of inner) + inner``."""

    outer: Var
    inner: Var
    fused: Var


Relation = Split | Fuse


@dataclass(slots=True, eq=False)
class Fetch:
    """Iterations of ``at`` fetch what ``ahead`` reads of a tensor ``distance`` iterations later."""

    tensor: te.Tensor
    ahead: Var
    at: Var
    distance: int
    level: int


@dataclass(slots=True, eq=False)
class AttachPoint:
    """Inside which loop of which stage a stage is computed."""

    stage: Stage
    axis: Var


class Stage:
    """The schedule of one compute.

    Attributes:
        op: what is computed.
        leaves: loop axes, outermost first.
        relations: splits and fuses, in order of application.
        kinds: how a leaf runs, where it is not serial.
        attach: ``None`` at the root, else where it is computed.
        inlined: whether its expression is substituted into its readers.
        scope: memory of its buffer; chosen by the lowering when ``None``.
        pragmas: facts for the code generator by (axis, key).
        aligned: what the extent of an attached stage's region is a multiple of, by data axis.
        fetches: what is prefetched in which loop.
        tensorized: from which loop on the nest is which intrinsic.
    """

    def __init__(self, schedule: Schedule, op: te.Compute) -> None:
        self.schedule = schedule
        self.op = op
        self.leaves: list[Var] = [*op.axes, *op.reduce_axes]
        self.relations: list[Relation] = []
        self.kinds: dict[Var, ForKind] = {}
        self.attach: AttachPoint | None = None
        self.inlined = False
        self.scope: str | None = None
        self.pragmas: dict[tuple[Var, str], Any] = {}
        self.aligned: dict[Var, int] = {}
        self.fetches: list[Fetch] = []
        self.tensorized: tuple[Var, TensorIntrinsic] | None = None
        self._reducing: set[Var] = set(op.reduce_axes)

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def axes(self) -> tuple[Var, ...]:
        """Data axes of the compute."""
        return self.op.axes

    @property
    def reduce_axes(self) -> tuple[Var, ...]:
        return self.op.reduce_axes

    def is_reducing(self, axis: Var) -> bool:
        """Whether ``axis`` comes from a reduction axis."""
        return axis in self._reducing

    def __repr__(self) -> str:
        return f"Stage({self.name}: {', '.join(v.name for v in self.leaves)})"

    def _record(self, primitive: str, *args: object) -> None:
        words = ", ".join(a.name if isinstance(a, Var) else str(a) for a in args)
        self.schedule.history.append(f"s[{self.name}].{primitive}({words})")

    def _leaf(self, axis: Var, primitive: str) -> int:
        if self.inlined:
            raise ScheduleError(f"{primitive}: stage {self.name} is inlined, it has no loops")
        if axis not in self.leaves:
            have = ", ".join(v.name for v in self.leaves)
            raise ScheduleError(f"{primitive}: {axis.name} is no loop of stage {self.name} (it has {have})")
        return self.leaves.index(axis)

    def _is_output(self) -> bool:
        return any(t in self.schedule.outputs for t in self.op.outputs)

    def split(self, axis: Var, factor: int) -> tuple[Var, Var]:
        """Break a loop in two.

        ``for i in range(10)`` with factor 4 becomes ``for o in range(3): for i in range(4): if o*4 + i < 10``. Legal
        for every leaf and every ``factor >= 1``.
        """
        k = self._leaf(axis, "split")
        if factor < 1:
            raise ScheduleError(
                f"split: factor {factor} of axis {axis.name} of stage {self.name}; it must be at least 1"
            )
        extent = axis.hi + 1
        inner_extent = min(factor, max(extent, 1))
        outer = Var(f"{axis.name}o", 0, -(-extent // inner_extent) - 1)
        inner = Var(f"{axis.name}i", 0, inner_extent - 1)
        self.leaves[k : k + 1] = [outer, inner]
        self.relations.append(Split(axis, outer, inner, factor))
        if axis in self._reducing:
            self._reducing |= {outer, inner}
        self._record("split", axis, factor)
        return outer, inner

    def tile(self, x: Var, y: Var, x_factor: int, y_factor: int) -> tuple[Var, Var, Var, Var]:
        """Split two loops and order them ``x outer, y outer, x inner, y inner``."""
        xo, xi = self.split(x, x_factor)
        yo, yi = self.split(y, y_factor)
        self.reorder(xo, yo, xi, yi)
        return xo, yo, xi, yi

    def fuse(self, *axes: Var) -> Var:
        """Make neighbouring loops one: ``for i: for j`` becomes ``for f in range(I*J)`` with ``i = f // J, j = f % J``.

        Legal for leaves that follow one another and are all data or all reduction axes.
        """
        if not axes:
            raise ScheduleError(f"fuse: no axis of stage {self.name} given")
        fused = axes[0]
        self._leaf(fused, "fuse")
        for inner in axes[1:]:
            k = self._leaf(fused, "fuse")
            if self._leaf(inner, "fuse") != k + 1:
                raise ScheduleError(f"fuse: {inner.name} does not follow {fused.name} in stage {self.name}")
            if self.is_reducing(fused) != self.is_reducing(inner):
                raise ScheduleError(
                    f"fuse: {fused.name} and {inner.name} of stage {self.name} are data and reduction axes"
                )
            outer = fused
            fused = Var(f"{outer.name}{inner.name}", 0, (outer.hi + 1) * (inner.hi + 1) - 1)
            self.leaves[k : k + 2] = [fused]
            self.relations.append(Fuse(outer, inner, fused))
            if self.is_reducing(inner):
                self._reducing.add(fused)
        self._record("fuse", *axes)
        return fused

    def reorder(self, *axes: Var) -> None:
        """Put the given leaves, in this order, into the places they hold now; always legal for data-parallel axes."""
        places = sorted(self._leaf(a, "reorder") for a in axes)
        if len(set(axes)) != len(axes):
            raise ScheduleError(f"reorder: an axis of stage {self.name} is given twice")
        for place, a in zip(places, axes, strict=True):
            self.leaves[place] = a
        self._record("reorder", *axes)

    def _annotate(self, axis: Var, kind: ForKind, primitive: str) -> None:
        self._leaf(axis, primitive)
        if kind in (ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.VTHREAD) and self.is_reducing(axis):
            raise ScheduleError(
                f"{primitive}: {axis.name} of stage {self.name} is a reduction axis; use rfactor first",
            )
        self.kinds[axis] = kind
        self._record(primitive, axis)

    def vectorize(self, axis: Var) -> None:
        """Run all iterations of a data axis as lanes of one vector."""
        self._annotate(axis, ForKind.VECTORIZED, "vectorize")

    def unroll(self, axis: Var) -> None:
        """Repeat the body instead of looping."""
        self._annotate(axis, ForKind.UNROLLED, "unroll")

    def parallel(self, axis: Var) -> None:
        """Share the iterations of a data axis among threads."""
        self._annotate(axis, ForKind.PARALLEL, "parallel")

    def vthread(self, axis: Var) -> None:
        """Run the iterations of a data axis as virtual threads, interleaved in one stream of instructions.

        ``for t in vthread(2): f(t); g(t)`` becomes ``f(0); f(1); g(0); g(1)``. What is computed inside has memory of
        its own in every thread. On a target whose units run at the same time, tokens order the units within a thread,
        and one thread computes while another loads (TVM, section "explicit memory latency hiding").
        """
        self._annotate(axis, ForKind.VTHREAD, "vthread")

    def tensorize(self, axis: Var, intrinsic: TensorIntrinsic) -> None:
        """Let an intrinsic of the target do what the loops from ``axis`` inwards do.

        ``for j in range(16): for k in range(16): y[i, j] += x[i, k] * w[j, k]`` becomes ``update(y[i, 0], x[i, 0],
        w[0, 0])``. Legal where these loops are all that is inside, have the extents of the intrinsic's axes in any
        order, compute what its behaviour says, on operands that lie where it wants them, and no condition depends on
        them; that is checked when the schedule is lowered. One intrinsic a stage.
        """
        self._leaf(axis, "tensorize")
        if self.tensorized is not None:
            before, other = self.tensorized
            raise ScheduleError(f"tensorize: stage {self.name} is {other.name} from {before.name} on already")
        self.tensorized = axis, intrinsic
        self._record("tensorize", axis, intrinsic.name)

    def pragma(self, axis: Var, key: str, value: Any = True) -> None:
        """Attach a fact for the code generator to a loop: ``pragma.<key>(value)``, first in its body.

        The body of a loop of one iteration stands in the loop around it, and so does the fact. Generators of code
        ignore what they do not know. ``outline``, on CPUs: the loop becomes a function of its own, so that its
        constants do not compete for registers with the loops before it. ``dma_copy`` and ``alu``, on accelerators: the
        nest is a transfer between memories, or arithmetic on vectors within one.
        """
        self._leaf(axis, "pragma")
        self.pragmas[axis, key] = value
        self._record("pragma", axis, key, value)

    def prefetch(self, tensor: te.Tensor, ahead: Var, at: Var, *, distance: int = 1, level: int = 1) -> None:
        """Bring what a later iteration reads of an input into a cache.

        ``for i: for j: …`` with ``ahead`` i and ``at`` j becomes ``for i: for j: prefetch(a[i + distance, part j])…``:
        the iterations of ``at`` share what one iteration of ``ahead`` reads, which has to be contiguous. With ``at``
        the same loop as ``ahead``, each iteration fetches the whole.

        Args:
            tensor: an input of the schedule, read in ``ahead`` by this stage or by one computed inside.
            ahead: the loop whose later iteration is served, of this stage or of one that it is computed inside.
            at: ``ahead`` or a loop of this stage inside it, where the fetches are made.
            distance: how many iterations of ``ahead`` later.
            level: of the cache: 1, 2 or 3.
        """
        self._leaf(at, "prefetch")
        if self.loops_between(ahead, at) is None:
            raise ScheduleError(f"prefetch: {at.name} of stage {self.name} is not inside {ahead.name}")
        if tensor.op is not None:
            raise ScheduleError(f"prefetch: {tensor.name} is computed, only inputs are fetched ahead")
        if distance < 1 or level not in (1, 2, 3):
            raise ScheduleError(f"prefetch: distance {distance} and level {level}; at least 1, and one of 1, 2, 3")
        self.fetches.append(Fetch(tensor, ahead, at, distance, level))
        self._record("prefetch", tensor.name, ahead, at, f"distance={distance}", f"level={level}")

    def loops_between(self, ahead: Var, at: Var) -> list[tuple[Stage, Var]] | None:
        """The loops inside ``ahead`` down to ``at`` of this stage, those of stages around it first.

        Gives:
            ``None`` where ``at`` is not inside ``ahead``.
        """
        own = [(self, a) for a in self.leaves[: self.leaves.index(at) + 1]]
        if ahead in self.leaves:
            first = self.leaves.index(ahead) + 1
            return own[first:] if first <= len(own) else None
        around = self.attach.stage.loops_between(ahead, self.attach.axis) if self.attach is not None else None
        return None if around is None else around + own

    def compute_at(self, consumer: Stage, axis: Var) -> None:
        """Compute what one iteration of the consumer's loop ``axis`` needs, right inside that loop."""
        consumer._leaf(axis, "compute_at")
        if self._is_output():
            raise ScheduleError(f"compute_at: stage {self.name} is an output, it is stored in full")
        if consumer is self:
            raise ScheduleError(f"compute_at: stage {self.name} cannot be computed inside itself")
        self.attach = AttachPoint(consumer, axis)
        self.inlined = False
        self._record("compute_at", f"s[{consumer.name}]", axis)

    def align(self, axis: Var, multiple: int) -> None:
        """Compute more than is needed: a region whose extent along a data axis is a multiple, within the tensor.

        With multiple 4, the 6 neighbours that a reader needs become 8. Legal for every data axis; it matters to a stage
        computed inside another.
        """
        if axis not in self.op.axes:
            raise ScheduleError(f"align: {axis.name} is no data axis of stage {self.name}")
        if multiple < 1:
            raise ScheduleError(f"align: multiple {multiple} of axis {axis.name} of stage {self.name} is below 1")
        self.aligned[axis] = multiple
        self._record("align", axis, multiple)

    def compute_root(self) -> None:
        """Compute the whole tensor before its readers."""
        self.attach = None
        self.inlined = False
        self._record("compute_root")

    def compute_inline(self) -> None:
        """Substitute the expression into every reader; legal for computes without a reduction that are no outputs."""
        if self.op.combiner is not None:
            raise ScheduleError(f"compute_inline: stage {self.name} is a reduction")
        if self._is_output():
            raise ScheduleError(f"compute_inline: stage {self.name} is an output, it is stored in full")
        self.inlined = True
        self.attach = None
        self._record("compute_inline")

    def set_scope(self, scope: str) -> None:
        """Keep the stage's buffer in the given memory: an open name, such as ``register``."""
        self.scope = scope
        self._record("set_scope", scope)


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

    def cache_write(self, tensor: te.Tensor, scope: str) -> te.Tensor:
        """Compute ``tensor`` in a new stage in ``scope``; the old stage becomes a copy of it.

        ``c[i] = f(i)`` becomes ``c.local[i] = f(i); c[i] = c.local[i]``. Gives the new tensor.
        """
        stage = self[tensor]
        plain = [*stage.op.axes, *stage.op.reduce_axes]
        if stage.leaves != plain or stage.relations or stage.kinds or stage.attach or stage.inlined:
            raise ScheduleError(f"cache_write: stage {stage.name} is scheduled already; cache it first")
        self._require_no_guests(stage, "cache_write")
        old = stage.op
        fresh = [Var(a.name, 0, a.hi) for a in (*old.axes, *old.reduce_axes)]
        env = dict(zip((*old.axes, *old.reduce_axes), fresh, strict=True))
        n = len(old.axes)
        inner = te.Compute(
            f"{old.name}.{scope}", tuple(fresh[:n]), tuple(fresh[n:]),
            tuple(substitute_vars(b, env) for b in old.bodies), old.combiner, old.tag, old.attrs,
        )  # fmt: skip
        caches = te.finish(inner)
        copy = te.Compute(
            old.name, old.axes, (), tuple(c[tuple(as_index(a) for a in old.axes)] for c in caches), None, "copy",
            {}, old.outputs,
        )  # fmt: skip
        self._insert(inner, before=stage, scope=scope)
        k = self.stages.index(stage)
        replacement = Stage(self, copy)
        replacement.scope = stage.scope
        self.stages[k] = replacement
        for t in old.outputs:
            self._by_tensor[t] = replacement
        self.history.append(f"cache_write({tensor.name}, {scope!r})")
        return caches[tensor.which]

    def cache_read(self, tensor: te.Tensor, scope: str, readers: Sequence[te.Tensor]) -> te.Tensor:
        """Copy ``tensor`` into ``scope`` and let the given readers read the copy. Gives the copy."""
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

        ``b[i] = sum(a[i, k])`` with ``k`` split into ``(ko, ki)`` and ``ki`` factored becomes
        ``b.rf[ki, i] = sum(a[i, ko, ki] for ko); b[i] = sum(b.rf[ki, i] for ki)``.

        Legal when ``axis`` is a reduction axis or one half of a split of it.
        Gives the tensor of partial results, whose first dimension is ``axis``.
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
