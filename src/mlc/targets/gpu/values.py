"""Values, and the places where they lie, as text in a C-like language.

What stands in an expression more than once, or makes a line too long, gets a name in a line before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlc.errors import CodegenError
from mlc.ir import loop
from mlc.ir.expr import Binary, Call, Cast, Const, Expr, IndexValue, Load, Select, Within, children, indices_of
from mlc.ir.index import Linear, Quotient, Remainder, Var, dynamics, weighted
from mlc.ir.order import post_order
from mlc.ir.types import DType, f32
from mlc.targets.gpu.dialect import Dialect
from mlc.targets.gpu.scalars import Scalars, is_narrow
from mlc.targets.gpu.texts import LONGEST, bare, is_lazy

_MOST = 1 << 31  # what an int cannot hold any more
_FLOOR = {
    "mlc_floor_div": "{t} {name}({t} a, {t} b) {{ return a / b - (a % b < 0); }}",
    "mlc_floor_mod": "{t} {name}({t} a, {t} b) {{ {t} r = a % b; return r < 0 ? r + b : r; }}",
}


class Values:
    """Lines of a function while they are written, and the names in it."""

    def __init__(self, scalars: Scalars) -> None:
        self.scalars = scalars
        self.dialect: Dialect = scalars.dialect
        self.lines: list[str] = []
        self.depth = 1
        self.taken: set[str] = set()
        self.names: dict[Var, str] = {}
        self.arrays: dict[int, str] = {}
        self.known: dict[int, str] = {}  # nodes of the present statement that have a text
        self.registers: Mapping[int, int] = {}  # arrays of vectors, and how many elements each of these has

    # -- names and lines -------------------------------------------------------------------------------------------
    def fresh(self, name: str) -> str:
        base = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
        base = f"_{base}" if not base or base[0].isdigit() else base
        found, k = base, 0
        while found in self.taken or found in _KEYWORDS:
            k += 1
            found = f"{base}_{k}"
        self.taken.add(found)
        return found

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    # -- places ----------------------------------------------------------------------------------------------------
    def register(self, b: loop.Buffer, first: Linear) -> str:
        """A vector in an array of them, by its first element."""
        return f"{self.arrays[id(b)]}[{bare(self.index(first // self.registers[id(b)]))}]"

    def place(self, b: loop.Buffer, indices: Sequence[Linear]) -> str:
        at = weighted(indices, b.strides())
        if n := self.registers.get(id(b)):
            k = at.const % n
            return self.dialect.lane.format(value=self.register(b, at - k), k=f"{k:x}")
        return f"{self.arrays[id(b)]}[{bare(self.index(at))}]"

    def index(self, ix: Linear) -> str:
        """An index as an integer expression; of 64 bits where 32 hold neither it nor what is added up on the way."""
        wide = f"({self.dialect.types['i64']})" if _is_wide(ix) else ""
        parts = [(wide + self.atom(a), c) for a, c in ix.terms.items()]
        text = ""
        for body, c in parts:
            term = body if abs(c) == 1 else f"{abs(c)}*{body}"
            text += (f" {'+' if c > 0 else '-'} {term}") if text else (term if c > 0 else f"-{term}")
        if ix.const or not text:
            text = f"{text} {'+' if ix.const > 0 else '-'} {abs(ix.const)}" if text else str(ix.const)
        return text if len(parts) + bool(ix.const) <= 1 and not text.startswith("-") else f"({text})"

    def atom(self, a: object) -> str:
        if isinstance(a, Var):
            if a.hi >= _MOST:
                raise CodegenError(f"the variable {a} of a loop of {a.hi + 1} iterations needs more than 32 bits")
            return self.names[a]
        if isinstance(a, (Quotient, Remainder)):
            inner = self.index(a.form)
            if a.form.bounds()[0] >= 0:
                return f"({inner} {'/' if isinstance(a, Quotient) else '%'} {a.divisor})"
            base = "mlc_floor_div" if isinstance(a, Quotient) else "mlc_floor_mod"
            name, t = (f"{base}_wide", self.dialect.types["i64"]) if _is_wide(a.form) else (base, "int")
            text = _FLOOR[base].format(t=t, name=name)
            self.scalars.functions.setdefault(name, f"{self.dialect.device} {text}")
            return f"{name}({inner}, {a.divisor})"
        expr: Expr = a.expr  # type: ignore[attr-defined]
        kind = self.dialect.types["i64"] if a.hi >= _MOST else "int"  # type: ignore[attr-defined]
        return f"({kind}){self.value(expr)}"

    # -- values ----------------------------------------------------------------------------------------------------
    def kept(self, e: Expr, dtype: DType) -> str:
        """An expression's value as it lies in memory; what is stored is rounded there, and only there."""
        while isinstance(e, Cast) and is_narrow(dtype) and e.dtype is dtype and e.a.dtype is f32:
            e = e.a
        return self.scalars.kept(self.value(e), dtype)

    def value(self, e: Expr) -> str:
        """An expression's text; what stands in it more than once, or is too long, gets a name in a line before."""
        order = post_order((e,), _operands)
        uses: dict[int, int] = {}
        for node in order:
            for below in _operands(node):
                uses[id(below)] = uses.get(id(below), 0) + 1
        for node in order:
            if id(node) in self.known:
                continue
            text = self.node(node)
            if (uses.get(id(node), 0) > 1 and not _is_leaf(node)) or len(text) > LONGEST:
                text = self.named(self.scalars.type(node.dtype), "t", text)
            self.known[id(node)] = text
        return self.known[id(e)]

    def node(self, e: Expr) -> str:
        match e:
            case Const():
                return self.scalars.const(e)
            case IndexValue():
                return f"({self.scalars.type(e.dtype)}){self.index(e.index)}"
            case Within():
                return self.within(e)
            case Load():
                if isinstance(e.source, Named):
                    return e.source.name
                place = self.place(e.source, e.indices)
                return place if id(e.source) in self.registers else self.scalars.loaded(place, e.dtype)
            case Binary():
                return self.scalars.binary(e.op, self.known[id(e.a)], self.known[id(e.b)], e.a.dtype)
            case Call():
                return self.scalars.call(e.fn, [self.known[id(a)] for a in e.args], e.args[0].dtype)
            case Cast():
                return self.scalars.cast(self.known[id(e.a)], e.a.dtype, e.dtype)
            case Select():
                return self.choice(e)
        raise CodegenError(f"no text for {type(e).__name__}")

    def within(self, e: Within) -> str:
        lo, hi = e.index.bounds()
        text = self.index(e.index)
        parts = ([f"{text} >= {e.lo}"] if lo < e.lo else []) + ([f"{text} < {e.hi}"] if hi >= e.hi else [])
        return f"({' && '.join(parts)})" if parts else "1"

    def choice(self, e: Select) -> str:
        """A ``select``: a branch where a side reads memory, which it must not unless it is chosen."""
        cond = self.known[id(e.cond)]
        if not is_lazy(e):
            return f"({cond} ? {self.known[id(e.a)]} : {self.known[id(e.b)]})"
        kind = self.scalars.type(e.dtype)
        return self.either(kind, cond, lambda: self.value(e.a), lambda: self.value(e.b))

    def either(self, type: str, cond: str, then: Callable[[], str], other: Callable[[], str]) -> str:
        """The name of what a condition chooses, each side in a branch of its own."""
        name = self.fresh("s")
        self.line(f"{type} {name};")
        around = self.known
        for head, side in ((f"if ({bare(cond)}) {{", then), ("} else {", other)):
            self.known = dict(around)
            self.line(head)
            self.depth += 1
            self.line(f"{name} = {bare(side())};")
            self.depth -= 1
        self.line("}")
        self.known = around
        return name

    def named(self, type: str, name: str, text: str) -> str:
        """A text's name from now on."""
        found = self.fresh(name)
        self.line(f"const {type} {found} = {bare(text)};")
        return found


