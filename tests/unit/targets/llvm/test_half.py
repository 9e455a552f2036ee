"""Half precision on processors that have no instructions for it."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.expr import Load, cast
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, Store
from mlc.ir.types import DType, f16, f32
from mlc.targets.llvm.module import Machine
from tests.unit.targets.llvm.host import Kernel, machine

OLD = Machine("x86_64-unknown-linux-gnu", "x86-64", "", 128)
EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16)

pytestmark = pytest.mark.skipif(not machine().triple.startswith("x86_64"), reason="runs code for x86-64")


def converted(x: np.ndarray, source: DType, to: DType) -> np.ndarray:
    i = Var("i", 0, x.size - 1)
    a, out = Buffer("a", x.shape, source), Buffer("out", x.shape, to)
    body = Store(out, (as_index(i),), cast(Load(a, (as_index(i),)), to))
    kernel = Kernel(Function("kernel", (a, out), 1, For(i, x.size, ForKind.SERIAL, body)), target=OLD)
    assert "@__truncsfhf2" in kernel.text
    got = np.zeros(x.shape, to.numpy)
    kernel.run([x, got])
    return got


def test_every_half_widens_exactly() -> None:
    np.testing.assert_array_equal(converted(EVERY_HALF, f16, f32), EVERY_HALF.astype(np.float32))


def test_singles_narrow_to_the_nearest_half() -> None:
    """Every half, what lies in the middle between two, and the singles next to those."""
    finite = np.sort(EVERY_HALF[np.isfinite(EVERY_HALF)].astype(np.float32))
    middles = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    edges = np.array([65519.99, 65520, 1e38, np.inf, np.nan, 1e-45, 2**-25, 2**-24, -0.0], np.float32)
    x = np.concatenate([finite, middles, *beside, edges, -edges])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    got = converted(x, f32, f16)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
