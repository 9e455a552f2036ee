"""Vectors of bytes that are stored next to each other: narrowed and stored together, to the same numbers."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import Call, Expr, binary, cast, const
from mlc.ir.index import Var
from mlc.ir.interp import run_function
from mlc.ir.loop import Function
from mlc.ir.types import f32, u8
from mlc.lower import Schedule, lower
from tests.unit.targets.llvm.host import Kernel, llvm

SPECIAL = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, -7.5, -6.5, -0.5, 0.5, 1.5, 247.5, 248.5, 300], np.float32)


def itself(x: Expr) -> Expr:
    return x


def requantised(
    pixels: int, *, lanes: int = 8, zero: int = 7, most: int = 255, of: Callable[[Expr], Expr] = itself
) -> Function:
    """``cast(clip(round(of(x)) + zero, 0, most), u8)`` of ``[2, pixels, lanes]``, all pixels unrolled."""
    x = te.placeholder((2, pixels, lanes), f32, "x")

    def element(*at: Var) -> Expr:
        near = binary("add", Call("round", (of(x[at]),), f32), const(float(zero), f32))
        return cast(binary("min", binary("max", near, const(0.0, f32)), const(float(most), f32)), u8)

    y = te.compute(x.shape, element, "y")
    s = Schedule([y])
    _, pixel, lane = s[y].axes
    s[y].unroll(pixel)
    s[y].vectorize(lane)
    return lower(s, [x, y], "k")


def stores(kernel: Kernel) -> list[int]:
    """The bytes of every store of a vector."""
    return [int(n) for n in re.findall(r"store <(\d+) x i8>", kernel.text)]


@pytest.mark.parametrize(("pixels", "expected"), [(1, [8]), (4, [32]), (5, [32, 8]), (7, [32, 16, 8]), (8, [32, 32])])
def test_neighbours_are_stored_together(pixels: int, expected: list[int]) -> None:
    fn = requantised(pixels)
    kernel = Kernel(fn)
    assert stores(kernel) == expected
    x = np.resize(SPECIAL, (2, pixels, 8)) + np.zeros((2, 1, 1), np.float32)
    got, want = np.zeros(x.shape, np.uint8), np.ones(x.shape, np.uint8)
    kernel.run([x, got])
    run_function(fn, [x, want])
    np.testing.assert_array_equal(got, want)


def test_vectors_that_are_narrowed_by_an_instruction_are_stored_one_by_one() -> None:
    assert stores(Kernel(requantised(4, lanes=16))) == [16] * 4


@pytest.mark.skipif(not llvm.get_host_cpu_features().get("avx512bw"), reason="no AVX-512BW")
@pytest.mark.parametrize(("pixels", "expected"), [(3, [16] * 3), (4, [64]), (6, [64, 16, 16]), (9, [64, 64, 16])])
@pytest.mark.parametrize(("zero", "most"), [(7, 255), (0, 255), (3, 40)])
def test_instructions_that_narrow_with_saturation(pixels: int, expected: list[int], zero: int, most: int) -> None:
    fn = requantised(pixels, lanes=16, zero=zero, most=most)
    kernel = Kernel(fn, packed_lanes=16)
    assert stores(kernel) == expected
    assert ("packuswb" in kernel.text) == (64 in expected)
    x = np.resize(SPECIAL, (2, pixels, 16)) + np.zeros((2, 1, 1), np.float32)
    got, want = np.zeros(x.shape, np.uint8), np.ones(x.shape, np.uint8)
    kernel.run([x, got])
    run_function(fn, [x, want])
    np.testing.assert_array_equal(got, want)


def limited(x: Expr) -> Expr:
    """What was requantised before, in steps of another scale."""
    near = binary("min", binary("max", Call("round", (x,), f32), const(-132.0, f32)), const(123.0, f32))
    return binary("add", binary("mul", near, const(2.5, f32)), const(0.25, f32))


@pytest.mark.skipif(not llvm.get_host_cpu_features().get("avx512bw"), reason="no AVX-512BW")
@pytest.mark.parametrize(
    ("of", "most", "compared"),
    [
        (itself, 255, True),  # 3e9 converts to the least integer
        (limited, 255, False),  # packing limits to a byte
        (limited, 40, True),
        (lambda x: binary("mul", x, const(0.0, f32)), 255, True),
        (lambda x: binary("mul", limited(x), const(1e9, f32)), 255, True),
    ],
)
def test_what_converts_to_integers_is_not_limited_before(of: Callable[[Expr], Expr], most: int, compared: bool) -> None:
    fn = requantised(4, lanes=16, zero=3, most=most, of=of)
    kernel = Kernel(fn, packed_lanes=16)
    assert "packuswb" in kernel.text
    assert (f"0x{struct.pack('>d', most - 3).hex().upper()}" in kernel.text) == compared
    x = np.resize(np.concatenate([SPECIAL, np.linspace(-200, 200, 51, dtype=np.float32)]), (2, 4, 16))
    got, want = np.zeros(x.shape, np.uint8), np.ones(x.shape, np.uint8)
    kernel.run([x, got])
    run_function(fn, [x, want])
    np.testing.assert_array_equal(got, want)
