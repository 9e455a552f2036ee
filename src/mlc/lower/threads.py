"""Threads: all loops of a nest that are bound to one axis of a grid become one loop around the whole nest.

In: nests, maybe with loops of kind ``THREAD``, some inside others that are bound to the same axis, where a stage in
shared memory is computed. There each thread would compute all of it for itself. Out: a *launch* each nest: loops over
blocks, then the shared buffers, then loops over threads, and inside of these no loop that is bound. A thread computes
its share of what is in shared memory; barriers are put in later (:mod:`mlc.lower.barriers`). What threads fold together
in registers they exchange afterwards (:mod:`mlc.lower.lanes`).

Stores to memory that others see, outside of any loop bound to an axis of the launch, are the first thread's on that
axis; what is private, every thread computes for itself. A nest without bound loops is a block of one thread.
Example::

    for i in thread(4, "blockIdx.x"):              for bx in thread(4, "blockIdx.x"):
      for j in thread(8, "threadIdx.x"):             c: f32[8] in shared
        c: f32[8] in shared                     →    for tx in thread(8, "threadIdx.x"):
        for k in thread(8, "threadIdx.x"):             c[tx] = x[bx, tx]
          c[k] = x[i, k]                               y[bx, tx] = c[-tx + 7]
        y[i, j] = c[7 - j]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mlc.errors import ScheduleError
from mlc.ir.expr import all_of, within
from mlc.ir.index import Var
from mlc.ir.loop import (
    BLOCK_AXES,
    THREAD_AXES,
    Allocate,
    Buffer,
    For,
    ForKind,
    Seq,
    Stmt,
    Store,
    rebuild,
    seq,
    walk,
)
from mlc.lower.bounds import SHARED
from mlc.lower.lanes import exchange, folds_across
from mlc.lower.rewrite import decided, substitute_stmt

PRIVATE = ("local", "register")
"""Scopes of buffers that every thread has for itself."""


def threads(s: Stmt) -> Stmt:
    """Make every nest a launch.

    Raises:
        ScheduleError: loops that are bound to one axis have extents that do not go together, or a buffer that a launch
            allocates is in memory that lives no shorter than the launch.
    """
    if isinstance(s, Seq) or (isinstance(s, Allocate) and s.buffer.scope == "global"):
        return rebuild(s, threads)
    return _Launch(s).stmt()


def is_launch(s: Stmt) -> bool:
    """Whether a statement is a launch, as this pass leaves it."""
    return isinstance(s, For) and s.kind is ForKind.THREAD


def _bound(s: Stmt) -> list[For]:
    return [x for x in walk(s) if isinstance(x, For) and x.kind is ForKind.THREAD]


class _Launch:
    """One nest while it becomes a launch.

    Attributes:
        vars: the variable of every axis of the launch.
        loops: bound loops around the present statement, by their axes, outermost first.
        since: how many of these are around the allocation of a shared buffer.
    """

    def __init__(self, nest: Stmt) -> None:
        self.nest = nest
        extents: dict[str, int] = {}
        for lp in _bound(nest):
            extents[lp.thread] = max(extents.get(lp.thread, 1), lp.extent)
        self.vars = {
            axis: Var(f"{axis[0]}{axis[-1]}", 0, extents[axis] - 1)
            for axis in (*BLOCK_AXES, *THREAD_AXES)
            if axis in extents
        }
        if not any(axis in BLOCK_AXES for axis in self.vars):
            self.vars[BLOCK_AXES[-1]] = Var("bx", 0, 0)  # there is a block, even where there is one alone
        self.loops: list[str] = []
        self.since: dict[Buffer, int] = {}

    def stmt(self) -> Stmt:
        body = self._merged(self.nest)
        for axis in reversed([a for a in self.vars if a in THREAD_AXES]):
            body = self._loop(axis, body)
        for b in reversed(self.since):
            body = Allocate(b, body)
        for axis in reversed([a for a in self.vars if a in BLOCK_AXES]):
            body = self._loop(axis, body)
        return body

    def _loop(self, axis: str, body: Stmt) -> Stmt:
        var = self.vars[axis]
        return For(var, var.hi + 1, ForKind.THREAD, body, axis)

    def _merged(self, s: Stmt) -> Stmt:
        """The statement without bound loops and shared allocations."""
        if isinstance(s, Allocate) and s.buffer.scope not in PRIVATE:
            if s.buffer.scope != SHARED:
                raise ScheduleError(
                    f"buffer {s.buffer.name} is in {s.buffer.scope} memory and computed inside of threads; "
                    f"they can keep it in {SHARED}, {' or '.join(PRIVATE)} memory"
                )
            self.since[s.buffer] = len(self.loops)
            return self._merged(s.body)
        if isinstance(s, For) and s.kind is ForKind.THREAD:
            return self._share(s)
        if not _bound(s) and not _allocates_shared(s):
            needs = set(self._needs(s))
            if len(needs) == 1:
                (axes,) = needs
                return self._only_first(axes, s)
            if isinstance(s, Store):
                return s
        return rebuild(s, self._merged)

    def _share(self, s: For) -> Stmt:
        """The body of a bound loop, for the thread that it belongs to."""
        var = self.vars[s.thread]
        folds = folds_across(s, PRIVATE)
        cooperative = bool(folds) or any(lp.thread == s.thread for lp in _bound(s.body)) or _allocates_shared(s.body)
        if s.extent <= var.hi and cooperative:
            raise ScheduleError(
                f"loop {s.var.name} of extent {s.extent} is bound to {s.thread}, which has {var.hi + 1}: those beyond "
                "it would be missing from what all threads inside of it do together"
            )
        self.loops.append(s.thread)
        body = self._merged(s.body)
        self.loops.pop()
        own = decided(within(var, 0, s.extent), substitute_stmt(body, {s.var: var}), None)
        return seq([own, *(exchange(s, fold) for fold in folds)])

    def _needs(self, s: Stmt) -> Iterator[tuple[str, ...]]:
        """For every store in a statement, the axes of the launch that nothing around it is bound to."""
        for x in walk(s):
            if isinstance(x, Store):
                yield self._unbound(x.buffer)

    def _unbound(self, b: Buffer) -> tuple[str, ...]:
        if b.scope in PRIVATE:
            return ()
        inner: Sequence[str] = self.loops[self.since.get(b, 0) :]
        axes = THREAD_AXES if b in self.since else (*BLOCK_AXES, *THREAD_AXES)
        return tuple(a for a in axes if a in self.vars and a not in inner)

    def _only_first(self, axes: Sequence[str], s: Stmt) -> Stmt:
        cond = all_of([within(self.vars[a], 0, 1) for a in axes])
        return decided(cond, s, None)


def _allocates_shared(s: Stmt) -> bool:
    return any(isinstance(x, Allocate) and x.buffer.scope == SHARED for x in walk(s))


def grid_of(s: Stmt) -> tuple[Mapping[str, For], tuple[Buffer, ...], Stmt]:
    """A launch taken apart.

    Returns:
        its loops by their axes, the shared buffers, and what each thread does; for a statement that is no launch
        neither of them, and the statement.
    """
    loops: dict[str, For] = {}
    shared: list[Buffer] = []
    while is_launch(s) or (loops and isinstance(s, Allocate) and s.buffer.scope == SHARED):
        if isinstance(s, For):
            loops[s.thread] = s
        else:
            assert isinstance(s, Allocate)
            shared.append(s.buffer)
        assert isinstance(s, (For, Allocate))
        s = s.body
    return loops, tuple(shared), s


def launches(s: Stmt) -> list[Stmt]:
    """What a kernel runs one after the other: its launches, and nests that are one thread's."""
    if isinstance(s, Seq):
        return [x for c in s.stmts for x in launches(c)]
    return launches(s.body) if isinstance(s, Allocate) and s.buffer.scope == "global" else [s]
