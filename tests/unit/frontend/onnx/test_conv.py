"""Convolutions as ONNX describes them, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlc.errors import ImportModelError, UnsupportedError
from tests.fuzz import examples
from tests.unit.frontend.onnx.single import compare, imported, normal, operators_of, ours

AUTO = ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]


@st.composite
def convolutions(draw):
    rank = draw(st.integers(1, 3))
    axis = lambda lo, hi: [draw(st.integers(lo, hi)) for _ in range(rank)]  # noqa: E731
    mode = draw(st.sampled_from(AUTO))
    attrs = {
        "auto_pad": mode,
        "strides": draw(st.none()) or axis(1, 3),
        "dilations": None if mode.startswith("SAME") else axis(1, 2),
        "pads": axis(0, 2) + axis(0, 2) if mode == "NOTSET" else None,
        "group": draw(st.sampled_from([1, 2])),
    }
    return axis(4, 7), axis(1, 3), attrs


@examples(40)
@given(convolutions(), st.booleans(), st.booleans())
def test_conv(case, with_bias, with_kernel_shape):
    space, kernel, attrs = case
    dilations = attrs["dilations"] or [1] * len(space)
    assume(all(n >= d * (k - 1) + 1 for n, k, d in zip(space, kernel, dilations, strict=True)))
    x, w = normal((2, 4, *space)), normal((6, 4 // attrs["group"], *kernel), 1)
    operands = [x, w, normal((6,), 2)] if with_bias else [x, w]
    compare("Conv", operands, kernel_shape=kernel if with_kernel_shape else None, constants=(1,), **attrs)


@examples(40)
@given(convolutions(), st.booleans(), st.data())
def test_conv_transpose(case, with_bias, data):
    space, kernel, attrs = case
    rank = len(space)
    assume(rank < 3)
    strides = attrs["strides"]
    dilations = attrs["dilations"] or [1] * rank
    full = [s * (n - 1) + d * (k - 1) + 1 for s, n, k, d in zip(strides, space, kernel, dilations, strict=True)]
    if attrs["auto_pad"] == "NOTSET":
        pads = attrs["pads"]
        assume(all(f - pads[d] - pads[rank + d] >= 1 for d, f in enumerate(full)))
        attrs["output_padding"] = [data.draw(st.integers(0, s - 1)) for s in strides]
    elif attrs["auto_pad"].startswith("SAME"):
        # where the stride exceeds the kernel, onnxruntime's output is smaller than the definition says
        assume(all(k >= s for k, s in zip(kernel, strides, strict=True)))
    x, w = normal((2, 4, *space)), normal((4, 3, *kernel), 1)
    operands = [x, w, normal((3 * attrs["group"],), 2)] if with_bias else [x, w]
    compare("ConvTranspose", operands, constants=(1,), **attrs)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("output_shape", [(9, 8), (10, 9), (8, 10)])
def test_conv_transpose_with_output_shape(auto_pad, output_shape):
    x, w = normal((1, 2, 4, 4)), normal((2, 3, 4, 4), 1)
    compare("ConvTranspose", [x, w], auto_pad=auto_pad, output_shape=list(output_shape), strides=[2, 2], constants=(1,))


def test_a_bias_is_an_addition_after_the_convolution():
    graph = imported("Conv", [normal((1, 2, 5, 5)), normal((3, 2, 3, 3)), normal((3,))], constants=(1, 2))
    assert operators_of(graph) == ["conv", "add"]
    bias = graph.nodes[1].inputs[1]
    assert bias.type.shape == (3, 1, 1)
    assert bias in graph.constants


@pytest.mark.parametrize(
    "activation, params, reference",
    [
        (None, None, lambda y: y),
        ("Relu", None, lambda y: np.maximum(y, 0)),
        ("Tanh", None, np.tanh),
        ("LeakyRelu", [0.25], lambda y: np.where(y > 0, y, 0.25 * y)),
        ("Clip", [-0.5, 0.5], lambda y: np.clip(y, -0.5, 0.5)),
        ("HardSigmoid", [0.3, 0.4], lambda y: np.clip(0.3 * y + 0.4, 0, 1)),
    ],
)
def test_fused_conv(activation, params, reference):
    x, w, b, z = normal((1, 2, 5, 5)), normal((3, 2, 3, 3), 1), normal((3,), 2), normal((1, 3, 3, 3), 3)
    (plain,) = ours("Conv", [x, w, b])
    (got,) = ours("FusedConv", [x, w, b, z], domain="com.microsoft", activation=activation, activation_params=params)
    np.testing.assert_allclose(got, reference(plain + z), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shapes, attrs, message",
    [
        (
            [(1, 2, 5, 5), (3, 2, 3, 3)],
            {"kernel_shape": [2, 2]},
            r"kernel_shape is \(2, 2\), the weights have \(3, 3\)",
        ),
        ([(1, 2, 5, 5), (3, 2, 3)], {}, "X has rank 4 but W has rank 3"),
        ([(1, 2, 5, 5), (3, 2, 3, 3), (2,)], {}, r"a bias of shape \(2,\) for 3 channels"),
        ([(1, 2, 5, 5), (3, 2, 3, 3)], {"auto_pad": "SAME"}, "auto_pad is 'SAME'"),
        ([(1, 2, 5, 5), (3, 2, 3, 3)], {"strides": [1]}, "'strides' has 1 numbers, 2 are needed"),
        ([(1, 2, 5, 5), (3, 2, 3, 3)], {"dilations": [0, 1]}, "must be positive"),
        ([(1, 3, 5, 5), (3, 2, 3, 3)], {}, "x has 3 channels, w takes 2"),
        ([(1, 2), (3, 2)], {}, "X has rank 2, 3 or more"),
    ],
)
def test_a_contradictory_convolution_is_refused(shapes, attrs, message):
    with pytest.raises(ImportModelError, match=message):
        imported("Conv", [normal(s) for s in shapes], **attrs)


@pytest.mark.parametrize(
    "shapes, attrs, message",
    [
        ([(1, 2, 5, 5), (2, 3, 3)], {}, "X has rank 4 but W has rank 3"),
        ([(1, 2), (2, 3)], {}, "X has rank 2, 3 or more"),
        ([(1, 2, 4, 4), (2, 3, 2, 2)], {"output_shape": [9]}, r"output_shape \(9,\) for 2 spatial axes"),
        ([(1, 2, 4, 4), (2, 3, 2, 2)], {"output_padding": [1]}, "'output_padding' has 1 numbers"),
    ],
)
def test_a_contradictory_transposed_convolution_is_refused(shapes, attrs, message):
    with pytest.raises(ImportModelError, match=message):
        imported("ConvTranspose", [normal(s) for s in shapes], **attrs)


def test_what_is_not_supported_is_refused():
    with pytest.raises(UnsupportedError, match="rank 6"):
        imported("Conv", [normal((1, 1, 2, 2, 2, 2)), normal((1, 1, 1, 1, 1, 1))])
    with pytest.raises(UnsupportedError, match="activation 'sin'"):
        imported("FusedConv", [normal((1, 2, 5, 5)), normal((3, 2, 3, 3))], domain="com.microsoft", activation="Sin")


@pytest.mark.parametrize(
    "image, block, attrs",
    [
        ((5, 6), (2, 3), {}),
        ((5, 7), (2, 2), {"strides": [2, 3], "pads": [1, 0, 0, 2]}),
        ((6, 6), (3, 2), {"dilations": [2, 3], "pads": [1, 1, 1, 1]}),
        ((7,), (3,), {"strides": [2]}),
    ],
)
def test_col2im(image, block, attrs):
    rank = len(image)
    pads, strides = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(block, attrs.get("dilations", [1] * rank), strict=True)]
    counts = [(n + pads[d] + pads[rank + d] - reach[d]) // strides[d] + 1 for d, n in enumerate(image)]
    columns = np.random.default_rng(3).normal(size=(2, 3 * np.prod(block), np.prod(counts))).astype(np.float32)
    compare("Col2Im", [columns, np.array(image), np.array(block)], opset=18, constants=[1, 2], **attrs)


def test_columns_have_to_fit():
    operands = [np.zeros((1, 4, 10), np.float32), np.array([5, 6]), np.array([2, 2])]
    with pytest.raises(ImportModelError, match=r"10 columns, where an image \(5, 6\) has \[4, 5\] windows"):
        ours("Col2Im", operands, opset=18, constants=[1, 2])
