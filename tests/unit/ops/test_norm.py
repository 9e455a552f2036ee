"""Normalisations against their definitions in double precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, f16, f32, i32
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, one_node, onnxruntime_output, stages


def normal(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def normalised(x, axes, epsilon):
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


shapes = st.lists(st.sampled_from([1, 2, 5, 7]), min_size=1, max_size=4)


@examples(40)
@given(shapes, st.data())
def test_layer_and_rms_norm_over_trailing_axes(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    axes = tuple(range(axis, len(shape)))
    x = normal(shape) + 3
    scale, bias = normal(shape[axis:], 1), normal(shape[-1:], 2)
    got = evaluate("layer_norm", x, scale, bias, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(got, normalised(x, axes, 1e-3) * scale + bias, rtol=1e-4, atol=1e-4)
    got = evaluate("rms_norm", x, scale, axis=axis - len(shape), epsilon=1e-3)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(axes, keepdims=True) + 1e-3)
    np.testing.assert_allclose(got, x / root * scale, rtol=1e-4, atol=1e-5)


def test_a_large_mean_does_not_spoil_the_variance():
    x = normal((2, 64)) + 4096
    got = evaluate("layer_norm", x, np.ones(64, np.float32), np.zeros(64, np.float32))
    np.testing.assert_allclose(got, normalised(x, 1, 1e-5), rtol=1e-3, atol=1e-3)


@examples(30)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.lists(st.sampled_from([2, 3, 5]), max_size=3))
def test_instance_and_group_norm(batch, groups, size, space):
    channels = groups * size
    x = normal((batch, channels, *space)) * 2 + 1
    scale, bias = normal((channels,), 1), normal((channels,), 2)
    per_channel = (channels, *[1] * len(space))
    grouped = normalised(x.reshape(batch, groups, -1), 2, 1e-3).reshape(x.shape)
    expected = grouped * scale.reshape(per_channel) + bias.reshape(per_channel)
    got = evaluate("group_norm", x, scale, bias, groups=groups, epsilon=1e-3)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    if not space:
        return
    axes = tuple(range(2, 2 + len(space)))
    expected = normalised(x, axes, 1e-3) * scale.reshape(per_channel) + bias.reshape(per_channel)
    got = evaluate("instance_norm", x, scale, bias, epsilon=1e-3)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("shape", [(2, 7, 3, 2), (1, 2, 4, 4)])
def test_lrn_is_onnx_lrn(size, shape):
    x = normal(shape)
    attrs = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    np.testing.assert_allclose(evaluate("lrn", x, **attrs), onnxruntime_output("LRN", x, **attrs), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_floats_are_rounded_once(dtype):
    x, one, zero = normal((3, 300), dtype=dtype), np.ones(300, dtype), np.zeros(300, dtype)
    expected = normalised(x.astype(np.float32), 1, 1e-5).astype(np.float32).astype(dtype)
    got = evaluate("layer_norm", x, one, zero).astype(np.float32)
    np.testing.assert_allclose(got, expected.astype(np.float32), rtol=float(ml_dtypes.finfo(dtype).eps))


def test_statistics_take_two_passes():
    x = TensorType((2, 3, 4), f32)
    ops = stages("layer_norm", x, TensorType((4,), f32), TensorType((4,), f32))
    assert [s.tag for s in ops] == ["sum", "", "sum", "", "", "layer_norm"]
    assert [s.shape for s in ops] == [(2, 3)] * 5 + [(2, 3, 4)]


def of(*shapes, dtype=f32):
    return [TensorType(s, dtype) for s in shapes]


@pytest.mark.parametrize(
    "op, types, attrs, message",
    [
        ("layer_norm", of((2, 3), (3,), (3,)), {"axis": 2}, "axis 2 of a tensor of rank 2"),
        ("layer_norm", of((2, 3), (2,), (3,)), {}, r"scale \(2,\) does not broadcast to x \(2, 3\)"),
        ("layer_norm", of((2, 3), (3,), (1, 2, 3)), {}, r"bias \(1, 2, 3\) does not broadcast"),
        ("layer_norm", [*of((2, 3), (3,)), *of((3,), dtype=f16)], {}, "operands are f32 and f16"),
        ("layer_norm", of((2, 3), (3,)), {}, "2 operands, 3 are needed"),
        ("rms_norm", of((2, 3), (3,), dtype=i32), {}, "x is i32"),
        ("instance_norm", of((2, 3), (3,), (3,)), {}, "x has rank 2, 3 or more"),
        ("group_norm", of((2,), (2,), (2,)), {"groups": 1}, "x has rank 1, 2 or more"),
        ("instance_norm", of((2, 3, 4), (2,), (3,)), {}, r"scale \(2,\) for 3 channels"),
        ("group_norm", of((2, 3, 4), (3,), (3,)), {"groups": 2}, "3 channels in 2 groups"),
        ("group_norm", of((2, 3, 4), (3,), (3,)), {"groups": 0}, "3 channels in 0 groups"),
        ("lrn", of((2,)), {"size": 3}, "x has rank 1"),
        ("lrn", of((2, 3)), {"size": 0}, "size 0"),
    ],
)
def test_norms_refuse(op, types, attrs, message):
    with pytest.raises(VerifyError, match=f"{op}: .*{message}"):
        one_node(op, *types, **attrs)
