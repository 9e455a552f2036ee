"""Scalar operators on PoCL, for values at and beyond every bound: what C leaves open is what the IR says."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import BINARY, INTRINSICS, binary, call, cast
from mlc.ir.interp import run_tensors
from mlc.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from mlc.lower import Schedule, lower
from mlc.lower.pipeline import GRID_PASSES
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import run

TYPES = (f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, boolean)
QUICK = (f32, i8)
ULPS = 64  # of functions whose precision OpenCL leaves to the device


def values(dtype: DType) -> np.ndarray:
    """Numbers of a type, special ones first."""
    rng = np.random.default_rng(0)
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 1e10, -3e9, 127.5, 1e-3]
        with np.errstate(over="ignore"):
            return np.concatenate([special, rng.standard_normal(19) * 3]).astype(dtype.numpy)
    if dtype.kind == "b":
        return rng.integers(0, 2, 32).astype(bool)
    info = np.iinfo(dtype.numpy)
    special = [0, 1, info.max, info.min, info.max - 1, 2, 7, info.max // 2]
    drawn = rng.integers(max(info.min, -50), min(info.max, 50), 24)
    return np.array([*special, *drawn.tolist()], dtype.numpy)


def expressions(a: te.Tensor, b: te.Tensor) -> dict[str, te.Tensor]:
    """Every operator that takes the type, as a tensor of results."""
    t = a.dtype
    found = {
        op: te.compute(a.shape, lambda i, op=op: binary(op, a[i], b[i]), op)
        for op, (kinds, _) in BINARY.items()
        if t.kind in kinds
    }
    for fn, (count, kinds, _) in INTRINSICS.items():
        if t.kind in kinds and count == 1:
            found[fn] = te.compute(a.shape, lambda i, fn=fn: call(fn, a[i]), fn)
        elif t is u32 and count == 4:
            found[fn] = te.compute(a.shape, lambda i, fn=fn: call(fn, a[i], b[i], b[i], a[i]), fn)
    for to in TYPES:
        if to is not t:
            found[f"to_{to}"] = te.compute(a.shape, lambda i, to=to: cast(a[i], to), f"to_{to}")
    return found


@pytest.mark.parametrize(
    "dtype", [t if t in QUICK else pytest.param(t, marks=pytest.mark.slow) for t in TYPES], ids=str
)
def test_operators_mean_what_the_interpreter_says(pocl: OpenClDevice, dtype: DType) -> None:
    check(pocl, dtype)


def test_they_do_without_optimisation(quick_pocl: OpenClDevice) -> None:
    """In half precision: optimising that takes seconds."""
    check(quick_pocl, f16)


def check(device: OpenClDevice, dtype: DType) -> None:
    numbers = values(dtype)
    left, right = (m.reshape(-1).copy() for m in np.meshgrid(numbers, numbers))
    a, b = te.placeholder(left.shape, dtype, "a"), te.placeholder(left.shape, dtype, "b")
    found = expressions(a, b)
    outputs = list(found.values())
    s = Schedule(outputs)
    for t in outputs:
        bx, tx = s[t].split(s[t].axes[0], 64)
        s[t].bind(bx, "blockIdx.x")
        s[t].bind(tx, "threadIdx.x")
    fn = lower(s, [a, b, *outputs], "k", passes=GRID_PASSES)
    with np.errstate(all="ignore"):
        want = run_tensors(outputs, {a: left, b: right})
    for name, got, expected in zip(found, run(device, fn, [left, right]), want, strict=True):
        eps = float(np.finfo(expected.dtype).eps) if expected.dtype.kind == "f" else 2.0**-7
        if expected.dtype == bf16.numpy:  # which numpy does not count among the floats
            got, expected = got.astype(np.float32), expected.astype(np.float32)
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
            continue
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), err_msg=name)
        np.testing.assert_array_equal(
            got[~finite & ~np.isnan(expected)], expected[~finite & ~np.isnan(expected)], err_msg=name
        )
        np.testing.assert_allclose(got[finite], expected[finite], rtol=ULPS * eps, atol=ULPS * eps, err_msg=name)
