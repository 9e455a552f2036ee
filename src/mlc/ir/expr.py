"""Scalar expressions, shared by the tensor-expression language and the loop AST.

Nodes are never changed after construction (unfrozen only because construction time matters) and compared by identity;
:func:`same` compares structure. Operands of a binary node have one type; comparisons give ``bool``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mlc.errors import VerifyError
from mlc.ir.index import Dynamic, IndexLike, Linear, Quotient, Var, as_index, dynamics, is_fixed, substitute_each
from mlc.ir.order import post_order
from mlc.ir.text import Printable
from mlc.ir.types import DType, boolean, f32, i32, i64


class Source(Protocol):
    """What can be loaded from: a tensor of the tensor-expression language or a buffer of the loop AST."""

    name: str
    shape: tuple[int, ...]
    dtype: DType


class Expr(Printable):
    """Base of scalar expressions; carries the operators that build them."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def dtype(self) -> DType: ...

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def index_vars(self) -> set[Var]:
        """Every loop variable that occurs in the expression."""
        return index_vars(self)

    def substituted(self, env: Mapping[Var, IndexLike]) -> Expr:
        """The expression with loop variables replaced; itself when none occurs."""
        return substitute_vars(self, env)

    def same_as(self, other: Expr) -> bool:
        """Structural equality (variables and sources by identity)."""
        return same(self, other)


@dataclass(slots=True, eq=False, repr=False)
class Const(Expr):
    """A literal of the given type; floats hold Python floats, integers and booleans Python integers."""

    value: Any
    dtype: DType


@dataclass(slots=True, eq=False, repr=False)
class IndexValue(Expr):
    """The value of an index, as an integer of type ``dtype``."""

    index: Linear
    dtype: DType


@dataclass(slots=True, eq=False, repr=False)
class Within(Expr):
    """``lo <= index < hi``: the one form of bounds guard.

    Args:
        tested: loops are not cut for its sake, it is a test as they run: where what it guards is too much code to be
            there more than once.
    """

    index: Linear
    lo: int
    hi: int
    tested: bool = False

    @property
    def dtype(self) -> DType:
        return boolean


@dataclass(slots=True, eq=False, repr=False)
class Load(Expr):
    """An element of a tensor or buffer."""

    source: Any
    indices: tuple[Linear, ...]

    @property
    def dtype(self) -> DType:
        dtype: DType = self.source.dtype
        return dtype


@dataclass(slots=True, eq=False, repr=False)
class Binary(Expr):
    """``op(a, b)``; the operators and their meaning are in ``BINARY``."""

    op: str
    a: Expr
    b: Expr
    dtype: DType


@dataclass(slots=True, eq=False, repr=False)
class Call(Expr):
    """An intrinsic function of ``INTRINSICS``."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(slots=True, eq=False, repr=False)
class Cast(Expr):
    """Conversion between element types: floats to integers truncate, integers wrap, ``bool`` is ``!= 0``."""

    a: Expr
    dtype: DType


@dataclass(slots=True, eq=False, repr=False)
class Select(Expr):
    """``a if cond else b``; only the chosen side's loads need be in bounds."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        return self.a.dtype


ExprLike = Expr | Linear | Var | int | float | bool

# op -> (kinds of operand it takes, whether it gives bool)
BINARY: dict[str, tuple[str, bool]] = {
    "add": ("fiu", False),
    "sub": ("fiu", False),
    "mul": ("fiu", False),
    "div": ("fiu", False),  # integers truncate towards zero; x / 0 is 0 and MIN / -1 wraps
    "mod": ("fiu", False),  # sign of the divisor, as in Python; x mod 0 is 0
    "fmod": ("fiu", False),  # sign of the dividend, as in C; integer x fmod 0 is 0
    "pow": ("fiu", False),
    "min": ("fiub", False),  # NaN in either operand gives NaN
    "max": ("fiub", False),
    "and": ("iub", False),
    "or": ("iub", False),
    "xor": ("iub", False),
    "shl": ("iu", False),  # a shift by the width or more gives 0
    "shr": ("iu", False),
    "eq": ("fiub", True),
    "ne": ("fiub", True),
    "lt": ("fiub", True),
    "le": ("fiub", True),
    "gt": ("fiub", True),
    "ge": ("fiub", True),
}

