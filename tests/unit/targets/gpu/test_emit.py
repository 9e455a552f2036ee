"""Texts of kernels in OpenCL C: readable, and as they should be."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from mlc.errors import CodegenError
from mlc.ir.expr import Load
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, Store
from mlc.ir.types import f32, i4
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.dialect import OPENCL_C
from tests.unit.targets.gpu.groups import Case


@pytest.mark.parametrize(
    "name",
    [
        "matmul_transposed",
        "matmul_aligned",
        "conv_bias_relu",
        "softmax",
        "depthwise_relu",
        "transpose_tiles",
        "concat",
        "gather",
    ],
)
def test_text_of_a_kernel(name: str, golden: Callable[[str], None]) -> None:
    scalars = Scalars(OPENCL_C)
    golden(source_of(scalars, [emit(kernel(Case.of(name).node, name, DEVICES["generic"]), scalars).text]))


def copy(b: Buffer, extent: int) -> Function:
    at = Var("i", 0, extent - 1)
    out = Buffer("out", b.shape, b.dtype)
    body = For(at, extent, ForKind.SERIAL, Store(out, (as_index(at),), Load(b, (as_index(at),))))
    return Function("k", (b, out), 1, body)


def test_a_launch_knows_what_its_function_shares() -> None:
    emitted = emit(kernel(Case.of("transpose_tiles").node, "k", DEVICES["generic"]), Scalars(OPENCL_C))
    (launch,) = emitted.launches
    (count,) = re.findall(r"__local float \w+\[(\d+)\]", emitted.text)
    assert (launch.shared, launch.declared) == (0, -(-int(count) // 4) * 16)  # whole vectors


def test_types_that_the_language_lacks_are_refused() -> None:
    with pytest.raises(CodegenError, match="no elements of type i4"):
        emit(copy(Buffer("x", (4,), i4), 4), Scalars(OPENCL_C))


def test_indices_beyond_32_bits_are_refused() -> None:
    with pytest.raises(CodegenError, match="needs more than 32 bits"):
        emit(copy(Buffer("x", (1 << 32,), f32), 1 << 32), Scalars(OPENCL_C))


@pytest.mark.parametrize("name", ["float", "xor", "not", "nullptr"])
def test_names_that_mean_something_are_not_taken(name: str) -> None:
    """In either language: C++ has words for operators."""
    text = emit(copy(Buffer(name, (4,), f32), 4), Scalars(OPENCL_C)).text
    assert f"restrict {name}_1" in text
