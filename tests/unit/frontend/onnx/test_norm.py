"""Softmax and normalisations of every operator-set version, against onnxruntime or their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, normal, operators_of, ours


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("opset", [7, 11, 13, 21])
def test_softmax(op, axis, opset):
    compare(op, [normal((2, 3, 4))], axis=axis, opset=opset)


def test_softmax_before_opset_13_flattens():
    assert operators_of(imported("Softmax", [normal((2, 3, 4))], opset=11)) == ["reshape", "softmax", "reshape"]
    assert operators_of(imported("Softmax", [normal((2, 3, 4))], opset=11, axis=2)) == ["softmax"]
    compare("Softmax", [normal((5,))], opset=11, axis=0)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_normalization_with_statistics(axis, with_bias):
    x = normal((2, 3, 4))
    part = x.shape[-1 if axis is None else axis :]
    operands = [x, normal(part, 1), normal(part, 2)] if with_bias else [x, normal(part, 1)]
    compare("LayerNormalization", operands, outputs=3, axis=axis, epsilon=1e-2)


def test_layer_normalization_stands_in_old_models_too():
    compare("LayerNormalization", [normal((2, 4)), normal((4,), 1), normal((4,), 2)], opset=17)
    assert operators_of(imported("LayerNormalization", [normal((2, 4)), normal((4,))], opset=11)) == ["layer_norm"]


def test_statistics_of_half_precision_are_single():
    x = normal((2, 4), dtype=np.float16)
    y, mean, deviation = ours("LayerNormalization", [x, np.ones(4, np.float16)], outputs=3)
    assert (y.dtype, mean.dtype, deviation.dtype) == (np.float16, np.float32, np.float32)
    with pytest.raises(ImportModelError, match="'stash_type' is 7, which is no float type"):
        imported("LayerNormalization", [x, np.ones(4, np.float16)], outputs=2, stash_type=7)


@pytest.mark.parametrize("op, opset", [("RMSNormalization", 23), ("SimplifiedLayerNormalization", 17)])
def test_rms_normalization(op, opset):
    x, scale = normal((2, 3, 4)), normal((4,), 1)
    (got,) = ours(op, [x, scale], opset=opset, epsilon=1e-2)
    np.testing.assert_allclose(got, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2) * scale, rtol=1e-5)


def test_the_second_output_of_rms_normalization_is_not_supported():
    with pytest.raises(UnsupportedError, match="second output"):
        imported("SimplifiedLayerNormalization", [normal((2, 4)), normal((4,))], opset=17, outputs=2)


@pytest.mark.parametrize("space", [(5,), (4, 3), (2, 3, 2)])
def test_instance_normalization(space):
    compare("InstanceNormalization", [normal((2, 3, *space)), normal((3,), 1), normal((3,), 2)], epsilon=1e-2)


def group_norm(x, scale, bias, groups):
    rows = x.reshape(x.shape[0], groups, -1)
    y = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    per_channel = (-1, *[1] * (x.ndim - 2))
    return y.reshape(x.shape) * scale.reshape(per_channel) + bias.reshape(per_channel)


@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_group_normalization_has_one_scale_a_group_until_opset_20(constants):
    x, scale, bias = normal((2, 6, 3, 2)), normal((3,), 1), normal((3,), 2)
    (got,) = ours("GroupNormalization", [x, scale, bias], opset=18, num_groups=3, constants=constants)
    np.testing.assert_allclose(got, group_norm(x, scale.repeat(2), bias.repeat(2), 3), rtol=1e-4, atol=1e-5)
    with pytest.raises(ImportModelError, match=r"scale or bias of shape \(6,\) for 3 groups"):
        imported("GroupNormalization", [x, normal((6,)), normal((6,))], opset=18, num_groups=3)


def test_group_normalization_has_one_scale_a_channel_since_opset_21():
    x, scale, bias = normal((2, 6, 5)), normal((6,), 1), normal((6,), 2)
    (got,) = ours("GroupNormalization", [x, scale, bias], opset=21, num_groups=2)
    np.testing.assert_allclose(got, group_norm(x, scale, bias, 2), rtol=1e-4, atol=1e-5)
    with pytest.raises(ImportModelError, match="6 channels in 4 groups"):
        imported("GroupNormalization", [x, scale, bias], opset=21, num_groups=4)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization(p, axis):
    compare("LpNormalization", [normal((3, 4, 2))], p=p, axis=axis)


def test_lp_normalization_of_zeros_is_zero():
    np.testing.assert_array_equal(ours("LpNormalization", [np.zeros((2, 3), np.float32)])[0], 0)


@pytest.mark.parametrize("size", [3, 5, 7, 13, 15, 999])
def test_lrn(size):
    compare("LRN", [normal((2, 7, 3, 2))], size=size)
    compare("LRN", [normal((2, 7, 3, 2))], size=size, alpha=0.5, beta=0.3, bias=2.0)


@pytest.mark.parametrize(
    "op, shapes, attrs",
    [
        ("Softmax", [(2, 3)], {"axis": 2}),
        ("LayerNormalization", [(2, 3), (3,)], {"axis": -3}),
        ("LpNormalization", [(2, 3)], {"axis": 5}),
    ],
)
def test_an_axis_out_of_range_is_refused(op, shapes, attrs):
    with pytest.raises(ImportModelError, match="of a tensor of rank 2"):
        imported(op, [normal(s) for s in shapes], **attrs)
