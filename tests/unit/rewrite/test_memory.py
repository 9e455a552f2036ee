"""Memory plans: followed by a checker, and carried out on real bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ImportModelError, VerifyError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp.graph import run_graph, run_node
from mlc.ir.layout import blocked
from mlc.rewrite.fuse import fuse, group_each
from mlc.rewrite.group import is_alias
from mlc.rewrite.memory import Copy, InPlace, Location, MemoryPlan, Space, check_plan, plan_memory
from mlc.rewrite.updates import readers_first
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, inputs_of
from tests.unit.rewrite.random_graphs import random_graph


def carry_out(graph: Graph, plan: MemoryPlan, scratch: dict[Node, int]) -> dict[str, np.ndarray]:
    """Run the plan's steps on one block of bytes, which starts as noise."""
    rng = np.random.default_rng(3)
    workspace = rng.integers(0, 256, plan.workspace_bytes, np.uint8)
    given = inputs_of(graph)
    memory = {Space.WORKSPACE: [workspace]}
    memory[Space.INPUT] = [given[v.name].reshape(-1).view(np.uint8) for v in graph.inputs]
    memory[Space.PARAM] = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in graph.constants.values()]
    memory[Space.OUTPUT] = [
        memory[Space.INPUT][plan.over[k]] if k in plan.over else rng.integers(0, 256, v.type.nbytes, np.uint8)
        for k, v in enumerate(graph.outputs)
    ]

    def view(v: Value) -> np.ndarray:
        place = plan.locations[v]
        if place.space is Space.WORKSPACE:
            raw = workspace[place.at : place.at + v.type.nbytes]
        else:
            raw = memory[place.space][place.at]
        return raw.view(v.type.dtype.numpy).reshape(v.type.shape)

    for node in plan.steps:
        if node in scratch:
            workspace[plan.scratch[node] :][: scratch[node]] = 0xFF
        for v, array in zip(node.outputs, run_node(node, [view(u) for u in node.inputs]), strict=True):
            view(v)[...] = array
    for c in plan.copies:
        inside = c.source.space is Space.WORKSPACE
        source = workspace[c.source.at :][: c.nbytes] if inside else memory[c.source.space][c.source.at]
        memory[Space.OUTPUT][c.output][:] = source
    return {
        name: raw.view(v.type.dtype.numpy).reshape(v.type.shape)
        for name, raw, v in zip(graph.output_names, memory[Space.OUTPUT], graph.outputs, strict=True)
    }


def planned(graph: Graph, scratch: dict[Node, int] | None = None, over: dict[int, int] | None = None) -> MemoryPlan:
    """A plan that was checked and carried out."""
    plan = plan_memory(graph, scratch=scratch, over=over)
    check_plan(graph, plan, scratch)
    expected = run_graph(graph, inputs_of(graph))
    for name, array in carry_out(graph, plan, scratch or {}).items():
        np.testing.assert_array_equal(array, expected[name])
    return plan


@examples(40)
@given(st.data())
def test_plans_of_random_graphs_hold(data: st.DataObject) -> None:
    graph = random_graph(data)
    graph = data.draw(st.sampled_from([fuse, group_each]))(graph)
    scratch = {n: data.draw(st.sampled_from([1, 100, 1000])) for n in graph.nodes if data.draw(st.booleans())}
    plan = planned(graph, scratch)
    assert plan.live_bytes <= plan.workspace_bytes


def ways_over(graph: Graph, draw: Callable[[Any], Any]) -> dict[int, int]:
    """Some outputs over inputs of their types."""
    over: dict[int, int] = {}
    for k, v in enumerate(graph.outputs):
        fitting = [j for j, u in enumerate(graph.inputs) if u.type == v.type and j not in over.values()]
        if fitting and v not in graph.inputs and draw(st.booleans()):
            over[k] = draw(st.sampled_from(fitting))
    return over


