"""Channel shuffles: found in their spelling, then taken into the constant weights of a convolution near them.

A convolution that is not grouped makes its output channels, and reads its input channels, in any order of its weights.
Operators that work on every channel by itself lie in between: elementwise ones, borders, pools, depthwise convolutions,
whose constants are reordered too. A shuffle that meets only grouped convolutions stays; a depthwise convolution then
reads through it (:mod:`mlc.rewrite.fuse`), or it moves on to where it reads blocks (:mod:`mlc.rewrite.shuffles`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlc.ir.graph import Node, Value
from mlc.ops import get
from mlc.ops.registry import is_core
from mlc.rewrite.pattern import Match, rule
from mlc.rewrite.rewriter import Rewriter

MOST_BETWEEN = 8  # operators between a shuffle and the convolution that takes it in
_POOLS = ("max_pool", "avg_pool", "lp_pool")

# Makes a value; called only when all that is needed is known to be there, since a rule that fails makes nothing.
Make = Callable[[], Value]


@rule("channel_shuffle", "reshape(t=transpose(r=reshape(x)))")
def channel_shuffle(rw: Rewriter, m: Match) -> Value | None:
    """Channels cut in two axes that change places."""
    transpose = rw.maker(m["t"])
    assert transpose is not None
    shape, cut = m["x"].type.shape, m["r"].type.shape
    if len(shape) < 3 or len(cut) < 4 or m.root.outputs[0].type.shape != shape:
        return None
    swap = (0, 2, 1, *range(3, len(cut)))
    if tuple(transpose.attrs["perm"]) != swap or cut[0] != shape[0] or cut[1] * cut[2] != shape[1]:
        return None
    return rw.emit(get("channel_shuffle"), (m["x"],), {"groups": cut[1]})


@rule("channel_shuffle_into_weights_before", "channel_shuffle(x)")
def shuffle_into_weights_before(rw: Rewriter, m: Match) -> Value | None:
    """The convolution before makes its channels in the order that is wanted."""
    order = order_of(m.root)

    def convolution(value: Value) -> Make | None:
        node = rw.maker(value)
        if node is None or not _has_free_channels(rw, node):
            return None
        weights = rw.constant(node.inputs[1])
        assert weights is not None
        return lambda: rw.emit(node.op, (node.inputs[0], rw.new_constant(weights[order])), node.attrs)

    make = reordered(rw, m["x"], order, convolution, MOST_BETWEEN)
    return None if make is None else make()


@rule("channel_shuffle_into_weights_behind", "conv(x, #w)")
def shuffle_into_weights_behind(rw: Rewriter, m: Match) -> Value | None:
    """The convolution behind reads channels in the order that there is."""
    x = m.root.inputs[0]
    shuffle = shuffle_above(rw, x)
    if shuffle is None or not _has_free_channels(rw, m.root):
        return None
    order = np.argsort(order_of(shuffle))
    weights = rw.constant(m.root.inputs[1])
    assert weights is not None

    def unshuffled(value: Value) -> Make | None:
        node = rw.maker(value)
        fits = node is not None and node.op is get("channel_shuffle") and node.attrs == shuffle.attrs
        return (lambda: node.inputs[0]) if fits and node is not None else None

    make = reordered(rw, x, order, unshuffled, MOST_BETWEEN)
    if make is None:
        return None
    return rw.emit(m.root.op, (make(), rw.new_constant(weights[:, order])), m.root.attrs)


def order_of(shuffle: Node) -> np.ndarray:
    """Which channel of its operand each channel of a shuffle is."""
    channels = shuffle.outputs[0].type.shape[1]
    blocks = np.arange(channels).reshape(shuffle.attrs["groups"], -1, shuffle.attrs["block"])
    return blocks.swapaxes(0, 1).reshape(-1)


def _has_free_channels(rw: Rewriter, node: Node) -> bool:
    """Whether a node is a convolution with constant weights that is not grouped."""
    return node.op is get("conv") and node.attrs["groups"] == 1 and rw.constant(node.inputs[1]) is not None


def shuffle_above(rw: Rewriter, value: Value, depth: int = MOST_BETWEEN) -> Node | None:
    """The first shuffle above a value, along first operands, with so many operators in between at most."""
    for _ in range(depth + 1):
        node = rw.maker(value)
        if node is None or not node.inputs:
            return None
        if node.op is get("channel_shuffle"):
            return node
        value = node.inputs[0]
    return None


def reordered(
    rw: Rewriter, value: Value, order: np.ndarray, leaf: Callable[[Value], Make | None], depth: int
) -> Make | None:
    """How to make a value with its channels in another order, from values that ``leaf`` knows how to make so.

    Args:
        rw: the rewriter.
        value: of shape ``[n, c, …]``; nobody else may read it, or it would be computed twice.
        order: which channel of ``value`` each channel of the result is; some may be there several times.
        leaf: how to make a value where the walk upwards may end; ``None`` where it must go on.
        depth: how many operators may lie in between.
    """
    node = rw.maker(value)
    if node is None or rw.uses(value) != 1 or not is_core(node.op) or len(node.outputs) != 1:
        return None
    end = leaf(value)
    if end is not None:
        return end
    if not depth:
        return None
    channels = value.type.shape[1]
    depthwise = node.op is get("conv") and node.attrs["groups"] == node.inputs[0].type.shape[1] == channels
    if not depthwise and not node.op.elementwise and node.op.name not in _POOLS and not _is_border(node):
        return None
    makers: list[Make] = []
    for k, v in enumerate(node.inputs):
        make = (
            _reordered_constant(rw, v, order, 0 if depthwise else 1 - (value.type.rank - v.type.rank), channels)
            if rw.constant(v) is not None
            else reordered(rw, v, order, leaf, depth - 1)
            if v.type.shape[:2] == value.type.shape[:2] and node.inputs.count(v) == 1 and (k == 0 or not depthwise)
            else None
        )
        if make is None:
            return None
        makers.append(make)
    attrs = {**node.attrs, "groups": order.size} if depthwise else node.attrs
    return lambda: rw.emit(node.op, [make() for make in makers], attrs, sources=node.sources)


def _is_border(node: Node) -> bool:
    """Whether a node surrounds its operand in space only."""
    if node.op is not get("pad"):
        return False
    pads, rank = node.attrs["pads"], node.inputs[0].type.rank
    return not any(pads[d] or pads[rank + d] for d in (0, 1))


def _reordered_constant(rw: Rewriter, value: Value, order: np.ndarray, axis: int, channels: int) -> Make | None:
    """A constant whose ``axis`` are the channels; without such an axis, or with extent 1, all channels share it."""
    array = rw.constant(value)
    assert array is not None
    if axis < 0 or array.shape[axis] == 1:
        return lambda: value
    return (lambda: rw.new_constant(np.take(array, order, axis))) if array.shape[axis] == channels else None


SPELLINGS = (channel_shuffle,)
RULES = (shuffle_into_weights_before, shuffle_into_weights_behind)
