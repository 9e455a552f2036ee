"""Which nodes of a graph are needed, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import onnx
from onnx import AttributeProto

from mlc.errors import ImportModelError
from mlc.frontend.onnx.attributes import attribute_type


@dataclass(frozen=True)
class Step:
    """A node to convert.

    Args:
        node: from the model.
        position: its index in the graph, for naming it when it has no name.
        outputs: its outputs; ``""`` where one is not wanted by anybody.
        reads: names it needs, those that its subgraphs take from outside included.
    """

    node: onnx.NodeProto
    position: int
    outputs: tuple[str, ...]
    reads: frozenset[str]


def node_name(node: onnx.NodeProto, position: int) -> str:
    """The node's name, or ``<operator>_<position>``."""
    return node.name or f"{node.op_type}_{position}"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs among the attributes of a node."""
    for attr in node.attribute:
        kind = attribute_type(attr)
        if kind == AttributeProto.GRAPH:
            yield attr.g
        elif kind == AttributeProto.GRAPHS:
            yield from attr.graphs


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Names that the subgraphs of a node take from outside."""
    free: set[str] = set()
    # (graph, names defined around it, inside this node)
    stack: list[tuple[onnx.GraphProto, frozenset[str]]] = [(g, frozenset()) for g in subgraphs(node)]
    while stack:
        graph, around = stack.pop()
        inside = frozenset(
            {
                *around,
                *(v.name for v in graph.input),
                *(t.name for t in graph.initializer),
                *(t.values.name for t in graph.sparse_initializer),
                *(name for n in graph.node for name in n.output),
            }
        )
        free.update(v.name for v in graph.output if v.name not in inside)
        for inner in graph.node:
            free.update(name for name in inner.input if name not in inside)
            stack += [(g, inside) for g in subgraphs(inner)]
    free.discard("")
    return free


def plan(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[Step]:
    """The nodes that ``outputs`` need, producers before users, otherwise in the order of the file.

    The specification wants nodes sorted, but not every exporter does so.

    Args:
        nodes: of one graph.
        outputs: names wanted.
    Raises:
        ImportModelError: nodes depend on each other in a circle; the message names some of them.
    """
    maker = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    reads = [frozenset(n for n in node.input if n) | captured_names(node) for node in nodes]
    needs = [{maker[name] for name in names if name in maker} for names in reads]
    order = _sort(nodes, needs)
    wanted = set(outputs)
    steps: list[Step] = []
    for k in reversed(order):
        if wanted.isdisjoint(nodes[k].output):
            continue
        kept = tuple(name if name in wanted else "" for name in nodes[k].output)
        steps.append(Step(nodes[k], k, kept, reads[k]))
        wanted |= reads[k]
    return steps[::-1]


def _sort(nodes: Sequence[onnx.NodeProto], needs: Sequence[set[int]]) -> list[int]:
    if all(max(before, default=-1) < k for k, before in enumerate(needs)):
        return list(range(len(nodes)))
    users: list[list[int]] = [[] for _ in nodes]
    for k, before in enumerate(needs):
        for b in before:
            users[b].append(k)
    open_needs = [len(before) for before in needs]
    ready = [k for k, n in enumerate(open_needs) if n == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        k = heappop(ready)
        order.append(k)
        for user in users[k]:
            open_needs[user] -= 1
            if open_needs[user] == 0:
                heappush(ready, user)
    if len(order) < len(nodes):
        raise ImportModelError(
            f"nodes depend on each other in a circle: {_circle(nodes, needs, set(order))}",
            hint="a model runs from inputs to outputs; loops are written with Loop or Scan",
        )
    return order


def _circle(nodes: Sequence[onnx.NodeProto], needs: Sequence[set[int]], done: set[int]) -> str:
    """A circle among the nodes that could not be sorted, in words: walk backwards until a node comes again."""
    k = min(set(range(len(nodes))) - done)
    seen: dict[int, int] = {}
    path: list[int] = []
    while k not in seen:
        seen[k] = len(path)
        path.append(k)
        k = min(needs[k] - done)
    circle = path[seen[k] :][::-1]
    names = [repr(node_name(nodes[c], c)) for c in circle]
    shown = names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"]
    return " -> ".join([*shown, names[0]])