@examples(40)
@given(st.data())
def test_outputs_over_inputs_in_random_graphs_leave_what_is_still_read(data: st.DataObject) -> None:
    graph = random_graph(data)
    produced = [v for n in graph.nodes for v in n.outputs if v.type in [u.type for u in graph.inputs]]
    more = data.draw(st.lists(st.sampled_from(produced), max_size=3, unique=True)) if produced else []
    outputs = [*graph.outputs, *(v for v in more if v not in graph.outputs)]
    graph = replace(graph, outputs=tuple(outputs), output_names=tuple(f"o{k}" for k in range(len(outputs))))
    graph = data.draw(st.sampled_from([fuse, group_each]))(graph)
    over = ways_over(graph, data.draw)
    planned(graph, {}, over)
    planned(readers_first(graph, over), {}, over)


def test_an_output_is_made_over_an_input_whose_readers_have_been() -> None:
    n = Net()
    w, x = n.x(8, 8, name="w"), n.x(8, 8)
    y = wide(n, n.add(w, x))
    graph = group_each(n(y, n.mul(w, y)))
    plan = planned(graph, over={1: 0})
    assert [(p.node, p.operand, p.result) for p in plan.in_place[:1]] == [(graph.nodes[-1], 0, 0)]
    assert plan.locations[graph.outputs[1]] == Location(Space.OUTPUT, 1)
    assert not plan.copies


@pytest.mark.parametrize("how", ["a later reader", "another index", "an output"])
def test_an_output_waits_in_the_workspace_where_the_input_is_read_for_too_long(how: str) -> None:
    n = Net()
    w, x = n.x(8, 8, name="w"), n.x(8, 8)
    if how == "a later reader":
        new = n.mul(w, x)
        graph = group_each(n(new, n.add(w, new)))
    elif how == "another index":
        graph = group_each(n(wide(n, w)))
    else:
        graph = group_each(n(n.mul(w, x), w))
    plan = planned(graph, over={0: 0})
    assert plan.copies[-1].source.space is Space.WORKSPACE
    assert plan.workspace_bytes == 256


def test_an_input_cannot_be_the_next_value_of_another_one_that_changes() -> None:
    n = Net()
    a, _ = n.x(8, name="a"), n.x(8, name="b")
    with pytest.raises(VerifyError, match="whose memory another output may take"):
        plan_memory(group_each(n(n.neg(a), a)), over={0: 0, 1: 1})


def test_the_checker_sees_an_input_that_was_written_over_too_soon() -> None:
    n = Net()
    w, x = n.x(8, 8, name="w"), n.x(8, 8)
    graph = group_each(n(n.neg(x), n.add(w, x)))
    plan = plan_memory(graph)
    check_plan(graph, plan)
    with pytest.raises(VerifyError, match=r"reads x, which was overwritten|are in use while it runs"):
        check_plan(graph, replace(plan, over={0: 1}))


def wide(n: Net, x: Value) -> Value:
    """A step that cannot work in place."""
    return n.transpose(x, perm=(1, 0))


def test_a_chain_alternates_between_two_places() -> None:
    n = Net()
    v = n.x(8, 8)
    for _ in range(6):
        v = wide(n, v)
    plan = planned(group_each(n(v)))
    assert plan.workspace_bytes == 2 * 256
    assert plan.unshared_bytes == 5 * 256


def test_the_last_value_is_written_to_the_output() -> None:
    n = Net()
    graph = group_each(n(wide(n, wide(n, n.x(8, 8)))))
    plan = planned(graph)
    assert plan.locations[graph.outputs[0]] == Location(Space.OUTPUT, 0)
    assert plan.workspace_bytes == 256
    assert not plan.copies


def test_elementwise_steps_work_in_place() -> None:
    n = Net()
    v = wide(n, n.x(8, 8))
    for _ in range(4):
        v = n.relu(v)
    graph = group_each(n(wide(n, v)))
    plan = planned(graph)
    assert plan.workspace_bytes == 256
    assert [(graph.nodes.index(p.node), p.operand) for p in plan.in_place] == [(k, 0) for k in range(1, 5)]


