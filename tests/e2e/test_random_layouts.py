"""Random layouts on random small networks: interpreter = machine = PyTorch, on processors and on OpenCL.

Every complex operator of a network whose readers take any layout gets a random one of its layout space, and random
loops of the space that is rebuilt for it; all others follow what lies before them. Numbers are whole and small, so that
sums are exact in any order. On OpenCL there are networks, too, whose layouts stay the target's own, and whose loops are
random all the same. Processors are this machine's own and narrower ones, with one thread and two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import binding as llvm

from mlc.build import build_package
from mlc.errors import WorkloadError
from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.interp import run_function
from mlc.ir.loop import Function
from mlc.ir.site import Site
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.rewrite.group import configured, identity_of, is_group
from mlc.rewrite.workload import workload_document
from mlc.runtime import load_module, write_package
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.targets.opencl.driver import OpenClDevice
from mlc.tuning.joint import layout_space, loop_space
from mlc.tuning.task import task_of
from tests.fuzz import examples
from tests.opencl import pocl, quick_pocl

__all__ = ["pocl", "quick_pocl"]

Draw = Callable[[st.SearchStrategy[Any]], Any]
OPTIONS = CompileOptions("net", "onnx", "0" * 64, disabled_passes=frozenset({"winograd"}), verify=True)
HAS_AVX2 = llvm.get_host_cpu_features().get("avx2", False)
TARGETS = ["x86", "x86 -mcpu=x86-64", *(["x86 -mcpu=haswell"] if HAS_AVX2 else [])]
EXACT = 1 << 23  # magnitudes below which sums of whole numbers are exact in float32


@dataclass(repr=False)
class Net:
    """A network under construction, beside what PyTorch makes of it.

    Attributes:
        builder: of the graph.
        values: results that operators may read, each with its number of elements in every dimension.
        expected: what they are, float64.
        feed: the input.
        text: one line an operator, for a failing example.
    """

    builder: Builder
    values: list[Value]
    expected: list[torch.Tensor]
    feed: np.ndarray
    text: list[str]

    def __repr__(self) -> str:
        return "; ".join(self.text)

    def add(self, op: str, at: Sequence[int], attrs: dict[str, Any], found: torch.Tensor, *, weights: Any = ()) -> None:
        """An operator over values and constants; left out where its numbers would grow beyond what is exact."""
        if found.abs().max() >= EXACT:
            return
        constants = [self.builder.constant(w, f"w{len(self.values)}.{k}") for k, w in enumerate(weights)]
        name = f"v{len(self.values)}"
        (value,) = self.builder.add(get(op), [*(self.values[k] for k in at), *constants], attrs, names=[name])
        assert value.type.shape == tuple(found.shape)
        self.values.append(value)
        self.expected.append(found)
        self.text.append(f"{name} = {op}({', '.join(f'v{k}' for k in at)}) {attrs} {value.type.shape}")

    def finish(self) -> Graph:
        """The graph; its results are what nothing reads."""
        return self.builder.finish([self.values[k] for k in self.results])

    @property
    def results(self) -> list[int]:
        """Positions of the results."""
        read = {v for n in self.builder.nodes for v in n.inputs}
        return [k for k, v in enumerate(self.values) if k and v not in read]


@st.composite
def networks(draw: Draw) -> Net:
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    most = {1: 9, 2: 6, 3: 3}[rank]
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 8)), *(draw(st.integers(2, most)) for _ in range(rank)))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    feed = rng.integers(-3, 4, shape).astype(np.float32)
    builder = Builder("net")
    x = builder.input("v0", TensorType(shape, f32))
    net = Net(builder, [x], [torch.from_numpy(feed).double()], feed, [f"v0: {shape}"])
    for _ in range(draw(st.integers(3, 7))):
        kinds = ["conv", "conv", "conv", "transposed", "product", "relu", "add", "pool", "concat", "pad", "bias"]
        _draw_operator(draw, net, rng, draw(st.sampled_from(kinds)), draw(st.sampled_from(range(len(net.values)))))
    for at in net.results:  # what leaves a network is row-major, and its layout is not searched
        _draw_operator(draw, net, rng, "pool", at)
    if len(net.values) == 1:
        net.add("relu", [0], {}, net.expected[0].relu())
    return net


def _draw_operator(draw: Draw, net: Net, rng: np.random.Generator, kind: str, at: int) -> None:
    x = net.expected[at]
    channels, space = x.shape[1], x.shape[2:]
    rank = len(space)
    if kind in ("conv", "transposed"):
        several = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)  # each axis has its own
        taps, dilations = draw(several), [min(d, 2) for d in draw(several)]
        strides = [min(s, 2) for s in draw(several)]
        reach = [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
        pads = [draw(st.integers(0, r // 2)) for r in reach]
        groups = draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
        filters = groups * draw(st.sampled_from([*range(1, 9), 12, 16, 20, 32]) if groups == 1 else st.integers(1, 2))
        each = filters // groups if kind == "transposed" else channels // groups
        w = rng.integers(-1, 2, (channels if kind == "transposed" else filters, each, *taps))
        weights = torch.from_numpy(w).double()
        attrs: dict[str, Any] = {
            "strides": tuple(strides), "pads": (*pads, *pads), "dilations": tuple(dilations), "groups": groups,
        }  # fmt: skip
        how = {"stride": strides, "padding": pads, "dilation": dilations, "groups": groups}
        if kind == "conv":
            if any(n + 2 * p < r for n, p, r in zip(space, pads, reach, strict=True)):
                return
            functions = (torch.conv1d, torch.conv2d, torch.conv3d)
            net.add("conv", [at], attrs, functions[rank - 1](x, weights, None, **how), weights=[w.astype(np.float32)])
            return
        extents = zip(space, strides, reach, pads, strict=True)
        if any((n - 1) * s + r - 2 * p < 1 or n * s > 12 for n, s, r, p in extents):
            return
        functions = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
        found = functions[rank - 1](x, weights, None, **how)
        net.add("conv_transpose", [at], attrs, found, weights=[w.astype(np.float32)])
    elif kind == "product":
        w = rng.integers(-1, 2, (space[-1], draw(st.integers(1, 12)))).astype(np.float32)
        net.add("matmul", [at], {}, x @ torch.from_numpy(w).double(), weights=[w])
    elif kind == "relu":
        net.add("relu", [at], {}, x.relu())
    elif kind == "bias":
        bias = rng.integers(-3, 4, (channels, *[1] * rank)).astype(np.float32)
        net.add("add", [at], {}, x + torch.from_numpy(bias).double(), weights=[bias])
    elif kind in ("add", "concat"):
        same = [k for k, e in enumerate(net.expected) if e.shape[2:] == x.shape[2:]]
        if kind == "add":
            same = [k for k in same if net.expected[k].shape == x.shape]
        other = draw(st.sampled_from(same))
        y = net.expected[other]
        if kind == "add":
            net.add("add", [at, other], {}, x + y)
        elif channels + y.shape[1] <= 24:
            net.add("concat", [at, other], {"axis": 1}, torch.cat([x, y], 1))
    elif kind == "pool" and min(space) >= 2:
        stride = draw(st.integers(1, 2))
        functions = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)
        attrs = {"kernel": (2,) * rank, "strides": (stride,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank}
        net.add("max_pool", [at], attrs, functions[rank - 1](x, 2, stride))
    elif kind == "pad" and max(space) < 12:
        before = [0, 0] + [draw(st.integers(0, 1)) for _ in space]
        both = [(b, b) for b in reversed(before)]
        found = torch.nn.functional.pad(x, [n for pair in both for n in pair])
        net.add("pad", [at], {"pads": (*before, *before)}, found)


class Drawn:
    """Gives complex operators random layouts and loops, the same ones whenever it is asked.

    Args:
        target: whose schedules.
        seed: of the draw.
        levels: of tiles; 0 leaves layouts to the target, and draws loops only.
    """

    def __init__(self, target: Target, seed: int, levels: int) -> None:
        self._target, self._rng, self._levels = target, np.random.default_rng(seed), levels
        self._given: dict[tuple[str, ...], Config] = {}

    @property
    def tiled(self) -> int:
        """How many operators have a configuration that was drawn."""
        return sum(bool(c) for c in self._given.values())

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        return None

    def configure(self, node: Node, site: Site) -> Node:
        if not is_group(node):
            return node
        group = identity_of(node)
        if group not in self._given:
            self._given[group] = self._draw(node, site)
        return configured(node, self._given[group]) if self._given[group] else node

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        self._given[group] = {}

    def _draw(self, node: Node, site: Site) -> Config:
        try:
            task = task_of(workload_document(node, site), (), self._target)
        except WorkloadError:
            return {}
        loops = None
        if not self._levels:
            loops = task.space
        elif (space := layout_space(task, self._target, self._levels)) is not None:
            loops = loop_space(task, self._target, space.config(space.sample(self._rng, 1)[0]))
        return {} if loops is None else loops.config(loops.sample(self._rng, 1)[0])


def interpreted(graph: Graph, kernel_of: Callable[[Node], Function], feed: np.ndarray) -> list[np.ndarray]:
    """Results of a graph with layouts by the interpreter of loops, node by node."""
    known: dict[Value, np.ndarray] = {graph.inputs[0]: feed, **graph.constants}
    for node in graph.nodes:
        kernel = kernel_of(node)
        made = [np.full(b.shape, np.nan, np.float32) for b in kernel.params[len(node.inputs) :]]
        reads = zip(node.inputs, kernel.params, strict=False)
        run_function(kernel, [*(known[v].reshape(b.shape) for v, b in reads), *made])
        known.update(zip(node.outputs, made, strict=True))
    return [known[v].reshape(v.type.shape) for v in graph.outputs]


def run(graph: Graph, target: Target, drawn: Drawn, feed: np.ndarray, threads: int = 1) -> list[np.ndarray]:
    """Results of a graph, compiled under what is drawn for it."""
    built = build_package(graph, target, OPTIONS, Observer(), drawn)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.tar"
        write_package(path, built.manifest, built.params, built.members)
        with load_module(path, threads) as module:
            return list(module.run({"v0": feed}).values())


def check(net: Net, seed: int, levels: int, name: str, threads: int) -> int:
    """Interpreter, machine and PyTorch agree; how many operators have layouts that were drawn."""
    target, graph, expected = get_target(name), net.finish(), [net.expected[k].numpy() for k in net.results]
    drawn = Drawn(target, seed, levels)
    for got, want in zip(run(graph, target, drawn, net.feed, threads), expected, strict=True):
        np.testing.assert_array_equal(got, want, "machine")
    fused = optimise(graph, target, OPTIONS, Observer(), configurations=drawn)
    (part,) = parts_of(fused, target)
    for got, want in zip(
        interpreted(lay_out(part, OPTIONS, Observer(), drawn), lambda node: target.kernel(node, "k"), net.feed),
        expected,
        strict=True,
    ):
        np.testing.assert_array_equal(got, want, "interpreter")
    return drawn.tiled


@given(
    net=networks(), seed=st.integers(0, 1 << 30), levels=st.integers(1, 2), name=st.sampled_from(TARGETS),
    threads=st.integers(1, 2),
)  # fmt: skip
@examples(20)
def test_networks_under_random_layouts_mean_the_same(net: Net, seed: int, levels: int, name: str, threads: int) -> None:
    check(net, seed, levels, name, threads)


@pytest.mark.slow
@given(
    net=networks(), seed=st.integers(1 << 31, 1 << 32), levels=st.integers(1, 2), name=st.sampled_from(TARGETS),
    threads=st.integers(1, 2),
)  # fmt: skip
@examples(1000)
def test_a_thousand_networks_under_random_layouts_mean_the_same(
    net: Net, seed: int, levels: int, name: str, threads: int
) -> None:
    check(net, seed, levels, name, threads)


def check_on_device(net: Net, seed: int, levels: int) -> int:
    """Interpreter, OpenCL device and PyTorch agree; how many operators have layouts, or loops, that were drawn."""
    target, graph, expected = get_target("opencl -device=pocl"), net.finish(), [net.expected[k] for k in net.results]
    drawn, device = Drawn(target, seed, levels), target.accelerator
    for got, want in zip(run(graph, target, drawn, net.feed), expected, strict=True):
        np.testing.assert_array_equal(got, want.numpy(), "device")
    assert device is not None
    _, part = parts_of(optimise(graph, target, OPTIONS, Observer(), configurations=drawn), target)
    laid = lay_out(part, OPTIONS, Observer(), drawn)
    found = interpreted(laid, lambda node: device.kernel(node, "k", {})[0], net.feed)
    for want in expected:  # equal results are one of the region's
        assert any(np.array_equal(made, want.numpy()) for made in found), "interpreter"
    return drawn.tiled


def test_networks_under_random_layouts_mean_the_same_on_a_device(quick_pocl: OpenClDevice) -> None:
    @given(net=networks(), seed=st.integers(0, 1 << 30), levels=st.integers(1, 2))
    @examples(5)
    def same(net: Net, seed: int, levels: int) -> None:
        check_on_device(net, seed, levels)

    same()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("most, count", [(0, 300), (2, 1000)])
def test_many_networks_under_random_layouts_and_loops_mean_the_same_on_a_device(
    quick_pocl: OpenClDevice, most: int, count: int
) -> None:
    @given(net=networks(), seed=st.integers(1 << 31, 1 << 32), levels=st.integers(min(most, 1), most))
    @examples(count)
    def same(net: Net, seed: int, levels: int) -> None:
        check_on_device(net, seed, levels)

    same()
