"""Scheduling primitives: what each does to the loop nest, and what it refuses, naming stage and axis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import as_expr
from mlc.ir.index import Var
from mlc.ir.types import f32, i64
from mlc.lower import Schedule, lower
from mlc.lower.stage import Stage
from tests.unit.lower.computations import COMPUTATIONS, Computation, argmax, elementwise_chain, matmul


def text(schedule: Schedule, computation: Computation) -> str:
    """The loop nest of a schedule, without the head."""
    return repr(lower(schedule, computation.params, "kernel")).partition("\n")[2]


def product() -> tuple[Schedule, Stage, Stage, Computation]:
    """Schedule of a matrix product ``c`` and of ``out``, which reads it."""
    computation = matmul()
    schedule = Schedule(computation.outputs)
    c, out = schedule.stages
    return schedule, c, out, computation


# -- loops ------------------------------------------------------------------------------------------------------------
def test_split_that_does_not_divide_gets_a_tail() -> None:
    computation = elementwise_chain()
    schedule = Schedule(computation.outputs)
    for s in schedule.stages[:-1]:
        s.compute_inline()
    out = schedule.stages[-1]
    outer, inner = out.split(out.axes[1], 4)
    assert (outer.hi, inner.hi) == (1, 3)
    assert text(schedule, computation) == (
        "  for i in range(5):\n"
        "    for ji in range(4):\n"
        "      out[i, ji] = ((x[i, ji] + b[ji]) * 2.0) + (x[i, ji] + b[ji])\n"
        "    for ji in range(3):\n"
        "      out[i, ji + 4] = ((x[i, ji + 4] + b[ji + 4]) * 2.0) + (x[i, ji + 4] + b[ji + 4])\n"
    )


def test_split_by_more_than_the_extent_has_one_part() -> None:
    _, c, _, _ = product()
    outer, inner = c.split(c.axes[0], 16)
    assert (outer.hi, inner.hi) == (0, 4)


def test_tile_orders_outer_before_inner() -> None:
    _, c, _, _ = product()
    xo, yo, xi, yi = c.tile(*c.axes, 2, 3)
    assert c.leaves[:4] == [xo, yo, xi, yi]
    assert repr(c) == "Stage(c: io, jo, ii, ji, k)"


def test_fuse_of_three_loops() -> None:
    schedule, c, out, computation = product()
    f = out.fuse(*out.axes)
    assert f.name == "ij"
    assert f.hi == 14
    c.compute_at(out, f)
    assert "out[ij//3, ij%3] = abs(c[0, 0])" in text(schedule, computation)


def test_fuse_of_one_loop_is_that_loop() -> None:
    _, c, _, _ = product()
    assert c.fuse(c.axes[0]) is c.axes[0]


def test_reorder_keeps_the_places_of_the_others() -> None:
    _, c, _, _ = product()
    i, j, k = c.leaves
    c.reorder(k, i)
    assert c.leaves == [k, j, i]


def test_reduction_outside_a_data_loop_initialises_first() -> None:
    schedule, c, _, computation = product()
    i, j, k = c.leaves
    c.reorder(k, i, j)
    assert text(schedule, computation).startswith(
        "  c: f32[5,3]\n"
        "  for i in range(5):\n"
        "    for j in range(3):\n"
        "      c[i, j] = 0.0\n"
        "  for k in range(7):\n"
        "    for i in range(5):\n"
        "      for j in range(3):\n"
        "        c[i, j] = c[i, j] + (a[i, k] * b[k, j])\n"
    )


def test_kinds_of_loops_reach_the_nest() -> None:
    schedule, c, out, computation = product()
    c.unroll(c.axes[1])
    out.parallel(out.axes[0])
    out.vectorize(out.axes[1])
    lines = text(schedule, computation)
    assert "for i in parallel(5):\n    out[i, 0:3] = abs(c[i, 0:3])  # j in 3 lanes" in lines
    assert "c[i, 2] = c[i, 2] + (a[i, k] * b[k, 2])" in lines


def test_pragma_is_noted_inside_its_loop() -> None:
    schedule, c, _, computation = product()
    c.pragma(c.axes[0], "prefetch", 4)
    assert "  for i in range(5):\n    pragma.prefetch(4)\n" in text(schedule, computation)


# -- where a stage is computed ----------------------------------------------------------------------------------------
def test_compute_at_computes_what_one_iteration_needs() -> None:
    schedule, c, out, computation = product()
    c.compute_at(out, out.axes[0])
    assert text(schedule, computation) == (
        "  for i in range(5):\n"
        "    c: f32[1,3] in local\n"
        "    for j in range(3):\n"
        "      c[0, j] = 0.0\n"
        "      for k in range(7):\n"
        "        c[0, j] = c[0, j] + (a[i, k] * b[k, j])\n"
        "    for j in range(3):\n"
        "      out[i, j] = abs(c[0, j])\n"
    )


def test_compute_root_undoes_compute_at_and_inlining() -> None:
    computation = elementwise_chain()
    schedule = Schedule(computation.outputs)
    plain = text(Schedule(computation.outputs), computation)
    y, z, out = schedule.stages
    y.compute_inline()
    z.compute_at(out, out.axes[0])
    y.compute_root()
    z.compute_root()
    assert text(schedule, computation) == plain


def test_cache_write_computes_in_another_memory() -> None:
    schedule, c, _, computation = product()
    cached = schedule.cache_write(c.op.outputs[0], "register")
    inner, copy = schedule[cached], schedule[c.op.outputs[0]]
    inner.compute_at(copy, copy.axes[1])
    assert inner.reduce_axes
    assert not copy.reduce_axes
    assert (
        "    for j in range(3):\n"
        "      c.register: f32[1,1] in register\n"
        "      c.register[0, 0] = 0.0\n"
        "      for k in range(7):\n"
        "        c.register[0, 0] = c.register[0, 0] + (a[i, k] * b[k, j])\n"
        "      c[i, j] = c.register[0, 0]\n"
    ) in text(schedule, computation)


def test_what_is_cached_can_lie_in_another_order() -> None:
    schedule, c, _, computation = product()
    cached = schedule.cache_write(c.op.outputs[0], "local", [1, 0])
    assert cached.shape == (3, 5)
    inner, copy = schedule[cached], schedule[c.op.outputs[0]]
    inner.compute_at(copy, copy.axes[0])
    assert (
        "    c.local: f32[3,1] in local\n"
        "    for j in range(3):\n"
        "      c.local[j, 0] = 0.0\n"
        "      for k in range(7):\n"
        "        c.local[j, 0] = c.local[j, 0] + (a[i, k] * b[k, j])\n"
        "    for j in range(3):\n"
        "      c[i, j] = c.local[j, 0]\n"
    ) in text(schedule, computation)
    schedule, c, _, _ = product()
    with pytest.raises(ScheduleError, match=r"cache_write: \[0, 0\] is no order of the axes of stage c"):
        schedule.cache_write(c.op.outputs[0], "local", [0, 0])


def test_cache_write_of_several_outputs_copies_all() -> None:
    computation = argmax()
    schedule = Schedule(computation.outputs)
    _, at = computation.outputs
    cached = schedule.cache_write(at, "local")
    assert cached.name == "best.local_1"
    assert "best_1[i] = best.local_1[i]" in text(schedule, computation)
    assert schedule.find(computation.inputs[0]) is None


def test_cache_read_copies_an_input_for_its_readers() -> None:
    schedule, c, _, computation = product()
    a = computation.inputs[0]
    copy = schedule.cache_read(a, "local", [c.op.outputs[0]])
    schedule[copy].compute_at(c, c.axes[0])
    assert (
        "  for i in range(5):\n    a.local: f32[1,7] in local\n    for j in range(7):\n      a.local[0, j] = a[i, j]\n"
    ) in text(schedule, computation)


def test_rfactor_sums_parts_of_a_split_reduction() -> None:
    schedule, c, _, computation = product()
    _, inner = c.split(c.reduce_axes[0], 4)
    partial = schedule.rfactor(c.op.outputs[0], inner)
    assert partial.shape == (4, 5, 3)
    assert [s.name for s in schedule.stages] == ["c.rf", "c", "out"]
    lines = text(schedule, computation)
    assert "c.rf[ki, i, j] = c.rf[ki, i, j] + (a[i, 4*ko + ki] * b[4*ko + ki, j])" in lines
    assert "c[i, j] = c[i, j] + c.rf[ki, i, j]" in lines


def test_rfactor_of_the_only_reduction_axis_leaves_one_term() -> None:
    schedule, c, _, computation = product()
    schedule.rfactor(c.op.outputs[0], c.reduce_axes[0])
    assert "c.rf[k, i, j] = c.rf[k, i, j] + (a[i, k] * b[k, j])" in text(schedule, computation)


def test_rfactor_of_a_part_of_one_iteration() -> None:
    """A factor of one gives a variable that folds away; the primitive must still find it."""
    schedule, c, _, _ = product()
    _, inner = c.split(c.reduce_axes[0], 1)
    assert schedule.rfactor(c.op.outputs[0], inner).shape == (1, 5, 3)


def test_history_tells_what_was_done() -> None:
    schedule, c, out, _ = product()
    cached = schedule.cache_write(c.op.outputs[0], "register")
    inner = schedule[cached]
    f = out.fuse(*out.axes)
    out.parallel(f)
    inner.split(inner.reduce_axes[0], 4)
    inner.compute_at(out, f)
    inner.set_scope("local")
    assert schedule.history == [
        "cache_write(c, 'register')",
        "s[out].fuse(i, j)",
        "s[out].parallel(ij)",
        "s[c.register].split(k, 4)",
        "s[c.register].compute_at(s[out], ij)",
        "s[c.register].set_scope(local)",
    ]


# -- refusals ---------------------------------------------------------------------------------------------------------
FOREIGN = Var("z", 0, 3)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda s, c, out: c.split(FOREIGN, 2), r"split: z is no loop of stage c \(it has i, j, k\)"),
        (lambda s, c, out: c.split(c.axes[0], 0), "split: factor 0 of axis i of stage c; it must be at least 1"),
        (lambda s, c, out: c.fuse(), "fuse: no axis of stage c given"),
        (lambda s, c, out: c.fuse(FOREIGN), "fuse: z is no loop of stage c"),
        (lambda s, c, out: c.fuse(c.axes[1], c.axes[0]), "fuse: i does not follow j in stage c"),
        (lambda s, c, out: c.fuse(c.axes[1], c.reduce_axes[0]), "fuse: j and k of stage c are data and reduction axes"),
        (lambda s, c, out: c.reorder(c.axes[0], c.axes[0]), "reorder: an axis of stage c is given twice"),
        (lambda s, c, out: c.reorder(FOREIGN), "reorder: z is no loop of stage c"),
        (lambda s, c, out: c.vectorize(c.reduce_axes[0]), "vectorize: k of stage c is a reduction axis; use rfactor"),
        (
            lambda s, c, out: c.parallel(c.reduce_axes[0]),
            "parallel: k of stage c is a reduction axis; use rfactor first",
        ),
        (lambda s, c, out: c.unroll(FOREIGN), "unroll: z is no loop of stage c"),
        (lambda s, c, out: c.pragma(FOREIGN, "key"), "pragma: z is no loop of stage c"),
        (lambda s, c, out: c.align(c.reduce_axes[0], 4), "align: k is no data axis of stage c"),
        (lambda s, c, out: c.storage_align(c.axes[-1], 32, 1), "storage_align: .* is not its last data axis but one"),
        (lambda s, c, out: c.storage_order(c.axes[0]), "storage_order: i are not the data axes of stage c, each once"),
        (lambda s, c, out: out.storage_order(*out.op.axes), "storage_order: stage out is an output, whose layout says"),
        (lambda s, c, out: c.align(c.axes[0], 0), "align: multiple 0 of axis i of stage c is below 1"),
        (lambda s, c, out: c.compute_at(out, FOREIGN), "compute_at: z is no loop of stage out"),
        (lambda s, c, out: c.compute_at(c, c.axes[0]), "compute_at: stage c cannot be computed inside itself"),
        (lambda s, c, out: out.compute_at(c, c.axes[0]), "compute_at: stage out is an output, it is stored in full"),
        (lambda s, c, out: out.compute_inline(), "compute_inline: stage out is an output, it is stored in full"),
        (lambda s, c, out: c.compute_inline(), "compute_inline: stage c is a reduction"),
        (
            lambda s, c, out: s[te.placeholder((), f32, "w")],
            "w is an input or no tensor of this schedule; it has no stage",
        ),
        (lambda s, c, out: s.rfactor(c.op.outputs[0], c.axes[0]), "rfactor: i of stage c is no reduction axis"),
        (lambda s, c, out: s.rfactor(out.op.outputs[0], out.axes[0]), "rfactor: i of stage out is no reduction axis"),
        (lambda s, c, out: s.rfactor(c.op.outputs[0], FOREIGN), "rfactor: z is no loop of stage c"),
        (
            lambda s, c, out: s.cache_read(c.op.outputs[0], "local", [c.op.outputs[0]]),
            "cache_read: stage c does not read c",
        ),
    ],
)
def test_wrong_primitives_are_refused(wrong: Callable[[Schedule, Stage, Stage], object], message: str) -> None:
    schedule, c, out, _ = product()
    with pytest.raises(ScheduleError, match=message):
        wrong(schedule, c, out)
    assert schedule.history == []


def test_gaps_and_an_order_of_one_buffer_are_refused() -> None:
    _, c, _, _ = product()
    i, j = c.op.axes
    c.storage_align(i, 8, 1)
    with pytest.raises(ScheduleError, match="storage_order: the buffer of stage c has gaps"):
        c.storage_order(j, i)
    _, c, _, _ = product()
    i, j = c.op.axes
    c.storage_order(j, i)
    with pytest.raises(ScheduleError, match="storage_align: the buffer of stage c has an order of its own"):
        c.storage_align(i, 8, 1)


def test_inlined_stage_has_no_loops() -> None:
    schedule = Schedule(elementwise_chain().outputs)
    y, z, _ = schedule.stages
    y.compute_inline()
    with pytest.raises(ScheduleError, match="split: stage y is inlined, it has no loops"):
        y.split(y.axes[0], 2)
    with pytest.raises(ScheduleError, match="compute_at: stage y is inlined, it has no loops"):
        z.compute_at(y, y.axes[0])


def _scheduled(change: Callable[[Stage], object]) -> Callable[[Stage, Stage], object]:
    return lambda c, out: change(c)


@pytest.mark.parametrize(
    "change",
    [
        _scheduled(lambda c: c.split(c.axes[0], 2)),
        _scheduled(lambda c: c.vectorize(c.axes[1])),
        _scheduled(lambda c: c.reorder(c.axes[1], c.axes[0])),
        lambda c, out: c.compute_at(out, out.axes[0]),
    ],
)
def test_cache_write_comes_before_anything_else(change: Callable[[Stage, Stage], object]) -> None:
    schedule, c, out, _ = product()
    change(c, out)
    with pytest.raises(ScheduleError, match="cache_write: stage c is scheduled already; cache it first"):
        schedule.cache_write(c.op.outputs[0], "local")


def test_stages_that_others_are_computed_in_stay_as_they_are() -> None:
    x = te.placeholder((4, 11), f32, "x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1.0, "y")
    k = te.reduce_axis(11, "k")
    best = te.compute_many((4,), lambda i: te.Reduction(te.ARGMAX, (y[i, k], as_expr(k, i64)), (k,)), "best")
    schedule = Schedule(best)
    schedule[y].compute_at(schedule[best[0]], schedule[best[0]].axes[0])
    with pytest.raises(ScheduleError, match="rfactor: stage y is computed inside best; rfactor comes first"):
        schedule.rfactor(best[0], schedule[best[0]].reduce_axes[0])
    with pytest.raises(ScheduleError, match="cache_write: stage y is computed inside best; cache_write comes first"):
        schedule.cache_write(best[0], "local")
    assert len(schedule.stages) == 2


def test_rfactor_needs_a_reduction_axis_or_half_of_one() -> None:
    schedule, c, _, _ = product()
    _, inner = c.split(c.reduce_axes[0], 4)
    _, innermost = c.split(inner, 2)
    with pytest.raises(ScheduleError, match="rfactor: kii of stage c does not come from one split of a reduction axis"):
        schedule.rfactor(c.op.outputs[0], innermost)


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_plain_schedule_of_every_computation_lowers(name: str) -> None:
    computation = COMPUTATIONS[name]()
    assert text(Schedule(computation.outputs), computation)
