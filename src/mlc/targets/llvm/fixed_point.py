"""Rounded products of fixed-point numbers, for processors that have an instruction for them.

``fixed_scale`` (:mod:`mlc.ops.quantized`) multiplies integers by factors below one, ``m / 2**31``, halves up::

    i32((i64(x << left) * i64(m) + (1 << 30)) >> 31)

which takes two long products, two sums, two shifts and what narrows them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir.expr import Binary, Cast, Const, Expr
from mlc.ir.types import i32, i64
from mlc.targets.llvm.arith import Sink, Val
from mlc.targets.llvm.text import register_type

_PLACES = 31
_LANES = (0, 2, 4)  # of which there is an instruction


@dataclass(frozen=True, slots=True)
class FixedProduct:
    """``a * b / 2**31``, rounded, where ``b`` is a multiplier, never negative."""

    a: Expr
    b: Expr


def fixed_product_of(e: Cast) -> FixedProduct | None:
    """What a conversion to 32 bits takes the high half of, where that is such a product.

    Both operands at -2**31 would give 2**31, for which the instruction has no place; a multiplier never is that, and
    what is shifted by the part of its shift to the left is multiplied by one.
    """
    sum_ = _operand(e.a, "shr", _PLACES) if e.dtype is i32 else None
    product = None if sum_ is None else _operand(sum_, "add", 1 << (_PLACES - 1))
    if type(product) is not Binary or product.op != "mul":
        return None
    a, b = product.a, product.b
    if type(a) is not Cast or type(b) is not Cast or a.a.dtype is not i32 or b.a.dtype is not i32:
        return None
    return FixedProduct(a.a, b.a) if type(a.a) is Binary and a.a.op == "shl" else None


def rounded_product(s: Sink, name: str, a: Val, b: Val) -> Val | None:
    """The product, by LLVM's function of a name and for a type; ``None`` for vectors that it is not for."""
    if a.lanes not in _LANES:
        return None
    t = register_type(i32, a.lanes)
    symbol = f"{name}.{f'v{a.lanes}' if a.lanes else ''}i32"
    s.declare(f"declare {t} @{symbol}({t}, {t})")
    return Val(s.pure(f"call {t} @{symbol}({t} {a.text}, {t} {b.text})"), i32, a.lanes)


def _operand(e: Expr, op: str, by: int) -> Expr | None:
    """The other operand of an operation in 64 bits by a constant."""
    known = type(e) is Binary and e.dtype is i64 and e.op == op and type(e.b) is Const and e.b.value == by
    return e.a if known and type(e) is Binary else None
