"""The interpreter of tensor expressions in the corners: empty and single shapes, NaN, ties, guards, chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import all_of, as_expr, binary, call, cast, const, select, within
from mlc.ir.index import dynamic
from mlc.ir.interp import run_tensors
from mlc.ir.interp import te as interpreter
from mlc.ir.types import DType, bf16, f16, f32, f64, i8, i32, i64


def run(t: te.Tensor | Sequence[te.Tensor], *pairs: tuple[te.Tensor, object]) -> list[np.ndarray]:
    outputs = [t] if isinstance(t, te.Tensor) else list(t)
    te.verify(outputs)
    return run_tensors(outputs, {p: np.asarray(a, p.dtype.numpy) for p, a in pairs})


def reduced(combine: str, shape: tuple[int, ...], dtype: DType = f32) -> tuple[te.Tensor, te.Tensor]:
    """An input and its reduction over the last axis."""
    x = te.placeholder(shape, dtype, "x")
    k = te.reduce_axis(shape[-1], "k")
    combiner = te.COMBINERS[combine]
    return x, te.compute(shape[:-1], lambda *ix: te.Reduction(combiner, (x[(*ix, te.as_index(k))],), (k,)), "y")


def extreme(combine: str, n: int, dtype: DType = f32) -> tuple[te.Tensor, tuple[te.Tensor, ...]]:
    x = te.placeholder((n,), dtype, "x")
    k = te.reduce_axis(n, "k")
    return x, te.compute_many((), lambda: te.Reduction(te.COMBINERS[combine], (x[k], as_expr(k, i64)), (k,)), "best")


# -- ranks and sizes --------------------------------------------------------------------------------------------------
def test_rank_zero() -> None:
    x = te.placeholder((), f32, "x")
    (y,) = run(te.compute((), lambda: x[()] * 2.0, "y"), (x, 3.0))
    assert y.shape == ()
    assert y == 6.0


@pytest.mark.parametrize("combine, value", [("sum", 0), ("prod", 1), ("max", -math.inf), ("min", math.inf)])
def test_reduction_over_nothing_is_the_neutral_value(combine: str, value: float) -> None:
    x, y = reduced(combine, (3, 0))
    (got,) = run(y, (x, np.zeros((3, 0))))
    np.testing.assert_array_equal(got, np.full(3, value))


def test_position_of_nothing_is_minus_one() -> None:
    x, best = extreme("argmax", 0)
    top, at = run(best, (x, []))
    assert (top, at) == (-math.inf, -1)


def test_integer_neutral_values_are_the_ends_of_the_range() -> None:
    x, y = reduced("max", (1, 0), i8)
    assert run(y, (x, np.zeros((1, 0))))[0] == -128


def test_empty_results_have_their_shape_and_type() -> None:
    x = te.placeholder((0, 3), f16, "x")
    (y,) = run(te.compute((3, 0), lambda i, j: x[j, i] + 1.0, "y"), (x, np.zeros((0, 3))))
    assert (y.shape, y.dtype) == ((3, 0), np.float16)


def test_reading_an_empty_tensor_behind_a_guard() -> None:
    x = te.placeholder((0,), f32, "x")
    (y,) = run(te.compute((2,), lambda i: select(within(i, 5, 6), x[i], 7.0), "y"), (x, []))
    np.testing.assert_array_equal(y, [7, 7])


def test_single_elements() -> None:
    x, y = reduced("sum", (1, 1))
    assert run(y, (x, [[5.0]]))[0] == [5.0]
    x, best = extreme("argmin", 1)
    assert [v.item() for v in run(best, (x, [4.0]))] == [4.0, 0]


# -- NaN, ties, types -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("combine", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_not_a_number_goes_through_reductions(combine: str, place: int) -> None:
    row = [1.0, 2.0, 3.0]
    row[place] = math.nan
    x, y = reduced(combine, (1, 3))
    assert np.isnan(run(y, (x, [row]))[0])


@pytest.mark.parametrize(
    "combine, row, value, at",
    [
        ("argmax", [1, 3, 2, 3], 3, 1),
        ("argmax_last", [1, 3, 2, 3], 3, 3),
        ("argmin", [2, 0, 1, 0], 0, 1),
        ("argmin_last", [2, 0, 1, 0], 0, 3),
        ("argmax", [5, 5, 5], 5, 0),
        ("argmax_last", [5, 5, 5], 5, 2),
        ("argmax", [1, math.nan, 9, math.nan], math.nan, 1),
        ("argmax_last", [1, math.nan, 9, math.nan], math.nan, 3),
        ("argmin", [1, math.nan, -9], math.nan, 1),
        ("argmax", [-math.inf, -math.inf], -math.inf, 0),
        ("argmin_last", [math.inf, math.inf], math.inf, 1),
        ("argmax", [0.0, -0.0], 0.0, 0),
    ],
)
def test_best_and_its_position(combine: str, row: list[float], value: float, at: int) -> None:
    x, best = extreme(combine, len(row))
    top, position = run(best, (x, row))
    np.testing.assert_array_equal(top, value)
    assert position == at


def test_best_of_integers_at_the_end_of_their_range() -> None:
    x, best = extreme("argmax", 3, i8)
    assert [v.item() for v in run(best, (x, [-128, -128, -128]))] == [-128, 0]


def test_all_and_any() -> None:
    x = te.placeholder((3,), f32, "x")
    k = te.reduce_axis(3, "k")
    for combiner, want in ((te.ALL, False), (te.ANY, True)):
        y = te.compute((), lambda c=combiner: te.Reduction(c, (binary("gt", x[k], 1.0),), (k,)), "y")  # type: ignore[misc]
        assert run(y, (x, [1, 2, 3]))[0] == want


def test_user_combiners_may_hold_several_values() -> None:
    """Mean and sum of squared differences, folded together (Welford)."""
    x = te.placeholder((5,), f64, "x")
    k = te.reduce_axis(5, "k")

    def fold(acc: tuple[te.Expr, ...], new: tuple[te.Expr, ...]) -> tuple[te.Expr, ...]:
        count, mean, squares = acc
        n, m, s = new
        total = count + n
        delta = m - mean
        return total, mean + delta * n / total, squares + s + delta * delta * count * n / total

    welford = te.Combiner("welford", lambda ts: tuple(const(0, t) for t in ts), fold)
    terms = (const(1, f64), x[k], const(0, f64))
    out = te.compute_many((), lambda: te.Reduction(welford, terms, (k,)), "stats")
    values = np.array([1.0, 4.0, 2.0, 8.0, 5.0])
    count, mean, squares = run(out, (x, values))
    assert count == 5
    np.testing.assert_allclose([mean, squares / 5], [values.mean(), values.var()])


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_sums_of_half_precision_keep_their_type(dtype: DType) -> None:
    x, y = reduced("sum", (1, 4096), dtype)
    (got,) = run(y, (x, np.ones((1, 4096))))
    assert got.dtype == dtype.numpy
    assert got.astype(np.float64) == 4096


# -- accesses ---------------------------------------------------------------------------------------------------------
def test_unguarded_access_outside_is_refused() -> None:
    x = te.placeholder((4,), f32, "x")
    y = te.compute((4,), lambda i: x[i + 1], "y")
    with pytest.raises(VerifyError, match=r"x\[i \+ 1\] leaves axis 0 of extent 4 in\ny\[i:4\] = x\[i \+ 1\]"):
        run(y, (x, np.zeros(4)))


def test_guarded_access_outside_is_not_chosen() -> None:
    x = te.placeholder((4,), f32, "x")
    y = te.compute((6,), lambda i: select(within(i, 1, 5), x[i - 1], -1.0), "y")
    np.testing.assert_array_equal(run(y, (x, [1, 2, 3, 4]))[0], [-1, 1, 2, 3, 4, -1])


def test_rows_chosen_at_run_time() -> None:
    x, rows = te.placeholder((3, 2), f32, "x"), te.placeholder((4,), i32, "rows")
    y = te.compute((4, 2), lambda i, j: x[dynamic(rows[i], 0, 2), j], "y")
    data = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(run(y, (x, data), (rows, [2, 0, 2, 1]))[0], data[[2, 0, 2, 1]])


def test_missing_input_is_refused() -> None:
    x = te.placeholder((4,), f32, "x")
    with pytest.raises(VerifyError, match="x has no value"):
        run(te.compute((4,), lambda i: x[i] + 1.0, "y"))


# -- the fast ways give the same --------------------------------------------------------------------------------------
def test_large_computations_are_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = reduced("max", (7, 5))
    data = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
    z = te.compute((7,), lambda i: y[i] + as_expr(cast(as_expr(i, i32), f32)), "z")
    want = data.max(axis=1) + np.arange(7, dtype=np.float32)
    monkeypatch.setattr(interpreter, "_CHUNK", 10)
    np.testing.assert_array_equal(run(z, (x, data))[0], want)


@pytest.mark.parametrize("dtype", [f32, f16, i8, i32], ids=str)
def test_contractions_go_through_einsum_and_give_the_same(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    a, w = te.placeholder((2, 9), dtype, "a"), te.placeholder((3, 2, 3), dtype, "w")
    c, r = te.reduce_axis(2, "c"), te.reduce_axis(3, "r")
    y = te.compute((3, 4), lambda o, i: te.sum_of(a[c, i * 2 + r] * w[o, c, r], (c, r)), "y")
    rng = np.random.default_rng(2)
    feeds = [(a, rng.integers(-3, 4, (2, 9))), (w, rng.integers(-3, 4, (3, 2, 3)))]
    (fast,) = run(y, *feeds)
    monkeypatch.setattr(interpreter, "_contraction", lambda op, values: None)
    (slow,) = run(y, *feeds)
    np.testing.assert_array_equal(fast, slow)
    assert fast.dtype == slow.dtype == dtype.numpy


def test_contraction_over_an_axis_that_nothing_reads_repeats() -> None:
    x = te.placeholder((3,), f32, "x")
    k = te.reduce_axis(5, "k")
    y = te.compute((3, 2), lambda i, j: te.sum_of(x[i], k), "y")
    np.testing.assert_array_equal(run(y, (x, [1, 2, 3]))[0], [[5, 5], [10, 10], [15, 15]])


@pytest.mark.parametrize("guard", [False, True])
def test_sum_of_guarded_or_called_terms_goes_the_slow_way(guard: bool) -> None:
    x = te.placeholder((6,), f32, "x")
    k = te.reduce_axis(6, "k")
    term = select(all_of([within(k, 1, 5)]), x[k], 0.0) if guard else call("abs", x[k])
    y = te.compute((), lambda: te.sum_of(term, k), "y")
    data = np.array([1, -2, 3, -4, 5, -6])
    assert run(y, (x, data))[0] == (data[1:5].sum() if guard else np.abs(data).sum())


def test_narrow_sums_wrap_as_their_type_does() -> None:
    x, y = reduced("sum", (1, 3), i8)
    assert run(y, (x, [[100, 100, 100]]))[0] == 44


def test_widening_casts_inside_a_product_are_exact() -> None:
    a = te.placeholder((4,), i8, "a")
    k = te.reduce_axis(4, "k")
    y = te.compute((), lambda: te.sum_of(cast(a[k], i32) * cast(a[k], i32), k), "y")
    assert run(y, (a, [-128, 127, 100, 1]))[0] == 128**2 + 127**2 + 100**2 + 1


def test_values_given_for_intermediate_tensors_are_taken() -> None:
    x = te.placeholder((2,), f32, "x")
    y = te.compute((2,), lambda i: x[i] + 1.0, "y")
    z = te.compute((2,), lambda i: y[i] * 2.0, "z")
    np.testing.assert_array_equal(run_tensors([z], {y: np.array([5, 6], np.float32)})[0], [10, 12])


def test_what_is_no_expression_is_refused() -> None:
    class Odd(te.Expr):
        dtype = f32

    i = te.axis(2, "i")
    with pytest.raises(VerifyError, match="no meaning for Odd"):
        run_tensors(te.finish(te.Compute("y", (i,), (), (Odd(),), None)), {})
