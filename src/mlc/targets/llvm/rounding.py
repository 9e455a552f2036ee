"""Floats to bytes as requantisation asks for it: ``cast(clip(round(y) + zero, 0, most), u8)``.

Taken operator by operator, that rounds to a float, limits it twice, looks for NaN, and converts towards zero.
Processors convert to the nearest integer at once, and narrow without a sign up to the greatest byte; one comparison
from below does the rest, NaN included, which becomes 0 either way.

Vectors that are stored next to each other are narrowed together: two registers of words become one of 16 bits, and two
of those one of bytes, which is then stored whole. Instructions that do so with saturation limit from below, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from mlc.ir import loop
from mlc.ir.expr import Binary, Call, Cast, Const, Expr
from mlc.ir.types import f32, i32, u8
from mlc.targets.llvm.arith import Sink, Val, compare, nearest, select
from mlc.targets.llvm.registers import Accesses
from mlc.targets.llvm.text import mangle_suffix, register_type, splat

TOGETHER = 4  # vectors of words that make one of bytes
NARROWED = (4, 8)  # lanes of vectors that are narrowed together on any processor
PACKS, PACKUS = "llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.packuswb.512"


@dataclass(frozen=True, slots=True)
class Steps:
    """What becomes bytes: ``clip(round(value) + zero, 0, most)``, with whole numbers from 0 to 255.

    Args:
        value: in f32.
        zero, most: as above.
        whole: whether the value is rounded to an i32 (``nearest``) before it is moved and limited: it fits one.
    """

    value: Expr
    zero: int
    most: int
    whole: bool


def steps_of(e: Cast) -> Steps | None:
    """What a conversion rounds and limits, where it is one to bytes that does just that."""
    if e.dtype is not u8 or e.a.dtype not in (f32, i32):
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
    whole = e.a.dtype is i32
    if type(inner) is not Call or inner.fn != ("nearest" if whole else "round") or inner.args[0].dtype is not f32:
        return None
    return Steps(inner.args[0], zero, limits["min"], whole)


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


def find_runs(stmts: Sequence[loop.Stmt], places: Accesses, packed: int) -> dict[int, int]:
    """Stores of such vectors that go on where the one before ends: how many, by the number of the first.

    Args:
        stmts: in order.
        places: of the statements' function.
        packed: lanes of vectors that :func:`packed_steps` takes, :data:`TOGETHER` at once.
    """
    found: dict[int, int] = {}
    begin = 0
    while begin < len(stmts):
        run, most = 1, min(TOGETHER, len(stmts) - begin)
        while run < most and _goes_on(stmts[begin + run - 1], stmts[begin + run], places, packed):
            run += 1
        count = 1 << (run.bit_length() - 1)
        if count == TOGETHER or (count > 1 and _lanes(stmts[begin]) in NARROWED):
            found[begin] = count
        else:
            count = 1
        begin += count
    return found


def _lanes(s: loop.Stmt) -> int:
    """Lanes of a store of a vector; 0 of anything else."""
    return s.lane.hi + 1 if type(s) is loop.Store and s.lane is not None else 0


def _goes_on(a: loop.Stmt, b: loop.Stmt, places: Accesses, packed: int) -> bool:
    """Whether the second of two statements stores a vector of bytes right behind that of the first."""
    if type(a) is not loop.Store or type(b) is not loop.Store or a.buffer is not b.buffer:
        return False
    if a.lane is None or b.lane is None or _lanes(a) != _lanes(b) or _lanes(a) not in (*NARROWED, packed):
        return False
    if any(type(s.value) is not Cast or steps_of(s.value) is None for s in (a, b)):
        return False
    first, second = (places.offset(s.buffer, s.indices) for s in (a, b))
    if first.coefficient(a.lane) != 1 or second.coefficient(b.lane) != 1:
        return False
    if any(buffer is a.buffer for buffer, _, _ in places.of(b)[:-1]):  # may read what the first has written
        return False
    apart = second.without(b.lane) - first.without(a.lane)
    return apart.is_const and apart.const == a.lane.hi + 1


def together(s: Sink, vectors: Sequence[Val]) -> Val:
    """Limited numbers in one vector of bytes, in order.

    Args:
        s: takes the instructions.
        vectors: as :func:`limited_steps` makes them; their number is a power of two.
    """
    parts = list(vectors)
    while len(parts) > 1:
        lanes = 2 * parts[0].lanes
        every = ", ".join(f"i32 {k}" for k in range(lanes))
        half = register_type(i32, lanes // 2)
        parts = [
            Val(s.pure(f"shufflevector {half} {a.text}, {half} {b.text}, <{lanes} x i32> <{every}>"), i32, lanes)
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
    return narrowed(s, parts[0])


def narrowed(s: Sink, limited: Val) -> Val:
    """Numbers of no more than a byte as bytes."""
    wide, bytes_ = (register_type(t, limited.lanes) for t in (i32, u8))
    return Val(s.pure(f"trunc {wide} {limited.text} to {bytes_}"), u8, limited.lanes)


def limited_steps(s: Sink, y: Val, steps: Steps) -> Val:
    """``clip(round(y) + zero, 0, most)`` of single precision in i32; halves are rounded to even, NaN becomes 0.

    What is beyond all integers converts to 2^31 on x86, which is more than any byte, too.
    """
    wide = register_type(i32, y.lanes)
    least = Val(splat(-float(steps.zero) if steps.zero else 0.0, f32, y.lanes), f32, y.lanes)
    above = select(s, compare(s, "gt", y, least), y, least)  # which takes the least for NaN
    near = nearest(s, above).text
    if steps.zero:
        near = s.pure(f"add {wide} {near}, {splat(steps.zero, i32, y.lanes)}")
    return Val(_least(s, Val(near, i32, y.lanes), steps.most), i32, y.lanes)


def packed_steps(s: Sink, vectors: Sequence[Val], steps: Steps) -> Val:
    """``clip(round(y) + zero, 0, most)`` of four vectors of 16 numbers as one of 64 bytes, by AVX-512's packing.

    That limits to a byte from both sides, and takes NaN to 0, since both convert to the least integer. So does what is
    beyond all integers, and is limited before where there may be such. It goes by quarters of a register, each with
    four numbers of every vector, which one permutation puts in order.

    Args:
        s: takes the instructions.
        vectors: four of them.
        steps: of all.
    """
    zero, parts = steps.zero, []
    bound = Val(splat(float(steps.most - zero), f32, 16), f32, 16)
    for y in vectors:
        below = y if steps.whole else select(s, compare(s, "lt", bound, y), bound, y)  # which keeps NaN
        near = nearest(s, below).text
        parts.append(s.pure(f"add <16 x i32> {near}, {splat(zero, i32, 16)}") if zero else near)
    s.declare(f"declare <32 x i16> @{PACKS}(<16 x i32>, <16 x i32>)")
    s.declare(f"declare <64 x i8> @{PACKUS}(<32 x i16>, <32 x i16>)")
    low, high = (
        s.pure(f"call <32 x i16> @{PACKS}(<16 x i32> {a}, <16 x i32> {b})")
        for a, b in zip(parts[::2], parts[1::2], strict=True)
    )
    mixed = s.pure(f"call <64 x i8> @{PACKUS}(<32 x i16> {low}, <32 x i16> {high})")
    if steps.whole and steps.most < u8.max_value:
        mixed = _least(s, Val(mixed, u8, 64), steps.most)
    words = s.pure(f"bitcast <64 x i8> {mixed} to <16 x i32>")
    order = ", ".join(f"i32 {4 * quarter + vector}" for vector in range(TOGETHER) for quarter in range(4))
    sorted_ = s.pure(f"shufflevector <16 x i32> {words}, <16 x i32> poison, <16 x i32> <{order}>")
    return Val(s.pure(f"bitcast <16 x i32> {sorted_} to <64 x i8>"), u8, 64)


def _least(s: Sink, v: Val, most: int) -> str:
    """Integers without a sign, and no more than a limit."""
    kind, narrow = register_type(v.dtype, v.lanes), f"llvm.umin.{mangle_suffix(v.dtype, v.lanes)}"
    s.declare(f"declare {kind} @{narrow}({kind}, {kind})")
    return s.pure(f"call {kind} @{narrow}({kind} {v.text}, {kind} {splat(most, v.dtype, v.lanes)})")
