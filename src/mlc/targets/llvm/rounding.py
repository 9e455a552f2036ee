"""Floats to bytes as requantisation asks for it: ``cast(clip(round(y) + zero, 0, most), u8)``.

Taken operator by operator, that rounds to a float, limits it twice, looks for NaN, and converts towards zero.
Processors convert to the nearest integer at once, and narrow without a sign up to the greatest byte; one comparison
from below does the rest, NaN included, which becomes 0 either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from mlc.ir.expr import Binary, Call, Cast, Const, Expr
from mlc.ir.types import f32, i32, u8
from mlc.targets.llvm.arith import Sink, Val, compare, select
from mlc.targets.llvm.text import mangle_suffix, register_type, splat


@dataclass(frozen=True, slots=True)
class Steps:
    """What becomes bytes: ``clip(round(value) + zero, 0, most)``, with whole numbers from 0 to 255."""

    value: Expr
    zero: int
    most: int


def steps_of(e: Cast) -> Steps | None:
    """What a conversion rounds and limits, where it is one to bytes that does just that."""
    if e.dtype is not u8 or e.a.dtype is not f32:
        return None
    limits: dict[str, int] = {}
    inner: Expr = e.a
    while type(inner) is Binary and inner.op in ("min", "max") and inner.op not in limits:
        limit = _byte(inner.b)
        if limit is None:
            return None
        limits[inner.op] = limit
        inner = inner.a
    zero: int | None = 0
    if type(inner) is Binary and inner.op == "add":
        zero = _byte(inner.b)
        inner = inner.a
    if zero is None or limits.get("max") != 0 or "min" not in limits:
        return None
    return Steps(inner.args[0], zero, limits["min"]) if type(inner) is Call and inner.fn == "round" else None


def is_limited(e: Cast) -> bool:
    """Whether what is converted to an integer has been limited to no more than its bounds."""
    low, high, inner = -inf, inf, e.a
    while type(inner) is Binary and inner.op in ("min", "max") and type(inner.b) is Const:
        low = max(low, inner.b.value) if inner.op == "max" else low
        high = min(high, inner.b.value) if inner.op == "min" else high
        inner = inner.a
    return e.dtype.kind in "iu" and e.dtype.min_value <= low <= high <= e.dtype.max_value


def _byte(e: Expr) -> int | None:
    """A constant that is a whole number from 0 to 255; constants stand on the right."""
    if type(e) is not Const or not 0 <= e.value <= u8.max_value or e.value != int(e.value):
        return None
    return int(e.value)


def to_bytes(s: Sink, y: Val, zero: int, most: int) -> Val:
    """The bytes ``clip(round(y) + zero, 0, most)`` of single precision; halves are rounded to even, NaN becomes 0.

    What is beyond all integers converts to 2^31 on x86, which is more than any byte, too.
    """
    single, wide = register_type(f32, y.lanes), register_type(i32, y.lanes)
    least = Val(splat(-float(zero) if zero else 0.0, f32, y.lanes), f32, y.lanes)
    above = select(s, compare(s, "gt", y, least), y, least)  # which takes the least for NaN
    name = f"llvm.lrint.{mangle_suffix(i32, y.lanes)}.{mangle_suffix(f32, y.lanes)}"
    s.declare(f"declare {wide} @{name}({single})")
    near = s.pure(f"call {wide} @{name}({single} {above.text})")
    if zero:
        near = s.pure(f"add {wide} {near}, {splat(zero, i32, y.lanes)}")
    narrow = f"llvm.umin.{mangle_suffix(i32, y.lanes)}"
    s.declare(f"declare {wide} @{narrow}({wide}, {wide})")
    limited = s.pure(f"call {wide} @{narrow}({wide} {near}, {wide} {splat(most, i32, y.lanes)})")
    return Val(s.pure(f"trunc {wide} {limited} to {register_type(u8, y.lanes)}"), u8, y.lanes)
