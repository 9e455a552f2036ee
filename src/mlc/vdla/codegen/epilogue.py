"""What happens to accumulators between product and store: expressions as chains of in-place operations.

In: the expression that a stage gives every element, over loads of buffers. Out: one accumulator that the chain begins
with, what is done to it in order, and what a store does on the way out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlc.errors import ScheduleError
from mlc.ir.expr import Binary, Cast, Const, Expr, Load, Select, same
from mlc.ir.types import i8, i32
from mlc.vdla.isa.fields import IMMEDIATES
from mlc.vdla.isa.instruction import AluOp

_LO, _HI = -128, 127


@dataclass(frozen=True, eq=False)
class Operation:
    """``target = op(target, immediate or source)`` on every element of a nest."""

    op: AluOp
    target: Load
    source: Load | None = None
    immediate: int = 0


@dataclass(slots=True, eq=False)
class Epilogue:
    """A chain.

    Attributes:
        root: what it begins with, and what holds its result.
        operations: in order; some prepare other operands first.
        narrow: whether a store then rounds, clamps and narrows to int8.
        shift: binary places that such a store drops.
        relu: whether it replaces negative values by 0.
    """

    root: Load
    operations: list[Operation] = field(default_factory=list)
    narrow: bool = False
    shift: int = 0
    relu: bool = False


def read_epilogue(e: Expr) -> Epilogue:
    """The chain of an expression.

    Raises:
        ScheduleError: there is no such chain.
    """
    if not (isinstance(e, Cast) and e.dtype is i8):
        return _chain(e)
    clamped = _clamped(e.a)
    if clamped is None:
        raise ScheduleError(f"{e!r}: only what is clamped to [{_LO}, {_HI}] is narrowed")
    found = _chain(clamped)
    found.narrow = True
    chain = found.operations
    # what follows keeps the order of numbers, and 0: a negative value may as well become 0 at the end
    for k in reversed(range(len(chain))):
        o = chain[k]
        if o.target is not found.root:
            break
        if o.op is AluOp.MAX and o.source is None and o.immediate == 0:
            del chain[k]
            found.relu = True
            break
        if o.op is not AluOp.RSHR and not (o.op is AluOp.MIN and o.source is None and o.immediate >= 0):
            break
    if chain and chain[-1].op is AluOp.RSHR and chain[-1].source is None and chain[-1].target is found.root:
        found.shift = chain.pop().immediate
    return found


def _clamped(e: Expr) -> Expr | None:
    """``x`` of ``min(max(x, -128), 127)``, in either order."""
    for first, second in (("min", "max"), ("max", "min")):
        a = _with_const(e, first)
        b = _with_const(a[0], second) if a is not None else None
        if a is not None and b is not None:
            lo, hi = (b[1], a[1]) if first == "min" else (a[1], b[1])
            if (lo, hi) == (_LO, _HI):
                return b[0]
    return None


def _with_const(e: Expr, op: str) -> tuple[Expr, int] | None:
    """The other operand of a binary operation with a constant, and the constant."""
    if isinstance(e, Binary) and e.op == op:
        if isinstance(e.b, Const):
            return e.a, int(e.b.value)
        if isinstance(e.a, Const) and op in ("min", "max", "add", "mul"):
            return e.b, int(e.a.value)
    return None


def round_shift(e: Expr) -> tuple[Expr, Expr] | None:
    """``(x, s)`` of ``x / 2**s`` rounded, halves up, as the operator of that name states it."""
    if isinstance(e, Select):
        # select(s > 0, the same with s, x)
        found = round_shift(e.a)
        guard = e.cond
        if found is None or not isinstance(guard, Binary) or guard.op != "gt":
            return None
        zero = isinstance(guard.b, Const) and guard.b.value == 0
        return found if zero and same(guard.a, found[1]) and same(e.b, found[0]) else None
    if not (isinstance(e, Binary) and e.op == "add"):
        return None
    whole, half = e.a, e.b
    if not (isinstance(whole, Binary) and whole.op == "shr"):
        return None
    last = _with_const(half, "and")
    if last is None or last[1] != 1 or not isinstance(last[0], Binary) or last[0].op != "shr":
        return None
    x, by, less = whole.a, whole.b, last[0].b
    if not same(x, last[0].a):
        return None
    if isinstance(by, Const):
        one_less = isinstance(less, Const) and by.value >= 1 and less.value == by.value - 1
        return (x, by) if one_less else None
    below = _minus_one(less)
    at_least = _with_const(below, "max") if below is not None else None
    return (x, by) if at_least is not None and at_least[1] == 1 and same(at_least[0], by) else None


def _minus_one(e: Expr) -> Expr | None:
    if isinstance(e, Binary) and e.op in ("sub", "add") and isinstance(e.b, Const):
        return e.a if e.b.value == (1 if e.op == "sub" else -1) else None
    return None


_CONSTANT = {"add": AluOp.ADD, "min": AluOp.MIN, "max": AluOp.MAX, "mul": AluOp.MUL}
_VECTOR = {"add": AluOp.ADD, "min": AluOp.MIN, "max": AluOp.MAX, "mul": AluOp.MUL}


def _chain(e: Expr) -> Epilogue:
    if isinstance(e, Load):
        return Epilogue(e)
    if e.dtype is not i32:
        raise ScheduleError(f"{e!r}: accumulators are i32, this is {e.dtype}")
    rounded = round_shift(e)
    if rounded is not None:
        x, by = rounded
        return _then(_chain(x), AluOp.RSHR, by)
    if not isinstance(e, Binary):
        raise ScheduleError(f"{e!r}: the accelerator has no such operation")
    for op, alu in _CONSTANT.items():
        found = _with_const(e, op)
        if found is not None:
            return _then(_chain(found[0]), alu, Const(found[1], i32))
    if e.op == "sub" and isinstance(e.b, Const):
        return _then(_chain(e.a), AluOp.ADD, Const(-int(e.b.value), i32))
    if e.op == "shl" and isinstance(e.b, Const):
        return _then(_chain(e.a), AluOp.SHR, Const(-int(e.b.value), i32))
    if e.op == "shr":
        return _then(_chain(e.a), AluOp.SHR, e.b)
    if e.op in _VECTOR:
        return _then(_chain(e.a), _VECTOR[e.op], e.b)
    raise ScheduleError(f"{e!r}: the accelerator has no such operation")


def _then(chain: Epilogue, op: AluOp, operand: Expr) -> Epilogue:
    """A chain with one more operation."""
    if isinstance(operand, Const):
        value = int(operand.value)
        if value not in IMMEDIATES:
            raise ScheduleError(f"{op.name} by {value}: constants of instructions have 16 bits")
        chain.operations.append(Operation(op, chain.root, None, value))
        return chain
    other = _chain(operand)
    chain.operations[:0] = other.operations
    chain.operations.append(Operation(op, chain.root, other.root))
    return chain
