"""Rules on elementwise operators that change no bit of any result (for NaNs: no NaN into a number or back).

Floats are never reassociated. ``x + 0.0`` is not ``x`` when x is -0.0, so only ``x - 0.0`` and ``x + -0.0`` go.
"""

from __future__ import annotations

import numpy as np

from mlc.ir.expr import BINARY
from mlc.ir.graph import Value
from mlc.ir.types import DType, dtype_of
from mlc.ops import get
from mlc.rewrite.pattern import COMMUTATIVE, Match, all_equal, rule, scalar_of
from mlc.rewrite.rewriter import Rewriter

NON_NEGATIVE = ("abs", "sigmoid", "exp", "sqrt", "softplus", "hard_sigmoid")
_BROADCASTING = frozenset({*BINARY, "where", "prelu"})
_MOST_ELEMENTS = 1 << 16  # constants looked at element by element


def _unless_broadcast(m: Match, x: Value) -> Value | None:
    """``x``, if it has the shape of the result."""
    return x if x.type.shape == m.root.outputs[0].type.shape else None


@rule("identity", "identity(x)")
def identity(rw: Rewriter, m: Match) -> Value:
    """The operator that does nothing goes."""
    return m["x"]


@rule("constant_right", "|".join(sorted(COMMUTATIVE)) + "(x, y)")
def constant_right(rw: Rewriter, m: Match) -> Value | None:
    """A constant first operand of a commutative operator becomes the second, so that other rules see one form."""
    a, b = m.root.inputs
    if rw.constant(a) is None or rw.constant(b) is not None:
        return None
    return rw.emit(m.root.op, (b, a), m.root.attrs)


@rule("times_one", "mul(x, #c)")
def times_one(rw: Rewriter, m: Match) -> Value | None:
    """``x * 1`` is x."""
    c = rw.constant(m["c"])
    return _unless_broadcast(m, m["x"]) if c is not None and all_equal(c, 1) else None


@rule("over_one", "div(x, #c)")
def over_one(rw: Rewriter, m: Match) -> Value | None:
    """``x / 1`` is x."""
    if m["c"] is not m.root.inputs[1]:
        return None
    c = rw.constant(m["c"])
    return _unless_broadcast(m, m["x"]) if c is not None and all_equal(c, 1) else None


@rule("plus_zero", "add|sub|or|xor|shl|shr(x, #c)")
def plus_zero(rw: Rewriter, m: Match) -> Value | None:
    """Adding nothing: any 0 for integers, ``x - 0.0`` and ``x + -0.0`` for floats."""
    c = rw.constant(m["c"])
    if c is None or m["c"] is not m.root.inputs[-1] or not all_equal(c, 0):
        return None
    if m["x"].type.dtype.is_float and not np.all(np.signbit(c) == (m.root.op.name == "add")):
        return None
    return _unless_broadcast(m, m["x"])


@rule("small_power", "pow(x, #c)")
def small_power(rw: Rewriter, m: Match) -> Value | None:
    """``x ** 1`` is x, ``x ** 2`` is ``x * x``, ``x ** 3`` is ``x * x * x`` (32 bits and more)."""
    x, exponent = m["x"], scalar_of(rw, m["c"])
    shape = m.root.outputs[0].type.shape
    if x.type.shape != shape or exponent not in (1, 2, 3):
        return None
    if exponent == 1:
        return x
    if exponent == 3 and x.type.dtype.is_float and x.type.dtype.bits < 32:
        return None  # two roundings to a short type are visibly worse than one
    square = rw.emit(get("mul"), (x, x))
    return square if exponent == 2 else rw.emit(get("mul"), (square, x))


@rule("over_power_of_two", "div(x, #c)")
def over_power_of_two(rw: Rewriter, m: Match) -> Value | None:
    """Division by powers of two is multiplication by their exact inverses."""
    c = rw.constant(m["c"])
    dtype = m["x"].type.dtype
    if c is None or not dtype.is_float or c.size > _MOST_ELEMENTS or m["c"] is not m.root.inputs[1]:
        return None
    wide = c.astype(np.float64)
    if not np.all(np.isfinite(wide) & (wide != 0)):
        return None
    mantissas, _ = np.frexp(wide)
    smallest = 2.0 ** {"f16": -14, "bf16": -126, "f32": -126, "f64": -1022}[dtype.name]
    inverse = 1.0 / wide
    if not (np.all(np.abs(mantissas) == 0.5) and np.all(np.abs(inverse) >= smallest) and np.all(np.isfinite(inverse))):
        return None
    with np.errstate(over="ignore"):
        narrow = inverse.astype(c.dtype)
    if not np.all(narrow.astype(np.float64) == inverse):
        return None
    return rw.emit(get("mul"), (m["x"], rw.new_constant(narrow)))


@rule("integer_chain", "add(add(x, #a), #b)", "mul(mul(x, #a), #b)")
def integer_chain(rw: Rewriter, m: Match) -> Value | None:
    """Sums and products of integers with several constants: the constants are joined (arithmetic wraps)."""
    a, b = rw.constant(m["a"]), rw.constant(m["b"])
    inner = rw.constant(m["x"])
    if a is None or b is None or inner is not None or not m["x"].type.dtype.is_int:
        return None
    if max(a.size, b.size, np.broadcast(a, b).size) > _MOST_ELEMENTS:
        return None
    return rw.emit(m.root.op, (m["x"], rw.emit(m.root.op, (m["a"], m["b"]))))