# fn -> (number of operands, kinds of operand, what it gives: None is the operands' type)
INTRINSICS: dict[str, tuple[int, str, DType | None]] = {
    **{
        fn: (1, "f", None)
        for fn in (
            "exp",
            "log",
            "sqrt",
            "rsqrt",
            "tanh",
            "sigmoid",
            "erf",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "asinh",
            "acosh",
            "atanh",
            "floor",
            "ceil",
            "round",
            "trunc",
        )
    },
    "neg": (1, "fiu", None),
    "abs": (1, "fiu", None),
    "sign": (1, "fiu", None),
    "not": (1, "iub", None),
    "popcount": (1, "u", None),  # how many bits are set
    "nearest": (1, "f", i32),  # halves to even; whoever asks knows that it fits: else, and of NaN, it is any number
    "isnan": (1, "f", boolean),
    "isinf": (1, "f", boolean),
    "threefry": (4, "u", None),  # of u32: two words of a key, two of a counter; the first word of Threefry-2x32-20
}


def const(value: float | int | bool, dtype: DType) -> Const:
    """A literal, converted to ``dtype`` (integers wrap)."""
    if dtype.is_float:
        return Const(float(value), dtype)
    if dtype.kind == "b":
        return Const(int(bool(value)), dtype)
    n = int(value) & ((1 << dtype.bits) - 1)
    if dtype.kind == "i" and n >> (dtype.bits - 1):
        n -= 1 << dtype.bits
    return Const(n, dtype)


def as_expr(value: ExprLike, dtype: DType | None = None) -> Expr:
    """A scalar expression from an expression, an index or a Python number (of type ``dtype``)."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (Linear, Var)):
        return IndexValue(as_index(value), dtype if dtype is not None and dtype.is_int else i64)
    if dtype is None:
        dtype = boolean if isinstance(value, bool) else i64 if isinstance(value, int) else f32
    return const(value, dtype)


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """Build ``op(a, b)``; a Python number takes the other operand's type.

    Raises:
        VerifyError: the operand types differ or the operator does not take them.
    """
    if isinstance(a, Expr):
        rhs = as_expr(b, a.dtype)
        lhs: Expr = a
    else:
        rhs = as_expr(b)
        lhs = as_expr(a, rhs.dtype)
    kinds, gives_bool = BINARY[op]
    dtype = lhs.dtype
    if dtype is not rhs.dtype or dtype.kind not in kinds:
        raise VerifyError(f"{op}({lhs!r}: {dtype}, {rhs!r}: {rhs.dtype}): operand types")
    if dtype.kind == "b" and op in ("and", "or"):
        for known, other in ((lhs, rhs), (rhs, lhs)):
            if type(known) is Const:
                return other if bool(known.value) == (op == "and") else known
    if op == "mul" and type(rhs) is Const and rhs.value == 1:
        return lhs
    if op == "mul" and type(lhs) is Const and lhs.value == 1:
        return rhs
    if op == "add" and dtype.is_int:
        if type(rhs) is Const and rhs.value == 0:
            return lhs
        if type(lhs) is Const and lhs.value == 0:
            return rhs
    return Binary(op, lhs, rhs, boolean if gives_bool else dtype)


def call(fn: str, *args: ExprLike) -> Expr:
    """Build an intrinsic call.

    Raises:
        VerifyError: wrong number or type of operands.
    """
    arity, kinds, result = INTRINSICS[fn]
    exprs = tuple(as_expr(a) for a in args)
    dtype = exprs[0].dtype if exprs else boolean
    if len(exprs) != arity or dtype.kind not in kinds or any(e.dtype is not dtype for e in exprs):
        raise VerifyError(f"{fn}({', '.join(map(repr, exprs))}): operands")
    return Call(fn, exprs, result or dtype)


def cast(value: ExprLike, dtype: DType) -> Expr:
    """Convert to ``dtype``; nothing is built when the type is right already."""
    a = as_expr(value, None)
    if a.dtype is dtype:
        return a
    if type(a) is IndexValue and dtype.is_int:
        return IndexValue(a.index, dtype)
    return Cast(a, dtype)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """``a if cond else b``; Python numbers take the other side's type.

    Raises:
        VerifyError: the types of the operands do not fit together.
    """
    if isinstance(a, Expr):
        lhs, rhs = a, as_expr(b, a.dtype)
    else:
        rhs = as_expr(b)
        lhs = as_expr(a, rhs.dtype)
    if type(cond) is Const:
        return lhs if cond.value else rhs
    if lhs.dtype is not rhs.dtype or cond.dtype is not boolean:
        raise VerifyError(f"select({cond!r}, {lhs!r}: {lhs.dtype}, {rhs!r}: {rhs.dtype}): operand types")
    return Select(cond, lhs, rhs)


TRUE = Const(1, boolean)
FALSE = Const(0, boolean)


def within(index: IndexLike, lo: int, hi: int, *, tested: bool = False) -> Expr:
    """``lo <= index < hi``, decided at once where the index's range decides it.

    A quotient is taken apart: ``lo <= i + f // d < hi`` is ``lo*d <= i*d + f < hi*d``, which has fewer atoms.
    """
    form = as_index(index)
    parts = [a for a, c in form.terms.items() if type(a) is Quotient and c == 1]
    if len(parts) == 1:
        (q,) = parts
        return within((form - Linear({q: 1}, 0)) * q.divisor + q.form, lo * q.divisor, hi * q.divisor, tested=tested)
    least, most = form.bounds()
    if lo <= least and most < hi:
        return TRUE
    if most < lo or least >= hi or lo >= hi:
        return FALSE
    return Within(form, lo, hi, tested)


def all_of(conds: Sequence[Expr]) -> Expr:
    """Conjunction; the empty one is true."""
    result: Expr = TRUE
    for cond in conds:
        if type(cond) is Const:
            if not cond.value:
                return FALSE
            continue
        result = cond if result is TRUE else Binary("and", result, cond, boolean)
    return result


def conjuncts(cond: Expr) -> list[Expr]:
    """The operands of a nested conjunction, left to right."""
    out: list[Expr] = []
    stack = [cond]
    while stack:
        c = stack.pop()
        if type(c) is Binary and c.op == "and" and c.dtype is boolean:
            stack += [c.b, c.a]
        else:
            out.append(c)
    return out


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct operands (those inside indices excluded)."""
    if type(e) is Binary:
        return (e.a, e.b)
    if type(e) is Call:
        return e.args
    if type(e) is Cast:
        return (e.a,)
    if type(e) is Select:
        return (e.cond, e.a, e.b)
    return ()


