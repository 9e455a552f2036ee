"""LLVM's spelling of types and literals."""

from __future__ import annotations

import math

import pytest

from mlc.ir.types import DType, bf16, boolean, f16, f32, f64, i4, i8, i64, u2, u32
from mlc.targets.llvm.text import literal, mangle_suffix, memory_type, register_type, splat


@pytest.mark.parametrize(
    "dtype, register, memory, mangled",
    [
        (f16, "half", "half", "f16"),
        (bf16, "float", "i16", "f32"),
        (f32, "float", "float", "f32"),
        (f64, "double", "double", "f64"),
        (boolean, "i1", "i8", "i1"),
        (i8, "i8", "i8", "i8"),
        (u32, "i32", "i32", "i32"),
        (i64, "i64", "i64", "i64"),
        (u2, "i2", "i8", "i2"),
        (i4, "i4", "i8", "i4"),
    ],
)
def test_types(dtype: DType, register: str, memory: str, mangled: str) -> None:
    assert register_type(dtype) == register
    assert register_type(dtype, 5) == f"<5 x {register}>"
    assert memory_type(dtype) == memory
    assert memory_type(dtype, 16) == f"<16 x {memory}>"
    assert mangle_suffix(dtype, 0) == mangled
    assert mangle_suffix(dtype, 4) == f"v4{mangled}"


@pytest.mark.parametrize(
    "value, dtype, text",
    [
        (1.0, f16, "0xH3C00"),
        (math.nan, f16, "0xH7E00"),
        (0.1, f32, "0x3FB99999A0000000"),
        (0.1, f64, "0x3FB999999999999A"),
        (1.00390625, bf16, "0x3FF0000000000000"),  # halfway: to even
        (-0.0, f32, "0x8000000000000000"),
        (1e300, f32, "0x7FF0000000000000"),
        (-math.inf, f32, "0xFFF0000000000000"),
        (True, boolean, "true"),
        (0, boolean, "false"),
        (-3, i8, "-3"),
        (2**32 - 1, u32, "4294967295"),
    ],
)
def test_literals_are_exact(value: float, dtype: DType, text: str) -> None:
    assert literal(value, dtype) == text


def test_splats() -> None:
    assert splat(2, i8, 0) == "2"
    assert splat(2, i8, 4) == "splat (i8 2)"
