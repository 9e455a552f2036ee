"""Which instructions for narrow products a processor has, and what its vectors hold."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_function, run_graph
from mlc.ir.types import TensorType, bf16, f16, f32, i8, u8
from mlc.ops import get
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.rewrite.pipeline import passes_for, run_passes
from mlc.settings import CompileOptions, Observer
from mlc.targets.arm.record import record_for
from mlc.targets.base import get_target

RNG = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("cpu", "bytes_", "halves", "gain"),
    [
        ("cortex-a53", "smull_sadalp.4", None, 1),
        ("cortex-a72", "smull_sadalp.4", None, 2),
        ("cortex-a76", "sdot.4", None, 4),
        ("neoverse-v1", "sdot.4", "bfdot.4", 4),
    ],
)
def test_instructions(cpu: str, bytes_: str, halves: str | None, gain: float) -> None:
    record = record_for(cpu)
    assert record.dot_of(i8, i8).intrinsic.name == bytes_
    dot = record.dot_of(bf16, bf16)
    assert (None if dot is None else dot.intrinsic.name) == halves
    assert record.dot_of(u8, i8) is None
    assert record.bytes_gain == gain


@pytest.mark.parametrize(
    ("cpu", "features", "blocks"),
    [
        ("cortex-a76", (), [None, None]),
        ("cortex-a76", ("+i8mm",), ["smmla", None]),
        ("neoverse-v1", (), ["smmla", "bfmmla"]),
        ("neoverse-v1", ("-bf16",), ["smmla", None]),
    ],
)
def test_instructions_on_blocks(cpu: str, features: tuple[str, ...], blocks: list[str | None]) -> None:
    record = record_for(cpu, features)
    found = [record.block_dot_of(t, t) for t in (i8, bf16)]
    assert [None if dot is None else dot.intrinsic.name for dot in found] == blocks


def product(m: int, k: int, n: int) -> Graph:
    b = Builder("product")
    x = b.input("x", TensorType((m, k), i8))
    return b.finish(b.add(get("matmul"), [x, b.constant(RNG.integers(-128, 128, (k, n), np.int8), "w")]))


def convolution(channels: int, width: int, filters: int, groups: int = 1, taps: int = 3, rows: int = 3) -> Graph:
    b = Builder("convolution")
    x = b.input("x", TensorType((1, channels, rows, width), i8))
    w = b.constant(RNG.integers(-128, 128, (filters, channels // groups, taps, taps), np.int8), "w")
    attrs = {"strides": (1, 1), "pads": (taps // 2,) * 4, "dilations": (1, 1), "groups": groups}
    return b.finish(b.add(get("conv"), [x, w], attrs))


@pytest.mark.parametrize(
    ("graph", "by"),
    [
        (product(6, 16, 13), "smmla"),  # the last columns are no whole tile
        (product(30, 8, 5), "smmla"),  # nor are the last rows
        (product(5, 16, 8), "sdot.4"),  # rows without another one beside them
        (product(6, 12, 8), "sdot.4"),
        (convolution(8, 6, 11), "smmla"),
        (convolution(16, 14, 8), "smmla"),
        (convolution(32, 4, 64, groups=4), "smmla"),
        (convolution(32, 10, 16, groups=2, taps=1, rows=9), "smmla"),  # 45 pixels would fit the cache better
        (convolution(8, 5, 8), "sdot.4"),
        (convolution(12, 6, 8), "sdot.4"),
    ],
    ids=lambda x: x.nodes[0].op.name + "x".join(map(str, x.inputs[0].type.shape)) if isinstance(x, Graph) else x,
)
def test_blocks_where_rows_and_terms_are_whole_ones(graph: Graph, by: str) -> None:
    """The interpreter of loops knows what they compute."""
    target = get_target("arm -mcpu=neoverse-v1")
    (part,) = parts_of(run_passes(graph, passes_for(3), check=True), target)
    laid_out = lay_out(part, CompileOptions("m", "test", ""), Observer())
    values = dict(laid_out.constants)
    values[laid_out.inputs[0]] = x = RNG.integers(-128, 128, graph.inputs[0].type.shape, np.int8)
    texts = []
    for node in laid_out.nodes:
        fn = target.kernel(node, "k")
        texts.append(repr(fn))
        (out,) = node.outputs
        values[out] = np.full(out.type.physical_shape, 77, out.type.dtype.numpy)
        arrays = [values[v] for v in (*node.inputs, out)]
        run_function(fn, [a.reshape(b.shape) for a, b in zip(arrays, fn.params, strict=True)])
    assert f"{by}(update" in "".join(texts)
    np.testing.assert_array_equal(values[laid_out.outputs[0]], next(iter(run_graph(graph, {"x": x}).values())))


def test_text_of_a_kernel_with_blocks() -> None:
    """Sums are registers of two rows by two columns, of which rows are read."""
    target = get_target("arm -mcpu=neoverse-v1")
    (part,) = parts_of(run_passes(product(2, 8, 4), passes_for(3), check=True), target)
    laid_out = lay_out(part, CompileOptions("m", "test", ""), Observer())
    assert repr(target.kernel(laid_out.nodes[0], "k")).splitlines() == [
        "def k(p0: i8[2,8], p1: i8[1,1,4,8]) -> matmul: i32[2,4]:",
        "  matmul.register: i32[2,4] in register",
        "  smmla(reset, matmul.register[0, 0])",
        "  smmla(update, matmul.register[0, 0], p0[0, 0], p1[0, 0, 0, 0])",
        "  matmul[0, 0:4] = matmul.register[0, 0:4]  # jii in 4 lanes",
        "  matmul[1, 0:4] = matmul.register[1, 0:4]  # jii in 4 lanes",
    ]


def test_vectors_of_half_precision_have_eight_lanes_where_there_is_arithmetic() -> None:
    assert [record_for(cpu).lanes_of(t) for cpu in ("cortex-a53", "cortex-a76") for t in (f16, f32)] == [4, 4, 8, 4]
