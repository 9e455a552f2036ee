"""Barriers where threads meet: none is missing, none can go, and none stands where not all threads come."""

from __future__ import annotations

import pytest

from mlc.errors import ScheduleError, VerifyError
from mlc.ir.expr import Load, within
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Allocate, Barrier, Buffer, For, ForKind, If, Seq, Stmt, Store, seq, walk
from mlc.ir.types import f32
from mlc.lower.barriers import barriers
from tests.unit.lower.grids import GRIDS, edited, run

T = Var("tx", 0, 7)
X, Y = Buffer("x", (8,), f32), Buffer("y", (8,), f32)
C, D = Buffer("c", (8,), f32, "shared"), Buffer("d", (8,), f32, "shared")
HERE, THERE = (as_index(T),), (7 - as_index(T),)


def launch(*stmts: Stmt) -> Stmt:
    return Allocate(C, Allocate(D, For(T, 8, ForKind.THREAD, seq(stmts), "threadIdx.x")))


def put(*stmts: Stmt) -> Stmt:
    """Statements of a block's threads with barriers."""
    block = Var("bx", 0, 1)
    whole = barriers(For(block, 2, ForKind.THREAD, launch(*stmts), "blockIdx.x"))
    threads = next(s for s in walk(whole) if isinstance(s, For) and s.thread == "threadIdx.x")
    return threads.body


def kinds(s: Stmt) -> list[str]:
    assert isinstance(s, Seq)
    return ["barrier" if isinstance(c, Barrier) else type(c).__name__.lower() for c in s.stmts]


FILL, FILL_OTHER = Store(C, HERE, Load(X, HERE)), Store(D, HERE, Load(X, HERE))
USE, USE_OWN = Store(Y, HERE, Load(C, THERE)), Store(Y, HERE, Load(C, HERE))


@pytest.mark.parametrize("name", GRIDS)
def test_no_barrier_can_go(name: str) -> None:
    grid = GRIDS[name]()
    fn = grid.kernel()
    for s in walk(fn.body):
        if isinstance(s, Barrier):
            with pytest.raises(VerifyError, match="race on"):
                run(edited(fn, s, seq([])), grid.arrays())


def test_between_a_write_and_a_read_of_others() -> None:
    assert kinds(put(FILL, USE)) == ["store", "barrier", "store"]


def test_none_where_a_thread_reads_what_it_wrote() -> None:
    assert kinds(put(FILL, USE_OWN)) == ["store", "store"]


def test_one_is_enough_for_two_buffers() -> None:
    assert kinds(put(FILL, FILL_OTHER, USE, Store(Y, HERE, Load(D, THERE)))) == [
        *["store"] * 2,
        "barrier",
        *["store"] * 2,
    ]


def test_before_what_was_read_is_written_over() -> None:
    assert kinds(put(FILL, USE, FILL)) == ["store", "barrier", "store", "barrier", "store"]


def test_loops_carry_what_their_last_iteration_did() -> None:
    k = Var("k", 0, 2)
    body = put(For(k, 3, ForKind.SERIAL, seq([FILL, USE])))
    assert isinstance(body, For)
    assert kinds(body.body) == ["barrier", "store", "barrier", "store"]


def test_two_buffers_in_turn_need_one_barrier() -> None:
    k = Var("k", 0, 2)
    two = Buffer("two", (2, 8), f32, "shared")
    fill = Store(two, (as_index(k) % 2, as_index(T)), Load(X, HERE))
    use = Store(Y, HERE, Load(two, (as_index(k) % 2, 7 - as_index(T))))
    nest = For(T, 8, ForKind.THREAD, For(k, 3, ForKind.SERIAL, seq([fill, use])), "threadIdx.x")
    block = Var("bx", 0, 1)
    whole = barriers(For(block, 2, ForKind.THREAD, Allocate(two, nest), "blockIdx.x"))
    assert sum(isinstance(s, Barrier) for s in walk(whole)) == 1


def test_a_loop_around_a_barrier_is_none_of_its_own() -> None:
    k = Var("k", 0, 2)
    body = put(FILL, For(k, 3, ForKind.SERIAL, USE))
    assert kinds(body) == ["store", "barrier", "for"]


def test_threads_that_differ_cannot_meet_in_a_branch() -> None:
    with pytest.raises(ScheduleError, match="threads need a barrier where not all of them come"):
        put(If(within(T, 1, 8), seq([FILL, USE])))


def test_all_threads_can_meet_in_a_branch_that_they_all_take() -> None:
    k = Var("k", 0, 2)
    body = put(For(k, 3, ForKind.SERIAL, If(within(k, 1, 2), seq([FILL, USE]))))
    assert sum(isinstance(s, Barrier) for s in walk(body)) == 2


def test_a_statement_cannot_wait_for_itself() -> None:
    with pytest.raises(ScheduleError, match="threads race within one statement"):
        put(Store(C, HERE, Load(C, THERE)))
