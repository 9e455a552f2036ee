"""Buffers in turns, and asynchronous copies: what is refused, and what is done at once."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.interp import run_function
from mlc.ir.loop import Commit, Store, Wait, walk
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.pipeline import GRID_PASSES
from mlc.lower.prove import prove
from tests.unit.lower.grids import GRIDS, expected, product, run


@pytest.mark.parametrize("name", ["turns", "copies", "copies_ahead"])
def test_kernels_with_buffers_in_turns(name: str) -> None:
    grid = GRIDS[name]()
    fn, arrays = grid.kernel(), grid.arrays()
    prove(fn)
    np.testing.assert_allclose(run(fn, arrays), expected(grid, arrays), rtol=1e-4, atol=1e-5)
    found = [s for s in walk(fn.body) if isinstance(s, Store) and s.asynchronous]
    assert bool(found) == any(isinstance(s, (Wait, Commit)) for s in walk(fn.body)) == (name != "turns")


def test_one_step_takes_one_buffer() -> None:
    fn = product(k=4, depth=4, versions=2, asynchronous=True).kernel()
    assert not any(isinstance(s, Wait) or (isinstance(s, Store) and s.asynchronous) for s in walk(fn.body))
    prove(fn)


def test_one_thread_waits_for_itself() -> None:
    grid = product(1, 1, 7, rows=(1, 1), columns=(1, 1), depth=2, versions=3, asynchronous=True)
    fn, arrays = grid.kernel(), grid.arrays()
    prove(fn)
    np.testing.assert_allclose(run(fn, arrays), expected(grid, arrays), rtol=1e-4, atol=1e-5)


def chain() -> tuple[Schedule, te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    x = te.placeholder((6, 10), f32, "x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1, "y")
    w = te.compute(x.shape, lambda i, j: y[i, j] * 2, "w")
    z = te.compute(x.shape, lambda i, j: w[i, j] - y[i, j], "z")
    s = Schedule([z])
    for t in (y, w):
        s[t].compute_at(s[z], s[z].axes[0])
    return s, x, y, w, z


def test_without_threads_too() -> None:
    s, x, y, w, z = chain()
    for t in (y, w):
        s[t].double_buffer(3)
    fn = lower(s, [x, z], "f")
    a, b = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32), np.empty((6, 10), np.float32)
    run_function(fn, [a, b])
    np.testing.assert_allclose(b, a + 1, rtol=1e-5)


def test_what_adds_something_is_stored_at_once() -> None:
    s, x, y, w, z = chain()
    s[y].set_scope("shared")
    s[y].double_buffer(asynchronous=True)
    s[w].compute_inline()
    s[z].bind(s[z].axes[1], "threadIdx.x")
    s[y].bind(s[y].axes[1], "threadIdx.x")

    fn = lower(s, [x, z], "f", passes=GRID_PASSES)
    prove(fn)
    assert not any(isinstance(c, Store) and c.asynchronous for c in walk(fn.body))


def test_what_makes_no_sense_is_refused() -> None:
    s, x, y, w, z = chain()
    with pytest.raises(ScheduleError, match="1 versions of stage y; there are at least 2"):
        s[y].double_buffer(1)
    s[y].double_buffer(2)
    s[w].double_buffer(3)
    with pytest.raises(ScheduleError, match="2 versions of y, 3 of w, in one loop"):
        lower(s, [x, z], "f")
    s, x, y, w, z = chain()
    s[w].double_buffer()
    with pytest.raises(ScheduleError, match="w is computed ahead of what it reads"):
        lower(s, [x, z], "f")
    s, x, y, w, z = chain()
    s[y].double_buffer()
    s[z].parallel(s[z].axes[0])
    with pytest.raises(ScheduleError, match="loop i of stage z is no plain one"):
        lower(s, [x, z], "f")
