"""Sums that begin with what is added to them: where, where not, and that it makes no difference to the results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import Expr, binary, cast, const, select, within
from mlc.ir.index import Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.loop import Function
from mlc.ir.types import DType, f32, i32
from mlc.lower import Schedule, lower
from mlc.lower.pipeline import PASSES

BEFORE = PASSES[:-1]


def product(
    rows: int, dtype: DType, result: Callable[[te.Tensor, te.Tensor, Var, Var], Expr], *others: te.Tensor
) -> list[Function]:
    """A product with 8 columns in registers, two rows at a time, without and with the pass."""
    x, w = te.placeholder((rows, 5), dtype, "x"), te.placeholder((5, 8), dtype, "w")
    b = te.placeholder((2, 8), dtype, "b")
    k = te.reduce_axis(5, "k")
    y = te.compute((rows, 8), lambda i, j: te.sum_of(x[i, k] * w[k, j], k), "y")
    z = te.compute((rows, 8), lambda i, j: result(y, b, i, j), "z")

    def lowered(passes: object) -> Function:
        s = Schedule([z])
        s[y].set_scope("register")
        i, j = s[z].axes
        io, ii = s[z].split(i, 2)
        s[z].unroll(ii)
        s[z].vectorize(j)
        s[y].compute_at(s[z], io)
        row, column = s[y].axes
        s[y].reorder(s[y].reduce_axes[0], row, column)
        s[y].unroll(row)
        s[y].vectorize(column)
        return lower(s, [x, w, b, *others, z], "k", passes=passes)  # type: ignore[arg-type]

    return [lowered(BEFORE), lowered(PASSES)]


def run(fn: Function, rows: int, dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(rows)
    x, w, b = (rng.integers(-9, 9, shape).astype(dtype.numpy) for shape in ((rows, 5), (5, 8), (2, 8)))
    out = np.zeros((rows, 8), fn.params[-1].dtype.numpy)
    run_function(fn, [x, w, b, out])
    return out


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_sums_begin_with_their_offset(rows: int) -> None:
    before, after = product(rows, i32, lambda y, b, i, j: cast(y[i, j] + b[0, j], f32) * const(0.5, f32))
    assert "+ b[0" in repr(before)
    assert "+ b[0" not in repr(after)
    assert "0:8] = b[0, 0:8]" in repr(after)
    np.testing.assert_array_equal(run(after, rows, i32), run(before, rows, i32))


def test_an_offset_of_every_element() -> None:
    before, after = product(2, i32, lambda y, b, i, j: b[i, j] + y[i, j])
    assert "y[0, 0:8] = b[0, 0:8]" in repr(after)
    assert "y[1, 0:8] = b[1, 0:8]" in repr(after)
    np.testing.assert_array_equal(run(after, 2, i32), run(before, 2, i32))


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (f32, lambda y, b, i, j: y[i, j] + b[0, j]),  # rounds otherwise
        (i32, lambda y, b, i, j: (y[i, j] + b[0, j]) * y[i, j]),  # the sum itself is asked for, too
        (i32, lambda y, b, i, j: (y[i, j] + b[0, j]) * (y[i, j] + b[1, j])),
        (i32, lambda y, b, i, j: y[i, j] * b[0, j]),
        (i32, lambda y, b, i, j: y[i, j] + const(3, i32)),
    ],
)
def test_others_stay(dtype: DType, result: Callable[[te.Tensor, te.Tensor, Var, Var], Expr]) -> None:
    before, after = product(4, dtype, result)
    assert repr(after) == repr(before)


def test_an_offset_that_must_not_be_read_everywhere_stays() -> None:
    """There is none beyond the third: a sum that began with one would read outside of memory."""
    few = te.placeholder((2, 3), i32, "few")
    before, after = product(
        4, i32, lambda y, b, i, j: select(within(as_index(j), 0, 3), y[i, j] + few[0, j], const(0, i32)), few
    )
    assert repr(after) == repr(before)


def test_an_offset_on_whose_sum_a_choice_depends() -> None:
    """It is read whatever is chosen."""

    def leaky(y: te.Tensor, b: te.Tensor, i: Var, j: Var) -> Expr:
        total = y[i, j] + b[0, j]
        return select(binary("gt", total, const(0, i32)), total, total * const(2, i32))

    before, after = product(4, i32, leaky)
    assert "+ b[0" not in repr(after)
    np.testing.assert_array_equal(run(after, 4, i32), run(before, 4, i32))
