"""What conditions say of indices, and what follows: where an index lies under them.

Ranges come first; where they are too wide, all values of the variables are tried, if they are not too many; of those
that an index and its facts have a period in, one period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlc.ir.expr import Call, Expr, Within, conjuncts
from mlc.ir.index import Atom, Linear, Quotient, Remainder, Var, dynamics, evaluate

POINTS = 1 << 21  # of one enumeration; what takes more is not decided
LONGEST = 512  # period that is looked for


@dataclass(frozen=True, slots=True)
class Fact:
    """``lo <= index < hi`` holds where an access is made."""

    index: Linear
    lo: int
    hi: int


Facts = tuple[Fact, ...]


def facts_of(cond: Expr, *, holds: bool = True, given: Facts = ()) -> Facts:
    """What the truth of a condition, or else its falsehood, says of indices, where other facts are known."""
    if type(cond) is Call and cond.fn == "not":
        return facts_of(cond.args[0], holds=not holds, given=given)
    parts = conjuncts(cond)
    if holds:
        return tuple(Fact(c.index, c.lo, c.hi) for c in parts if type(c) is Within)
    c = parts[0]
    if len(parts) == 1 and type(c) is Within:
        least, most = bounds(c.index, given)
        if c.lo <= least:
            return (Fact(c.index, c.hi, most + 1),)
        if c.hi > most:
            return (Fact(c.index, least, c.lo),)
    return ()


def bounds(index: Linear, facts: Facts) -> tuple[int, int]:
    """Least and greatest value that an index can have where some facts hold; maybe wider than it is."""
    lo, hi = index.const, index.const
    for atom, c in index.terms.items():
        least, most = _atom(atom, facts)
        lo, hi = lo + min(c * least, c * most), hi + max(c * least, c * most)
    for f in facts:
        if (times := _ratio(index, f.index)) is not None:
            # times * index == f.index + rest, with a sign
            sign, times = (1, times) if times > 0 else (-1, -times)
            least, most = (index * times - f.index * sign).bounds()
            ends = (sign * f.lo, sign * (f.hi - 1))
            lo, hi = max(lo, -((-least - min(ends)) // times)), min(hi, (most + max(ends)) // times)
    for atom, c in index.terms.items():
        if isinstance(atom, Quotient) and c == 1:
            # rest + form // d is (d * rest + form) // d, of which more may be known
            least, most = bounds(index.without(atom) * atom.divisor + atom.form, facts)
            lo, hi = max(lo, least // atom.divisor), min(hi, most // atom.divisor)
    return lo, hi


def _ratio(index: Linear, known: Linear) -> int | None:
    """How often an index is to be taken for the first term that it shares with a known one to cancel."""
    for atom, c in known.terms.items():
        own = index.terms.get(atom)
        if own:
            return c // own if c % own == 0 else None
    return None


def _atom(atom: Atom, facts: Facts) -> tuple[int, int]:
    if isinstance(atom, Quotient):
        lo, hi = bounds(atom.form, facts)
        return lo // atom.divisor, hi // atom.divisor
    if isinstance(atom, Remainder):
        lo, hi = bounds(atom.form, facts)
        return (
            (lo % atom.divisor, hi % atom.divisor) if lo // atom.divisor == hi // atom.divisor else (atom.lo, atom.hi)
        )
    lo, hi = atom.lo, atom.hi
    for f in facts:
        if len(f.index.terms) == 1 and f.index.terms.get(atom) == 1:
            lo, hi = max(lo, f.lo - f.index.const), min(hi, f.hi - 1 - f.index.const)
    return lo, hi


def is_inside(index: Linear, extent: int, facts: Facts) -> bool | None:
    """Whether an index lies in ``range(extent)`` where some facts hold.

    Returns:
        ``None`` where that cannot be decided: ranges are too wide, and there are too many values to try.
    """
    lo, hi = bounds(index, facts)
    if lo > hi or (lo >= 0 and hi < extent):
        return True
    if dynamics(index):
        return None
    found = _values(index, facts)
    if found is not None:
        values, exact = found
        if not np.any((values < 0) | (values >= extent)):
            return True
        if exact:
            return False
    return _in_parts(index, extent, facts)


def _values(index: Linear, facts: Facts) -> tuple[Any, bool] | None:
    """What an index is where facts hold, every value that is unlike; and whether that is by all of the facts.

    Returns:
        ``None`` where there are too many to try.
    """
    known: list[Fact] = []
    dims = _tried(index, known)
    # those first that say something of a part of the index: there may be too many values for all of them
    for f in sorted(facts, key=lambda f: (not (f.index.terms.keys() & index.terms), len(f.index.vars() - set(dims)))):
        if not dynamics(f.index) and prod((more := _tried(index, [*known, f])).values()) <= POINTS:
            dims = more
            known.append(f)
    if prod(dims.values()) > POINTS:
        return None
    env = grids(dims)
    holds: Any = np.True_
    for f in known:
        value = evaluate(f.index, env)
        holds = holds & (value >= f.lo) & (value < f.hi)
    values, holds = np.broadcast_arrays(evaluate(index, env), holds)
    return values[holds], len(known) == len(facts)


def _in_parts(index: Linear, extent: int, facts: Facts) -> bool | None:
    """Whether an index lies in ``range(extent)`` by what two parts of it can be, each for itself: the terms that go by
    some variable, and the others."""
    for v in sorted(index.vars(), key=lambda v: (-v.hi, v.name)):
        terms = {a: c for a, c in index.terms.items() if v in Linear({a: 1}, 0).vars()}
        if len(terms) == len(index.terms):
            continue
        part = Linear(terms, 0)
        (least, most), (lowest, highest) = _range(part, facts), _range(index - part, facts)
        if least + lowest >= 0 and most + highest < extent:
            return True
    return None


def _range(index: Linear, facts: Facts) -> tuple[int, int]:
    """As :func:`bounds`, by all values where they are not too many."""
    lo, hi = bounds(index, facts)
    found = _values(index, facts)
    if found is None or not found[0].size:
        return lo, hi
    return max(lo, int(found[0].min())), min(hi, int(found[0].max()))


def _tried(index: Linear, facts: Sequence[Fact]) -> dict[Var, int]:
    """How many values of each variable are to be tried: a period, where an index and facts have one.

    >>> from mlc.ir.index import as_index
    >>> i, k = Var("i", 0, 99), Var("k", 0, 999)
    >>> _tried((as_index(k) * 4 + i) // 9 % 3, [])
    {i: 27, k: 27}
    """
    forms = [index, *(f.index for f in facts)]
    every = {v: v.hi + 1 for form in forms for v in sorted(form.vars(), key=lambda v: v.name)}
    if prod(every.values()) <= POINTS // 64:
        return every
    return {
        v: next((p for p in range(1, min(n, LONGEST)) if all(_moved(f, v, p) == 0 for f in forms)), n)
        for v, n in every.items()
    }


def _moved(form: Linear, v: Var, by: int) -> int | None:
    """By how much an index grows where a variable does; ``None`` where that is not always the same."""
    total = 0
    for atom, c in form.terms.items():
        if atom is v:
            total += c * by
        elif isinstance(atom, Quotient | Remainder):
            grown = _moved(atom.form, v, by)
            if grown is None or grown % atom.divisor:
                return None
            total += c * (grown // atom.divisor) if isinstance(atom, Quotient) else 0
    return total


def grids(dims: Mapping[Var, int]) -> dict[Var, Any]:
    """An array of the first values of each variable, so many, along an axis of its own."""
    return {
        v: np.arange(n, dtype=np.int64).reshape([-1 if k == d else 1 for k in range(len(dims))])
        for d, (v, n) in enumerate(dims.items())
    }
