"""Sums over whole blocks give what the sums over channels give, whatever stands in lanes beyond the last channel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import cast
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import f32, i8, i32
from mlc.lower.contraction import over_blocks

rng = np.random.default_rng(0)


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 3), st.sampled_from([2, 4, 5]))
def test_groups_and_ends_within_a_block(groups: int, inner: int, outer: int, lanes: int) -> None:
    channels, results = groups * inner, groups * outer
    blocks = -(-channels // lanes)
    x, w = te.placeholder((blocks, lanes), i8, "x"), te.placeholder((results, inner), i8, "w")
    c = te.reduce_axis(inner, "c")

    def term(o: te.Linear) -> te.Reduction:
        channel = o // outer * inner + c
        return te.sum_of(cast(x[channel // lanes, channel % lanes], i32) * cast(w[o, c], i32), c)

    y = te.compute((results,), term, "y")
    (o,) = y.op.axes
    same, factors = over_blocks(y, x, (0, 1), lambda b, k: (b, o, k))
    assert factors.shape == (blocks, results, lanes)
    given = {t: rng.integers(-128, 128, t.shape).astype(np.int8) for t in (x, w)}
    np.testing.assert_array_equal(*run_tensors([y, same], given))


def test_only_sums_of_products_of_integers() -> None:
    x, w, c = te.placeholder((2, 4), f32, "x"), te.placeholder((8,), f32, "w"), te.reduce_axis(8, "c")
    at = te.as_index(c)
    y = te.compute((3,), lambda o: te.sum_of(x[at // 4, at % 4] * w[c], c), "y")
    with pytest.raises(ScheduleError, match="in integers"):
        over_blocks(y, x, (0, 1), lambda b, k: (b, k))
    z = te.compute((3,), lambda o: te.sum_of(x[at // 4, at % 4], c), "z")
    with pytest.raises(ScheduleError, match="no sum of products"):
        over_blocks(z, x, (0, 1), lambda b, k: (b, k))


def test_an_axis_that_is_left_out_is_named() -> None:
    x, w, c = te.placeholder((2, 4), i8, "x"), te.placeholder((3, 8), i8, "w"), te.reduce_axis(8, "c")
    at = te.as_index(c)
    y = te.compute((3,), lambda o: te.sum_of(cast(x[at // 4, at % 4], i32) * cast(w[o, c], i32), c), "y")
    with pytest.raises(ScheduleError, match="depends on i, too"):
        over_blocks(y, x, (0, 1), lambda b, k: (b, k))
