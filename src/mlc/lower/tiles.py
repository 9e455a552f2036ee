"""Whole register tiles are told from the ragged one by a test, where threads share an axis that each goes along.

In: ``for task in parallel(4): for tile in range(5): if 4*(5*task + tile) + k < 70: f(k)`` for every ``k < 4``. Out: the
same values; inside of both loops ``if 5*task + tile < 17`` stands before a tile without guards, and ``elif 5*task +
tile < 18`` before one whose guards do not depend on these loops any more. So each is there once; if the loop over
tasks were cut, and then that over tiles in the last task, there would be whole tiles in both parts. A loop over tasks
that is fused of several (``if 4*(task%18) + k < 70``) cannot be cut at all.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import NamedTuple

from mlc.ir.expr import Const, Expr, Within, walk, within
from mlc.ir.index import Linear, Remainder, Var, as_index, dynamics
from mlc.ir.loop import Allocate, For, ForKind, Prefetch, Stmt, Store, is_nothing, rebuild, sub_statements
from mlc.ir.loop import walk as walk_stmts
from mlc.lower.implied import decided_inside
from mlc.lower.rewrite import decided, exprs_of, map_exprs


def tell_tiles(s: Stmt, shared: frozenset[Var] = frozenset(), own: frozenset[Var] = frozenset()) -> Stmt:
    """Test before register tiles whether they are whole, where one at most is not.

    Args:
        s: the statement.
        shared: variables of the loops around it that threads share.
        own: those of the other loops that are there at run time.
    """
    if type(s) is For and s.kind is ForKind.PARALLEL:
        shared |= {s.var}
    elif type(s) is For and s.kind is ForKind.SERIAL:
        own |= {s.var}
    elif type(s) is Allocate and s.buffer.scope == "register":
        told = (_told(s, a) for a in _axes(s, shared, own))
        return next((t for t in told if t is not None), s)
    return rebuild(s, partial(tell_tiles, shared=shared, own=own))


class _Axis(NamedTuple):
    """An axis that tiles are numbered along.

    Args:
        number: of a tile.
        whole: where those end that are whole.
        some: where those end that are whole or ragged.
    """

    number: Linear
    whole: int
    some: int


def _axes(s: Stmt, shared: frozenset[Var], own: frozenset[Var]) -> list[_Axis]:
    """The axes that threads share and each goes along, by the guards of a tile, if one tile at most is ragged.

    And those that only threads go along, as a part of what they share, if guards stand in the code of every term.
    """
    around = shared | own
    ends: dict[Linear, list[tuple[int, int]]] = {}
    repeated = guards_of_terms(s) if shared else set()
    for g in _guards(s) if shared else ():
        outer = Linear({a: c for a, c in g.index.terms.items() if Linear({a: 1}, 0).vars() <= around}, 0)
        inner, used = g.index - outer, outer.vars()
        if not used & shared or inner.vars() & around or dynamics(g.index):
            continue
        if not used & own and not (g in repeated and any(type(a) is Remainder for a in outer.terms)):
            continue
        step, (least, most) = gcd(*outer.terms.values()), inner.bounds()
        number = Linear({a: c // step for a, c in outer.terms.items()}, 0)
        if number.bounds()[0] * step + least >= g.lo:
            ends.setdefault(number, []).append(((g.hi - 1 - most) // step + 1, (g.hi - 1 - least) // step + 1))
    found = [_Axis(number, min(w for w, _ in each), max(n for _, n in each)) for number, each in ends.items()]
    return [a for a in found if a.number.bounds()[0] < a.whole and a.some - a.whole <= 1]


def _guards(s: Stmt) -> list[Within]:
    """The range checks of a statement for whose sake loops may be cut."""
    nodes = (n for stmt in walk_stmts(s) for e in exprs_of(stmt) for n in walk(e))
    return [n for n in nodes if type(n) is Within and not n.tested]


def guards_of_terms(s: Stmt) -> set[Within]:
    """The range checks in loops inside of a statement, such as those over the terms of a tile's sums."""
    return {g for x in walk_stmts(s) if type(x) is For and x.kind is ForKind.SERIAL for g in _guards(x)}


def _told(s: Stmt, axis: _Axis) -> Stmt | None:
    """A tile after a test whether it is whole; ``None`` where something is to be done behind the last one, too."""
    number, whole, some = axis
    first, last = number.bounds()
    if some <= last and not _is_idle(_among(s, number, some, last + 1)):
        return None
    ragged = None
    if whole < some:
        ragged = decided(within(number, first, some, tested=True), _among(s, number, whole, some), None)
    return decided(within(number, first, whole, tested=True), _among(s, number, first, whole), ragged)


def _among(s: Stmt, number: Linear, begin: int, end: int) -> Stmt:
    """A tile whose number is known to lie in a range."""
    known = as_index(Var("number", begin, end - 1))
    atom, c = next(iter(number.terms.items()))

    def answer(g: Within) -> Expr:
        times = g.index.terms.get(atom, 0) // c
        found = within(g.index + (known - number) * times, g.lo, g.hi, tested=g.tested)
        return found if type(found) is Const or known.is_const else g

    return map_exprs(s, lambda e: decided_inside(e, answer))


def _is_idle(s: Stmt) -> bool:
    """Whether a statement changes nothing but what it allocates."""
    own = {x.buffer for x in walk_stmts(s) if type(x) is Allocate}
    ends = (x for x in walk_stmts(s) if not sub_statements(x) and type(x) is not Prefetch and not is_nothing(x))
    return all(type(x) is Store and x.buffer in own for x in ends)
