"""Dividing graphs between a host and a made-up device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp.graph import run_graph, run_node
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.ops import get
from mlc.rewrite.fuse import fuse, group_each
from mlc.rewrite.group import body_of
from mlc.rewrite.layout import assign_layouts
from mlc.rewrite.memory import MemoryPlan, Space, check_plan, plan_memory
from mlc.rewrite.offload import Partition, Shortcoming, offload
from mlc.rewrite.region import activations, in_device_memory, is_region, on_device, region_graph
from mlc.targets.base import LayoutChoice
from tests.devices import BLOCK, ToyAccelerator, products_of_bytes
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, assert_same, inputs_of, op_names

SAME: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


class Bytes(Net):
    """Short words for layers of bytes."""

    def bytes(self, *shape: int, seed: int = 0) -> Value:
        return self.c(np.random.default_rng(seed).integers(-3, 4, shape), np.int8)

    def narrow(self, sums: Value) -> Value:
        shifted = self.round_shift(sums, self.c([2], np.int32))
        return self.cast(self.clip(shifted, lo=-128, hi=127), to="i8")

    def layer(self, x: Value, seed: int = 0, residual: Value | None = None) -> Value:
        channels = x.type.shape[1]
        sums = self.conv(x, self.bytes(channels, channels, 1, 1, seed=seed), **SAME)
        sums = self.add(sums, self.c(np.arange(channels).reshape(1, channels, 1, 1), np.int32))
        if residual is not None:
            sums = self.add(sums, self.shl(self.cast(residual, to="i32"), self.c([1], np.int32)))
        return self.narrow(self.relu(sums))


def regions(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if is_region(n)]


def layers_of(node: Node) -> int:
    return len(node.attrs["body"].nodes)


def divided(graph: Graph, accelerator: ToyAccelerator | None = None) -> Partition:
    parts = offload(graph, accelerator or ToyAccelerator())
    assert_same(graph, parts.graph)
    return parts


def test_what_follows_a_product_goes_with_it() -> None:
    n = Bytes()
    x = n.x(1, 8, 3, 3, dtype="i8")
    graph = n(n.softmax(n.cast(n.layer(n.layer(x), 1), to="f32"), axis=1))
    parts = divided(graph)
    assert op_names(parts.graph) == ["pack", "copy_to", "offload", "copy_from", "unpack", "cast", "softmax"]
    assert [d.region for d in parts.decisions] == ["region0", "region0", "", ""]
    assert parts.decisions[0].operators == ("conv", "add", "relu", "round_shift", "clip", "cast")
    assert parts.decisions[-1].reason == "not a product"
    (region,) = regions(parts.graph)
    assert [v.type.physical_shape for v in region.outputs] == [(1, 2, 3, 3, BLOCK)]
    body = region_graph(region, parts.graph.constants)
    assert [v.name for v in body.inputs] == ["x"]
    assert len(body.constants) == 4
    assert activations(region, parts.graph.constants) == [parts.graph.nodes[1].outputs[0]]


def test_a_residual_is_read_in_bytes_by_the_group_that_adds_it() -> None:
    n = Bytes()
    x = n.x(1, 4, 3, 3, dtype="i8")
    first = n.layer(x)
    branch = n.layer(first, 1)
    parts = divided(n(n.layer(branch, 2, residual=n.layer(first, 3))))
    (region,) = regions(parts.graph)
    assert layers_of(region) == 4
    assert [d.operators.count("add") for d in parts.decisions] == [1, 1, 1, 2]


def test_a_row_major_device_needs_no_packing() -> None:
    n = Bytes()
    parts = divided(n(n.layer(n.x(1, 4, 3, 3, dtype="i8"))), ToyAccelerator(block=0))
    assert op_names(parts.graph) == ["copy_to", "offload", "copy_from"]


class AgreeingAccelerator(ToyAccelerator):
    """Pairs of columns are one block, if nothing but products makes and reads them."""

    def layouts_between(self, groups: Sequence[Node], constants: Mapping[Value, np.ndarray]) -> Mapping[Value, Layout]:
        values = dict.fromkeys(v for g in groups for v in (*g.inputs, *g.outputs) if v not in constants)
        return {v: Layout(v.type.shape).split(3, 2) for v in values if v.type.shape[3] % 2 == 0}


def test_a_device_may_agree_on_other_layouts() -> None:
    n = Bytes()
    x = n.x(1, 4, 3, 6, dtype="i8")
    graph = n(n.layer(n.layer(n.layer(x), 1), 2))
    parts = divided(graph, AgreeingAccelerator())
    (region,) = regions(parts.graph)
    body = region_graph(region, parts.graph.constants)
    values = [*body.inputs, *(v for g in body.nodes for v in g.outputs)]
    assert [v.type.physical_shape for v in values] == [(1, 4, 3, 3, 2)] * 4
    # what is said already stays, whatever the device would choose for tensors of the type
    kept = assign_layouts(body, lambda node, _: (node, LayoutChoice((Layout((1, 4, 3, 6)),))), get("identity"))
    assert [g.outputs[0].type for g in kept.nodes] == [g.outputs[0].type for g in body.nodes]


def test_a_region_that_would_be_entered_again_is_cut() -> None:
    n = Bytes()
    x = n.x(1, 4, 3, 3, dtype="i8")
    first = n.layer(x)
    host = n.abs(first)
    parts = divided(n(n.layer(n.layer(first, 1), 2, residual=host)))
    assert [layers_of(r) for r in regions(parts.graph)] == [2, 1]
    # what both regions touch stays in device memory: nothing is copied there and back
    second = regions(parts.graph)[1]
    makers = parts.graph.producers()
    assert [makers[v].op.name for v in activations(second, parts.graph.constants)] == ["offload", "copy_to"]
    assert op_names(parts.graph).count("copy_from") == 2  # for abs, and the result


def test_regions_never_wait_for_each_other() -> None:
    # two chains, crossed by host operators: joining layers as they come would make a cycle of regions
    n = Bytes()
    a, b = n.x(1, 4, 2, 2, dtype="i8", name="a"), n.x(1, 4, 2, 2, dtype="i8", name="b")
    p, q = n.layer(a), n.layer(n.abs(n.layer(b, 1)), 2)
    parts = divided(n(n.layer(n.abs(p), 3), n.layer(n.abs(q), 4), n.layer(n.add(p, q), 5)))
    assert sum(map(layers_of, regions(parts.graph))) == 6


def test_the_host_keeps_what_it_does_faster() -> None:
    n = Bytes()
    graph = n(n.layer(n.x(1, 4, 3, 3, dtype="i8")))
    slow = divided(graph, ToyAccelerator(seconds=(2.0, 1.0)))
    assert slow.graph is graph
    assert slow.decisions[0].reason == "the host is faster (1e+03 ms, not 2e+03 ms)"
    far = divided(graph, ToyAccelerator(copying=0.75))
    assert far.graph is graph
    assert "not 2.5e+03 ms with copies" in far.decisions[0].reason
    assert divided(graph, ToyAccelerator(copying=0.25)).decisions[0].region == "region0"


class Weighed(ToyAccelerator):
    """Groups that add other tensors take ``slow``: seconds of the device and of the host; a copy takes 0.75."""

    slow = 1.0, 1.5

    def estimate(self, group: Node) -> tuple[float, float]:
        return self.slow if any(n.op is get("cast") for n in body_of(group).nodes[:-1]) else (1.0, 10.0)

    def copy_seconds(self, nbytes: int) -> float:
        return 0.75


def test_what_copies_make_slower_leaves_at_the_border() -> None:
    n = Bytes()
    x, h = n.x(1, 4, 3, 3, dtype="i8"), n.x(1, 4, 3, 3, dtype="i8", name="h")
    parts = divided(n(n.layer(n.layer(x), 1, residual=h)), Weighed())
    assert [d.region for d in parts.decisions] == ["region0", ""]
    assert parts.decisions[1].reason == "the host is faster (1.5e+03 ms, not 1.75e+03 ms with copies)"


@pytest.mark.parametrize("follows", [False, True])
def test_nothing_leaves_from_within_a_region(follows: bool) -> None:
    n = Bytes()
    x, *beside = (n.x(1, 4, 3, 3, dtype="i8", name=name) for name in "xabc")
    sums = n.conv(n.layer(x), n.bytes(4, 4, 1, 1), **SAME)
    for h in beside:
        sums = n.add(sums, n.cast(h, to="i32"))
    slow = n.narrow(sums)
    parts = divided(n(n.layer(slow, 2) if follows else slow), Weighed())
    assert [d.region for d in parts.decisions] == (["region0"] * 3 if follows else ["region0", ""])


def test_what_the_hardware_lacks_is_said_of_the_whole_group() -> None:
    def refuse(group: Node, constants: Any) -> str:
        return products_of_bytes(group, constants) or Shortcoming("this one has no array")

    n = Bytes()
    parts = divided(n(n.layer(n.x(1, 4, 3, 3, dtype="i8"))), ToyAccelerator(refuse))
    assert {d.reason for d in parts.decisions} == {"this one has no array"}
    assert len(parts.decisions) == 6


def test_reasons_reach_the_report() -> None:
    n = Bytes()
    x = n.x(1, 4, 3, 3, dtype="i16")
    sums = n.conv(x, n.bytes(4, 4, 1, 1), **SAME)
    (decision,) = divided(n(sums)).decisions
    assert decision.to_json() == {
        "operators": ["conv"], "sources": [], "region": None, "reason": "works on i16",
        "device_seconds": None, "host_seconds": None,
    }  # fmt: skip


def test_opaque_operators_stay() -> None:
    n = Bytes()
    values, _ = n.builder.add(get("top_k"), [n.x(4, 8)], {"k": 2, "axis": 1, "largest": True})
    assert divided(n(values)).decisions[0].reason == "no expression states it"


def finished(graph: Graph) -> Graph:
    """Fused, and with layouts: a host that blocks everything by 2 is no danger to what the device wants."""

    def choose(node: Node, site: Site) -> tuple[Node, LayoutChoice]:
        return node, LayoutChoice(tuple(None for _ in node.outputs))

    return assign_layouts(group_each(fuse(graph)), choose, get("identity"))


def carry_out(graph: Graph, plan: MemoryPlan) -> dict[str, np.ndarray]:
    """Run the plan's steps on bytes, those of the device apart."""
    rng = np.random.default_rng(3)
    given = inputs_of(graph)
    arenas = {
        Space.WORKSPACE: rng.integers(0, 256, plan.workspace_bytes, np.uint8),
        Space.DEVICE: rng.integers(0, 256, plan.device_bytes, np.uint8),
    }
    outputs = [rng.integers(0, 256, v.type.nbytes, np.uint8) for v in graph.outputs]
    inputs = [given[v.name].reshape(-1).view(np.uint8) for v in graph.inputs]
    constants = list(graph.constants.values())

    def raw(v: Value) -> np.ndarray:
        place = plan.locations[v]
        if place.space in arenas:
            return arenas[place.space][place.at : place.at + v.type.nbytes]
        return (inputs if place.space is Space.INPUT else outputs)[place.at]

    def value(v: Value) -> np.ndarray:
        if v in graph.constants:
            return constants[plan.locations[v].at]
        array = raw(v).view(v.type.dtype.numpy).reshape(v.type.physical_shape)
        return v.type.layout.unpack(array) if v.type.layout else array

    for node in plan.steps:
        for v, array in zip(node.outputs, run_node(node, [value(u) for u in node.inputs]), strict=True):
            packed = v.type.layout.pack(array) if v.type.layout else array
            raw(v)[:] = np.ascontiguousarray(packed).reshape(-1).view(np.uint8)
    return {
        name: a.view(v.type.dtype.numpy).reshape(v.type.shape)
        for name, a, v in zip(graph.output_names, outputs, graph.outputs, strict=True)
    }