def test_what_is_still_needed_is_not_overwritten() -> None:
    n = Net()
    a = wide(n, n.x(8, 8))
    b = n.relu(a)
    plan = planned(group_each(n(wide(n, n.add(wide(n, b), a)))))
    assert plan.workspace_bytes >= 2 * 256


def test_inputs_and_constants_are_never_overwritten() -> None:
    n = Net()
    plan = planned(group_each(n(wide(n, n.add(n.relu(n.x(8, 8)), n.w(8, 8))))))
    # the relu may not write over x, the sum may write over the relu
    assert [p.operand for p in plan.in_place] == [0]
    assert plan.workspace_bytes == 256


def test_an_operand_read_through_an_alias_as_well_is_not_overwritten_unless_both_fit() -> None:
    n = Net()
    a = wide(n, n.x(4, 4))
    b = n.reshape(n.reshape(a, shape=(16,)), shape=(4, 4))
    plan = planned(group_each(n(wide(n, n.add(a, b)))))
    assert len(plan.in_place) == 1
    n = Net()
    a = wide(n, n.x(4, 4))
    c = n.reshape(a, shape=(1, 16))
    graph = n(wide(n, n.matmul(a, n.reshape(c, shape=(4, 4)))))
    assert not planned(group_each(graph)).in_place


def test_aliases_lie_where_their_operand_does_and_are_no_steps() -> None:
    n = Net()
    a = wide(n, n.x(4, 4))
    b = n.reshape(a, shape=(2, 8))
    graph = group_each(n(wide(n, b), wide(n, a)))
    plan = planned(graph)
    assert plan.locations[graph.nodes[0].outputs[0]] == plan.locations[graph.nodes[1].outputs[0]]
    assert [node.attrs["alias"] for node in plan.steps] == [False] * 3


def test_operands_of_concats_are_made_in_their_result() -> None:
    n = Net()
    a, b = wide(n, n.x(16, 8)), wide(n, n.x(16, 24))
    c = n.concat(a, b, axis=0)
    graph = group_each(n(wide(n, n.relu(c)), wide(n, b)))
    plan = planned(graph)
    places = [plan.locations[v].at for v in (graph.nodes[0].outputs[0], graph.nodes[1].outputs[0])]
    whole = plan.locations[graph.nodes[2].outputs[0]].at
    assert places == [whole, whole + 8 * 16 * 4]
    assert graph.nodes[2] not in plan.steps
    assert not plan.in_place  # the second operand is still needed when the relu runs


def test_concats_of_concats() -> None:
    n = Net()
    inner = n.concat(wide(n, n.x(16, 1)), wide(n, n.x(16, 2)), axis=0)
    outer = n.concat(wide(n, n.x(16, 3)), inner, axis=0)
    graph = group_each(n(wide(n, outer), wide(n, n.relu(inner))))
    plan = planned(graph)
    assert len(plan.steps) == 6
    assert plan.workspace_bytes == 6 * 16 * 4 + 3 * 16 * 4


Joining = Callable[[Net], Value]


def rows(n: Net, x: Value, begin: int, end: int) -> Value:
    return n.slice(x, begin=(begin, 0), end=(end, x.type.shape[1]), step=(1, 1))


def test_slices_are_parts_of_their_operand() -> None:
    n = Net()
    a = wide(n, n.x(3, 7))
    b = wide(n, rows(n, a, 1, 3))  # what a holds is read again when b is done
    graph = group_each(n(wide(n, rows(n, rows(n, a, 2, 7), 1, 2)), wide(n, b)))
    plan = planned(graph)
    whole = plan.locations[graph.nodes[0].outputs[0]].at
    slices = [m for m in graph.nodes if m.attrs["body"].nodes[0].op.name == "slice"]
    assert sorted(plan.locations[m.outputs[0]].at - whole for m in slices) == [3 * 4, 2 * 3 * 4, 3 * 3 * 4]
    assert not set(slices) & set(plan.steps)
    assert not plan.in_place


