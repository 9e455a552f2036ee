"""Channel shuffles between grouped convolutions of integers as shuffles of whole blocks of channels.

A shuffle spreads the channels of each group over all groups behind it. A convolution makes its channels in any order
within a group, so it can make those next to each other that go to the same group, filled up to whole blocks. Then
blocks of channels move, no channel leaves its block, and what lies in between stays in such blocks. The convolution
behind multiplies what fills them up by zeros::

    conv(groups=g) → shuffle(g) → depthwise → conv(groups=h)
    conv(groups=g, h * block channels a group) → depthwise → shuffle(g, block) → conv(groups=h)

In: a graph whose products of quantised numbers are in integers, and whose shuffles are recognised. Out: the same
numbers. A convolution reads through a shuffle of blocks (:mod:`mlc.rewrite.fuse`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import i32
from mlc.ops import get
from mlc.rewrite.rewriter import Rewriter, replay
from mlc.rewrite.rules.channels import Make, order_of, reordered, shuffle_above

MOST_FILLED = 1.5  # times as many channels as there were
_BETWEEN = 20  # operators between a shuffle and a convolution: a depthwise one, requantised, with its border


def shuffle_blocks(graph: Graph, unit: int) -> Graph:
    """Let shuffles move blocks of channels where few channels fill these up.

    Args:
        graph: operators, not groups.
        unit: channels that blocks consist of as the target wants them; 0 where it wants none.
    """
    if unit == 0:
        return graph

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if not _is_grouped(rw, node):
            return None
        shuffle = shuffle_above(rw, node.inputs[0], _BETWEEN)
        if shuffle is None or shuffle.attrs["block"] > 1:
            return None
        groups, behind = shuffle.attrs["groups"], node.attrs["groups"]
        blocks = _blocks(shuffle, behind, unit)
        if blocks.size > MOST_FILLED * shuffle.outputs[0].type.shape[1]:
            return None

        def convolution(value: Value) -> Make | None:
            made = rw.maker(value)
            if made is None or not _is_grouped(rw, made) or made.attrs["groups"] != groups:
                return None
            weights = rw.constant(made.inputs[1])
            assert weights is not None
            own = weights[order_of(shuffle)[_filled(blocks)]]
            return lambda: rw.emit(made.op, (made.inputs[0], rw.new_constant(own)), made.attrs, sources=made.sources)

        def unshuffled(value: Value) -> Make | None:
            made = rw.maker(value)
            if made is not shuffle:
                return None
            return reordered(rw, made.inputs[0], order_of(shuffle)[_filled(blocks)], convolution, _BETWEEN)

        make = reordered(rw, node.inputs[0], _filled(blocks), unshuffled, _BETWEEN)
        weights = rw.constant(node.inputs[1])
        if make is None or weights is None:
            return None
        size = blocks.shape[-1]
        moved = rw.emit(shuffle.op, [make()], {"groups": groups, "block": size})
        return [rw.emit(node.op, [moved, rw.new_constant(_read_in(weights, blocks))], node.attrs)]

    return replay(graph, visit)


def _is_grouped(rw: Rewriter, node: Node) -> bool:
    """Whether a node is a convolution of integers in groups of several channels each, with constant weights."""
    if node.op is not get("conv") or node.outputs[0].type.dtype is not i32 or node.attrs["groups"] == 1:
        return False
    weights = rw.constant(node.inputs[1])
    return weights is not None and weights.shape[1] > 1


def _blocks(shuffle: Node, behind: int, unit: int) -> np.ndarray:
    """``[groups, behind, block]``: the channels of a shuffle's result in blocks, -1 where there are none.

    Args:
        shuffle: of single channels.
        behind: groups that read the result.
        unit: channels that a block has a multiple of.
    """
    groups, channels = shuffle.attrs["groups"], shuffle.outputs[0].type.shape[1]
    of = [[np.arange(channels)[k::groups] for _ in range(behind)] for k in range(groups)]
    parts = [[c[c // (channels // behind) == h] for h, c in enumerate(row)] for row in of]
    most = max(part.size for row in parts for part in row)
    blocks = np.full((groups, behind, most + -most % unit), -1)
    for g, row in enumerate(parts):
        for h, part in enumerate(row):
            blocks[g, h, : part.size] = part
    return blocks


def _filled(blocks: np.ndarray) -> np.ndarray:
    """The channels of all blocks, which any one fills up."""
    return np.maximum(blocks, 0).reshape(-1)


def _read_in(weights: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Weights ``[o, c / groups, …]`` for channels in blocks, zeros for those that fill them up."""
    _, behind, size = blocks.shape
    each, filters = weights.shape[1], weights.shape[0] // behind
    wide = np.zeros((weights.shape[0], blocks.shape[0] * size, *weights.shape[2:]), weights.dtype)
    for h in range(behind):
        own = blocks[:, h].reshape(-1)
        rows = slice(h * filters, (h + 1) * filters)
        wide[rows, own >= 0] = weights[rows, own[own >= 0] - h * each]
    return wide
