"""Half vectors, on processors that multiply a vector in two halves: which layers have them, and what they compute."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.papers.alt import Given
from mlc.ir import te
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.interp import run_graph
from mlc.ir.layout import blocked
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.rewrite.pipeline import passes_for, run_passes
from mlc.settings import CompileOptions, Observer
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_work import cycles_in_blocks
from mlc.targets.cpu.schedules.halves import worth_halves
from mlc.targets.groups.group import Group
from mlc.targets.x86.record import record_for
from mlc.targets.x86.target import X86Target
from mlc.tuning.task import candidate, tasks_of
from mlc.tuning.whole import build_module

OPTIONS = CompileOptions("halves", "onnx", "0" * 64)
ZEN4 = record_for("znver4")
# no processor of AVX2 is like that, but code for it runs on most machines
AVX2 = replace(record_for("haswell"), fmas=1, loads=1, fma_latency=1, halves=True)


def convolution(channels: int, filters: int, size: int, taps: int = 1, groups: int = 1) -> Group:
    x = te.placeholder((1, channels, size, size), f32, "x")
    w = te.placeholder((filters, channels // groups, taps, taps), f32, "w")
    attrs = {"strides": (1, 1), "pads": (taps // 2,) * 4, "dilations": (1, 1), "groups": groups}
    (y,) = get("conv").express([x, w], attrs)  # type: ignore[misc]
    return Group((x, w), (y,), y.op, {}, Knobs())


@pytest.mark.parametrize(
    "machine, filters, worth",
    [
        (ZEN4, 24, True),  # two whole vectors, or three halves
        (ZEN4, 40, True),
        (ZEN4, 8, True),
        (ZEN4, 72, True),
        (ZEN4, 32, False),  # whole vectors
        (ZEN4, 28, False),  # four halves
        (ZEN4, 216, False),  # one half of 28 is not worth it
        (record_for("znver5"), 24, False),
        (record_for("haswell"), 12, False),
    ],
)
def test_halves_are_taken_where_they_leave_fewer_lanes_empty(machine: Cpu, filters: int, worth: bool) -> None:
    g = convolution(96, filters, 28)
    assert worth_halves(g, machine, partial(cycles_in_blocks, g)) == worth


class Net:
    """A network in small integers, with constants of its own."""

    def __init__(self, rank: int = 2) -> None:
        self.g, self.rng, self.rank = Builder("halves"), np.random.default_rng(0), rank

    def input(self, channels: int, size: int) -> Value:
        return self.g.input("x", TensorType((1, channels, *(size,) * self.rank), f32))

    def constant(self, shape: tuple[int, ...]) -> Value:
        return self.g.constant(self.rng.integers(-2, 3, shape).astype(np.float32), f"c{self.rng.integers(1 << 40)}")

    def conv(self, x: Value, filters: int, taps: int = 1, groups: int = 1, stride: int = 1) -> Value:
        w = self.constant((filters, x.type.shape[1] // groups, *(taps,) * self.rank))
        spread = {"strides": (stride,) * self.rank, "dilations": (1,) * self.rank, "groups": groups}
        (y,) = self.g.add(get("conv"), [x, w], {**spread, "pads": (taps // 2,) * 2 * self.rank})
        return y

    def transposed(self, x: Value, filters: int) -> Value:
        _, channels, *space = x.type.shape
        attrs = {"strides": (2, 2), "pads": (0, 1, 1, 0), "dilations": (1, 1), "groups": 1}
        w, shape = self.constant((channels, filters, 3, 3)), tuple(2 * n for n in space)
        return self.add("conv_transpose", x, w, **attrs, output_shape=shape)

    def add(self, name: str, *values: Value, **attrs: object) -> Value:
        (y,) = self.g.add(get(name), list(values), attrs)
        return y


def residual() -> Graph:
    """Ragged channels, added up, scaled by channel, and read by whole ones."""
    n = Net()
    x = n.conv(n.input(16, 9), 12)
    y = n.conv(n.conv(x, 32), 12)
    z = n.add("mul", n.add("relu", n.add("add", x, y)), n.constant((1, 12, 1, 1)))
    return n.g.finish([n.conv(z, 24, 3)])


def windows() -> Graph:
    """Depthwise windows and a pool behind ragged channels, and groups of these."""
    n = Net()
    x = n.conv(n.input(32, 11), 12)
    y = n.conv(x, 12, 3, groups=12, stride=2)
    y = n.add("max_pool", y, kernel=(2, 2), strides=(1, 1), pads=(0, 1, 1, 0), dilations=(1, 1))
    return n.g.finish([n.conv(n.conv(y, 12, 3, groups=3), 17)])


def joined() -> Graph:
    """Ragged channels next to each other: among themselves, and with whole vectors."""
    n = Net()
    x = n.input(16, 7)
    a, b, c = n.conv(x, 12, 3), n.conv(x, 12), n.conv(x, 16)
    ragged, mixed = n.add("concat", a, b, axis=1), n.add("concat", n.add("relu", a), c, axis=1)
    return n.g.finish([n.conv(ragged, 9), n.conv(mixed, 4)])


def phases() -> Graph:
    """A transposed convolution of ragged channels, and a window over them."""
    n = Net()
    y = n.add("relu", n.transposed(n.input(32, 5), 12))
    return n.g.finish([n.conv(n.conv(y, 12, 3, groups=12), 24)])


def groups() -> Graph:
    """Groups of twelve channels, three halves each, between single pixels."""
    n = Net()
    x = n.conv(n.input(16, 7), 36)
    return n.g.finish([n.conv(n.conv(n.conv(x, 36, 3, groups=3), 48, 3, groups=3, stride=2), 16)])


def volumes() -> Graph:
    n = Net(3)
    return n.g.finish([n.conv(n.add("relu", n.conv(n.input(32, 5), 12)), 8)])


NETWORKS = {f.__name__: f for f in (residual, windows, joined, phases, groups, volumes)}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_mean_the_same_in_half_vectors(name: str) -> None:
    graph, target = NETWORKS[name](), X86Target(AVX2, native=False)
    laid = _laid_out(graph, AVX2)
    assert any(_in_halves(v, AVX2) for n in laid.nodes for v in n.outputs)
    feeds = {v.name: np.random.default_rng(1).integers(-2, 3, v.type.shape).astype(np.float32) for v in graph.inputs}
    wanted = run_graph(graph, feeds)
    for threads in (1, 2):
        with build_module(graph, target, OPTIONS, threads, Given({})) as module:
            for found, right in zip(module.run(feeds).values(), wanted.values(), strict=True):
                np.testing.assert_array_equal(found, right)


def _laid_out(graph: Graph, machine: Cpu) -> Graph:
    (part,) = parts_of(run_passes(graph, passes_for(3), check=True), X86Target(machine, native=False))
    return lay_out(part, OPTIONS, Observer())


def _in_halves(v: Value, machine: Cpu) -> bool:
    half = machine.lanes // 2
    return v.type.layout is not None and v.type.layout.core == blocked(v.type.shape, 1, half)


def test_windows_and_joins_of_halves_are_in_halves() -> None:
    def made(graph: Graph) -> list[tuple[int, bool]]:
        return [(v.type.shape[1], _in_halves(v, AVX2)) for n in _laid_out(graph, AVX2).nodes for v in n.outputs]

    assert made(windows())[:3] == [(12, True), (12, True), (12, True)]
    assert made(phases())[:2] == [(12, True), (12, True)]
    assert made(groups())[1:3] == [(36, True), (48, True)]
    # 12 + 12 are whole halves, and 12 + 16 not of one kind
    assert made(joined())[:5] == [(12, True), (12, True), (16, False), (24, True), (28, False)]


def _between(channels: int, filters: int, size: int, groups: int = 1, taps: int = 1) -> Graph:
    """A convolution between two row-major tensors."""
    n = Net()
    return n.g.finish([n.conv(n.input(channels, size), filters, taps, groups=groups)])


@pytest.mark.parametrize("graph", [_between(64, 72, 7), _between(12, 24, 5, 3, 3), _between(36, 72, 7, 3, 3)])
def test_layouts_are_chosen_alike_when_they_are_known(graph: Graph) -> None:
    """A tuner asks for layouts once more where a group has some."""
    target = X86Target(ZEN4, native=False)
    for task in tasks_of(graph, target, OPTIONS, Observer()):
        node = candidate(task, target, task.space.default)
        assert [v.type.layout for v in node.inputs] == [v.type.layout for v in task.node.inputs]
        target.kernel(node, "k")


def test_templates_that_are_asked_for_know_whole_vectors() -> None:
    n = Net()
    graph = n.g.finish([n.conv(n.transposed(n.input(32, 9), 24), 24, 3, groups=24)])
    target = X86Target(ZEN4, native=False)
    for task in tasks_of(graph, target, OPTIONS, Observer(), template="master"):
        target.kernel(candidate(task, target, task.space.default), "k")


def test_a_half_has_as_many_lanes_a_cycle() -> None:
    half = ZEN4.in_half_vectors()
    assert (half.lanes * half.fmas, half.lanes * half.loads) == (ZEN4.lanes * ZEN4.fmas, ZEN4.lanes * ZEN4.loads)
    assert half.registers == ZEN4.registers
