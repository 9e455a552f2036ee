from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, operators_of, ours, output_of

F = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def vector(*values, dtype=np.int64):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    "attrs, wanted",
    [
        ({"value": helper.make_tensor("v", TensorProto.INT32, [2], [3, 4])}, np.int32([3, 4])),
        ({"value_float": 1.5}, np.array(1.5, np.float32)),
        ({"value_floats": [1.5, 2.0]}, np.float32([1.5, 2])),
        ({"value_int": 7}, np.array(7, np.int64)),
        ({"value_ints": [7, 8]}, np.int64([7, 8])),
    ],
)
def test_constant(attrs, wanted):
    out = output_of("Constant", [], opset=13, **attrs)
    np.testing.assert_array_equal(out, wanted)
    assert out.dtype == wanted.dtype


@pytest.mark.parametrize("attrs", [{}, {"start": 1}, {"end": -1}, {"start": -9, "end": 99}, {"start": 2, "end": 1}])
def test_shape(attrs):
    compare("Shape", [F], opset=15, **attrs)
    assert operators_of(imported("Shape", [F], opset=15, **attrs)) == []


def test_size():
    compare("Size", [F], opset=13)


def test_constant_of_shape():
    value = helper.make_tensor("value", TensorProto.INT8, [1], [3])
    compare("ConstantOfShape", [vector(2, 3)], opset=9, constants=[0], value=value)
    compare("ConstantOfShape", [vector(2, 3)], opset=9, constants=[0])
    assert output_of("ConstantOfShape", [vector()], opset=9, constants=[0]).shape == ()


def test_a_large_constant_of_shape_is_computed_not_stored():
    graph = imported("ConstantOfShape", [vector(1 << 24)], opset=9, constants=[0])
    assert operators_of(graph) == ["broadcast_to"]


@pytest.mark.parametrize("values", [(0, 5, 1), (5, 0, -2), (0, 5, -1), (3, 3, 1), (0, 1, 0.3), (1.5, -2, -0.5)])
def test_range(values):
    dtype = np.int64 if all(isinstance(v, int) for v in values) else np.float32
    compare("Range", [np.array(v, dtype) for v in values], opset=11, constants=[0, 1, 2])


@pytest.mark.parametrize("k", [-5, -1, 0, 2, 9])
def test_eye_like(k):
    compare("EyeLike", [F[0]], opset=9, k=k, dtype=TensorProto.INT32)
    compare("EyeLike", [F[0]], opset=9, k=k)


@pytest.mark.parametrize("like", [False, True])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_random_numbers_follow_the_seed(dtype, like):
    def draw(name, seed, **attrs):
        extra = {} if like else {"shape": [200, 300]}
        operands = [np.zeros((200, 300), np.int32)] if like else []
        full = f"{name}Like" if like else name
        return output_of(full, operands, opset=13, seed=seed, dtype=dtype, **attrs, **extra)

    normal = draw("RandomNormal", 1.0, mean=3.0, scale=2.0).astype(np.float64)
    np.testing.assert_allclose([normal.mean(), normal.std()], [3, 2], atol=0.05)
    uniform = draw("RandomUniform", 1.0, low=-1.0, high=2.0).astype(np.float64)
    np.testing.assert_allclose([uniform.min(), uniform.mean(), uniform.max()], [-1, 0.5, 2], atol=0.05)
    np.testing.assert_array_equal(draw("RandomNormal", 1.0), draw("RandomNormal", 1.0))
    assert (draw("RandomNormal", 1.0) != draw("RandomNormal", 1.5)).any()


HUGE = vector(1 << 20, 1 << 20)


@pytest.mark.parametrize(
    "name, operands, kwargs, error, message",
    [
        ("EyeLike", [F], {"opset": 9}, UnsupportedError, "the input has rank 3, up to 2"),
        ("Range", [np.array(0), np.array(5), np.array(0)], {"opset": 11}, ImportModelError, "a range from 0 to 5 by 0"),
        ("Range", [np.array(0), vector(5, 6), np.array(1)], {"opset": 11}, ImportModelError, "limit has 2 elements"),
        (
            "Range",
            [np.array(0.0), np.array(np.inf), np.array(1.0)],
            {"opset": 11},
            ImportModelError,
            "a range from 0.0 to inf",
        ),
        ("Range", [np.array(0), np.array(1 << 40), np.array(1)], {"opset": 11}, ImportModelError, "'constant_bytes'"),
        ("ConstantOfShape", [HUGE], {"opset": 9}, ImportModelError, "the limit 'tensor_bytes'"),
        ("ConstantOfShape", [vector(-1)], {"opset": 9}, ImportModelError, r"1 values for the shape \[-1\]"),
        ("Constant", [], {"opset": 13, "value_string": "x"}, UnsupportedError, "strings are not supported"),
        ("Constant", [], {"opset": 13}, ImportModelError, "a constant without a value"),
        ("RandomNormal", [], {"opset": 13, "shape": [1 << 40]}, ImportModelError, "more than 4294967296 elements"),
        ("RandomUniformLike", [vector(1)], {"opset": 13}, ImportModelError, "random numbers of type i64"),
    ],
)
def test_refusals(name, operands, kwargs, error, message):
    with pytest.raises(error, match=message):
        ours(name, operands, constants=[k for k, a in enumerate(operands) if a.dtype != np.float32], **kwargs)
