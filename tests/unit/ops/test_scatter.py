from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from tests.unit.ops.oracle import evaluate

COMBINE = {
    "none": lambda old, new: new, "add": lambda old, new: old + new, "mul": lambda old, new: old * new,
    "max": max, "min": min,
}  # fmt: skip


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements(rng, axis, reduction):
    data, updates = rng.normal(size=(3, 4)), rng.normal(size=(2, 3))
    indices = rng.integers(-3, 3, (2, 3))
    wanted = data.copy()
    for i, j in np.ndindex(2, 3):
        at = (indices[i, j], j) if axis == 0 else (i, indices[i, j])
        wanted[at] = COMBINE[reduction](wanted[at], updates[i, j])
    out = evaluate("scatter_elements", data, indices, updates, axis=axis, reduction=reduction)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("reduction", COMBINE)
def test_scatter_nd(rng, reduction):
    data, updates = rng.normal(size=(3, 4, 2)), rng.normal(size=(5, 2))
    indices = np.array([[0, 1], [-1, 3], [0, 1], [2, -4], [1, 0]])
    wanted = data.copy()
    for row, (i, j) in enumerate(indices):
        for k in range(2):
            wanted[i, j, k] = COMBINE[reduction](wanted[i, j, k], updates[row, k])
    out = evaluate("scatter_nd", data, indices, updates, reduction=reduction)
    np.testing.assert_array_equal(out, wanted)


def test_scatter_stays_inside_the_tensor():
    data = np.zeros(3, np.float32)
    out = evaluate("scatter_elements", data, np.array([7, -9]), np.array([1, 2], np.float32))
    np.testing.assert_array_equal(out, [2, 0, 1])


def test_scatter_of_nothing_copies(rng):
    data = rng.normal(size=(2, 3))
    np.testing.assert_array_equal(evaluate("scatter_elements", data, np.zeros((0, 3), int), np.zeros((0, 3))), data)
    np.testing.assert_array_equal(evaluate("scatter_nd", data, np.zeros((0, 1), int), np.zeros((0, 3))), data)


@pytest.mark.parametrize("name, fold", [("cumsum", np.add), ("cumprod", np.multiply)])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape, axis", [((5,), 0), ((3, 4), 0), ((2, 3, 4), 1), ((0, 3), 1), ((1,), 0)])
def test_running_folds(rng, shape, axis, exclusive, reverse, name, fold):
    x = rng.integers(-5, 5, shape)
    y = np.flip(x, axis) if reverse else x
    total = fold.accumulate(y, axis)
    if exclusive:
        first = np.full_like(np.take(y, [0], axis), fold.identity)
        total = np.concatenate([first, np.delete(total, -1, axis)], axis)
    wanted = np.flip(total, axis) if reverse else total
    np.testing.assert_array_equal(evaluate(name, x, axis=axis, exclusive=exclusive, reverse=reverse), wanted)


def test_half_cumsum_keeps_a_wide_total():
    x = np.full(3000, 1, np.float16)
    assert evaluate("cumsum", x, axis=0)[-1] == 3000


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "shape, axis, k", [((7,), 0, 3), ((3, 4), 1, 4), ((4, 3), 0, 1), ((2, 5, 3), 1, 2), ((3, 2), 0, 0)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_top_k(rng, shape, axis, k, largest, dtype):
    x = rng.integers(0, 5, shape).astype(dtype)
    order = np.argsort(-x.astype(int) if largest else x.astype(int), axis, kind="stable")
    wanted = np.take(order, range(k), axis)
    values, positions = evaluate("top_k", x, k=k, axis=axis, largest=largest)
    np.testing.assert_array_equal(positions, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis))


def test_top_k_takes_nan_for_the_greatest():
    x = np.array([1, np.nan, np.inf, np.nan, -np.inf], np.float32)
    assert evaluate("top_k", x, k=5, axis=0)[1].tolist() == [1, 3, 2, 0, 4]
    assert evaluate("top_k", x, k=5, axis=0, largest=False)[1].tolist() == [4, 0, 2, 1, 3]


X, I = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64)


@pytest.mark.parametrize(
    "name, arrays, attrs, message",
    [
        ("scatter_elements", [X, I, I], {}, "scatter_elements: operands are f32 and i64"),
        ("scatter_elements", [X, I, X[:1]], {}, "scatter_elements: indices .* and updates"),
        ("scatter_elements", [X[:, :2], I, X], {}, "scatter_elements: indices i64.2,3. do not lie within"),
        ("scatter_elements", [X[:0], I, X], {}, "scatter_elements: indexes an empty axis"),
        ("scatter_elements", [X, I, X], {"reduction": "avg"}, "scatter_elements: reduction 'avg', known: none, add"),
        ("scatter_elements", [X > 0, I, X > 0], {"reduction": "mul"}, "scatter_elements: data is bool"),
        ("scatter_nd", [X, I[:, :1], X[:1]], {}, r"scatter_nd: updates .*, their shape must be \[2, 3\]"),
        ("cumsum", [X > 0], {"axis": 0}, "cumsum: x is bool"),
        ("cumsum", [X], {"axis": 2}, "cumsum: axis 2"),
        ("top_k", [X], {"axis": 1, "k": 4}, "top_k: k=4 of an axis of extent 3"),
    ],
)
def test_mistyped_calls_are_refused(name, arrays, attrs, message):
    with pytest.raises(VerifyError, match=message):
        evaluate(name, *arrays, **attrs)