def indices_of(e: Expr) -> tuple[Linear, ...]:
    """The indices written directly in this node."""
    if type(e) is Load:
        return e.indices
    if type(e) is Within or type(e) is IndexValue:
        return (e.index,)
    return ()


def with_children(e: Expr, args: Sequence[Expr]) -> Expr:
    """The same node over other operands, simplified as the builders do."""
    if isinstance(e, Binary):
        return binary(e.op, args[0], args[1])
    if isinstance(e, Call):
        return Call(e.fn, tuple(args), e.dtype)
    if isinstance(e, Cast):
        return cast(args[0], e.dtype)
    if isinstance(e, Select):
        return select(args[0], args[1], args[2])
    return e


def walk(e: Expr) -> list[Expr]:
    """Every distinct node, operands before users, run-time indices included."""
    return post_order((e,), _below)


def _below(e: Expr) -> tuple[Expr, ...]:
    """Direct operands, those inside indices included."""
    if type(e) is Binary:
        return (e.a, e.b)
    if type(e) is Load:
        for ix in e.indices:
            if not is_fixed(ix):
                return tuple(d.expr for ix in e.indices for d in dynamics(ix))
        return ()
    if type(e) is Const:
        return ()
    found = children(e)
    indices = indices_of(e)
    return (*found, *(d.expr for ix in indices for d in dynamics(ix))) if indices else found


def loads(e: Expr) -> list[Load]:
    """Every distinct load in the expression, those inside run-time indices included."""
    return [n for n in walk(e) if type(n) is Load]


def index_vars(e: Expr) -> set[Var]:
    """Every loop variable that occurs in the expression."""
    found: set[Var] = set()
    for node in walk(e):
        for ix in indices_of(node):
            found |= ix.vars()
    return found


def text_counts(e: Expr) -> dict[int, int]:
    """How often each distinct node (by ``id``) stands in the text of an expression, where what is shared is repeated.

    >>> x = const(1.5, f32)
    >>> twice = x + x
    >>> text_counts(twice * twice)[id(x)]
    4
    """
    counts = {id(e): 1}
    for node in reversed(walk(e)):
        for below in _below(node):
            counts[id(below)] = counts.get(id(below), 0) + counts[id(node)]
    return counts


