"""Operators on floats and plain integers against LiteRT's reference kernels."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.problems import UnsupportedModelError
from tests.unit.frontend.tflite.writer import T, const, imported, one, ours, same


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


WINDOWS = [(0, 1, 0, 1), (1, 2, 1, 1), (0, 2, 3, 1), (0, 1, 2, 2)]


def extent(n, same_padding, stride, span=3):
    return -(-n // stride) if same_padding else -(-(n - span + 1) // stride)


@pytest.mark.parametrize(("padding", "stride", "activation", "dilation"), WINDOWS)
def test_convolutions(rng, padding, stride, activation, dilation):
    h, w = (extent(n, padding == 0, stride) for n in (9, 8))
    facts = {
        "Padding": padding, "StrideW": stride, "StrideH": stride, "FusedActivationFunction": activation,
        "DilationWFactor": dilation, "DilationHFactor": dilation,
    }  # fmt: skip
    x, offset = normal(rng, 2, 9, 8, 4), const(normal(rng, 6))
    for filters in (const(normal(rng, 6, 3, 3, 4)), normal(rng, 6, 3, 3, 4)):
        same(one("CONV_2D", [x, filters, offset], [T((2, h, w, 6))], "Conv2DOptions", **facts))
    operands = [x, const(normal(rng, 1, 3, 3, 8)), const(normal(rng, 8))]
    facts["DepthMultiplier"] = 2
    same(one("DEPTHWISE_CONV_2D", operands, [T((2, h, w, 8))], "DepthwiseConv2DOptions", version=2, **facts))


@pytest.mark.parametrize(
    ("padding", "stride", "shape"), [(0, 2, (9, 8)), (1, 2, (11, 9)), (0, 1, (5, 4)), (1, 3, (15, 12))]
)
def test_transposed_convolutions(rng, padding, stride, shape):
    operands = [const([1, *shape, 6], np.int32), const(normal(rng, 6, 3, 3, 4)), normal(rng, 1, 5, 4, 4)]
    facts = {"Padding": padding, "StrideW": stride, "StrideH": stride}
    same(one("TRANSPOSE_CONV", operands, [T((1, *shape, 6))], "TransposeConvOptions", **facts))
    offset = const(normal(rng, 6))
    same(one("TRANSPOSE_CONV", [*operands, offset], [T((1, *shape, 6))], "TransposeConvOptions", version=3, **facts))


def test_dense_layers(rng):
    x, w, offset = normal(rng, 2, 3, 8), const(normal(rng, 5, 8)), const(normal(rng, 5))
    same(one("FULLY_CONNECTED", [x, w, offset], [T((6, 5))], "FullyConnectedOptions", FusedActivationFunction=1))
    same(one("FULLY_CONNECTED", [x, w, None], [T((2, 3, 5))], "FullyConnectedOptions", version=5, KeepNumDims=True))
    same(one("FULLY_CONNECTED", [normal(rng, 2, 4), w, None], [T((1, 5))], "FullyConnectedOptions"))
    a, b = normal(rng, 2, 1, 3, 4), normal(rng, 5, 4, 6)
    same(one("BATCH_MATMUL", [a, b], [T((2, 5, 3, 6))], "BatchMatMulOptions"))
    turned = [normal(rng, 4, 3), normal(rng, 6, 4)]
    same(one("BATCH_MATMUL", turned, [T((3, 6))], "BatchMatMulOptions", AdjX=True, AdjY=True))


@pytest.mark.parametrize("table", ["int8", "float16"])
def test_weights_of_other_types_go_through_dequantize(rng, table):
    """What the converter writes for weights that are stored small: the kernels run in floats."""
    if table == "float16":
        stored = const(normal(rng, 5, 8).astype(np.float16))
    else:
        stored = const(rng.integers(-127, 128, (5, 8)), np.int8, scale=rng.uniform(0.01, 0.02, 5))
    same(one("DEQUANTIZE", [stored], [T((5, 8))], "DequantizeOptions", version=5))


@pytest.mark.parametrize("asymmetric", [False, True])
def test_dynamic_range(rng, asymmetric):
    """Floats meet 8-bit weights: every row is quantised by its own range, as the kernels do it."""
    x = normal(rng, 4, 32) * np.array([[1], [20], [0], [0.1]], np.float32)
    w = const(rng.integers(-127, 128, (5, 32)), np.int8, scale=0.02)
    model = one("FULLY_CONNECTED", [x, w, const(normal(rng, 5))], [T((4, 5))], "FullyConnectedOptions", version=9,
                AsymmetricQuantizeInputs=asymmetric)  # fmt: skip
    same(model, rtol=1e-5)
    facts = {"StrideW": 1, "StrideH": 2, "DilationWFactor": 1, "DilationHFactor": 1}
    image = normal(rng, 2, 6, 5, 3)
    filters = const(rng.integers(-127, 128, (4, 3, 3, 3)), np.int8, scale=rng.uniform(0.01, 0.02, 4))
    operands = [image, filters, const(normal(rng, 4))]
    same(one("CONV_2D", operands, [T((2, 3, 5, 4))], "Conv2DOptions", version=5, **facts), rtol=1e-5)
    filters = const(rng.integers(-127, 128, (1, 3, 3, 6)), np.int8, scale=rng.uniform(0.01, 0.02, 6), axis=3)
    facts = {**facts, "StrideH": 1, "DepthMultiplier": 2}
    operands = [image, filters, const(normal(rng, 6))]
    same(one("DEPTHWISE_CONV_2D", operands, [T((2, 6, 5, 6))], "DepthwiseConv2DOptions", version=6, **facts), rtol=1e-5)


def test_dynamic_range_of_a_depthwise_convolution_over_one_channel(rng):
    """Its one scale counts as one by channel: the data has a zero point."""
    filters = const(rng.integers(-127, 128, (1, 3, 3, 1)), np.int8, scale=0.013, axis=3)
    facts = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1, "DepthMultiplier": 1}
    operands = [normal(rng, 2, 6, 5, 1) + np.float32(1), filters, const(normal(rng, 1))]
    same(one("DEPTHWISE_CONV_2D", operands, [T((2, 6, 5, 1))], "DepthwiseConv2DOptions", version=6, **facts), rtol=1e-5)


@pytest.mark.parametrize("scale", [0.013, [0.011, 0.012, 0.013, 0.014, 0.015, 0.016]])
def test_dynamic_range_of_transposed_convolutions(rng, scale):
    filters = const(rng.integers(-127, 128, (6, 3, 3, 4)), np.int8, scale=scale)
    shape, image = (2, 9, 8, 6), normal(rng, 2, 5, 4, 4) * np.array([1, 30], np.float32).reshape(2, 1, 1, 1)
    for offset in ([], [const(normal(rng, 6))]):
        operands = [const(shape, np.int32), filters, image, *offset]
        same(one("TRANSPOSE_CONV", operands, [T(shape)], "TransposeConvOptions", version=3, StrideW=2, StrideH=2))


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)])
def test_dynamic_range_of_products_of_batches(rng, asymmetric, turned):
    a, b = normal(rng, 2, 3, 7) * np.array([[1], [20], [0.1]], np.float32), rng.integers(-127, 128, (2, 7, 5))
    a, b = (np.ascontiguousarray(v.swapaxes(1, 2)) if t else v for v, t in zip((a, b), turned, strict=True))
    facts = {"AdjX": turned[0], "AdjY": turned[1], "AsymmetricQuantizeInputs": asymmetric}
    operands = [a, const(b, np.int8, scale=0.02)]
    same(one("BATCH_MATMUL", operands, [T((2, 3, 5))], "BatchMatMulOptions", version=4, **facts), rtol=0)


def test_dynamic_range_of_one_scale_is_exact(rng):
    """The next layer quantises what comes of it, so that a last digit counts: scales are multiplied first."""
    facts = {"StrideW": 1, "StrideH": 2, "DilationWFactor": 1, "DilationHFactor": 1}
    filters = const(rng.integers(-127, 128, (7, 3, 3, 5)), np.int8, scale=0.0137)
    operands = [normal(rng, 2, 9, 7, 5), filters, const(normal(rng, 7))]
    same(one("CONV_2D", operands, [T((2, 5, 7, 7))], "Conv2DOptions", version=5, **facts), rtol=0)


def test_dynamic_range_of_halves(rng):
    """Numbers between two steps go away from 0, whatever the zero point: here -28, and the scale 1."""
    x = np.float32([[-100, 155, -0.5, -1.5, 0.5, 1.5, 27.5, 28.5, -27.5, -28.5, -72.5, 50.5]])
    w = const(np.eye(12) * 64, np.int8, scale=1 / 64)
    facts = {"AsymmetricQuantizeInputs": True}
    same(one("FULLY_CONNECTED", [x, w, None], [T((1, 12))], "FullyConnectedOptions", version=9, **facts), rtol=0)
    filters = const(rng.integers(-127, 128, (4, 1, 1, 1)), np.int8, scale=rng.uniform(0.01, 0.02, 4))
    facts = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}
    operands = [x.reshape(1, 3, 4, 1), filters, const(normal(rng, 4))]
    same(one("CONV_2D", operands, [T((1, 3, 4, 4))], "Conv2DOptions", version=5, **facts), rtol=1e-6)


@pytest.mark.parametrize(("padding", "stride", "activation"), [(0, 1, 0), (1, 2, 1), (0, 2, 3)])
def test_pools(rng, padding, stride, activation):
    h, w = (extent(n, padding == 0, stride) for n in (9, 8))
    facts = {
        "Padding": padding, "StrideW": stride, "StrideH": stride, "FilterWidth": 3, "FilterHeight": 3,
        "FusedActivationFunction": activation,
    }  # fmt: skip
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        same(one(name, [normal(rng, 2, 9, 8, 4)], [T((2, h, w, 4))], "Pool2DOptions", **facts))


UNARY = (
    "ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOGISTIC", "NEG", "RELU", "RELU6", "RELU_0_TO_1",
    "RELU_N1_TO_1", "ROUND", "SIGN", "SIN", "SQUARE", "TANH", "ZEROS_LIKE",
)  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions(rng, name):
    x = np.concatenate([normal(rng, 60) * 3, np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0, -0.0], np.float32)])
    table = {"ZEROS_LIKE": "ZerosLikeOptions"}.get(name)
    same(one(name, [x], [T(x.shape)], table), rtol=1e-5)


@pytest.mark.parametrize("name", ["LOG", "SQRT", "RSQRT"])
def test_functions_of_positive_numbers(rng, name):
    same(one(name, [np.abs(normal(rng, 60)) + 0.01], [T((60,))]), rtol=1e-5)


def test_functions_with_options(rng):
    x = normal(rng, 3, 4, 5)
    for approximate in (False, True):
        same(one("GELU", [x], [T(x.shape)], "GeluOptions", Approximate=approximate), rtol=1e-4 if approximate else 1e-5)
    same(one("LEAKY_RELU", [x], [T(x.shape)], "LeakyReluOptions", Alpha=0.3))
    same(one("PRELU", [x, const(normal(rng, 1, 1, 5))], [T(x.shape)]))
    same(one("SOFTMAX", [x], [T(x.shape)], "SoftmaxOptions", Beta=1.0))
    same(one("SOFTMAX", [x], [T(x.shape)], "SoftmaxOptions", Beta=0.3))
    same(one("LOG_SOFTMAX", [x], [T(x.shape)], "LogSoftmaxOptions"), rtol=1e-5)
    same(one("L2_NORMALIZATION", [x], [T(x.shape)], "L2NormOptions"))
    image = normal(rng, 1, 3, 4, 7)
    facts = {"Radius": 2, "Bias": 1.5, "Alpha": 0.3, "Beta": 0.7}
    model = one("LOCAL_RESPONSE_NORMALIZATION", [image], [T(image.shape)], "LocalResponseNormalizationOptions", **facts)
    same(model, rtol=1e-5, reference=False)  # the reference kernel leaves out the last channel of each window
    facts = {"Min": -1.3, "Max": 2.1, "NumBits": 8, "NarrowRange": False}
    same(one("FAKE_QUANT", [x], [T(x.shape)], "FakeQuantOptions", **facts), rtol=1e-5)


BINARY = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions", "MAXIMUM": None,
          "MINIMUM": None, "SQUARED_DIFFERENCE": None, "FLOOR_DIV": None, "FLOOR_MOD": None, "POW": None}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(rng, name):
    a, b = normal(rng, 2, 3, 4), normal(rng, 3, 1)
    if name == "POW":
        a = np.abs(a)
    same(one(name, [a, b], [T((2, 3, 4))], BINARY[name]), rtol=1e-5)
    whole = [rng.integers(-9, 10, s).astype(np.int32) for s in ((2, 3, 4), (3, 1))]
    whole[1][whole[1] == 0] = 4
    if name == "POW":
        whole = [np.abs(whole[0]), np.abs(whole[1]) % 4]
    same(one(name, whole, [T((2, 3, 4), "int32")], BINARY[name], version=2 if name == "FLOOR_DIV" else 1))


@pytest.mark.parametrize("activation", [1, 2, 3])
def test_fused_activations(rng, activation):
    a, b = normal(rng, 2, 30) * 4, normal(rng, 2, 30)
    for name in ("ADD", "SUB", "MUL", "DIV"):
        same(one(name, [a, b], [T((2, 30))], BINARY[name], FusedActivationFunction=activation), rtol=1e-5)


def test_logic_and_comparisons(rng):
    a, b = rng.integers(0, 2, (2, 4, 5)).astype(bool)
    for name in ("LOGICAL_AND", "LOGICAL_OR"):
        same(one(name, [a, b], [T((4, 5), "bool")]))
    same(one("LOGICAL_NOT", [a], [T((4, 5), "bool")]))
    x, y = rng.integers(-3, 3, (2, 4, 5)).astype(np.int32)
    for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        same(one(name, [x, y[:1]], [T((4, 5), "bool")]))
        same(one(name, [x.astype(np.float32), y[:1].astype(np.float32)], [T((4, 5), "bool")]))


def test_choices_sums_and_casts(rng):
    condition, x, y = rng.integers(0, 2, 4).astype(bool), normal(rng, 4, 5), normal(rng, 4, 5)
    same(one("SELECT", [condition, x, y], [T((4, 5))], "SelectOptions"))
    same(one("SELECT_V2", [condition[:, None], x, y[:1]], [T((4, 5))], "SelectV2Options"))
    same(one("ADD_N", [x, y, x], [T((4, 5))], "AddNOptions"))
    for kind in ("int32", "int64", "uint8", "bool"):
        same(one("CAST", [np.abs(x * 9)], [T((4, 5), kind)], "CastOptions"))
    same(one("CAST", [rng.integers(-9, 9, (4, 5)).astype(np.int64)], [T((4, 5))], "CastOptions"))


REDUCTIONS = ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("axes", "kept"), [([1, 2], False), ([-1], True), ([0, 1, 2, 3], False), ([2], False)])
def test_reductions(rng, name, axes, kept):
    x = normal(rng, 2, 3, 4, 5)
    shape = np.sum(x, tuple(axes), keepdims=kept).shape
    same(one(name, [x, const(axes, np.int32)], [T(shape)], "ReducerOptions", KeepDims=kept), rtol=1e-5)


def test_any_all_and_positions(rng):
    flags = rng.integers(0, 2, (4, 5)).astype(bool)
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        same(one(name, [flags, const([1], np.int32)], [T((4,), "bool")], "ReducerOptions", KeepDims=False))
    x = normal(rng, 3, 4, 5)
    for name, table in (("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")):
        for kind, number in (("int32", 2), ("int64", 4)):
            same(one(name, [x, const(1, np.int32)], [T((3, 5), kind)], table, OutputType=number))


@pytest.mark.parametrize("corners", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("size", [(10, 14), (9, 4), (1, 1), (5, 7)])
def test_resizing(rng, corners, size):
    facts = {"AlignCorners": corners[0], "HalfPixelCenters": corners[1]}
    operands = [normal(rng, 2, 5, 7, 3), const(size, np.int32)]
    out = [T((2, *size, 3))]
    same(one("RESIZE_BILINEAR", operands, out, "ResizeBilinearOptions", version=3, **facts), rtol=1e-5)
    same(one("RESIZE_NEAREST_NEIGHBOR", operands, out, "ResizeNearestNeighborOptions", version=3, **facts))


@pytest.mark.parametrize("size", [(10, 14), (13, 7), (1, 1), (5, 2)])
def test_nearest_neighbours_between_corners_at_half_pixels(rng, size):
    """Options that TensorFlow does not combine, the kernel does; bilinear ones are refused by both."""
    facts = {"AlignCorners": True, "HalfPixelCenters": True}
    operands, out = [normal(rng, 2, 5, 7, 3), const(size, np.int32)], [T((2, *size, 3))]
    same(one("RESIZE_NEAREST_NEIGHBOR", operands, out, "ResizeNearestNeighborOptions", version=3, **facts))
    with pytest.raises(ImportModelError, match="aligned corners with centers at half pixels"):
        ours(*one("RESIZE_BILINEAR", operands, out, "ResizeBilinearOptions", version=3, **facts))


def test_what_does_not_fit_is_refused(rng):
    x = normal(rng, 2, 9, 8, 4)
    facts = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}
    with pytest.raises(ImportModelError, match="4 channels, where the filter"):
        imported(one("CONV_2D", [x, const(normal(rng, 6, 3, 3, 3))], [T((2, 9, 8, 6))], "Conv2DOptions", **facts)[0])
    with pytest.raises(ImportModelError, match="must be positive"):
        imported(one("CONV_2D", [x, const(normal(rng, 6, 3, 3, 4))], [T((2, 9, 8, 6))], "Conv2DOptions")[0])
    with pytest.raises(ImportModelError, match="data of shape"):
        imported(one("FULLY_CONNECTED", [x, const(normal(rng, 6, 7))], [T((2, 6))], "FullyConnectedOptions")[0])
    with pytest.raises(ImportModelError, match="option 'padding' is 7, Padding goes up to 1"):
        imported(
            one("CONV_2D", [x, const(normal(rng, 6, 3, 3, 4))], [T((2, 9, 8, 6))], "Conv2DOptions", Padding=7, **facts)[
                0
            ]
        )
    with pytest.raises(UnsupportedModelError, match="fused activation SIGN_BIT"):
        imported(one("ADD", [x, x], [T(x.shape)], "AddOptions", FusedActivationFunction=5)[0])
    with pytest.raises(UnsupportedError, match="weights in shuffled order"):
        imported(
            one(
                "FULLY_CONNECTED",
                [x, const(normal(rng, 6, 4))],
                [T((144, 6))],
                "FullyConnectedOptions",
                WeightsFormat=1,
            )[0]
        )
    with pytest.raises(ImportModelError, match="is declared i32, the operator makes f32"):
        imported(one("ADD", [x, x], [T(x.shape, "int32")], "AddOptions")[0])
