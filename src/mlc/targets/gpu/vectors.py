"""Whole vectors as values: stores to neighbours whose lanes are computed by one operation each, and what holds them.

Where a language's operators and functions take vectors as they take numbers (OpenCL C, sections 6.3 and 6.12), all
lanes of a store are one expression. Arrays of a thread that are only ever read and written so, or one element of a
known number, are arrays of vectors; where that number is known only once a loop is written out, it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mlc.ir.expr import Binary, Call, Cast, Expr, Load, Select, children, index_vars
from mlc.ir.index import Linear, Var, dynamics, weighted
from mlc.ir.loop import Allocate, Buffer, For, ForKind, ForRange, If, Stmt, Store, walk
from mlc.ir.order import post_order
from mlc.ir.types import f16, f32
from mlc.lower.rewrite import places_of
from mlc.lower.threads import PRIVATE
from mlc.targets.gpu.dialect import Dialect, VectorMath
from mlc.targets.gpu.scalars import ARITHMETIC, COMPARE, EXACT, PLAIN, Scalars
from mlc.targets.gpu.texts import LONGEST, bare, is_lazy

TYPES = (f32, f16)
WRITTEN_OUT = 16  # iterations of a loop that picks elements, at most
_FUNCTIONS = {*PLAIN, "neg", "rsqrt", "sigmoid"}
_OPERATORS = {*ARITHMETIC, "min", "max"}


def registers_of(body: Stmt, math: VectorMath | None) -> tuple[dict[int, int], frozenset[Var]]:
    """Arrays of a thread that are arrays of vectors.

    Args:
        body: what a thread does.
        math: the language's; without, there are none.
    Returns:
        how many elements a vector of each has, by ``id`` of the buffer; and the variables of loops that pick elements.
    """
    if math is None:
        return {}, frozenset()
    held: dict[int, Buffer] = {}
    short: set[Var] = set()
    for s in walk(body):
        if isinstance(s, Allocate) and s.buffer.scope in PRIVATE and s.buffer.dtype in TYPES:
            held[id(s.buffer)] = s.buffer
        elif isinstance(s, For) and s.kind is not ForKind.THREAD and s.extent <= WRITTEN_OUT:
            short.add(s.var)
    widths: dict[int, set[int]] = {}
    whole: dict[int, list[Linear]] = {}
    single: dict[int, list[Linear]] = {}
    for s in walk(body):
        lane = s.lane if isinstance(s, Store) else None
        for b, indices in places_of(s):
            if id(b) not in held:
                continue
            form = weighted(indices, b.strides())
            step = form.coefficient(lane) if lane is not None else 0
            if dynamics(form) or step not in (0, 1) or not isinstance(s, (Store, If, ForRange)):
                del held[id(b)]
            elif step == 1 and lane is not None:
                widths.setdefault(id(b), set()).add(lane.hi + 1)
                whole.setdefault(id(b), []).append(form.without(lane))
            else:
                single.setdefault(id(b), []).append(form)
    found: dict[int, int] = {}
    picks: set[Var] = set()
    for key, b in held.items():
        if len(widths.get(key, ())) != 1:
            continue
        (n,) = widths[key]
        picked = {v for form in single.get(key, ()) for v in _picks(form, n)}
        if n in math.widths and b.size % n == 0 and picked <= short and all(f.multiple_of(n) for f in whole[key]):
            found[key] = n
            picks |= picked
    return found, frozenset(picks)


def _picks(form: Linear, n: int) -> set[Var]:
    """Variables on which it depends which element of a vector a place is."""
    return {v for a, c in form.terms.items() if c % n for v in ({a} if isinstance(a, Var) else a.vars)}


class Writer(Protocol):
    """Who writes a function."""

    scalars: Scalars
    dialect: Dialect
    registers: Mapping[int, int]

    def named(self, type: str, name: str, text: str) -> str:
        """A text's name from now on."""
        ...

    def value(self, e: Expr) -> str:
        """The text of a number."""
        ...

    def base(self, b: Buffer, indices: Sequence[Linear], lane: Var) -> str | None:
        """A pointer to the first of neighbours in memory."""
        ...

    def register(self, b: Buffer, first: Linear) -> str:
        """A vector in an array of them, by its first element."""
        ...

    def either(self, type: str, cond: str, then: Callable[[], str], other: Callable[[], str]) -> str:
        """The name of what a condition chooses."""
        ...


