"""The interpreter of the loop AST: what it checks, and that buffers start out undefined."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Load, as_expr, binary, cast, const, select, within
from mlc.ir.index import Var, as_index, dynamic
from mlc.ir.interp import run_function
from mlc.ir.intrinsic import Kind, TensorIntrinsic
from mlc.ir.loop import (
    Access,
    Allocate,
    Barrier,
    Buffer,
    Evaluate,
    For,
    ForKind,
    ForRange,
    Function,
    If,
    Stmt,
    Store,
    seq,
)
from mlc.ir.types import f32, i32, i64

X, OUT = Buffer("x", (4,), f32), Buffer("out", (4,), f32)
I = Var("i", 0, 3)


def run(body: Stmt, x: object = (1, 2, 3, 4), *, out: Buffer = OUT) -> np.ndarray:
    result = np.full(out.shape, 77, out.dtype.numpy)
    run_function(Function("kernel", (X, out), 1, body), [np.asarray(x, np.float32), result])
    return result


def each(body: Stmt) -> Stmt:
    return For(I, 4, ForKind.SERIAL, body)


def at(b: Buffer, ix: object) -> Load:
    return Load(b, (as_index(ix),))  # type: ignore[arg-type]


def test_only_the_chosen_side_is_looked_at() -> None:
    value = select(within(as_index(I) - 1, 0, 4), at(X, as_index(I) - 1), 0.0)
    np.testing.assert_array_equal(run(each(Store(OUT, (as_index(I),), value))), [0, 1, 2, 3])


def test_lanes_are_read_before_any_is_written() -> None:
    lane = Var("l", 0, 2)
    shift = Store(OUT, (as_index(lane) + 1,), at(OUT, lane), lane)
    first = each(Store(OUT, (as_index(I),), at(X, I)))
    np.testing.assert_array_equal(run(seq([first, shift])), [1, 1, 2, 3])


def test_lanes_choose_one_by_one() -> None:
    lane = Var("l", 0, 3)
    value = select(within(lane, 1, 4), at(X, as_index(lane) - 1), -1.0)
    np.testing.assert_array_equal(run(Store(OUT, (as_index(lane),), value, lane)), [-1, 1, 2, 3])


def test_branches() -> None:
    then, orelse = Store(OUT, (as_index(I),), const(1.0, f32)), Store(OUT, (as_index(I),), const(0.0, f32))
    big = binary("gt", at(X, I), 2.0)
    np.testing.assert_array_equal(run(each(If(big, then, orelse))), [0, 0, 1, 1])
    np.testing.assert_array_equal(run(each(If(big, then))), [77, 77, 1, 1])


def test_loop_of_run_time_bounds_may_be_empty() -> None:
    k = Var("k", 0, 3)
    body = Store(OUT, (as_index(k),), const(5.0, f32))
    loop = ForRange(k, cast(at(X, 0), i64), cast(at(X, 2), i64), body)
    np.testing.assert_array_equal(run(loop), [77, 5, 5, 77])
    np.testing.assert_array_equal(run(loop, (3, 0, 1, 0)), [77] * 4)


def test_local_buffers_are_undefined_on_every_entry() -> None:
    tmp = Buffer("tmp", (1,), f32, "local")
    keep = If(within(I, 0, 1), Store(tmp, (as_index(0),), const(3.0, f32)))
    body = Allocate(tmp, seq([keep, Store(OUT, (as_index(I),), at(tmp, 0))]))
    np.testing.assert_array_equal(run(each(body)), [3, np.nan, np.nan, np.nan])


def test_effects_without_a_value_do_nothing() -> None:
    np.testing.assert_array_equal(run(seq([Evaluate("prefetch", ()), Barrier("block")])), [77] * 4)


def test_indices_come_from_memory_too() -> None:
    row = dynamic(cast(at(X, I), i64), 0, 3)
    np.testing.assert_array_equal(run(each(Store(OUT, (as_index(I),), at(X, row))), (3, 2, 1, 0)), [0, 1, 2, 3])


def test_rank_zero_and_empty_buffers() -> None:
    scalar = Buffer("s", (), f32)
    assert run(Store(scalar, (), at(X, 2)), out=scalar) == 3
    empty = Buffer("e", (0,), f32)
    k = Var("k", 0, -1)
    assert run(For(k, 0, ForKind.SERIAL, Store(empty, (as_index(k),), at(X, 0))), out=empty).shape == (0,)


@pytest.mark.parametrize("lane", [None, Var("l", 0, 3)])
def test_store_outside_is_refused(lane: Var | None) -> None:
    index = as_index(lane if lane is not None else 3) + 1
    with pytest.raises(VerifyError, match=r"store outside out: f32\[4\]: .* is .*4.* in\nout\["):
        run(Store(OUT, (index,), const(1.0, f32), lane))


def test_load_outside_is_refused() -> None:
    with pytest.raises(VerifyError, match=r"x\[i \+ 1\] leaves axis 0 of extent 4"):
        run(each(Store(OUT, (as_index(I),), at(X, as_index(I) + 1))))


def test_buffer_out_of_scope_is_refused() -> None:
    with pytest.raises(VerifyError, match="gone has no value"):
        run(Store(OUT, (as_index(0),), at(Buffer("gone", (4,), f32), 0)))


def test_wrong_parameters_are_refused() -> None:
    fn = Function("kernel", (X, OUT), 1, seq([]))
    good = np.zeros(4, np.float32)
    with pytest.raises(VerifyError, match="kernel takes 2 buffers, given 1"):
        run_function(fn, [good])
    with pytest.raises(VerifyError, match=r"kernel: out: f32\[4\] given float32\(5,\)"):
        run_function(fn, [good, np.zeros(5, np.float32)])
    with pytest.raises(VerifyError, match=r"kernel: x: f32\[4\] given float64\(4,\)"):
        run_function(fn, [np.zeros(4), good])


def test_what_is_no_statement_is_refused() -> None:
    class Odd(Stmt):
        pass

    with pytest.raises(VerifyError, match="no meaning for Odd"):
        run(Odd())


def test_values_of_indices() -> None:
    out = Buffer("out", (4,), i32)
    np.testing.assert_array_equal(
        run(each(Store(out, (as_index(I),), as_expr(as_index(I) * 3 - 1, i32))), out=out), [-1, 2, 5, 8]
    )


def pairs(kind: Kind, out: int | Var, x: int | Var, stride: int = 1) -> Stmt:
    """Sums of pairs: ``y[k] = a[k, 0] + a[k, 1]`` with columns ``stride`` apart."""
    a, r = te.placeholder((2, 2), f32, "a"), te.reduce_axis(2, "r")
    y = te.compute((2,), lambda k: te.sum_of(a[k, r], r), "y")
    intrinsic = TensorIntrinsic("pairs", y, {}, tuple(Kind))
    operands = Access(OUT, (as_index(out),), (2,)), Access(X, (as_index(x),), (1, stride))
    return Evaluate("pairs", (kind, *operands[: 1 if kind is Kind.RESET else 2]), intrinsic)


def test_intrinsics_do_what_their_behaviour_says() -> None:
    np.testing.assert_array_equal(run(pairs(Kind.BODY, 0, 0, 2)), [1 + 3, 77, 2 + 4, 77])
    np.testing.assert_array_equal(run(pairs(Kind.BODY, 1, 1)), [77, 2 + 3, 77, 3 + 4])
    np.testing.assert_array_equal(run(pairs(Kind.UPDATE, 0, 1)), [77 + 2 + 3, 77, 77 + 3 + 4, 77])
    np.testing.assert_array_equal(run(pairs(Kind.RESET, 0, 0)), [0, 77, 0, 77])
    fixed = np.asfortranarray(np.full((4,), 77, np.float32))[::-1]
    run_function(Function("kernel", (X, OUT), 1, pairs(Kind.RESET, 0, 0)), [np.ones(4, np.float32), fixed])
    np.testing.assert_array_equal(fixed, [0, 77, 0, 77])


def test_operands_outside_are_refused() -> None:
    with pytest.raises(VerifyError, match=r"operand outside out: f32\[4\]: 4 is 4 in\npairs"):
        run(pairs(Kind.BODY, 4, 0))
    with pytest.raises(VerifyError, match=r"an operand of \(2, 2\) elements at x\[2\] leaves x: f32\[4\] in\npairs"):
        run(pairs(Kind.UPDATE, 0, 2, 2))
