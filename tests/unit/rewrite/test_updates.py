"""The order of nodes where outputs are written over inputs."""

from __future__ import annotations

from mlc.rewrite.fuse import group_each
from mlc.rewrite.updates import readers_first
from tests.unit.rewrite.helpers import Net


def test_readers_that_are_ready_come_before_an_update_and_for_others_it_waits() -> None:
    n = Net()
    w, x = n.x(4, name="w"), n.x(4)
    d = n.tanh(x)
    new = n.mul(w, d)
    early = n.add(d, w)
    late = n.sub(n.exp(early), n.reshape(w, shape=(4,)))
    graph = group_each(n(new, late))
    before = [n.inputs[0].name for n in graph.nodes]
    found = readers_first(graph, {0: 0})
    assert [n.inputs[0].name for n in found.nodes] != before
    at = {v: k for k, node in enumerate(found.nodes) for v in node.outputs}
    assert at[graph.outputs[0]] == len(found.nodes) - 1
    for k, node in enumerate(found.nodes):
        assert all(at.get(v, -1) < k for v in node.inputs)


def test_a_reader_is_drawn_before_the_update() -> None:
    n = Net()
    w, x = n.x(4, name="w"), n.x(4)
    d = n.tanh(x)
    graph = group_each(n(n.mul(w, d), n.exp(n.neg(d)), n.sub(d, w)))
    update, reader = (graph.producers()[graph.outputs[k]] for k in (0, 2))
    found = readers_first(graph, {0: 0}).nodes
    assert found.index(reader) == found.index(update) - 1 == 1


def test_what_is_not_written_over_keeps_its_order() -> None:
    n = Net()
    w, x = n.x(4, name="w"), n.x(4)
    graph = group_each(n(n.mul(w, x), n.sub(x, w)))
    assert readers_first(graph, {}) is graph
    assert readers_first(graph, {1: 0}) is graph
    assert readers_first(graph, {0: 0, 1: 1}).nodes == graph.nodes  # each waits for the other one