def test_a_slice_in_another_shape_is_a_part_too() -> None:
    n = Net()
    a = n.softmax(n.x(4, 6))
    y = n.slice(n.reshape(a, shape=(2, 3, 4)), begin=(1, 1, 0), end=(2, 3, 4), step=(1, 1, 1))
    graph = fuse(n(n.matmul(n.reshape(y, shape=(2, 4)), n.w(4, 3)), n.softmax(a)))
    plan = planned(graph)
    assert [len(plan.steps), len(graph.nodes)] == [3, 4]


def test_another_shape_of_a_slice_lies_where_the_slice_does() -> None:
    """Each operator by itself: the reshape is an alias of a part, and not of the whole."""
    n = Net()
    a = wide(n, n.x(3, 7))
    part = n.reshape(rows(n, a, 1, 2), shape=(3,))
    graph = group_each(n(wide(n, n.reshape(part, shape=(1, 3))), wide(n, a)))
    plan = planned(graph)
    whole = plan.locations[graph.nodes[0].outputs[0]].at
    alias = next(m for m in graph.nodes if is_alias(m))
    assert plan.locations[alias.outputs[0]].at - whole == 3 * 4


def test_a_slice_of_a_concat_lies_in_it() -> None:
    n = Net()
    c = n.concat(wide(n, n.x(16, 8)), wide(n, n.x(16, 24)), axis=0)
    graph = group_each(n(wide(n, rows(n, c, 4, 12)), wide(n, c)))
    assert len(planned(graph).steps) == 4


def test_a_concat_copies_what_is_a_slice() -> None:
    n = Net()
    a = wide(n, n.x(16, 8))
    graph = group_each(n(wide(n, n.concat(rows(n, a, 0, 4), wide(n, n.x(16, 2)), axis=0)), wide(n, a)))
    assert len(planned(graph).steps) == 5


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda n: rows(n, n.x(4, 8), 0, 2), id="input"),
        pytest.param(
            lambda n: n.slice(wide(n, n.x(4, 8)), begin=(0, 1), end=(8, 3), step=(1, 1)), id="columns"
        ),
        pytest.param(
            lambda n: n.slice(wide(n, n.x(4, 8)), begin=(0, 0), end=(8, 4), step=(2, 1)), id="every other row"
        ),
    ],
)  # fmt: skip
def test_slices_that_must_copy(build: Joining) -> None:
    n = Net()
    graph = group_each(n(wide(n, build(n))))
    assert len(planned(graph).steps) == len(graph.nodes)


def test_a_slice_that_is_an_output_is_copied() -> None:
    n = Net()
    graph = group_each(n(rows(n, wide(n, n.x(4, 8)), 0, 2)))
    assert len(planned(graph).steps) == len(graph.nodes)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda n: n.concat(wide(n, n.x(16, 4)), wide(n, n.x(16, 4)), axis=1), id="rows"),
        pytest.param(lambda n: n.concat(wide(n, n.x(3, 4)), wide(n, n.x(3, 4)), axis=0), id="grid"),
        pytest.param(lambda n: n.concat(n.x(4, 16), wide(n, n.x(16, 4)), axis=0), id="input"),
        pytest.param(lambda n: twice(n, wide(n, n.x(16, 4))), id="twice"),
    ],
)
def test_concats_that_must_copy(build: Joining) -> None:
    """Operands next to each other in every row, off the grid, from outside, and twice."""
    n = Net()
    graph = group_each(n(wide(n, build(n))))
    assert len(planned(graph).steps) == len(graph.nodes)


def twice(n: Net, v: Value) -> Value:
    return n.concat(v, v, axis=0)


def test_an_operand_of_two_concats_is_made_in_one() -> None:
    n = Net()
    a, b, c = (wide(n, n.x(16, k)) for k in (1, 2, 3))
    graph = group_each(n(wide(n, n.concat(a, b, axis=0)), wide(n, n.concat(a, c, axis=0))))
    assert len(planned(graph).steps) == len(graph.nodes) - 1


