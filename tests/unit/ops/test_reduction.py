from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from tests.unit.ops.oracle import evaluate

REDUCE = {
    "reduce_sum": np.sum, "reduce_mean": np.mean, "reduce_max": np.max, "reduce_min": np.min, "reduce_prod": np.prod
}  # fmt: skip


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(
    "shape, axes",
    [((), ()), ((5,), (0,)), ((2, 3, 4), (1,)), ((2, 3, 4), (0, 2)), ((2, 1, 3), (2, 1, 0)), ((2, 3), ())],
)
@pytest.mark.parametrize("name", REDUCE)
def test_reductions(rng, name, shape, axes, keepdims):
    x = rng.normal(size=shape).astype(np.float32)
    wanted = REDUCE[name](x.astype(np.float64), axis=axes, keepdims=keepdims)
    np.testing.assert_allclose(evaluate(name, x, axes=axes, keepdims=keepdims), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name, dtype, wanted",
    [
        ("reduce_sum", np.float32, 0),
        ("reduce_prod", np.int64, 1),
        ("reduce_max", np.float32, -np.inf),
        ("reduce_min", np.int32, np.iinfo(np.int32).max),
        ("reduce_all", np.bool_, True),
        ("reduce_any", np.bool_, False),
        ("reduce_mean", np.float32, np.nan),
    ],
)
def test_reductions_of_nothing_give_the_identity(name, dtype, wanted):
    x = np.zeros((2, 0, 3), dtype)
    np.testing.assert_array_equal(evaluate(name, x, axes=(1,), keepdims=False), np.full((2, 3), wanted))
    assert evaluate(name, x, axes=(0,), keepdims=True).shape == (1, 0, 3)


def test_logical_reductions(rng):
    x = rng.random((3, 4)) > 0.4
    np.testing.assert_array_equal(evaluate("reduce_all", x, axes=(1,), keepdims=False), x.all(1))
    np.testing.assert_array_equal(evaluate("reduce_any", x, axes=(0,), keepdims=True), x.any(0, keepdims=True))
    np.testing.assert_array_equal(evaluate("reduce_max", x, axes=(0,), keepdims=False), x.any(0))


def test_half_sums_do_not_saturate_on_the_way():
    x = np.full(4096, 100, np.float16)
    assert evaluate("reduce_mean", x, axes=(0,), keepdims=False) == np.float16(100)
    assert evaluate("reduce_sum", x[:600], axes=(0,), keepdims=False) == np.float16(60000)


def test_integer_mean_truncates_and_does_not_wrap():
    x = np.full((2, 300), [[100], [-101]], np.int8)
    x[:, 0] = 99
    np.testing.assert_array_equal(evaluate("reduce_mean", x, axes=(1,), keepdims=False), [99, -100])


def test_nan_reaches_max_and_min():
    x = np.array([1, np.nan, 2], np.float32)
    assert np.isnan(evaluate("reduce_max", x, axes=(0,)))
    assert np.isnan(evaluate("reduce_min", x, axes=(0,)))


@pytest.mark.parametrize("name, wanted", [("argmax", np.argmax), ("argmin", np.argmin)])
@pytest.mark.parametrize("shape, axis", [((1,), 0), ((4, 5), 0), ((2, 3, 4), 1), ((0, 3), 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64])
def test_arg_reductions(rng, name, wanted, shape, axis, dtype):
    x = rng.integers(0, 4, shape).astype(dtype)
    np.testing.assert_array_equal(evaluate(name, x, axis=axis, keepdims=False), wanted(x, axis))
    last = x.shape[axis] - 1 - wanted(np.flip(x, axis), axis)
    np.testing.assert_array_equal(evaluate(name, x, axis=axis, keepdims=False, select_last=True), last)
    assert evaluate(name, x, axis=axis).ndim == x.ndim


def test_argmax_finds_the_first_nan():
    assert evaluate("argmax", np.array([3, np.nan, np.inf, np.nan], np.float32), axis=0, keepdims=False) == 1
    assert evaluate("argmin", np.array([3, -np.inf, np.nan], np.float32), axis=0, keepdims=False) == 2


def test_argmax_of_least_values():
    assert evaluate("argmax", np.array([-np.inf, -np.inf], np.float32), axis=0, keepdims=False) == 0
    assert evaluate("argmax", np.array([-128, -128], np.int8), axis=0, keepdims=False, select_last=True) == 1


X = np.zeros((2, 0), np.float32)


@pytest.mark.parametrize(
    "name, x, attrs, message",
    [
        ("reduce_sum", X > 0, {"axes": (0,)}, "reduce_sum: x is bool"),
        ("reduce_all", X, {"axes": (0,)}, "reduce_all: x is f32, it may be: bool"),
        ("reduce_sum", X, {"axes": (2,)}, "reduce_sum: axis 2 of a tensor of rank 2"),
        ("reduce_sum", X, {"axes": (0, 0)}, r"reduce_sum: axes \[0, 0\] repeat"),
        ("argmax", X, {"axis": 1}, "argmax: axis 1 of f32.2,0. is empty"),
        ("argmin", X, {"axis": -1}, "argmin: axis -1 of a tensor of rank 2"),
    ],
)
def test_mistyped_calls_are_refused(name, x, attrs, message):
    with pytest.raises(VerifyError, match=message):
        evaluate(name, x, **attrs)
