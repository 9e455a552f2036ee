"""Kernels of every template as CUDA, built by the host's compiler: they compute what their groups say."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mlc.ir.loop import Function
from mlc.ir.types import i64, u8
from mlc.targets.cuda.arch import DEVICES
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.gpu.emit import Emitted, emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.schedules import TEMPLATES
from tests.cuda import CXX, built
from tests.unit.targets.gpu.configurations import random_configuration, scheduled, sizes
from tests.unit.targets.gpu.groups import CASES, Case, assert_close, put, x

pytestmark = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
H200 = DEVICES["h200"]
FOLDING = ("softmax", "softmax_many", "softmax_half", "layer_norm_long", "mean_of_rows", "sums_of_rows", "sum_of_all")


def launch(library: ctypes.CDLL, fn: Function, emitted: Emitted, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a kernel makes of some arrays."""
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(arrays) :]]
    kept = [np.full(max(1, nbytes), 0xA5, np.uint8) for nbytes in emitted.buffers]
    places = [*map(np.ascontiguousarray, arrays), *results, *kept]
    for one in emitted.launches:
        operands = (ctypes.c_void_p * len(one.operands))(*(places[k].ctypes.data for k in one.operands))
        assert getattr(library, f"launch_{one.name}")(operands, (ctypes.c_uint * 6)(*one.grid, *one.block))
    return results


def check(kernels: Sequence[tuple[Case, Function]]) -> None:
    """All of them, in one text."""
    scalars = Scalars(CUDA_C)
    emitted = [emit(fn, scalars) for _, fn in kernels]
    library = built(source_of(scalars, [e.text for e in emitted]))
    for (case, fn), e in zip(kernels, emitted, strict=True):
        feeds = case.feeds()
        assert_close(launch(library, fn, e, case.arrays(feeds)), case.expected(feeds))


def test_every_template() -> None:
    cases = {name: Case.of(name) for name in CASES}
    check([(case, kernel(case.node, name, H200)) for name, case in cases.items()])


def test_no_template_is_missing() -> None:
    """Every one of the table makes a kernel of those above; but those for channels in blocks make nothing for CUDA."""
    assert {t.name for t in TEMPLATES} == set(sizes(scheduled(CASES), H200))
    assert not H200.vectors


@pytest.mark.parametrize("name", FOLDING)
def test_any_fold(name: str) -> None:
    case, rng = Case.of(name), np.random.default_rng(len(name))
    few = replace(H200, max_threads=512)
    check([(case, kernel(random_configuration(case.node, few, rng), f"k{k}", few)) for k in range(8)])


def test_rows_beyond_32_bits_are_read() -> None:
    """Of a tensor of 2.3 * 10^9 bytes, of which only a few pages come to be."""
    rows, columns = 70_000, 32_768
    case = Case.made(
        "k", lambda b: [put(b, "gather", [x(b, rows, columns, dtype=u8), x(b, 3, name="i", dtype=i64)], axis=0)]
    )
    fn, scalars = kernel(case.node, "k", H200), Scalars(CUDA_C)
    emitted = emit(fn, scalars)
    table, at = np.zeros((rows, columns), np.uint8), np.array([rows - 1, 1, -2])
    table[at] = np.random.default_rng(1).integers(0, 256, (3, columns))
    (found,) = launch(built(source_of(scalars, [emitted.text])), fn, emitted, [table, at])
    np.testing.assert_array_equal(found.reshape(3, columns), table[at])
