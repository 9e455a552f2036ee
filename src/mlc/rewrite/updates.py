"""The order of nodes where outputs are the next values of inputs and may lie in their memory.

An update writes over what others may read. So readers of the old value come first: those whose operands are there are
drawn before the update, for others it waits, since nobody waits for an update.

Stage in: a graph, layouts assigned. Stage out: the same nodes in another order.

Example: of ``d = f(x); w2 = g(w, d); e = h(w, d)``, with ``w2`` over ``w``, it makes ``d = f(x); e = h(w, d);
w2 = g(w, d)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc.ir.graph import Graph, Node, Value
from mlc.rewrite.group import is_alias
from mlc.rewrite.parts import sliced


def readers_first(graph: Graph, over: Mapping[int, int]) -> Graph:
    """Readers of inputs before what is written over those.

    Args:
        graph: one kernel a node.
        over: outputs by position, and the input that each may lie over.
    """
    waits = _readers(graph, over)
    if not waits:
        return graph
    makers = graph.producers()
    placed: dict[Node, None] = {}
    waiting: dict[Node, None] = {}

    def ready(node: Node) -> bool:
        return all(v not in makers or makers[v] in placed for v in node.inputs)

    for node in graph.nodes:
        if node in placed:
            continue
        if node in waits:
            waiting[node] = None
            for reader in waits[node]:
                if reader not in placed and reader not in waits and ready(reader):
                    placed[reader] = None
        else:
            placed[node] = None
        for update in [n for n in waiting if waits[n].keys() <= placed.keys()]:
            placed[update] = None
            del waiting[update]
    placed.update(waiting)  # each waits for another
    nodes = tuple(placed)
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _readers(graph: Graph, over: Mapping[int, int]) -> dict[Node, dict[Node, None]]:
    """By node that makes nothing but outputs, some of them over inputs: the other nodes that read those inputs."""
    makers, parts = graph.producers(), sliced(graph)
    used = {v for n in graph.nodes for v in n.inputs}
    root: dict[Value, Value] = {}
    readers: dict[Value, dict[Node, None]] = {}
    for node in graph.nodes:
        for v in node.inputs:
            readers.setdefault(root.get(v, v), {})[node] = None
        if is_alias(node) or node in parts:
            root.update(dict.fromkeys(node.outputs, root.get(node.inputs[0], node.inputs[0])))
    found: dict[Node, dict[Node, None]] = {}
    for k, j in over.items():
        update = makers.get(graph.outputs[k])
        if update is None or not used.isdisjoint(update.outputs):
            continue
        others = found.setdefault(update, {})
        others.update({n: None for n in readers.get(graph.inputs[j], {}) if n is not update})
    return found
