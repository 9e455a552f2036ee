"""Vectorisation: a vectorised loop becomes vector stores along its lane variable.

In: ``For(kind=VECTORIZED)``. Out: none left; loops inside it run once for all lanes. A body that lanes cannot share (a
guard that differs between lanes, a buffer of its own a lane) runs as a serial loop instead. A guard whose bounds are
whole vectors differs between none: ``4*i + lane < 12`` is ``4*i < 12``.
"""

from __future__ import annotations

from dataclasses import replace

from mlc.ir.expr import Expr, Within, index_vars, rewrite, within
from mlc.ir.index import Var
from mlc.ir.loop import Allocate, For, ForKind, If, Seq, Stmt, Store, rebuild, walk
from mlc.lower.rewrite import decided


def on_first_lane(e: Expr, lane: Var) -> Expr:
    """An expression with bounds tested on the first lane, where that is to test them on all of a vector.

    >>> from mlc.ir.index import as_index
    >>> i, lane = Var("i", 0, 9), Var("lane", 0, 3)
    >>> on_first_lane(within(as_index(i) * 4 + lane, 0, 12), lane)
    4*i < 12
    """

    def first(e: Expr) -> Expr:
        if type(e) is Within and e.index.coefficient(lane) == 1:
            rest, n = e.index.without(lane), lane.hi + 1
            if rest.multiple_of(n) and e.lo % n == 0 and e.hi % n == 0:
                return within(rest, e.lo, e.hi, tested=e.tested)
        return e

    return rewrite(e, first)


def vectorize(s: Stmt) -> Stmt:
    """Remove every vectorised loop."""
    if type(s) is For and s.kind is ForKind.VECTORIZED:
        body = vectorize(s.body)
        body = _whole(body, s.var)
        if s.extent == 1 or not _sharable(body, s.var):
            return For(s.var, s.extent, ForKind.SERIAL, body)
        return _spread(body, s.var)
    return rebuild(s, vectorize)


def _whole(s: Stmt, lane: Var) -> Stmt:
    """The statement with guards, and conditions of what it stores, on the first lane where that is to ask for all."""
    s = rebuild(s, lambda c: _whole(c, lane))
    if type(s) is If:
        return decided(on_first_lane(s.cond, lane), s.then, s.orelse)
    return replace(s, value=on_first_lane(s.value, lane)) if type(s) is Store else s


def _varies(e: Expr, lane: Var) -> bool:
    return lane in index_vars(e)


def _sharable(body: Stmt, lane: Var) -> bool:
    for s in walk(body):
        if type(s) is If:
            if _varies(s.cond, lane):
                return False
        elif type(s) is Store:
            if s.lane is not None:
                return False
            if not any(lane in ix.vars() for ix in s.indices) and _varies(s.value, lane):
                return False
        elif not (type(s) is For or type(s) is Seq or (type(s) is Allocate and s.buffer.scope == "register")):
            return False
    return True


def _spread(s: Stmt, lane: Var) -> Stmt:
    if type(s) is Store:
        if any(lane in ix.vars() for ix in s.indices):
            return Store(s.buffer, s.indices, s.value, lane, s.asynchronous)
        return s
    return rebuild(s, lambda c: _spread(c, lane))
