from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from tests.unit.ops.oracle import evaluate


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_gather(rng, axis, shape, dtype):
    data = rng.normal(size=(3, 4, 5)).astype(np.float32)
    indices = rng.integers(0, 3, shape).astype(dtype)
    np.testing.assert_array_equal(evaluate("gather", data, indices, axis=axis), np.take(data, indices, axis))


def test_gather_counts_negative_indices_from_the_end():
    data = np.arange(5)
    np.testing.assert_array_equal(evaluate("gather", data, np.array([-1, -5, 2])), [4, 0, 2])


def test_gather_clamps_what_is_out_of_range():
    data = np.arange(5)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    np.testing.assert_array_equal(evaluate("gather", data, np.array([5, -6, high, low])), [4, 0, 4, 0])


def test_gather_of_an_empty_axis_when_nothing_is_read():
    assert evaluate("gather", np.zeros((0, 3)), np.zeros(0, np.int64)).shape == (0, 3)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_elements(rng, axis):
    data = rng.normal(size=(3, 4))
    indices = rng.integers(-3, 3, (3, 4) if axis else (2, 3))
    wanted = np.take_along_axis(data[: len(indices)] if axis else data[:, : indices.shape[1]], indices, axis)
    np.testing.assert_array_equal(evaluate("gather_elements", data, indices, axis=axis), wanted)


def test_gather_nd(rng):
    data = rng.normal(size=(2, 3, 4))
    indices = np.array([[0, 1], [-1, 2]])
    np.testing.assert_array_equal(evaluate("gather_nd", data, indices), data[indices[:, 0], indices[:, 1]])
    batched = np.array([[[1], [0]], [[2], [2]]])
    wanted = np.stack([data[0][[1, 0]], data[1][[2, 2]]])
    np.testing.assert_array_equal(evaluate("gather_nd", data, batched, batch_dims=1), wanted)


def test_gather_nd_of_no_coordinates_gives_the_whole(rng):
    data = rng.normal(size=(2, 3))
    np.testing.assert_array_equal(evaluate("gather_nd", data, np.zeros((4, 0), np.int64)), np.stack([data] * 4))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot(axis):
    indices = np.array([[0, 2, -1], [3, 4, -5]])
    out = evaluate("one_hot", indices, np.array([2.0, 5.0], np.float32), depth=4, axis=axis)
    classes = np.where((indices < 4) & (indices >= -4), indices % 4, -1)
    wanted = np.where(np.arange(4) == classes[..., None], 5.0, 2.0)
    np.testing.assert_array_equal(out, np.moveaxis(wanted, -1, axis))


def test_one_hot_of_small_and_unsigned_indices():
    values = np.array([0, 1], np.int8)
    out = evaluate("one_hot", np.array([200, 100], np.uint8), values, depth=150, axis=1)
    assert out.sum() == 1
    assert out[1, 100] == 1
    assert evaluate("one_hot", np.int8(-1), values, depth=200, axis=0)[199] == 1


X, I = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64)


@pytest.mark.parametrize(
    "name, arrays, attrs, message",
    [
        ("gather", [X, X], {}, "gather: indices is f32, it may be: signed, unsigned"),
        ("gather", [X, I], {"axis": 2}, "gather: axis 2 of a tensor of rank 2"),
        ("gather", [X[:0], I], {}, "gather: indexes an empty axis of"),
        ("gather_elements", [X, I[0]], {}, "gather_elements: indices i64.3. do not lie within"),
        ("gather_elements", [X[:, :2], I], {"axis": 0}, "gather_elements: indices i64.2,3. do not lie within"),
        ("gather_nd", [X, np.int64(0)], {}, "gather_nd: indices are a scalar"),
        ("gather_nd", [X, I], {}, "gather_nd: 0 batch axes, f32.2,3. at i64.2,3."),
        ("gather_nd", [X, I[:1, :1]], {"batch_dims": 1}, "gather_nd: batch axes of .* differ"),
        ("one_hot", [I, X], {"depth": 3, "axis": 0}, "one_hot: values are f32.2,3., .2. is needed"),
        ("one_hot", [I, X[0, :2]], {"depth": 3, "axis": 3}, "one_hot: axis 3 of a tensor of rank 3"),
        ("one_hot", [I, X[0, :2]], {"depth": -1, "axis": 0}, "one_hot: depth -1"),
    ],
)
def test_mistyped_calls_are_refused(name, arrays, attrs, message):
    with pytest.raises(VerifyError, match=message):
        evaluate(name, *arrays, **attrs)
