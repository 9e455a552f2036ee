"""The x86 target: its string form, its layouts, and what its default schedules promise."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.ir.graph import Builder, Graph, Node
from mlc.ir.loop import Allocate, Prefetch, walk
from mlc.ir.types import TensorType, f32, u8
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.rewrite.pipeline import passes_for, run_passes
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import CallSpec, get_target, target_names
from mlc.targets.cpu.cost import fits_registers
from mlc.targets.cpu.schedules.conv import conv_product, conv_tile, weight_layout
from mlc.targets.cpu.schedules.matmul import panel_layout, tile_of
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import ModuleText
from mlc.targets.x86.record import record_for

AVX512 = record_for("skylake-avx512")
AVX2 = record_for("haswell")


def prepared(graph: Graph, target: str = "x86 -mcpu=skylake-avx512") -> Graph:
    """After every graph pass, layouts assigned."""
    fused = run_passes(graph, passes_for(3), check=True)
    (part,) = parts_of(fused, get_target(target))
    return lay_out(part, CompileOptions("m", "test", ""), Observer())


def conv_relu(channels: int = 32, filters: int = 64, extent: int = 14) -> Graph:
    b = Builder()
    x = b.input("x", TensorType((1, channels, extent, extent), f32))
    w = b.constant(np.ones((filters, channels, 3, 3), np.float32), "w")
    bias = b.constant(np.ones((1, filters, 1, 1), np.float32), "bias")
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    (y,) = b.add(get("conv"), [x, w], attrs)
    (z,) = b.add(get("add"), [y, bias])
    (out,) = b.add(get("relu"), [z])
    return b.finish([out])


def test_native_target_describes_this_machine() -> None:
    facts = get_target("x86").describe()
    assert facts["triple"] == "x86_64-unknown-linux-gnu"
    assert facts["vector_bits"] in (128, 256, 512)


def test_target_names_include_x86() -> None:
    assert "x86" in target_names()


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "empty target"),
        ("x87", "unknown target 'x87'"),
        ("x86 fast", "is not of the form -name=value"),
        ("x86 -cores=2", "target x86 has no option -cores"),
        ("x86 -mcpu=pentium9", "unknown processor 'pentium9'"),
        ("x86 -mattr=avx2", "-mattr has 'avx2'"),
    ],
)
def test_wrong_target_strings_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        get_target(text)
    assert message in str(refusal.value)
    assert refusal.value.hint


@pytest.mark.parametrize("taps_first", [False, True])
@pytest.mark.parametrize(
    ("shape", "packed", "by_taps"),
    [
        ((64, 32, 3, 3), (2, 2, 3, 3, 16, 32), (2, 3, 3, 2, 16, 32)),
        ((24, 17, 5), (1, 2, 5, 16, 32), (1, 5, 2, 16, 32)),
    ],
)
def test_weights_are_packed_by_tiles_of_output_channels(
    shape: tuple[int, ...], packed: tuple[int, ...], by_taps: tuple[int, ...], taps_first: bool
) -> None:
    layout = weight_layout(shape, 2, AVX512, block=16, taps_first=taps_first)
    assert layout.physical_shape == (by_taps if taps_first else packed)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(layout.unpack(layout.pack(array)), array)


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["avx512", "avx2"])
@pytest.mark.parametrize("extent", [1, 5, 7, 13, 14, 28, 56, 112])
def test_register_tiles_of_convolutions_fit_the_registers(target, extent: int) -> None:  # type: ignore[no-untyped-def]
    for channels in (16, 48, 64, 96, 1000):
        for whole in (False, True):
            shapes = (1, 32, extent, extent), (1, channels, extent, extent)
            product = conv_product(*shapes, (3, 3), False, target, whole=whole)
            tile = conv_tile(product, target)
            assert 1 <= tile.rows <= extent
            assert whole or product.columns % tile.vectors == 0
            assert fits_registers(tile.rows, tile.vectors, target)
            assert conv_tile(product, target, tile.vectors) == tile


@pytest.mark.parametrize("columns, wanted", [(13, (14, 2)), (12, (14, 2)), (17, (14, 2)), (1, (14, 1))])
def test_tiles_are_wide_though_their_number_is_a_prime(columns: int, wanted: tuple[int, int]) -> None:
    product = conv_product((1, 64, 14, 14), (1, 16 * columns, 14, 14), (3, 3), False, AVX512)
    assert conv_tile(product, AVX512) == wanted


@pytest.mark.parametrize("columns, vectors", [(7, {2}), (13, {2}), (6, {2, 3})])
def test_the_last_tile_of_windows_is_narrower_where_others_would_be_low(columns: int, vectors: set[int]) -> None:
    target = record_for("znver5")
    for width in (13, 28, 37):
        product = conv_product((1, 48, width, width), (1, 16 * columns, width, width), (3, 3), False, target)
        assert conv_tile(product, target).vectors in vectors


@pytest.mark.parametrize(
    "cpu, channels, most", [("znver5", 8, 8), ("znver5", 32, 12), ("znver4", 8, 18), ("znver4", 32, 18)]
)
def test_short_sums_of_bytes_have_few_sums_a_tile(cpu: str, channels: int, most: int) -> None:
    """So that a core finds the next tile's products while the results of this one become bytes."""
    target = record_for(cpu)
    product = conv_product((1, channels, 56, 56), (1, 128, 56, 56), (1, 1), False, target, terms=4)
    tile = conv_tile(product, target)
    assert 4 <= tile.rows * tile.vectors <= most
    deep = conv_product((1, 128, 56, 56), (1, 128, 56, 56), (1, 1), False, target, terms=4)
    deep_tile = conv_tile(deep, target)
    assert deep_tile.rows * deep_tile.vectors > most


