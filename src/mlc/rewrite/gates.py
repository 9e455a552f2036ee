"""Fusion of products whose columns are gates: slices of one product, combined element by element.

A step of a recurrent layer multiplies its state by the weights of all gates at once, cuts the product into one piece a
gate, and combines the pieces. General fusion has no place for that: a slice moves elements, and the step has several
results (an LSTM's hidden state and its cell's). Here the product, the slices and all that is computed from them element
by element become one group; its schedule keeps the columns of the gates next to each other. The same holds for gated
linear units, and for the first product of a GRU that resets its state before the second one.

Stage in: an optimised graph. Stage out: the same, with such regions as groups.

Example: ``y = matmul(x, w); mul(sigmoid(slice(y, 0:n)), slice(y, n:2n))`` becomes ``g0_matmul_slice_sigmoid_mul(x,
w)``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from mlc.ir.graph import FusionKind, Graph, Node, Value
from mlc.ops import get
from mlc.rewrite.fuse import DEFAULT_FUSE_LIMITS
from mlc.rewrite.group import make_group
from mlc.rewrite.rules.views import slice_ranges

MOST_GATES = 4  # whose sums fit a register tile


@dataclass(frozen=True)
class _Region:
    """What becomes a group: its nodes in order, and the values that are read elsewhere."""

    nodes: list[Node]
    results: list[Value]


def fuse_gates(graph: Graph) -> Graph:
    """Wrap every product with gates."""
    finder = _Finder(graph)
    regions = [r for r in map(finder.region, graph.nodes) if r is not None]
    if not regions:
        return graph
    by_end = {r.nodes[-1]: r for r in regions}
    wrapped = {n for r in regions for n in r.nodes}
    nodes: list[Node] = []
    for node in graph.nodes:
        region = by_end.get(node)
        if region is not None:
            nodes.append(make_group(region.nodes, graph.constants, len(nodes), region.results))
        elif node not in wrapped:
            nodes.append(node)
    used = {v for n in nodes for v in n.inputs} | set(graph.outputs)
    constants = {v: a for v, a in graph.constants.items() if v in used}
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), constants, graph.output_names)


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._consumers = graph.consumers()
        self._outputs = set(graph.outputs)
        self._position = {n: k for k, n in enumerate(graph.nodes)}
        self._made_at = {v: k for k, n in enumerate(graph.nodes) for v in n.outputs}

    def region(self, product: Node) -> _Region | None:
        """The region that starts at a product, if there is one."""
        if not self._is_product(product):
            return None
        nodes = self._grow(product)
        slices = [n for n in nodes if n.op is get("slice")]
        if not slices:
            return None
        width = product.outputs[0].type.shape[1]
        unit = min(n.outputs[0].type.shape[1] for n in slices)
        aligned = all(n.attrs["begin"][1] % unit == 0 == n.outputs[0].type.shape[1] % unit for n in slices)
        if not aligned or width % unit or not 2 <= width // unit <= MOST_GATES:
            return None
        members = set(nodes)
        results = [
            v
            for n in nodes
            for v in n.outputs
            if v in self._outputs or any(c not in members for c in self._consumers.get(v, ()))
        ]
        if not results or any(v.type.shape[1] != unit for v in results):
            return None
        # with as many results as gates, something else may be combined with one: a GRU's state with what resets it
        combined = len(results) * unit < width or any(self._meets_another(n, slices) for n in nodes)
        return _Region(nodes, results) if combined else None

    def _meets_another(self, node: Node, slices: list[Node]) -> bool:
        """Whether a node combines a slice with a value that is no constant."""
        taken = {v for n in slices for v in n.outputs}
        others = [v for v in node.inputs if v not in taken and v not in self.graph.constants]
        return bool(others) and any(v in taken for v in node.inputs)

    def _is_product(self, node: Node) -> bool:
        products = get("matmul"), get("matmul_wide"), get("matmul_nibbles")
        if node.op not in products or node.attrs.get("transpose_a") or node.attrs.get("transpose_b"):
            return False
        weights = node.inputs[1]
        return weights in self.graph.constants and weights.type.rank == 2 == node.outputs[0].type.rank

    def _grow(self, product: Node) -> list[Node]:
        """The product and what follows it, in order, up to the first reader that cannot be in the group."""
        begin = self._position[product]
        nodes, inside = [product], set(product.outputs)
        queue = self._readers(product)
        while queue and len(nodes) < DEFAULT_FUSE_LIMITS.nodes:
            node = self.graph.nodes[heapq.heappop(queue)]
            if node is nodes[-1]:
                continue
            ready = all(v in inside or self._made_at.get(v, -1) < begin for v in node.inputs)
            if not ready or not _belongs(node, product):
                break
            nodes.append(node)
            inside.update(node.outputs)
            for k in self._readers(node):
                heapq.heappush(queue, k)
        return nodes

    def _readers(self, node: Node) -> list[int]:
        return sorted(self._position[c] for v in node.outputs for c in self._consumers.get(v, ()))


def _belongs(node: Node, product: Node) -> bool:
    """Whether a node works row by row on the product, element by element or on some of its columns."""
    rows = product.outputs[0].type.shape[0]
    if any(v.type.rank != 2 or v.type.shape[0] != rows for v in node.outputs) or len(node.outputs) != 1:
        return False
    if node.op is get("slice"):
        taken, columns = slice_ranges(node)
        return taken == range(rows) and columns.step == 1
    return node.op.elementwise and node.op.kind is FusionKind.INJECTIVE
