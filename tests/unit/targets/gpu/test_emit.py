"""Texts of kernels in OpenCL C: readable, and as they should be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from mlc.errors import CodegenError
from mlc.ir.expr import Load
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, Store
from mlc.ir.types import f16, f32, i4
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.values import Values
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.dialect import OPENCL_C
from tests.unit.targets.gpu.groups import Case, put, x


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


def test_indices_beyond_32_bits_are_long() -> None:
    """What is added up on the way counts, too, and others stay as they are."""
    case = Case.made("k", lambda b: [put(b, "relu", [x(b, 1 << 17, 1 << 15, dtype=f16)])])
    text = emit(kernel(case.node, "k", DEVICES["generic"]), Scalars(OPENCL_C)).text
    assert re.findall(r"relu \+ \((.*?)\)\)", text) == ["8*(long)tx + 2048*(long)bx"]
    a, b = Var("a", -1, 1 << 16), Var("b", 0, 1 << 16)
    values = Values(Scalars(OPENCL_C))
    values.names.update({a: "a", b: "b"})
    assert values.index(as_index(a) * (1 << 16) - as_index(b) * (1 << 16)) == "(65536*(long)a - 65536*(long)b)"
    assert values.index(as_index(a) * (1 << 16) // 100003) == "mlc_floor_div_wide(65536*(long)a, 100003)"
    assert values.scalars.functions["mlc_floor_div_wide"].startswith("static long mlc_floor_div_wide(long a, long b)")
    assert values.index(as_index(a) * 16 - as_index(b)) == "(16*a - b)"


def test_loops_and_grids_beyond_32_bits_are_refused() -> None:
    with pytest.raises(CodegenError, match="a loop of 4294967296 iterations needs more than 32 bits"):
        emit(copy(Buffer("x", (1 << 32,), f32), 1 << 32), Scalars(OPENCL_C))
    few = replace(OPENCL_C, blocks=(1, 1, 1))
    with pytest.raises(CodegenError, match=r"a grid of \d+ blocks, 1 are the most"):
        emit(kernel(Case.of("matmul").node, "k", DEVICES["generic"]), Scalars(few))


@pytest.mark.parametrize("name", ["float", "xor", "not", "nullptr"])
def test_names_that_mean_something_are_not_taken(name: str) -> None:
    """In either language: C++ has words for operators."""
    text = emit(copy(Buffer(name, (4,), f32), 4), Scalars(OPENCL_C)).text
    assert f"restrict {name}_1" in text
