"""Random networks of odd shapes in blocks of channels (Mali): untuned and as drawn, in single and half precision.

The interpreter agrees with what the graph says, and PoCL with the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mlc.ir.types import DType, f16, f32
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import run_all
from tests.unit.targets.gpu.blocks import MALI
from tests.unit.targets.gpu.configurations import AT_ONCE
from tests.unit.targets.gpu.odd import assert_agrees, kernels_of

SEEDS, BATCH = 200, 10


def check(device: OpenClDevice, seeds: Sequence[int], dtype: DType) -> None:
    some = kernels_of(seeds, dtype, MALI)
    for k in range(0, len(some), AT_ONCE):
        part = some[k : k + AT_ONCE]
        for got, done in zip(run_all(device, [(fn, inputs) for fn, inputs, _ in part]), part, strict=True):
            assert_agrees(got, done, dtype)


@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
def test_a_few_odd_networks(quick_pocl: OpenClDevice, dtype: DType) -> None:
    check(quick_pocl, range(3), dtype)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_odd_networks(quick_pocl: OpenClDevice, first: int, dtype: DType) -> None:
    check(quick_pocl, range(first, first + BATCH), dtype)
