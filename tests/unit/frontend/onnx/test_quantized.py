from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from mlc.errors import ImportModelError, UnsupportedError
from mlc.rewrite.integers import use_integers
from tests.unit.frontend.onnx.models import model, outputs_of
from tests.unit.frontend.onnx.single import compare, imported, normal, operators_of, output_of

RNG = np.random.default_rng(0)


def q8(*shape, dtype=np.uint8):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape, dtype)


def weights_of(*shape, dtype=np.uint8):
    """Weights of 7 bits: without VNNI, onnxruntime adds pairs of 8-bit products in 16 bits, which saturates."""
    return (q8(*shape, dtype=dtype).astype(np.int32) // 2).astype(dtype)


def f(*values):
    return np.array(values if len(values) != 1 else values[0], np.float32)


def z(*values, dtype=np.uint8):
    return np.array(values if len(values) != 1 else values[0], dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_rounds_halves_to_even_and_saturates(dtype):
    x = f(-1e9, -3.5, -0.5, 0.0, 0.5, 1.5, 2.5, 1e9)
    compare("QuantizeLinear", [x, f(1.0), z(3, dtype=dtype)], constants=[1, 2])
    compare("QuantizeLinear", [x, f(0.5), z(0, dtype=dtype)])


def test_quantize_by_axis_by_block_and_without_zero_point():
    x = normal((2, 3, 4))
    compare("QuantizeLinear", [x, f(0.1, 0.2, 0.3), z(1, 2, 3)], axis=1)
    compare("QuantizeLinear", [x, f(0.1, 0.2, 0.3), z(1, 2, 3)], axis=-2, constants=[1, 2])
    compare("QuantizeLinear", [x, f(0.1)])
    compare("QuantizeLinear", [x, f(0.1)], output_dtype=TensorProto.INT8)
    scales = RNG.uniform(0.1, 1, (2, 3, 2)).astype(np.float32)
    compare("QuantizeLinear", [x, scales, q8(2, 3, 2)], axis=2, block_size=2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16])
def test_dequantize(dtype):
    x = q8(2, 3, 4, dtype=dtype)
    compare("DequantizeLinear", [x, f(0.1), z(5, dtype=dtype)], constants=[1, 2])
    compare("DequantizeLinear", [x, f(0.1, 0.2, 0.3), q8(3, dtype=dtype)], axis=1)


def test_dequantize_of_biases_and_blocks():
    compare("DequantizeLinear", [RNG.integers(-(2**20), 2**20, (4,), np.int32), f(0.001)])
    compare("DequantizeLinear", [q8(3, 4, dtype=np.int8), RNG.uniform(0, 1, (2, 4)).astype("f")], axis=0, block_size=2)


def test_a_zero_point_of_zero_costs_nothing():
    graph = imported("DequantizeLinear", [q8(4), f(0.5), z(0)], constants=[1, 2])
    assert operators_of(use_integers(graph)) == ["cast", "mul"]


@pytest.mark.parametrize("shape", [(3,), (1, 1), (2, 3)])
def test_scales_must_fit(shape):
    with pytest.raises(ImportModelError, match="for axis 1 of"):
        imported("QuantizeLinear", [normal((2, 4)), np.ones(shape, np.float32)], axis=1)


def test_blocks_must_fit():
    for block, message in ((3, "for blocks of 3"), (-1, "for blocks of -1")):
        with pytest.raises(ImportModelError, match=message):
            imported("QuantizeLinear", [normal((2, 4)), np.ones((2, 3), "f")], axis=1, block_size=block)


def test_types_that_mlc_lacks_are_named():
    with pytest.raises(UnsupportedError, match="attribute 'output_dtype': element type float8e4m3fn is not supported"):
        imported("QuantizeLinear", [normal((2,)), f(0.1)], output_dtype=TensorProto.FLOAT8E4M3FN)


@pytest.mark.parametrize("a, b", [((2, 4), (4, 3)), ((2, 2, 4), (4, 3)), ((4,), (4, 3)), ((2, 1, 2, 4), (3, 4, 2))])
@pytest.mark.parametrize("weights", [np.uint8, np.int8])
def test_matmul_integer(a, b, weights):
    operands = [q8(*a), weights_of(*b, dtype=weights)]
    compare("MatMulInteger", operands)
    compare("MatMulInteger", [*operands, z(7), z(3, dtype=weights)], constants=[2, 3])


def test_sums_of_8_bit_products_do_not_saturate():
    a, b = np.full((1, 4), 255, np.uint8), np.full((4, 1), -128, np.int8)
    assert output_of("MatMulInteger", [a, b]).item() == 4 * 255 * -128


def test_matmul_integer_with_zero_points_by_column_and_row():
    a, b = q8(2, 4), q8(4, 3)
    compare("MatMulInteger", [a, b, z(7), q8(3)])
    rows = output_of("MatMulInteger", [a, b, z(1, 2)])
    np.testing.assert_array_equal(rows, (a.astype(int) - [[1], [2]]) @ b)


def test_qlinear_matmul():
    scales = [f(0.02), z(120)], [f(0.03), z(110)], [f(0.5), z(100)]
    (sa, za), (sb, zb), (sy, zy) = scales
    compare("QLinearMatMul", [q8(5, 8), sa, za, q8(8, 3), sb, zb, sy, zy], constants=[1, 2, 3, 4, 5, 6, 7], atol=1)
    columns = [f(0.01, 0.02, 0.03), z(1, 2, 3)]
    compare("QLinearMatMul", [q8(2, 5, 8), sa, za, q8(8, 3), *columns, sy, zy], atol=1)


@pytest.mark.parametrize("zero", [0, 9])
def test_conv_integer_pads_with_the_zero_point(zero):
    compare("ConvInteger", [q8(1, 2, 5, 5), q8(3, 2, 3, 3), z(zero)], pads=[1, 1, 1, 1], constants=[2])
    compare("ConvInteger", [q8(1, 4, 6, 6), q8(4, 2, 3, 3), z(zero), z(3)], group=2, strides=[2, 2])


@pytest.mark.parametrize("weights", [np.uint8, np.int8])
def test_qlinear_conv(weights):
    x, w = q8(1, 3, 7, 7), weights_of(4, 3, 3, 3, dtype=weights)
    bias = RNG.integers(-1000, 1000, (4,), np.int32)
    one = [x, f(0.02), z(128), w, f(0.01), z(0, dtype=weights), f(0.3), z(120)]
    compare("QLinearConv", [*one, bias], pads=[1, 1, 1, 1], constants=[1, 2, 4, 5, 6, 7], atol=1)
    each = [x, f(0.02), z(128), w, f(0.01, 0.02, 0.03, 0.04), np.zeros(4, weights), f(0.3), z(120)]
    compare("QLinearConv", each, strides=[2, 2], atol=1)


def test_dynamic_quantization_is_expanded_from_its_definition():
    compare("DynamicQuantizeLinear", [normal((3, 4))], outputs=3, atol=1e-6)


PAIR = [q8(2, 3, 4, 4), f(0.05), z(100)]


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_quantised_arithmetic(op):
    other = [q8(3, 1, 1), f(0.03), z(50)]
    compare(op, [*PAIR, *other, f(0.2), z(80)], domain="com.microsoft", atol=1)


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("QLinearGlobalAveragePool", {}),
    ],
)
def test_operators_on_quantised_numbers(op, attrs):
    y = [f(1 / 256), z(0)] if op == "QLinearSigmoid" else [f(0.06), z(90)]
    compare(op, [*PAIR, *y], domain="com.microsoft", constants=[1, 2, 3, 4], atol=1, **attrs)


