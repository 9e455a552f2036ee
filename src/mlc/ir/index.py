"""Index arithmetic in canonical linear form.

An index is an integer constant plus integer multiples of *atoms*: loop variables, ``//`` and ``%`` by constants,
and values known only at run time (a gather's row). The form is canonical from construction on: equality is a dictionary
comparison and simplification needs no search. Division and remainder round towards minus infinity, as in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import Any, Final, Protocol, Self, final


@final
class Var:
    """A loop variable with a known inclusive range; compared by identity."""

    __slots__ = ("hi", "lo", "name")

    def __init__(self, name: str, lo: int, hi: int) -> None:
        self.name = name
        self.lo = lo
        self.hi = hi

    def __repr__(self) -> str:
        return self.name

    def __add__(self, other: IndexLike) -> Linear:
        return as_index(self) + other

    __radd__ = __add__

    def __neg__(self) -> Linear:
        return -as_index(self)

    def __sub__(self, other: IndexLike) -> Linear:
        return as_index(self) - other

    def __rsub__(self, other: IndexLike) -> Linear:
        return as_index(other) - self

    def __mul__(self, factor: int | Linear) -> Linear:
        return as_index(self) * factor

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Linear:
        return as_index(self) // divisor

    def __mod__(self, divisor: int) -> Linear:
        return as_index(self) % divisor


@final
class Quotient:
    """Atom ``form // divisor``; compared by value."""

    __slots__ = ("_hash", "_vars", "divisor", "fixed", "form", "hi", "lo")

    def __init__(self, form: Linear, divisor: int) -> None:
        self.form = form
        self.divisor = divisor
        self.fixed = is_fixed(form)
        lo, hi = form.bounds()
        self.lo = lo // divisor
        self.hi = hi // divisor
        self._hash = hash((form, divisor, "//"))
        self._vars: frozenset[Var] | None = None  # found when first asked for

    @property
    def vars(self) -> frozenset[Var]:
        """Every loop variable that occurs."""
        if self._vars is None:
            self._vars = frozenset(self.form.vars())
        return self._vars

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Quotient and other.divisor == self.divisor and other.form == self.form)

    def __repr__(self) -> str:
        return f"{_wrapped(self.form)}//{self.divisor}"


@final
class Remainder:
    """Atom ``form % divisor``; compared by value."""

    __slots__ = ("_hash", "_quotient", "_vars", "divisor", "fixed", "form", "hi", "lo")

    def __init__(self, form: Linear, divisor: int) -> None:
        self.form = form
        self.divisor = divisor
        self.fixed = is_fixed(form)
        lo, hi = form.bounds()
        if lo // divisor == hi // divisor:
            self.lo, self.hi = lo % divisor, hi % divisor
        else:
            self.lo, self.hi = 0, divisor - 1
        self._hash = hash((form, divisor, "%"))
        # found when first asked for
        self._quotient: tuple[Atom | None] | None = None
        self._vars: frozenset[Var] | None = None

    @property
    def vars(self) -> frozenset[Var]:
        """Every loop variable that occurs."""
        if self._vars is None:
            self._vars = frozenset(self.form.vars())
        return self._vars

    @property
    def quotient(self) -> Atom | None:
        """What ``form // divisor`` is, where that is a single atom."""
        if self._quotient is None:
            whole = self.form // self.divisor
            alone = len(whole.terms) == 1 and not whole.const
            self._quotient = (next((a for a, c in whole.terms.items() if c == 1), None) if alone else None,)
        return self._quotient[0]

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Remainder and other.divisor == self.divisor and other.form == self.form)

    def __repr__(self) -> str:
        return f"{_wrapped(self.form)}%{self.divisor}"


class Scalar(Protocol):
    """What an index has to know of an integer that is computed at run time (an ``Expr``, which knows indices)."""

    def index_vars(self) -> set[Var]:
        """Every loop variable that occurs."""

    def substituted(self, env: Mapping[Var, IndexLike]) -> Self:
        """The same value with variables replaced; itself when none occurs."""

    def same_as(self, other: Any) -> bool:
        """Structural equality."""


