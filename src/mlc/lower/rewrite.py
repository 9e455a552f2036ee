"""Rewriting of loop ASTs, shared by the passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlc.ir.expr import Const, Expr, Load, loads, replace_loads, substitute_vars
from mlc.ir.index import IndexLike, Linear, Var, dynamics, substitute, substitute_each
from mlc.ir.loop import (
    NOTHING,
    Access,
    Allocate,
    Buffer,
    Evaluate,
    For,
    ForKind,
    ForRange,
    If,
    Prefetch,
    Seq,
    Shuffle,
    Stmt,
    Store,
    is_nothing,
    rebuild,
    seq,
)


def map_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """Apply ``fn`` to every value and condition; indices of stores are left alone."""
    if isinstance(s, Store):
        value = fn(s.value)
        return s if value is s.value else Store(s.buffer, s.indices, value, s.lane, s.asynchronous)
    if isinstance(s, If):
        cond = fn(s.cond)
        then = map_exprs(s.then, fn)
        orelse = None if s.orelse is None else map_exprs(s.orelse, fn)
        if cond is s.cond:
            return s if then is s.then and orelse is s.orelse else If(cond, then, orelse)
        return decided(cond, then, orelse)
    if isinstance(s, ForRange):
        begin, end, body = fn(s.begin), fn(s.end), map_exprs(s.body, fn)
        same = begin is s.begin and end is s.end and body is s.body
        return s if same else ForRange(s.var, begin, end, body)
    return rebuild(s, lambda c: map_exprs(c, fn))


def decided(cond: Expr, then: Stmt, orelse: Stmt | None) -> Stmt:
    """A branch, or the side that a constant condition chooses."""
    if type(cond) is Const:
        return then if cond.value else (orelse if orelse is not None else NOTHING)
    if is_nothing(then) and is_nothing(orelse):
        return NOTHING
    return If(cond, then, orelse)


def substitute_stmt(s: Stmt, env: Mapping[Var, IndexLike], *, unrolled: bool = False) -> Stmt:
    """Replace loop variables everywhere; guards that become decided disappear, empty loops too.

    Args:
        s: the statement.
        env: what each variable becomes.
        unrolled: repeat the bodies of unrolled loops on the way, with their variables as constants: so whatever is in
            several of them is rewritten once for all.
    """

    def inner(c: Stmt) -> Stmt:
        return substitute_stmt(c, env, unrolled=unrolled)

    if isinstance(s, Store):
        if not env:
            return s
        indices = substitute_each(s.indices, env)
        value = substitute_vars(s.value, env)
        same = value is s.value and indices is s.indices
        return s if same else Store(s.buffer, indices, value, s.lane, s.asynchronous)
    if isinstance(s, Prefetch):
        moved = substitute_each(s.indices, env)
        return s if moved is s.indices else Prefetch(s.buffer, moved, s.level)
    if isinstance(s, If):
        cond = substitute_vars(s.cond, env)
        if type(cond) is Const:
            side = s.then if cond.value else s.orelse
            return NOTHING if side is None else inner(side)
        then = inner(s.then)
        orelse = None if s.orelse is None else inner(s.orelse)
        if cond is s.cond and then is s.then and orelse is s.orelse:
            return s
        return decided(cond, then, orelse)
    if isinstance(s, Seq):
        new = [inner(c) for c in s.stmts]
        if all(a is b for a, b in zip(new, s.stmts, strict=True)):
            return s
        return seq(new)
    if isinstance(s, For):
        if unrolled and s.kind is ForKind.UNROLLED:
            return seq([substitute_stmt(s.body, {**env, s.var: k}, unrolled=True) for k in range(s.extent)])
        body = inner(s.body)
        if body is s.body:
            return s
        return NOTHING if is_nothing(body) else For(s.var, s.extent, s.kind, body, s.thread)
    if isinstance(s, ForRange):
        begin, end = substitute_vars(s.begin, env), substitute_vars(s.end, env)
        body = inner(s.body)
        if begin is s.begin and end is s.end and body is s.body:
            return s
        return ForRange(s.var, begin, end, body)
    if isinstance(s, Allocate):
        body = inner(s.body)
        return s if body is s.body else NOTHING if is_nothing(body) else Allocate(s.buffer, body)
    if isinstance(s, Shuffle):
        into, at = (substitute_each(ix, env) for ix in (s.indices, s.at))
        return s if into is s.indices and at is s.at else Shuffle(s.buffer, into, s.source, at, s.flip)
    if isinstance(s, Evaluate) and s.intrinsic is not None:
        return map_accesses(s, lambda a: Access(a.buffer, tuple([substitute(ix, env) for ix in a.indices]), a.strides))
    return s


def map_accesses(s: Evaluate, fn: Callable[[Access], Access]) -> Evaluate:
    """Apply ``fn`` to every operand of an intrinsic."""
    return Evaluate(s.name, tuple([fn(a) if type(a) is Access else a for a in s.args]), s.intrinsic)


Place = tuple[Buffer, tuple[Linear, ...]]


def map_places(s: Stmt, fn: Callable[[Buffer, tuple[Linear, ...]], Place]) -> Stmt:
    """Apply ``fn`` to every place in memory that a statement names: of stores, loads, operands and prefetches."""

    def swap(ld: Load) -> Expr:
        b, indices = fn(ld.source, ld.indices)
        return ld if b is ld.source else Load(b, indices)

    def value(e: Expr) -> Expr:
        return replace_loads(e, swap)

    def place(b: Buffer, indices: tuple[Linear, ...]) -> Place:
        return fn(b, tuple([substitute(ix, {}, value) for ix in indices]))

    if isinstance(s, Store):
        return Store(*place(s.buffer, s.indices), value(s.value), s.lane, s.asynchronous)
    if isinstance(s, Prefetch):
        return Prefetch(*place(s.buffer, s.indices), s.level)
    if isinstance(s, Shuffle):
        return Shuffle(*place(s.buffer, s.indices), *place(s.source, s.at), s.flip)
    if isinstance(s, Evaluate):
        return map_accesses(s, lambda a: Access(*place(a.buffer, a.indices), a.strides))
    if isinstance(s, If):
        orelse = None if s.orelse is None else map_places(s.orelse, fn)
        return If(value(s.cond), map_places(s.then, fn), orelse)
    if isinstance(s, ForRange):
        return ForRange(s.var, value(s.begin), value(s.end), map_places(s.body, fn))
    return rebuild(s, lambda c: map_places(c, fn))


def places_of(s: Stmt) -> list[Place]:
    """Every place in memory that a statement itself names."""
    found = [(ld.source, ld.indices) for e in exprs_of(s) for ld in loads(e)]
    if isinstance(s, (Store, Prefetch)):
        own = [(s.buffer, s.indices)]
    elif isinstance(s, Evaluate):
        own = [(a.buffer, a.indices) for a in s.args if type(a) is Access]
    elif isinstance(s, Shuffle):
        own = [(s.buffer, s.indices), (s.source, s.at)]
    else:
        own = []
    inside = [d.expr for _, indices in own for ix in indices for d in dynamics(ix)]
    return [*own, *found, *((ld.source, ld.indices) for e in inside for ld in loads(e))]


def exprs_of(s: Stmt) -> tuple[Expr, ...]:
    """Values and conditions written directly in a statement."""
    if isinstance(s, Store):
        return (s.value,)
    if isinstance(s, If):
        return (s.cond,)
    if isinstance(s, ForRange):
        return (s.begin, s.end)
    return ()


def loop_of(var: Var, extent: int, like: For, body: Stmt) -> Stmt:
    """A loop like another with a new variable; an extent of one leaves the body alone."""
    if extent <= 0 or is_nothing(body):
        return NOTHING
    return body if extent == 1 else For(var, extent, like.kind, body, like.thread)


def slice_loop(loop: For, begin: int, end: int) -> Stmt:
    """The iterations ``begin … end - 1`` of a loop, as a loop from 0."""
    if end <= begin:
        return NOTHING
    var = Var(loop.var.name, 0, end - begin - 1)
    start: IndexLike = begin if end - begin == 1 else Linear({var: 1}, begin)
    return loop_of(var, end - begin, loop, substitute_stmt(loop.body, {loop.var: start}))
