"""Softmax and its logarithm against their definitions in double precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, f16, f32, i32
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, one_node, stages


def softmax(x, axis):
    e = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@examples(40)
@given(st.lists(st.sampled_from([1, 2, 5, 11]), min_size=1, max_size=4), st.data())
def test_softmax_along_any_axis(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = (np.random.default_rng(0).standard_normal(shape) * 10).astype(np.float32)
    expected = softmax(x, axis)
    np.testing.assert_allclose(evaluate("softmax", x, axis=axis), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(evaluate("log_softmax", x, axis=axis), np.log(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_large_values_stay_finite(op):
    x = np.array([[1e30, 1e30, -1e30], [88, 89, 90]], np.float32)
    expected = softmax(x, 1)
    with np.errstate(divide="ignore"):
        expected = np.log(expected) if op == "log_softmax" else expected
    got = evaluate(op, x)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-5)
    np.testing.assert_allclose(got[0, :2], expected[0, :2], rtol=1e-5)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_spreads_over_its_row_only(op, bad):
    got = evaluate(op, np.array([[1, bad, 2], [1, 2, 3]], np.float32))
    assert np.isnan(got[0, 1])
    assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_floats_are_rounded_once(dtype):
    x = np.random.default_rng(0).standard_normal((3, 100)).astype(dtype)
    np.testing.assert_array_equal(evaluate("softmax", x), softmax(x.astype(np.float32), 1).astype(dtype))


def test_stages_of_softmax():
    tags = [s.tag for s in stages("softmax", TensorType((2, 3), f16), axis=1)]
    assert tags == ["max", "exp", "sum", "softmax"]


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_refuses(op):
    with pytest.raises(VerifyError, match="axis 2 of a tensor of rank 2"):
        one_node(op, TensorType((2, 3), f32), axis=2)
    with pytest.raises(VerifyError, match="x is i32, a float type is needed"):
        one_node(op, TensorType((2, 3), i32))
    with pytest.raises(VerifyError, match="2 operands"):
        one_node(op, TensorType((2, 3), f32), TensorType((2, 3), f32))
