"""Products of one tensor whose results lie side by side are one product (parallel fusion, NeoFlow, section 4.3).

Two products that share their data and do not depend on each other are one product by the weights of both, next to each
other. Here that is done where a concat joins the results along the very axis that the weights are joined along, so that
nothing has to be taken apart again: the data are read once, by one kernel. Weights that are no constants have to be
copied; then it is done where the data that are not read again are more than that.

Stage in: a graph after algebraic clean-up. Stage out: the same.

Example: ``concat(conv(x, v), conv(x, w))`` over channels becomes ``conv(x, concat(v, w))``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby

from mlc.ir.graph import Graph, Node, Value
from mlc.ops import get
from mlc.rewrite.keys import attrs_key
from mlc.rewrite.merge_matmuls import MOST_BYTES
from mlc.rewrite.rewriter import Rewriter, replay


def merge_parallel(graph: Graph) -> Graph:
    """Join products of one tensor that a concat puts next to each other."""
    runs_of = {n.outputs[0]: runs for n in graph.nodes if (runs := _runs(n, graph))}
    if not runs_of:
        return graph

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        runs = runs_of.get(node.outputs[0])
        if runs is None:
            return None
        parts = [_product(rw, run) if isinstance(run, list) else rw.lookup(run) for run in runs]
        return [parts[0] if len(parts) == 1 else rw.emit(node.op, tuple(parts), node.attrs)]

    return replay(graph, visit)


def _runs(concat: Node, graph: Graph) -> list[list[Node] | Value] | None:
    """The operands of a concat, where there are products to join: those as lists."""
    if concat.op is not get("concat"):
        return None
    makers, consumers = graph.producers(), graph.consumers()
    shared = {v for v in concat.inputs if v in graph.outputs or consumers[v] != [concat]}
    once = {v for v in concat.inputs if concat.inputs.count(v) == 1} - shared

    def kind(v: Value) -> Hashable:
        return _kind(makers[v], concat.attrs["axis"]) if v in once and v in makers else None

    runs: list[list[Node] | Value] = []
    for key, group in groupby(concat.inputs, kind):
        values = list(group)
        nodes = [makers[v] for v in values] if key is not None else []
        runs += [nodes] if len(nodes) > 1 and _pays(nodes, graph.constants) else values
    return runs if any(isinstance(run, list) for run in runs) else None


def _kind(node: Node, axis: int) -> Hashable:
    """What products have in common that can be joined along an axis of their results; ``None`` for anything else."""
    along = _weights_axis(node)
    if along is None or axis % node.outputs[0].type.rank != _results_axis(node):
        return None
    weights = node.inputs[1].type
    rest = tuple(n for k, n in enumerate(weights.shape) if k != along)
    return node.op, node.inputs[0], attrs_key(node.attrs), rest, weights.dtype


def _weights_axis(node: Node) -> int | None:
    """Along which axis of its second operand a product has outputs; ``None`` where it is no such product."""
    if node.op is get("conv") and node.attrs["groups"] == 1:
        return 0
    if node.op is get("matmul") and node.inputs[1].type.rank == 2:
        return 0 if node.attrs["transpose_b"] else 1
    return None


def _results_axis(node: Node) -> int:
    return 1 if node.op is get("conv") else node.outputs[0].type.rank - 1


def _pays(nodes: Sequence[Node], constants: Mapping[Value, object]) -> bool:
    """Whether fewer bytes are moved: constants are joined while compiling, and are bounded."""
    weights = sum(n.inputs[1].type.nbytes for n in nodes)
    if all(n.inputs[1] in constants for n in nodes):
        return weights <= MOST_BYTES
    return (len(nodes) - 1) * nodes[0].inputs[0].type.nbytes > 2 * weights


def _product(rw: Rewriter, nodes: Sequence[Node]) -> Value:
    """The product in place of several."""
    first = nodes[0]
    before = rw.claim_sources(nodes)
    axis = _weights_axis(first)
    weights = rw.emit(get("concat"), tuple(rw.lookup(n.inputs[1]) for n in nodes), {"axis": axis})
    merged = rw.emit(first.op, (rw.lookup(first.inputs[0]), weights), first.attrs)
    rw.sources = before
    return merged
