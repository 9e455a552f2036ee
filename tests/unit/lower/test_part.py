"""A part of a result is what the whole has there, and takes no more than it needs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir import te
from mlc.ir.interp.te import run_tensors
from mlc.ir.types import i32
from mlc.lower.part import part_of
from mlc.ops import get

rng = np.random.default_rng(0)


def window(stride: int, pad: int, kernel: int, edge: int = 11) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    x, w = te.placeholder((1, 3, edge, edge), i32, "x"), te.placeholder((4, 3, kernel, kernel), i32, "w")
    attrs = {"strides": (stride, 1), "pads": (pad,) * 4, "dilations": (1, 1), "groups": 1}
    (y,) = get("conv").express([x, w], attrs)
    return x, w, y


@given(st.integers(1, 3), st.integers(0, 2), st.integers(1, 3), st.data())
def test_parts_are_those_of_the_whole(stride: int, pad: int, kernel: int, data: st.DataObject) -> None:
    x, w, y = window(stride, pad, kernel)
    box = []
    for n in y.shape:
        begin = data.draw(st.integers(0, n - 1))
        box.append((begin, data.draw(st.integers(begin + 1, n))))
    sparse = data.draw(st.sets(st.integers(0, 3)))
    whole = data.draw(st.sets(st.integers(0, 3)))
    part = part_of(y, box, sparse=sparse, whole=whole)
    given = {t: rng.integers(-9, 9, t.shape).astype(np.int32) for t in (x, w)}
    all_of_it, some = run_tensors([y, part], given)
    np.testing.assert_array_equal(some, all_of_it[tuple(slice(b, e) for b, e in box)])


def test_what_is_read_is_cut_to_what_is_needed() -> None:
    _, _, y = window(2, 1, 3)
    (pad,) = (t for t in part_of(y, [(0, 1), (0, 4), (2, 4), (3, 5)]).op.inputs if t.op is not None)
    assert pad.shape == (1, 3, 5, 4)
    (pad,) = (t for t in part_of(y, [(0, 1), (0, 4), (2, 4), (3, 5)], whole=(3,)).op.inputs if t.op is not None)
    assert pad.shape == (1, 3, 5, 13)


def test_rows_between_those_that_are_read_can_be_left_out() -> None:
    _, _, y = window(3, 1, 1)
    assert [
        next(t.shape for t in part_of(y, [(0, n) for n in y.shape], sparse=s).op.inputs if t.op is not None)
        for s in ((), (2,))
    ] == [(1, 3, 13, 13), (1, 3, 5, 13)]
