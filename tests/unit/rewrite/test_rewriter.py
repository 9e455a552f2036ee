"""The walker behind the passes: identity, names, uses, folding, numbering."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir.graph import Graph, verify
from mlc.ops import get
from mlc.rewrite.rewriter import Rewriter, replay
from tests.unit.rewrite.helpers import Net, assert_same, op_names


def swap(old: str, new: str):
    def visit(rw: Rewriter, node):
        return [rw.emit(get(new), node.inputs)] if node.op.name == old else None

    return visit


def chain() -> Graph:
    n = Net()
    return n(n.exp(n.relu(n.neg(n.x(3), sources=("n",)), sources=("r",)), sources=("e",)))


def test_nothing_changed_gives_the_same_graph() -> None:
    graph = chain()
    assert replay(graph, lambda rw, node: None) is graph


def test_a_new_node_takes_the_name_and_sources_of_the_old_one() -> None:
    graph = chain()
    after = replay(graph, swap("relu", "abs"))
    assert op_names(after) == ["neg", "abs", "exp"]
    assert [v.name for n in after.nodes for v in n.outputs] == [v.name for n in graph.nodes for v in n.outputs]
    assert [n.sources for n in after.nodes] == [("n",), ("r",), ("e",)]
    assert after.nodes[0] is graph.nodes[0]
    assert after.nodes[2].outputs[0] is graph.nodes[2].outputs[0]
    assert graph.nodes[1].op.name == "relu"  # the old graph is as it was


def test_what_loses_its_last_use_disappears() -> None:
    graph = chain()
    after = replay(graph, lambda rw, node: [graph.inputs[0]] if node.op.name == "exp" else None)
    assert not after.nodes
    assert after.outputs == graph.inputs
    assert after.output_names == ("out0",)


def test_uses_count_operands_outputs_and_what_was_replaced() -> None:
    n = Net()
    x = n.x(3)
    a = n.neg(x)
    b = n.identity(a)
    graph = n(n.mul(b, b), a)
    seen = []

    def visit(rw: Rewriter, node):
        if node.op.name == "identity":
            return [node.inputs[0]]
        if node.op.name == "mul":
            seen.append((rw.uses(a), rw.uses(x), node.inputs == (a, a)))
        return None

    replay(graph, visit)
    assert seen == [(3, 1, True)]


def test_equal_nodes_are_found_again() -> None:
    graph = chain()

    def visit(rw: Rewriter, node):
        return [rw.emit(get("add"), [rw.emit(get("neg"), graph.inputs)] * 2)] if node.op.name == "exp" else None

    assert op_names(replay(graph, visit)) == ["neg", "add"]


def test_known_operands_are_folded() -> None:
    n = Net()
    w = n.c([1.0, 2.0])
    graph = n(n.add(n.x(2), w))

    def visit(rw: Rewriter, node):
        return [rw.emit(get("sub"), (node.inputs[0], rw.emit(get("neg"), (w,))))] if node.op.name == "add" else None

    after = replay(graph, visit)
    assert op_names(after) == ["sub"]
    (array,) = after.constants.values()
    np.testing.assert_array_equal(array, [-1, -2])
    assert_same(graph, after)


def test_new_names_stay_unique() -> None:
    n = Net()
    v = n.x(2)
    for _ in range(5):
        v = n.relu(v)
    graph = n(v)

    def visit(rw: Rewriter, node):
        return [rw.emit(get("neg"), [rw.emit(get("abs"), node.inputs)])]

    after = replay(graph, visit)
    verify(after)
    assert len(after.nodes) == 10


def test_a_mistyped_node_is_refused() -> None:
    graph = chain()
    with pytest.raises(VerifyError, match="add: 1 operands, 2 are needed"):
        replay(graph, swap("relu", "add"))


def test_a_node_with_many_outputs_is_replaced_as_a_whole() -> None:
    n = Net()
    x = n.x(5)
    values, indices = n.builder.add(get("top_k"), [x], {"k": 2, "axis": 0})
    graph = n(n.neg(values), n.neg(indices))

    def visit(rw: Rewriter, node):
        if node.op.name != "top_k":
            return None
        a = rw.emit(get("slice"), (x,), {"begin": (0,), "end": (2,), "step": (1,)})
        return [a, rw.emit(get("cast"), (a,), {"to": "i64"})]

    after = replay(graph, visit)
    verify(after)
    assert op_names(after) == ["slice", "cast", "neg", "neg"]


def test_a_long_chain_needs_no_stack() -> None:
    n = Net()
    v = n.x(2)
    for _ in range(10_000):
        v = n.neg(v)
    graph = n(v)
    after = replay(graph, lambda rw, node: [node.inputs[0]])
    assert not after.nodes
