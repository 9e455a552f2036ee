"""Schedules for threads that compute with vectors: channels in blocks, registers that are vectors, nothing shared."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir.loop import Allocate, walk
from mlc.ir.types import f16
from mlc.lower.bounds import SHARED
from mlc.rewrite.group import configured
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.vector_cost import Conv, Tile, Work, active, best_tile, refusal, seconds
from mlc.targets.opencl.dialect import OPENCL_C
from tests.unit.targets.gpu.blocks import MALI, NETWORKS, check, laid_out, network

C2 = Conv(56, 56, 16, 4, 4, 16 * 3, 3, 1, 1, 4, 16, 1 << 20)  # 64 channels of 56 × 56 pixels, in blocks of 4


@pytest.mark.sweep(11)
@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_compute_what_networks_say(name: str) -> None:
    graph = network(name)
    for fn in check(graph, laid_out(graph)):
        assert not any(isinstance(s, Allocate) and s.buffer.scope == SHARED for s in walk(fn.body))


@pytest.mark.parametrize("name", ["conv", "conv_1x1_strided", "depthwise", "residual", "dense"])
def test_in_half_precision(name: str) -> None:
    graph = network(name, f16)
    check(graph, laid_out(graph))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["conv_odd_channels", "depthwise", "dense", "conv_strided", "pooled", "product"])
def test_under_any_configuration(name: str) -> None:
    graph = network(name)
    check(graph, laid_out(graph, np.random.default_rng(len(name))))


def test_channels_lie_in_blocks_until_they_leave() -> None:
    laid = laid_out(network("residual"))
    shapes = [v.type.physical_shape for n in laid.nodes for v in n.outputs]
    assert shapes == [(1, 2, 5, 7, 4), (1, 2, 5, 7, 4), (1, 8, 5, 7)]
    assert laid_out(network("residual", f16)).nodes[0].outputs[0].type.physical_shape == (1, 1, 5, 7, 8)


@pytest.mark.parametrize(
    "name, dtype", [("conv", "f32"), ("depthwise_strided", "f32"), ("conv_1x1", "f16"), ("dense", "f32")]
)
def test_text_of_a_kernel(name: str, dtype: str, golden: Callable[[str], None]) -> None:
    graph = network(name, f16) if dtype == "f16" else network(name)
    node = next(n for n in reversed(laid_out(graph).nodes) if n.op.name == "group")
    scalars = Scalars(OPENCL_C)
    golden(source_of(scalars, [emit(kernel(node, name, MALI), scalars).text]))


def test_an_array_is_declared_anew_in_every_iteration_that_is_written_out() -> None:
    """Six weights of a row are no vector, and moved as bits; each of eight rows has an array of its own."""
    (node,) = laid_out(network("dense_few", f16)).nodes
    text = emit(kernel(node, "k", MALI), Scalars(OPENCL_C)).text
    declared = re.findall(r"ushort (\w+)\[6\];", text)
    assert len(set(declared)) == len(declared) == 4
    for name in declared:
        assert len(re.findall(rf"^ *{name}\[\d\] = ", text, re.MULTILINE)) == 6


def test_registers_are_vectors() -> None:
    """All products of the second convolution, none of which is of numbers."""
    node = laid_out(network("conv")).nodes[1]
    text = emit(kernel(node, "k", MALI), Scalars(OPENCL_C)).text
    assert "float conv" not in text
    assert text.count("mlc_mad((float4)(pad[") == 4


@pytest.mark.parametrize(
    "config, message",
    [
        ({"pixels": 8, "filters": 1, "row": True}, r"about 19 vectors of registers of a thread, there are 16"),
        ({"filters": 2}, "3 blocks of channels are no multiple of 2"),
        ({"tx": 4, "ty": 64, "unroll": False}, None),
    ],
)
def test_what_a_thread_cannot_hold_is_refused(config: dict[str, int], message: str | None) -> None:
    node = configured(laid_out(network("conv")).nodes[1], config)
    if message is None:
        kernel(node, "k", MALI)
        return
    with pytest.raises(ScheduleError, match=message):
        kernel(node, "k", MALI)


# -- the model of cost ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("held, threads", [(2, 256), (3, 128), (6, 128), (7, 64), (14, 64), (15, 0)])
def test_threads_are_as_many_as_registers_allow(held: int, threads: int) -> None:
    assert active(held, MALI) == threads


def test_what_is_spilled_is_never_chosen() -> None:
    assert seconds(Work(1 << 20, 8, 100, 10, 15, 0), MALI) == inf
    assert "there are 16" in refusal(C2, Tile(8, 4, True), MALI)


def test_large_convolutions_are_made_several_pixels_a_thread() -> None:
    best = best_tile(C2, MALI)
    assert best.pixels * best.filters >= 4
    assert not refusal(C2, best, MALI)
    times = [seconds(C2.work(t), MALI) for t in (best, Tile(1, 1, False))]
    assert times[0] < times[1]


def test_small_convolutions_are_shared_out() -> None:
    """64 channels of 7 × 7 pixels: fewer a thread, so that there is a thread for every other place."""
    few = Conv(7, 7, 16, 4, 4, 16 * 3, 3, 1, 1, 4, 16, 1 << 16)
    best = best_tile(few, MALI)
    assert few.work(best).threads >= MALI.units * 32
    assert few.work(best).threads * 8 > few.work(Tile(1, 1, False)).threads
