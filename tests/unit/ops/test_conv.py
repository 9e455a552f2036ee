"""Convolution and transposed convolution against onnxruntime; the exact form of their expressions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, f16, f32, i8, i32, u8
from mlc.ops.window import span
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, one_node, onnxruntime_output, stages


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@st.composite
def windows(draw, spatial=(1, 2, 3)):
    rank = draw(st.sampled_from(spatial))
    small = st.integers(1, 3)
    per_axis = lambda s: tuple(draw(s) for _ in range(rank))  # noqa: E731
    kernel, strides, dilations = per_axis(small), per_axis(small), per_axis(st.integers(1, 2))
    pads = per_axis(st.integers(0, 2)) + per_axis(st.integers(0, 2))
    space = per_axis(st.integers(1, 7))
    assume(all(n + pads[d] + pads[rank + d] >= span(kernel[d], dilations[d]) for d, n in enumerate(space)))
    return space, kernel, {"strides": strides, "pads": pads, "dilations": dilations}


@examples(40)
@given(windows(), st.sampled_from([1, 2, 3]), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_conv_is_onnx_conv(window, groups, per_group_in, per_group_out, batch):
    space, kernel, attrs = window
    x = normal((batch, groups * per_group_in, *space))
    w = normal((groups * per_group_out, per_group_in, *kernel), 1)
    expected = onnxruntime_output("Conv", x, w, group=groups, **{k: list(v) for k, v in attrs.items()})
    np.testing.assert_allclose(evaluate("conv", x, w, groups=groups, **attrs), expected, rtol=1e-4, atol=1e-5)


@examples(40)
@given(windows((1, 2)), st.sampled_from([1, 2]), st.integers(1, 2), st.integers(1, 2), st.data())
def test_conv_transpose_is_onnx_conv_transpose(window, groups, per_group_in, per_group_out, data):
    space, kernel, attrs = window
    rank = len(space)
    output_padding = [data.draw(st.integers(0, s - 1)) for s in attrs["strides"]]
    pads = attrs["pads"]
    out = tuple(
        attrs["strides"][d] * (space[d] - 1)
        + span(kernel[d], attrs["dilations"][d])
        - pads[d]
        - pads[rank + d]
        + output_padding[d]
        for d in range(rank)
    )
    assume(all(n >= 1 for n in out))
    x = normal((2, groups * per_group_in, *space))
    w = normal((groups * per_group_in, per_group_out, *kernel), 1)
    expected = onnxruntime_output(
        "ConvTranspose", x, w, group=groups, output_padding=output_padding, **{k: list(v) for k, v in attrs.items()}
    )
    got = evaluate("conv_transpose", x, w, groups=groups, output_shape=out, **attrs)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_conv_transpose_over_three_axes():
    x, w = normal((1, 2, 2, 3, 2)), normal((2, 3, 2, 1, 3), 1)
    expected = onnxruntime_output("ConvTranspose", x, w, strides=[2, 1, 3])
    got = evaluate("conv_transpose", x, w, strides=(2, 1, 3), pads=(0,) * 6, dilations=(1, 1, 1))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


UNIT = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_floats_are_summed_in_f32(dtype):
    x, w = normal((1, 512, 1, 1), dtype=dtype), normal((3, 512, 1, 1), 1, dtype=dtype)
    exact = np.einsum("nchw,ochw->no", x.astype(np.float64), w.astype(np.float64))
    got = evaluate("conv", x, w, **UNIT)[:, :, 0, 0]
    np.testing.assert_array_equal(got, exact.astype(np.float32).astype(dtype))


def test_narrow_integers_give_i32():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (1, 3, 4, 4)).astype(np.uint8)
    w = rng.integers(-128, 128, (2, 3, 2, 2)).astype(np.int8)
    expected = onnxruntime_output("ConvInteger", x, w)
    np.testing.assert_array_equal(evaluate("conv", x, w, **UNIT), expected)


def test_wide_convolutions_are_of_bf16():
    x, w = (normal(shape, dtype=ml_dtypes.bfloat16) for shape in ((1, 3, 5, 4), (2, 3, 3, 3)))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    got = evaluate("conv_wide", x, w, **attrs)
    assert got.dtype == np.float32
    want = evaluate("conv", x.astype(np.float32), w.astype(np.float32), **attrs)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    with pytest.raises(VerifyError, match="both must be bf16"):
        evaluate("conv_wide", x.astype(np.float32), w.astype(np.float32), **attrs)


def test_sums_of_half_convolutions_are_halves():
    x, w = (np.arange(np.prod(s)).reshape(s).astype(np.float16) % 5 for s in ((1, 3, 5, 4), (2, 3, 3, 3)))
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    got = evaluate("conv_half", x, w, **attrs)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, evaluate("conv", x.astype(np.float32), w.astype(np.float32), **attrs))
    with pytest.raises(VerifyError, match="both must be f16"):
        evaluate("conv_half", x.astype(np.float32), w.astype(np.float32), **attrs)


def test_the_expression_of_a_padded_conv():
    types = TensorType((1, 3, 8, 8), f32), TensorType((4, 3, 3, 3), f32)
    pad, conv = stages("conv", *types, strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))
    assert repr(pad) == (
        "pad[n:1, c:3, h:9, w:9] = select((0 <= h - 1) and (0 <= w - 1), x0[0, c, h - 1, w - 1], 0.0)  # pad"
    )
    assert repr(conv) == (
        "conv[n:1, o:4, h:4, w:4] = sum(pad[0, c, 2*h + r, 2*w + s] * x1[o, c, r, s] for c, r, s in (3, 3, 3))  # conv"
    )
    assert conv.attrs == {"strides": (2, 2), "dilations": (1, 1), "groups": 1}


def test_an_unpadded_conv_is_one_stage():
    (conv,) = stages("conv", TensorType((1, 3, 8, 8), f32), TensorType((4, 3, 1, 1), f32), **UNIT)
    assert conv.tag == "conv"


def test_grouped_and_depthwise_expressions():
    (grouped,) = stages("conv", TensorType((2, 4, 5, 5), f32), TensorType((6, 2, 3, 3), f32), groups=2, **UNIT)
    assert grouped.tag == "group_conv"
    assert "x0[n, 2*(o//3) + c, h + r, w + s] * x1[o, c, r, s] for c, r, s" in repr(grouped)
    (depthwise,) = stages("conv", TensorType((2, 4, 5, 5), f32), TensorType((8, 1, 3, 3), f32), groups=4, **UNIT)
    assert depthwise.tag == "depthwise"
    assert "x0[n, o//2, h + r, w + s] * x1[o, 0, r, s] for r, s" in repr(depthwise)


def test_sixteen_bit_conv_has_a_cast_stage():
    conv, rounded = stages("conv", TensorType((1, 3, 4, 4), f16), TensorType((4, 3, 1, 1), f16), **UNIT)
    assert conv.outputs[0].dtype is f32
    assert rounded.tag == "cast"


@pytest.mark.parametrize(
    "x, w, attrs, message",
    [
        ((1, 3), (4, 3), {}, "x has rank 2, 3 to 5"),
        ((1, 3, 8, 8), (4, 3, 3), {}, "rank 4 but w has rank 3"),
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, "x has 3 channels, w takes 2 in 1 groups"),
        ((1, 4, 8, 8), (3, 2, 3, 3), {"groups": 2}, "3 output channels in 2 groups"),
        ((1, 4, 8, 8), (3, 2, 3, 3), {"groups": 0}, "0 groups"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"strides": (1,)}, r"strides \(1,\) for 2 spatial axes, 2 numbers"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"strides": (0, 1)}, "at least 1"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"pads": (0, -1, 0, 0)}, "at least 0"),
        ((1, 3, 2, 8), (4, 3, 3, 3), {}, "spans 3 on axis 2, the padded input only 2"),
    ],
)
def test_conv_refuses(x, w, attrs, message):
    with pytest.raises(VerifyError, match=message):
        one_node("conv", TensorType(x, f32), TensorType(w, f32), **{**UNIT, **attrs})


def test_conv_refuses_mixed_types():
    with pytest.raises(VerifyError, match="operands are f32 and f16"):
        one_node("conv", TensorType((1, 3, 8, 8), f32), TensorType((4, 3, 3, 3), f16), **UNIT)
    assert (
        one_node("conv", TensorType((1, 3, 8, 8), u8), TensorType((4, 3, 3, 3), i8), **UNIT).outputs[0].type.dtype
        is i32
    )


def test_conv_refuses_a_third_operand():
    with pytest.raises(VerifyError, match="3 operands"):
        one_node("conv", *[TensorType((1, 3, 8, 8), f32)] * 3, **UNIT)


@pytest.mark.parametrize(
    "x, w, attrs, message",
    [
        ((1, 3, 4, 4), (4, 2, 3, 3), {}, "x has 3 channels, w takes 4"),
        ((1, 3, 4, 4), (3, 2, 3, 3), {"groups": 2}, "3 input channels in 2 groups"),
        ((1, 3, 1, 1), (3, 2, 2, 2), {"pads": (1, 1, 1, 1)}, r"spatial shape \(0, 0\)"),
        ((1, 3, 4, 4), (3, 2, 2, 2), {"output_shape": (9,)}, r"output_shape \(9,\) for 2 spatial axes"),
    ],
)
def test_conv_transpose_refuses(x, w, attrs, message):
    with pytest.raises(VerifyError, match=message):
        one_node("conv_transpose", TensorType(x, f32), TensorType(w, f32), **{**UNIT, **attrs})
