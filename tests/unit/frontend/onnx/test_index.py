from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, operators_of, ours, output_of

RNG = np.random.default_rng(11)
F = RNG.normal(size=(3, 4, 5)).astype(np.float32)


def vector(*values, dtype=np.int64):
    return np.array(values, dtype)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [vector(0, -1, 2), np.array(1), np.array([[0, 1], [-3, 2]]), vector(1, 2)])
@pytest.mark.parametrize("stored", [(), (1,)])
def test_gather(axis, indices, stored):
    compare("Gather", [F, indices], opset=13, constants=stored, axis=axis)


@pytest.mark.parametrize(
    "indices, operators",
    [
        (np.array(-1), ["slice", "reshape"]),
        (vector(1, 2), ["slice"]),
        (vector(0, 1, 2), []),
        (vector(2, 1), ["gather"]),
    ],
)
def test_gather_of_neighbours_is_a_slice(indices, operators):
    assert operators_of(imported("Gather", [F, indices], opset=13, constants=[1])) == operators


def test_gather_of_an_empty_list():
    assert output_of("Gather", [F, vector()], opset=13, constants=[1]).shape == (0, 4, 5)


@pytest.mark.parametrize("axis", [0, -1])
def test_gather_elements(axis):
    compare("GatherElements", [F, RNG.integers(-3, 3, (3, 4, 5))], opset=13, axis=axis)


def test_gather_nd():
    compare("GatherND", [F, np.array([[0, 1], [2, -1]])], opset=13)
    compare("GatherND", [F, np.array([[1], [0], [3]])], opset=13, batch_dims=1)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(axis, reduction):
    indices = np.array([[[0, 2]], [[1, -1]]])
    updates = RNG.normal(size=(2, 1, 2)).astype(np.float32)
    compare("ScatterElements", [F, indices, updates], opset=18, axis=axis, reduction=reduction)


def test_scatter_of_old():
    compare("Scatter", [F, np.array([[[1]]]), np.ones((1, 1, 1), np.float32)], opset=9, axis=1)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction):
    indices = np.array([[0, 1], [2, 3]])
    compare("ScatterND", [F, indices, RNG.normal(size=(2, 5)).astype(np.float32)], opset=18, reduction=reduction)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_one_hot(axis, dtype):
    indices, values = np.array([[0, 2], [-1, 7]], dtype), np.array([2, 5], np.float32)
    compare("OneHot", [indices, np.array(4, dtype), values], opset=11, constants=[1], axis=axis)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis):
    compare("Compress", [F, np.array([True, False, True])], opset=11, constants=[1], axis=axis)


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("stored", [(), (1,)])
def test_reverse_sequence(time, stored):
    lengths = vector(1, 3, 2, 2) if time == 0 else vector(4, 1, 2)
    compare("ReverseSequence", [F, lengths], opset=10, constants=stored, time_axis=time, batch_axis=1 - time)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, 1])
def test_tensor_scatter(mode, axis):
    cache, update = np.zeros((2, 4, 5, 3), np.float32), RNG.normal(size=(2, 4, 5, 3)).astype(np.float32)
    update = np.take(update, range(2), axis)
    extent = cache.shape[axis]
    begins = vector(1, 2) if mode == "linear" else vector(extent - 1, 2)
    wanted = cache.copy()
    for b in range(2):
        for k in range(2):
            target = np.moveaxis(wanted[b], axis if axis < 0 else axis - 1, 0)
            target[(begins[b] + k) % extent] = np.moveaxis(update[b], axis if axis < 0 else axis - 1, 0)[k]
    out = output_of("TensorScatter", [cache, update, begins], opset=24, mode=mode, axis=axis)
    np.testing.assert_array_equal(out, wanted)
    prefill = output_of("TensorScatter", [cache, update], opset=24, mode=mode, axis=axis)
    np.testing.assert_array_equal(np.take(prefill, range(2), axis), update)


@pytest.mark.parametrize("x", [np.array([[1, 0], [2, 3]]), np.zeros((2, 0), np.float32), np.array([True, False])])
def test_non_zero_of_a_constant(x):
    compare("NonZero", [x], opset=13, constants=[0])


def test_a_scalar_has_no_axis_to_be_found_along():
    assert output_of("NonZero", [np.array(5)], opset=13, constants=[0]).shape == (0, 1)
    assert output_of("NonZero", [np.array(0)], opset=13, constants=[0]).shape == (0, 0)


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique_of_a_constant(axis, ordered):
    x = np.array([[3, 1, 3, 0], [2, 1, 2, 0], [3, 1, 3, 0]], np.float32)
    compare("Unique", [x], opset=11, constants=[0], outputs=4, axis=axis, sorted=ordered)


@pytest.mark.parametrize(
    "name, operands, kwargs, error, message",
    [
        ("Gather", [F, vector(3)], {"constants": [1]}, ImportModelError, "index 3 of an axis of extent 3"),
        ("Gather", [F, vector(-4, 0)], {"constants": [1]}, ImportModelError, "index -4 of an axis of extent 3"),
        ("Gather", [F, vector(0)], {"axis": 3}, ImportModelError, "axis 3 of a tensor of rank 3"),
        ("GatherElements", [F, np.full((1, 1, 1), 9)], {"constants": [1]}, ImportModelError, "index 9 of an axis of"),
        ("GatherND", [F, np.array([[0, 4]])], {"constants": [1]}, ImportModelError, "index 4 of an axis of extent 4"),
        ("GatherND", [F, np.array(1)], {}, ImportModelError, "gather_nd: indices are a scalar"),
        (
            "ScatterND",
            [F, np.array([[3]]), F[:1]],
            {"constants": [1]},
            ImportModelError,
            "index 3 of an axis of extent 3",
        ),
        ("ScatterElements", [F, vector(0), F], {}, ImportModelError, "indices .* and updates"),
        ("OneHot", [vector(1), vector(3), vector(0, 1)], {}, UnsupportedError, "depth depends on the model's inputs"),
        ("Compress", [F, np.array([True])], {}, UnsupportedError, "the condition depends on the model's inputs"),
        (
            "Compress",
            [F, np.array([False] * 3 + [True])],
            {"constants": [1], "axis": 0},
            ImportModelError,
            "index 3 of an axis of extent 3",
        ),
        (
            "ReverseSequence",
            [F, vector(1, 1, 1)],
            {"time_axis": 0, "batch_axis": 2},
            ImportModelError,
            "time_axis 0 and batch_axis 2",
        ),
        ("ReverseSequence", [F, vector(1, 1)], {}, ImportModelError, r"lengths are i64\[2\], \[4\] is needed"),
    ],
)
def test_refusals(name, operands, kwargs, error, message):
    with pytest.raises(error, match=message):
        ours(name, operands, **{"opset": 18, **kwargs})
