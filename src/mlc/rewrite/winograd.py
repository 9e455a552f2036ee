"""Convolutions by Winograd's minimal filtering, where that algorithm is chosen.

Stage in: a graph after algebraic clean-up, batch norms already in the weights. Stage out: the same with
``conv_winograd`` in place of some ``conv``, their constant weights transformed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import f32
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.ops.winograd import fits, transform_weights
from mlc.rewrite.rewriter import Rewriter, replay

Choose = Callable[[Node], Algorithm]


def use_winograd(graph: Graph, choose: Choose) -> Graph:
    """Replace 3×3 and k×3×3 convolutions with stride 1 and constant weights.

    Args:
        graph: batch norms are in the weights already.
        choose: the algorithm of a convolution.
    """

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op is not get("conv") or node.inputs[1] not in graph.constants:
            return None
        x, w = (v.type for v in node.inputs)
        if x.dtype is not f32 or w.dtype is not f32 or not fits(node):
            return None
        tile = choose(node).tile
        if not tile:
            return None
        name, array = node.inputs[1].name, graph.constants[node.inputs[1]]
        weights = rw.new_constant(transform_weights(array, tile), f"{name}.winograd")
        return [rw.emit(get("conv_winograd"), [node.inputs[0], weights], {"pads": node.attrs["pads"], "tile": tile})]

    return replay(graph, visit)
