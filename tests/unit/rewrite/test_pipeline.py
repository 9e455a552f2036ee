"""The list of passes and how it is run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import UsageError, VerifyError
from mlc.ir.graph import Graph
from mlc.rewrite import is_group, plan_memory
from mlc.rewrite.memory import check_plan
from mlc.rewrite.pipeline import PASSES, GraphPass, passes_for, run_passes
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, assert_same, op_names
from tests.unit.rewrite.random_graphs import random_graph


def small() -> Graph:
    n = Net()
    return n(n.relu(n.add(n.identity(n.x(3)), n.exp(n.w(3)))))


def test_levels_take_more_and_more_passes() -> None:
    names = [[p.name for p in passes_for(level)] for level in range(4)]
    assert names == [
        ["group"],
        ["fold", "integers", "dce", "group"],
        ["fold", "integers", "cse", "recognise", "transposes", "algebra", "dce", "group"],
        [p.name for p in PASSES],
    ]


def test_passes_have_names_of_their_own_and_words_for_people() -> None:
    assert len({p.name for p in PASSES}) == len(PASSES)
    assert all(p.doc for p in PASSES)


@pytest.mark.parametrize("level", [-1, 4])
def test_another_level_is_refused(level: int) -> None:
    with pytest.raises(UsageError, match=f"optimisation level {level}") as refused:
        passes_for(level)
    assert refused.value.hint == "levels go from 0 to 3"


@pytest.mark.parametrize("level", range(4))
def test_every_level_ends_in_groups(level: int) -> None:
    graph = small()
    after = run_passes(graph, passes_for(level), check=True)
    assert all(is_group(n) for n in after.nodes)
    assert_same(graph, after, rtol=1e-6)


def test_a_callback_hears_of_every_pass() -> None:
    heard = []
    after = run_passes(small(), passes_for(3), on_pass=lambda *told: heard.append(told))
    assert [name for name, *_ in heard] == [p.name for p in PASSES]
    assert heard[-1][1] is after
    assert all(seconds >= 0 for *_, seconds in heard)


def test_a_disabled_pass_does_not_run() -> None:
    heard: list[str] = []
    after = run_passes(
        small(), passes_for(3), disabled=["fuse", "algebra"], on_pass=lambda name, *_: heard.append(name)
    )
    assert "fuse" not in heard
    assert "algebra" not in heard
    assert len(after.nodes) == 3


def test_a_known_pass_of_another_level_may_be_disabled() -> None:
    assert op_names(run_passes(small(), passes_for(0), disabled=["fuse"])) == ["group"] * 4


def test_an_unknown_pass_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no pass 'fuze'") as refused:
        run_passes(small(), passes_for(3), disabled=["fuze"])
    assert refused.value.hint == f"did you mean fuse? passes: {', '.join(p.name for p in PASSES)}"
    with pytest.raises(UsageError, match="no pass 'zzz'") as refused:
        run_passes(small(), passes_for(3), disabled=["zzz"])
    assert refused.value.hint.startswith("passes: fold, ")


def test_a_required_pass_cannot_be_disabled() -> None:
    with pytest.raises(UsageError, match="pass 'group' cannot be disabled") as refused:
        run_passes(small(), passes_for(3), disabled=["group"])
    assert "group" not in refused.value.hint.split(": ")[1].split(", ")


def test_a_pass_of_ones_own_can_be_added_and_disabled() -> None:
    own = GraphPass("own", lambda g: g, "nothing")
    heard: list[str] = []
    run_passes(small(), (*passes_for(0), own), on_pass=lambda name, *_: heard.append(name))
    assert heard == ["group", "own"]
    run_passes(small(), (own,), disabled=["own"], on_pass=lambda name, *_: heard.append(name))
    assert heard == ["group", "own"]


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    def breaks(graph: Graph) -> Graph:
        return Graph("main", graph.inputs, graph.outputs, graph.nodes[1:], graph.constants, graph.output_names)

    broken = GraphPass("broken", breaks, "drops a node")
    with pytest.raises(VerifyError, match="used before it is made") as refused:
        run_passes(small(), (broken,), check=True)
    assert refused.value.__notes__ == ["in pass broken"]


@examples(40)
@given(st.data())
def test_random_graphs_compute_the_same_at_every_level(data: st.DataObject) -> None:
    graph = random_graph(data, most=16)
    level = data.draw(st.integers(1, 3))
    disabled = data.draw(st.sets(st.sampled_from([p.name for p in PASSES if not p.required]), max_size=3))
    after = run_passes(graph, passes_for(level), disabled=disabled, check=True)
    assert_same(graph, after, rtol=1e-4, atol=1e-4)
    check_plan(after, plan_memory(after))
    assert run_passes(after, passes_for(level), disabled=disabled) is after


@pytest.mark.slow
@pytest.mark.parametrize("operators", [("relu", "sigmoid"), ("neg",), ("exp", "reshape")])
def test_a_chain_of_20000_operators(operators: tuple[str, ...]) -> None:
    n = Net()
    v = n.x(4)
    for k in range(20_000):
        name = operators[k % len(operators)]
        v = n.reshape(v, shape=(2, 2) if v.type.rank == 1 else (4,)) if name == "reshape" else getattr(n, name)(v)
    after = run_passes(n(v), passes_for(3))
    plan_memory(after)
    assert len(after.nodes) < 700