@rule("involution", "neg(neg(x))", "not(not(x))", "bitwise_not(bitwise_not(x))")
def involution(rw: Rewriter, m: Match) -> Value:
    """Twice negated is as before."""
    return m["x"]


@rule("idempotent", *(f"{f}(y={f}(x))" for f in ("relu", "abs", "floor", "ceil", "round", "trunc", "sign")))
def idempotent(rw: Rewriter, m: Match) -> Value:
    """Applying it again changes nothing."""
    return m["y"]


@rule("relu_of_positive", f"relu(y={'|'.join(NON_NEGATIVE)}(x))")
def relu_of_positive(rw: Rewriter, m: Match) -> Value | None:
    """What is never negative needs no relu (the absolute value of the least integer is negative)."""
    return m["y"] if m["y"].type.dtype.is_float else None


@rule("clip_chain", "clip(y=clip|relu(x))", "relu(y=clip(x))")
def clip_chain(rw: Rewriter, m: Match) -> Value | None:
    """Limits of limits are joined, where the intervals overlap."""
    inner = rw.maker(m["y"])
    if inner is None:
        return None
    (lo1, hi1), (lo2, hi2) = (_limits(n.op.name, n.attrs) for n in (inner, m.root))
    lo, hi = max(lo1, lo2), min(hi1, hi2)
    if not lo <= hi:
        return None
    limits = {"lo": None if lo == -np.inf else lo, "hi": None if hi == np.inf else hi}
    return rw.emit(get("clip"), (m["x"],), limits)


def _limits(op: str, attrs: object) -> tuple[float, float]:
    assert isinstance(attrs, dict)
    if op == "relu":
        return 0, np.inf
    lo, hi = attrs["lo"], attrs["hi"]
    return -np.inf if lo is None else lo, np.inf if hi is None else hi


@rule("clip_nothing", "clip(x)")
def clip_nothing(rw: Rewriter, m: Match) -> Value | None:
    """Limits that are absent or infinite do nothing; from 0 upwards it is relu."""
    lo, hi = _limits("clip", m.root.attrs)
    if hi != np.inf or lo not in (0, -np.inf):
        return None
    return m["x"] if lo else rw.emit(get("relu"), (m["x"],))


@rule("cast_nothing", "cast(x)")
def cast_nothing(rw: Rewriter, m: Match) -> Value | None:
    """A cast to the type that it has already."""
    return m["x"] if dtype_of(m.root.attrs["to"]) is m["x"].type.dtype else None


@rule("cast_chain", "cast(y=cast(x))")
def cast_chain(rw: Rewriter, m: Match) -> Value | None:
    """A cast through a type that loses nothing on the way."""
    if not passes_through(m["x"].type.dtype, m["y"].type.dtype, dtype_of(m.root.attrs["to"])):
        return None
    return rw.emit(get("cast"), (m["x"],), m.root.attrs)


# bits of an integer that each float type holds exactly
_EXACT_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
# (float, wider float that holds all its values)
_WIDER_FLOATS = {("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64"), ("f32", "f64")}


def passes_through(source: DType, middle: DType, to: DType) -> bool:
    """Whether converting ``source -> middle -> to`` always equals ``source -> to``."""
    if source is middle or source.kind == "b":
        return True
    if middle.kind == "b":
        return False
    if source.is_float:
        return (source.name, middle.name) in _WIDER_FLOATS
    if middle.is_int:
        return middle.min_value <= source.min_value and middle.max_value >= source.max_value
    magnitude = source.bits - (source.kind == "i")
    if magnitude > _EXACT_BITS[middle.name]:
        return False
    # from a float, conversion saturates; from an integer it wraps: they agree on what fits
    return not to.is_int or (to.min_value <= source.min_value and to.max_value >= source.max_value)


@rule("where_constant", "where(#c, a, b)")
def where_constant(rw: Rewriter, m: Match) -> Value | None:
    """A choice that always goes one way."""
    c = rw.constant(m["c"])
    if c is None or c.size == 0 or c.size > _MOST_ELEMENTS or not (c.all() or not c.any()):
        return None
    return _unless_broadcast(m, m["a"] if c.all() else m["b"])


@rule("broadcast_operand", "elementwise(x, …)")
def broadcast_operand(rw: Rewriter, m: Match) -> Value | None:
    """An operand need not be repeated first where the operator repeats it itself."""
    if m.root.op.name not in _BROADCASTING:
        return None
    inputs = list(m.root.inputs)
    shape = m.root.outputs[0].type.shape
    for k, v in enumerate(inputs):
        node = rw.maker(v)
        if node is None or node.op.name != "broadcast_to":
            continue
        shorter = [*inputs[:k], node.inputs[0], *inputs[k + 1 :]]
        if np.broadcast_shapes(*[u.type.shape for u in shorter]) == shape and _accepts_shapes(m.root.op.name, shorter):
            inputs = shorter
    if all(a is b for a, b in zip(inputs, m.root.inputs, strict=True)):
        return None
    return rw.emit(m.root.op, inputs, m.root.attrs)


def _accepts_shapes(op: str, inputs: list[Value]) -> bool:
    # a slope repeats to x, never the other way round
    return op != "prelu" or np.broadcast_shapes(*[v.type.shape for v in inputs]) == inputs[0].type.shape


RULES = (
    identity, constant_right, times_one, over_one, plus_zero, small_power, over_power_of_two, integer_chain, involution,
    idempotent, relu_of_positive, clip_chain, clip_nothing, cast_nothing, cast_chain, where_constant, broadcast_operand,
)  # fmt: skip
