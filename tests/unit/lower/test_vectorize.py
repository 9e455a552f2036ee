"""Vectorisation: lanes where lanes can share, a loop where they cannot."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.expr import Expr, Load, const, select, within
from mlc.ir.index import Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, If, Stmt, Store, seq
from mlc.ir.types import f32
from mlc.lower.vectorize import vectorize
from mlc.lower.verify import verify

X, OUT = Buffer("x", (4, 4), f32), Buffer("out", (4, 4), f32)
I, J = Var("i", 0, 3), Var("j", 0, 3)


def load(i: object, j: object, b: Buffer = X) -> Expr:
    return Load(b, (as_index(i), as_index(j)))  # type: ignore[arg-type]


def store(value: Expr, i: object = I, j: object = J, b: Buffer = OUT) -> Store:
    return Store(b, (as_index(i), as_index(j)), value)  # type: ignore[arg-type]


def loop(var: Var, body: Stmt, kind: ForKind = ForKind.SERIAL) -> For:
    return For(var, var.hi + 1, kind, body)


def check(s: Stmt) -> str:
    """The text after vectorisation, once it is known to do the same."""
    results = []
    for k, body in enumerate((s, vectorize(s))):
        fn = Function("kernel", (X, OUT), 1, body)
        verify(fn, final=k == 1)
        out = np.full((4, 4), 77, np.float32)
        run_function(fn, [np.arange(16, dtype=np.float32).reshape(4, 4), out])
        results.append(out)
    np.testing.assert_array_equal(*results)
    return repr(body)


def test_innermost_loop_becomes_lanes() -> None:
    text = check(loop(I, loop(J, store(load(I, J) * 2), ForKind.VECTORIZED)))
    assert text == "for i in range(4):\n  out[i, 0:4] = x[i, 0:4] * 2.0  # j in 4 lanes"


def test_loops_inside_run_once_for_all_lanes() -> None:
    text = check(loop(J, loop(I, store(load(I, J))), ForKind.VECTORIZED))
    assert text == "for i in range(4):\n  out[i, 0:4] = x[i, 0:4]  # j in 4 lanes"


def test_what_is_the_same_for_all_lanes_is_stored_once() -> None:
    tmp = Buffer("tmp", (1, 1), f32, "register")
    body = Allocate(tmp, seq([store(load(I, 0), 0, 0, tmp), store(Load(tmp, (as_index(0), as_index(0))))]))
    text = check(loop(I, loop(J, body, ForKind.VECTORIZED)))
    assert "    tmp[0, 0] = x[i, 0]\n" in text.replace("  tmp: f32[1,1] in register\n", "  tmp\n").replace(
        "\n  tmp[", "\n    tmp["
    )
    assert "out[i, 0:4] = tmp[0, 0]  # j in 4 lanes" in text


def test_of_two_vector_loops_the_inner_one_becomes_lanes() -> None:
    text = check(loop(I, loop(J, store(load(I, J)), ForKind.VECTORIZED), ForKind.VECTORIZED))
    assert text.startswith("for i in range(4):\n  out[i, 0:4]")


@pytest.mark.parametrize(
    "body",
    [
        If(within(J, 1, 3), store(load(I, J))),
        seq([store(load(I, J), I, 0), store(load(I, 0, OUT))]),
        Allocate(Buffer("tmp", (1,), f32, "local"), store(load(I, J))),
    ],
    ids=["guard of a lane", "one place for all lanes", "memory of a lane's own"],
)
def test_what_lanes_cannot_share_is_a_loop(body: Stmt) -> None:
    assert "for j in range(4)" in check(loop(I, loop(J, body, ForKind.VECTORIZED)))


def test_single_lane_is_a_loop() -> None:
    one = Var("j", 0, 0)
    s = loop(I, For(one, 1, ForKind.VECTORIZED, store(const(1.0, f32), I, 0)))
    assert "lanes" not in check(s)


def test_guard_of_another_loop_may_stay_around_lanes() -> None:
    text = check(loop(I, loop(J, If(within(I, 1, 3), store(load(I, J))), ForKind.VECTORIZED)))
    assert "if 1 <= i < 3:\n    out[i, 0:4] = x[i, 0:4]" in text


def test_guard_that_ends_at_a_whole_vector_is_one_for_all_lanes() -> None:
    at = as_index(I) * 4 + J
    wide = Buffer("wide", (16,), f32)
    body = If(within(at, 0, 12), Store(wide, (at,), const(1.0, f32)))
    text = repr(vectorize(loop(I, loop(J, body, ForKind.VECTORIZED))))
    assert text == "for i in range(4):\n  if 4*i < 12:\n    wide[4*i:4*i + 4] = 1.0  # j in 4 lanes"
    ragged = If(within(at, 0, 11), Store(wide, (at,), const(1.0, f32)))
    assert "for j in range(4)" in repr(vectorize(loop(I, loop(J, ragged, ForKind.VECTORIZED))))


def test_condition_that_ends_at_a_whole_vector_is_one_for_all_lanes() -> None:
    """Of what is stored, too: zeros behind the end of the terms of a product."""
    body = store(select(within(as_index(I) * 4 + J, 0, 8), load(I, J), const(0, f32)))
    assert "select(4*i < 8, x[i, 0:4], 0.0)" in check(loop(I, loop(J, body, ForKind.VECTORIZED)))
