"""Quantised operators against LiteRT's reference kernels: every integer must be the same."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.tflite.importer import import_tflite
from tests.unit.frontend.tflite.writer import Op, T, const, imported, one, ours, same, write

KINDS = ("int8", "uint8", "int16")
NARROW = ("int8", "uint8")
ZERO = {"int8": 3, "uint8": 130, "int16": 0}
OUT_ZERO = {"int8": -5, "uint8": 120, "int16": 0}
FINE = {"int8": 1.0, "uint8": 1.0, "int16": 1 / 256}  # 16-bit numbers of the same range have finer scales
UNIT = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}  # of what lies between 0 and 1
SIGNED_UNIT = {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def data(rng, kind, shape, scale=0.05, zero=None):
    info = np.iinfo(kind)
    zero = ZERO[kind] if zero is None else zero
    array = rng.integers(info.min, info.max + 1, shape).astype(kind)
    return T(shape, kind, scale=scale * FINE[kind], zero=zero), array


def result(kind, shape, scale=0.11, zero=None):
    return T(shape, kind, scale=scale * FINE[kind], zero=OUT_ZERO[kind] if zero is None else zero)


def alike(kind, shape, scale=0.05):
    """A result with the scale of the operand."""
    return result(kind, shape, scale, ZERO[kind])


def weights(rng, kind, shape, axis):
    """One scale a channel, or, where the kernels know no others, one for all with a zero point."""
    if kind == "uint8":
        return const(rng.integers(0, 256, shape), np.uint8, scale=0.01, zero=120)
    scales = rng.uniform(0.01, 0.02, shape[axis])
    return const(rng.integers(-127, 128, shape), np.int8, scale=scales, axis=axis)


def bias(rng, kind, count):
    scale = np.float32(0.05 * FINE[kind]) * np.float32(0.01)
    return const(rng.integers(-1000, 1000, count), np.int64 if kind == "int16" else np.int32, scale=scale)


def extent(n, same_padding, stride, kernel=3):
    return -(-n // stride) if same_padding else -(-(n - kernel + 1) // stride)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("padding", "stride", "activation", "dilation"), [(0, 1, 0, 1), (1, 2, 1, 1), (0, 2, 3, 1), (0, 1, 2, 2)]
)
def test_convolutions(rng, kind, padding, stride, activation, dilation):
    h, w = (extent(n, padding == 0, stride) for n in (9, 8))
    facts = {
        "Padding": padding, "StrideW": stride, "StrideH": stride, "FusedActivationFunction": activation,
        "DilationWFactor": dilation, "DilationHFactor": dilation,
    }  # fmt: skip
    x = data(rng, kind, (2, 9, 8, 4))
    filters = weights(rng, kind, (6, 3, 3, 4), 0)
    same(
        one(
            "CONV_2D",
            [x, filters, bias(rng, kind, 6)],
            [result(kind, (2, h, w, 6))],
            "Conv2DOptions",
            version=3,
            **facts,
        )
    )
    filters = weights(rng, kind, (1, 3, 3, 8), 3)
    facts["DepthMultiplier"] = 2
    results = [result(kind, (2, h, w, 8))]
    same(
        one(
            "DEPTHWISE_CONV_2D", [x, filters, bias(rng, kind, 8)], results, "DepthwiseConv2DOptions", version=3, **facts
        )
    )


def test_grouped_convolution(rng):
    x, filters = data(rng, "int8", (1, 6, 5, 8)), weights(rng, "int8", (6, 3, 3, 4), 0)
    facts = {"Padding": 0, "StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}
    same(
        one(
            "CONV_2D",
            [x, filters, bias(rng, "int8", 6)],
            [result("int8", (1, 6, 5, 6))],
            "Conv2DOptions",
            version=3,
            **facts,
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_transposed_convolution(rng, kind):
    operands = [const([1, 9, 8, 6], np.int32), weights(rng, kind, (6, 3, 3, 4), 0), data(rng, kind, (1, 5, 4, 4))]
    facts = {"Padding": 0, "StrideW": 2, "StrideH": 2}
    for offset in ([], [bias(rng, kind, 6)]):
        to = [result(kind, (1, 9, 8, 6))]
        same(one("TRANSPOSE_CONV", [*operands, *offset], to, "TransposeConvOptions", version=3, **facts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [0, 1, 3])
def test_fully_connected(rng, kind, activation):
    w = (
        weights(rng, "uint8", (6, 20), 0)
        if kind == "uint8"
        else const(rng.integers(-127, 128, (6, 20)), np.int8, scale=0.01)
    )
    for offset in (None, bias(rng, kind, 6)):
        operands = [data(rng, kind, (30, 20)), w, offset]
        same(one("FULLY_CONNECTED", operands, [result(kind, (30, 6))], "FullyConnectedOptions", version=4,
                 FusedActivationFunction=activation))  # fmt: skip


def test_fully_connected_with_a_scale_a_unit(rng):
    x = data(rng, "int8", (2, 3, 20))
    operands = [x, weights(rng, "int8", (6, 20), 0), bias(rng, "int8", 6)]
    same(
        one(
            "FULLY_CONNECTED",
            operands,
            [result("int8", (2, 3, 6))],
            "FullyConnectedOptions",
            version=12,
            KeepNumDims=True,
        )
    )


@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_batch_matmul(rng, kind):
    operands = [data(rng, kind, (2, 3, 7)), data(rng, kind, (2, 5, 7), 0.02, 0)]
    same(one("BATCH_MATMUL", operands, [result(kind, (2, 3, 5))], "BatchMatMulOptions", version=3, AdjY=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", [0, 1, 2, 3])
def test_sums_and_products(rng, kind, activation):
    a, b, row = data(rng, kind, (2, 3, 4, 5)), data(rng, kind, (2, 3, 4, 5), 0.03), data(rng, kind, (1, 1, 4, 5))
    out = [result(kind, (2, 3, 4, 5))]
    facts = {"FusedActivationFunction": activation}
    for other in (b, row):
        same(one("ADD", [a, other], out, "AddOptions", version=2, PotScaleInt16=False, **facts))
        same(one("SUB", [a, other], out, "SubOptions", version=5, PotScaleInt16=False, **facts))
    product = [result(kind, (2, 3, 4, 5), 0.5 if kind != "int16" else 0.2)]
    same(one("MUL", [a, row], product, "MulOptions", version=2, **facts))


def test_16_bit_sums_with_scales_of_powers_of_two(rng):
    def operand(scale):
        return T((40,), "int16", scale=scale), rng.integers(-32768, 32768, 40).astype(np.int16)

    for first, second in ((2**-12, 2**-10), (2**-10, 2**-10), (2**-10, 2**-13)):
        out = [T((40,), "int16", scale=2**-10)]
        same(one("ADD", [operand(first), operand(second)], out, "AddOptions", version=3, PotScaleInt16=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("padding", "stride", "activation"), [(0, 1, 0), (1, 2, 1), (0, 2, 3)])
def test_pools(rng, kind, padding, stride, activation):
    h, w = (extent(n, padding == 0, stride) for n in (9, 8))
    facts = {
        "Padding": padding, "StrideW": stride, "StrideH": stride, "FilterWidth": 3, "FilterHeight": 3,
        "FusedActivationFunction": activation,
    }  # fmt: skip
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        same(
            one(name, [data(rng, kind, (2, 9, 8, 4))], [alike(kind, (2, h, w, 4))], "Pool2DOptions", version=3, **facts)
        )


def test_average_over_everything(rng):
    facts = {"Padding": 1, "StrideW": 7, "StrideH": 6, "FilterWidth": 7, "FilterHeight": 6}
    same(one("AVERAGE_POOL_2D", [data(rng, "int8", (2, 6, 7, 3))], [alike("int8", (2, 1, 1, 3))], "Pool2DOptions",
             version=2, **facts))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.01, 0.05, 0.3])
def test_softmax(rng, kind, scale):
    unit = UNIT[kind]
    model = one("SOFTMAX", [data(rng, kind, (7, 30), scale)], [T((7, 30), kind, scale=unit[0], zero=unit[1])],
                "SoftmaxOptions", version=3, Beta=1.0)  # fmt: skip
    same(model, steps=int(kind == "int16"))


@pytest.mark.parametrize("kind", KINDS)
def test_sigmoid_and_tanh_of_every_number(kind):
    info = np.iinfo(kind)
    every = np.arange(info.min, info.max + 1).astype(kind)
    for scale in (0.05 * FINE[kind], 1 / 4096, 1 / 2048):
        x = T(every.shape, kind, scale=scale, zero=ZERO[kind]), every
        for name, (unit, zero) in (("LOGISTIC", UNIT[kind]), ("TANH", SIGNED_UNIT[kind])):
            same(one(name, [x], [T(every.shape, kind, scale=unit, zero=zero)], version=3))


@pytest.mark.parametrize("kind", NARROW)
def test_functions_of_every_number(kind):
    info = np.iinfo(kind)
    every = np.arange(info.min, info.max + 1).astype(kind)
    for scale in (0.02, 0.3):
        x = T(every.shape, kind, scale=scale, zero=ZERO[kind]), every
        out = result(kind, every.shape, 0.02)
        same(one("HARD_SWISH", [x], [result(kind, every.shape, 0.4)], "HardSwishOptions"))
        same(one("GELU", [x], [out], "GeluOptions", version=2, Approximate=False))
        same(one("GELU", [x], [out], "GeluOptions", version=2, Approximate=True))
        same(one("LEAKY_RELU", [x], [out], "LeakyReluOptions", version=2, Alpha=0.2))
        same(one("RELU", [x], [out], version=2))
        same(one("RELU6", [x], [out], version=2))


def test_exponentials_of_8_and_16_bits(rng):
    every = np.arange(-128, 128).astype(np.int8)
    same(
        one("EXP", [(T((256,), "int8", scale=0.02, zero=3), every)], [result("int8", (256,))], "ExpOptions", version=2)
    )
    wide = np.arange(-32768, 32768, 5).astype(np.int16)
    same(one("EXP", [(T(wide.shape, "int16", scale=1 / 4096), wide)], [T(wide.shape, "int16", scale=0.1)], "ExpOptions",
             version=2))  # fmt: skip


@pytest.mark.parametrize("name", ["LOG", "RSQRT", "SQRT"])
def test_functions_that_lack_results_below_zero(name):
    """Logarithms and reciprocals have the extreme there; of square roots the kernel takes none, and rounds down."""
    for kind, scale, zero, out, moved in (
        ("int8", 0.02, -128, 0.03, 5), ("int8", 0.3, -20, 0.01, -100), ("int16", 1e-3, 0, 1e-3, 0),
        ("int16", 2e-4, 0, 1e-4, 0),
    ):  # fmt: skip
        info = np.iinfo(kind)
        least = info.min if name == "LOG" else zero  # where they refuse to run
        every = np.arange(least, info.max + 1).astype(kind)
        x = T(every.shape, kind, scale=scale, zero=zero), every
        same(one(name, [x], [T(every.shape, kind, scale=out, zero=moved)]))


@pytest.mark.parametrize(("kind", "finest"), [("int8", -4), ("int16", -8)])
def test_inverse_roots_at_many_scales(rng, kind, finest):
    """The kernel works with 20 places, which shows where a result lies just below the middle of two steps."""
    for scale, out in 10.0 ** rng.uniform((finest, finest + 1), 0, (40, 2)):
        zero, moved = (int(rng.integers(-128, 100)), int(rng.integers(-128, 127))) if kind == "int8" else (0, 0)
        every = np.arange(zero, np.iinfo(kind).max + 1).astype(kind)
        x = T(every.shape, kind, scale=scale, zero=zero), every
        same(one("RSQRT", [x], [T(every.shape, kind, scale=out, zero=moved)]))


def test_what_takes_16_bits_as_well():
    every = np.arange(-32768, 32768).astype(np.int16)
    x = T(every.shape, "int16", scale=1 / 4096), every
    for approximate in (False, True):  # the reference has an error function of single precision
        same(
            one("GELU", [x], [T(every.shape, "int16", scale=1 / 4096)], "GeluOptions", Approximate=approximate), steps=1
        )
    for slope in (-100, 3, 127):
        alpha = const([slope], np.int8, scale=0.01)
        same(one("PRELU", [x, alpha], [T(every.shape, "int16", scale=1 / 3000)]))
    same(one("NEG", [x], [T(every.shape, "int16", scale=1 / 4096)], "NegOptions"))


@pytest.mark.parametrize("kind", KINDS)
def test_rectifiers_and_conversions(rng, kind):
    x = data(rng, kind, (700,))
    for name in ("RELU", "RELU6"):
        same(one(name, [x], [result(kind, (700,))], version=2))
    same(one("QUANTIZE", [x], [result(kind, (700,))], "QuantizeOptions", version=2))
    same(one("DEQUANTIZE", [x], [T((700,))], "DequantizeOptions", version=2), rtol=1e-7)
    floats = np.concatenate([rng.standard_normal(700).astype(np.float32) * 9, [0.055, -0.055, 1e5, -1e5]]).astype(
        np.float32
    )
    same(one("QUANTIZE", [floats], [result(kind, (704,))], "QuantizeOptions"))


@pytest.mark.parametrize("kind", NARROW)
def test_prelu(rng, kind):
    operands = [data(rng, kind, (3, 5, 7)), data(rng, kind, (1, 1, 7), 0.01)]
    same(one("PRELU", operands, [result(kind, (3, 5, 7))]))


@pytest.mark.parametrize("kind", KINDS)
def test_reductions(rng, kind):
    x, axes = data(rng, kind, (2, 5, 3, 4)), const([1, 2], np.int32)
    for name in ("MEAN", "REDUCE_MAX", "REDUCE_MIN"):
        same(one(name, [x, axes], [alike(kind, (2, 4))], "ReducerOptions", version=2, KeepDims=False))
    same(one("MEAN", [x, axes], [result(kind, (2, 1, 1, 4))], "ReducerOptions", version=2, KeepDims=True))
    same(one("MEAN", [x, const(-1, np.int32)], [result(kind, (2, 5, 3))], "ReducerOptions", version=2, KeepDims=False))


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_products_over_no_axes_are_rescaled(rng, kind):
    x, none, facts = data(rng, kind, (2, 3)), const(np.zeros(0), np.int32), {"version": 2}
    for name in ("MEAN",) if kind == "uint8" else ("MEAN", "REDUCE_PROD"):
        same(one(name, [x, none], [result(kind, (2, 3), 0.9)], "ReducerOptions", **facts))
    same(one("SUM", [x, none], [result(kind, (2, 3), 0.9)], "ReducerOptions", **facts), steps=1, reference=False)


@pytest.mark.parametrize("kind", KINDS)
def test_sums(rng, kind):
    """Of the usual kernels, which round once: the reference ones of int8 and int16 give what memory happens to hold."""
    x = data(rng, kind, (2, 5, 3, 4))
    model = one("SUM", [x, const([1, 2], np.int32)], [result(kind, (2, 4), 0.9)], "ReducerOptions", version=2)
    same(model, steps=1, reference=False)


@pytest.mark.parametrize("kind", ["int8", "int16"])
@pytest.mark.parametrize(
    ("axes", "shape"), [([1], (2, 3, 4)), ([-1, 0], (5, 3)), ([2], (2, 5, 1, 4)), ([0, 1, 2, 3], ())]
)
def test_products(rng, kind, axes, shape):
    x = data(rng, kind, (2, 5, 3, 4), 0.02)
    for scale in (0.1, 0.003):
        out, kept = [result(kind, shape, scale)], len(shape) == 4
        same(one("REDUCE_PROD", [x, const(axes, np.int32)], out, "ReducerOptions", version=2, KeepDims=kept))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("corners", [(False, False), (True, False), (False, True)])
def test_resizing(rng, kind, corners):
    facts = {"AlignCorners": corners[0], "HalfPixelCenters": corners[1]}
    operands = [data(rng, kind, (1, 5, 7, 3)), const([9, 4], np.int32)]
    out = [alike(kind, (1, 9, 4, 3))]
    same(one("RESIZE_BILINEAR", operands, out, "ResizeBilinearOptions", version=3, **facts))
    same(one("RESIZE_NEAREST_NEIGHBOR", operands, out, "ResizeNearestNeighborOptions", version=3, **facts))


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_moves(rng, kind):
    x = data(rng, kind, (2, 3))
    out = [alike(kind, (5, 6))]
    same(one("PAD", [x, const([[1, 2], [0, 3]], np.int32)], out, "PadOptions", version=2))
    parts = [x, data(rng, kind, (2, 4))]
    same(one("CONCATENATION", parts, [alike(kind, (2, 7))], "ConcatenationOptions", version=2, Axis=1))
    same(one("MAXIMUM", [x, data(rng, kind, (1, 3))], [alike(kind, (2, 3))], "MaximumMinimumOptions", version=2))


def test_parts_of_other_scales_are_brought_to_the_result(rng):
    parts = [data(rng, "uint8", (2, 3)), data(rng, "uint8", (2, 4), 0.02, 10)]
    same(one("CONCATENATION", parts, [alike("uint8", (2, 7))], "ConcatenationOptions", Axis=1))


def test_factors_of_products_are_of_single_precision(rng):
    """Which shows in 16 bits, and seldom."""
    for scales in rng.uniform(0.5, 2, (3, 3)):
        a, b = (data(rng, "int16", (20000,), scale / 90) for scale in scales[:2])
        same(one("MUL", [a, b], [T((20000,), "int16", scale=scales[2] * 1e-4)], "MulOptions", version=4))


def test_parts_of_16_bits_are_copied_whatever_their_scale(rng):
    parts = [data(rng, "int16", (2, 3)), data(rng, "int16", (2, 4), 0.02)]
    same(one("CONCATENATION", parts, [alike("int16", (2, 7))], "ConcatenationOptions", version=2, Axis=1))


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("size", [1, 7, 500])
def test_norms(rng, kind, size):
    tensor, array = data(rng, kind, (30, size))
    array[0] = ZERO[kind]
    array[1] = ZERO[kind] + 1
    scale, zero = SIGNED_UNIT[kind]
    out = T((30, size), kind, scale=scale, zero=zero)
    same(one("L2_NORMALIZATION", [(tensor, array)], [out], "L2NormOptions", version=2))


@pytest.mark.parametrize("kind", ["int8", "int16"])
def test_quotients_rounded_down(rng, kind):
    """Numbers far apart, whose difference 8 or 16 bits do not hold."""
    a, b = (data(rng, kind, (700,)) for _ in range(2))
    b[1][b[1] == 0] = 1
    same(one("FLOOR_DIV", [a, b], [alike(kind, (700,))], "FloorDivOptions", version=2))


@pytest.mark.parametrize("kind", NARROW)
def test_comparisons(rng, kind):
    operands = [data(rng, kind, (700,)), data(rng, kind, (700,), 0.06)]
    for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        same(one(name, operands, [T((700,), "bool")], version=2))


def test_equality_of_16_bits_is_that_of_what_they_stand_for(rng):
    """Of different scales: stored numbers that are equal stand for different ones, and the other way around."""
    a, b = data(rng, "int16", (3, 700), 0.01), data(rng, "int16", (3, 700), 0.02)
    a[1][1] = a[1][0]
    b[1][0] = np.round(a[1][0] / 2)
    b[1][1] = a[1][1]
    for name in ("EQUAL", "NOT_EQUAL"):
        same(one(name, [a, b], [T((3, 700), "bool")], version=4))


@pytest.mark.parametrize("scale", [0.00048856, 0.00024414, 0.00024438, 0.000489, 1 / 2048, 1 / 4096])
def test_scales_of_16_bits_that_are_nearly_a_power_of_two(scale):
    x = T((65536,), "int16", scale=scale), np.arange(-32768, 32768).astype(np.int16)
    for name in ("LOGISTIC", "TANH"):
        same(one(name, [x], [T((65536,), "int16", scale=1 / 32768)], version=3))


@pytest.mark.parametrize("scale", [0.0002442, 0.000244, 1 / 4096])
def test_sums_of_16_bits_of_nearly_powers_of_two(rng, scale):
    types = [T((500,), "int16", scale=s) for s in (scale, 1 / 8192, 1 / 4096)]
    operands = [(t, rng.integers(-32768, 32768, 500).astype(np.int16)) for t in types[:2]]
    for name, table in (("ADD", "AddOptions"), ("SUB", "SubOptions")):
        for shifted in (True, False):
            same(one(name, operands, types[2:], table, version=3, PotScaleInt16=shifted))


def test_rest_of_int8(rng):
    a, b = data(rng, "int8", (2, 30)), data(rng, "int8", (2, 30))
    same(one("SQUARED_DIFFERENCE", [a, b], [result("int8", (2, 30), 0.9)], "SquaredDifferenceOptions", version=2))
    same(one("ABS", [a], [result("int8", (2, 30))], "AbsOptions", version=2))
    same(
        one("LOG_SOFTMAX", [a], [T((2, 30), "int8", scale=16 / 256, zero=127)], "LogSoftmaxOptions", version=2), steps=1
    )
    positive = b[0], np.abs(b[1].astype(int)).clip(23, 127).astype(np.int8)
    # quotients near zero overflow a shift of the kernel
    large = a[0], np.where(a[1] < 0, -100, 100).astype(np.int8)
    same(one("DIV", [large, positive], [result("int8", (2, 30), 0.9)], "DivOptions", version=2), steps=1)


@pytest.mark.parametrize("scale", [0.9, 0.1, 0.02])
def test_quotients_near_zero_are_right(scale):
    """The kernels, whose shift overflows there, are up to 127 steps off for one pair of bytes in twelve."""
    every = np.arange(-128, 128)
    a, b = (x.reshape(-1) for x in np.meshgrid(every, every[every != 0]))
    operands = [(T(x.shape, "int8", scale=0.05), x.astype(np.int8)) for x in (a, b)]
    model, feeds = one("DIV", operands, [T(a.shape, "int8", scale=scale)], "DivOptions", version=2)
    (got,) = ours(model, feeds)
    assert np.abs(got - (a / b / scale).clip(-128, 127)).max() <= 0.501


def test_what_the_kernels_lack_is_refused(rng):
    x = data(rng, "int16", (2, 3))
    for name, table in (
        ("HARD_SWISH", "HardSwishOptions"),
        ("LOG_SOFTMAX", "LogSoftmaxOptions"),
        ("L2_NORMALIZATION", "L2NormOptions"),
    ):
        with pytest.raises(UnsupportedError, match=f"{name} of 16-bit integers"):
            imported(one(name, [x], [result("int16", (2, 3))], table)[0])
    with pytest.raises(UnsupportedError, match="slopes of 16 bits"):
        imported(one("PRELU", [x, x], [result("int16", (2, 3))])[0])


@pytest.mark.parametrize(
    ("name", "dtype", "scale", "zero", "said"),
    [
        ("SOFTMAX", "int8", 1 / 256, 0, "zero point 0, SOFTMAX gives 0.00390625 and -128"),
        ("SOFTMAX", "uint8", 0.5, 0, "has scale 0.5 and zero point 0, SOFTMAX gives 0.00390625 and 0"),
        ("SOFTMAX", "int16", 1 / 256, 0, "SOFTMAX gives 3.05176e-05 and 0"),
        ("LOGISTIC", "int16", 1 / 256, 0, "LOGISTIC gives 3.05176e-05 and 0"),
        ("TANH", "int16", 1 / 32768, 5, "TANH gives 3.05176e-05 and 0"),
        ("L2_NORMALIZATION", "uint8", 1 / 128, 0, "L2_NORMALIZATION gives 0.0078125 and 128"),
    ],
)
def test_results_whose_scale_the_kernel_defines(name, dtype, scale, zero, said):
    tensors = [T((2, 5), dtype, scale=0.1), T((2, 5), dtype, scale=scale, zero=zero)]
    with pytest.raises(ImportModelError, match=said):
        import_tflite(write(tensors, [Op(name, [0], [1])], [0], [1]))


def test_a_bias_has_no_zero_point():
    bias = const([1, 2], np.int32, scale=0.01, zero=3)
    tensors = [T((2, 3), "int8", scale=0.1), const(np.ones((2, 3)), np.int8, scale=0.1), bias]
    operator = Op("FULLY_CONNECTED", [0, 1, 2], [3], {}, "FullyConnectedOptions", 4)
    with pytest.raises(ImportModelError, match="the bias has the zero point 3, 0 is needed"):
        import_tflite(write([*tensors, T((2, 2), "int8", scale=0.1)], [operator], [0], [3]))
