"""Products that share their left operand become one.

The queries, keys and values of an attention layer are three products of one tensor with three constants. One product
with the constants side by side has more columns to spread over cores and packs the shared operand once. Its parts are
taken out again by slices. That is worth a copy only where a copy follows anyway, so every part must end in a
``transpose`` (through reshapes), into which its slice then fuses.

Stage in: a graph after algebraic clean-up. Stage out: the same.

Example: ``transpose(reshape(add(matmul(x, wq), bq)))`` and the same for k and v become one
``y = add(matmul(x, [wq wk wv]), [bq bk bv])`` and ``transpose(reshape(slice(y)))`` thrice.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ops import get
from mlc.rewrite.rewriter import Rewriter, replay
from mlc.rewrite.rules.views import emit_slice

MOST_BYTES = 256 << 20  # of one merged constant


@dataclass(frozen=True)
class _Branch:
    """One of the products.

    Args:
        product: the ``matmul``.
        bias: the addition of a constant row behind it, if there is one.
    """

    product: Node
    bias: Node | None

    @property
    def result(self) -> Value:
        return (self.bias or self.product).outputs[0]


def merge_matmuls(graph: Graph) -> Graph:
    """Join sibling products with constant right operands where their results are transposed anyway."""
    families = [_Family(graph, branches) for branches in _siblings(graph)]
    if not families:
        return graph
    of_result = {b.result: family for family in families for b in family.branches}

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        family = of_result.get(node.outputs[0])
        return None if family is None else [family.part(rw, node.outputs[0])]

    return replay(graph, visit)


class _Family:
    """Products of one tensor, and the merged one once it is built."""

    def __init__(self, graph: Graph, branches: list[_Branch]) -> None:
        self.branches = branches
        self._constants = graph.constants
        self._merged: Value | None = None

    def part(self, rw: Rewriter, result: Value) -> Value:
        """What stands for the result of one branch: its columns of the merged product."""
        if self._merged is None:
            # asked first where the first branch ends; the shared operand is made by then, and nothing else is needed
            self._merged = self._build(rw)
        begin = 0
        for b in self.branches:
            if b.result is result:
                break
            begin += b.result.type.shape[-1]
        ranges = [range(n) for n in result.type.shape[:-1]] + [range(begin, begin + result.type.shape[-1])]
        return emit_slice(rw, self._merged, ranges)

    def _build(self, rw: Rewriter) -> Value:
        first = self.branches[0]
        before = rw.claim_sources([n for b in self.branches for n in (b.product, b.bias) if n is not None])
        weights = self._side_by_side([b.product for b in self.branches])
        merged = rw.emit(
            first.product.op, (rw.lookup(first.product.inputs[0]), rw.new_constant(weights)), first.product.attrs
        )
        if first.bias is not None:
            row = self._side_by_side([b.bias for b in self.branches if b.bias is not None])
            merged = rw.emit(first.bias.op, (merged, rw.new_constant(row)))
        rw.sources = before
        return merged

    def _side_by_side(self, nodes: Sequence[Node]) -> np.ndarray:
        return np.concatenate([self._constants[n.inputs[1]] for n in nodes], axis=-1)


def _siblings(graph: Graph) -> list[list[_Branch]]:
    """Branches that can be merged, grouped; a constant they are merged into is bounded by ``MOST_BYTES``."""
    consumers = graph.consumers()
    outputs = set(graph.outputs)

    def only_reader(value: Value) -> Node | None:
        readers = consumers.get(value, [])
        return readers[0] if len(readers) == 1 and value not in outputs else None

    def is_transposed(value: Value) -> bool:
        reader = only_reader(value)
        while reader is not None and reader.op is get("reshape"):
            reader = only_reader(reader.outputs[0])
        return reader is not None and reader.op is get("transpose")

    siblings: dict[Hashable, list[_Branch]] = {}
    for node in graph.nodes:
        if not _has_constant_weights(node, graph):
            continue
        bias = only_reader(node.outputs[0])
        if bias is not None and not _adds_row(bias, node, graph):
            bias = None
        branch = _Branch(node, bias)
        if is_transposed(branch.result):
            siblings.setdefault((node.inputs[0], node.attrs["transpose_a"], bias is None), []).append(branch)
    return [
        s for s in siblings.values() if len(s) > 1 and sum(b.product.inputs[1].type.nbytes for b in s) <= MOST_BYTES
    ]


def _has_constant_weights(node: Node, graph: Graph) -> bool:
    if node.op is not get("matmul") or node.attrs["transpose_b"]:
        return False
    a, b = node.inputs
    return a not in graph.constants and b in graph.constants and b.type.rank == 2 and b.type.layout is None


def _adds_row(node: Node, product: Node, graph: Graph) -> bool:
    """Whether a node adds one constant number a column."""
    if node.op is not get("add") or node.inputs[0] is not product.outputs[0] or node.inputs[1] not in graph.constants:
        return False
    row = node.inputs[1].type
    return row.layout is None and row.shape == product.outputs[0].type.shape[-1:]
