from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, operators_of, ours, output_of

F = np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)
B = F > 0
I = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
U = np.arange(12, dtype=np.uint8).reshape(3, 4)
SCALAR = np.array(0.25, np.float32)

UNARY = (
    "Abs Acos Asin Atan Ceil Cos Cosh Erf Exp Floor HardSigmoid HardSwish LeakyRelu Elu Neg Reciprocal Relu Round Selu "
    "Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Asinh Atanh Celu Mish IsNaN"
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNARY.split())
def test_functions(name):
    compare(name, [F / 4], opset=18)


def test_acosh():
    compare("Acosh", [np.abs(F) + 1], opset=18)


@pytest.mark.parametrize(
    "name, opset, attrs",
    [
        ("LeakyRelu", 7, {"alpha": 0.2}),
        ("Elu", 7, {"alpha": 0.5}),
        ("Selu", 7, {"alpha": 2.0, "gamma": 3.0}),
        ("Celu", 12, {"alpha": 2.0}),
        ("HardSigmoid", 7, {"alpha": 0.3, "beta": 0.1}),
        ("ThresholdedRelu", 10, {"alpha": 0.7}),
        ("Shrink", 9, {"lambd": 0.4, "bias": 0.2}),
        ("Gelu", 20, {}),
        ("Gelu", 20, {"approximate": "tanh"}),
        ("IsInf", 10, {"detect_negative": 0}),
        ("IsInf", 10, {"detect_negative": 0, "detect_positive": 0}),
        ("Swish", 24, {"alpha": 0.5}),
    ],
)
def test_functions_with_attributes(name, opset, attrs):
    x = np.concatenate([F.reshape(-1), np.array([np.inf, -np.inf], np.float32)]) if name == "IsInf" else F
    compare(name, [x], opset=opset, **attrs)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Pow", "Less", "Greater"])
@pytest.mark.parametrize("opset", [7, 13])
def test_arithmetic_broadcasts(name, opset):
    compare(name, [np.abs(F) + 0.5, F[0, :, :1]], opset=opset)


@pytest.mark.parametrize("axis, shape", [(0, (2,)), (1, (3,)), (-2, (3, 4)), (2, (4,)), (None, (3, 4)), (1, ())])
def test_broadcasting_before_opset_7(axis, shape):
    b = np.ones(shape, np.float32)
    start = 3 - len(shape) if axis is None else axis % 3
    wide = b.reshape([1] * start + list(shape) + [1] * (3 - start - len(shape)))
    for name, wanted in (("Add", F + wide), ("Pow", F)):
        out = output_of(name, [F, b], opset=6, broadcast=1, axis=axis)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("name", ["LessOrEqual", "GreaterOrEqual", "Equal"])
def test_comparisons(name):
    compare(name, [I, np.array(1, np.int32)], opset=16)


@pytest.mark.parametrize("name", ["And", "Or", "Xor", "Equal"])
def test_logic(name):
    compare(name, [B, B[0, :, ::-1].copy()], opset=11)


