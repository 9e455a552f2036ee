"""Which part of a tensor is computed where it is attached, and attachments that cannot work."""

from __future__ import annotations

import pytest

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import select, within
from mlc.ir.index import dynamic
from mlc.ir.types import f32, i32
from mlc.lower import Schedule
from mlc.lower.bounds import Nest, infer
from mlc.lower.build import build

X = te.placeholder((20, 20), f32, "x")


def stage(name: str, source: te.Tensor, shape: tuple[int, int] = (20, 20)) -> te.Tensor:
    return te.compute(shape, lambda i, j: source[i, j] + 1.0, name)


def region(reader: te.Tensor, producer: te.Tensor, depth: int, factor: int = 0) -> Nest:
    """The region of ``producer`` when computed at the given loop of ``reader``, its axes split by ``factor`` if any."""
    schedule = Schedule([reader])
    host = schedule[reader]
    if factor:
        host.tile(*host.axes, factor, factor)
    schedule[producer].compute_at(host, host.leaves[depth])
    return infer(schedule)[schedule[producer]]


def shown(nest: Nest) -> tuple[str, tuple[int, ...]]:
    return ", ".join(map(str, nest.origin)), nest.extents


def test_whole_rows_inside_the_outer_loop() -> None:
    y = stage("y", X)
    assert shown(region(stage("out", y), y, 0)) == ("i, 0", (1, 20))


def test_one_element_inside_the_inner_loop() -> None:
    y = stage("y", X)
    assert shown(region(stage("out", y), y, 1)) == ("i, j", (1, 1))


def test_tiles_inside_split_loops() -> None:
    y = stage("y", X)
    assert shown(region(stage("out", y), y, 1, factor=4)) == ("4*io, 4*jo", (4, 4))
    assert shown(region(stage("out", y), y, 2, factor=4)) == ("4*io + ii, 4*jo", (1, 4))


def test_windows_overlap() -> None:
    y = stage("y", X)
    out = te.compute((9, 20), lambda i, j: y[i * 2, j] + y[i * 2 + 2, j], "out")
    assert shown(region(out, y, 0)) == ("2*i, 0", (3, 20))


def test_aligned_regions_are_multiples() -> None:
    y = stage("y", X)
    out = te.compute((20, 6), lambda i, j: y[i, j + 1], "out")
    schedule = Schedule([out])
    schedule[y].align(schedule[y].axes[1], 4)
    schedule[y].compute_at(schedule[out], schedule[out].axes[0])
    nest = infer(schedule)[schedule[y]]
    assert shown(nest) == ("i, 1", (1, 8))


def test_tiles_may_reach_past_the_end_and_are_guarded() -> None:
    y = stage("y", X)
    nest = region(stage("out", y), y, 1, factor=8)
    assert shown(nest) == ("8*io, 8*jo", (8, 8))
    assert [str(g) for g in nest.data_guards] == ["8*io + i < 20", "8*jo + j < 20"]


def test_ragged_ends_of_aligned_tiles_are_computed_whole() -> None:
    y = stage("y", X)
    out = te.compute((20, 13), lambda i, j: y[i, j], "out")
    schedule = Schedule([out])
    jo, _ = schedule[out].split(schedule[out].axes[1], 8)
    schedule[y].align(schedule[y].axes[1], 2)
    schedule[y].compute_at(schedule[out], jo)
    assert [str(g) for g in infer(schedule)[schedule[y]].data_guards] == ["8*jo + j < 14"]


def test_reads_at_unrelated_places_need_everything() -> None:
    y = stage("y", X)
    out = te.compute((20, 20), lambda i, j: y[i, j] + y[j, i], "out")
    assert shown(region(out, y, 0)) == ("0, 0", (20, 20))


