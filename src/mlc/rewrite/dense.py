"""Grouped convolutions of integers as convolutions that are not grouped, where that is chosen.

Groups that are no whole blocks of channels leave vectors of channels half empty, and instructions that sum up several
channels at once have nothing to sum up. A product with zeros between the groups fills both, is exact in integers, and
takes in what shuffles its channels (:mod:`mlc.rewrite.rules.channels`), which is done by later passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import i32
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.rewrite.rewriter import Rewriter, replay

Choose = Callable[[Node], Algorithm]


def use_dense(graph: Graph, choose: Choose) -> Graph:
    """Put zeros between the groups of convolutions that sum up integers, with constant weights.

    Args:
        graph: products of quantised numbers are in integers already.
        choose: the algorithm of a convolution.
    """

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op is not get("conv") or node.attrs["groups"] == 1 or node.outputs[0].type.dtype is not i32:
            return None
        weights = rw.constant(node.inputs[1])
        if weights is None or choose(node) is not Algorithm.DENSE:
            return None
        dense = rw.new_constant(between_zeros(weights, node.attrs["groups"]), f"{node.inputs[1].name}.dense")
        return [rw.emit(node.op, [node.inputs[0], dense], {**node.attrs, "groups": 1})]

    return replay(graph, visit)


def between_zeros(weights: np.ndarray, groups: int) -> np.ndarray:
    """Weights ``[o, c / groups, …]`` of a grouped convolution as those ``[o, c, …]`` of one that is not.

    >>> between_zeros(np.array([[1], [2], [3], [4]], np.int8), 2)
    array([[1, 0],
           [2, 0],
           [0, 3],
           [0, 4]], dtype=int8)
    """
    filters, channels, *taps = weights.shape
    wide = np.zeros((groups, filters // groups, groups, channels, *taps), weights.dtype)
    for g, own in enumerate(weights.reshape(groups, filters // groups, channels, *taps)):
        wide[g, :, g] = own
    return wide.reshape(filters, groups * channels, *taps)