@final
class Dynamic:
    """Atom whose value comes from an integer expression at run time, clamped to ``[lo, hi]`` by whoever built it."""

    __slots__ = ("_vars", "expr", "hi", "lo")

    def __init__(self, expr: Scalar, lo: int, hi: int) -> None:
        self.expr: Any = expr  # to all but this file an Expr
        self.lo = lo
        self.hi = hi
        self._vars: frozenset[Var] | None = None  # found when first asked for

    @property
    def vars(self) -> frozenset[Var]:
        """Every loop variable that occurs."""
        if self._vars is None:
            self._vars = frozenset(self.expr.index_vars())
        return self._vars

    def __hash__(self) -> int:
        return hash((type(self.expr), self.lo, self.hi))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not Dynamic or other.lo != self.lo or other.hi != self.hi:
            return False
        return bool(self.expr.same_as(other.expr))

    def __repr__(self) -> str:
        return f"int({self.expr})"


Atom = Var | Quotient | Remainder | Dynamic


class Linear:
    """``const + sum(coefficient * atom)``; never changed after construction."""

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, terms: dict[Atom, int], const: int) -> None:
        self.terms: Final = terms
        self.const: Final = const
        self._hash = -1

    # -- queries ------------------------------------------------------------------------------------------------
    @property
    def is_const(self) -> bool:
        return not self.terms

    def bounds(self) -> tuple[int, int]:
        """Inclusive range, by interval arithmetic over the atoms."""
        lo = hi = self.const
        for atom, c in self.terms.items():
            if c > 0:
                lo += c * atom.lo
                hi += c * atom.hi
            else:
                lo += c * atom.hi
                hi += c * atom.lo
        return lo, hi

    def multiple_of(self, n: int) -> bool:
        """Whether the value is provably a multiple of ``n``."""
        return self.const % n == 0 and all(c % n == 0 for c in self.terms.values())

    def coefficient(self, var: Var) -> int | None:
        """Stride along ``var``: its coefficient, or ``None`` when ``var`` occurs inside another atom."""
        for atom in self.terms:
            if type(atom) is not Var and depends_on(atom, var):
                return None
        return self.terms.get(var, 0)

    def without(self, atom: Atom) -> Linear:
        """The form less its multiple of an atom."""
        return Linear({a: c for a, c in self.terms.items() if a != atom}, self.const)

    def vars(self) -> set[Var]:
        """Every loop variable that occurs, inside atoms too."""
        found: set[Var] = set()
        for atom in self.terms:
            if type(atom) is Var:
                found.add(atom)
            else:
                found |= atom.vars
        return found

    def __hash__(self) -> int:
        if self._hash == -1:
            self._hash = hash((self.const, frozenset(self.terms.items())))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Linear) and self.const == other.const and self.terms == other.terms

    def __repr__(self) -> str:
        return linear_text(self)

    # -- arithmetic ---------------------------------------------------------------------------------------------
    def __add__(self, other: IndexLike) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.const + other) if other else self
        rhs = as_index(other)
        if not rhs.terms:
            return Linear(self.terms, self.const + rhs.const) if rhs.const else self
        if not self.terms:
            return Linear(rhs.terms, self.const + rhs.const) if self.const else rhs
        return _sum(dict(self.terms), rhs.terms, self.const + rhs.const)

    __radd__ = __add__

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: IndexLike) -> Linear:
        return self + (-as_index(other))

    def __rsub__(self, other: IndexLike) -> Linear:
        return as_index(other) + (-self)

    def __mul__(self, factor: int | Linear) -> Linear:
        if isinstance(factor, Linear):
            if factor.is_const:
                factor = factor.const
            elif self.is_const:
                return factor * self.const
            else:
                raise TypeError(f"product of two index variables: ({self}) * ({factor})")
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Linear({a: c * factor for a, c in self.terms.items()}, self.const * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Linear:
        if divisor <= 0:
            raise ValueError(f"index divided by {divisor}")
        if divisor == 1:
            return self
        if not self.terms:
            return Linear({}, self.const // divisor)
        whole, rest = _divide(self, divisor)
        lo, hi = rest.bounds()
        if lo // divisor == hi // divisor:
            return whole + lo // divisor
        # (g*a + r) // (g*m) == a // m when 0 <= r < g
        reduced = _strip_small(rest, divisor)
        if reduced is not None:
            inner, m = reduced
            return whole + inner // m
        if len(rest.terms) == 1 and rest.const == 0:
            ((atom, c),) = rest.terms.items()
            if c == 1 and type(atom) is Quotient:
                return whole + atom.form // (atom.divisor * divisor)
            if c == 1 and type(atom) is Remainder and atom.divisor % divisor == 0:
                return whole + atom.form // divisor % (atom.divisor // divisor)
        return whole + Linear({Quotient(rest, divisor): 1}, 0)

    def __mod__(self, divisor: int) -> Linear:
        if divisor <= 0:
            raise ValueError(f"index modulo {divisor}")
        if divisor == 1:
            return ZERO
        if not self.terms:
            return Linear({}, self.const % divisor)
        _, rest = _divide(self, divisor)
        lo, hi = rest.bounds()
        if lo // divisor == hi // divisor:
            return rest - (lo // divisor) * divisor
        g = _scale_over_small(rest, divisor)
        if g is not None:
            scaled, small = _split_by(rest, g)
            return (scaled // g % (divisor // g)) * g + small
        if len(rest.terms) == 1 and rest.const == 0:
            ((atom, c),) = rest.terms.items()
            if c == 1 and type(atom) is Remainder and atom.divisor % divisor == 0:
                return atom.form % divisor
        return Linear({Remainder(rest, divisor): 1}, 0)


IndexLike = int | Var | Linear
ZERO: Final = Linear({}, 0)


def as_index(value: IndexLike) -> Linear:
    """An integer or variable in linear form."""
    if isinstance(value, Linear):
        return value
    if isinstance(value, Var):
        if value.lo == value.hi:
            return Linear({}, value.lo)
        return Linear({value: 1}, 0)
    return Linear({}, int(value))


def dynamic(expr: Scalar, lo: int, hi: int) -> Linear:
    """A run-time integer, promised to lie in ``[lo, hi]``, as an index."""
    return Linear({Dynamic(expr, lo, hi): 1}, 0)


def is_fixed(index: Linear) -> bool:
    """Whether no run-time value occurs in a form."""
    for atom in index.terms:
        if type(atom) is Var:
            continue
        if type(atom) is Dynamic or not atom.fixed:
            return False
    return True


def dynamics(index: Linear) -> list[Dynamic]:
    """Every run-time value that occurs in a form."""
    out: list[Dynamic] = []
    for atom in index.terms:
        if type(atom) is Dynamic:
            out.append(atom)
        elif type(atom) is not Var and not atom.fixed:
            out += dynamics(atom.form)
    return out


def depends_on(atom: Atom, var: Var) -> bool:
    """Whether ``var`` occurs in ``atom``."""
    return atom is var if type(atom) is Var else var in atom.vars


def substitute(
    index: Linear,
    env: Mapping[Var, IndexLike],
    dyn: Callable[[Any], Scalar] | None = None,
    done: dict[int, Linear | None] | None = None,
) -> Linear:
    """Replace variables; returns the same object when none occurs.

    Args:
        index: the form to rewrite.
        env: what each variable becomes.
        dyn: rewriting of expressions inside ``Dynamic`` atoms; ``None`` rewrites only their variables.
        done: what became of atoms so far, by ``id``, ``None`` for those that stayed: forms share atoms, and written out
            they may be exponentially long. Calls may share it while their forms are alive.
    """
    for atom in index.terms:
        if type(atom) is not Var or atom in env:
            break
    else:
        return index
    changed = False
    done = {} if done is None else done
    out: dict[Atom, int] = {}
    const = index.const
    parts: list[Linear] = []
    for atom, c in index.terms.items():
        new: IndexLike | None
        if type(atom) is Var:
            new = env.get(atom)
        elif id(atom) in done:
            new = done[id(atom)]
        else:
            new = done[id(atom)] = _substituted(atom, env, dyn, done)
        if new is None:
            out[atom] = c
            continue
        changed = True
        if isinstance(new, int):
            const += c * new
        else:
            parts.append(as_index(new) * c)
    if not changed:
        return index
    result = Linear(out, const)
    for part in parts:
        result = result + part
    return result


def substitute_each(
    indices: tuple[Linear, ...],
    env: Mapping[Var, IndexLike],
    dyn: Callable[[Any], Scalar] | None = None,
    done: dict[int, Linear | None] | None = None,
) -> tuple[Linear, ...]:
    """Replace variables in every index, see :func:`substitute`; returns the same object when none occurs."""
    changed: list[Linear] | None = None
    for k, index in enumerate(indices):
        for atom in index.terms:
            if type(atom) is not Var or atom in env:
                new = substitute(index, env, dyn, done)
                if new is not index:
                    if changed is None:
                        changed = list(indices)
                    changed[k] = new
                break
    return indices if changed is None else tuple(changed)


def _substituted(
    atom: Quotient | Remainder | Dynamic,
    env: Mapping[Var, IndexLike],
    dyn: Callable[[Any], Scalar] | None,
    done: dict[int, Linear | None],
) -> Linear | None:
    """What becomes of an atom in :func:`substitute`; ``None`` when it stays."""
    if type(atom) is Dynamic:
        expr = dyn(atom.expr) if dyn is not None else atom.expr.substituted(env)
        return None if expr is atom.expr else dynamic(expr, atom.lo, atom.hi)
    form = substitute(atom.form, env, dyn, done)
    if form is atom.form:
        return None
    return form // atom.divisor if type(atom) is Quotient else form % atom.divisor


def evaluate(
    index: Linear,
    env: Mapping[Var, int],
    dyn: Callable[[Any], int] | None = None,
    done: dict[int, int] | None = None,
) -> int:
    """Value under an assignment of the variables; works on numpy arrays of values too.

    Args:
        index: the form.
        env: what each variable is.
        dyn: the value of an expression inside a ``Dynamic`` atom.
        done: values of atoms so far, by ``id``.
    Raises:
        TypeError: there is a ``Dynamic`` atom, and nothing to evaluate it with.
    """
    total = index.const
    for atom, c in index.terms.items():
        if type(atom) is Var:
            total = total + c * env[atom]
            continue
        if done is None:
            done = {}
        value = done.get(id(atom))
        if value is None:
            if type(atom) is Dynamic:
                if dyn is None:
                    raise TypeError(f"run-time index {atom} needs an evaluator")
                value = dyn(atom.expr)
            else:
                inner = evaluate(atom.form, env, dyn, done)
                value = inner // atom.divisor if type(atom) is Quotient else inner % atom.divisor
            done[id(atom)] = value
        total = total + c * value
    return total


def linear_text(index: Linear) -> str:
    """Python text of the form, terms in order of first appearance, e.g. ``4*o + i - 1``."""
    return with_const(terms_text(index), index.const)


def with_const(terms: str, const: int) -> str:
    """The text of a form from that of its terms and its constant."""
    if not terms:
        return str(const)
    if not const:
        return terms
    return f"{terms} + {const}" if const > 0 else f"{terms} - {-const}"


def terms_text(index: Linear) -> str:
    """The text of a form without its constant; empty where there are no terms."""
    out = ""
    for atom, c in index.terms.items():
        body = atom.name if type(atom) is Var else str(atom)
        if c != 1 and type(atom) in (Quotient, Remainder):
            body = f"({body})"  # `2*i//3` would read as `(2*i)//3`
        if abs(c) != 1:
            body = f"{abs(c)}*{body}"
        if not out:
            out = body if c > 0 else f"-{body}"
        else:
            out += f" + {body}" if c > 0 else f" - {body}"
    return out


def _wrapped(form: Linear) -> str:
    text = linear_text(form)
    return text if len(form.terms) == 1 and not form.const and all(c == 1 for c in form.terms.values()) else f"({text})"


def _sum(terms: dict[Atom, int], more: Mapping[Atom, int], const: int) -> Linear:
    for atom, c in more.items():
        old = terms.get(atom)
        if old is None:
            terms[atom] = c
        elif old + c:
            terms[atom] = old + c
        else:
            del terms[atom]
    return _rejoin(Linear(terms, const))


def weighted(indices: Sequence[Linear], factors: Sequence[int]) -> Linear:
    """``sum(index * factor)``."""
    terms: dict[Atom, int] = {}
    const = 0
    for index, factor in zip(indices, factors, strict=True):
        const += index.const * factor
        for atom, c in index.terms.items():
            old = terms.get(atom)
            terms[atom] = c * factor if old is None else old + c * factor
    if not all(terms.values()):
        terms = {atom: c for atom, c in terms.items() if c}
    return _rejoin(Linear(terms, const))


def _rejoin(index: Linear) -> Linear:
    """Undo a split: ``d*(x // d) + x % d`` becomes ``x``."""
    for atom, c in index.terms.items():
        if type(atom) is not Remainder:
            continue
        quotient = atom.quotient
        if quotient is not None and index.terms.get(quotient) == c * atom.divisor:
            rest = {a: k for a, k in index.terms.items() if a is not atom and a != quotient}
            return _sum(rest, (atom.form * c).terms, index.const + atom.form.const * c)
    return index


def _divide(index: Linear, divisor: int) -> tuple[Linear, Linear]:
    """``index == whole * divisor + rest`` with every coefficient of ``rest`` in ``[0, divisor)`` or not divisible."""
    whole: dict[Atom, int] = {}
    rest: dict[Atom, int] = {}
    for atom, c in index.terms.items():
        q, r = divmod(c, divisor)
        if r == 0:
            whole[atom] = q
        elif abs(c) < divisor:
            rest[atom] = c
        else:
            whole[atom] = q
            rest[atom] = r
    q, r = divmod(index.const, divisor)
    return Linear(whole, q), Linear(rest, r)


def _split_by(index: Linear, g: int) -> tuple[Linear, Linear]:
    """The part whose coefficients are multiples of ``g``, and the rest with the constant's remainder."""
    big = {a: c for a, c in index.terms.items() if c % g == 0}
    small = {a: c for a, c in index.terms.items() if c % g}
    q = index.const // g
    return Linear(big, q * g), Linear(small, index.const - q * g)


def _scale_over_small(rest: Linear, divisor: int) -> int | None:
    """A ``g > 1`` dividing ``divisor`` such that ``rest = g*a + r`` with ``0 <= r < g``; the largest one."""
    candidates = {gcd(c, divisor) for c in rest.terms.values()}
    for g in sorted(candidates, reverse=True):
        if g <= 1:
            break
        big, small = _split_by(rest, g)
        if not big.terms:
            continue
        lo, hi = small.bounds()
        if lo >= 0 and hi < g:
            return g
    return None


def _strip_small(rest: Linear, divisor: int) -> tuple[Linear, int] | None:
    g = _scale_over_small(rest, divisor)
    if g is None:
        return None
    big, _ = _split_by(rest, g)
    return Linear({a: c // g for a, c in big.terms.items()}, big.const // g), divisor // g