@pytest.mark.parametrize("taps, by_rows", [(3, True), (1, False)])
def test_products_of_bytes_go_by_rows_where_their_results_have_margins(taps: int, by_rows: bool) -> None:
    """Pixels as one axis would need a division for each place of a result."""
    b = Builder()
    y = b.input("x", TensorType((1, 256, 14, 14), u8))
    for window in (1, 1, taps):
        w = b.constant(np.ones((256, 256, window, window), np.int8))
        attrs = {"strides": (1, 1), "pads": (window // 2,) * 4, "dilations": (1, 1), "groups": 1}
        (y,) = b.add(get("conv"), [y, w], attrs)
        (y,) = b.add(get("clip"), [y], {"lo": 0, "hi": 255})
        (y,) = b.add(get("cast"), [y], {"to": u8})
    text = "x86 -mcpu=znver5"
    kernel = repr(get_target(text).kernel(prepared(b.finish([y]), text).nodes[1], "k"))
    assert f"p0: u8[1,16,{'14,14' if by_rows else '196'},16]" in kernel
    assert f"-> cast: u8[1,16,{'16,16' if by_rows else '196'},16]" in kernel


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=["avx512", "avx2"])
@pytest.mark.parametrize("m, n, k", [(1, 1000, 512), (128, 768, 768), (512, 1024, 1024), (7, 13, 17)])
def test_register_tiles_of_products_fit_the_registers(target, m: int, n: int, k: int) -> None:  # type: ignore[no-untyped-def]
    rows, vectors = tile_of(m, n, k, target)
    assert 1 <= rows <= m
    assert rows * vectors + vectors + 1 <= target.registers


def test_constant_right_operands_are_packed_in_column_panels() -> None:
    layout = panel_layout((768, 3072), False, 128, AVX512, Knobs())
    assert layout.physical_shape == (96, 768, 32)
    assert panel_layout((3072, 768), True, 128, AVX512, Knobs()).physical_shape == (96, 768, 32)


def test_convolution_is_blocked_and_its_output_converted_back() -> None:
    graph = prepared(conv_relu())
    group, convert = graph.nodes
    assert group.outputs[0].type.physical_shape == (1, 4, 14, 14, 16)
    assert convert.outputs[0].type.layout is None
    assert {v.type.physical_shape for v in graph.constants} == {(2, 2, 3, 3, 16, 32), (1, 4, 1, 1, 16)}


def kernel_text(node: Node, target: str) -> str:
    module = ModuleText()
    emit_function(get_target(target).kernel(node, "k"), module)
    return "\n".join(module.definitions)


def dense_relu() -> Graph:
    b = Builder()
    x = b.input("x", TensorType((128, 48), f32))
    w = b.constant(np.ones((48, 96), np.float32), "w")
    (y,) = b.add(get("matmul"), [x, w])
    (out,) = b.add(get("relu"), [y])
    return b.finish([out])


def grouped_conv() -> Graph:
    b = Builder()
    x = b.input("x", TensorType((1, 24, 28, 28), f32))
    w = b.constant(np.ones((36, 8, 1, 1), np.float32), "w")
    (out,) = b.add(get("conv"), [x, w], {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 3})
    return b.finish([out])


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell"])
@pytest.mark.parametrize("graph", [conv_relu, dense_relu, grouped_conv])
def test_accumulators_are_values_not_memory(graph: Callable[[], Graph], cpu: str) -> None:
    target = f"x86 -mcpu={cpu}"
    node = prepared(graph(), target).nodes[0]
    registers = [s for s in walk(get_target(target).kernel(node, "k").body) if type(s) is Allocate]
    assert "register" in {s.buffer.scope for s in registers}
    # the one stack slot there is carries arguments to the threads
    allocas = [line for line in kernel_text(node, target).splitlines() if "alloca" in line]
    assert all("x i64]" in line for line in allocas)


def test_long_functions_do_not_take_the_registers_of_accumulators() -> None:
    b = Builder()
    x = b.input("x", TensorType((128, 48), f32))
    (y,) = b.add(get("matmul"), [x, b.constant(np.ones((48, 96), np.float32), "w")])
    (out,) = b.add(get("tanh"), [y])
    text = kernel_text(prepared(b.finish([out]), "x86 -mcpu=haswell").nodes[0], "x86 -mcpu=haswell")
    (own,) = [d for d in text.split("define ") if " noinline " in d.partition("\n")[0]]
    assert "tanh" in own
    assert text.count("tanh") == own.count("tanh")


def test_innermost_loop_of_a_convolution_has_one_pointer_an_operand() -> None:
    text = kernel_text(prepared(conv_relu()).nodes[0], "x86 -mcpu=skylake-avx512")
    loops = [block for block in text.split("\nloop") if block.count(" fmul ") >= 24]
    # each tap of a row has a loop of its own; the last of them may read one pixel less
    body = loops[1].split("\ndone")[0]
    assert body.count(" mul ") <= 2  # which LLVM turns into increments
    assert "div" not in body
    steps = body.count(" fmul ") // 28
    assert body.count("= load ") == steps * (14 + 2)  # a pixel each, a vector of weights each


def assembly_of_conv(cpu: str, *shape: int) -> str:
    target = get_target(f"x86 -mcpu={cpu}")
    kernel = target.kernel(prepared(conv_relu(*shape), f"x86 -mcpu={cpu}").nodes[0], "k")
    call = CallSpec("k", (("input", 0), ("param", 0), ("param", 65536), ("output", 0)))
    return target.assembly(target.codegen(target.emit({"k": kernel}), [call], opt_level=3).sources)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell"])
def test_innermost_loop_of_a_convolution_moves_no_registers(cpu: str) -> None:
    text = assembly_of_conv(cpu)
    inner = [block for block in text.split("\n.LBB") if block.count("vfmadd") >= 24]
    assert inner
    for block in inner:
        loop = block.split("vbroadcastss", 1)[1].split("\n\tj")[0]
        assert "%rsp" not in loop
        assert not re.search(r"vmova?ps\s+%[xyz]mm\d+, %", loop)


def test_taps_that_are_written_out_share_no_registers_that_sums_need() -> None:
    """The first layer of small networks: twelve of sixteen registers are sums, and taps of a row share pixels."""
    text = assembly_of_conv("haswell", 3, 16, 32)
    assert text.count("vfmadd") > 500
    assert len(re.findall(r"%ymm\d+, -?\d*\(%rsp\)", text)) < 10


def test_layouts_off_leaves_everything_row_major() -> None:
    fused = run_passes(conv_relu(), passes_for(3))
    assert all(v.type.layout is None for n in fused.nodes for v in n.outputs)


@pytest.mark.parametrize("rows, fetched", [(128, True), (4, False)])
@pytest.mark.parametrize("cpu", ["skylake-avx512", "znver3"])
def test_panels_are_fetched_ahead_where_rows_take_long_enough(cpu: str, rows: int, fetched: bool) -> None:
    b = Builder()
    x = b.input("x", TensorType((rows, 768), f32))
    (y,) = b.add(get("matmul"), [x, b.constant(np.zeros((768, 3072), np.float32), "w")])
    target = f"x86 -mcpu={cpu}"
    (node,) = prepared(b.finish([y]), target).nodes
    assert any(type(s) is Prefetch for s in walk(get_target(target).kernel(node, "k").body)) is fetched


@pytest.mark.parametrize("channels, fetched", [(512, True), (128, False)])
def test_weights_that_other_layers_push_out_of_the_cache_are_fetched_ahead(channels: int, fetched: bool) -> None:
    """A quarter of a second-level cache; a 64th comes soon enough."""
    b = Builder()
    x = b.input("x", TensorType((1, channels, 14, 14), u8))
    weights = b.constant(np.zeros((channels, channels, 1, 1), np.int8), "w")
    (y,) = b.add(get("conv"), [x, weights], {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)})
    target = "x86 -mcpu=znver5"
    node = next(n for n in prepared(b.finish([y]), target).nodes if len(n.inputs) == 2)
    assert any(type(s) is Prefetch for s in walk(get_target(target).kernel(node, "k").body)) is fetched
