"""Threads of a block in the reference interpreter: each runs up to a barrier, then the next one; races are found.

A block's threads are coroutines that run in turn. Between two barriers they may run in any order on a machine, so an
element that one thread writes and another touches in the meantime is a race, whatever comes out here. Global memory
is not synchronised within a launch at all.
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
from mlc.ir.expr import Expr
from mlc.ir.index import Var

_NOBODY, _MANY = -1, -2

Env = dict[Var, int]
Place = tuple[tuple[Var, int], ...]  # the iterations of the loops around a barrier


class Machine(Protocol):
    """What runs statements one at a time."""

    memory: dict[int, np.ndarray]
    trace: Trace | None

    def run(self, s: loop.Stmt, env: Env) -> None: ...

    def value(self, e: Expr, env: Env) -> np.ndarray: ...

    def allocate(self, b: loop.Buffer) -> None: ...


@dataclass(eq=False)
class _Touched:
    """Who touched each element of a buffer."""

    writer: np.ndarray
    reader: np.ndarray


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

    def barrier(self) -> None:
        """The threads of the block have met: what they did to their own memory is over."""
        for key in self.block:
            self.touched.pop(key, None)

    def read(self, b: loop.Buffer, index: tuple[Any, ...]) -> None:
        if (seen := self._of(b)) is None:
            return
        at = _flat(b, index)
        self._refuse(b, at, seen.writer, "written", "read")
        seen.reader[at] = np.where(np.isin(seen.reader[at], (_NOBODY, self.thread)), self.thread, _MANY)

    def write(self, b: loop.Buffer, index: tuple[Any, ...]) -> None:
        if (seen := self._of(b)) is None:
            return
        at = _flat(b, index)
        self._refuse(b, at, seen.writer, "written", "written")
        self._refuse(b, at, seen.reader, "read", "written")
        seen.writer[at] = self.thread

    def _of(self, b: loop.Buffer) -> _Touched | None:
        if id(b) not in self.common and id(b) not in self.block:
            return None
        if id(b) not in self.touched:
            self.touched[id(b)] = _Touched(np.full(b.size, _NOBODY), np.full(b.size, _NOBODY))
        return self.touched[id(b)]

    def _refuse(self, b: loop.Buffer, at: np.ndarray, who: np.ndarray, before: str, now: str) -> None:
        wrong = ~np.isin(who[at], (_NOBODY, self.thread))
        if wrong.any():
            other = int(who[at][wrong][0])
            by = self.names[other] if other >= 0 else "several threads"
            where = np.unravel_index(int(at[wrong][0]), b.shape)
            raise VerifyError(
                f"race on {b.name}[{', '.join(map(str, where))}] in {b.scope} memory: {before} by {by} and {now} by "
                f"{self.names[self.thread]}, with no barrier between"
            )


def _flat(b: loop.Buffer, index: tuple[Any, ...]) -> np.ndarray:
    if not index:
        return np.zeros(1, np.int64)
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
    threads = []
    for at in product(*(range(lp.extent) for lp in loops)):
        own = {**env, **{lp.var: k for lp, k in zip(loops, at, strict=True)}}
        where = ", ".join(f"{v.name}={k}" for v, k in own.items())
        trace.names.append(f"thread ({where})")
        threads.append((_run(machine, s, own, ()), dict(around)))
    try:
        while threads:
            met: list[tuple[loop.Barrier, Place] | None] = []
            for k, (steps, memory) in enumerate(threads):
                trace.thread, machine.memory = first + k, memory
                met.append(next(steps, None))
            _require_all_met(met, trace.names[first : first + count])
            if met[0] is None:
                break
            trace.barrier()
    finally:
        machine.memory = around


def _require_all_met(met: list[tuple[loop.Barrier, Place] | None], names: list[str]) -> None:
    for at, name in zip(met, names, strict=True):
        if at != met[0]:
            waiting, other = (name, names[0]) if at is not None else (names[0], name)
            raise VerifyError(f"divergent barrier: {waiting} waits where {other} does not come")


def _run(machine: Machine, s: loop.Stmt, env: Env, at: Place) -> Generator[tuple[loop.Barrier, Place], None, None]:
    """A thread: runs a statement, and stops at every barrier."""
    if not _meets(s):
        machine.run(s, env)
    elif isinstance(s, loop.Barrier):
        yield s, at
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
    return any(type(x) is loop.Barrier for x in loop.walk(s))