def test_quantised_softmax_is_that_of_its_opset():
    # its attribute `opset` would clash with the helper's
    (q, s, zero), y = PAIR, [f(1 / 256), z(0)]
    for opset, axes in ((13, -1), (11, (1, 2, 3))):
        x = (q.astype(np.float32) - zero) * s
        e = np.exp(x - x.max(axis=axes, keepdims=True))
        expected = np.rint(e / e.sum(axis=axes, keepdims=True) * 256).clip(0, 255)
        axis = -1 if opset == 13 else 1
        op = helper.make_node("QLinearSoftmax", ["q", "s", "z", "ys", "yz"], ["y"], "n", None, "com.microsoft")
        op.attribute.extend([helper.make_attribute("opset", opset), helper.make_attribute("axis", axis)])
        proto = model(
            [op], [], ["y"], {"q": q, "s": s, "z": zero, "ys": y[0], "yz": y[1]}, domains={"com.microsoft": 1}
        )
        np.testing.assert_allclose(outputs_of(proto, {})["y"], expected, atol=1)


def test_channels_come_first():
    with pytest.raises(UnsupportedError, match="channels_last is not supported"):
        imported("QLinearGlobalAveragePool", [*PAIR, f(0.1), z(0)], domain="com.microsoft", channels_last=1)


def test_quantised_concat():
    other = [q8(2, 1, 4, 4), f(0.02), z(7)]
    compare("QLinearConcat", [f(0.1), z(3), *PAIR, *other], domain="com.microsoft", axis=1, atol=1)


def test_quantised_gemm():
    a, b, c = q8(3, 4), weights_of(5, 4, dtype=np.int8), RNG.integers(-99, 99, (5,), np.int32)
    scales = f(0.1, 0.2, 0.3, 0.4, 0.5)
    operands = [a, f(0.1), z(9), b, scales, z(0, 1, 2, 3, 4, dtype=np.int8), c]
    compare("QGemm", [*operands, f(0.2), z(77)], domain="com.microsoft", transB=1, atol=1)
    compare("QGemm", operands, domain="com.microsoft", transB=1, alpha=0.5)
