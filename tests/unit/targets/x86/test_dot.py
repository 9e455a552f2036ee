"""Instructions that sum up products of bytes: what schedules become with them, and what they compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_function, run_graph
from mlc.ir.types import TensorType, bf16, f32, i7, i16, u8
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.rewrite.pipeline import passes_for, run_passes
from mlc.rewrite.words import use_words
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.x86.record import record_for
from tests.unit.targets.llvm.host import Kernel, llvm

RNG = np.random.default_rng(5)


def product(m: int, k: int, n: int) -> Graph:
    b = Builder("product")
    x = b.input("x", TensorType((m, k), u8))
    w = b.constant(RNG.integers(-128, 128, (k, n), np.int8), "w")
    return b.finish(b.add(get("matmul"), [x, w]))


def convolution(channels: int, filters: int) -> Graph:
    b = Builder("convolution")
    x = b.input("x", TensorType((1, channels, 3, 4), u8))
    w = b.constant(RNG.integers(-128, 128, (filters, channels, 3, 3), np.int8), "w")
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return b.finish(b.add(get("conv"), [x, w], attrs))


def kernel_of(graph: Graph, cpu: str):
    """The loops of a graph of one operator, and the graph with layouts."""
    target = get_target(f"x86 -mcpu={cpu}")
    (part,) = parts_of(run_passes(graph, passes_for(3), check=True), target)
    laid_out = lay_out(part, CompileOptions("m", "test", ""), Observer())
    return target.kernel(laid_out.nodes[0], "k"), laid_out


def test_text_of_a_kernel():
    fn, _ = kernel_of(product(1, 8, 16), "znver4")
    assert repr(fn).splitlines() == [
        "def k(p0: u8[1,8], p1: i8[1,2,16,4]) -> matmul: i32[1,16]:",
        "  matmul.register: i32[1,16] in register",
        "  vpdpbusd.16(reset, matmul.register[0, 0])",
        "  vpdpbusd.16(update, matmul.register[0, 0], p0[0, 0], p1[0, 0, 0, 0])",
        "  vpdpbusd.16(update, matmul.register[0, 0], p0[0, 4], p1[0, 1, 0, 0])",
        "  matmul[0, 0:16] = matmul.register[0, 0:16]  # jii in 16 lanes",
    ]


@pytest.mark.parametrize("cpu", ["znver4", "alderlake", "skylake-avx512", "haswell", "x86-64"])
@pytest.mark.parametrize("graph", [product(3, 10, 21), convolution(5, 16)], ids=["product", "convolution"])
def test_the_interpreter_knows_what_they_compute(graph, cpu):
    """Also of processors that are not here."""
    fn, laid_out = kernel_of(graph, cpu)
    assert f"{record_for(cpu).dot.intrinsic}(update" in repr(fn)
    x = RNG.integers(0, 256, graph.inputs[0].type.shape, np.uint8)
    (weights,) = laid_out.constants.values()
    node = laid_out.nodes[0]
    y = np.full(node.outputs[0].type.physical_shape, -1, np.int32)
    # axes that lie next to each other may be one
    run_function(fn, [a.reshape(b.shape) for a, b in zip((x, weights, y), fn.params, strict=True)])
    layout = node.outputs[0].type.layout
    (expected,) = run_graph(graph, {"x": x}).values()
    np.testing.assert_array_equal(y if layout is None else layout.unpack(y), expected)


def of_image(n: int, channels: int, space: tuple[int, ...], taps: tuple[int, ...], stride: int, pad: int) -> Graph:
    """A first layer: few channels, whatever rank."""
    b = Builder("image")
    x = b.input("x", TensorType((n, channels, *space), u8))
    w = b.constant(RNG.integers(-128, 128, (20, channels, *taps), np.int8), "w")
    rank = len(space)
    attrs = {"strides": (stride,) * rank, "pads": (pad,) * 2 * rank, "dilations": (1,) * rank}
    return b.finish(b.add(get("conv"), [x, w], attrs))


@pytest.mark.parametrize(
    ("graph", "steps"),
    [
        (of_image(1, 3, (9, 11), (3, 3), 2, 1), 7),
        (of_image(2, 3, (3, 4), (3, 3), 1, 1), 7),
        (of_image(1, 3, (5, 6), (7, 7), 2, 3), 37),
        (of_image(1, 1, (6, 20), (5, 5), 1, 0), 7),
        (of_image(1, 7, (6, 6), (4, 1), 2, 0), 7),
        (of_image(1, 2, (30,), (9,), 1, 4), 5),
        (of_image(1, 1, (2, 3, 4), (2, 3, 3), 1, 1), 5),
    ],
)
def test_windows_of_few_channels_are_runs_of_neighbours(graph, steps):
    """In as many instructions as their terms fill; channels of a pixel would take one for each tap."""
    fn, laid_out = kernel_of(graph, "znver4")
    (weights,) = laid_out.constants.values()
    assert weights.shape == (1, steps, 32, 4)
    x = RNG.integers(0, 256, graph.inputs[0].type.shape, np.uint8)
    t = laid_out.nodes[0].outputs[0].type
    y = np.full(t.physical_shape, -1, np.int32)
    arrays = [a.reshape(b.shape) for a, b in zip((x, weights, y), fn.params, strict=True)]
    run_function(fn, arrays)
    (expected,) = run_graph(graph, {"x": x}).values()
    np.testing.assert_array_equal(t.layout.unpack(y), expected)


@pytest.mark.parametrize("cpu", ["cascadelake", "alderlake"])
def test_runs_need_permutations_of_bytes(cpu):
    """Without them, rows are not side by side as fast."""
    fn, _ = kernel_of(of_image(1, 3, (9, 11), (3, 3), 2, 1), cpu)
    assert "rows:" not in repr(fn)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell", "x86-64"])
@pytest.mark.parametrize("graph", [product(9, 10, 21), convolution(5, 16)], ids=["product", "convolution"])
def test_products_of_words(graph, cpu):
    """What bytes are widened to where the processor multiplies pairs of words."""
    words = use_words(graph, lambda node: Algorithm.DIRECT, [i16])
    _, laid_out = kernel_of(words, cpu)
    node = next(n for n in laid_out.nodes if not laid_out.constants.keys().isdisjoint(n.inputs))
    fn = get_target(f"x86 -mcpu={cpu}").kernel(node, "k")
    assert f"{record_for(cpu).word_dot.intrinsic}(update" in repr(fn)
    x = RNG.integers(0, 256, graph.inputs[0].type.shape, np.uint8)
    (packed,) = laid_out.constants.values()
    t = node.inputs[0].type
    data = x.astype(np.int16) if t.layout is None else t.layout.pack(x.astype(np.int16))
    y = np.full(node.outputs[0].type.physical_shape, -1, np.int32)
    run_function(fn, [a.reshape(b.shape) for a, b in zip((data, packed, y), fn.params, strict=True)])
    layout = node.outputs[0].type.layout
    (expected,) = run_graph(graph, {"x": x}).values()
    np.testing.assert_array_equal(y if layout is None else layout.unpack(y), expected)


def small(graph: Graph) -> Graph:
    """The graph with weights of the greatest magnitude that two products by bytes fit 16 bits with."""
    values = RNG.choice(np.array([-64, -63, 63, 64], np.int8), (100_000,))
    constants = {v: values[: a.size].reshape(a.shape) for v, a in graph.constants.items()}
    return replace(graph, constants=constants)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell", "nehalem"])
@pytest.mark.parametrize(
    "graph", [product(3, 10, 21), product(9, 10, 21), convolution(5, 16)], ids=["row", "product", "convolution"]
)
def test_products_by_small_weights(graph, cpu):
    """Bytes as they are."""
    graph = small(graph)
    narrow = use_words(graph, lambda node: Algorithm.DIRECT, [i7, i16])
    fn, laid_out = kernel_of(narrow, cpu)
    assert f"vpmaddubsw.{record_for(cpu).lanes}(update" in repr(fn)
    shape = graph.inputs[0].type.shape
    x = RNG.choice(np.array([0, 254, 255], np.uint8), shape)
    (weights,) = laid_out.constants.values()
    node = laid_out.nodes[0]
    y = np.full(node.outputs[0].type.physical_shape, -1, np.int32)
    run_function(fn, [a.reshape(b.shape) for a, b in zip((x, weights, y), fn.params, strict=True)])
    layout = node.outputs[0].type.layout
    (expected,) = run_graph(graph, {"x": x}).values()
    np.testing.assert_array_equal(y if layout is None else layout.unpack(y), expected)


def depthwise(taps: int, stride: int, pads: int, width: int = 9) -> Graph:
    """Behind a convolution, so that its channels lie in blocks."""
    b = Builder("depthwise")
    x = b.input("x", TensorType((1, 8, 6, width), u8))
    attrs = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
    (y,) = b.add(get("conv"), [x, b.constant(RNG.integers(-128, 128, (20, 8, 1, 1), np.int8), "w")], attrs)
    (y,) = b.add(get("cast"), [y], {"to": "u8"})
    d = b.constant(RNG.integers(-128, 128, (20, 1, taps, taps), np.int8), "d")
    attrs = {"strides": (stride,) * 2, "pads": (pads,) * 4, "dilations": (1, 1), "groups": 20}
    return b.finish(b.add(get("conv"), [y, d], attrs))


@pytest.mark.parametrize("cpu", ["znver4", "alderlake", "skylake-avx512"])
@pytest.mark.parametrize(("taps", "stride", "pads"), [(3, 1, 1), (3, 2, 0), (5, 2, 2)])
def test_windows_of_taps(cpu, taps, stride, pads):
    graph = depthwise(taps, stride, pads)
    target = get_target(f"x86 -mcpu={cpu}")
    (part,) = parts_of(run_passes(graph, passes_for(3), check=True), target)
    laid_out = lay_out(part, CompileOptions("m", "test", ""), Observer())
    node = laid_out.nodes[1]
    fn = target.kernel(node, "k")
    dot = target.record.taps_dot
    assert (dot is None) == (cpu == "skylake-avx512")
    shared = taps == 3 and stride == 1  # of three taps in instructions of four, neighbours share what they read
    assert dot is None or f"{dot.spare if shared else dot.intrinsic}(update" in repr(fn)
    # all nodes by the interpreter of loops, margins of zeros included
    values = dict(laid_out.constants)
    values[laid_out.inputs[0]] = x = RNG.integers(0, 256, graph.inputs[0].type.shape, np.uint8)
    for k, n in enumerate(laid_out.nodes):
        kernel = target.kernel(n, f"k{k}")
        (out,) = n.outputs
        values[out] = np.zeros(out.type.physical_shape, out.type.dtype.numpy)
        arrays = [values[v] for v in (*n.inputs, out)]
        run_function(kernel, [a.reshape(b.shape) for a, b in zip(arrays, kernel.params, strict=True)])
    got = values[laid_out.outputs[0]]
    np.testing.assert_array_equal(got, next(iter(run_graph(graph, {"x": x}).values())))


@pytest.mark.skipif(not llvm.get_host_cpu_features().get("avx512vnni"), reason="no AVX-512 VNNI")
@pytest.mark.parametrize("width", [4, 5, 6, 9, 13])
def test_neighbours_share_what_windows_of_three_taps_read(width):
    """Machine code against the interpreter of loops; of every two columns one takes the vectors of the other."""
    graph = depthwise(3, 1, 1, width)
    target = get_target("x86 -mcpu=znver4")
    (part,) = parts_of(run_passes(graph, passes_for(3), check=True), target)
    laid_out = lay_out(part, CompileOptions("m", "test", ""), Observer())
    node = laid_out.nodes[1]
    fn = target.kernel(node, "k")
    kernel = Kernel(fn, packed_lanes=16)
    columns = max(k for k in range(1, 5) if width % k == 0)
    assert ("shl <16 x i32>" in kernel.text) == (columns > 1)
    weights = laid_out.constants[node.inputs[1]]
    x, y, z = (np.zeros(v.type.physical_shape, v.type.dtype.numpy) for v in (node.inputs[0], *[node.outputs[0]] * 2))
    x[:] = RNG.integers(0, 256, x.shape)
    arrays = [[a.reshape(b.shape) for a, b in zip((x, weights, out), fn.params, strict=True)] for out in (y, z)]
    kernel.run(arrays[0])
    run_function(fn, arrays[1])
    np.testing.assert_array_equal(y, z)
    assert y.any()


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids", "cooperlake"])
def test_products_of_bf16(cpu):
    b = Builder("product")
    x = b.input("x", TensorType((3, 10), bf16))
    w = b.constant(RNG.integers(-128, 128, (10, 21)).astype(bf16.numpy), "w")
    graph = b.finish(b.add(get("matmul_wide"), [x, w]))
    fn, laid_out = kernel_of(graph, cpu)
    assert "vdpbf16ps.16(update" in repr(fn)
    values = RNG.integers(-100, 101, (3, 10)).astype(bf16.numpy)
    (weights,) = laid_out.constants.values()
    y = np.full((3, 21), -1, np.float32)
    run_function(fn, [a.reshape(b.shape) for a, b in zip((values, weights, y), fn.params, strict=True)])
    np.testing.assert_array_equal(y, run_graph(graph, {"x": values})["matmul_wide"])


def test_processors_without_products_of_bf16_widen():
    b = Builder("product")
    x = b.input("x", TensorType((3, 10), bf16))
    w = b.constant(np.ones((10, 21), bf16.numpy), "w")
    for cpu in ("icelake-server", "haswell", "x86-64"):
        assert record_for(cpu).bf16_dot is None
    assert record_for("znver4", ("-avx512bf16",)).bf16_dot is None
    fn, _ = kernel_of(b.finish(b.add(get("matmul_wide"), [x, w])), "haswell")
    assert "vdpbf16ps" not in repr(fn)


@pytest.mark.parametrize("cpu", ["znver4", "haswell", "x86-64"])
@pytest.mark.parametrize("m", [1, 5])
def test_floats_by_stored_bf16_take_two_terms_of_a_lane(cpu, m):
    b = Builder("product")
    x = b.input("x", TensorType((m, 10), f32))
    w = b.constant(RNG.integers(-128, 128, (10, 21)).astype(bf16.numpy), "w")
    graph = b.finish(b.add(get("matmul"), [x, w]))
    fn, laid_out = kernel_of(graph, cpu)
    assert f"widen.bf16.{record_for(cpu).lanes}(update" in repr(fn)
    values = RNG.integers(-100, 101, (m, 10)).astype(np.float32)
    (weights,) = laid_out.constants.values()
    y = np.full((m, 21), -1, np.float32)
    run_function(fn, [values, weights, y])
    np.testing.assert_array_equal(y, *run_graph(graph, {"x": values}).values())


def test_an_odd_number_of_terms_is_widened_one_by_one():
    """A term more would be whatever lies there, which times zero may be no number."""
    b = Builder("product")
    x = b.input("x", TensorType((3, 9), f32))
    w = b.constant(np.ones((9, 21), bf16.numpy), "w")
    fn, _ = kernel_of(b.finish(b.add(get("matmul"), [x, w])), "znver4")
    assert "widen.bf16" not in repr(fn)


def test_gates_in_bf16():
    """Units that end within a tile are computed in whole vectors all the same, of which nobody reads the rest."""
    b = Builder("gated")
    x = b.input("x", TensorType((2, 10), bf16))
    w = b.constant((RNG.integers(-64, 65, (10, 42)) / 64).astype(bf16.numpy), "w")
    (y,) = b.add(get("matmul_wide"), [x, w])
    left, right = (b.add(get("slice"), [y], {"begin": (0, k), "end": (2, k + 21), "step": (1, 1)})[0] for k in (0, 21))
    (gate,) = b.add(get("sigmoid"), [left])
    graph = b.finish(b.add(get("mul"), [gate, right]))
    fn, laid_out = kernel_of(graph, "znver4")
    assert "vdpbf16ps.16(update" in repr(fn)
    values = (RNG.integers(-64, 65, (2, 10)) / 64).astype(bf16.numpy)
    (weights,) = laid_out.constants.values()
    y_out = np.full((2, 21), -1, np.float32)
    run_function(fn, [a.reshape(p.shape) for a, p in zip((values, weights, y_out), fn.params, strict=True)])
    np.testing.assert_allclose(y_out, next(iter(run_graph(graph, {"x": values}).values())), rtol=1e-6)


@pytest.mark.parametrize("cpu", ["znver4", "alderlake", "skylake-avx512", "haswell"])
@pytest.mark.parametrize(("rows", "depth"), [(1, 13), (1, 650), (5, 12), (3, 1)])
def test_gates_of_bytes(cpu, rows, depth):
    """Sums end with a whole instruction, whatever the depth."""
    b = Builder("gated")
    x = b.input("x", TensorType((rows, depth), u8))
    w = b.constant(RNG.integers(-128, 128, (depth, 42), np.int8), "w")
    (y,) = b.add(get("matmul"), [x, w])
    left, right = (
        b.add(get("slice"), [y], {"begin": (0, k), "end": (rows, k + 21), "step": (1, 1)})[0] for k in (0, 21)
    )
    graph = b.finish(b.add(get("sub"), [left, right]))
    fn, laid_out = kernel_of(graph, cpu)
    assert "(update" in repr(fn)
    values = RNG.integers(0, 256, (rows, depth), np.uint8)
    (weights,) = laid_out.constants.values()
    got = np.full((rows, 21), -1, np.int32)
    run_function(fn, [a.reshape(p.shape) for a, p in zip((values, weights, got), fn.params, strict=True)])
    np.testing.assert_array_equal(got, next(iter(run_graph(graph, {"x": values}).values())))