class Whole:
    """All lanes of a store as one vector.

    Args:
        emitter: writes the function.
        lane: the store's.
        math: the language's.
    """

    def __init__(self, emitter: Writer, lane: Var, math: VectorMath) -> None:
        self.emitter = emitter
        self.lane = lane
        self.math = math
        self.n = lane.hi + 1
        self.known: dict[int, str] = {}

    def can(self, e: Expr) -> bool:
        """Whether the language has all of an expression for vectors."""
        return self.n in self.math.widths and all(self._has(x) for x in post_order((e,), self._parts))

    def text(self, e: Expr, *, halved: bool) -> str:
        """An expression that it :meth:`can`; ``halved`` where whoever stores it rounds it to half precision."""
        while halved and isinstance(e, Cast) and e.dtype is f16 and e.a.dtype is f32:
            e = e.a
        return self._vector(e)

    def rounded(self, text: str) -> str:
        """A vector of single precision as one of half precision."""
        name = f"mlc_round_f16_{self.n}"
        self.emitter.scalars.functions.setdefault(name, self.math.round_half.format(name=name, n=self.n))
        return f"{name}({text})"

    def _varies(self, e: Expr) -> bool:
        return self.lane in index_vars(e)

    def _parts(self, e: Expr) -> tuple[Expr, ...]:
        """What of an expression is a vector, too, whatever a choice in it is."""
        if not self._varies(e):
            return ()
        if isinstance(e, Select):
            return () if is_lazy(e) else (e.a, e.b)
        return children(e) if isinstance(e, (Binary, Call, Cast)) else ()

    def _has(self, e: Expr) -> bool:
        if e.dtype not in TYPES:
            return False
        if not self._varies(e):
            return True
        match e:
            case Load():
                return self._place(e) is not None
            case Binary():
                return e.op in _OPERATORS
            case Call():
                return e.fn in _FUNCTIONS
            case Cast():
                return e.a.dtype in TYPES
            case Select():
                return self._can_choose(e.cond) and (not is_lazy(e) or (self.can(e.a) and self.can(e.b)))
        return False

    def _can_choose(self, cond: Expr) -> bool:
        """Whether it is one condition for all lanes, or a comparison of vectors of words."""
        if not self._varies(cond):
            return True
        compares = isinstance(cond, Binary) and cond.op in COMPARE and cond.a.dtype is f32
        return compares and isinstance(cond, Binary) and self.can(cond.a) and self.can(cond.b)

    def _place(self, ld: Load) -> str | None:
        """The text of a load of neighbours."""
        b, em = ld.source, self.emitter
        if id(b) in em.registers:
            form = weighted(ld.indices, b.strides())
            own = em.registers[id(b)] == self.n and form.coefficient(self.lane) == 1
            return em.register(b, form.without(self.lane)) if own else None
        at = em.base(b, ld.indices, self.lane)
        if at is None:
            return None
        if ld.dtype is f16:
            return self.math.load_half.format(n=self.n, at=at) if b.scope == "global" else None
        kind = em.dialect.vector.format(type=em.scalars.stored(ld.dtype), n=self.n)
        return em.dialect.load.format(n=self.n, type=kind, at=at)

    def _vector(self, e: Expr) -> str:
        """The text of a vector; what is used more than once, or is long, gets a name."""
        order = post_order((e,), self._parts)
        uses = Counter(id(part) for x in order for part in self._parts(x))
        products = {id(p): p for x in order if (p := self._product(x)) is not None and uses[id(p)] == 1}
        for x in order:
            if id(x) in self.known or id(x) in products:
                continue
            text = self._node(x, products) if self._varies(x) else self.splat(self.emitter.value(x))
            if uses[id(x)] > 1 or len(text) > LONGEST:
                text = self.emitter.named(self.type, "v", text)
            self.known[id(x)] = text
        return self.known[id(e)]

    def _product(self, e: Expr) -> Binary | None:
        """What is multiplied before it is added to something else."""
        if isinstance(e, Binary) and e.op == "add" and e.dtype is f32 and self._varies(e):
            for x in (e.b, e.a):
                if isinstance(x, Binary) and x.op == "mul" and self._varies(x):
                    return x
        return None

    @property
    def type(self) -> str:
        """Of vectors as they are computed with."""
        return self.emitter.dialect.vector.format(type=self.emitter.scalars.type(f32), n=self.n)

    def splat(self, text: str) -> str:
        return self.math.splat.format(vector=self.type, value=bare(text))

    def _node(self, e: Expr, products: Mapping[int, Binary]) -> str:
        match e:
            case Load():
                found = self._place(e)
                assert found is not None
                return found
            case Binary():
                return self._narrowed(self._binary(e, products), e, exact=e.op in EXACT)
            case Call():
                return self._narrowed(self._call(e.fn, self.known[id(e.args[0])]), e, exact=e.fn in EXACT)
            case Cast():
                return self._narrowed(self.known[id(e.a)], e, exact=e.a.dtype is f16)
            case Select():
                return self._select(e)
        raise AssertionError(e)

    def _narrowed(self, text: str, e: Expr, *, exact: bool) -> str:
        return self.rounded(text) if e.dtype is f16 and not exact else text

    def _binary(self, e: Binary, products: Mapping[int, Binary]) -> str:
        product = self._product(e)
        if product is not None and id(product) in products:
            other = e.a if product is e.b else e.b
            self.emitter.scalars.functions.setdefault("mlc_mad", self.math.mad)
            return f"mlc_mad({', '.join(bare(self._vector(x)) for x in (product.a, product.b, other))})"
        a, b = self.known[id(e.a)], self.known[id(e.b)]
        if e.op in ARITHMETIC:
            return f"({a} {ARITHMETIC[e.op]} {b})"
        return self._helper(e.op, self.math.largest if e.op == "max" else self.math.smallest, a, b)

    def _call(self, fn: str, a: str) -> str:
        if fn in PLAIN:
            return f"{PLAIN[fn]}({bare(a)})"
        if fn == "neg":
            return f"(-{a})"
        return f"(1.0f / sqrt({bare(a)}))" if fn == "rsqrt" else self._helper(fn, self.math.sigmoid, a)

    def _helper(self, fn: str, text: str, *args: str) -> str:
        name = f"mlc_{fn}_f32_{self.n}"
        self.emitter.scalars.functions.setdefault(name, text.format(vector=self.type, name=name, n=self.n))
        return f"{name}({', '.join(map(bare, args))})"

    def _select(self, e: Select) -> str:
        if self._varies(e.cond):
            assert isinstance(e.cond, Binary)
            cond = f"{self._vector(e.cond.a)} {COMPARE[e.cond.op]} {self._vector(e.cond.b)}"
            return self.math.choose.format(a=bare(self._vector(e.a)), b=bare(self._vector(e.b)), cond=cond)
        cond = self.emitter.value(e.cond)
        if not is_lazy(e):
            return f"({cond} ? {self.known[id(e.a)]} : {self.known[id(e.b)]})"
        around = self.known

        def side(x: Expr) -> str:
            self.known = dict(around)
            return self._vector(x)

        found = self.emitter.either(self.type, cond, lambda: side(e.a), lambda: side(e.b))
        self.known = around
        return found
