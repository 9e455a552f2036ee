"""Convolutions by Tensor Cores over blocks of channels: right, in the interpreter and as on_host, and copied ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mlc.ir.graph import Builder, Value
from mlc.ir.loop import Evaluate, Function, Store, walk
from mlc.ir.types import DType, f16, f32
from mlc.lower.knobs import Knobs
from mlc.rewrite.fuse import fuse
from mlc.rewrite.group import configured
from mlc.targets.base import get_target
from mlc.targets.cuda.compiler import Nvrtc, compile_sources
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.schedules.blocks import TENSOR
from mlc.targets.gpu.schedules.blocks.tensor import TENSOR_CONVOLUTION
from mlc.targets.groups.group import group_of
from mlc.targets.groups.template import template_for
from tests.cuda import CXX
from tests.unit.targets.gpu.blocks import NETWORKS, Graph, check, conv, first, laid_out, weights
from tests.unit.targets.gpu.groups import put, window, x
from tests.unit.targets.gpu.test_tensor import on_host

AMPERE, TURING = (get_target(f"cuda -arch={archs}").record for archs in ("sm_80,sm_90", "sm_75"))  # type: ignore[attr-defined]
MALI_ONLY = {"product", "dense", "dense_few", "dense_row"}  # products: no blocks of channels


def residual(b: Builder, t: DType) -> Value:
    """Two results that are added, one with a bias; in 16 channels of 5 × 7 pixels."""
    y = conv(b, x(b, 1, 3, 5, 7, dtype=t), (16, 3, 3, 3))
    return put(b, "relu", [put(b, "add", [conv(b, y, (16, 16, 3, 3), relu=False), y])])


def wide(b: Builder, t: DType) -> Value:
    """A result in single precision."""
    y = conv(b, first(b, 1, 3, 5, 7, dtype=t), (16, 8, 3, 3), relu=False)
    return put(b, "exp", [put(b, "cast", [y], to=f32)])


def scaled(b: Builder, t: DType) -> Value:
    """Pixels that are multiplied by a channel each, and by one for all."""
    y = conv(b, first(b, 2, 3, 5, 4, dtype=t), (16, 8, 1, 1), relu=False)
    return put(b, "mul", [put(b, "mul", [y, weights(b, 16, 1, 1, dtype=t)]), x(b, 2, 1, 5, 4, name="s", dtype=t)])


def product(b: Builder, t: DType) -> Value:
    """By constant weights, which are turned."""
    return put(b, "relu", [put(b, "matmul", [x(b, 18, 40, dtype=t), weights(b, 40, 24, dtype=t)])])


def transposed(b: Builder, v: Value, shape: tuple[int, ...], stride: int) -> Value:
    """A transposed convolution with weights ``[c, o, taps…]``, a bias and a rectifier."""
    rank, t = len(shape) - 2, v.type.dtype
    attrs = window(rank, stride, 1)
    y = put(b, "conv_transpose", [v, weights(b, *shape, dtype=t)], **attrs)
    return put(b, "relu", [put(b, "add", [y, weights(b, shape[1], *[1] * rank, dtype=t)])])


MADE: dict[str, Callable[[Builder, DType], Value]] = {
    **{name: make for name, make in NETWORKS.items() if name not in MALI_ONLY},
    "residual": residual,
    "wide": wide,
    "scaled": scaled,
    "large": lambda b, t: conv(b, conv(b, x(b, 1, 3, 9, 11, dtype=t), (32, 3, 3, 3)), (24, 32, 3, 3)),
    "large_strided": lambda b, t: conv(b, conv(b, x(b, 1, 3, 9, 11, dtype=t), (32, 3, 3, 3)), (16, 32, 3, 3), stride=2),
    "turned": product,
    "transposed_conv": lambda b, t: transposed(b, conv(b, x(b, 1, 3, 5, 4, dtype=t), (16, 3, 3, 3)), (16, 16, 4, 4), 2),
    "transposed_rows": lambda b, t: transposed(b, x(b, 2, 12, 4, 5, dtype=t), (12, 8, 3, 3), 2),
    "transposed_1d": lambda b, t: transposed(b, x(b, 1, 9, 19, dtype=t), (9, 8, 5), 3),
    "rows": lambda b, t: conv(b, x(b, 2, 12, 9, 7, dtype=t), (16, 12, 3, 3), stride=2),
    "ragged": lambda b, t: conv(b, conv(b, x(b, 1, 3, 9, 7, dtype=t), (40, 3, 3, 3)), (16, 40, 1, 1)),
}
QUICK = ("conv", "conv_strided", "conv_3d", "residual", "wide", "turned", "rows", "transposed_conv")
AHEAD = {"terms": 32, "versions": 3}
FEW = ("conv_1d", "conv_odd_channels", "depthwise_1d")  # pixels, filters or terms: plain threads


def network(name: str) -> Graph:
    b = Builder(name)
    return fuse(b.finish([MADE[name](b, f16)]))


def uses(fn: Function) -> bool:
    return any(isinstance(s, Evaluate) and s.intrinsic is not None for s in walk(fn.body))


def copied(fn: Function) -> list[Store]:
    return [s for s in walk(fn.body) if isinstance(s, Store) and s.asynchronous]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MADE])
def test_kernels_compute_what_networks_say(name: str) -> None:
    """In the interpreter, where no thread must take what another makes unawares."""
    graph = network(name)
    fns = check(graph, laid_out(graph, target=AMPERE), target=AMPERE)
    assert any(map(uses, fns)) != (name in FEW)


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("device", [AMPERE, pytest.param(TURING, marks=pytest.mark.slow)], ids=["sm_80", "sm_75"])
@pytest.mark.parametrize("name", ["conv", "conv_strided", *(pytest.param(n, marks=pytest.mark.slow) for n in MADE)])
def test_printed_kernels_compute_what_networks_say(name: str, device: Gpu) -> None:
    graph = network(name)
    check(graph, laid_out(graph, target=device), on_host, device)


@pytest.mark.parametrize(
    "config",
    [
        {"parts": 2},
        {"parts": 4, "warps_high": 2},
        AHEAD | {"tiles_high": 2, "tiles_wide": 1, "warps_high": 2, "warps_wide": 1},
    ],
)
@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_terms_in_parts_and_steps_ahead(config: dict[str, object]) -> None:
    """24 filters over 32 channels, which lie in four blocks."""
    graph = network("large")
    laid = laid_out(graph, target=AMPERE)
    node = laid.nodes[1]
    assert template_for(group_of(node, Knobs()), TENSOR, AMPERE) is TENSOR_CONVOLUTION
    nodes = tuple(configured(n, config) if n is node else n for n in laid.nodes)
    fns = check(graph, replace(laid, nodes=nodes), on_host, AMPERE)
    assert uses(fns[1])


@pytest.mark.parametrize(
    ("name", "at"), [("large", 1), ("large_strided", 1), ("large", 0), ("rows", 0), ("ragged", 1),
     ("transposed_conv", 1), ("transposed_rows", 0)],
    ids=["window", "strided", "three channels", "rows", "ragged terms", "phases", "phases of rows"],
)  # fmt: skip
def test_whole_blocks_are_copied_ahead(name: str, at: int) -> None:
    """Data and weights, 16 bytes at a time, whatever the window, and whether the data lie in blocks already."""
    node = laid_out(network(name), target=AMPERE).nodes[at]
    fn = kernel(configured(node, AHEAD), "k", AMPERE)
    assert len({s.buffer for s in copied(fn)}) == 2
    assert "mlc_copy_16" in emit(fn, Scalars(CUDA_C)).text


def test_nothing_spills() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    scalars = Scalars(CUDA_C)
    texts = [
        emit(kernel(node, f"k{k}_{n}", AMPERE), scalars).text
        for k, name in enumerate(QUICK)
        for n, node in enumerate(laid_out(network(name), target=AMPERE).nodes)
    ]
    image = compile_sources({"sm_80": source_of(scalars, texts)})["sm_80"]
    assert b"mma.sync.aligned" in image.assembly
    assert not [k for k, r in image.resources.items() if r.spill_stores or r.spill_loads]


def test_what_spills_for_loops_that_nobody_wrote_out_is_compiled_again() -> None:
    """A window of three axes: sums take half of the registers, addresses of two fetches the others and a few bytes."""
    pytest.importorskip("cuda.bindings.nvrtc")
    b = Builder("k")
    y = conv(b, x(b, 1, 128, 8, 28, 28, dtype=f16), (128, 128, 3, 3, 3), relu=False)
    node = laid_out(b.finish([y]), target=TURING).nodes[0]
    scalars = Scalars(CUDA_C)
    source = source_of(scalars, [emit(kernel(node, "k", TURING), scalars).text])
    left_alone = Nvrtc.find().compile(source, "sm_75")
    found = compile_sources({"sm_75": source})["sm_75"]
    assert any(r.spill_stores for r in left_alone.resources.values())
    assert not any(r.spill_stores for r in found.resources.values())
