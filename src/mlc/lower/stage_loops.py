"""The loops of one compute, and the primitives that change them; where its results are is :mod:`mlc.lower.stage`'s.

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
from typing import Any, Protocol

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.intrinsic import TensorIntrinsic
from mlc.ir.loop import BLOCK_AXES, THREAD_AXES, ForKind
from mlc.lower.relations import Fuse, Relation, Split
from mlc.lower.symbolic import least, most


class Keeper(Protocol):
    """What a schedule is to the loops in it."""

    history: list[str]

    @property
    def outputs(self) -> Sequence[te.Tensor]: ...


class Loops:
    """A loop nest.

    Attributes:
        op: what is computed.
        leaves: loop axes, outermost first.
        relations: splits and fuses, in order of application.
        kinds: how a leaf runs, where it is not serial.
        threads: which axis of a grid a leaf of kind ``THREAD`` is bound to.
        inlined: whether the expression is substituted into its readers, so that there are no loops.
        pragmas: facts for the code generator by (axis, key).
        tensorized: from which loop on the nest is which intrinsic.
    """

    def __init__(self, schedule: Keeper, op: te.Compute) -> None:
        self.schedule = schedule
        self.op = op
        self.leaves: list[Var] = [*op.axes, *op.reduce_axes]
        self.relations: list[Relation] = []
        self.kinds: dict[Var, ForKind] = {}
        self.threads: dict[Var, str] = {}
        self.inlined = False
        self.pragmas: dict[tuple[Var, str], Any] = {}
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
        constants do not compete for registers with the loops before it. ``reload``, on CPUs: each iteration of an
        unrolled loop loads what it reads, even if one before it has, so that this needs no registers. ``unroll``, on
        GPUs: so many iterations are written out in a row, where the compiler's own choice takes too many registers.
        ``dma_copy`` and ``alu``, on accelerators: the nest is a transfer between memories, or arithmetic on vectors
        within one.

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
