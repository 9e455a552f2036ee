"""Operators of quantised networks against integers without bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, f32, i8, i32, u8
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, one_node, onnxruntime_output

I32 = np.iinfo(np.int32)
F, I, S = TensorType((2,), f32), TensorType((2,), i32), TensorType((), i32)


@examples(200)
@given(st.lists(st.integers(I32.min, I32.max), min_size=1, max_size=8), st.integers(0, 31))
def test_round_shift_rounds_halves_up_without_overflow(values, by):
    got = evaluate("round_shift", np.array(values, np.int32), np.array([by], np.int32))
    assert got.tolist() == [(v * 2 + (1 << by)) >> (by + 1) for v in values]


def test_round_shift_may_differ_by_channel():
    x = np.array([[100, -100], [7, -7], [3, -3]], np.int8)
    by = np.array([[0], [1], [7]], np.int8)
    assert evaluate("round_shift", x, by).tolist() == [[100, -100], [4, -3], [0, 0]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_steps_are_those_of_onnx(rng, dtype):
    x, scale, zero = (rng.normal(size=(3, 40)) * 9).astype(np.float32), np.float32(0.05), dtype(3)
    q = evaluate("quantize", x, scale, zero)
    np.testing.assert_array_equal(q, onnxruntime_output("QuantizeLinear", x, np.array(scale), np.array(zero)))
    wanted = onnxruntime_output("DequantizeLinear", q, np.array(scale), np.array(zero))
    np.testing.assert_array_equal(evaluate("dequantize", q, scale, zero), wanted)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([TensorType((2,), i32)], "1 operands, 2 are needed"),
        ([TensorType((2,), i32), TensorType((2,), i8)], "operands are i32 and i8"),
        ([TensorType((2,), f32), TensorType((2,), f32)], "x is f32"),
        ([TensorType((2,), u8), TensorType((2,), u8)], "x is u8"),
        ([TensorType((2,), i32), TensorType((3,), i32)], "do not broadcast"),
    ],
)
def test_round_shift_refuses(types, message):
    with pytest.raises(VerifyError, match=message):
        one_node("round_shift", *types)


def scaled(x, multiplier, shift, **attrs):
    return evaluate("fixed_scale", np.asarray(x), np.int32(multiplier), np.int32(shift), **attrs).tolist()


def half_away(x, by):
    return int(math.copysign((2 * abs(x) + (1 << by)) >> (by + 1), x))


@given(st.integers(-(2**31), 2**31 - 1), st.integers(2**30, 2**31 - 1), st.integers(-31, 0))
def test_one_rounding_and_two(x, multiplier, shift):
    exact = x * multiplier
    once = (exact + (1 << (30 - shift))) >> (31 - shift)
    twice = half_away((exact + (1 << 30)) >> 31, -shift)
    assert scaled([np.int32(x)], multiplier, shift, roundings=1) == [once]
    assert scaled([np.int32(x)], multiplier, shift) == [twice]


@given(st.integers(-1000, 1000), st.integers(2**30, 2**31 - 1), st.integers(1, 20))
def test_shifts_to_the_left_come_first(x, multiplier, shift):
    assert scaled([np.int32(x)], multiplier, shift) == [((x << shift) * multiplier + (1 << 30)) >> 31]


@given(st.integers(-(2**47), 2**47 - 1), st.integers(2**30, 2**31 - 1), st.integers(-31, -17))
def test_wide_sums_meet_sixteen_bits_of_the_multiplier(x, multiplier, shift):
    reduced = (multiplier + (1 << 15)) >> 16 if multiplier < 0x7FFF0000 else 0x7FFF
    assert scaled([np.int64(x)], multiplier, shift) == [(x * reduced + (1 << (14 - shift))) >> (15 - shift)]


@pytest.mark.parametrize(
    ("types", "attrs", "message"),
    [
        ((F, S, S), {}, "fixed_scale: x is f32, i32 or i64 is needed"),
        ((I, S, F), {}, "fixed_scale: the shift is f32, i32 is needed"),
        ((I, S, S), {"roundings": 3}, "fixed_scale: 3 roundings"),
    ],
)
def test_fixed_scale_refuses(types, attrs, message):
    with pytest.raises(VerifyError, match=message):
        one_node("fixed_scale", *types, **attrs)
