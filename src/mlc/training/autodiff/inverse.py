"""Which iterations of a loop nest touch an element: accesses solved for the loop variables, over the integers.

A gradient of a tensor expression gathers: element ``z`` of the gradient of an operand sums over the iterations that
read the operand at ``z`` (NeoFlow §4.2, equation 3). Accesses are linear in the loop variables but for ``//`` and
``%``; each pair of those over one form becomes two unknowns and the equation ``form = divisor * quotient +
remainder``, so that the paper's cases (a pair, or one without the other, which leaves a free variable) are one. What
is left is a system of linear equations with whole coefficients and bounded unknowns, solved by elimination: unknowns
that others nearly determine are counted from the few values that they can have, and remainders of coefficients
without a common divisor are inverted, as the steps to Hermite's normal form do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from math import gcd

from mlc.ir.expr import TRUE, Expr, within
from mlc.ir.index import Dynamic, Linear, Quotient, Remainder, Var, as_index, substitute


@dataclass(frozen=True)
class Inverse:
    """The iterations that read one element.

    Args:
        values: what each loop variable is there, over the element's position and ``free``.
        free: new loop variables: every combination of them is at most one iteration.
        guards: what must hold for it to be one.
    """

    values: dict[Var, Linear]
    free: tuple[Var, ...]
    guards: tuple[Expr, ...]


def invert(indices: Sequence[Linear], element: Sequence[Var], axes: Sequence[Var]) -> Inverse:
    """Solves ``indices == element`` for the loop variables.

    Args:
        indices: of the access, over ``axes``.
        element: the position that is read, a variable a dimension.
        axes: all loop variables of the nest, those of which the more important result depends first.
    Returns:
        the iterations that read the element. Positions hold their range as a promise: guards ask for no more than the
        loop variables' own ranges, and for remainders that must be none.

    >>> h, r, z = Var("h", 0, 15), Var("r", 0, 2), Var("z", 0, 32)
    >>> found = invert([as_index(h) * 2 + as_index(r)], [z], [h, r])
    >>> found.values[h], found.values[r], found.free[0].hi
    (z//2 - h, z%2 + 2*h, 1)
    """
    system = _System(axes)
    equations = [(system.linear(ix), z) for ix, z in zip(indices, element, strict=True)]
    for form, z in equations:
        system.eliminate(form - as_index(z))
    while system.definitions:
        system.eliminate(system.definitions.pop(0))
    return system.solution({z.name for z in element})


@dataclass
class _System:
    """Equations over unknowns, of which more and more are told by the others.

    Args:
        axes: the first unknowns.
    """

    axes: Sequence[Var]
    unknowns: dict[Var, None] = field(init=False)  # not solved, nor part of what is no longer linear
    definitions: list[Linear] = field(default_factory=list)  # forms that are zero
    solved: dict[Var, Linear] = field(default_factory=dict)  # over what was unknown then
    parts: dict[tuple[Linear, int], tuple[Linear, Linear]] = field(default_factory=dict)
    all: list[Var] = field(init=False)
    bounded: dict[Var, None] = field(init=False)  # whose ranges say which solutions count
    conditions: list[Linear] = field(default_factory=list)  # forms that must be zero

    def __post_init__(self) -> None:
        self.unknowns = {a: None for a in self.axes if a.hi > a.lo}
        self.all = list(self.axes)
        self.bounded = dict.fromkeys(self.axes)

    def linear(self, form: Linear) -> Linear:
        """The form with unknowns in place of its quotients and remainders."""
        result = as_index(form.const)
        for atom, c in form.terms.items():
            if type(atom) is Quotient or type(atom) is Remainder:
                if not self.unknowns.keys() & atom.vars:
                    result += Linear({atom: c}, 0)
                    continue
                quotient, remainder = self._parts(atom.form, atom.divisor)
                result += (quotient if type(atom) is Quotient else remainder) * c
            else:
                if type(atom) is Dynamic:
                    self._pin(atom.vars)
                result += Linear({atom: c}, 0)
        return result

    def _parts(self, form: Linear, divisor: int) -> tuple[Linear, Linear]:
        """Quotient and remainder of a form as unknowns."""
        known = self.parts.get((form, divisor))
        if known is None:
            lo, hi = form.bounds()
            inner = self.linear(form)
            quotient = self._unknown("q", hi // divisor - lo // divisor, bounded=True)
            remainder = self._unknown("m", divisor - 1, bounded=True)
            known = self.parts[form, divisor] = (as_index(quotient) + lo // divisor, as_index(remainder))
            self.definitions.append(inner - known[0] * divisor - known[1])
        return known

    def _unknown(self, name: str, hi: int, *, bounded: bool = False) -> Var:
        var = Var(name, 0, hi)
        self.all.append(var)
        if hi > 0:
            self.unknowns[var] = None
        if bounded:
            self.bounded[var] = None
        return var

    def _pin(self, variables: set[Var] | frozenset[Var]) -> None:
        """Variables that stand in what is not linear are run through as they are."""
        for var in variables:
            self.unknowns.pop(var, None)

    def _now(self, form: Linear) -> Linear:
        """A form over what is unknown now."""
        while any(v in self.solved for v in form.vars()):
            form = substitute(form, self.solved)
        for atom in form.terms:
            if type(atom) is not Var:
                self._pin(atom.vars)
        return form

    def _solve(self, var: Var, value: Linear) -> None:
        self.solved[var] = value
        self.unknowns.pop(var, None)
        for atom in value.terms:
            if type(atom) is not Var:
                self._pin(atom.vars)

    def eliminate(self, form: Linear) -> None:
        """Makes use of an equation ``form == 0``."""
        form = self._now(form)
        terms = {a: c for a, c in form.terms.items() if type(a) is Var and a in self.unknowns}
        rest = -Linear({a: c for a, c in form.terms.items() if a not in terms}, form.const)
        if not terms:
            self.conditions.append(rest)
            return
        common = gcd(*terms.values())
        if common > 1:
            self.conditions.append(rest % common)
            rest = rest // common
            terms = {v: c // common for v, c in terms.items()}
        if len(terms) == 1:
            ((var, c),) = terms.items()
            self._solve(var, rest * c)
            return
        if any(abs(c) > 1 for c in terms.values()):
            terms, rest = self._upwards(terms, rest)
            terms, rest = self._counted(terms, rest)
        self._pivot(terms, rest)

    def _upwards(self, terms: dict[Var, int], rest: Linear) -> tuple[dict[Var, int], Linear]:
        """All coefficients positive: what falls is counted from its end."""
        result: dict[Var, int] = {}
        for var, c in terms.items():
            if c > 0:
                result[var] = c
                continue
            flipped = self._unknown(var.name, var.hi)
            self._solve(var, var.hi - as_index(flipped))
            result[flipped] = -c
            rest -= c * var.hi
        return result, rest

    def _counted(self, terms: dict[Var, int], rest: Linear) -> tuple[dict[Var, int], Linear]:
        """Unknowns that all others leave fewer values than their range has are counted down from the greatest."""
        terms = dict(terms)
        for var in sorted(terms, key=lambda v: -terms[v]):
            c = terms[var]
            most = sum(k * v.hi for v, k in terms.items() if v is not var and k > 0)
            if any(k < 0 for k in terms.values()) or most // c >= var.hi or len(terms) == 1:
                continue
            step = self._unknown(var.name, most // c)
            del terms[var]
            self._solve(var, rest // c - as_index(step))
            rest = rest % c
            if step in self.unknowns:
                terms[step] = -c
        return terms, rest

    def _pivot(self, terms: dict[Var, int], rest: Linear) -> None:
        """Solves for one of the unknowns, so that it is whole."""
        if not terms:
            self.conditions.append(rest)
            return
        least = min(terms, key=lambda v: (abs(terms[v]), -v.hi))
        modulus = abs(terms[least])
        others = {v: c for v, c in terms.items() if v is not least}
        if modulus > 1:
            tied = next((v for v, c in others.items() if gcd(c, modulus) == 1), None)
            if tied is None:
                self.conditions.append((rest - _form(others)) % modulus)
            else:
                c = others.pop(tied)
                inverse = pow(c % modulus, -1, modulus)
                first = (rest - _form(others)) * inverse % modulus
                step = self._unknown(tied.name, tied.hi // modulus)
                value = first + as_index(step) * modulus
                self._solve(tied, value)
                rest = rest - value * c
        whole = rest - _form(others)
        self._solve(least, (whole if terms[least] > 0 else -whole) // modulus)

    def solution(self, taken: set[str]) -> Inverse:
        """What the loop variables are, over those unknowns that nothing tells, which get names that are not taken."""
        values: dict[Var, Linear] = {}
        for var in reversed(self.solved):
            values[var] = substitute(self.solved[var], values)
        free = {v: Var(_unique(v.name, taken), 0, v.hi) for v in self.all if v not in values and v.hi > 0}
        bounded = {v: substitute(values.get(v, as_index(v)), free) for v in self.bounded}
        zeros = [substitute(substitute(form, values), free) for form in self.conditions]
        guards = [*(within(form, 0, 1) for form in zeros), *(within(f, 0, v.hi + 1) for v, f in bounded.items())]
        return Inverse(
            {a: bounded[a] for a in self.axes}, tuple(free.values()), tuple(g for g in guards if g is not TRUE)
        )


def _unique(name: str, taken: set[str]) -> str:
    """The name, or with a number where it is taken; it is then."""
    found = next(n for n in chain((name,), (f"{name}_{k}" for k in count(1))) if n not in taken)
    taken.add(found)
    return found


def _form(terms: Mapping[Var, int]) -> Linear:
    return Linear({v: c for v, c in terms.items()}, 0)  # a mapping of another type of keys