@pytest.mark.parametrize("channels, joins", [((32, 16), True), ((32, 19), True), ((19, 32), False)])
def test_concats_of_blocks_of_channels(channels: tuple[int, int], joins: bool) -> None:
    n = Net()
    parts = [n.relu(n.x(1, c, 5, 2)) for c in channels]
    graph = group_each(n(n.relu(n.concat(*parts, axis=1))))
    lying = {v: Value(v.name, v.type.with_layout(blocked(v.type.shape, 1, 16))) for m in graph.nodes for v in m.outputs}
    lying.pop(graph.outputs[0])
    nodes = tuple(
        Node(m.op, tuple(lying.get(v, v) for v in m.inputs), m.attrs, tuple(lying.get(v, v) for v in m.outputs))
        for m in graph.nodes
    )
    packed = Graph("g", graph.inputs, graph.outputs, nodes, {}, graph.output_names)
    plan = plan_memory(packed)
    check_plan(packed, plan)
    assert (len(plan.steps) == 3) == joins


def test_an_alias_that_is_an_output_needs_no_copy() -> None:
    n = Net()
    a = wide(n, n.x(4, 4))
    graph = group_each(n(n.reshape(a, shape=(16,))))
    plan = planned(graph)
    assert plan.locations[graph.nodes[0].outputs[0]] == Location(Space.OUTPUT, 0)
    assert not plan.copies
    assert plan.workspace_bytes == 0


def test_a_value_and_its_alias_as_outputs_need_one_copy() -> None:
    n = Net()
    a = wide(n, n.x(4, 4))
    plan = planned(group_each(n(n.reshape(a, shape=(16,)), a)))
    assert plan.copies == (Copy(Location(Space.OUTPUT, 0), 1, 64),)


def test_outputs_that_are_inputs_constants_or_twins_are_copied() -> None:
    n = Net()
    x, w = n.x(3), n.w(3)
    y = n.relu(x)
    plan = planned(group_each(n(x, w, y, y, n.reshape(x, shape=(3, 1)))))
    assert [(c.source.space, c.output) for c in plan.copies] == [
        (Space.INPUT, 0), (Space.PARAM, 1), (Space.OUTPUT, 3), (Space.INPUT, 4),
    ]  # fmt: skip


def test_scratch_memory_shares_the_arena() -> None:
    n = Net()
    graph = group_each(n(wide(n, wide(n, wide(n, n.x(8, 8))))))
    first, middle, _ = graph.nodes
    plan = planned(graph, {first: 300, middle: 64})
    assert plan.workspace_bytes == 256 + 320
    assert set(plan.scratch) == {first, middle}


def test_empty_values_take_no_room() -> None:
    n = Net()
    plan = planned(group_each(n(n.neg(n.relu(n.x(0, 3))))))
    assert plan.workspace_bytes == 0


def test_results_that_nobody_reads_have_a_place() -> None:
    n = Net()
    n.relu(n.x(16))
    y = wide(n, n.x(4, 4))
    assert planned(group_each(n(y))).workspace_bytes == 64


def test_a_workspace_beyond_the_limit_is_refused() -> None:
    n = Net()
    graph = group_each(n(wide(n, wide(n, n.x(8, 8)))))
    assert plan_memory(graph, max_bytes=256).workspace_bytes == 256
    with pytest.raises(ImportModelError, match="needs 256 bytes of workspace, the limit is 255") as refused:
        plan_memory(graph, max_bytes=255)
    assert "--max-memory" in refused.value.hint


def test_an_output_in_a_layout_is_refused() -> None:
    n = Net()
    (node,) = group_each(n(n.relu(n.x(1, 16, 2)))).nodes
    packed = Value("y", node.outputs[0].type.with_layout(blocked((1, 16, 2), 1, 8)))
    graph = Graph("main", node.inputs, (packed,), (Node(node.op, node.inputs, node.attrs, (packed,)),), {})
    with pytest.raises(VerifyError, match=r"output y has layout .*, it must be row-major"):
        plan_memory(graph)


# -- the checker ----------------------------------------------------------------------------------------------------
def two_steps() -> tuple[Graph, MemoryPlan]:
    n = Net()
    a = wide(n, n.x(8, 8))
    b = wide(n, a)
    graph = group_each(n(n.add(wide(n, b), a)))
    return graph, plan_memory(graph)


