"""The meaning of scalar operators in the corners, against plain Python."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from mlc.ir.interp.scalar import BINARY, UNARY, convert
from mlc.ir.types import ALL_DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8, u64

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreters silence numpy around these

SIGNED = [-128, -127, -7, -3, -1, 0, 1, 3, 7, 100, 127]


def wrap8(n: int) -> int:
    return (n + 128) % 256 - 128


def python(op: str, a: int, b: int) -> int:
    """What an operator on signed bytes should give."""
    match op:
        case "div":
            return 0 if b == 0 else wrap8(int(math.copysign(abs(a) // abs(b), a * b)))
        case "mod":
            return 0 if b == 0 else a % b
        case "fmod":
            return 0 if b == 0 else int(math.fmod(a, b))
        case "shl":
            return wrap8(a << b) if 0 <= b < 8 else 0
        case "shr":
            return a >> b if 0 <= b < 8 else 0
        case "pow":
            return wrap8(a**b) if b >= 0 else {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)
    return {"add": wrap8(a + b), "sub": wrap8(a - b), "mul": wrap8(a * b), "min": min(a, b), "max": max(a, b)}[op]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "mod", "fmod", "shl", "shr", "pow", "min", "max"])
def test_integer_operators(op: str) -> None:
    a, b = np.meshgrid(np.array(SIGNED, np.int8), np.array(SIGNED, np.int8))
    got = BINARY[op](a, b)
    assert got.dtype == np.int8
    for x, y, z in zip(a.flat, b.flat, got.flat, strict=True):
        assert z == python(op, int(x), int(y)), f"{op}({x}, {y})"


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_not_a_number_wins_minimum_and_maximum(dtype: DType) -> None:
    nan, one = (np.array([v], dtype.numpy) for v in (math.nan, 1.0))
    for op in ("min", "max"):
        assert np.isnan(BINARY[op](nan, one).astype(np.float64))
        assert np.isnan(BINARY[op](one, nan).astype(np.float64))


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_float_remainders(dtype: DType) -> None:
    a, b = np.array([5.5, -5.5, 5.5, 1.0], dtype.numpy), np.array([2, 2, -2, 0], dtype.numpy)
    np.testing.assert_array_equal(BINARY["mod"](a, b).astype(np.float64), [1.5, 0.5, -0.5, math.nan])
    np.testing.assert_array_equal(BINARY["fmod"](a, b).astype(np.float64), [1.5, -1.5, 1.5, math.nan])


def test_float_powers() -> None:
    inf = math.inf
    a = np.array([-inf, -inf, -inf, -8.0, 0.0, 2.0], np.float64)
    b = np.array([0.5, -0.5, 3.0, 0.5, 0.0, -1.0], np.float64)
    np.testing.assert_array_equal(BINARY["pow"](a, b), [inf, 0.0, -inf, math.nan, 1.0, 0.5])


def test_rounding_goes_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    np.testing.assert_array_equal(UNARY["round"](x), [0, 2, 2, -0.0, -2])


def test_logistic_function_does_not_overflow() -> None:
    x = np.array([-1000.0, -20.0, 0.0, 20.0, 1000.0], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        y = UNARY["sigmoid"](x)
    np.testing.assert_allclose(y, [0, 2.0611537e-9, 0.5, 1, 1], rtol=1e-6)


def test_functions_of_empty_arrays() -> None:
    for fn in ("erf", "exp", "neg"):
        assert UNARY[fn](np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_not_is_logical_on_booleans_and_bitwise_on_integers() -> None:
    np.testing.assert_array_equal(UNARY["not"](np.array([True, False])), [False, True])
    np.testing.assert_array_equal(UNARY["not"](np.array([0, 5], np.uint8)), [255, 250])


@pytest.mark.parametrize("dtype", [t for t in ALL_DTYPES.values() if t.is_int], ids=str)
@pytest.mark.parametrize("source", [f16, bf16, f32, f64], ids=str)
def test_floats_to_integers_truncate_and_saturate(dtype: DType, source: DType) -> None:
    x = np.array([2.75, -2.75, math.nan, math.inf, -math.inf], source.numpy)
    lo, hi = int(dtype.min_value), int(dtype.max_value)
    got = convert(x, dtype)
    assert got.dtype == dtype.numpy
    assert [int(v) for v in got] == [min(hi, 2), max(lo, -2), 0, hi, lo]


def test_conversion_at_the_end_of_the_range() -> None:
    x = np.array([2.0**63, 2.0**63 - 1024, -(2.0**63), 2.0**64], np.float64)
    assert [int(v) for v in convert(x, i64)] == [2**63 - 1, 2**63 - 1024, -(2**63), 2**63 - 1]
    assert [int(v) for v in convert(x, u64)] == [2**63, 2**63 - 1024, 0, 2**64 - 1]


def test_integers_wrap_and_booleans_ask_for_nonzero() -> None:
    assert [int(v) for v in convert(np.array([300, -1], np.int32), u8)] == [44, 255]
    assert [int(v) for v in convert(np.array([200], np.uint8), i8)] == [-56]
    np.testing.assert_array_equal(convert(np.array([0.0, -0.0, 0.5, math.nan]), boolean), [False, False, True, True])
    np.testing.assert_array_equal(convert(np.array([True, False]), i32), [1, 0])
    assert convert(np.array([1.0]), bf16).dtype == ml_dtypes.bfloat16
