"""Threads of a launch in the reference interpreter: all of them do a statement, then the next one; races are found.

What differs between threads is an array with an element a *point*: a thread that takes part, or each lane of its
vector. Those for which a condition does not hold are left out until its branch is over, so a barrier that not all of a
block's threads come to is seen where it stands. Who touches what between barriers :mod:`mlc.ir.interp.trace` keeps.
Where threads exchange what they have, all of them come, too, but nothing that they wrote before is seen by others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import loop
from mlc.ir.expr import Expr, Load, Select
from mlc.ir.index import Linear, Var
from mlc.ir.interp.intrinsic import applied, batched
from mlc.ir.interp.te import Array, Evaluator, inside
from mlc.ir.interp.trace import Trace
from mlc.ir.intrinsic import Kind, TensorIntrinsic
from mlc.ir.unwind import Steps

WARP = 32  # threads that can exchange what they have
_AT_ONCE = 1 << 13  # threads that go along together

Env = dict[Var, Any]  # an integer that is the same for all, or one a point


@dataclass(frozen=True, eq=False)
class _Points:
    """Where a statement is done.

    Args:
        who: the thread of each point, by its number over all blocks, of which ``threadIdx.x`` is the last digit.
        env: the variables.
    """

    who: np.ndarray
    env: Env

    def where(self, chosen: np.ndarray) -> _Points:
        """Some of them."""
        return _Points(self.who[chosen], {v: x if type(x) is int else x[chosen] for v, x in self.env.items()})

    def lanes(self, lane: Var) -> _Points:
        """A point for each lane of each thread."""
        n = lane.hi + 1
        env = {v: x if type(x) is int else np.repeat(x, n) for v, x in self.env.items()}
        return _Points(np.repeat(self.who, n), {**env, lane: np.tile(np.arange(n), len(self.who))})


@dataclass(frozen=True, eq=False)
class _Grid:
    """A launch's loop nest.

    Args:
        blocks, threads: the loops over the blocks and over the threads of each.
        shared: what a block's threads have in common.
        body: what each thread does.
        env: variables around the nest.
    """

    blocks: Sequence[loop.For]
    threads: Sequence[loop.For]
    shared: Sequence[loop.Buffer]
    body: loop.Stmt
    env: Mapping[Var, int]

    @classmethod
    def of(cls, s: loop.Stmt, env: Mapping[Var, int]) -> _Grid:
        blocks: list[loop.For] = []
        threads: list[loop.For] = []
        shared: list[loop.Buffer] = []
        while True:
            if isinstance(s, loop.Allocate) and not threads:
                shared.append(s.buffer)
            elif isinstance(s, loop.For) and s.thread in loop.BLOCK_AXES and not threads:
                blocks.append(s)
            elif isinstance(s, loop.For) and s.thread in loop.THREAD_AXES:
                threads.append(s)
            else:
                return cls(blocks, threads, shared, s, env)
            s = s.body

    @property
    def count(self) -> int:
        """Threads of a block."""
        return prod(lp.extent for lp in self.threads)

    @property
    def width(self) -> int:
        """Of them, those along ``threadIdx.x``."""
        return next((lp.extent for lp in self.threads if lp.thread == loop.THREAD_AXES[-1]), 1)

    def at(self, who: np.ndarray | int) -> Env:
        """The variables of threads."""
        env: Env = dict(self.env)
        for lp in (*self.threads[::-1], *self.blocks[::-1]):
            env[lp.var] = who % lp.extent if lp.extent > 1 else 0
            who = who // lp.extent
        return env

    def name(self, thread: int) -> str:
        at = self.at(int(thread))
        known = (*self.env, *(lp.var for lp in (*self.blocks, *self.threads)))
        return f"thread ({', '.join(f'{v.name}={at[v]}' for v in known)})"


def run_grid(memory: Mapping[int, np.ndarray], s: loop.For, env: Mapping[Var, int]) -> None:
    """A launch: every block of a loop nest over a grid.

    Args:
        memory: arrays of the buffers that all blocks see, by the buffers' ``id``.
        s: the nest.
        env: variables around it.
    Raises:
        VerifyError: an index out of bounds, threads that race or miss one another.
    """
    flat = {key: np.ascontiguousarray(a).reshape(-1) for key, a in memory.items()}
    grid = _Grid.of(s, env)
    trace = Trace(frozenset(flat), grid.name)
    blocks = prod(lp.extent for lp in grid.blocks)
    step = max(1, _AT_ONCE // grid.count)
    for first in range(0, blocks, step):
        some = range(first, min(blocks, first + step))
        who = np.arange(some.start * grid.count, some.stop * grid.count)
        _Blocks(flat, trace, grid, some).run(grid.body, _Points(who, grid.at(who)))
    for key, a in memory.items():
        if not np.shares_memory(a, flat[key]):
            a[...] = flat[key].reshape(a.shape)


class _Blocks:
    """Some blocks of a launch, all of whose threads go along together.

    Args:
        common: arrays of what all blocks see, in one dimension.
        trace: of the launch.
        grid: the launch.
        blocks: their numbers.
    """

    def __init__(self, common: Mapping[int, np.ndarray], trace: Trace, grid: _Grid, blocks: range) -> None:
        self.trace = trace
        self.grid = grid
        self.blocks = blocks
        self.private: dict[int, np.ndarray] = {}  # [threads, elements]
        own = {id(b): np.tile(fresh(b).reshape(-1), len(blocks)) for b in grid.shared}
        self.shared = {**common, **own}  # of a block's memory, one block's after the other
        trace.enter({id(b) for b in grid.shared}, blocks)

    def run(self, s: loop.Stmt, points: _Points) -> None:
        match s:
            case loop.For():
                for k in range(s.extent):
                    points.env[s.var] = k
                    self.run(s.body, points)
            case loop.ForRange():
                self._range(s, points)
            case loop.Seq():
                for c in s.stmts:
                    self.run(c, points)
            case loop.If():
                self._branch(s, points)
            case loop.Allocate():
                threads = len(self.blocks) * self.grid.count
                self.private[id(s.buffer)] = np.tile(fresh(s.buffer).reshape(-1), (threads, 1))
                self.run(s.body, points)
            case loop.Store():
                at = points if s.lane is None else points.lanes(s.lane)
                evaluator = _Together(self, at)
                self._put(s, evaluator.eval(s.value), evaluator)
            case loop.Barrier():
                self.trace.barrier(self._meet(points, "barrier"))
            case loop.Shuffle():
                self._exchange(s, points)
            case loop.Commit():
                self.trace.commit(points.who)
            case loop.Wait():
                self.trace.wait(s.groups, points.who)
            case loop.Evaluate():
                if s.intrinsic is not None:
                    self._intrinsic(s, s.intrinsic, points)
            case loop.Prefetch():
                pass
            case _:
                raise VerifyError(f"no meaning for {type(s).__name__}")

    def _branch(self, s: loop.If, points: _Points) -> None:
        cond = np.asarray(_Together(self, points).eval(s.cond))
        for chosen, side in ((cond, s.then), (~cond, s.orelse)):
            if side is not None and chosen.any():
                self.run(side, points if chosen.all() else points.where(chosen))

    def _range(self, s: loop.ForRange, points: _Points) -> None:
        evaluator = _Together(self, points)
        shape = len(points.who)
        begin, end = (np.broadcast_to(np.asarray(evaluator.eval(e)), shape) for e in (s.begin, s.end))
        if (begin == begin[0]).all() and (end == end[0]).all():
            for k in range(int(begin[0]), int(end[0])):
                points.env[s.var] = k
                self.run(s.body, points)
            return
        for k in range(int((end - begin).max())):
            chosen = begin + k < end
            some = points.where(chosen)
            some.env[s.var] = begin[chosen].astype(np.int64) + k
            self.run(s.body, some)

    def _meet(self, points: _Points, what: str) -> np.ndarray:
        """The blocks that are here, each with all of its threads."""
        count = self.grid.count
        here, threads = np.unique(points.who // count, return_counts=True)
        if (threads < count).any():
            first = here[threads < count][0] * count
            block = np.arange(first, first + count)
            comes, away = np.intersect1d(block, points.who)[0], np.setdiff1d(block, points.who)[0]
            raise VerifyError(
                f"divergent {what}: {self.grid.name(comes)} waits where {self.grid.name(away)} does not come"
            )
        return here

    def _exchange(self, s: loop.Shuffle, points: _Points) -> None:
        self._meet(points, "exchange")
        width = self.grid.width
        if s.flip & (s.flip - 1) or not 0 < s.flip < min(width, WARP) or width & (width - 1):
            raise VerifyError(f"an exchange with threads that are not there, in blocks {width} threads wide, in\n{s!r}")
        evaluator = _Together(self, points)
        offers = np.broadcast_to(evaluator.eval(Load(s.source, s.at)), points.who.shape)
        own = points.who % self.grid.count
        others = np.searchsorted(points.who, points.who - own + (own ^ s.flip))
        self._put(s, offers[others], evaluator)

    def _put(self, s: loop.Store | loop.Shuffle, value: Array, evaluator: _Together) -> None:
        """Stores a value where a statement says."""
        b, who = s.buffer, evaluator.points.who
        at = evaluator.place(b, s.indices, lambda ix, i: f"store outside {b!r}: {ix} is {i} in\n{s!r}")
        array, at = self._lies(b, at, who)
        if id(b) in self.private:
            array[at] = value
            return
        self.trace.write(b, at, who)
        if isinstance(s, loop.Store) and s.asynchronous:
            self.trace.begin(b, array, at, np.broadcast_to(value, who.shape).astype(array.dtype), who)
        else:
            array[at] = value

    def get(self, b: loop.Buffer, at: Array, who: np.ndarray) -> Array:
        """What threads read, ``at`` a place of each or of all."""
        array, at = self._lies(b, at, who)
        if id(b) not in self.private:
            self.trace.read(b, at, who)
        return array[at]

    def _lies(self, b: loop.Buffer, at: Array, who: np.ndarray) -> tuple[np.ndarray, Any]:
        """The array that has a buffer of some threads, and where in there each has some place of it."""
        own = self.private.get(id(b))
        if own is not None:
            return own, (who - self.blocks.start * self.grid.count, at)
        if id(b) in self.trace.common:
            return self.shared[id(b)], np.broadcast_to(at, who.shape)
        return self.shared[id(b)], (who // self.grid.count - self.blocks.start) * b.size + at

    def _intrinsic(self, s: loop.Evaluate, what: TensorIntrinsic, points: _Points) -> None:
        """What the intrinsic's behaviour says, on the tensors that each thread's operands are."""
        kind, out, *ins = s.args
        op, inputs = batched(what, len(points.who))
        values = {}
        if kind != Kind.RESET:
            for t, was, a in zip(inputs, what.inputs, ins, strict=True):
                values[id(t)] = self.get(a.buffer, *self._places(a, was.shape, s, points))
        at, who = self._places(out, what.behaviour.shape, s, points)
        array, at = self._lies(out.buffer, at, who)
        if id(out.buffer) not in self.private:
            self.trace.write(out.buffer, at, who)
        array[at] = applied(op, kind, array[at], values)

    def _places(
        self, a: loop.Access, shape: tuple[int, ...], s: loop.Evaluate, points: _Points
    ) -> tuple[np.ndarray, np.ndarray]:
        """Places in its buffer of the small tensor that an operand is, and whose, ``[points, *shape]``."""
        first = _Together(self, points).place(
            a.buffer, a.indices, lambda ix, i: f"operand outside {a.buffer!r}: {ix} is {i} in\n{s!r}"
        )
        flat = np.broadcast_to(first, points.who.shape).reshape(-1, *[1] * len(shape))
        for d, (n, step) in enumerate(zip(shape, a.strides, strict=True)):
            flat = flat + (np.arange(n) * step).reshape([-1 if k == d else 1 for k in range(len(shape))])
        if flat.max() >= a.buffer.size:
            raise VerifyError(f"an operand of {shape} elements at {a!r} leaves {a.buffer!r} in\n{s!r}")
        return flat, np.broadcast_to(points.who.reshape(-1, *[1] * len(shape)), flat.shape)


class _Together(Evaluator):
    """Evaluates scalar expressions at some points; what a point does not choose, it does not load."""

    def __init__(self, blocks: _Blocks, points: _Points) -> None:
        super().__init__(points.env, {}, None)
        self.blocks = blocks
        self.points = points

    def select(self, e: Select, guarded: bool) -> Steps[tuple[Expr, bool], Array]:
        cond = np.asarray((yield e.cond, guarded))
        if cond.all() or not cond.any():
            return (yield (e.a if cond.all() else e.b), guarded)
        value = np.empty(cond.shape, e.dtype.numpy)
        for chosen, side in ((cond, e.a), (~cond, e.b)):
            value[chosen] = _Together(self.blocks, self.points.where(chosen)).eval(side, guarded)
        return value

    def _load(self, e: Load, guarded: bool) -> Array:
        b = e.source
        assert isinstance(b, loop.Buffer)
        at = self.place(b, e.indices, lambda ix, i: f"{e!r} leaves {b!r}: {ix} is {i}")
        return self.blocks.get(b, at, self.points.who)

    def place(self, b: loop.Buffer, indices: Sequence[Linear], message: Any) -> Array:
        """Where elements lie in a buffer, row-major.

        Raises:
            VerifyError: outside; ``message`` tells of an index and its value.
        """
        at: Array = 0
        for ix, n in zip(indices, b.shape, strict=True):
            i = self.index(ix)
            if not inside(i, n):
                wrong = np.ravel(i)
                raise VerifyError(message(ix, wrong[(wrong < 0) | (wrong >= n)][0]))
            at = at * n + i
        return at


def fresh(b: loop.Buffer) -> np.ndarray:
    """What a buffer holds before anything is written to it, so that nothing may rely on that."""
    fill = np.nan if b.dtype.is_float else 0x55 % (1 << min(8, b.dtype.bits - 1))
    return np.full(b.shape, fill, b.dtype.numpy)
