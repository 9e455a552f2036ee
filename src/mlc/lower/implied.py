"""Conditions that are decided by others go.

In: branches within branches. Out: the same values; a condition that the conditions around it, or beside it, decide is
not asked any more: ``if k < 98: if 98*b + k < 196`` for ``b < 2`` becomes ``if k < 98``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mlc.ir.expr import FALSE, TRUE, Binary, Const, Expr, Select, Within, all_of, conjuncts, rewrite
from mlc.ir.index import dynamics
from mlc.ir.loop import If, Stmt, rebuild
from mlc.lower.facts import Fact, Facts, bounds
from mlc.lower.rewrite import decided


def drop_implied(s: Stmt, facts: Facts = ()) -> Stmt:
    """A statement without the conditions that follow from others, of which ``facts`` are known."""
    if type(s) is not If:
        return rebuild(s, partial(drop_implied, facts=facts))
    parts = conjuncts(s.cond)
    kept: list[Expr] = []
    for k, part in enumerate(parts):
        part = decide(part, (*facts, *_facts([*kept, *parts[k + 1 :]])))
        if part is not TRUE:
            kept.append(part)
    orelse = None if s.orelse is None else drop_implied(s.orelse, facts)
    if FALSE in kept:
        return decided(FALSE, s.then, orelse)
    then = drop_implied(s.then, (*facts, *_facts(kept)))
    if len(kept) == len(parts) and then is s.then and orelse is s.orelse:
        return s
    return decided(s.cond if len(kept) == len(parts) else all_of(kept), then, orelse)


def decide(e: Expr, facts: Facts) -> Expr:
    """A range check, decided if some facts decide it; any other expression as it is."""
    if not facts or type(e) is not Within:
        return e
    lo, hi = bounds(e.index, facts)
    if e.lo <= lo and hi < e.hi:
        return TRUE
    return FALSE if hi < e.lo or lo >= e.hi else e


def decided_inside(e: Expr, answer: Callable[[Within], Expr]) -> Expr:
    """An expression whose range checks are answered, and what follows from the answers: conjunctions and choices."""

    def leaf(n: Expr) -> Expr:
        if type(n) is Within:
            n = answer(n)
        if type(n) is Binary and n.op == "and":
            for a, b in ((n.a, n.b), (n.b, n.a)):
                if type(a) is Const and n.dtype.kind == "b":
                    return b if a.value else a
        if type(n) is Select and type(n.cond) is Const:
            return n.a if n.cond.value else n.b
        return n

    return rewrite(e, leaf)


def _facts(conds: Sequence[Expr]) -> Facts:
    """What conditions say that stays so: what memory holds may change."""
    return tuple(Fact(c.index, c.lo, c.hi) for c in conds if type(c) is Within and not dynamics(c.index))
