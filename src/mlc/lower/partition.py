"""Loop partitioning: split loops so that their middle needs no guard, and hoist guards out of loops they ignore.

In: loops with ``if``/``select`` guards. Out: the same values, with guards decided where a range of iterations decides
them. ``for i in range(10): if i < 8: f`` becomes ``for i in range(8): f``; a condition that does not depend on a loop
moves in front of it, unless the loop computes tiles. Pieces of a parallel loop are one loop that tells them by a test;
so are whole and ragged tiles (:mod:`mlc.lower.tiles`). What others imply is not asked (:mod:`mlc.lower.implied`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from mlc.ir.expr import FALSE, TRUE, Const, Expr, IndexValue, Within, walk, within
from mlc.ir.index import Linear, Quotient, Var, as_index, dynamics
from mlc.ir.loop import Allocate, Buffer, For, ForKind, ForRange, If, Stmt, Store, is_nothing, rebuild, seq
from mlc.ir.loop import walk as walk_stmts
from mlc.ir.types import i64
from mlc.lower.implied import decided_inside, drop_implied
from mlc.lower.rewrite import decided, exprs_of, loop_of, map_exprs, map_places, slice_loop, substitute_stmt
from mlc.lower.tiles import guards_of_terms, tell_tiles

_MAX_HOISTS = 3  # each doubles the code under it
_MOST_TOGETHER = 8  # pieces of a parallel loop that are one, each of which is told by a test


def partition(s: Stmt) -> Stmt:
    """Partition every loop, outermost first, then hoist what is left."""
    s = tell_tiles(drop_implied(s))
    checks = _Checks()
    return _own_registers(_hoist(_partition(s, checks), checks), set())


def partition_branches(s: Stmt) -> Stmt:
    """Partition loops for the sake of branches only, so that whole and ragged tiles become nests of their own.

    A ``select`` stays inside its loops: the padding of a tile is part of the one transfer that brings it.
    """
    return _partition(s, _Checks(), selects=False)


class _Checks:
    """Range checks: every expression is searched once, however many loops are around it."""

    def __init__(self) -> None:
        self._inside: dict[int, tuple[Expr, list[Within]]] = {}  # by identity, which holds as long as the expression

    def within(self, s: Stmt, *, selects: bool = True) -> list[Within]:
        """Those in conditions of a statement, with ``selects`` also those inside of values."""
        found: dict[tuple[Linear, int, int], Within] = {}
        for stmt in walk_stmts(s):
            if type(stmt) is Store and not selects:
                continue
            for e in exprs_of(stmt):
                for node in self._of(e):
                    found.setdefault((node.index, node.lo, node.hi), node)
        return list(found.values())

    def _of(self, e: Expr) -> list[Within]:
        known = self._inside.get(id(e))
        if known is None:
            known = self._inside[id(e)] = e, [n for n in walk(e) if type(n) is Within]
        return known[1]


def _partition(s: Stmt, checks: _Checks, unrolled: frozenset[Var] = frozenset(), selects: bool = True) -> Stmt:
    """Cut the loops of a statement.

    Args:
        s: the statement.
        checks: where range checks are looked up.
        unrolled: the loops around it that will not be there at run time.
        selects: whether loops are cut where values change their side, too.
    """
    if type(s) is not For:
        return rebuild(s, partial(_partition, checks=checks, unrolled=unrolled, selects=selects))
    if _unrolling_decides(s, checks):
        each = (substitute_stmt(s.body, {s.var: k}) for k in range(s.extent))
        return seq([_partition(body, checks, unrolled, selects) for body in each if not is_nothing(body)])
    cut = _cut(s, checks, unrolled, selects)
    if cut is None:
        return rebuild(s, partial(_partition, checks=checks, unrolled=_inside(s, unrolled), selects=selects))
    pieces = [p for p in _pieces(s, cut, checks, unrolled, selects) if not is_nothing(p.body)]
    if s.kind is ForKind.PARALLEL and 1 < len(pieces) <= _MOST_TOGETHER:
        return _together(s, pieces)
    return seq([loop_of(p.var, p.times, s, p.body) for p in pieces])


class _Piece(NamedTuple):
    """Some iterations of a loop, counted by a variable of their own; a single one does not use it."""

    var: Var
    times: int
    body: Stmt


def _pieces(s: For, cut: _Cut, checks: _Checks, unrolled: frozenset[Var], selects: bool) -> list[_Piece]:
    """What a loop is cut into, in order, each of which is cut inside."""
    found: list[_Piece] = []
    for begin, end in pairwise((0, cut.begin, cut.end, s.extent)):
        count = end - begin
        piece = slice_loop(s, begin, end)
        if is_nothing(piece):
            continue
        if count == 1 or type(piece) is not For:  # its body is left, whose own loops may now be cut
            found.append(_Piece(s.var, 1, _partition(piece, checks, unrolled, selects)))
            continue
        # a loop is cut once, unless the longer part of it is left over, what is left over has choices of its own or
        # ragged tiles, or each iteration is code of its own anyway
        again = count > cut.end - cut.begin or cut.exclusive or s.kind is ForKind.UNROLLED or _is_ragged(piece)
        more = _cut(piece, checks, unrolled, selects) if again and s.kind is ForKind.PARALLEL else None
        if more is not None:
            found += _pieces(piece, more, checks, unrolled, selects)
        elif again and s.kind is not ForKind.PARALLEL:
            found.append(_Piece(piece.var, 1, _partition(piece, checks, unrolled, selects)))
        else:
            body = _partition(piece.body, checks, _inside(piece, unrolled), selects)
            found.append(_Piece(piece.var, count, body))
    return found


def _inside(s: For, unrolled: frozenset[Var]) -> frozenset[Var]:
    """The loops inside of one that will not be there at run time."""
    return unrolled | {s.var} if s.kind is ForKind.UNROLLED else unrolled


def _together(loop: For, pieces: Sequence[_Piece]) -> Stmt:
    """One loop over all pieces of a parallel one, so that threads share the first and the last iterations, too.

    One behind the other they would wait for each other, which of a few heavy iterations costs as much as one of them.
    """
    ends = list(accumulate(p.times for p in pieces))
    var = Var(loop.var.name, 0, ends[-1] - 1)
    held, bodies = _around([p.body for p in pieces])
    inner: Stmt | None = None
    for (of, count, _), body, end in sorted(zip(pieces, bodies, ends, strict=True), key=lambda t: (t[0].times, -t[2])):
        if count > 1:
            at = as_index(var) - (end - count)
            body = ForRange(of, IndexValue(at, i64), IndexValue(at + 1, i64), body)
        inner = body if inner is None else If(within(var, end - count, end), body, inner)
    assert inner is not None
    for b in reversed(held):
        inner = Allocate(b, inner)
    return For(var, ends[-1], loop.kind, inner, loop.thread)


def _around(bodies: Sequence[Stmt]) -> tuple[list[Buffer], list[Stmt]]:
    """Buffers that all of some statements begin by allocating, which then are there once, and what is inside."""
    held: list[Buffer] = []
    while True:
        first = bodies[0]
        if type(first) is not Allocate or first.buffer.scope == "register":
            return held, list(bodies)
        inside = [b.body for b in bodies if type(b) is Allocate and b.buffer is first.buffer]
        if len(inside) < len(bodies):
            return held, list(bodies)
        held.append(first.buffer)
        bodies = inside


def _unrolling_decides(loop: For, checks: _Checks) -> bool:
    """Whether a guard depends on a loop and others inside of it that are all unrolled: one range cannot decide it."""
    if loop.kind is not ForKind.UNROLLED:
        return False
    constant = {x.var for x in walk_stmts(loop) if type(x) is For and x.kind is ForKind.UNROLLED}
    found = (g.index.vars() for g in checks.within(loop.body) if not g.tested)
    return any(loop.var in used and len(used) > 1 and used <= constant for used in found)


class _Cut(NamedTuple):
    """The middle part of a loop.

    Args:
        begin: its first iteration.
        end: behind its last.
        exclusive: whether values are chosen by guards that exclude each other, as those of the operands of a concat.
    """

    begin: int
    end: int
    exclusive: bool


def _cut(loop: For, checks: _Checks, unrolled: frozenset[Var], selects: bool) -> _Cut | None:
    """Where to cut a loop, or ``None`` if nothing is won.

    The middle part is the longest range of iterations where every guard that a range can decide holds; without any, the
    range where one may hold, since outside of that at least its other side is known.
    """
    begin, end = 0, loop.extent
    maybe: _Cut | None = None
    guards = checks.within(loop.body, selects=selects and not _is_lanes_of_registers(loop))
    guards = [g for g in guards if not g.tested]
    if guards and _may_be_masked(loop):
        branches = {(g.index, g.lo, g.hi) for g in checks.within(loop.body, selects=False)}
        guards = [g for g in guards if (g.index, g.lo, g.hi) in branches or not g.index.vars() <= unrolled | {loop.var}]
    for g in guards:
        found = _along(g.index, loop.var)
        if found is None or (found[1] > 1 and loop.kind is not ForKind.PARALLEL and _computes_tiles(loop)):
            continue  # a test a tile is cheaper than nests of their own for the last ones of fused loops
        c, run, rest = found
        lo, hi = rest.bounds()
        # lo_g <= c*(v//run) + rest < hi_g for every value of the rest
        if c > 0:
            first, last = _ceil(g.lo - lo, c), (g.hi - 1 - hi) // c
        else:
            first, last = _ceil(hi - (g.hi - 1), -c), (lo - g.lo) // -c
        a, b = max(begin, first * run), min(end, (last + 1) * run)
        if a < b:
            begin, end = a, b
        elif first == last + 1 and loop.kind in (ForKind.SERIAL, ForKind.PARALLEL) and begin < first * run < end:
            begin = first * run  # nowhere for all, but before that it fails at one end only, and then at the other
        elif maybe is None:
            # some value of the rest meets the guard
            first, last = (g.lo - hi, g.hi - 1 - lo) if c > 0 else (lo - g.hi + 1, hi - g.lo)
            some = _Cut(max(0, _ceil(first, abs(c)) * run), min(loop.extent, (last // abs(c) + 1) * run), True)
            maybe = some if some.begin < some.end and some[:2] != (0, loop.extent) else None
    if (begin, end) == (0, loop.extent):
        return maybe
    choices = maybe is not None and not checks.within(loop.body, selects=False)
    return _Cut(begin, end, choices)


def _along(index: Linear, var: Var) -> tuple[int, int, Linear] | None:
    """An index as ``c * (var // run) + rest`` (fused loops count in runs), or ``None`` where it is not one."""
    c = index.coefficient(var)
    if c is not None:
        return (c, 1, index.without(var)) if c else None
    runs = [a for a in index.terms if type(a) is Quotient and a.form == as_index(var)]
    if len(runs) != 1:
        return None
    return (
        index.terms[runs[0]],
        runs[0].divisor,
        Linear({a: c for a, c in index.terms.items() if a is not runs[0]}, index.const),
    )


def _is_lanes_of_registers(loop: For) -> bool:
    """Whether a loop is the lanes of a register: its parts would be registers of their own, selecting is cheaper."""
    if loop.kind is not ForKind.VECTORIZED:
        return False
    return all(x.buffer.scope == "register" for x in walk_stmts(loop.body) if type(x) is Store)


def _computes_tiles(loop: For) -> bool:
    """Whether an iteration keeps something for itself."""
    return any(type(x) is Allocate for x in walk_stmts(loop.body))


def _is_ragged(loop: For) -> bool:
    """Whether some iterations compute a part of a tile only, so that guards stand in the code of every term."""
    if loop.kind is not ForKind.SERIAL or not _computes_tiles(loop):
        return False
    constant = {x.var for x in walk_stmts(loop.body) if type(x) is For and x.kind is ForKind.UNROLLED} | {loop.var}
    used = (g.index.vars() for g in guards_of_terms(loop.body))
    return any(loop.var in some and len(some) > 1 and some <= constant for some in used)


def _may_be_masked(loop: For) -> bool:
    """Whether choices between its iterations may be masks of one vector, which cost less than a cut where constant."""
    if loop.kind is not ForKind.VECTORIZED:
        return False
    return all(x.buffer.dtype.bits == 32 for x in walk_stmts(loop.body) if type(x) is Store)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _hoist(s: Stmt, checks: _Checks) -> Stmt:
    """Move conditions in front of the innermost loops that they do not depend on."""
    if type(s) is not For:
        return rebuild(s, partial(_hoist, checks=checks))
    body = _hoist(s.body, checks)
    loop = s if body is s.body else For(s.var, s.extent, s.kind, body, s.thread)
    if s.kind is ForKind.PARALLEL:
        return loop
    return _unswitch(loop, checks, _MAX_HOISTS)


def _unswitch(loop: For, checks: _Checks, budget: int) -> Stmt:
    guards = checks.within(loop.body)
    if not guards or budget == 0 or _computes_tiles(loop):
        return loop  # a tile costs more than a branch beside it, and its code is too long to be there twice
    bound = {loop.var} | {x.var for x in walk_stmts(loop.body) if type(x) is For or type(x) is ForRange}
    for g in guards:
        if not (g.index.vars() & bound or dynamics(g.index)):  # what memory holds may change inside the loop
            yes, no = (map_exprs(loop, partial(_assume, guard=g, value=known)) for known in (True, False))
            then = _unswitch(yes, checks, budget - 1) if type(yes) is For else yes
            orelse = _unswitch(no, checks, budget - 1) if type(no) is For else no
            return decided(g, _clean(then), None if is_nothing(_clean(orelse)) else _clean(orelse))
    return loop


def _own_registers(s: Stmt, known: set[Buffer]) -> Stmt:
    """Registers of its own for every copy of a tile: those of whole vectors are not those of a ragged one.

    Args:
        s: the statement.
        known: buffers that were seen before.
    """
    if type(s) is not Allocate or s.buffer.scope != "register":
        return rebuild(s, partial(_own_registers, known=known))
    old = s.buffer
    body = _own_registers(s.body, known)
    if old not in known:
        known.add(old)
        return s if body is s.body else Allocate(old, body)
    new = Buffer(old.name, old.shape, old.dtype, old.scope)
    return Allocate(new, map_places(body, lambda b, indices: (new if b is old else b, indices)))


def _clean(s: Stmt) -> Stmt:
    """Drop loops without a body."""
    new = rebuild(s, _clean)
    return seq([]) if type(new) is For and is_nothing(new.body) else new


def _assume(e: Expr, guard: Within, value: bool) -> Expr:
    """The expression where ``guard`` is known, and with it where its index can be."""
    least, most = guard.index.bounds()
    begin, end = least, most + 1
    if value:
        begin, end = max(begin, guard.lo), min(end, guard.hi)
    elif guard.lo <= least:
        begin = guard.hi
    elif guard.hi > most:
        end = guard.lo

    def answer(n: Within) -> Expr:
        shift = n.index - guard.index
        if not shift.terms:
            if n.lo <= begin + shift.const and end + shift.const <= n.hi:
                return TRUE
            if (n.lo, n.hi) == (guard.lo + shift.const, guard.hi + shift.const):
                return Const(int(value), n.dtype)
            if end + shift.const <= n.lo or n.hi <= begin + shift.const:
                return FALSE
        return n

    return decided_inside(e, answer)