@examples(40)
@given(st.data())
def test_random_networks_are_divided_rightly(data: st.DataObject) -> None:
    n = Bytes()
    values = [n.x(1, 4, 2, 2, dtype="i8")]
    for k in range(data.draw(st.integers(1, 9))):
        x = data.draw(st.sampled_from(values))
        kind = data.draw(st.sampled_from(["layer", "layer", "residual", "abs", "max"]))
        if kind == "abs":
            values.append(n.abs(x))
        elif kind == "max":
            values.append(n.max(x, data.draw(st.sampled_from(values))))
        else:
            residual = data.draw(st.sampled_from(values)) if kind == "residual" else None
            values.append(n.layer(x, k, residual))
    wanted = data.draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique=True))
    graph = n(*wanted)
    layout = data.draw(st.sampled_from([0, 3, 4]))
    divided_graph = finished(divided(graph, ToyAccelerator(block=layout)).graph)
    plan = plan_memory(divided_graph, device_alignment=256)
    check_plan(divided_graph, plan)
    there = {v for node in divided_graph.nodes if in_device_memory(node) for v in node.outputs}
    for v, place in plan.locations.items():
        assert (place.space is Space.DEVICE) == (v in there)
        assert place.space is not Space.DEVICE or place.at % 256 == 0
    expected = run_graph(graph, inputs_of(graph))
    for name, array in carry_out(divided_graph, plan).items():
        np.testing.assert_array_equal(array, expected[name])


def test_the_plan_s_checker_sees_clashes_in_device_memory() -> None:
    n = Bytes()
    x = n.x(1, 4, 3, 3, dtype="i8")
    graph = finished(divided(n(n.layer(n.layer(x), 1, residual=n.abs(x)))).graph)
    plan = plan_memory(graph)
    check_plan(graph, plan)
    places = [v for node in graph.nodes if on_device(node) for v in node.outputs if in_device_memory(node)]
    wrong = replace(plan, locations={**plan.locations, places[1]: plan.locations[places[0]]})
    with pytest.raises(VerifyError, match=r"overwritten|in use"):
        check_plan(graph, wrong)
    with pytest.raises(VerifyError, match="outside the arena"):
        check_plan(graph, replace(plan, device_bytes=0))
