"""Scalar operators in a C-like language, with the meaning that :mod:`mlc.ir.expr` gives them.

What C leaves undefined (signed overflow, division by zero, shifts by too much, conversions of what does not fit) goes
through functions, which a text defines as far as it uses them.

Floats of 16 bits are computed with in single precision, each result rounded: of sums, products, quotients and roots
that gives what arithmetic in 16 bits would, and few devices are faster at that.
"""

from __future__ import annotations

from mlc.errors import CodegenError
from mlc.ir.expr import Const
from mlc.ir.threefry import threefry
from mlc.ir.types import DType, f32, i32
from mlc.targets.gpu.dialect import Dialect

COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {"and": "&", "or": "|", "xor": "^"}
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
PLAIN = {
    fn: fn
    for fn in (
        "exp", "log", "sqrt", "tanh", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
        "acosh", "atanh", "floor", "ceil", "trunc",
    )
} | {"round": "rint", "abs": "fabs"}  # fmt: skip
EXACT = {"min", "max", "fmod", "neg", "abs", "sign", "floor", "ceil", "trunc", "round", "nearest", "isnan", "isinf"}


class Scalars:
    """Texts of operators, and the functions that they need.

    Args:
        dialect: the language.

    Attributes:
        functions: definitions by name, in order of first use.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.functions: dict[str, str] = {}

    def type(self, dtype: DType) -> str:
        """Of a value; booleans are integers, 0 or 1, and floats of 16 bits single precision.

        Raises:
            CodegenError: the language has none.
        """
        if dtype.kind == "b":
            return "int"
        return self.stored(f32 if is_narrow(dtype) else dtype)

    def stored(self, dtype: DType) -> str:
        """Of an element in memory.

        Raises:
            CodegenError: the language has none.
        """
        found = self.dialect.types.get(dtype.name)
        if found is None:
            raise CodegenError(f"there are no elements of type {dtype} in this language")
        return found

    def loaded(self, text: str, dtype: DType) -> str:
        """The value of what lies in memory."""
        if dtype.kind == "b":
            return f"({text} != 0)"
        return f"{self._conversion('from', dtype)}({text})" if is_narrow(dtype) else text

    def kept(self, text: str, dtype: DType) -> str:
        """A value, which may be of single precision where ``dtype`` is narrower, as it lies in memory."""
        return f"{self._conversion('to', dtype)}({text})" if is_narrow(dtype) else text

    def const(self, e: Const) -> str:
        t, value = e.dtype, e.value
        if is_narrow(t):
            return self.const(Const(float(t.numpy.type(value)), f32))
        if t.is_float:
            if value != value:
                return f"({self.type(t)}){self.dialect.nan}"
            if value in (float("inf"), float("-inf")):
                return f"({'-' if value < 0 else ''}({self.type(t)}){self.dialect.infinity})"
            text = repr(float(t.numpy.type(value))) if t.bits == 64 else str(t.numpy.type(value))
            text = text if any(c in text for c in ".e") else f"{text}.0"
            text = text + ("f" if t.bits == 32 else "")
        elif t.kind == "b":
            return str(int(value))
        elif value == t.min_value and t.kind == "i" and t.bits >= 32:
            suffix = "" if t.bits == 32 else "L"
            return f"(-{-(value + 1)}{suffix} - 1)"
        else:
            text = f"{value}{'U' if t.kind == 'u' else ''}{'L' if t.bits == 64 else ''}"
        return f"({text})" if text.startswith("-") else text

    def binary(self, op: str, a: str, b: str, t: DType) -> str:
        """``op(a, b)`` of operands of type ``t``."""
        if is_narrow(t):
            text = self.binary(op, a, b, f32)
            return text if op in COMPARE or op in EXACT else self._rounded(text, t)
        if op in COMPARE:
            return f"({a} {COMPARE[op]} {b})"
        if t.kind == "b":
            return f"({a} {_BITS[{'min': 'and', 'max': 'or'}.get(op, op)]} {b})"
        if t.is_float:
            if op in ARITHMETIC:
                return f"({a} {ARITHMETIC[op]} {b})"
            if op in ("fmod", "pow"):
                return f"{self._float(op, t)}({a}, {b})"
            return f"{self._helper(op, t)}({a}, {b})"
        if op in _BITS:
            return f"({a} {_BITS[op]} {b})"
        if op in ("add", "sub", "mul"):
            wide = self.dialect.unsigned[max(32, t.bits)]  # unsigned arithmetic wraps
            return f"({self.type(t)})(({wide}){a} {ARITHMETIC[op]} ({wide}){b})"
        return f"{self._helper(op, t)}({a}, {b})"

    def call(self, fn: str, args: list[str], t: DType) -> str:
        """An intrinsic of operands of type ``t``."""
        if is_narrow(t):
            text = self.call(fn, args, f32)
            return text if fn in EXACT else self._rounded(text, t)
        if fn == "threefry":
            return f"{self._helper(fn, t)}({', '.join(args)})"
        (a,) = args
        if fn == "not":
            return f"(!{a})" if t.kind == "b" else f"({self.type(t)})(~{a})"
        if t.is_float:
            if fn == "neg":
                return f"(-{a})"
            if fn == "nearest":
                return self.cast(self.call("round", args, t), t, i32)
            if fn in ("isnan", "isinf"):
                return f"({fn}({a}) ? 1 : 0)"
            if fn in PLAIN:
                return f"{self._float(PLAIN[fn], t)}({a})"
            return f"{self._helper(fn, t)}({a})"
        if fn == "neg":
            return self.binary("sub", "0", a, t)
        return f"{self._helper(fn, t)}({a})"

    def cast(self, a: str, source: DType, to: DType) -> str:
        """Conversion as :class:`mlc.ir.expr.Cast` has it; to 16 bits by way of single precision."""
        if is_narrow(source):
            return self.cast(a, f32, to) if to is not f32 else a
        if is_narrow(to):
            return self._rounded(a if source is f32 else self.cast(a, source, f32), to)
        if to.kind == "b":
            return f"({a} != 0)"
        if source.is_float and to.is_int:
            return f"{self._helper('to', source, to)}({a})"
        return f"({self.type(to)}){a}"

    def _conversion(self, way: str, t: DType) -> str:
        """The name of a function between a narrow float's bits and its value, which is defined from now on."""
        name = f"mlc_{way}_{t.name}"
        self.functions.setdefault(name, f"{self.dialect.device} {self.dialect.conversions[name]}")
        return name

    def _rounded(self, text: str, t: DType) -> str:
        """A value of single precision as one of a narrow type."""
        return self.loaded(self.kept(text, t), t)

    def _float(self, fn: str, t: DType) -> str:
        return fn + (self.dialect.single if t.bits == 32 else "")

    def _helper(self, op: str, t: DType, to: DType | None = None) -> str:
        """The name of a function, which is defined from now on."""
        name = f"mlc_{op}_{t.name}" + (f"_{to.name}" if to is not None else "")
        if name not in self.functions:
            self.functions[name] = ""  # its place, before what its text uses
            text = self._define(op, name, t, to)
            self.functions.pop(name)
            self.functions[name] = f"{self.dialect.device} {text}"
        return name

    def _define(self, op: str, name: str, t: DType, to: DType | None) -> str:
        c = self.type(t)
        two, one = f"{c} {name}({c} a, {c} b)", f"{c} {name}({c} a)"
        signed = t.kind == "i"
        if to is not None:
            low, high = (self.const(Const(v, to)) for v in (to.min_value, to.max_value))
            # as floats, the bounds of wide integers are rounded away from zero: what is there does not fit
            return (
                f"{self.type(to)} {name}({c} a) {{ return a != a ? 0 : a <= ({c}){low} ? {low} : "
                f"a >= ({c}){high} ? {high} : ({self.type(to)})a; }}"
            )
        if op in ("min", "max"):
            sign = "<" if op == "min" else ">"
            nan = "a != a || " if t.is_float else ""
            return f"{two} {{ return {nan}a {sign} b ? a : b; }}"
        if op == "sign":
            zero = "a" if t.is_float else "0"  # a zero keeps its sign, NaN stays
            return f"{one} {{ return a > 0 ? 1 : {'a < 0 ? -1 : ' if t.kind != 'u' else ''}{zero}; }}"
        if op == "abs":
            return f"{one} {{ return {'a < 0 ? ' + self.binary('sub', '0', 'a', t) + ' : ' if signed else ''}a; }}"
        if op == "popcount":
            return f"{one} {{ {c} r = 0; for (; a != 0; a &= a - 1) r += 1; return r; }}"
        if op == "rsqrt":
            return f"{one} {{ return 1 / {self._float('sqrt', t)}(a); }}"
        if op == "sigmoid":
            e = f"{self._float('exp', t)}(-{self._float('fabs', t)}(a))"
            return f"{one} {{ {c} e = {e}; return (a < 0 ? e : 1) / (1 + e); }}"
        if op == "mod" and t.is_float:
            r = f"{self._float('fmod', t)}(a, b)"
            return f"{two} {{ {c} r = {r}; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}"
        if op in ("div", "mod", "fmod"):
            minus = f"b == -1 ? {self.binary('sub', '0', 'a', t) if op == 'div' else '0'} : " if signed else ""
            if op == "div":
                return f"{two} {{ return b == 0 ? 0 : {minus}a / b; }}"
            fix = "(r != 0 && (r < 0) != (b < 0) ? r + b : r)" if op == "mod" and signed else "r"
            return f"{two} {{ {c} r = b == 0 ? 0 : {minus}a % b; return {fix}; }}"
        if op in ("shl", "shr"):
            unsigned = self.dialect.unsigned[t.bits]
            if op == "shl":
                wide = self.dialect.unsigned[max(32, t.bits)]
                shifted = f"({c})(({wide})a << b)"
            else:
                shifted = f"({c})(a >> b)"
            return f"{two} {{ return ({unsigned})b < {t.bits} ? {shifted} : 0; }}"
        if op == "pow":
            negative = "if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0; " if signed else ""
            times, square = (self.binary("mul", x, "a", t) for x in ("r", "a"))
            step = f"if (b & 1) r = {times}; a = {square};"
            return f"{two} {{ {negative}{c} r = 1; for (; b != 0; b >>= 1) {{ {step} }} return r; }}"
        if op == "threefry":
            return self._threefry(name)
        raise CodegenError(f"no function for {op} on {t}")

    def _threefry(self, name: str) -> str:
        c = self.dialect.unsigned[32]
        lines: list[str] = []
        result = threefry(lambda number: _Word(lines, c, f"{number}U"), *(_Word(lines, c, x) for x in "abcd"))
        body = " ".join(lines)
        return f"{c} {name}({c} a, {c} b, {c} c, {c} d) {{ {body} return {result.text}; }}"


def is_narrow(t: DType) -> bool:
    """Whether values of a type are computed with in single precision."""
    return t.is_float and t.bits == 16


class _Word:
    """A 32-bit word as a variable of a function, for those who compute with operators."""

    def __init__(self, lines: list[str], type: str, text: str) -> None:
        self.lines, self.type, self.text = lines, type, text

    def _new(self, text: str) -> _Word:
        name = f"w{len(self.lines)}"
        self.lines.append(f"{self.type} {name} = {text};")
        return _Word(self.lines, self.type, name)

    def _with(self, op: str, other: _Word | int) -> _Word:
        return self._new(f"{self.text} {op} {other.text if isinstance(other, _Word) else f'{other}U'}")

    def __add__(self, other: _Word | int) -> _Word:
        return self._with("+", other)

    def __xor__(self, other: _Word | int) -> _Word:
        return self._with("^", other)

    def __or__(self, other: _Word | int) -> _Word:
        return self._with("|", other)

    def __lshift__(self, count: int) -> _Word:
        return self._with("<<", count)

    def __rshift__(self, count: int) -> _Word:
        return self._with(">>", count)
