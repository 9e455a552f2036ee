"""Recurrences: the bodies of ``scan`` nodes, which are graphs that are compiled like the one they stand in.

Constants go into the bodies, where they can be packed and folded; results that nobody reads go away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ops.scan import SCAN


def is_scan(node: Node) -> bool:
    """Whether a node is a recurrence."""
    return node.op is SCAN


def body_of_scan(node: Node) -> Graph:
    """What a recurrence does in every round."""
    body: Graph = node.attrs["body"]
    return body


def graphs(graph: Graph) -> Iterator[tuple[Graph, int]]:
    """The graph and all bodies in it, at any depth, each with how often a run of the graph runs it."""
    stack = [(graph, 1)]
    while stack:
        g, times = stack.pop()
        yield g, times
        stack += [(body_of_scan(n), times * n.attrs["rounds"]) for n in reversed(g.nodes) if is_scan(n)]


def constants_of_all(graph: Graph) -> dict[Value, np.ndarray]:
    """Constants of the graph, and of all bodies in it."""
    return {v: array for g, _ in graphs(graph) for v, array in g.constants.items()}


def map_bodies(graph: Graph, fn: Callable[[Graph], Graph]) -> Graph:
    """The graph with every body directly in it rewritten; itself when none changed."""
    nodes = tuple(_with_body(n, fn(body_of_scan(n))) if is_scan(n) else n for n in graph.nodes)
    if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return Graph(graph.name, graph.inputs, graph.outputs, nodes, graph.constants, graph.output_names)


def _with_body(node: Node, body: Graph) -> Node:
    if body is body_of_scan(node):
        return node
    return Node(node.op, node.inputs, {**node.attrs, "body": body}, node.outputs, node.sources)


def settle_bodies(graph: Graph) -> Graph:
    """Move constants into the bodies that capture them, and drop gathered rows that nobody reads."""
    if not any(map(is_scan, graph.nodes)):
        return graph
    read = {v for n in graph.nodes for v in n.inputs} | set(graph.outputs)
    nodes = tuple(_settled(n, graph, read) if is_scan(n) else n for n in graph.nodes)
    used = {v for n in nodes for v in n.inputs} | set(graph.outputs)
    constants = {v: a for v, a in graph.constants.items() if v in used}
    return Graph(graph.name, graph.inputs, graph.outputs, nodes, constants, graph.output_names)


def _settled(node: Node, graph: Graph, read: Collection[Value]) -> Node:
    body, carried, scanned = body_of_scan(node), node.attrs["carried"], node.attrs["scanned"]
    operands = list(zip(body.inputs, node.inputs, strict=True))
    fixed = carried + scanned
    captured = [(v, outer) for v, outer in operands[fixed:] if outer not in graph.constants]
    known = {v: graph.constants[outer] for v, outer in operands[fixed:] if outer in graph.constants}
    kept = [k for k, v in enumerate(node.outputs) if k < carried or v in read]
    directions = node.attrs["backwards"]
    backwards = (*directions[:scanned], *(directions[scanned + k - carried] for k in kept[carried:]))
    inner = Graph(
        body.name,
        (*body.inputs[:fixed], *(v for v, _ in captured)),
        tuple(body.outputs[k] for k in kept),
        body.nodes,
        {**body.constants, **known},
        tuple(body.output_names[k] for k in kept),
    )
    attrs = {**node.attrs, "body": inner, "backwards": backwards}
    inputs = (*node.inputs[:fixed], *(outer for _, outer in captured))
    return Node(node.op, inputs, attrs, tuple(node.outputs[k] for k in kept), node.sources)