def moved(plan: MemoryPlan, value: Value, place: Location) -> MemoryPlan:
    return replace(plan, locations={**plan.locations, value: place})


def test_the_checker_sees_a_value_that_was_overwritten() -> None:
    graph, plan = two_steps()
    a, c = graph.nodes[0].outputs[0], graph.nodes[2].outputs[0]
    with pytest.raises(VerifyError, match=f"reads {a.name}, which was overwritten by {c.name}"):
        check_plan(graph, moved(plan, c, plan.locations[a]))


def test_the_checker_sees_a_result_over_an_operand() -> None:
    graph, plan = two_steps()
    a, b = graph.nodes[0].outputs[0], graph.nodes[1].outputs[0]
    with pytest.raises(VerifyError, match="in use while it runs"):
        check_plan(graph, moved(plan, b, plan.locations[a]))


def test_the_checker_sees_scratch_memory_over_an_operand() -> None:
    graph, plan = two_steps()
    node = graph.nodes[1]
    at = plan.locations[node.inputs[0]].at
    with pytest.raises(VerifyError, match="in use while it runs"):
        check_plan(graph, replace(plan, scratch={node: at}), {node: 64})


@pytest.mark.parametrize("at", [32, 1 << 20])
def test_the_checker_sees_places_off_the_grid_or_outside(at: int) -> None:
    graph, plan = two_steps()
    b = graph.nodes[1].outputs[0]
    with pytest.raises(VerifyError, match="misaligned or outside the arena"):
        check_plan(graph, moved(plan, b, Location(Space.WORKSPACE, at)))


def test_the_checker_sees_a_value_without_a_place() -> None:
    graph, plan = two_steps()
    b = graph.nodes[1].outputs[0]
    with pytest.raises(VerifyError, match=f"{b.name} has no place"):
        check_plan(graph, replace(plan, locations={v: p for v, p in plan.locations.items() if v is not b}))


def test_the_checker_sees_a_false_claim_of_working_in_place() -> None:
    graph, plan = two_steps()
    with pytest.raises(VerifyError, match="is not where its operand 0 was"):
        check_plan(graph, replace(plan, in_place=(InPlace(graph.nodes[1], 0),)))


def test_the_checker_sees_an_operand_outside_of_its_concat() -> None:
    n = Net()
    graph = group_each(n(wide(n, n.concat(wide(n, n.x(16, 1)), wide(n, n.x(16, 2)), axis=0))))
    plan = plan_memory(graph)
    whole = graph.nodes[2].outputs[0]
    with pytest.raises(VerifyError, match="its operands are not parts of its result"):
        check_plan(graph, moved(plan, whole, Location(Space.WORKSPACE, plan.locations[whole].at + 64)))


def test_the_checker_sees_a_slice_outside_of_its_operand() -> None:
    n = Net()
    graph = group_each(n(wide(n, rows(n, wide(n, n.x(16, 8)), 4, 8))))
    plan = plan_memory(graph)
    part = graph.nodes[1].outputs[0]
    with pytest.raises(VerifyError, match="does not lie in"):
        check_plan(graph, moved(plan, part, Location(Space.WORKSPACE, plan.locations[part].at + 64)))


def test_the_checker_sees_an_alias_elsewhere() -> None:
    n = Net()
    graph = group_each(n(wide(n, n.reshape(wide(n, n.x(8, 8)), shape=(4, 16)))))
    plan = plan_memory(graph)
    alias = graph.nodes[1].outputs[0]
    with pytest.raises(VerifyError, match="does not lie where"):
        check_plan(graph, moved(plan, alias, Location(Space.WORKSPACE, 512)))


def test_the_checker_sees_an_output_that_is_not_delivered() -> None:
    n = Net()
    x = n.x(3)
    graph = group_each(n(x))
    with pytest.raises(VerifyError, match="output 0 is not x, which lies in"):
        check_plan(graph, replace(plan_memory(graph), copies=()))
