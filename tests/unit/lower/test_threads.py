"""Loops bound to a grid: one launch a nest, shared stages by all threads of a block, results as before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.loop import Function
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.build import build
from mlc.lower.pipeline import GRID_PASSES
from mlc.lower.prove import prove
from mlc.lower.threads import threads
from mlc.lower.verify import verify
from tests.fuzz import examples
from tests.unit.lower.grids import GRIDS, Grid, exchanged, expected, product, run, stencil, sums

TILES = st.sampled_from([(1, 1), (2, 1), (4, 2), (4, 4), (3, 1), (6, 3)])
EXTENTS = st.integers(1, 9)


def stages(grid: Grid) -> dict[str, Function]:
    """A kernel after every pass."""
    found: dict[str, Function] = {}
    lower(grid.schedule, grid.params, "kernel", passes=GRID_PASSES, watch=found.__setitem__)
    return found


def check(grid: Grid, run_at: Sequence[str] = ("build", "barriers")) -> None:
    """Every kernel on the way computes the same, but for the one whose barriers are still missing."""
    arrays = grid.arrays()
    want = expected(grid, arrays)
    found = stages(grid)
    for stage in run_at:
        np.testing.assert_allclose(run(found[stage], arrays), want, rtol=1e-5, atol=1e-5, err_msg=stage)
    verify(found["barriers"])
    prove(found["barriers"])


@pytest.mark.parametrize("stage", ["build", "threads", "barriers"])
def test_text_of_a_product(stage: str, golden: Callable[[str], None]) -> None:
    golden(repr(stages(product())[stage]))


@pytest.mark.parametrize("name", ["sums", "exchanged", "stencil", "vectors"])
def test_text_of_a_kernel(name: str, golden: Callable[[str], None]) -> None:
    golden(repr(GRIDS[name]().kernel()))


@pytest.mark.parametrize("name", GRIDS)
def test_kernels_compute_what_their_expressions_say(name: str) -> None:
    check(GRIDS[name]())


@given(m=EXTENTS, n=EXTENTS, k=EXTENTS, rows=TILES, columns=TILES, depth=st.integers(1, 5), vector=st.booleans())
@examples(25)
def test_any_product(
    m: int, n: int, k: int, rows: tuple[int, int], columns: tuple[int, int], depth: int, vector: bool
) -> None:
    check(product(m, n, k, rows=rows, columns=columns, depth=depth, vector=vector))


@given(rows=EXTENTS, length=st.integers(1, 20), share=st.integers(1, 6))
@examples(15)
def test_any_sums_and_stencils(rows: int, length: int, share: int) -> None:
    check(sums(rows, length, share))
    check(stencil(rows, length, min(share, length)))


@given(rows=EXTENTS, length=st.integers(8, 70), threads=st.sampled_from([1, 2, 4, 8]), tall=st.integers(1, 3))
@examples(15)
def test_any_exchange(rows: int, length: int, threads: int, tall: int) -> None:
    check(exchanged(rows, length, threads, tall), ["barriers"])  # before, threads may stand around the fold


# -- refusals ---------------------------------------------------------------------------------------------------------
def doubled() -> tuple[Schedule, te.Tensor, te.Tensor, te.Tensor]:
    x = te.placeholder((8, 6), f32, "x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1, "y")
    z = te.compute(x.shape, lambda i, j: y[i, j] * 2, "z")
    return Schedule([z]), x, y, z


def test_what_threads_compute_for_each_other_is_shared() -> None:
    s, x, y, z = doubled()
    s[z].bind(s[z].axes[1], "threadIdx.x")
    s[y].compute_at(s[z], s[z].axes[0])
    s[y].bind(s[y].axes[1], "threadIdx.x")
    with pytest.raises(
        ScheduleError, match="is computed inside i of z by threads of its own, and kept in local memory"
    ):
        build(s, [x, z], "f")


def test_threads_of_a_stage_in_fewer_threads_are_refused() -> None:
    s, x, y, z = doubled()
    outer, inner = s[z].split(s[z].axes[1], 2)
    s[z].bind(inner, "threadIdx.x")
    s[y].compute_at(s[z], inner)
    s[y].set_scope("shared")
    s[y].bind(s[y].axes[0], "threadIdx.y")
    s[z].bind(outer, "threadIdx.y")
    _, few = s[z].split(s[z].axes[0], 4)
    s[z].bind(few, "blockIdx.x")
    fn = build(s, [x, z], "f")
    assert threads(fn.body) is not fn.body  # one row a thread, as there are: nobody is missing
    s, x, y, z = doubled()
    i = s[z].axes[0]
    s[z].bind(i, "threadIdx.x")
    s[y].compute_at(s[z], i)
    s[y].set_scope("shared")
    s[y].bind(s[y].fuse(*s[y].axes), "threadIdx.x")
    with pytest.raises(ScheduleError, match=r"loop i of extent 8 is bound to threadIdx\.x, which has 48"):
        threads(build(s, [x, z], "f").body)


def test_memory_that_outlives_a_launch_is_allocated_around_it() -> None:
    s, x, y, z = doubled()
    s[z].bind(s[z].axes[0], "blockIdx.x")
    s[y].compute_at(s[z], s[z].axes[0])
    s[y].set_scope("global")
    with pytest.raises(ScheduleError, match="buffer y is in global memory and computed inside of threads"):
        threads(build(s, [x, z], "f").body)


@pytest.mark.parametrize(
    "thread, message",
    [
        ("threadIdx.w", "known: blockIdx.z, .*, threadIdx.x"),
        ("threadIdx.x", "bind: j of stage z is bound to threadIdx.x already"),
    ],
)
def test_bad_bindings_are_refused(thread: str, message: str) -> None:
    s, _, _, z = doubled()
    s[z].bind(s[z].axes[1], "threadIdx.x")
    with pytest.raises(ScheduleError, match=message):
        s[z].bind(s[z].axes[0], thread)


@pytest.mark.parametrize("thread", ["threadIdx.y", "blockIdx.x"])
def test_folds_are_bound_along_a_warp_alone(thread: str) -> None:
    grid = product()
    stage = next(s for s in grid.schedule.stages if s.reduce_axes)
    with pytest.raises(ScheduleError, match="reduction axis; use rfactor first"):
        stage.bind(stage.leaves[0], thread)


@pytest.mark.parametrize("threads, message", [(6, "folded by 6 threads"), (64, "folded by 64 threads")])
def test_threads_that_fold_are_a_power_of_two_of_a_warp(threads: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        exchanged(length=100, threads=threads).kernel()


def test_what_threads_fold_each_keeps_for_itself() -> None:
    x, r = te.placeholder((4, 8), f32, "x"), te.reduce_axis(8, "r")
    y = te.compute((4,), lambda i: te.sum_of(x[i, r], r), "y")
    s = Schedule([y])
    s[y].bind(r, "threadIdx.x")
    with pytest.raises(ScheduleError, match="each must have the result, a single one, for itself"):
        build(s, [x, y], "f")


def test_what_threads_fold_they_fold_once() -> None:
    x, r = te.placeholder((4, 8), f32, "x"), te.reduce_axis(8, "r")
    y = te.compute((4,), lambda i: te.sum_of(x[i, r], r), "y")
    s = Schedule([y])
    sums = s.cache_write(y, "local")
    s[sums].compute_at(s[y], s[y].axes[0])
    _, inner = s[sums].split(s[sums].reduce_axes[0], 4)
    s[sums].bind(inner, "threadIdx.x")
    with pytest.raises(ScheduleError, match="no other loop of it may be around"):
        build(s, [x, y], "f")