class Named:
    """What a text has a name for already; loaded without an index."""

    def __init__(self, name: str, dtype: DType) -> None:
        self.name, self.dtype = name, dtype
        self.shape: tuple[int, ...] = ()


def _is_wide(ix: Linear) -> bool:
    """Whether an index, or a sum of its first terms as they are written, needs more than 32 bits."""
    lo = hi = least = most = 0
    for a, c in ix.terms.items():
        ends = sorted((c * a.lo, c * a.hi))
        lo, hi = lo + ends[0], hi + ends[1]
        least, most = min(least, lo, ends[0]), max(most, hi, ends[1])
    return min(least, lo + ix.const) < -_MOST or max(most, hi + ix.const) >= _MOST


def _is_leaf(e: Expr) -> bool:
    return isinstance(e, (Const, IndexValue, Within)) or (isinstance(e, Load) and isinstance(e.source, Named))


def _operands(e: Expr) -> tuple[Expr, ...]:
    """What is computed before a node, whatever a choice in it is."""
    inner = tuple(d.expr for ix in indices_of(e) for d in dynamics(ix))
    if isinstance(e, Select) and is_lazy(e):
        return (e.cond, *inner)
    return (*children(e), *inner)


_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long
register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
mlc_vector mlc_pack asm alignas operator decltype
half uchar ushort uint ulong bool true false kernel global local constant private vload vstore barrier exp log
sqrt tanh erf sin cos tan asin acos atan sinh cosh asinh acosh atanh floor ceil trunc rint fabs fmod pow isnan
isinf min max abs sign step mix clamp dot length select any all pipe queue event NULL NAN INFINITY new delete
this class template operator public protected virtual friend namespace using try catch throw typename export
mutable explicit and and_eq bitand bitor compl not not_eq or or_eq xor xor_eq alignof char8_t char16_t char32_t
wchar_t concept requires consteval constexpr constinit const_cast dynamic_cast reinterpret_cast static_cast
static_assert co_await co_return co_yield noexcept nullptr thread_local typeid
"""
_KEYWORDS = frozenset(_WORDS.split())  # names that mean something already
