"""Vectors of bytes that are stored next to each other: narrowed and stored together, to the same numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import Expr, binary, call, cast, const
from mlc.ir.index import Var
from mlc.ir.interp import run_function
from mlc.ir.loop import Function
from mlc.ir.types import f32, u8
from mlc.lower import Schedule, lower
from tests.unit.targets.llvm.host import Kernel, llvm

SPECIAL = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, -7.5, -6.5, -0.5, 0.5, 1.5, 247.5, 248.5, 300], np.float32)


def requantised(pixels: int, *, lanes: int = 8, zero: int = 7, most: int = 255, fn: str = "round") -> Function:
    """``cast(clip(fn(x) + zero, 0, most), u8)`` of ``[2, pixels, lanes]``, all pixels unrolled."""
    x = te.placeholder((2, pixels, lanes), f32, "x")

    def element(*at: Var) -> Expr:
        near = call(fn, x[at])
        moved, low, high = (const(n, near.dtype) for n in (zero, 0, most))
        return cast(binary("min", binary("max", binary("add", near, moved), low), high), u8)

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


@pytest.mark.skipif(not llvm.get_host_cpu_features().get("avx512bw"), reason="no AVX-512BW")
@pytest.mark.parametrize("most", [255, 40])
@pytest.mark.parametrize("fn", ["round", "nearest"])
def test_what_fits_an_integer_is_not_limited_before(fn: str, most: int) -> None:
    """Packing limits to a byte, which has its own limit then; 3e9 would convert to the least integer."""
    function = requantised(4, lanes=16, zero=3, most=most, fn=fn)
    kernel = Kernel(function, packed_lanes=16)
    assert "packuswb" in kernel.text
    assert ("fcmp" in kernel.text) == (fn == "round")
    assert ("umin.v64i8" in kernel.text) == (fn == "nearest" and most < 255)
    numbers = np.linspace(-70, 300, 741, dtype=np.float32)  # and halves
    x = np.resize(np.append(numbers[::6], [-1e9, 1e9] if fn == "nearest" else SPECIAL).astype(np.float32), (2, 4, 16))
    got, want = np.zeros(x.shape, np.uint8), np.ones(x.shape, np.uint8)
    kernel.run([x, got])
    run_function(function, [x, want])
    np.testing.assert_array_equal(got, want)


def test_the_nearest_integer() -> None:
    """Of vectors of any width, halves to even."""
    x = te.placeholder((3, 7), f32, "x")
    s = Schedule([y := te.compute(x.shape, lambda *i: call("nearest", x[i]), "y")])
    s[y].vectorize(s[y].axes[1])
    fn = lower(s, [x, y], "k")
    numbers = np.resize(np.array([-2.5, -1.5, -0.5, 0.5, 1.49, 1.5, 2.5, 1e9, -(2.0**31)], np.float32), (3, 7))
    got, want = np.zeros((3, 7), np.int32), np.ones((3, 7), np.int32)
    Kernel(fn).run([numbers, got])
    run_function(fn, [numbers, want])
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(want, np.rint(numbers).astype(np.int32))
