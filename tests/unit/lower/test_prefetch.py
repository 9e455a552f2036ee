"""Prefetching: the part of an input that a later iteration reads, in lines of 64 bytes."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ScheduleError, VerifyError
from mlc.ir import te
from mlc.ir.index import Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.loop import Buffer, For, ForKind, Function, Prefetch
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.stage import Stage
from mlc.lower.verify import verify
from tests.unit.targets.llvm.host import Kernel

A, B = te.placeholder((8, 64), f32, "a"), te.placeholder((3, 64, 16), f32, "b")


def panels() -> tuple[Schedule, Stage, tuple[Var, Var]]:
    """A product whose right operand lies in panels of 16 columns; loops over panels, then over pairs of rows."""
    k = te.reduce_axis(64, "k")
    c = te.compute((8, 48), lambda i, j: te.sum_of(A[i, k] * B[j // 16, k, j % 16], k), "c")
    schedule = Schedule([c])
    tile = schedule.cache_write(c, "register")
    out = schedule[c]
    i, j = out.axes
    jo, ji = out.split(j, 16)
    io, ii = out.split(i, 2)
    out.reorder(jo, io, ii, ji)
    schedule[tile].compute_at(out, io)
    schedule[tile].reorder(*schedule[tile].reduce_axes, *schedule[tile].axes)
    return schedule, out, (jo, io)


def lowered(schedule: Schedule) -> Function:
    return lower(schedule, [A, B, *schedule.outputs], "kernel")


def test_iterations_share_what_a_later_one_reads() -> None:
    schedule, out, (jo, io) = panels()
    out.prefetch(B, jo, io, level=2)
    fn = lowered(schedule)
    # 64 * 16 floats are 64 lines, 16 for each of 4 tiles
    assert (
        "  for jo in range(3):\n"
        "    for io in range(4):\n"
        "      for line in range(16):\n"
        "        prefetch(b[jo + 1, 0, 256*io + 16*line], level=2)\n"
    ) in repr(fn)
    assert schedule.history[-1] == "s[c].prefetch(b, jo, io, distance=1, level=2)"


def test_a_loop_fetches_for_itself() -> None:
    schedule, _, _ = panels()
    tile = schedule.stages[0]
    ko, _ = tile.split(tile.reduce_axes[0], 4)
    tile.prefetch(B, ko, ko, distance=3)
    assert (
        "      for ko in range(16):\n"
        "        prefetch(b[jo, 4*ko + 12, 0], level=1)\n"
        "        prefetch(b[jo, 4*ko + 12, 16], level=1)\n"
        "        prefetch(b[jo, 4*ko + 12, 32], level=1)\n"
        "        prefetch(b[jo, 4*ko + 12, 48], level=1)\n"
        "        for ki in range(4):\n"
    ) in repr(lowered(schedule))


def test_the_first_iterations_fetch_where_there_are_more_than_lines() -> None:
    schedule, _, (jo, _) = panels()
    tile = schedule.stages[0]
    (k,) = tile.reduce_axes
    tile.prefetch(B, jo, k, level=2)
    # 64 lines for 4 tiles of 64 steps: the first tile has fetched them all
    head, _, rest = repr(lowered(schedule)).partition("prefetch(b[jo + 1, 0, 16*k], level=2)")
    assert head.endswith("    for k in range(64):\n      ")
    assert "prefetch" not in rest
    assert "    for io in range(3):\n" in rest


def test_loops_of_a_stage_inside_share_too() -> None:
    schedule, _, (jo, io) = panels()
    tile = schedule.stages[0]
    ko, _ = tile.split(tile.reduce_axes[0], 16)
    tile.prefetch(B, jo, ko, level=2)
    # the 64 lines of a panel, 4 for each of 4 tiles with 4 iterations
    assert "prefetch(b[jo + 1, 0, 256*io + 64*ko + 48], level=2)\n" in repr(lowered(schedule)).replace("16*line", "48")
    with pytest.raises(ScheduleError, match="io of stage c is not inside ko"):
        schedule[schedule.outputs[0]].prefetch(B, ko, io)
    tile.compute_root()
    with pytest.raises(ScheduleError, match="jo is no loop around stage"):
        lowered(schedule)


def test_pieces_that_lie_apart_are_fetched_one_by_one() -> None:
    c = te.compute((8, 20), lambda i, j: A[i, j + 4] + 1.0, "c")
    schedule = Schedule([c])
    out = schedule[c]
    i, j = out.axes
    io, ii = out.split(i, 2)
    out.prefetch(A, io, ii, pieces=ii)
    assert (
        "  for io in range(4):\n"
        "    for ii in range(2):\n"
        "      prefetch(a[ii + 2*io + 2, 4], level=1)\n"
        "      prefetch(a[ii + 2*io + 2, 20], level=1)\n"
    ) in repr(lower(schedule, [A, c], "kernel"))
    assert schedule.history[-1] == "s[c].prefetch(a, io, ii, distance=1, level=1, pieces=ii)"
    with pytest.raises(ScheduleError, match="io of stage c is not between ii and j"):
        out.prefetch(A, ii, j, pieces=io)


@pytest.mark.parametrize("columns", [58, 20])
def test_small_gaps_between_rows_are_fetched_as_well(columns: int) -> None:
    """Two rows of 64 elements, of which some are read."""
    c = te.compute((8, columns), lambda i, j: A[i, j + 4] + 1.0, "c")
    schedule = Schedule([c])
    i, _ = schedule[c].axes
    io, ii = schedule[c].split(i, 2)
    schedule[c].prefetch(A, io, ii)
    if columns == 20:
        with pytest.raises(ScheduleError, match="stage c reads no contiguous part of a in io"):
            lower(schedule, [A, c], "kernel")
    else:
        text = repr(lower(schedule, [A, c], "kernel"))
        assert [f"prefetch(a[2*io + 2, 64*ii + {at}], level=1)" in text for at in (4, 20, 36, 52)] == [True] * 4


def test_values_stay_the_same() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, t.shape).astype(np.float32) for t in (A, B))
    want = a @ b.transpose(1, 0, 2).reshape(64, 48)
    schedule, out, (jo, io) = panels()
    out.parallel(jo)
    out.prefetch(B, jo, io, distance=2, level=3)
    fn = lowered(schedule)
    got = np.zeros((8, 48), np.float32)
    run_function(fn, [a, b, got])
    np.testing.assert_array_equal(got, want)
    kernel = Kernel(fn)
    assert "call void @llvm.prefetch.p0" in kernel.text
    got = np.zeros((8, 48), np.float32)
    kernel.run([a, b, got], threads=2, at_end=True)
    np.testing.assert_array_equal(got, want)


def test_a_loop_of_one_iteration_has_no_later_one() -> None:
    schedule, out, (jo, io) = panels()
    only, _ = out.split(jo, 3)
    out.prefetch(B, only, io)
    assert "prefetch" not in repr(lowered(schedule))


def test_what_is_scattered_is_not_fetched() -> None:
    schedule, _, _ = panels()
    (k,) = schedule.stages[0].reduce_axes
    schedule.stages[0].prefetch(A, k, k)
    with pytest.raises(ScheduleError, match=r"prefetch: stage c\.register reads no contiguous part of a in k"):
        lowered(schedule)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda out, jo, io: out.prefetch(B, io, jo), "prefetch: jo of stage c is not inside io"),
        (lambda out, jo, io: out.prefetch(B, Var("z", 0, 3), io), "prefetch: io of stage c is not inside z"),
        (lambda out, jo, io: out.prefetch(B, jo, io, distance=0), "prefetch: distance 0 and level 1"),
        (lambda out, jo, io: out.prefetch(B, jo, io, level=4), "prefetch: distance 1 and level 4"),
        (
            lambda out, jo, io: out.prefetch(out.op.inputs[0], jo, io),
            "is computed, only inputs are fetched ahead",
        ),
    ],
)
def test_wrong_fetches_are_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    schedule, out, loops = panels()
    before = list(schedule.history)
    with pytest.raises(ScheduleError, match=message):
        change(out, *loops)
    assert schedule.history == before


def test_verifier_knows_the_variables_of_a_fetch() -> None:
    x, i = Buffer("x", (8,), f32), Var("i", 0, 7)
    fetch = Prefetch(x, (as_index(i),), 1)
    verify(Function("kernel", (x,), 0, For(i, 8, ForKind.SERIAL, fetch)))
    with pytest.raises(VerifyError, match="unbound index"):
        verify(Function("kernel", (x,), 0, fetch))
