"""Operators of quantised networks against integers without bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, f32, i8, i32, u8
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, one_node

I32 = np.iinfo(np.int32)


@examples(200)
@given(st.lists(st.integers(I32.min, I32.max), min_size=1, max_size=8), st.integers(0, 31))
def test_round_shift_rounds_halves_up_without_overflow(values, by):
    got = evaluate("round_shift", np.array(values, np.int32), np.array([by], np.int32))
    assert got.tolist() == [(v * 2 + (1 << by)) >> (by + 1) for v in values]


def test_round_shift_may_differ_by_channel():
    x = np.array([[100, -100], [7, -7], [3, -3]], np.int8)
    by = np.array([[0], [1], [7]], np.int8)
    assert evaluate("round_shift", x, by).tolist() == [[100, -100], [4, -3], [0, 0]]


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