def most_occurrences(indices: Sequence[Linear]) -> int:
    """How often the variable that occurs most often does so in the text of some indices, those in run-time values
    included; at least 1.

    >>> from mlc.ir.index import Var, as_index
    >>> i, j = as_index(Var("i", 0, 7)), as_index(Var("j", 0, 4))
    >>> most_occurrences([(i * 5 + j) // 8, (i * 5 + j) % 8 + i])
    3
    """
    counts: dict[Any, int] = {}  # of variables, and of other parts by `id`
    for ix in indices:
        counts[id(ix)] = counts.get(id(ix), 0) + 1
    for part in reversed(post_order(indices, _inside)):
        for inner in _inside(part):
            key = inner if type(inner) is Var else id(inner)
            counts[key] = counts.get(key, 0) + counts[id(part)]
    return max((n for key, n in counts.items() if type(key) is Var), default=1)


def _inside(part: Any) -> Sequence[Any]:
    """What stands directly in an index, an atom of one, or an expression in one."""
    if type(part) is Linear:
        return tuple(part.terms)
    if type(part) is Var:
        return ()
    if type(part) is Dynamic:
        return (part.expr,)
    if isinstance(part, Expr):
        return (*children(part), *indices_of(part))
    return (part.form,)


def rewrite(
    e: Expr,
    leaf: Callable[[Expr], Expr] | None,
    on_indices: Callable[[tuple[Linear, ...]], tuple[Linear, ...]] | None = None,
) -> Expr:
    """Rebuild bottom-up with a memo; the same object comes back where nothing changed.

    Args:
        e: the expression.
        leaf: applied to every rebuilt node (operands already rewritten), if given.
        on_indices: applied to the indices of a node before ``leaf``; gives them back where nothing changed.
    """
    memo: dict[int, Expr] = {}
    stack: list[Expr] = [e]
    while stack:
        node = stack[-1]
        key = id(node)
        if key in memo:
            stack.pop()
            continue
        new = node
        if type(node) is Binary:
            a, b = memo.get(id(node.a)), memo.get(id(node.b))
            if a is None or b is None:  # come back to it when they are there
                stack += (node.a, node.b)
                continue
            if a is not node.a or b is not node.b:
                new = binary(node.op, a, b)
        elif type(node) is Load:
            if on_indices is not None:
                indices = on_indices(node.indices)
                if indices is not node.indices:
                    new = Load(node.source, indices)
        elif kids := children(node):
            missing = [c for c in kids if id(c) not in memo]
            if missing:
                stack += missing
                continue
            args = [memo[id(c)] for c in kids]
            if any(a is not c for a, c in zip(args, kids, strict=True)):
                new = with_children(node, args)
        elif on_indices is not None and (type(node) is Within or type(node) is IndexValue):
            (index,) = on_indices((node.index,))
            if index is not node.index:
                new = _moved(node, index)
        memo[key] = new if leaf is None else leaf(new)
        stack.pop()
    return memo[id(e)]


def _moved(e: Within | IndexValue, index: Linear) -> Expr:
    """The same of another index; guards decide themselves anew."""
    return within(index, e.lo, e.hi, tested=e.tested) if type(e) is Within else IndexValue(index, e.dtype)


def substitute_vars(e: Expr, env: Mapping[Var, IndexLike]) -> Expr:
    """Replace loop variables everywhere in the expression."""
    if not env:
        return e
    done: dict[int, Linear | None] = {}
    return rewrite(e, None, lambda indices: substitute_each(indices, env, None, done))


def replace_loads(e: Expr, fn: Callable[[Load], Expr]) -> Expr:
    """Replace each load by ``fn(load)``, inside run-time indices too."""

    def on_indices(indices: tuple[Linear, ...]) -> tuple[Linear, ...]:
        fixed = all([is_fixed(ix) for ix in indices])
        return indices if fixed else substitute_each(indices, {}, lambda d: replace_loads(d, fn))

    return rewrite(e, lambda n: fn(n) if type(n) is Load else n, on_indices)


def same(a: Expr, b: Expr) -> bool:
    """Structural equality (variables and sources by identity)."""
    stack = [(a, b)]
    while stack:
        x, y = stack.pop()
        if x is y:
            continue
        if type(x) is not type(y) or x.dtype is not y.dtype:
            return False
        for field in ("value", "op", "fn", "source", "lo", "hi"):
            if getattr(x, field, None) != getattr(y, field, None):
                return False
        if indices_of(x) != indices_of(y):
            return False
        kx, ky = children(x), children(y)
        if len(kx) != len(ky):
            return False
        stack += list(zip(kx, ky, strict=True))
    return True
