from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, operators_of, ours, output_of

F = np.random.default_rng(5).normal(size=(2, 3, 4)).astype(np.float32)
I = np.random.default_rng(6).integers(0, 9, (2, 3, 4))

PLAIN = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"]
COMPOSED = ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"]


def vector(*values, dtype=np.int64):
    return np.array(values, dtype)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [1], [0, -1]])
@pytest.mark.parametrize("name", PLAIN + COMPOSED)
def test_axes_as_attribute(name, axes, keepdims):
    compare(name, [np.abs(F)], opset=11, axes=axes, keepdims=keepdims)


@pytest.mark.parametrize("axes", [None, [], [1], [0, -1]])
@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("name", PLAIN + COMPOSED)
def test_axes_as_input(name, axes, noop):
    operands = [np.abs(F)] + ([] if axes is None else [vector(*axes)])
    stored = range(1, len(operands))
    if noop and not axes and name in COMPOSED:
        # composed reductions still do their other steps; onnxruntime takes that for the identity
        x = np.abs(F)
        wanted = {"ReduceSumSquare": x * x, "ReduceLogSum": np.log(x)}.get(name, x)
        out = output_of(name, operands, opset=18, constants=stored, noop_with_empty_axes=1)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)
    else:
        compare(name, operands, opset=18, constants=stored, noop_with_empty_axes=noop)


@pytest.mark.parametrize("name", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers(name, dtype):
    compare(name, [I.astype(dtype)], opset=13, **({} if name == "ReduceSum" else {"axes": [1]}))


def test_half_precision_squares_do_not_overflow():
    x = np.full((1, 4), 200, np.float16)
    np.testing.assert_array_equal(output_of("ReduceL2", [x], opset=13), [[400]])
    assert output_of("ReduceLogSumExp", [x], opset=13, keepdims=0) == np.float16(200 + np.log(4))


def test_log_sum_exp_of_extremes():
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    out = output_of("ReduceLogSumExp", [x], opset=13, axes=[1], keepdims=0)
    np.testing.assert_allclose(out, [1000 + np.log(2), -np.inf, np.inf])


def test_scalars():
    for name in PLAIN + COMPOSED:
        compare(name, [np.array(2.5, np.float32)], opset=13)


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("attrs", [{}, {"axis": -1, "keepdims": 0}, {"axis": 1, "select_last_index": 1}])
def test_positions(name, attrs):
    compare(name, [I.astype(np.float32)], opset=13, **attrs)


@pytest.mark.parametrize("attrs", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumsum(axis, attrs):
    compare("CumSum", [F, np.array(axis)], opset=14, constants=[1], **attrs)


def test_cumprod():
    out = output_of("CumProd", [I, np.array(1)], opset=26, constants=[1])
    np.testing.assert_array_equal(out, np.cumprod(I, 1))


@pytest.mark.parametrize("opset, operands, attrs", [
    (7, [F], {"k": 2, "axis": 1}),
    (10, [F, vector(2)], {"axis": 1}),
    (11, [F, vector(3)], {}),
    (11, [F, vector(3)], {"largest": 0, "sorted": 1}),
])  # fmt: skip
def test_top_k(opset, operands, attrs):
    compare("TopK", operands, opset=opset, constants=range(1, len(operands)), outputs=2, **attrs)


def test_top_k_unsorted_is_one_of_the_right_answers():
    values, positions = ours("TopK", [F, vector(2)], opset=11, constants=[1], outputs=2, sorted=0)
    np.testing.assert_array_equal(np.sort(values, -1), np.sort(F, -1)[..., -2:])
    np.testing.assert_array_equal(np.take_along_axis(F, positions, -1), values)


@pytest.mark.parametrize("opset, attrs", [(7, {}), (11, {"axis": 2}), (11, {"axis": 0}), (13, {}), (13, {"axis": 0})])
def test_hardmax(opset, attrs):
    compare("Hardmax", [I.astype(np.float32)], opset=opset, **attrs)


def test_hardmax_of_nothing():
    assert output_of("Hardmax", [np.zeros((0, 3), np.float32)], opset=13).shape == (0, 3)


def test_reduction_over_nothing_is_no_node():
    assert operators_of(imported("ReduceSum", [F], opset=13, noop_with_empty_axes=1)) == []


@pytest.mark.parametrize(
    "name, operands, kwargs, error, message",
    [
        ("ReduceSum", [F], {"opset": 11, "axes": [3]}, ImportModelError, "axis 3 of a tensor of rank 3"),
        ("ReduceSum", [F], {"opset": 11, "axes": [0, -3]}, ImportModelError, r"axes \[0, 0\] repeat"),
        ("ReduceSum", [F, vector(0)], {"opset": 13}, UnsupportedError, "axes depends on the model's inputs"),
        ("ReduceSum", [F, I[0]], {"opset": 13, "constants": [1]}, ImportModelError, "axes has rank 2, a vector"),
        ("ArgMax", [F[:, :0]], {"opset": 13, "axis": 1}, ImportModelError, "argmax: axis 1 of .* is empty"),
        ("CumSum", [F, vector(0, 1)], {"opset": 14, "constants": [1]}, ImportModelError, "axis has 2 elements, one"),
        (
            "TopK",
            [F, vector(5)],
            {"opset": 11, "constants": [1], "outputs": 2},
            ImportModelError,
            "K is 5, axis 2 has 4",
        ),
    ],
)
def test_refusals(name, operands, kwargs, error, message):
    with pytest.raises(error, match=message):
        ours(name, operands, **kwargs)
