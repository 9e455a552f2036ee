"""Immediate post-dominators of the nodes of a graph: where all paths from a node meet again.

The exit, which every graph output and every unread node leads to, stands at the end of all paths.
"""

from __future__ import annotations

from mlc.ir.graph import Graph, Node


def post_dominators(graph: Graph) -> dict[Node, Node | None]:
    """The first node that every path from a node to the exit passes; ``None`` where that is the exit itself.

    O(n log n) whatever the shape of the graph: ancestors in the dominator tree are found by jump pointers.
    """
    nodes = graph.nodes
    position = {n: k for k, n in enumerate(nodes)}
    consumers = graph.consumers()
    outputs = set(graph.outputs)
    tree = _Tree(len(nodes))
    for k in range(len(nodes) - 1, -1, -1):
        readers = {position[c] for v in nodes[k].outputs for c in consumers.get(v, ())}
        if not readers or any(v in outputs for v in nodes[k].outputs):
            tree.add(k, tree.exit)
            continue
        meet = readers.pop()
        for r in readers:
            meet = tree.meet(meet, r)
        tree.add(k, meet)
    return {n: nodes[tree.parent[k]] if tree.parent[k] != tree.exit else None for n, k in position.items()}


class _Tree:
    """A growing tree over ``0 … size``, rooted at ``exit``; each vertex has one pointer far up beside its parent."""

    def __init__(self, size: int) -> None:
        self.exit = size
        self.parent = [size] * (size + 1)
        self.depth = [0] * (size + 1)
        self._jump = [size] * (size + 1)

    def add(self, vertex: int, parent: int) -> None:
        self.parent[vertex] = parent
        self.depth[vertex] = self.depth[parent] + 1
        far = self._jump[parent]
        # two jumps of equal length make one of twice the length: any ancestor is O(log n) steps away
        even = self.depth[parent] - self.depth[far] == self.depth[far] - self.depth[self._jump[far]]
        self._jump[vertex] = self._jump[far] if even else parent

    def meet(self, a: int, b: int) -> int:
        """The lowest common ancestor."""
        if self.depth[a] < self.depth[b]:
            a, b = b, a
        while self.depth[a] > self.depth[b]:
            far = self._jump[a]
            a = far if self.depth[far] >= self.depth[b] else self.parent[a]
        while a != b:
            # at equal depth, pointers have equal lengths
            if self._jump[a] != self._jump[b]:
                a, b = self._jump[a], self._jump[b]
            else:
                a, b = self.parent[a], self.parent[b]
        return a
