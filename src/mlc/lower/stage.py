"""The stage of a schedule: the loop nest of one compute, and the primitives that change it.

The docstrings of the primitives show what becomes of one of three nests, before and after (the tests run them):

>>> show(rows()[0])
for i in range(6):
  for j in range(10):
    y[i, j] = x[i, j] + 1.0
>>> show(chain()[0])
y: f32[6,10]
for i in range(6):
  for j in range(10):
    y[i, j] = x[i, j] + 1.0
for i in range(6):
  for j in range(8):
    z[i, j] = y[i, j] * y[i, j + 2]
>>> show(sums()[0])
for i in range(6):
  y[i] = 0.0
  for k in range(10):
    y[i] = y[i] + x[i, k]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.intrinsic import TensorIntrinsic
from mlc.ir.loop import BLOCK_AXES, THREAD_AXES, ForKind
from mlc.lower.relations import Fetch, Fuse, Relation, Split
from mlc.lower.symbolic import least, most


class Owner(Protocol):
    """The schedule that a stage belongs to."""

    history: list[str]

    @property
    def outputs(self) -> Sequence[te.Tensor]: ...

    def find(self, tensor: te.Tensor) -> Stage | None: ...


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
        threads: which axis of a grid a leaf of kind ``THREAD`` is bound to.
        attach: ``None`` at the root, else where it is computed.
        inlined: whether its expression is substituted into its readers.
        scope: memory of its buffer; chosen by the lowering when ``None``.
        pragmas: facts for the code generator by (axis, key).
        aligned: what the extent of an attached stage's region is a multiple of, by data axis.
        pitches: what the stride of a data axis is modulo some number, by axis: number, remainder.
        fetches: what is prefetched in which loop.
        versions: how many of its buffer there are in turns; and
        asynchronous: whether it is copied while other things are done.
        tensorized: from which loop on the nest is which intrinsic.
    """

    def __init__(self, schedule: Owner, op: te.Compute) -> None:
        self.schedule = schedule
        self.op = op
        self.leaves: list[Var] = [*op.axes, *op.reduce_axes]
        self.relations: list[Relation] = []
        self.kinds: dict[Var, ForKind] = {}
        self.threads: dict[Var, str] = {}
        self.attach: AttachPoint | None = None
        self.inlined = False
        self.scope: str | None = None
        self.pragmas: dict[tuple[Var, str], Any] = {}
        self.aligned: dict[Var, int] = {}
        self.pitches: dict[Var, tuple[int, int]] = {}
        self.fetches: list[Fetch] = []
        self.versions = 1
        self.asynchronous = False
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
        """Break a loop in two: the outer one, and the inner one with ``factor`` iterations.

        >>> s, x, y = rows()
        >>> jo, ji = s[y].split(s[y].axes[1], 4)
        >>> show(s)
        for i in range(6):
          for jo in range(3):
            for ji in range(4):
              if 4*jo + ji < 10:
                y[i, 4*jo + ji] = x[i, 4*jo + ji] + 1.0

        Raises:
            ScheduleError: ``axis`` is no leaf, or ``factor`` is below 1.
        """
        k = self._leaf(axis, "split")
        if factor < 1:
            raise ScheduleError(
                f"split: factor {factor} of axis {axis.name} of stage {self.name}; it must be at least 1"
            )
        extent = axis.hi + 1
        inner_extent = least(factor, most(extent, 1))
        outer = Var(f"{axis.name}o", 0, -(-extent // inner_extent) - 1)
        inner = Var(f"{axis.name}i", 0, inner_extent - 1)
        self.leaves[k : k + 1] = [outer, inner]
        self.relations.append(Split(axis, outer, inner, factor))
        if axis in self._reducing:
            self._reducing |= {outer, inner}
        self._record("split", axis, factor)
        return outer, inner

    def tile(self, x: Var, y: Var, x_factor: int, y_factor: int) -> tuple[Var, Var, Var, Var]:
        """Split two loops and order them ``x outer, y outer, x inner, y inner``.

        >>> s, x, y = rows()
        >>> _ = s[y].tile(*s[y].axes, 2, 5)
        >>> show(s)
        for io in range(3):
          for jo in range(2):
            for ii in range(2):
              for ji in range(5):
                y[2*io + ii, 5*jo + ji] = x[2*io + ii, 5*jo + ji] + 1.0

        Raises:
            ScheduleError: as :meth:`split`.
        """
        xo, xi = self.split(x, x_factor)
        yo, yi = self.split(y, y_factor)
        self.reorder(xo, yo, xi, yi)
        return xo, yo, xi, yi

    def fuse(self, *axes: Var) -> Var:
        """Make neighbouring loops one.

        >>> s, x, y = rows()
        >>> _ = s[y].fuse(*s[y].axes)
        >>> show(s)
        for ij in range(60):
          y[ij//10, ij%10] = x[ij//10, ij%10] + 1.0

        Raises:
            ScheduleError: they are no leaves that follow one another, or data axes as well as reduction axes.
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
        """Put the given leaves, in this order, into the places they hold now; always legal for data-parallel axes.

        >>> s, x, y = rows()
        >>> i, j = s[y].axes
        >>> s[y].reorder(j, i)
        >>> show(s)
        for j in range(10):
          for i in range(6):
            y[i, j] = x[i, j] + 1.0

        Raises:
            ScheduleError: one is no leaf, or is given twice.
        """
        places = sorted(self._leaf(a, "reorder") for a in axes)
        if len(set(axes)) != len(axes):
            raise ScheduleError(f"reorder: an axis of stage {self.name} is given twice")
        for place, a in zip(places, axes, strict=True):
            self.leaves[place] = a
        self._record("reorder", *axes)

    def _annotate(self, axis: Var, kind: ForKind, primitive: str, *more: str) -> None:
        self._leaf(axis, primitive)
        alike = (ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.THREAD, ForKind.VTHREAD)
        if kind in alike and self.is_reducing(axis) and THREAD_AXES[-1] not in more:
            raise ScheduleError(
                f"{primitive}: {axis.name} of stage {self.name} is a reduction axis; use rfactor first",
            )
        self.kinds[axis] = kind
        self._record(primitive, axis, *more)

    def vectorize(self, axis: Var) -> None:
        """Run all iterations of a data axis as lanes of one vector.

        >>> s, x, y = rows()
        >>> s[y].vectorize(s[y].axes[1])
        >>> show(s)
        for i in range(6):
          for j in vectorized(10):
            y[i, j] = x[i, j] + 1.0

        Raises:
            ScheduleError: ``axis`` is no leaf, or a reduction axis.
        """
        self._annotate(axis, ForKind.VECTORIZED, "vectorize")

    def unroll(self, axis: Var) -> None:
        """Repeat the body instead of looping.

        >>> s, x, y = rows()
        >>> s[y].unroll(s[y].axes[1])
        >>> show(s)
        for i in range(6):
          for j in unrolled(10):
            y[i, j] = x[i, j] + 1.0

        Raises:
            ScheduleError: ``axis`` is no leaf.
        """
        self._annotate(axis, ForKind.UNROLLED, "unroll")

    def parallel(self, axis: Var) -> None:
        """Share the iterations of a data axis among threads.

        >>> s, x, y = rows()
        >>> s[y].parallel(s[y].axes[0])
        >>> show(s)
        for i in parallel(6):
          for j in range(10):
            y[i, j] = x[i, j] + 1.0

        Raises:
            ScheduleError: ``axis`` is no leaf, or a reduction axis.
        """
        self._annotate(axis, ForKind.PARALLEL, "parallel")

    def bind(self, axis: Var, thread: str) -> None:
        """Run the iterations of an axis side by side: as blocks of a grid, or as threads of a block.

        Axes of a grid are ``blockIdx.x``, ``.y`` and ``.z``, those of a block ``threadIdx.x``, ``.y`` and ``.z``.
        Loops bound to one axis are one loop of the kernel, wherever they stand: a stage in ``shared`` memory that is
        computed inside another one's threads, and bound to the same axes, is computed by all threads of the block
        together, with barriers between them where they are needed (TVM, section 4.2, "cooperation").

        A reduction axis can be bound to ``threadIdx.x``, where a stage is computed inside of another and every thread
        keeps the result: the threads of a warp fold together, and all of them have what comes out
        (:mod:`mlc.lower.lanes`).

        >>> s, x, y = rows()
        >>> i, j = s[y].axes
        >>> s[y].bind(i, "blockIdx.x")
        >>> s[y].bind(j, "threadIdx.x")
        >>> show(s)
        for i in thread(6, "blockIdx.x"):
          for j in thread(10, "threadIdx.x"):
            y[i, j] = x[i, j] + 1.0

        Raises:
            ScheduleError: ``axis`` is no leaf, or a reduction axis and the other one not ``threadIdx.x``, there is no
                such axis of a grid, or another loop of the stage has it.
        """
        if thread not in (*BLOCK_AXES, *THREAD_AXES):
            raise ScheduleError(
                f"bind: {axis.name} of stage {self.name} to {thread!r}; known: {', '.join((*BLOCK_AXES, *THREAD_AXES))}"
            )
        other = next((a for a in self.leaves if self.threads.get(a) == thread and a is not axis), None)
        if other is not None:
            raise ScheduleError(f"bind: {other.name} of stage {self.name} is bound to {thread} already")
        self._annotate(axis, ForKind.THREAD, "bind", thread)
        self.threads[axis] = thread

    def vthread(self, axis: Var) -> None:
        """Run the iterations of a data axis as virtual threads, interleaved in one stream of instructions.

        ``for t in vthread(2): f(t); g(t)`` becomes ``f(0); f(1); g(0); g(1)``. What is computed inside has memory of
        its own in every thread. On a target whose units run at the same time, tokens order the units within a thread,
        and one thread computes while another loads (TVM, section "explicit memory latency hiding").

        >>> s, x, y = rows()
        >>> s[y].vthread(s[y].split(s[y].axes[0], 3)[0])
        >>> show(s)
        for io in vthread(2):
          for ii in range(3):
            for j in range(10):
              y[3*io + ii, j] = x[3*io + ii, j] + 1.0

        Raises:
            ScheduleError: ``axis`` is no leaf, or a reduction axis.
        """
        self._annotate(axis, ForKind.VTHREAD, "vthread")

    def tensorize(self, axis: Var, intrinsic: TensorIntrinsic) -> None:
        """Let an intrinsic of the target do what the loops from ``axis`` inwards do.

        Here ``sum5`` is one that sums up five neighbours, or adds their sum to what is there.

        >>> s, x, y = sums()
        >>> _, inner = s[y].split(s[y].reduce_axes[0], 5)
        >>> show(s)
        for i in range(6):
          y[i] = 0.0
          for ko in range(2):
            for ki in range(5):
              y[i] = y[i] + x[i, 5*ko + ki]
        >>> s[y].tensorize(inner, sum5)
        >>> show(s)
        for i in range(6):
          sum5(reset, y[i])
          for ko in range(2):
            sum5(update, y[i], x[i, 5*ko])

        Legal where these loops are all that is inside, have the extents of the intrinsic's axes in any
        order, compute what its behaviour says, on operands that lie where it wants them, and no condition depends on
        them; that is checked when the schedule is lowered.

        Raises:
            ScheduleError: ``axis`` is no leaf, or the stage has an intrinsic already.
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
        constants do not compete for registers with the loops before it. ``unroll``, on GPUs: so many iterations are
        written out in a row, where the compiler's own choice takes too many registers. ``dma_copy`` and ``alu``, on
        accelerators: the nest is a transfer between memories, or arithmetic on vectors within one.

        >>> s, x, y = rows()
        >>> s[y].pragma(s[y].axes[1], "outline")
        >>> show(s)
        for i in range(6):
          for j in range(10):
            pragma.outline(True)
            y[i, j] = x[i, j] + 1.0

        Raises:
            ScheduleError: ``axis`` is no leaf.
        """
        self._leaf(axis, "pragma")
        self.pragmas[axis, key] = value
        self._record("pragma", axis, key, value)

    def prefetch(self, tensor: te.Tensor, ahead: Var, at: Var, *, distance: int = 1, level: int = 1) -> None:
        """Bring what a later iteration reads of an input into a cache.

        The iterations of ``at`` share what one iteration of ``ahead`` reads, which has to be contiguous. With ``at``
        the same loop as ``ahead``, each iteration fetches the whole.

        >>> s, x, y = rows()
        >>> i, j = s[y].axes
        >>> s[y].prefetch(x, ahead=i, at=j, distance=2)
        >>> show(s)
        for i in range(6):
          for j in range(10):
            if j < 1:
              prefetch(x[i + 2, 16*j], level=1)
            y[i, j] = x[i, j] + 1.0

        Args:
            tensor: an input of the schedule, read in ``ahead`` by this stage or by one computed inside.
            ahead: the loop whose later iteration is served, of this stage or of one that it is computed inside.
            at: ``ahead`` or a loop of this stage inside it, where the fetches are made.
            distance: how many iterations of ``ahead`` later.
            level: of the cache: 1, 2 or 3.
        Raises:
            ScheduleError: ``at`` is not inside ``ahead``, the tensor is computed, or a number is out of range.
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
        """Compute what one iteration of the consumer's loop ``axis`` needs, right inside that loop.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> show(s)
        for i in range(6):
          y: f32[1,10] in local
          for j in range(10):
            y[0, j] = x[i, j] + 1.0
          for j in range(8):
            z[i, j] = y[0, j] * y[0, j + 2]

        Raises:
            ScheduleError: ``axis`` is no leaf of the consumer, or the stage is an output or the consumer itself.
        """
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

        It matters to a stage computed inside another: here the 4 neighbours that its reader needs become 6.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].split(s[z].axes[1], 2)[0])
        >>> s[y].align(s[y].op.axes[1], 3)
        >>> show(s)
        for i in range(6):
          for jo in range(4):
            y: f32[1,6] in local
            for j in range(6):
              if 2*jo + j < 10:
                y[0, j] = x[i, 2*jo + j] + 1.0
            for ji in range(2):
              z[i, 2*jo + ji] = y[0, ji] * y[0, ji + 2]

        Raises:
            ScheduleError: ``axis`` is no data axis of the compute, or ``multiple`` is below 1.
        """
        if axis not in self.op.axes:
            raise ScheduleError(f"align: {axis.name} is no data axis of stage {self.name}")
        if multiple < 1:
            raise ScheduleError(f"align: multiple {multiple} of axis {axis.name} of stage {self.name} is below 1")
        self.aligned[axis] = multiple
        self._record("align", axis, multiple)

    def storage_align(self, axis: Var, factor: int, offset: int) -> None:
        """Leave gaps in the buffer of an attached stage: the stride of a data axis is ``offset`` modulo ``factor``.

        Neighbours along the axis then lie in different banks of shared memory.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].split(s[z].axes[0], 3)[0])
        >>> s[y].storage_align(s[y].op.axes[0], 8, 1)
        >>> show(s)
        for io in range(2):
          y: f32[3,17] in local
          for i in range(3):
            for j in range(10):
              y[i, j] = x[3*io + i, j] + 1.0
          for ii in range(3):
            for j in range(8):
              z[3*io + ii, j] = y[ii, j] * y[ii, j + 2]

        Raises:
            ScheduleError: ``axis`` is not the last data axis but one, or ``offset`` is not in ``range(factor)``.
        """
        if len(self.op.axes) < 2 or axis is not self.op.axes[-2]:
            raise ScheduleError(f"storage_align: {axis.name} of stage {self.name} is not its last data axis but one")
        if not 0 <= offset < factor:
            raise ScheduleError(f"storage_align: offset {offset} is not below {factor}, for stage {self.name}")
        self.pitches[axis] = factor, offset
        self._record("storage_align", axis, factor, offset)

    def double_buffer(self, versions: int = 2, *, asynchronous: bool = False) -> None:
        """Compute an attached stage some iterations ahead of its readers, into versions of its buffer in turns.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> s[y].double_buffer()
        >>> show(s)
        y: f32[2,1,10] in local
        for i in range(7):
          if i < 6:
            for j in range(10):
              y[i%2, 0, j] = x[i, j] + 1.0
          if 1 <= i:
            for j in range(8):
              z[i - 1, j] = y[(i + 1)%2, 0, j] * y[(i + 1)%2, 0, j + 2]

        Args:
            versions: of the buffer; the stage is one iteration less ahead.
            asynchronous: whether its stores are begun, and waited for when they are needed, by machines whose threads
                can do that: as far as they copy 4, 8 or 16 bytes of memory, or as many zeros, to shared memory.

        Raises:
            ScheduleError: there are fewer than two versions.
        """
        if versions < 2:
            raise ScheduleError(f"double_buffer: {versions} versions of stage {self.name}; there are at least 2")
        self.versions, self.asynchronous = versions, asynchronous
        self._record("double_buffer", versions, *(["asynchronous=True"] if asynchronous else []))

    def compute_root(self) -> None:
        """Compute the whole tensor before its readers, as every stage is at first; takes back where it was computed.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> s[y].compute_root()
        >>> show(s)
        y: f32[6,10]
        for i in range(6):
          for j in range(10):
            y[i, j] = x[i, j] + 1.0
        for i in range(6):
          for j in range(8):
            z[i, j] = y[i, j] * y[i, j + 2]
        """
        self.attach = None
        self.inlined = False
        self._record("compute_root")

    def compute_inline(self) -> None:
        """Substitute the expression into every reader.

        >>> s, x, y, z = chain()
        >>> s[y].compute_inline()
        >>> show(s)
        for i in range(6):
          for j in range(8):
            z[i, j] = (x[i, j] + 1.0) * (x[i, j + 2] + 1.0)

        Raises:
            ScheduleError: the compute is a reduction, or an output.
        """
        if self.op.combiner is not None:
            raise ScheduleError(f"compute_inline: stage {self.name} is a reduction")
        if self._is_output():
            raise ScheduleError(f"compute_inline: stage {self.name} is an output, it is stored in full")
        self.inlined = True
        self.attach = None
        self._record("compute_inline")

    def set_scope(self, scope: str) -> None:
        """Keep the stage's buffer in the given memory, which has an open name.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> s[y].set_scope("register")
        >>> show(s)
        for i in range(6):
          y: f32[1,10] in register
          for j in range(10):
            y[0, j] = x[i, j] + 1.0
          for j in range(8):
            z[i, j] = y[0, j] * y[0, j + 2]
        """
        self.scope = scope
        self._record("set_scope", scope)
