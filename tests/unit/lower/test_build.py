"""From schedule to loop nest: guards, reductions, buffers, and shapes of no and of one element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import all_of, as_expr, select, within
from mlc.ir.index import Linear, as_index
from mlc.ir.interp import run_function
from mlc.ir.types import f32, i64
from mlc.lower import Schedule, lower
from mlc.lower.build import build
from mlc.lower.verify import verify
from tests.fuzz import examples
from tests.unit.lower.computations import Computation, argmax, assert_results, empty_outputs, matmul
from tests.unit.lower.schedules import schedules, text


def built(schedule: Schedule, computation: Computation) -> str:
    fn = build(schedule, computation.params, "kernel")
    verify(fn, final=False)
    return repr(fn).partition("\n")[2]


def test_reduction_is_initialised_then_updated() -> None:
    computation = matmul()
    assert built(Schedule(computation.outputs), computation).startswith(
        "  c: f32[5,3]\n"
        "  for i in range(5):\n"
        "    for j in range(3):\n"
        "      c[i, j] = 0.0\n"
        "      for k in range(7):\n"
        "        c[i, j] = c[i, j] + (a[i, k] * b[k, j])\n"
    )


def test_splits_that_do_not_divide_are_guarded() -> None:
    computation = matmul()
    schedule = Schedule(computation.outputs)
    c = schedule.stages[0]
    c.split(c.axes[0], 2)
    c.split(c.reduce_axes[0], 4)
    lines = built(schedule, computation)
    assert "if 2*io + ii < 5:\n          c[2*io + ii, j] = 0.0" in lines
    assert "if (2*io + ii < 5) and (4*ko + ki < 7):" in lines


def test_terms_that_do_not_exist_are_not_added() -> None:
    a = te.placeholder((7, 5), f32, "a")
    k = te.reduce_axis(4, "k")

    def element(i: Linear, j: Linear) -> te.Reduction:
        row = i + 2 * as_index(k)
        return te.sum_of(select(all_of([within(row, 0, 7), within(j, 0, 3)]), a[row, j], 0), k)

    b = te.compute((2, 5), element, "b")
    schedule = Schedule([b])
    stage = schedule[b]
    i, j = stage.axes
    stage.reorder(i, stage.reduce_axes[0], j)
    fn = build(schedule, [a, b], "kernel")
    verify(fn, final=False)
    # the condition on j would be a branch between lanes
    assert (
        repr(fn)
        .rstrip()
        .endswith(
            "    for k in range(4):\n"
            "      for j in range(5):\n"
            "        if i + 2*k < 7:\n"
            "          b[i, j] = b[i, j] + select(j < 3, a[i + 2*k, j], 0.0)"
        )
    )


def test_several_outputs_are_computed_before_any_is_stored() -> None:
    computation = argmax()
    lines = built(Schedule(computation.outputs), computation).splitlines()
    stores = [line.split("=")[0].strip() for line in lines if "] = " in line]
    assert stores[-4:] == ["best_0.new[]", "best_1.new[]", "best_0[i]", "best_1[i]"]


def test_several_outputs_hold_one_value_a_lane() -> None:
    computation = argmax()
    schedule = Schedule(computation.outputs)
    best = schedule.stages[0]
    best.vectorize(best.axes[0])
    assert "best_0.new: f32[4] in register" in built(schedule, computation)


def test_buffers_of_equal_names_are_told_apart() -> None:
    x = te.placeholder((3,), f32, "x")
    y = te.compute((3,), lambda i: x[i] + 1.0, "x")
    z = te.compute((3,), lambda i: y[i] * 2.0, "x!")
    fn = build(Schedule([z]), [x, z], "kernel")
    assert repr(fn).splitlines()[:2] == ["def kernel(x: f32[3]) -> x_: f32[3]:", "  x_1: f32[3]"]


def test_guests_share_the_loop_in_order() -> None:
    x = te.placeholder((3, 4), f32, "x")
    a = te.compute((3, 4), lambda i, j: x[i, j] + 1.0, "a")
    b = te.compute((3, 4), lambda i, j: a[i, j] * 2.0, "b")
    out = te.compute((3, 4), lambda i, j: a[i, j] + b[i, j], "out")
    schedule = Schedule([out])
    host = schedule[out]
    for t in (a, b):
        schedule[t].compute_at(host, host.axes[1])
    assert repr(build(schedule, [x, out], "kernel")).partition("\n")[2] == (
        "  for i in range(3):\n"
        "    for j in range(4):\n"
        "      a: f32[1,1] in local\n"
        "      b: f32[1,1] in local\n"
        "      a[0, 0] = x[i, j] + 1.0\n"
        "      b[0, 0] = a[0, 0] * 2.0\n"
        "      out[i, j] = a[0, 0] + b[0, 0]\n"
    )


def test_scope_of_an_attached_stage_is_its_own() -> None:
    computation = matmul()
    schedule = Schedule(computation.outputs)
    c, out = schedule.stages
    c.compute_at(out, out.axes[0])
    c.set_scope("register")
    assert "c: f32[1,3] in register" in built(schedule, computation)


# -- no and one element -----------------------------------------------------------------------------------------------
def shaped(rows: int, columns: int, terms: int) -> Computation:
    """A sum that is read twice, over extents that may be zero."""
    a, b = te.placeholder((rows, terms), f32, "a"), te.placeholder((terms, columns), f32, "b")
    k = te.reduce_axis(terms, "k")
    c = te.compute((rows, columns), lambda i, j: te.sum_of(a[i, k] * b[k, j], k), "c")
    return Computation((a, b), (te.compute((rows, columns), lambda i, j: c[i, j] + 1.0, "out"),))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0), (1, 1, 1), (1, 3, 1)], ids=str)
@given(data=st.data())
@examples(8)
def test_extents_of_zero_and_one(shape: tuple[int, int, int], data: st.DataObject) -> None:
    computation = shaped(*shape)
    schedule = data.draw(schedules(computation))
    note(text(schedule))
    fn = lower(schedule, computation.params, "kernel")
    note(repr(fn))
    arrays, got = computation.draw(1), empty_outputs(computation)
    run_function(fn, [*arrays, *got])
    assert_results(computation, got, computation.expect(arrays), "")


def test_reduction_over_nothing_is_only_initialised() -> None:
    computation = shaped(2, 3, 0)
    schedule = Schedule(computation.outputs)
    c = schedule.stages[0]
    f = c.fuse(*c.axes)
    c.split(f, 4)
    lines = repr(lower(schedule, computation.params, "kernel"))
    assert "0.0" in lines
    assert "a[" not in lines


def test_position_of_the_best_of_nothing() -> None:
    x = te.placeholder((2, 0), f32, "x")
    k = te.reduce_axis(0, "k")
    best = te.compute_many((2,), lambda i: te.Reduction(te.ARGMAX, (x[i, k], as_expr(k, i64)), (k,)), "best")
    fn = lower(Schedule(best), [x, *best], "kernel")
    top, at = np.zeros(2, np.float32), np.zeros(2, np.int64)
    run_function(fn, [np.zeros((2, 0), np.float32), top, at])
    assert list(top) == [-np.inf] * 2
    assert list(at) == [-1, -1]


def test_stage_that_nothing_makes_a_parameter_is_allocated() -> None:
    computation = matmul()
    assert built(Schedule(computation.outputs), computation).startswith("  c: f32[5,3]\n")


def test_output_that_is_no_parameter_is_refused() -> None:
    computation = matmul()
    with pytest.raises(ScheduleError, match="output out is no parameter of kernel"):
        build(Schedule(computation.outputs), computation.inputs, "kernel")