def test_quotients_of_outer_and_inner_loops_need_everything() -> None:
    y = stage("y", X)
    out = te.compute((20, 20), lambda i, j: y[(i * 20 + j) // 20, (i + j) // 2], "out")
    assert shown(region(out, y, 0)) == ("i, 0", (1, 20))
    assert shown(region(out, y, 1)) == ("i, (i + j)//2", (1, 1))


def test_rows_known_at_run_time_need_everything() -> None:
    rows = te.placeholder((20,), i32, "rows")
    y = stage("y", X)
    out = te.compute((20, 20), lambda i, j: y[dynamic(rows[i], 0, 19), j], "out")
    assert shown(region(out, y, 1)) == ("0, j", (20, 1))


def test_guarded_reads_outside_stay_inside_a_fixed_region() -> None:
    y = stage("y", X)
    out = te.compute((22, 20), lambda i, j: select(within(i, 1, 21), y[i - 1, j], 0.0), "out")
    schedule = Schedule([out])
    host = schedule[out]
    host.reorder(*reversed(host.axes))
    schedule[y].compute_at(host, host.leaves[0])
    assert shown(infer(schedule)[schedule[y]]) == ("0, j", (20, 1))


def test_several_readers_share_one_region() -> None:
    y = stage("y", X)
    a, b = stage("a", y), te.compute((20, 18), lambda i, j: y[i, j + 2], "b")
    out = te.compute((20, 18), lambda i, j: a[i, j] + b[i, j], "out")
    schedule = Schedule([out])
    host = schedule[out]
    for t in (a, b, y):
        schedule[t].compute_at(host, host.axes[1])
    assert shown(infer(schedule)[schedule[y]]) == ("i, j", (1, 3))


def test_nested_attachment_sees_all_loops_around() -> None:
    a = stage("a", X)
    b = stage("b", a)
    out = stage("out", b)
    schedule = Schedule([out])
    host = schedule[out]
    schedule[b].compute_at(host, host.axes[0])
    schedule[a].compute_at(schedule[b], schedule[b].axes[1])
    assert shown(infer(schedule)[schedule[a]]) == ("i, j", (1, 1))


# -- refusals ---------------------------------------------------------------------------------------------------------
def chain() -> tuple[Schedule, te.Tensor, te.Tensor, te.Tensor]:
    a = stage("a", X)
    b = stage("b", a)
    out = te.compute((20, 20), lambda i, j: a[i, j] + b[i, j], "out")
    return Schedule([out]), a, b, out


def test_reader_outside_the_host_is_refused() -> None:
    schedule, a, b, _ = chain()
    schedule[a].compute_at(schedule[b], schedule[b].axes[0])
    with pytest.raises(ScheduleError, match="stage a is computed inside i of b but read by out outside"):
        infer(schedule)


def test_reader_around_the_loop_is_refused() -> None:
    """Inside the same host, but not inside the loop in question."""
    schedule, a, b, out = chain()
    host = schedule[out]
    schedule[b].compute_at(host, host.axes[0])
    schedule[a].compute_at(host, host.axes[1])
    with pytest.raises(ScheduleError, match="stage a is computed inside j of out but read by b outside"):
        infer(schedule)


def test_loop_that_was_split_afterwards_is_refused() -> None:
    schedule, _, b, out = chain()
    host = schedule[out]
    schedule[b].compute_at(host, host.axes[0])
    host.split(host.axes[0], 2)
    with pytest.raises(ScheduleError, match="stage b is computed at i, which is no loop of out any more"):
        infer(schedule)


def test_host_that_comes_earlier_is_refused() -> None:
    schedule, a, b, _ = chain()
    schedule[b].compute_at(schedule[a], schedule[a].axes[0])
    with pytest.raises(ScheduleError, match="stage b is computed inside a, which does not read it"):
        infer(schedule)


def test_host_that_was_inlined_afterwards_is_refused() -> None:
    schedule, a, b, _ = chain()
    schedule[a].compute_at(schedule[b], schedule[b].axes[0])
    schedule[b].compute_inline()
    with pytest.raises(ScheduleError, match="stage a is computed inside b, which does not read it"):
        infer(schedule)


def test_output_must_be_a_parameter() -> None:
    schedule, _, _, _ = chain()
    with pytest.raises(ScheduleError, match="output out is no parameter of kernel"):
        build(schedule, [X], "kernel")
