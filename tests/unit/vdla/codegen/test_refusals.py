"""What the accelerator cannot do is refused as a schedule, with the statement, never miscompiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir.expr import Expr, Load, all_of, binary, cast, const, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.loop import Access, Allocate, Barrier, Buffer, Evaluate, For, ForKind, Function, If, Stmt, Store, seq
from mlc.ir.types import DType, i8, i32
from mlc.vdla.codegen.constants import Constants
from mlc.vdla.codegen.emit import Emitter
from mlc.vdla.codegen.facts import check_capacity
from mlc.vdla.codegen.statements import Binding
from mlc.vdla.codegen.statements import emit as append
from mlc.vdla.config import PROFILES
from mlc.vdla.intrinsics import ACC, INP, WGT, gemm

FULL, PLAIN = PROFILES["full"], PROFILES["osdi18"]
X, W = Buffer("x", (8, 16), i8), Buffer("w", (4, 16, 16), i8)
SUMS, OUT = Buffer("sums", (8, 16), i32), Buffer("out", (8, 16), i8)


def loop(n: int, body: Callable[[Linear], Stmt]) -> Stmt:
    v = Var("v", 0, n - 1)
    return For(v, n, ForKind.SERIAL, body(as_index(v)))


def copy(
    to: Buffer, source: Buffer, value: Callable[[Load, Linear, Linear], Expr] | None = None, rows: int = 8
) -> Stmt:
    def at(i: Linear, j: Linear) -> Stmt:
        ld = Load(source, (i, j))
        return Store(to, (i, j), value(ld, i, j) if value else ld)

    return loop(rows, lambda i: loop(16, lambda j: at(i, j)))


def emit(
    body: Stmt,
    *inside: Buffer,
    profile: str = "full",
    params: Sequence[Buffer] = (X, W, SUMS, OUT),
    structural: bool = False,
    constants: Sequence[Buffer] = (),
) -> Emitter:
    for b in inside:
        body = Allocate(b, body)
    fn = Function("f", tuple(params), 2, body)
    emitter = Emitter(PROFILES[profile], Constants(), structural=structural)
    arrays = {b: np.zeros(b.shape, b.dtype.numpy) for b in constants}
    append(emitter, fn, [Binding(k, arrays.get(b)) for k, b in enumerate(params)])
    return emitter


def chip(scope: str, *shape: int, dtype: DType = i8) -> Buffer:
    return Buffer("t", shape or (8, 16), dtype, scope)


INPUT, SUM = chip(INP), chip(ACC, dtype=i32)
OTHER = Buffer("u", (8, 16), i32, ACC)


def test_what_is_fine_is_emitted() -> None:
    emitter = emit(seq([copy(SUM, SUMS), copy(SUMS, SUM)]), SUM)
    assert len(emitter.steps) == 2


def product(out: Buffer, x: Buffer, w: Buffer) -> Stmt:
    zero = as_index(0)
    operands = [Access(b, (zero,) * len(b.shape), ()) for b in (out, x, w)]
    intrinsic = gemm(FULL)
    return Evaluate(intrinsic.name, ("update", *operands), intrinsic)


def test_statements_without_an_instruction() -> None:
    with pytest.raises(ScheduleError, match="the accelerator has no such statement"):
        emit(Barrier("shared"), INPUT)
    with pytest.raises(ScheduleError, match="the accelerator has no such instruction"):
        emit(Evaluate("wait", ()), INPUT)
    with pytest.raises(ScheduleError, match="no instruction copies this"):
        emit(copy(OUT, X))
    with pytest.raises(ScheduleError, match=r"has no memory 'local'"):
        emit(copy(chip("local"), X), chip("local"))


def test_buffers_that_nobody_gave() -> None:
    loose = Buffer("loose", (8, 16), i8)
    with pytest.raises(ScheduleError, match="loose is no parameter"):
        emit(copy(INPUT, loose), INPUT)
    with pytest.raises(ScheduleError, match="loose is no parameter"):
        emit(seq([copy(SUM, SUMS), copy(Buffer("loose", (8, 16), i32), SUM)]), SUM)


def test_products_of_what_is_not_on_the_chip() -> None:
    with pytest.raises(ScheduleError, match=r"lies in global, the matrix product wants it"):
        emit(product(SUM, X, chip(WGT, 1, 16, 16)), SUM, chip(WGT, 1, 16, 16))


def test_copies_that_are_not_of_whole_elements() -> None:
    wrong = "does not move whole elements of 16"
    with pytest.raises(ScheduleError, match=wrong):
        emit(loop(8, lambda i: loop(8, lambda j: Store(INPUT, (i, j), Load(X, (i, j))))), INPUT)
    with pytest.raises(ScheduleError, match=wrong):
        emit(loop(4, lambda i: loop(16, lambda j: Store(INPUT, (i, j), Load(X, (i, j // 2))))), INPUT)
    crossed = Buffer("x", (16, 8), i8)
    with pytest.raises(ScheduleError, match=wrong):
        emit(
            loop(8, lambda i: loop(16, lambda j: Store(INPUT, (i, j), Load(crossed, (j, i))))), INPUT, params=[crossed]
        )
    shifted = Buffer("x", (8, 17), i8)
    with pytest.raises(ScheduleError, match="does not begin at elements of 16"):
        emit(
            loop(8, lambda i: loop(16, lambda j: Store(INPUT, (i, j), Load(shifted, (i, j))))), INPUT, params=[shifted]
        )
    with pytest.raises(ScheduleError, match="is not made of elements of 16"):
        emit(copy(chip(INP, 8, 15), X), chip(INP, 8, 15))


def test_a_constant_may_lie_in_any_order() -> None:
    crossed = Buffer("x", (16, 8), i8)
    body = loop(8, lambda i: loop(16, lambda j: Store(INPUT, (i, j), Load(crossed, (j, i)))))
    assert len(emit(body, INPUT, params=[crossed], constants=[crossed]).steps) == 1


def test_conditions_within_an_element() -> None:
    def padded(ld: Load, i: Linear, j: Linear) -> Expr:
        return select(within(j, 0, 12), ld, const(0, i8))

    with pytest.raises(ScheduleError, match="zeros within an element of 16"):
        emit(copy(INPUT, X, padded), INPUT)
    body = loop(8, lambda i: loop(16, lambda j: If(within(j, 0, 12), Store(INPUT, (i, j), Load(X, (i, j))))))
    with pytest.raises(ScheduleError, match="a condition divides an element"):
        emit(body, INPUT)


def test_conditions_on_values() -> None:
    def where(i: Linear, j: Linear) -> Expr:
        return all_of([within(i, 0, 4), binary("eq", Load(X, (i, j)), 3)])

    body = loop(8, lambda i: loop(16, lambda j: If(where(i, j), Store(INPUT, (i, j), Load(X, (i, j))))))
    with pytest.raises(ScheduleError, match="conditions in accelerator code are ranges of indices"):
        emit(body, INPUT)


def test_what_an_extension_would_do() -> None:
    widened = copy(SUM, X, lambda ld, i, j: cast(ld, i32))
    assert emit(widened, SUM).steps
    with pytest.raises(ScheduleError, match="x is widened on its way into accumulators: that needs ext_alu"):
        emit(widened, SUM, profile="osdi18_i8")

    def narrowed(ld: Load, i: Linear, j: Linear) -> Expr:
        return cast(binary("min", binary("max", ld, -128), 127), i8)

    stored = seq([copy(SUM, SUMS), copy(OUT, SUM, narrowed)])
    assert emit(stored, SUM).steps
    with pytest.raises(ScheduleError, match="out is narrowed on its way out: that needs ext_store_requant"):
        emit(stored, SUM, profile="osdi18")
    added = seq([copy(SUM, SUMS), copy(SUMS, SUM, lambda ld, i, j: ld + 1)])
    assert emit(added, SUM).steps
    with pytest.raises(ScheduleError, match="ADD of accumulators needs ext_alu"):
        emit(added, SUM, profile="osdi18")


def test_conversions_that_no_transfer_makes() -> None:
    with pytest.raises(ScheduleError, match="no instruction moves"):
        emit(copy(chip(ACC), X), chip(ACC))
    with pytest.raises(ScheduleError, match=r"t is not in vdla.acc"):
        emit(seq([copy(INPUT, X), copy(OUT, INPUT)]), INPUT)


def test_accumulators_are_worked_on_where_they_are() -> None:
    moved = loop(4, lambda i: loop(16, lambda j: Store(OTHER, (i, j), Load(SUM, (i + 4, j)))))
    with pytest.raises(ScheduleError, match="accumulators are worked on in place"):
        emit(seq([copy(SUM, SUMS), moved, copy(SUMS, OTHER)]), SUM, OTHER)


def test_what_would_be_done_twice() -> None:
    first = loop(
        8,
        lambda i: loop(
            16, lambda j: Store(SUMS, (i, j), Load(SUM, (i, j)) + binary("shl", Load(OTHER, (as_index(0), j)), 2))
        ),
    )
    with pytest.raises(ScheduleError, match=r"SHR would be applied to u\[0, v\] more than once"):
        emit(seq([copy(SUM, SUMS), copy(OTHER, SUMS), first]), SUM, OTHER)
    again = loop(2, lambda k: seq([copy(SUMS, SUM, lambda ld, i, j: ld + 1), copy(SUMS, SUM, lambda ld, i, j: ld + 2)]))
    with pytest.raises(ScheduleError, match="ADD would be applied to"):
        emit(seq([copy(SUM, SUMS), again]), SUM)


def test_operands_of_other_lanes() -> None:
    crossed = Buffer("u", (16, 16), i32, ACC)
    added = loop(
        8, lambda i: loop(16, lambda j: Store(SUMS, (i, j), Load(SUM, (i, j)) + Load(crossed, (j, as_index(0)))))
    )
    fill = loop(16, lambda i: loop(16, lambda j: Store(crossed, (i, j), Load(SUMS, (i // 2, j)))))
    with pytest.raises(ScheduleError, match="does not read whole elements of 16"):
        emit(seq([copy(SUM, SUMS), fill, added]), SUM, crossed)
    outside = copy(SUMS, SUM, lambda ld, i, j: ld + Load(SUMS, (i, j)))
    with pytest.raises(ScheduleError, match=r"sums is not in vdla.acc"):
        emit(seq([copy(SUM, SUMS), outside]), SUM)


def test_memories_that_are_too_small() -> None:
    large = chip(INP, 2049, 16)
    fn = Function("f", (X,), 1, Allocate(large, copy(large, Buffer("x", (2049, 16), i8), rows=2049)))
    with pytest.raises(ScheduleError, match=r"f: the buffers in vdla.inp take 2049 elements, it has 2048"):
        check_capacity(fn, FULL)
    half = chip(INP, 1024, 16)
    fn = Function("f", (X,), 1, Allocate(half, copy(half, Buffer("x", (1024, 16), i8), rows=1024)))
    assert check_capacity(fn, FULL, {INP: 2}) == {INP: 2048}
    with pytest.raises(ScheduleError, match="take 3072 elements"):
        check_capacity(fn, FULL, {INP: 3})


def test_tokens_by_structure_want_one_unit_a_statement() -> None:
    added = seq([copy(SUM, SUMS), copy(SUMS, SUM, lambda ld, i, j: ld + 1)])
    with pytest.raises(ScheduleError, match="computes and stores, which are two units"):
        emit(added, SUM, structural=True)
    with pytest.raises(ScheduleError, match="there is no queue between these units"):
        emit(Evaluate("push", ("ld", "st")), structural=True)
    with pytest.raises(ScheduleError, match="a token alone in a loop"):
        emit(loop(2, lambda i: Evaluate("push", ("ld", "cmp"))), structural=True)
    assert not emit(Evaluate("push", ("ld", "cmp"))).steps
