"""Routines over a grid: loops whose iterations have nothing to do with each other become threads.

A routine is loops that no schedule knows (top-k, cumulative sums, scatter). Of each nest in it, as many of the loops
that stand right around each other as can be are bound to threads, which go around the others in order: those with which
the indices of all that is written tell whose it is. Rows of a top-k are a thread each, so are the columns of a scatter
along rows; what is left is one thread's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlc.ir.expr import within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.loop import Allocate, For, ForKind, Function, If, Seq, Stmt, rebuild
from mlc.lower.prove import tells_apart
from mlc.lower.rewrite import substitute_stmt
from mlc.lower.threads import PRIVATE, launches
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.stream_cost import threads_for

MOST_LOOPS = 6  # of a nest that are looked at


def over_grid(fn: Function, target: Gpu) -> Function:
    """A routine's kernel with threads, as far as they are safe.

    Args:
        fn: without a grid.
        target: the device.
    """
    nbytes, elements = sum(b.nbytes for b in fn.params), sum(b.size for b in fn.params)

    def threads_of(axes: Sequence[Var]) -> int:
        count = prod(v.hi + 1 for v in axes)
        return threads_for(count, nbytes, max(1, elements // count), target)

    for nest in launches(fn.body):
        bound: list[Var] = []
        best = nest
        for loop in _loops(nest)[:MOST_LOOPS]:
            axes = [*bound, loop.var]
            found = _bound(nest, axes, threads_of(axes))
            if tells_apart(_with(fn, nest, found), found):
                bound.append(loop.var)
                best = found
        fn = _with(fn, nest, best)
    return fn


def _loops(nest: Stmt) -> list[For]:
    """Loops right around each other, outermost first; buffers of a thread may be allocated around them."""
    found: list[For] = []
    while True:
        if isinstance(nest, For) and nest.kind is ForKind.SERIAL:
            found.append(nest)
        elif not (isinstance(nest, Allocate) and nest.buffer.scope in PRIVATE):
            return found
        nest = nest.body


def _bound(nest: Stmt, axes: Sequence[Var], threads: int) -> Stmt:
    """The nest with some of its loops as one loop over threads, so many in a block."""
    count = prod(v.hi + 1 for v in axes)
    block, thread = Var("bx", 0, -(-count // threads) - 1), Var("tx", 0, threads - 1)
    flat = as_index(block) * threads + thread
    rest, at = flat, dict[Var, Linear]()
    for v in reversed(axes):
        at[v] = rest % (v.hi + 1) if v is not axes[0] else rest
        rest = rest // (v.hi + 1)

    def without(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.var in at:
            return without(s.body)
        return rebuild(s, without)

    body = substitute_stmt(without(nest), at)
    if (block.hi + 1) * threads > count:
        body = If(within(flat, 0, count), body)
    for v, axis in ((thread, "threadIdx.x"), (block, "blockIdx.x")):
        body = For(v, v.hi + 1, ForKind.THREAD, body, axis)
    return body


def _with(fn: Function, old: Stmt, new: Stmt) -> Function:
    def swap(s: Stmt) -> Stmt:
        if s is old:
            return new
        return rebuild(s, swap) if isinstance(s, (Seq, Allocate)) else s

    return Function(fn.name, fn.params, fn.outputs, swap(fn.body), fn.attrs)
