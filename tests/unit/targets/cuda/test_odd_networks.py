"""Random networks of odd shapes as CUDA, built by the host's compiler: untuned and as drawn, by Tensor Cores, too.

The interpreter agrees with what the graph says, and the printed kernels with the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mlc.ir.types import DType, f16, f32
from mlc.targets.base import get_target
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.scalars import Scalars
from tests.cuda import CXX, built
from tests.unit.targets.cuda.test_kernels import launch
from tests.unit.targets.gpu.odd import assert_agrees, kernels_of

pytestmark = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
SEEDS, BATCH = 60, 5
FIRST = 1000  # others than those of OpenCL


def check(arch: str, seeds: Sequence[int], dtype: DType) -> None:
    target = replace(get_target(f"cuda -arch={arch}").record, max_threads=256)  # type: ignore[attr-defined]
    some, scalars = kernels_of(seeds, dtype, target), Scalars(CUDA_C)
    emitted = [emit(fn, scalars) for fn, _, _ in some]
    library = built(source_of(scalars, [e.text for e in emitted]))
    for done, e in zip(some, emitted, strict=True):
        fn, inputs, _ = done
        assert_agrees(launch(library, fn, e, inputs), done, dtype)


@pytest.mark.parametrize("arch, dtype", [("sm_75", f32), ("sm_90", f16)])
def test_an_odd_network(arch: str, dtype: DType) -> None:
    check(arch, [FIRST], dtype)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, BATCH))
def test_odd_networks(arch: str, first: int, dtype: DType) -> None:
    check(arch, range(first, first + BATCH), dtype)