@pytest.mark.parametrize("name", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bit_logic(name):
    compare(name, [I, I[::-1].copy()], opset=18)


def test_not_and_bitwise_not():
    compare("Not", [B], opset=7)
    compare("BitwiseNot", [U], opset=18)


@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("opset", [8, 13])
def test_variadic(name, count, opset):
    compare(name, [F, F[0], SCALAR][:count], opset=opset)


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod(fmod):
    compare("Mod", [I, np.array([3, -3, 5, -5], np.int32)], opset=13, fmod=fmod)


def test_mod_of_floats():
    compare("Mod", [F, np.array(0.4, np.float32)], opset=13, fmod=1)
    np.testing.assert_array_equal(
        output_of("Mod", [F, np.array(0.4, np.float32)], opset=28), np.mod(F, np.array(0.4, np.float32))
    )


@pytest.mark.parametrize("base", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("exponent", [np.float32, np.float64, np.int32, np.int64])
def test_pow_of_mixed_types(base, exponent):
    compare("Pow", [np.array([1, 2, 3, 5]).astype(base), np.array([3, 2, 0, 1]).astype(exponent)], opset=15)


def test_pow_of_half_precision():
    x = np.array([1, 2, 3], np.float16)
    out = output_of("Pow", [x.astype(ml_dtypes.bfloat16), x], opset=15)
    np.testing.assert_array_equal(out.astype(np.float32), [1, 4, 27])
    np.testing.assert_array_equal(output_of("Pow", [x, np.array([1, 2, 3], np.int8)], opset=15), [1, 4, 27])
    whole = output_of("Pow", [np.array([2], np.int32), x], opset=15)
    np.testing.assert_array_equal(whole, [2, 4, 8])


def test_square_is_a_product():
    graph = imported("Pow", [F, np.array(2, np.float32)], opset=13, constants=(1,))
    assert operators_of(graph) == ["mul"]
    widened = imported("Pow", [F, np.full((1, 1, 1, 1), 2, np.float32)], opset=13, constants=(1,))
    assert operators_of(widened) == ["pow"]


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction):
    compare("BitShift", [U, np.array([0, 1, 2, 3], np.uint8)], opset=11, direction=direction)


def test_right_shift_of_signed_numbers_keeps_the_sign():
    x, y = np.array([-8, -8, -8, 8, 8], np.int8), np.array([1, 9, -1, 9, 2], np.int8)
    np.testing.assert_array_equal(output_of("BitShift", [x, y], opset=28, direction="RIGHT"), [-4, -1, -1, 0, 2])
    np.testing.assert_array_equal(output_of("BitShift", [x, y], opset=28, direction="LEFT"), [-16, 0, 0, 0, 32])


def test_prelu_and_where():
    compare("PRelu", [F, np.abs(F[0, :, :1])], opset=9)
    compare("Where", [B[0], F, SCALAR], opset=9)


@pytest.mark.parametrize(
    "opset, operands, attrs",
    [
        (6, [F], {"min": -0.3, "max": 0.4}),
        (7, [F], {}),
        (11, [F, np.array(-0.3, np.float32), np.array(0.4, np.float32)], {}),
        (12, [F, np.array(-0.3, np.float32)], {}),
        (13, [F, None, np.array(0.4, np.float32)], {}),
        (13, [F], {}),
        (13, [F, np.array(0.4, np.float32), np.array(-0.3, np.float32)], {}),
        (12, [I, np.array(-2, np.int32), np.array(3, np.int32)], {}),
    ],
)
def test_clip(opset, operands, attrs):
    compare("Clip", operands, opset=max(opset, 7), **attrs)
    compare("Clip", operands, opset=max(opset, 7), constants=range(1, len(operands)), **attrs)


def test_clip_by_constants_is_one_operator():
    graph = imported("Clip", [F, np.array(0, np.float32), np.array(6, np.float32)], opset=13, constants=(1, 2))
    assert operators_of(graph) == ["clip"]


@pytest.mark.parametrize("to", ["FLOAT", "DOUBLE", "INT32", "UINT8", "BOOL", "FLOAT16"])
@pytest.mark.parametrize("x", [F, I, B])
def test_cast(x, to):
    if x is F and to == "UINT8":
        x = np.abs(x)
    compare("Cast", [x], opset=13, to=getattr(TensorProto, to), rtol=1e-3)


def test_cast_like():
    assert output_of("CastLike", [I, np.array(0, np.float16)], opset=15).dtype == np.float16


def test_bit_cast_of_a_constant():
    out = output_of("BitCast", [np.float32([1.0])], opset=26, constants=(0,), to=TensorProto.INT32)
    np.testing.assert_array_equal(out, [0x3F800000])
    np.testing.assert_array_equal(output_of("BitCast", [I], opset=26, to=TensorProto.INT32), I)


def test_identity_is_no_node():
    assert imported("Identity", [F], opset=13).nodes == ()


@pytest.mark.parametrize(
    "opset, operands", [(7, [F]), (10, [F]), (12, [F, SCALAR]), (13, [F, SCALAR, np.array(False, np.bool_)])]
)
def test_dropout(opset, operands):
    stored = range(1, len(operands))
    compare("Dropout", operands, opset=opset, constants=stored)
    out, mask = ours("Dropout", operands, opset=opset, constants=stored, outputs=2)
    np.testing.assert_array_equal(out, F)
    assert mask.dtype == (np.float32 if opset == 7 else np.bool_)
    assert mask.all()


PARAMETERS = [np.float32([1, 2, 3]), np.float32([0.5, 0, -1]), np.float32([0, 1, 2]), np.float32([1, 0.5, 2])]


def test_slopes_before_opset_7_are_one_a_channel():
    slope = np.float32([0.1, 0.2, 0.3])
    wanted = np.where(F < 0, F * slope[:, None], F)
    np.testing.assert_array_equal(output_of("PRelu", [F, slope], opset=6), wanted)
    np.testing.assert_array_equal(output_of("PRelu", [F, slope[:1]], opset=6), np.where(F < 0, F * slope[0], F))


def test_what_is_marked_as_test_before_opset_7():
    np.testing.assert_array_equal(output_of("Dropout", [F], opset=6, is_test=1), F)
    out = output_of("BatchNormalization", [F, *PARAMETERS], opset=6, is_test=1)
    np.testing.assert_array_equal(out, output_of("BatchNormalization", [F, *PARAMETERS], opset=7))


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization(opset):
    compare("BatchNormalization", [F, *PARAMETERS], opset=opset, epsilon=1e-3)


def test_batch_normalization_of_other_parameter_types():
    out = output_of("BatchNormalization", [F.astype(np.float16), *PARAMETERS], opset=15)
    wanted = output_of("BatchNormalization", [F, *PARAMETERS], opset=15)
    np.testing.assert_allclose(out, wanted, rtol=1e-2, atol=1e-2)
    assert out.dtype == np.float16


def test_batch_normalization_of_a_vector():
    one = [np.float32([v]) for v in (2, 1, 0, 1)]
    out = output_of("BatchNormalization", [F[0, 0], *one], opset=9, epsilon=0.0)
    np.testing.assert_allclose(out, F[0, 0] * 2 + 1, rtol=1e-6)


def test_batch_normalization_in_training():
    compare("BatchNormalization", [F, *PARAMETERS], opset=15, outputs=3, training_mode=1, momentum=0.8)


def test_mean_variance_normalization():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    compare("MeanVarianceNormalization", [x], opset=13, rtol=1e-4)
    compare("MeanVarianceNormalization", [x], opset=13, axes=[1, -1], rtol=1e-4)


@pytest.mark.parametrize(
    "name, operands, kwargs, error, message",
    [
        ("BitShift", [U, U], {"opset": 11, "direction": "UP"}, ImportModelError, "direction 'UP', LEFT or RIGHT"),
        ("Clip", [F, F[0, 0]], {"opset": 13}, ImportModelError, "a bound has 4 elements, not one"),
        ("Cast", [F], {"opset": 19, "to": TensorProto.FLOAT8E5M2}, UnsupportedError, "float8e5m2 is not supported"),
        ("Cast", [F], {"opset": 13, "to": TensorProto.STRING}, UnsupportedError, "string is not supported"),
        ("Cast", [F], {"opset": 13, "to": 999}, ImportModelError, "no valid element type"),
        (
            "BitCast",
            [F],
            {"opset": 26, "to": TensorProto.INT32},
            UnsupportedError,
            "the operand depends on the model's",
        ),
        ("BitCast", [F], {"opset": 26, "to": TensorProto.INT8}, ImportModelError, "f32 and i8 differ in width"),
        (
            "Dropout",
            [F, SCALAR, np.array(True, np.bool_)],
            {"opset": 13},
            UnsupportedError,
            "training_mode depends on the model's",
        ),
        (
            "BatchNormalization",
            [F, *PARAMETERS],
            {"opset": 9, "outputs": 5},
            UnsupportedError,
            "it is in training mode",
        ),
        ("BatchNormalization", [F, *PARAMETERS], {"opset": 6}, UnsupportedError, "it is in training mode"),
        ("Add", [F, F[0]], {"opset": 6, "axis": 2}, ImportModelError, r"f32\[3,4\] does not lie along axis 2 of"),
        ("BatchNormalization", [F, *PARAMETERS], {"opset": 7, "spatial": 0}, UnsupportedError, "spatial=0"),
        ("Add", [F, F[0].T.copy()], {"opset": 13}, ImportModelError, "do not broadcast"),
        ("Celu", [F], {"opset": 12, "alpha": 0.0}, ImportModelError, "alpha is 0"),
        (
            "MeanVarianceNormalization",
            [F],
            {"opset": 13, "axes": [3]},
            ImportModelError,
            "axis 3 of a tensor of rank 3",
        ),
    ],
)
def test_refusals(name, operands, kwargs, error, message):
    with pytest.raises(error, match=message):
        output_of(name, operands, **kwargs)
