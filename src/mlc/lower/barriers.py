"""Barriers: where threads of a block read what others have written, all of them meet before.

In: launches as :mod:`mlc.lower.threads` leaves them. Out: the same with ``barrier("shared")`` in front of every
statement that touches shared memory which other threads have touched, one of them writing, since the last barrier. It
is put in front of the outermost statement of which that holds, so around loops rather than inside. In a loop whose
next iteration meets what the last one left, it is the first statement of the body. There is one behind every ``wait``:
what a thread has copied, others read.

Example::

    for k in range(3):                                for k in range(3):
      c[tx] = x[k, tx]                                  barrier("shared")
      y[tx] = y[tx] + c[7 - tx]                   →     c[tx] = x[k, tx]
                                                        barrier("shared")
                                                        y[tx] = y[tx] + c[7 - tx]
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import ScheduleError
from mlc.ir.index import Var, as_index
from mlc.ir.loop import (
    THREAD_AXES,
    Allocate,
    Barrier,
    Buffer,
    For,
    ForRange,
    If,
    Seq,
    Stmt,
    Store,
    Wait,
    rebuild,
    seq,
)
from mlc.lower.bounds import SHARED
from mlc.lower.facts import Fact, Facts, facts_of
from mlc.lower.sharing import Threads, Touch, thread_dependent
from mlc.lower.threads import grid_of, is_launch


def barriers(s: Stmt) -> Stmt:
    """Put barriers into every launch.

    Raises:
        ScheduleError: threads would have to meet where not all of them come.
    """
    if not is_launch(s):
        return rebuild(s, barriers)
    loops, shared, body = grid_of(s)
    threads = Threads.of(loops, THREAD_AXES)
    if not shared or not threads.vars:
        return s
    return _around(s, _Placer(threads, shared).placed(body, ()))


def _around(s: Stmt, body: Stmt) -> Stmt:
    """A launch with another body."""
    if is_launch(s) or (isinstance(s, Allocate) and s.buffer.scope == SHARED):
        return rebuild(s, lambda c: _around(c, body))
    return body


class _Placer:
    def __init__(self, threads: Threads, shared: Sequence[Buffer]) -> None:
        self.threads = threads
        self.shared = set(shared)
        self.open: list[Var] = []  # of loops around the present statement

    def placed(self, s: Stmt, facts: Facts) -> Stmt:
        """The statement with the barriers that it needs whatever is around it."""
        if isinstance(s, Seq):
            return self._sequence(s, facts)
        if isinstance(s, (For, ForRange)):
            return self._loop(s, facts)
        if isinstance(s, If):
            then = self.placed(s.then, (*facts, *facts_of(s.cond)))
            orelse = (
                None
                if s.orelse is None
                else self.placed(s.orelse, (*facts, *facts_of(s.cond, holds=False, given=facts)))
            )
            new = s if then is s.then and orelse is s.orelse else If(s.cond, then, orelse)
            if new is not s and thread_dependent(s, self.threads):
                raise ScheduleError(f"threads need a barrier where not all of them come, in\n{s!r}")
            return new
        if isinstance(s, Allocate):
            return rebuild(s, lambda c: self.placed(c, facts))
        if isinstance(s, Wait):
            return seq([s, Barrier(SHARED)])
        if isinstance(s, Store):
            own = self.begin(s, facts)
            if self._meet(own, own):
                raise ScheduleError(f"threads race within one statement:\n{s!r}")
        return s

    def _sequence(self, s: Seq, facts: Facts) -> Stmt:
        out: list[Stmt] = []
        pending: list[Touch] = []
        for c in s.stmts:
            new = self.placed(c, facts)
            if self._meet(pending, self.begin(new, facts)):
                out.append(Barrier(SHARED))
                pending = []
            out.append(new)
            pending = self.end(new, facts, pending)
        same = len(out) == len(s.stmts) and all(a is b for a, b in zip(out, s.stmts, strict=True))
        return s if same else seq(out)

    def _loop(self, s: For | ForRange, facts: Facts) -> Stmt:
        self.open.append(s.var)
        body = self.placed(s.body, facts)
        last = self._carried(s.var, body, facts)
        if self._meet(last, self.begin(body, facts)):
            body = seq([Barrier(SHARED), body])
        self.open.pop()
        new = rebuild(s, lambda _: body)
        if new is not s and thread_dependent(s, self.threads):
            raise ScheduleError(f"threads need a barrier in a loop that they do not all go around, in\n{s!r}")
        return new

    def _carried(self, var: Var, body: Stmt, facts: Facts) -> list[Touch]:
        """What an earlier iteration of a loop has left without a barrier; the last one if there is one in the body."""
        left = self.end(body, facts, [])
        if not always_meet(body):
            return [t.renamed({var: Var(var.name, 0, var.hi)}) for t in left]
        return [t.renamed({var: as_index(var) - 1}, (Fact(as_index(var), 1, var.hi + 1),)) for t in left]

    def _meet(self, before: Sequence[Touch], after: Sequence[Touch]) -> bool:
        return any(self.threads.conflict(a, b, self.open) is not False for a in before for b in after)

    def begin(self, s: Stmt, facts: Facts) -> list[Touch]:
        """What a statement touches before its first barrier."""
        return self._reach(s, facts, [], backwards=False)

    def end(self, s: Stmt, facts: Facts, before: Sequence[Touch]) -> list[Touch]:
        """What has been touched after a statement's last barrier; without one, also what was before it."""
        return self._reach(s, facts, before, backwards=True)

    def _reach(self, s: Stmt, facts: Facts, before: Sequence[Touch], *, backwards: bool) -> list[Touch]:
        if isinstance(s, Barrier):
            return []
        if isinstance(s, Seq):
            found = list(before)
            for c in s.stmts:
                if backwards:
                    found = self._reach(c, facts, found, backwards=True)
                    continue
                found += self._reach(c, facts, [], backwards=False)
                if always_meet(c):
                    break
            return found
        own = [t for t in self.threads.touches(s, facts) if t.buffer in self.shared]
        if isinstance(s, If):
            sides = [self._reach(s.then, (*facts, *facts_of(s.cond)), before, backwards=backwards)]
            other = () if s.orelse is None else (s.orelse,)
            sides += [
                self._reach(c, (*facts, *facts_of(s.cond, holds=False, given=facts)), before, backwards=backwards)
                for c in other
            ] or [list(before)]
            return list(dict.fromkeys([*own, *(t for side in sides for t in side)]))
        if isinstance(s, (For, ForRange)):
            inside = self._reach(s.body, facts, [], backwards=backwards)
            free = {s.var: Var(s.var.name, 0, s.var.hi)}  # its iterations are over, or not yet begun
            left = [] if always_meet(s.body) else list(before)
            return [*left, *own, *(t.renamed(free) if s.var in t.vars() else t for t in inside)]
        if isinstance(s, Allocate):
            return self._reach(s.body, facts, before, backwards=backwards)
        return [*before, *own]


def always_meet(s: Stmt) -> bool:
    """Whether all threads that run a statement come to a barrier in it."""
    if isinstance(s, Seq):
        return any(map(always_meet, s.stmts))
    if isinstance(s, (For, Allocate)):
        return always_meet(s.body)
    if isinstance(s, If):
        return s.orelse is not None and always_meet(s.then) and always_meet(s.orelse)
    return isinstance(s, Barrier)
