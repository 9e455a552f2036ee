"""Threads of a block in the interpreter: what they wait for, and what they must not do at the same time."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir.expr import IndexValue, Load, binary, cast, const, select, within
from mlc.ir.index import Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.loop import Allocate, Barrier, Buffer, For, ForKind, ForRange, Function, If, Stmt, Store, seq
from mlc.ir.types import f32, i64

B, T, U, K = Var("b", 0, 1), Var("t", 0, 3), Var("u", 0, 1), Var("k", 0, 1)
X, Y = Buffer("x", (8,), f32), Buffer("y", (8,), f32)
C = Buffer("c", (4,), f32, "shared")
AT = as_index(B) * 4 + T
FILL, USE = Store(C, (as_index(T),), Load(X, (AT,))), Store(Y, (AT,), Load(C, (3 - as_index(T),)))
MEET = Barrier("shared")


def run(*stmts: Stmt) -> list[float]:
    """What a launch of two blocks of four threads makes of 0, 1, …, 7."""
    block = Allocate(C, For(T, 4, ForKind.THREAD, seq(stmts), "threadIdx.x"))
    y = np.full(8, -1, np.float32)
    body = For(B, 2, ForKind.THREAD, block, "blockIdx.x")
    run_function(Function("k", (X, Y), 1, body), [np.arange(8, dtype=np.float32), y])
    return y.tolist()


def test_threads_read_what_others_wrote_before_the_barrier() -> None:
    assert run(FILL, MEET, USE) == [3, 2, 1, 0, 7, 6, 5, 4]


def test_barriers_in_loops_meet_in_each_iteration() -> None:
    add = Store(Y, (AT,), binary("add", Load(Y, (AT,)), Load(C, (3 - as_index(T),))))
    twice = For(K, 2, ForKind.SERIAL, seq([MEET, FILL, MEET, add]))
    assert run(Store(Y, (AT,), const(0, f32)), twice) == [6, 4, 2, 0, 14, 12, 10, 8]


def test_private_memory_is_every_threads_own() -> None:
    own = Buffer("own", (1,), f32, "local")
    zero = (as_index(0),)
    assert run(Allocate(own, seq([Store(own, zero, Load(X, (AT,))), MEET, Store(Y, (AT,), Load(own, zero))]))) == [
        *range(8)
    ]


@pytest.mark.parametrize(
    "stmts, message",
    [
        ((FILL, USE), r"race on c\[\d\] in shared memory: (read|written) by thread \(b=0, t=\d\) and"),
        ((FILL, MEET, USE, FILL), r"race on c\[\d\] in shared memory: read by thread .* and written by thread"),
        ((Store(C, (as_index(0),), Load(X, (AT,))),), r"race on c\[0\] in shared memory: written by"),
        (
            (Store(Y, (as_index(T),), Load(X, (AT,))),),
            r"race on y\[0\] in global memory: written by thread \(b=1, t=0\) and written by thread \(b=0, t=0\)",
        ),
        (
            (If(within(T, 0, 2), MEET),),
            r"divergent barrier: thread \(b=0, t=0\) waits where thread \(b=0, t=2\) does not",
        ),
        (
            (ForRange(K, const(0, i64), cast(Load(X, (as_index(T),)), i64), MEET),),
            "divergent barrier",
        ),
    ],
)
def test_faults_are_reported(stmts: tuple[Stmt, ...], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        run(*stmts)


def test_threads_in_different_iterations_do_not_meet() -> None:
    late = If(
        within(as_index(T) + as_index(K) * 4, 1, 8), MEET
    )  # the first thread skips the barrier of the first iteration
    with pytest.raises(VerifyError, match="divergent barrier"):
        run(For(K, 2, ForKind.SERIAL, late))


def test_many_readers_and_then_a_writer() -> None:
    first = Load(C, (as_index(0),))
    spoil = If(within(T, 3, 4), Store(C, (as_index(0),), const(1, f32)))
    with pytest.raises(VerifyError, match="read by several threads and written by thread"):
        run(FILL, MEET, Store(Y, (AT,), first), spoil)


def test_blocks_of_two_axes() -> None:
    threads = For(
        U,
        2,
        ForKind.THREAD,
        For(T, 4, ForKind.THREAD, Store(Y, (as_index(U) * 4 + T,), Load(X, (7 - as_index(U) * 4 - T,))), "threadIdx.x"),
        "threadIdx.y",
    )
    y = np.zeros(8, np.float32)
    run_function(Function("k", (X, Y), 1, threads), [np.arange(8, dtype=np.float32), y])
    assert y.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def test_some_blocks_may_come_to_a_barrier_and_others_not() -> None:
    assert run(If(within(B, 1, 2), seq([FILL, MEET, USE]))) == [-1, -1, -1, -1, 7, 6, 5, 4]


def test_threads_go_around_loops_as_often_as_each_says() -> None:
    add = Store(Y, (AT,), binary("add", Load(Y, (AT,)), IndexValue(as_index(K), f32)))
    begin, end = cast(Load(X, (as_index(T),)), i64), cast(Load(X, (AT,)), i64)
    assert run(Store(Y, (AT,), const(0, f32)), ForRange(K, begin, end, add)) == [0, 0, 0, 0, 6, 10, 14, 18]


def test_lanes_load_what_they_choose() -> None:
    lane = Var("lane", 0, 1)
    at = as_index(T) * 2 + lane
    chosen = select(within(at, 0, 7), Load(X, (at + 1,)), const(9, f32))
    assert run(If(within(B, 0, 1), Store(Y, (at,), chosen, lane))) == [1, 2, 3, 4, 5, 6, 7, 9]
    with pytest.raises(VerifyError, match=r"x\[2\*t \+ lane \+ 1\] leaves x: f32\[8\]: 2\*t \+ lane \+ 1 is 8"):
        run(If(within(B, 0, 1), Store(Y, (at,), Load(X, (at + 1,)), lane)))


def test_a_launch_of_many_blocks_races_all_the_same() -> None:
    many, one = Var("b", 0, 9999), Buffer("one", (10_000,), f32)
    for index, fault in ((as_index(many), False), (as_index(many) // 9999, True)):
        body = For(many, 10_000, ForKind.THREAD, Store(one, (index,), const(1, f32)), "blockIdx.x")
        y = np.zeros((10_000, 2), np.float32)[:, 0]  # whose elements are no neighbours
        with pytest.raises(VerifyError, match=r"race on one\[0\]") if fault else contextlib.nullcontext():
            run_function(Function("k", (one,), 1, body), [y])
        assert y.all() != fault
