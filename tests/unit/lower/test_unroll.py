"""Unrolling."""

from __future__ import annotations

from mlc.ir.expr import Load, const, within
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Allocate, Buffer, For, ForKind, If, Store, is_nothing, seq
from mlc.ir.types import f32
from mlc.lower.unroll import unroll

OUT = Buffer("out", (4, 4), f32)
I, J = Var("i", 0, 2), Var("j", 0, 1)


def test_nested_loops_unroll_from_the_inside() -> None:
    body = Store(OUT, (as_index(I), as_index(J) * 2 + I), const(1.0, f32))
    s = For(I, 3, ForKind.SERIAL, For(J, 2, ForKind.UNROLLED, body))
    assert repr(unroll(s)) == "for i in range(3):\n  out[i, i] = 1.0\n  out[i, i + 2] = 1.0"
    assert repr(unroll(For(I, 3, ForKind.UNROLLED, For(J, 2, ForKind.UNROLLED, body)))).count("out[") == 6


def test_decided_guards_disappear() -> None:
    body = If(within(I, 1, 2), Store(OUT, (as_index(I), as_index(0)), const(1.0, f32)))
    assert repr(unroll(For(I, 3, ForKind.UNROLLED, body))) == "out[1, 0] = 1.0"
    never = If(within(I, 5, 9), body)
    assert is_nothing(unroll(For(I, 3, ForKind.UNROLLED, never)))


def test_loop_of_no_iterations_disappears() -> None:
    k = Var("k", 0, -1)
    assert is_nothing(unroll(For(k, 0, ForKind.UNROLLED, Store(OUT, (as_index(k), as_index(0)), const(1.0, f32)))))


def test_local_buffers_are_allocated_in_every_copy() -> None:
    tmp = Buffer("tmp", (1,), f32, "local")
    body = seq(
        [
            Store(tmp, (as_index(0),), const(2.0, f32)),
            Store(OUT, (as_index(I), as_index(0)), Load(tmp, (as_index(0),))),
        ]
    )
    assert repr(unroll(For(I, 3, ForKind.UNROLLED, Allocate(tmp, body)))).count("tmp: f32[1] in local") == 3


def test_nothing_to_unroll_comes_back_itself() -> None:
    s = For(I, 3, ForKind.SERIAL, Store(OUT, (as_index(I), as_index(0)), const(1.0, f32)))
    assert unroll(s) is s
