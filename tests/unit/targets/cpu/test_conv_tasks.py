"""Tasks that threads share: enough of them, in one parallel loop, whatever is left over at the end of an axis."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers.alt import Given
from mlc.ir.graph import Attrs, Builder, Graph
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.x86.record import record_for
from mlc.targets.x86.target import X86Target
from mlc.tuning.task import candidate, tasks_of
from mlc.tuning.whole import build_module

ZEN4 = X86Target(replace(record_for("znver4"), cores=2), native=False)
DIRECT = CompileOptions("tasks", "onnx", "0" * 64, disabled_passes=frozenset({"winograd"}))
WINOGRAD = CompileOptions("tasks", "onnx", "0" * 64)


def network(images: int, channels: int, filters: int, size: int, taps: int) -> Graph:
    """A convolution between two of single pixels, in blocks of channels."""
    rng, g = np.random.default_rng(0), Builder("network")
    v = g.input("x", TensorType((images, 16, size, size), f32))
    for name, before, after, k in (("a", 16, channels, 1), ("b", channels, filters, taps), ("c", filters, 16, 1)):
        w = g.constant(rng.integers(-2, 3, (after, before, k, k)).astype(np.float32), name)
        attrs: Attrs = {"strides": (1, 1), "pads": (k // 2,) * 4, "dilations": (1, 1), "groups": 1}
        (v,) = g.add(get("conv"), [v, w], attrs)
        (v,) = g.add(get("relu"), [v])
    return g.finish([v])


def lowered(graph: Graph, options: CompileOptions) -> str:
    """A network's second kernel."""
    _, task, _ = tasks_of(graph, ZEN4, options, Observer())
    return repr(ZEN4.kernel(candidate(task, ZEN4, task.space.default), "k"))


def parallel(graph: Graph, options: CompileOptions) -> list[int]:
    """Iterations of the parallel loops of a network's second kernel, lowered, that compute in registers."""
    loops = re.split(r"^  for ", lowered(graph, options), flags=re.MULTILINE)[1:]
    return [
        int(found[1])
        for part in loops
        if "in register" in part and (found := re.match(r"\w+ in parallel\((\d+)\)", part))
    ]


@pytest.mark.parametrize(
    "images, channels, filters, size, least",
    [
        (1, 64, 16, 55, 90),  # one block of channels: tiles are tasks, though the last one is shorter
        (1, 256, 48, 13, 15),
        (1, 32, 144, 23, 8),  # few blocks of channels
        (3, 16, 16, 23, 12),  # few images
        (1, 64, 256, 7, 4),  # too few tiles for more
    ],
)
def test_there_are_enough_in_one_loop(images: int, channels: int, filters: int, size: int, least: int) -> None:
    (count,) = parallel(network(images, channels, filters, size, 1), DIRECT)
    assert count >= least


@pytest.mark.parametrize(
    "channels, filters, size, copies",
    [
        (32, 144, 23, 2),
        (64, 384, 14, 1),  # tiles are all whole
        (96, 576, 14, 2),
    ],
)
def test_whole_tiles_and_the_ragged_one_are_there_once(channels: int, filters: int, size: int, copies: int) -> None:
    """More code of the same takes longer to compile: MobileNet-v2's kernels took 1.3 times as long."""
    assert lowered(network(1, channels, filters, size, 1), DIRECT).count("in register") == copies


def test_whole_tiles_that_threads_share_one_by_one_are_tasks() -> None:
    assert parallel(network(1, 32, 192, 28, 1), DIRECT) == [392]


@pytest.mark.parametrize("size", [13, 14])
def test_blocks_of_winograd_tiles_are_one_loop(size: int) -> None:
    """The last rows of the image are no whole tiles, so the second block is another code."""
    assert parallel(network(1, 48, 192, size, 3), WINOGRAD) == [2]


@pytest.mark.parametrize(
    "images, channels, filters, size, taps",
    [(1, 24, 16, 19, 1), (1, 40, 72, 13, 1), (2, 16, 33, 9, 1), (1, 48, 64, 13, 3), (3, 32, 32, 6, 3)],
)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_are_those_of_the_reference(
    images: int, channels: int, filters: int, size: int, taps: int, threads: int
) -> None:
    graph = network(images, channels, filters, size, taps)
    feeds = {v.name: np.random.default_rng(1).integers(-2, 3, v.type.shape).astype(np.float32) for v in graph.inputs}
    (wanted,) = run_graph(graph, feeds).values()
    with build_module(graph, X86Target(record_for("haswell"), native=False), WINOGRAD, threads, Given({})) as module:
        (found,) = module.run(feeds).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-2)  # sums of hundreds, by tiles of four
