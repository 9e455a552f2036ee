"""Regions of several layers in one stream, bit for bit against numpy, in every profile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.layout import blocked
from mlc.ir.types import TensorType
from mlc.pipeline.machine import constants_of
from mlc.rewrite.group import configured, make_group
from mlc.vdla.check import Kind, check, describe
from mlc.vdla.codegen.region import LayerKernel, compile_region, region_seconds
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Unit, is_nop
from mlc.vdla.layer import read_layer
from mlc.vdla.offload import VdlaAccelerator
from mlc.vdla.program import Program
from mlc.vdla.sim import Device
from tests.unit.rewrite.helpers import Net
from tests.unit.vdla.schedules.layers import wanted
from tests.unit.vdla.streams import token_pairs, without

NARROW = ["osdi18_i8", "full"]


class Layers:
    """A region, one layer after the other; every one becomes a group."""

    def __init__(self, channels: int, size: int) -> None:
        self.net = Net()
        self.rng = np.random.default_rng(0)
        self.begins: list[int] = []
        self.x = self.net.x(1, channels, size, size, dtype="i8")

    def conv(self, x: Value, channels: int, kernel: int = 3, stride: int = 1, **more: Any) -> Value:
        n, p = self.net, kernel // 2
        self.begins.append(len(n.builder.nodes))
        w = n.c(self.rng.integers(-127, 128, (channels, x.type.shape[1], kernel, kernel)), np.int8)
        sums = n.conv(x, w, strides=(stride, stride), pads=(p, p, p, p), dilations=(1, 1))
        return self._end(sums, channels, **more)

    def _end(
        self, sums: Value, channels: int, residual: Value | None = None, relu: bool = True, shift: int = 11
    ) -> Value:
        n = self.net
        sums = n.add(sums, n.c(self.rng.integers(-30000, 30000, (1, channels, 1, 1)), np.int32))
        if residual is not None:
            sums = n.add(sums, n.shl(n.cast(residual, to="i32"), n.c([6], np.int32)))
        if relu:
            sums = n.relu(sums)
        return n.cast(n.clip(n.round_shift(sums, n.c([shift], np.int32)), lo=-128, hi=127), to="i8")

    def region(self, *outputs: Value) -> Graph:
        graph = self.net(*outputs)
        ends = [*self.begins[1:], len(graph.nodes)]
        groups: list[Node] = []
        for k, (begin, end) in enumerate(zip(self.begins, ends, strict=True)):
            group = make_group(graph.nodes[begin:end], graph.constants, k)
            groups.append(group)
            for v in (*group.inputs, *group.outputs):
                if v not in graph.constants:
                    v.type = TensorType(v.type.shape, v.type.dtype, blocked(v.type.shape, 1, 16))
        return Graph("region", graph.inputs, graph.outputs, tuple(groups), graph.constants)


def expected(region: Graph, x: np.ndarray) -> dict[Value, np.ndarray]:
    """Every value of a region, by numpy alone."""
    known = {region.inputs[0]: x}
    for group in region.nodes:
        layer = read_layer(group, region.constants)
        values = {"x": known[layer.x]}
        if layer.residual is not None:
            values["residual"] = known[layer.residual]
        known[layer.out] = wanted(layer, values)
    return known


def kernels_of(region: Graph, config: VdlaConfig, **knobs: Any) -> list[LayerKernel]:
    accelerator = VdlaAccelerator(config)
    groups = [configured(g, knobs) for g in region.nodes]
    return [accelerator.kernel(g, g.outputs[0].name, constants_of(g, region.constants)) for g in groups]


def compiled(region: Graph, config: VdlaConfig, **knobs: Any) -> Program:
    return compile_region(region, kernels_of(region, config, **knobs), config)


def check_region(region: Graph, config: VdlaConfig, **knobs: Any) -> Program:
    program = compiled(region, config, **knobs)
    found = check(program)
    assert not found, "\n".join(describe(program, v) for v in found[:5])
    (x,) = region.inputs
    given = np.random.default_rng(1).integers(-128, 128, x.type.shape).astype(np.int8)
    device = Device(config)
    device.bind(x.name, x.type.layout.pack(given))
    known = expected(region, given)
    arrays = {v: np.zeros(v.type.physical_shape, v.type.dtype.numpy) for v in region.outputs}
    for v, array in arrays.items():
        device.bind(v.name, array)
    device.run(program)
    for v, array in arrays.items():
        np.testing.assert_array_equal(v.type.layout.unpack(array), known[v])
    return program


@pytest.mark.parametrize("profile", NARROW)
def test_a_residual_block(profile: str) -> None:
    net = Layers(32, 12)
    a = net.conv(net.x, 32)
    b = net.conv(a, 32, residual=net.x)
    program = check_region(net.region(b), PROFILES[profile])
    assert [b.kind for b in program.buffers[:3]] == ["in", "out", "temp"]
    assert [layer["name"] for layer in program.meta["layers"]] == [a.name, b.name]


@pytest.mark.parametrize("profile", NARROW)
def test_layers_with_tokens_by_structure_have_barriers_between_them(profile: str) -> None:
    net = Layers(32, 12)
    a = net.conv(net.x, 32)
    b = net.conv(a, 32, residual=net.x)
    region = net.region(b)
    program = check_region(region, PROFILES[profile], tokens="structure", threads="rows", rows=3)
    exact = check_region(region, PROFILES[profile], threads="rows", rows=3)
    assert sum(map(is_nop, program.instructions)) > sum(map(is_nop, exact.instructions))


@pytest.mark.parametrize("profile", NARROW)
def test_a_block_that_halves(profile: str) -> None:
    net = Layers(32, 14)
    short = net.conv(net.x, 64, kernel=1, stride=2, relu=False)
    a = net.conv(net.x, 64, stride=2)
    b = net.conv(a, 64, residual=short)
    c = net.conv(b, 64)
    check_region(net.region(c, b), PROFILES[profile])


def test_kernels_are_emitted_again_and_again_and_times_are_told_without_running() -> None:
    net, config = Layers(32, 14), PROFILES["full"]
    a = net.conv(net.x, 32)
    region = net.region(net.conv(a, 32, residual=net.x))
    kernels = kernels_of(region, config)
    first, told = compile_region(region, kernels, config), region_seconds(region, kernels, config)
    again = compile_region(region, kernels, config)
    assert again.to_bytes() == first.to_bytes() == compiled(region, config).to_bytes()
    assert told == Device(config).run(first, exec=False).cycles / (config.freq_mhz * 1e6)


def test_values_may_be_called_anything() -> None:
    net = Layers(16, 4)
    region = net.region(net.conv(net.conv(net.x, 16), 16))
    for value, name in zip([*region.inputs, *region.outputs], ("uops", "a {b} #"), strict=True):
        value.name = name
    program = compiled(region, PROFILES["full"])
    assert check(program) == []
    assert [spec.name for spec in program.buffers[:2]] == ["uops", "a__b___"]
    assert program.buffers[-1].name == "uops.2"
    assert Program.from_bytes(program.to_bytes()) == program


def test_an_invalid_stream_does_not_leave_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.vdla.codegen.assemble.insert_tokens", lambda steps, config, written: list(steps))
    net = Layers(16, 4)
    with pytest.raises(VerifyError, match="the accelerator's stream is not valid: UNFINISHED: FINISH does not wait"):
        compiled(net.region(net.conv(net.x, 16)), PROFILES["full"])


def test_without_the_token_between_layers_the_stream_is_refused() -> None:
    net = Layers(16, 8)
    program = check_region(net.region(net.conv(net.conv(net.x, 16), 16)), PROFILES["full"])
    first = program.meta["layers"][1]["first"]
    stream = program.instructions
    pairs = [p for p in token_pairs(program) if p[2] >= first and stream[p[2]].unit is Unit.LD and p[0] >= first]
    assert pairs
    relayed = [p for p in pairs if is_nop(stream[p[0]])]
    assert relayed  # LD and ST have no queue between them
    for push, push_flag, pop, pop_flag in relayed:
        broken = without(program, (push, push_flag), (pop, pop_flag))
        assert Kind.RAW in {v.kind for v in check(broken)}


def test_as_published_a_region_keeps_its_sums() -> None:
    net = Layers(32, 10)
    n, w = net.net, net.rng.integers(-127, 128, (48, 32, 3, 3))
    net.begins.append(0)
    sums = n.conv(net.x, n.c(w, np.int8), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    check_region(net.region(sums), PROFILES["osdi18"])
