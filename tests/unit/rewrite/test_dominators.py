"""Post-dominators against their definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.graph import Graph, Node
from mlc.rewrite.dominators import post_dominators
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net


def by_definition(graph: Graph) -> dict[Node, Node | None]:
    """The nearest node without which the exit cannot be reached."""
    consumers = graph.consumers()

    def reaches_exit(start: Node, without: Node) -> bool:
        stack, seen = [start], {start}
        while stack:
            node = stack.pop()
            readers = [c for v in node.outputs for c in consumers.get(v, ())]
            if not readers or any(v in graph.outputs for v in node.outputs):
                return True
            for c in readers:
                if c is not without and c not in seen:
                    seen.add(c)
                    stack.append(c)
        return False

    return {
        n: next((m for m in graph.nodes[k + 1 :] if not reaches_exit(n, m)), None) for k, n in enumerate(graph.nodes)
    }


@examples(50)
@given(st.data())
def test_post_dominators_of_random_graphs(data: st.DataObject) -> None:
    n = Net()
    values = [n.x(2)]
    for _ in range(data.draw(st.integers(1, 14))):
        # near values mostly, so that there are paths to meet
        picks = [values[-1 - data.draw(st.integers(0, min(3, len(values) - 1)))] for _ in range(2)]
        values.append(n.add(*picks) if data.draw(st.booleans()) else n.relu(picks[0]))
    outputs = [values[-1], *data.draw(st.lists(st.sampled_from(values), max_size=2))]
    graph = n(*outputs)
    assert post_dominators(graph) == by_definition(graph)


def test_a_diamond_meets_at_its_end() -> None:
    n = Net()
    a = n.relu(n.x(2))
    graph = n(n.add(n.neg(a), n.exp(a)))
    relu, neg, exp, add = graph.nodes
    assert post_dominators(graph) == {relu: add, neg: add, exp: add, add: None}


def test_a_long_graph_of_long_skips_is_quick() -> None:
    n = Net()
    x = v = n.relu(n.x(1))
    for k in range(4_000):
        v = n.add(v, x) if k % 2 else n.neg(v)
    graph = n(v)
    found = post_dominators(graph)
    assert found[graph.nodes[0]] is graph.nodes[-1]
