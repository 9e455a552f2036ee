"""Scalar operators as LLVM instructions, for scalars and vectors alike."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mlc.errors import CodegenError
from mlc.ir.types import ALL_DTYPES, DType, boolean, f32
from mlc.ir.types import i32 as _I32
from mlc.targets.llvm.text import mangle_suffix, register_type, splat


class Val(NamedTuple):
    """An operand: its text, its element type, and its lanes (0 for a scalar)."""

    text: str
    dtype: DType
    lanes: int

    @property
    def type(self) -> str:
        return register_type(self.dtype, self.lanes)


class Sink(Protocol):
    """What the emitters below write to.

    Attributes:
        flags: LLVM's flags of sums and products.
        keeps_nan: whether the processor's least and greatest of two keep NaN, and its conversions to integers take NaN
            to 0.
    """

    flags: str
    keeps_nan: bool

    def pure(self, text: str) -> str:
        """Emit an instruction without side effects; an equal one may be reused."""
        ...

    def declare(self, line: str) -> None:
        """Make sure a declaration is in the module."""
        ...

    def math(self, fn: str, dtype: str, lanes: int) -> str:
        """Symbol of a function of the vector math library."""
        ...


def _intrinsic(s: Sink, name: str, dtype: DType, lanes: int, args: list[Val], extra: str = "", flags: str = "") -> Val:
    t = register_type(dtype, lanes)
    symbol = f"@llvm.{name}.{mangle_suffix(dtype, lanes)}"
    more = ", i1" if extra else ""
    s.declare(f"declare {t} {symbol}({', '.join([t] * len(args))}{more})")
    operands = ", ".join(f"{t} {a.text}" for a in args)
    return Val(s.pure(f"call {flags}{t} {symbol}({operands}{extra})"), dtype, lanes)


def _const(value: float | int, like: Val) -> Val:
    return Val(splat(value, like.dtype, like.lanes), like.dtype, like.lanes)


def select(s: Sink, cond: Val, a: Val, b: Val) -> Val:
    """``cond ? a : b``; a scalar condition chooses whole vectors."""
    return Val(s.pure(f"select {cond.type} {cond.text}, {a.type} {a.text}, {b.type} {b.text}"), a.dtype, a.lanes)


_COMPARE = {
    "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"), "lt": ("olt", "slt", "ult"), "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"), "ge": ("oge", "sge", "uge"),
}  # fmt: skip


def compare(s: Sink, op: str, a: Val, b: Val) -> Val:
    """A comparison of equal types; gives ``i1`` lanes. NaN compares unequal to everything."""
    f, i, u = _COMPARE[op]
    if a.dtype.is_float:
        text = f"fcmp {f} {a.type} {a.text}, {b.text}"
    else:
        text = f"icmp {i if a.dtype.kind == 'i' else u} {a.type} {a.text}, {b.text}"
    return Val(s.pure(text), boolean, a.lanes)


def binary(s: Sink, op: str, a: Val, b: Val, const_b: float | int | None = None) -> Val:
    """``op(a, b)`` of equal types and lanes.

    Args:
        s: where to write.
        op: a key of ``ir.expr.BINARY``.
        a: left operand.
        b: right operand.
        const_b: the value of ``b`` when it is a literal, which saves guards.
    """
    if op in _COMPARE:
        return compare(s, op, a, b)
    if a.dtype.is_float:
        return round_bf16(s, _float_binary(s, op, a, b, const_b))
    return _int_binary(s, op, a, b, const_b)


_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "fmod": "frem"}


def _float_binary(s: Sink, op: str, a: Val, b: Val, const_b: float | int | None) -> Val:
    if op in _FLOAT:
        flags = s.flags if op in ("add", "sub", "mul") else ""
        return Val(s.pure(f"{_FLOAT[op]} {flags}{a.type} {a.text}, {b.text}"), a.dtype, a.lanes)
    if op in ("min", "max"):
        if const_b is not None and const_b == const_b and not s.keeps_nan:
            # with a literal that is no NaN one comparison keeps NaN: it is false, and the other side is taken
            worse = compare(s, "lt" if op == "max" else "gt", a, b)
            return select(s, worse, b, a)
        # keeps a NaN of either, and takes half the instructions where zeros of different sign need not be told apart
        name = "maximum" if op == "max" else "minimum"
        return _intrinsic(s, name, a.dtype, a.lanes, [a, b], flags="nsz ")
    if op == "mod":
        r = Val(s.pure(f"frem {a.type} {a.text}, {b.text}"), a.dtype, a.lanes)
        zero = _const(0.0, a)
        differs = Val(
            s.pure(
                f"xor {register_type(boolean, a.lanes)} {compare(s, 'lt', r, zero).text}, "
                f"{compare(s, 'lt', b, zero).text}"
            ),
            boolean, a.lanes,
        )  # fmt: skip
        off = logic(s, "and", compare(s, "ne", r, zero), differs)
        return select(s, off, _float_binary(s, "add", r, b, None), r)
    if op == "pow":
        return function(s, "pow", [a, b])
    raise CodegenError(f"no instruction for {op} on {a.dtype}")


def logic(s: Sink, op: str, a: Val, b: Val) -> Val:
    """Bitwise ``and``, ``or``, ``xor``."""
    return Val(s.pure(f"{op} {a.type} {a.text}, {b.text}"), a.dtype, a.lanes)


def _int_binary(s: Sink, op: str, a: Val, b: Val, const_b: float | int | None) -> Val:
    signed = a.dtype.kind == "i"
    if op in ("add", "sub", "mul"):
        return Val(s.pure(f"{op} {a.type} {a.text}, {b.text}"), a.dtype, a.lanes)
    if op in ("and", "or", "xor"):
        return logic(s, op, a, b)
    if op in ("min", "max"):
        if a.dtype is boolean:
            return logic(s, "and" if op == "min" else "or", a, b)
        return _intrinsic(s, f"{'s' if signed else 'u'}{op}", a.dtype, a.lanes, [a, b])
    if op in ("shl", "shr"):
        bits = _const(a.dtype.bits, b)
        inside = Val(s.pure(f"icmp ult {b.type} {b.text}, {bits.text}"), boolean, a.lanes)
        amount = select(s, inside, b, _const(0, b))
        word = "shl" if op == "shl" else "ashr" if signed else "lshr"
        return select(
            s, inside, Val(s.pure(f"{word} {a.type} {a.text}, {amount.text}"), a.dtype, a.lanes), _const(0, a)
        )
    if op in ("div", "mod", "fmod"):
        return _divide(s, op, a, b, const_b)
    if op == "pow":
        return _each_lane(s, f"@mlc.ipow.{a.dtype}", [a, b])
    raise CodegenError(f"no instruction for {op} on {a.dtype}")


def _divide(s: Sink, op: str, a: Val, b: Val, const_b: float | int | None) -> Val:
    """Integer division in guarded form: nothing traps."""
    signed = a.dtype.kind == "i"
    word = ("s" if signed else "u") + ("div" if op == "div" else "rem")
    zero, one = _const(0, a), _const(1, a)
    safe, by_zero, by_minus = b, None, None
    if const_b is None or const_b == 0:
        by_zero = compare(s, "eq", b, zero)
        safe = select(s, by_zero, one, safe)
    if signed and (const_b is None or const_b == -1):
        by_minus = compare(s, "eq", b, _const(-1, a))
        safe = select(s, by_minus, one, safe)
    r = Val(s.pure(f"{word} {a.type} {a.text}, {safe.text}"), a.dtype, a.lanes)
    if op == "mod" and signed:
        sign = compare(s, "lt", logic(s, "xor", r, safe), zero)
        off = logic(s, "and", compare(s, "ne", r, zero), sign)
        r = select(s, off, _int_binary(s, "add", r, safe, None), r)
    if by_minus is not None and op == "div":
        r = select(s, by_minus, _int_binary(s, "sub", zero, a, None), r)
    if by_zero is not None:
        r = select(s, by_zero, zero, r)
    return r


def _each_lane(s: Sink, symbol: str, args: list[Val]) -> Val:
    """Call a scalar function a lane at a time."""
    t = register_type(args[0].dtype)
    lanes, dtype = args[0].lanes, args[0].dtype
    if not lanes:
        operands = ", ".join(f"{t} {a.text}" for a in args)
        return Val(s.pure(f"call {t} {symbol}({operands})"), dtype, 0)
    out = "poison"
    for k in range(lanes):
        parts = [s.pure(f"extractelement {a.type} {a.text}, i32 {k}") for a in args]
        r = s.pure(f"call {t} {symbol}({', '.join(f'{t} {p}' for p in parts)})")
        out = s.pure(f"insertelement {args[0].type} {out}, {t} {r}, i32 {k}")
    return Val(out, dtype, lanes)


def function(s: Sink, fn: str, args: list[Val]) -> Val:
    """A function of the vector math library; half precision goes through single."""
    dtype, lanes = args[0].dtype, args[0].lanes
    wide = args if dtype.name != "f16" else [cast(s, a, f32) for a in args]
    t = wide[0].type
    name = dtype.name if dtype.name in ("f64", "u32") else "f32"
    symbol = s.math(fn, name, max(lanes, 1))
    r = Val(s.pure(f"call {t} @{symbol}({', '.join(f'{t} {a.text}' for a in wide)})"), wide[0].dtype, lanes)
    return cast(s, r, dtype) if dtype.name == "f16" else r


def unary(s: Sink, fn: str, a: Val) -> Val:
    """An intrinsic of one operand."""
    r = _unary(s, fn, a)
    return round_bf16(s, r) if fn not in ("neg", "abs", "sign", "floor", "ceil", "round", "trunc") else r


def _unary(s: Sink, fn: str, a: Val) -> Val:
    if fn == "not":
        ones = _const(1 if a.dtype is boolean else -1, a)
        return logic(s, "xor", a, ones)
    if not a.dtype.is_float:
        zero = _const(0, a)
        if fn == "popcount":
            return _intrinsic(s, "ctpop", a.dtype, a.lanes, [a])
        if fn == "neg":
            return _int_binary(s, "sub", zero, a, None)
        if fn == "abs":
            return a if a.dtype.kind == "u" else _intrinsic(s, "abs", a.dtype, a.lanes, [a], ", i1 false")
        if fn == "sign":
            positive = select(s, compare(s, "gt", a, zero), _const(1, a), zero)
            return positive if a.dtype.kind == "u" else select(s, compare(s, "lt", a, zero), _const(-1, a), positive)
        raise CodegenError(f"no instruction for {fn} on {a.dtype}")
    if fn == "neg":
        return Val(s.pure(f"fneg {a.type} {a.text}"), a.dtype, a.lanes)
    if fn == "sign":
        zero = _const(0.0, a)
        below = select(s, compare(s, "lt", a, zero), _const(-1.0, a), a)
        return select(s, compare(s, "gt", a, zero), _const(1.0, a), below)
    if fn == "nearest":
        return nearest(s, a)
    if fn == "isnan":
        return Val(s.pure(f"fcmp uno {a.type} {a.text}, {a.text}"), boolean, a.lanes)
    if fn == "isinf":
        return compare(s, "eq", _intrinsic(s, "fabs", a.dtype, a.lanes, [a]), _const(float("inf"), a))
    simple = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}
    if fn in simple:
        return _intrinsic(s, simple[fn], a.dtype, a.lanes, [a])
    if fn == "rsqrt":
        root = _intrinsic(s, "sqrt", a.dtype, a.lanes, [a])
        return _float_binary(s, "div", _const(1.0, a), root, None)
    return function(s, fn, [a])


def nearest(s: Sink, a: Val) -> Val:
    """The nearest i32 of a float that fits one; halves are rounded to even."""
    if s.keeps_nan:  # such processors convert towards zero with saturation, by one instruction
        return cast(s, _intrinsic(s, "rint", a.dtype, a.lanes, [a]), _I32)
    if a.dtype.name == "f16" and not a.lanes:  # which LLVM 22.1 takes towards zero, where there is AVX512-FP16
        a = cast(s, a, f32)
    wide = register_type(_I32, a.lanes)
    name = f"llvm.lrint.{mangle_suffix(_I32, a.lanes)}.{mangle_suffix(a.dtype, a.lanes)}"
    s.declare(f"declare {wide} @{name}({a.type})")
    return Val(s.pure(f"call {wide} @{name}({a.type} {a.text})"), _I32, a.lanes)


def round_bf16(s: Sink, a: Val) -> Val:
    """Round a float that stands for a bf16 to one, halves to even; other types pass."""
    if a.dtype.name != "bf16":
        return a
    i = register_type(_I32, a.lanes)

    def k(value: int) -> str:
        return splat(value, _I32, a.lanes)

    bits = s.pure(f"bitcast {a.type} {a.text} to {i}")
    odd = s.pure(f"and {i} {s.pure(f'lshr {i} {bits}, {k(16)}')}, {k(1)}")
    near = s.pure(f"add {i} {s.pure(f'add {i} {bits}, {k(0x7FFF)}')}, {odd}")
    kept = s.pure(f"and {i} {near}, {k(-65536)}")
    rounded = Val(s.pure(f"bitcast {i} {kept} to {a.type}"), a.dtype, a.lanes)
    nan = Val(s.pure(f"fcmp uno {a.type} {a.text}, {a.text}"), boolean, a.lanes)
    return select(s, nan, _const(float("nan"), a), rounded)


def cast(s: Sink, a: Val, to: DType, *, limited: bool = False) -> Val:
    """Conversion as ``ir.expr.Cast`` defines it.

    Args:
        s: where to write.
        a: the operand.
        to: the type that it becomes.
        limited: whether the operand is known to be within the bounds of the type, or NaN.
    """
    if a.dtype is to:
        return a
    src, dst = a.type, register_type(to, a.lanes)

    def one(word: str) -> Val:
        return Val(s.pure(f"{word} {src} {a.text} to {dst}"), to, a.lanes)

    if to is boolean:
        return compare(s, "ne", a, _const(0, a))
    if a.dtype.is_float and to.is_float:
        order = {"f16": 0, "bf16": 1, "f32": 1, "f64": 2}
        if a.dtype.name == "f16" and to.name == "f64":
            return cast(s, cast(s, a, f32), to)
        if a.dtype.name == "f64" and to.name == "f16":
            return cast(s, _to_odd(s, a), to)
        if order[a.dtype.name] == order[to.name]:
            return round_bf16(s, Val(a.text, to, a.lanes))
        return round_bf16(s, one("fpext" if order[to.name] > order[a.dtype.name] else "fptrunc"))
    if a.dtype.is_float:
        if a.dtype.bits < 32:
            # which holds the bounds of integers, too; LLVM 22.1 takes halves that are NaN to the smallest i16
            return cast(s, cast(s, a, f32), to, limited=limited)
        if to.bits < 32:
            return _to_narrow_integer(s, a, to, limited=limited)
        suffix = f"{mangle_suffix(to, a.lanes)}.{mangle_suffix(a.dtype, a.lanes)}"
        name = f"llvm.fpto{'s' if to.kind == 'i' else 'u'}i.sat.{suffix}"
        s.declare(f"declare {dst} @{name}({src})")
        return Val(s.pure(f"call {dst} @{name}({src} {a.text})"), to, a.lanes)
    if to.is_float:
        if to.name == "f16":
            return cast(s, cast(s, a, f32), to)
        return round_bf16(s, one("sitofp" if a.dtype.kind == "i" else "uitofp"))
    if a.dtype is not boolean and a.dtype.bits == to.bits:
        return Val(a.text, to, a.lanes)
    if a.dtype is not boolean and a.dtype.bits > to.bits:
        return one("trunc")
    return one("sext" if a.dtype.kind == "i" else "zext")


def _to_narrow_integer(s: Sink, a: Val, to: DType, *, limited: bool) -> Val:
    """Single or double precision to 8 or 16 bits: towards zero, to the nearest bound if beyond, NaN to 0.

    Clamped while they are floats, whole vectors convert at once; LLVM's saturating conversion goes lane by lane.
    """
    saturates = s.keeps_nan and a.dtype is f32
    number = a if saturates else select(s, compare(s, "eq", a, a), a, _const(0.0, a))
    if not limited:
        low, high = float(to.min_value), float(to.max_value)
        number = binary(s, "min", binary(s, "max", number, _const(low, a), low), _const(high, a), high)
    if saturates:
        wide = cast(s, number, _I32)
    else:
        wide = Val(s.pure(f"fptosi {a.type} {number.text} to {register_type(_I32, a.lanes)}"), _I32, a.lanes)
    return Val(s.pure(f"trunc {wide.type} {wide.text} to {register_type(to, a.lanes)}"), to, a.lanes)


def _to_odd(s: Sink, a: Val) -> Val:
    """Double to single precision, towards zero, the last bit set where anything is lost.

    Rounded once more, to half precision, the result is as if rounded directly; no library call does that.
    """
    i = register_type(_I32, a.lanes)
    near = Val(s.pure(f"fptrunc {a.type} {a.text} to {register_type(f32, a.lanes)}"), f32, a.lanes)
    back = Val(s.pure(f"fpext {near.type} {near.text} to {a.type}"), a.dtype, a.lanes)
    too_far = compare(s, "gt", *(_intrinsic(s, "fabs", v.dtype, v.lanes, [v]) for v in (back, a)))
    less = s.pure(f"sext {too_far.type} {too_far.text} to {i}")
    lost = s.pure(f"zext {too_far.type} {compare(s, 'ne', back, a).text} to {i}")
    bits = s.pure(f"add {i} {s.pure(f'bitcast {near.type} {near.text} to {i}')}, {less}")
    return Val(s.pure(f"bitcast {i} {s.pure(f'or {i} {bits}, {lost}')} to {near.type}"), f32, a.lanes)


def broadcast(s: Sink, a: Val, lanes: int) -> Val:
    """A scalar in every lane."""
    if a.lanes or not lanes:
        return a
    t = register_type(a.dtype, lanes)
    first = s.pure(f"insertelement {t} poison, {a.type} {a.text}, i32 0")
    return Val(s.pure(f"shufflevector {t} {first}, {t} poison, <{lanes} x i32> zeroinitializer"), a.dtype, lanes)


def _integer_power(dtype: DType) -> str:
    """``a ** b`` of one type, wrapping; to a negative power only 1 and -1 are not 0."""
    t, n = f"i{dtype.bits}", dtype.name
    negative = f"icmp slt {t} %b, 0" if dtype.kind == "i" else "icmp ne i1 0, 0"
    return f"""define internal {t} @mlc.ipow.{n}({t} %a, {t} %b) {{
entry:
  %negative = {negative}
  br i1 %negative, label %below, label %loop
loop:
  %e = phi {t} [ %b, %entry ], [ %half, %loop ]
  %p = phi {t} [ %a, %entry ], [ %square, %loop ]
  %r = phi {t} [ 1, %entry ], [ %next, %loop ]
  %bit = and {t} %e, 1
  %odd = icmp ne {t} %bit, 0
  %times = mul {t} %r, %p
  %next = select i1 %odd, {t} %times, {t} %r
  %square = mul {t} %p, %p
  %half = lshr {t} %e, 1
  %more = icmp ne {t} %half, 0
  br i1 %more, label %loop, label %done
done:
  ret {t} %next
below:
  %one = icmp eq {t} %a, 1
  %minus = icmp eq {t} %a, -1
  %even = and {t} %b, 1
  %sign = icmp eq {t} %even, 0
  %unit = select i1 %sign, {t} 1, {t} -1
  %m = select i1 %minus, {t} %unit, {t} 0
  %v = select i1 %one, {t} 1, {t} %m
  ret {t} %v
}}"""


INTEGER_POWER = "\n".join(_integer_power(t) for t in ALL_DTYPES.values() if t.is_int)
