"""Threads of a block in the reference interpreter: each runs up to a barrier, then the next one; races are found.

A block's threads are coroutines that run in turn, from one meeting to the next. Between two barriers they may run in
any order on a machine, so an element that one thread writes and another touches in the meantime is a race, whatever
comes out here. Global memory is not synchronised within a launch at all. An asynchronous copy arrives when its thread
waits for it, as late as it may; to touch its place before, even by the same thread, is a race. Where threads exchange
what they have, all of them come, too, but nothing that they wrote before is seen by others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Protocol

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import loop
from mlc.ir.expr import Expr, Load
from mlc.ir.index import Var

_NOBODY, _MANY = -1, -2

Env = dict[Var, int]
Place = tuple[tuple[Var, int], ...]  # the iterations of the loops around a meeting
WARP = 32  # threads that can exchange what they have


class Machine(Protocol):
    """What runs statements one at a time."""

    memory: dict[int, np.ndarray]
    trace: Trace | None

    def run(self, s: loop.Stmt, env: Env) -> None: ...

    def value(self, e: Expr, env: Env) -> np.ndarray: ...

    def put(self, s: loop.Store | loop.Shuffle, value: np.ndarray, env: Env) -> None: ...

    def allocate(self, b: loop.Buffer) -> None: ...


@dataclass(frozen=True, eq=False)
class _Meeting:
    """Where a thread waits for the others.

    Args:
        stmt: a barrier, or an exchange,
        place: and in which iterations.
        offer: what the thread gives.
    """

    stmt: loop.Barrier | loop.Shuffle
    place: Place
    offer: np.ndarray | None = None


Steps = Generator[_Meeting, np.ndarray | None, None]


@dataclass(eq=False)
class _Touched:
    """Who touched each element of a buffer since the last barrier, and who is copying to it."""

    writer: np.ndarray
    reader: np.ndarray
    copier: np.ndarray

    @classmethod
    def by_nobody(cls, size: int) -> _Touched:
        return cls(*(np.full(size, _NOBODY) for _ in range(3)))


@dataclass(frozen=True, eq=False)
class _Copy:
    """An asynchronous copy that has begun."""

    buffer: loop.Buffer
    index: tuple[Any, ...]
    array: np.ndarray
    value: Any


@dataclass(eq=False)
class Trace:
    """Who touches which element of the memory that threads share, during one launch of a kernel.

    Args:
        common: ids of the buffers that all blocks see.

    Attributes:
        block: ids of the buffers that the threads of the present block see.
        thread: who runs, counted over all blocks.
        names: of threads, for messages.
    """

    common: frozenset[int]
    block: frozenset[int] = frozenset()
    thread: int = 0
    names: list[str] = field(default_factory=list)
    touched: dict[int, _Touched] = field(default_factory=dict)
    begun: dict[int, list[_Copy]] = field(default_factory=dict)
    groups: dict[int, list[list[_Copy]]] = field(default_factory=dict)

    def barrier(self) -> None:
        """The threads of the block have met: what they did to their own memory is over, except for what they copy."""
        for key in self.block & self.touched.keys():
            self.touched[key].writer.fill(_NOBODY)
            self.touched[key].reader.fill(_NOBODY)

    def begin(self, b: loop.Buffer, index: tuple[Any, ...], array: np.ndarray, value: Any) -> None:
        """A copy that the present thread begins."""
        self.write(b, index)
        if (seen := self._of(b)) is not None:
            seen.copier[_flat(b, index)] = self.thread
        self.begun.setdefault(self.thread, []).append(_Copy(b, index, array, value))

    def commit(self) -> None:
        """The copies that the present thread has begun are a group."""
        self.groups.setdefault(self.thread, []).append(self.begun.pop(self.thread, []))

    def wait(self, latest: int) -> None:
        """The copies of the present thread arrive, except for some of the latest groups."""
        groups = self.groups.setdefault(self.thread, [])
        over = groups[: max(0, len(groups) - latest)]
        del groups[: len(over)]
        for c in (c for group in over for c in group):
            if (seen := self._of(c.buffer)) is not None:
                at = _flat(c.buffer, c.index)
                seen.copier[at], seen.writer[at] = _NOBODY, self.thread
            c.array[c.index] = c.value

    def read(self, b: loop.Buffer, index: tuple[Any, ...]) -> None:
        if (seen := self._of(b)) is None:
            return
        at = _flat(b, index)
        self._refuse_copied(b, at, seen, "read")
        self._refuse(b, at, seen.writer, "written", "read")
        another = self._by_another(seen.reader[at])
        seen.reader[at] = np.where(another, _MANY, self.thread) if another.any() else self.thread

    def write(self, b: loop.Buffer, index: tuple[Any, ...]) -> None:
        if (seen := self._of(b)) is None:
            return
        at = _flat(b, index)
        self._refuse_copied(b, at, seen, "written")
        self._refuse(b, at, seen.writer, "written", "written")
        self._refuse(b, at, seen.reader, "read", "written")
        seen.writer[at] = self.thread

    def _of(self, b: loop.Buffer) -> _Touched | None:
        if id(b) not in self.common and id(b) not in self.block:
            return None
        if id(b) not in self.touched:
            self.touched[id(b)] = _Touched.by_nobody(b.size)
        return self.touched[id(b)]

    def _by_another(self, who: np.ndarray) -> np.ndarray:
        """Where somebody else than the present thread was."""
        another: np.ndarray = (who != _NOBODY) & (who != self.thread)
        return another

    def _refuse_copied(self, b: loop.Buffer, at: np.ndarray | int, seen: _Touched, now: str) -> None:
        wrong = seen.copier[at] != _NOBODY
        if wrong.any():
            at, wrong = np.atleast_1d(at, wrong)
            where = np.unravel_index(int(at[wrong][0]), b.shape)
            raise VerifyError(
                f"race on {b.name}[{', '.join(map(str, where))}] in {b.scope} memory: {now} by "
                f"{self.names[self.thread]}, while {self.names[int(seen.copier[at][wrong][0])]} copies to it without "
                "having waited"
            )

    def _refuse(self, b: loop.Buffer, at: np.ndarray | int, who: np.ndarray, before: str, now: str) -> None:
        wrong = self._by_another(who[at])
        if wrong.any():
            at, wrong = np.atleast_1d(at, wrong)
            other = int(who[at][wrong][0])
            by = self.names[other] if other >= 0 else "several threads"
            where = np.unravel_index(int(at[wrong][0]), b.shape)
            raise VerifyError(
                f"race on {b.name}[{', '.join(map(str, where))}] in {b.scope} memory: {before} by {by} and {now} by "
                f"{self.names[self.thread]}, with no barrier between"
            )


def _flat(b: loop.Buffer, index: tuple[Any, ...]) -> np.ndarray | int:
    """Places in a buffer, in row-major order, of indices within its shape."""
    if all(type(i) is int for i in index):  # numpy takes its time over single numbers
        at = 0
        for i, n in zip(index, b.shape, strict=True):
            at = at * n + i
        return at
    return np.ravel(np.ravel_multi_index(np.broadcast_arrays(*index), b.shape))


def run_grid(machine: Machine, s: loop.For, env: Env) -> None:
    """A launch: every block of a loop nest over a grid."""
    machine.trace = Trace(frozenset(machine.memory))
    try:
        _blocks(machine, s, env, machine.trace)
    finally:
        machine.trace = None


def _blocks(machine: Machine, s: loop.Stmt, env: Env, trace: Trace) -> None:
    if isinstance(s, loop.For) and s.thread in loop.BLOCK_AXES:
        for k in range(s.extent):
            env[s.var] = k
            _blocks(machine, s.body, env, trace)
    elif isinstance(s, loop.Allocate):
        machine.allocate(s.buffer)
        trace.touched.pop(id(s.buffer), None)
        before = trace.block
        trace.block |= {id(s.buffer)}
        _blocks(machine, s.body, env, trace)
        trace.block = before
    else:
        _block(machine, s, env, trace)


def _block(machine: Machine, s: loop.Stmt, env: Env, trace: Trace) -> None:
    """One block: its threads take turns from barrier to barrier."""
    loops: list[loop.For] = []
    while isinstance(s, loop.For) and s.thread in loop.THREAD_AXES:
        loops.append(s)
        s = s.body
    around = machine.memory
    first = len(trace.names)
    count = prod(lp.extent for lp in loops)
    threads: list[tuple[Steps, dict[int, np.ndarray]]] = []
    for at in product(*(range(lp.extent) for lp in loops)):
        own = {**env, **{lp.var: k for lp, k in zip(loops, at, strict=True)}}
        where = ", ".join(f"{v.name}={k}" for v, k in own.items())
        trace.names.append(f"thread ({where})")
        threads.append((_run(machine, s, own, ()), dict(around)))
    width = next((lp.extent for lp in loops if lp.thread == loop.THREAD_AXES[-1]), 1)
    given: list[np.ndarray | None] = [None] * count
    try:
        while threads:
            met: list[_Meeting | None] = []
            for k, (steps, memory) in enumerate(threads):
                trace.thread, machine.memory = first + k, memory
                try:
                    met.append(steps.send(given[k]))
                except StopIteration:
                    met.append(None)
            _require_all_met(met, trace.names[first : first + count])
            if met[0] is None:
                break
            if isinstance(met[0].stmt, loop.Shuffle):
                given = _exchanged(met[0].stmt, [m.offer for m in met if m is not None], width)
            else:
                trace.barrier()
                given = [None] * count
    finally:
        machine.memory = around


def _require_all_met(met: list[_Meeting | None], names: list[str]) -> None:
    where = [None if m is None else (m.stmt, m.place) for m in met]
    for at, name in zip(where, names, strict=True):
        if at != where[0]:
            waiting, other = (name, names[0]) if at is not None else (names[0], name)
            what = "exchange" if any(m is not None and isinstance(m.stmt, loop.Shuffle) for m in met) else "barrier"
            raise VerifyError(f"divergent {what}: {waiting} waits where {other} does not come")


def _exchanged(s: loop.Shuffle, offers: list[np.ndarray | None], width: int) -> list[np.ndarray | None]:
    """What every thread of a block gets, in the order of their numbers, of which ``threadIdx.x`` is the last digit."""
    if s.flip & (s.flip - 1) or not 0 < s.flip < min(width, WARP) or width & (width - 1):
        raise VerifyError(f"an exchange with threads that are not there, in blocks {width} threads wide, in\n{s!r}")
    return [offers[k ^ s.flip] for k in range(len(offers))]


def _run(machine: Machine, s: loop.Stmt, env: Env, at: Place) -> Steps:
    """A thread: runs a statement, and stops wherever it meets others."""
    if not _meets(s):
        machine.run(s, env)
    elif isinstance(s, loop.Barrier):
        yield _Meeting(s, at)
    elif isinstance(s, loop.Shuffle):
        got = yield _Meeting(s, at, machine.value(Load(s.source, s.at), env))
        assert got is not None
        machine.put(s, got, env)
    elif isinstance(s, loop.Seq):
        for c in s.stmts:
            yield from _run(machine, c, env, at)
    elif isinstance(s, loop.Allocate):
        machine.allocate(s.buffer)
        yield from _run(machine, s.body, env, at)
    elif isinstance(s, loop.If):
        side = s.then if bool(machine.value(s.cond, env)) else s.orelse
        if side is not None:
            yield from _run(machine, side, env, at)
    else:
        assert isinstance(s, (loop.For, loop.ForRange))
        for k in _iterations(machine, s, env):
            env[s.var] = k
            yield from _run(machine, s.body, env, (*at, (s.var, k)))


def _iterations(machine: Machine, s: loop.For | loop.ForRange, env: Env) -> Iterator[int]:
    if isinstance(s, loop.For):
        yield from range(s.extent)
    else:
        yield from range(int(machine.value(s.begin, env)), int(machine.value(s.end, env)))


def _meets(s: loop.Stmt) -> bool:
    return any(type(x) is loop.Barrier or type(x) is loop.Shuffle for x in loop.walk(s))
