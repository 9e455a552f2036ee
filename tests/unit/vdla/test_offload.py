"""What the accelerator takes, in which profile, and what it is expected to cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import TensorType, i8, i32
from mlc.lower.knobs import Knobs
from mlc.rewrite.group import config_of, make_group
from mlc.vdla.codegen.region import compile_layer
from mlc.vdla.config import PROFILES
from mlc.vdla.host import HostModel
from mlc.vdla.layer import read_layer
from mlc.vdla.layouts import tensor_layout
from mlc.vdla.offload import VdlaAccelerator
from mlc.vdla.schedules import plan_layer
from mlc.vdla.sim import Device
from tests.unit.rewrite.helpers import Net

POINT: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def group_of(graph: Graph) -> Node:
    return make_group(graph.nodes, graph.constants, 0)


def seconds_of(accelerator: VdlaAccelerator, group: Node, graph: Graph) -> float:
    """What a group takes with its configuration, by the timing simulator."""
    layer = read_layer(group, graph.constants)
    plan = plan_layer(layer, accelerator.config, Knobs(config_of(group)))
    program = compile_layer(layer, accelerator.config, plan)
    return Device(accelerator.config).run(program, exec=False).cycles / (accelerator.config.freq_mhz * 1e6)


def layer(
    *, bias: int = 0, residual: int | None = None, relu: bool = False, most: int | None = None, shift: Any = None
) -> Graph:
    n = Net()
    w = n.c(np.ones((32, 16, 1, 1)), np.int8)
    v: Value = n.conv(n.x(1, 16, 7, 7, dtype="i8"), w, **POINT)
    if bias:
        v = n.add(v, n.c(np.full((1, 32, 1, 1), bias), np.int32))
    if residual is not None:
        places = n.c(np.asarray(residual), np.int32)
        v = n.add(v, n.shl(n.cast(n.x(1, 32, 7, 7, dtype="i8", name="r"), to="i32"), places))
    if relu:
        v = n.relu(v)
    if most is not None:
        v = n.clip(v, lo=0, hi=most)
    if shift is not None:
        by = n.c(np.asarray(shift).reshape(-1, 1, 1) if np.ndim(shift) else [shift], np.int32)
        v = n.cast(n.clip(n.round_shift(v, by), lo=-128, hi=127), to="i8")
    return n(v)


def addition(lift: int = 0, shift: Any = 3) -> Graph:
    n = Net()
    v = n.cast(n.x(1, 32, 7, 7, dtype="i8"), to="i32")
    v = n.add(v, n.shl(n.cast(n.x(1, 32, 7, 7, dtype="i8", name="r"), to="i32"), n.c([lift], np.int32)))
    by = n.c(np.asarray(shift).reshape(-1, 1, 1) if np.ndim(shift) else [shift], np.int32)
    return n(n.cast(n.clip(n.round_shift(v, by), lo=-128, hi=127), to="i8"))


ADDITIONS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"lift": 2}, {"osdi18": "stores sums as they are, and multiplies only"}),
    ({"lift": 20}, {"osdi18": "stores sums as they are", "osdi18_i8": "lifted by 10 places at most"}),
    ({"shift": np.arange(32)}, {"osdi18": "stores", "osdi18_i8": "all channels share one shift"}),
]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("what", "refused"), ADDITIONS, ids=range(len(ADDITIONS)))
def test_profiles_add_as_their_hardware_does(profile: str, what: dict[str, Any], refused: dict[str, str]) -> None:
    graph = addition(**what)
    reason = VdlaAccelerator(PROFILES[profile]).refusal(group_of(graph), graph.constants)
    assert refused.get(profile, "") in reason
    assert bool(reason) == (profile in refused)


def test_additions_are_tuned_like_products() -> None:
    accelerator, graph = VdlaAccelerator(PROFILES["full"]), addition(2)
    group, knobs = group_of(graph), Knobs()
    accelerator.schedule(group, graph.constants, knobs)
    assert {"adder", "blocks", "pixels"} <= {k.name for k in knobs.space().knobs}
    by_alu = Node(group.op, group.inputs, {**group.attrs, "config": (("adder", "alu"),)}, group.outputs, group.sources)
    matrix, alu = (seconds_of(accelerator, g, graph) for g in (group, by_alu))
    assert 3 * 32 * 49 / 7.875 / 200e6 < matrix < alu


CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"shift": 3}, {"osdi18": "stores sums as they are"}),
    ({"bias": 2_000_000}, {"osdi18": "stores", "osdi18_i8": "biases are 1936496 at most"}),
    ({"bias": 1}, {"osdi18": "stores sums as they are"}),
    ({"bias": 1, "relu": True, "shift": 3}, {"osdi18": "stores sums as they are"}),
    ({"bias": 1, "relu": True}, {"osdi18": "stores", "osdi18_i8": "only stores of bytes activate"}),
    ({"residual": 6, "shift": 3}, {"osdi18": "stores sums as they are"}),
    ({"residual": 20, "shift": 3}, {"osdi18": "stores", "osdi18_i8": "lifted by 10 places at most"}),
    ({"most": 90, "shift": 3}, {"osdi18": "stores", "osdi18_i8": "nothing is clipped from above"}),
    ({"most": 786_432, "shift": 14}, {"osdi18": "stores", "osdi18_i8": "nothing is clipped from above"}),
    ({"most": 40_000}, {"osdi18": "stores", "osdi18_i8": "only stores", "full": "clips at 40000, and constants of"}),
    (
        {"most": 40_000, "shift": np.arange(32)},
        {"osdi18": "stores", "osdi18_i8": "one shift", "full": "clips at 40000"},
    ),
    ({"shift": 32}, {"osdi18": "stores", "osdi18_i8": "other than 0 to 31", "full": "other than 0 to 31 places"}),
    ({"residual": -1, "shift": 3}, {"osdi18": "stores", "osdi18_i8": "other than 0 to 31", "full": "other than"}),
    ({"shift": np.arange(32)}, {"osdi18": "stores", "osdi18_i8": "all channels share one shift"}),
]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("what", "refused"), CASES, ids=range(len(CASES)))
def test_profiles_take_what_their_hardware_does(profile: str, what: dict[str, Any], refused: dict[str, str]) -> None:
    graph = layer(**what)
    reason = VdlaAccelerator(PROFILES[profile]).refusal(group_of(graph), graph.constants)
    assert refused.get(profile, "") in reason
    assert bool(reason) == (profile in refused)


@pytest.mark.parametrize(
    ("size", "pad", "dilation", "reason"),
    [
        (3, 2, 1, ""),
        (3, 3, 1, ""),
        (3, 4, 2, ""),
        (3, 20, 10, ""),
        (11, 2, 1, ""),
        (16, 0, 1, "no tile of the layer fits the memories"),
    ],
)
def test_windows_that_the_memories_cannot_take(size: int, pad: int, dilation: int, reason: str) -> None:
    n = Net()
    w = n.c(np.ones((16, 16, size, size)), np.int8)
    x = n.x(1, 16, 40, 40, dtype="i8")
    graph = n(n.conv(x, w, strides=(1, 1), pads=(pad,) * 4, dilations=(dilation,) * 2))
    assert VdlaAccelerator(PROFILES["full"]).refusal(group_of(graph), graph.constants) == reason


@pytest.mark.parametrize(
    ("channels", "groups"),
    [((32, 32), 32), ((40, 40), 10), ((64, 96), 2), ((24, 24), 2), ((32, 64), 32), ((96, 96), 4)],
)
def test_groups_of_any_width_are_taken(channels: tuple[int, int], groups: int) -> None:
    n, (c, o) = Net(), channels
    w = n.c(np.ones((o, c // groups, 3, 3)), np.int8)
    x = n.x(1, c, 8, 8, dtype="i8")
    graph = n(n.conv(x, w, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), groups=groups))
    assert VdlaAccelerator(PROFILES["full"]).refusal(group_of(graph), graph.constants) == ""


def test_what_is_no_layer_has_its_reason() -> None:
    n = Net()
    accelerator = VdlaAccelerator(PROFILES["full"])
    assert accelerator.refusal(group_of(n(n.softmax(n.x(3), axis=0))), {}) == "no product, addition or activation"
    n = Net()
    assert accelerator.refusal(group_of(n(n.relu(n.x(3)))), {}) == "works on f32, not on i8"


def test_layouts() -> None:
    lanes = PROFILES["full"].block_out
    image = tensor_layout(TensorType((2, 20, 3, 5), i8), lanes)
    assert image is not None
    assert image.physical_shape == (2, 2, 3, 5, 16)
    rows = tensor_layout(TensorType((7, 40), i32), lanes)
    assert rows is not None
    assert rows.physical_shape == (3, 7, 16)
    x = np.arange(280, dtype=np.int32).reshape(7, 40)
    assert rows.pack(x)[1, 4, 3] == x[4, 19]
    assert tensor_layout(TensorType((5,), i8), lanes) is None


def test_estimates_are_rooflines() -> None:
    accelerator = VdlaAccelerator(PROFILES["full"])
    n = Net()
    w = n.c(np.ones((64, 64, 3, 3)), np.int8)
    x = n.x(1, 64, 56, 56, dtype="i8")
    graph = n(n.conv(x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)))
    device, host = accelerator.estimate(group_of(graph))
    assert device == pytest.approx(56 * 56 * 4 * 4 * 9 / 0.9 / 200e6)
    assert host == pytest.approx(2 * 64 * 64 * 9 * 56 * 56 / 2.4e9, rel=0.01)
    # two tensors in, one out: the port is the limit
    device, host = accelerator.estimate(group_of(addition()))
    assert device == pytest.approx(3 * 32 * 49 / 7.875 / 0.9 / 200e6, rel=0.02)
    assert host == pytest.approx(3 * 32 * 49 / 0.5e9, rel=0.02)
    # one row by a matrix: every weight is used once, so memory is the limit
    n = Net()
    graph = n(n.matmul(n.x(1, 512, dtype="i8"), n.c(np.ones((512, 1000)), np.int8)))
    device, _ = accelerator.estimate(group_of(graph))
    assert device == pytest.approx((512 * 1000 + 512 + 4000) / 7.875 / 0.9 / 200e6, rel=0.01)
    assert accelerator.copy_seconds(1000) == pytest.approx(4e-6)


def test_the_host_model_says_what_it_assumes() -> None:
    host = HostModel()
    n = Net()
    (pool,) = n(n.max_pool(n.x(1, 4, 8, 8), kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))).nodes
    assert host.seconds(pool) == pytest.approx((4 * 64 + 4 * 16) * 4 / 0.5e9)
    assert any("not measured" in line for line in host.lines())
    assert set(host.to_json()) == {"product_ops_per_second", "bytes_per_second"}
