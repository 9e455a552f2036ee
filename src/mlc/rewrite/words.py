"""Products of bytes for processors that multiply pairs of neighbours: by small weights as they are, by others in words.

``vpmaddubsw`` adds up the products of two neighbours of 8 bits and saturates at 16 bits, which it never does where no
weight is beyond 64: such weights become i7. ``vpmaddwd`` adds up the products of two neighbours of 16 bits, exactly;
bytes have to be widened for it. Done where they are multiplied, that takes longer than multiplying, once more for every
tile that reads them. So whoever makes the data writes them in 16 bits, and weights are widened at compile time.

In, for :func:`use_words`: a graph with ``conv`` and ``matmul`` of u8 by constant i8, not yet in groups. Out: the same
numbers, from products of u8 by i7, or of i16 by i16 where enough rows share the weights. The others wait for weights
from memory, which are best left small. Whatever else reads data in words, products by small weights included, reads
them in words as well, so that they are written once.

Convolutions become Winograd's, which are exact in 16 bits for tiles of two, where that algorithm is chosen. Those by
small weights read bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np

from mlc.ir.graph import Graph, Node, Operator, Value
from mlc.ir.types import DType, i7, i8, i16, u8
from mlc.ops import get
from mlc.ops.winograd import EXACT, fits, scale_along_axis, transform_weights
from mlc.rewrite.bytes import I32_MAX, cast
from mlc.rewrite.rewriter import Rewriter, replay
from mlc.rewrite.winograd import Choose

LEAST_ROWS = 8  # rows of a matrix, or pixels, from which on weights are used more often than they are read
_MOVES = ("pad", "concat", "reshape", "transpose", "max_pool", "channel_shuffle")  # exact, whatever is moved


def use_words(graph: Graph, choose: Choose, types: Collection[DType]) -> Graph:
    """Multiply bytes by small constants, and words of 16 bits where many rows share others.

    Args:
        graph: operators, not groups.
        choose: the algorithm of a convolution.
        types: of weights, i7 and i16, that are faster than i8.
    """
    if i7 in types:
        graph = _narrowed(graph)
    return _widened(graph, choose) if i16 in types else graph


def _narrowed(graph: Graph) -> Graph:
    """The graph with weights in i7, where their data are not wanted in words."""
    small = {n.outputs[0] for n in graph.nodes if _by_bytes(graph, n) and _is_small(graph.constants[n.inputs[1]])}
    wide = _to_widen(graph, {n.outputs[0] for n in graph.nodes if _widens(graph, n)} - small)

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        x, w = node.inputs if node.outputs[0] in small else (None, None)
        if x is None or w is None or (x in wide and _widens(graph, node)):
            return None
        array = rw.constant(w)
        assert array is not None
        return [rw.emit(node.op, [x, rw.new_constant(array, f"{w.name}.i7", i7)], node.attrs)]

    return replay(graph, visit) if small else graph


def _is_small(weights: np.ndarray) -> bool:
    return bool(weights.min(initial=0) >= i7.min_value and weights.max(initial=0) <= i7.max_value)


def _widened(graph: Graph, choose: Choose) -> Graph:
    """The graph with products of words, where weights have all 8 bits."""
    products = {n.outputs[0] for n in graph.nodes if _widens(graph, n)}
    wide = _to_widen(graph, products)
    words: dict[Value, Value] = {}  # in 16 bits, of what is in 8

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        y = node.outputs[0]
        if y in products:
            x, w = node.inputs
            array = rw.constant(w)
            assert array is not None
            wide_array = array.astype(np.int16)
            if node.op is get("conv") and fits(node) and _survives(array) and choose(node).tile == EXACT:
                weights = rw.new_constant(transform_weights(wide_array, EXACT), f"{w.name}.winograd")
                attrs = {"pads": node.attrs["pads"], "tile": EXACT}
                return [rw.emit(get("conv_winograd"), [_word(rw, x, words), weights], attrs)]
            weights = rw.new_constant(wide_array, f"{w.name}.i16")
            return [rw.emit(node.op, [_word(rw, x, words), weights], node.attrs)]
        if node.op is get("conv") and node.inputs[1].type.dtype is i7 and fits(node) and choose(node).tile == EXACT:
            x, w = node.inputs
            array = rw.constant(w)
            assert array is not None
            if _survives(array):
                weights = rw.new_constant(transform_weights(array.astype(np.int16), EXACT), f"{w.name}.winograd")
                return [rw.emit(get("conv_winograd"), [x, weights], {"pads": node.attrs["pads"], "tile": EXACT})]
            return None
        if y in wide and node.op in (*_moves(), get("cast")):
            word = _made(rw, node, words)
            byte = cast(rw, word, "u8")
            words[byte] = word
            return [byte]
        if node.op is get("cast") and node.inputs[0] in words:
            return [cast(rw, words[node.inputs[0]], node.attrs["to"])]
        return None

    return replay(graph, visit)


def _by_bytes(graph: Graph, node: Node) -> bool:
    """Whether a node is a product of bytes by constants, and does not take each channel by itself."""
    if node.op not in (get("conv"), get("matmul")):
        return False
    x, w = node.inputs
    if (x.type.dtype, w.type.dtype) != (u8, i8) or w not in graph.constants or x in graph.constants:
        return False
    if node.op is get("conv"):
        return w.type.shape[1] > 1 or node.attrs["groups"] == 1
    return w.type.rank == 2 and not node.attrs["transpose_a"]


def _widens(graph: Graph, node: Node) -> bool:
    """Whether a product is one of bytes that gets words."""
    if not _by_bytes(graph, node):
        return False
    y = node.outputs[0].type
    if node.op is get("conv"):
        return prod(y.shape[:1] + y.shape[2:]) >= LEAST_ROWS
    return prod(y.shape[:-1]) >= LEAST_ROWS


def _survives(weights: np.ndarray) -> bool:
    """Whether sums fit 32 bits with the scale of transformed weights; what wraps on the way to them does not matter."""
    greatest = np.abs(weights.astype(np.int64)).sum(axis=tuple(range(1, weights.ndim))).max() * u8.max_value
    return bool(greatest * scale_along_axis(EXACT) ** 2 <= I32_MAX)


def _to_widen(graph: Graph, products: Collection[Value]) -> set[Value]:
    """What nodes of the graph shall make in words: the data of products, and what is moved on the way there."""
    wide: set[Value] = set()
    moves = _moves()
    for node in reversed(graph.nodes):
        y = node.outputs[0]
        if y in products:
            wide.add(node.inputs[0])
        elif y in wide and node.op in moves:
            wide.update(node.inputs)
    return wide


def _made(rw: Rewriter, node: Node, words: Mapping[Value, Value]) -> Value:
    """What a node makes, in words."""
    if node.op in _moves():
        return rw.emit(node.op, [_word(rw, v, words) for v in node.inputs], node.attrs)
    source = node.inputs[0]
    made = rw.maker(source)
    limited = made is not None and made.op is get("clip") and made.attrs["lo"] >= 0 and made.attrs["hi"] <= u8.max_value
    return cast(rw, source if limited else cast(rw, source, "u8"), "i16")


def _word(rw: Rewriter, byte: Value, words: Mapping[Value, Value]) -> Value:
    return words[byte] if byte in words else cast(rw, byte, "i16")


def _moves() -> list[Operator]:
    return [get(name) for name in _MOVES]
