"""Products of numbers of one or two bits, by logic and counts where the target is faster that way.

In, for :func:`use_bits`: a graph with ``conv`` and ``matmul`` of bytes by constant i8, not yet in groups. Out: the same
numbers, where what is known of both operands leaves two bits each, from words of bits (:mod:`mlc.ops.bits`)::

    conv(x, w)  →  conv_bits(pack_bits(x), words)                                   w in 0 … 3, or -2 … 1
    conv(x, w)  →  c - conv_bits(pack_bits(x), words)      c = sum(set bits of w)   w in -1, 1 or -3, -1, 1, 3

Which bits of data may be set follows from what makes them: limits before a conversion, and what moves elements. Weights
may have a common factor. Weights are packed here, data as the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.types import TensorType, boolean, i2, i4, i8, u2, u4, u8
from mlc.ops import get
from mlc.ops.bits import Weights, pack_constant
from mlc.rewrite.rewriter import Rewriter, replay

Prefers = Callable[[Node, int, int], bool]
"""Whether to take bits, as the target is faster by them: a product, and planes of its data and its weights."""

_ALL = 0xFF
_MOVES = ("reshape", "transpose", "slice", "max_pool", "channel_shuffle", "identity")  # exact, whatever is moved
_DEPTH = 32  # nodes that are looked through


@dataclass(frozen=True, eq=False)
class Planes:
    """Weights as planes of bits.

    Args:
        kind: what the planes stand for.
        count: how many there are.
        numbers: whose bits they are, shaped like the weights.
        factor: of all weights.
    """

    kind: Weights
    count: int
    numbers: np.ndarray
    factor: int


def planes_of(weights: np.ndarray) -> Planes | None:
    """Weights in one or two planes; ``None`` where they take more.

    >>> planes_of(np.array([-4, 4, 12], np.int8))
    Planes(kind=<Weights.BIPOLAR: 'bipolar'>, count=2, numbers=array([1, 2, 3]), factor=4)
    """
    wide = weights.astype(np.int64)
    factor = int(np.gcd.reduce(np.abs(wide), axis=None)) if wide.size else 0
    if factor == 0:
        return None
    wide //= factor
    least, most = int(wide.min()), int(wide.max())
    if (wide % 2 == 1).all() and least >= -3 and most <= 3:
        count = 1 if least >= -1 and most <= 1 else 2
        return Planes(Weights.BIPOLAR, count, (wide + (1 << count) - 1) // 2, factor)
    for kind, lowest in ((Weights.UNSIGNED, 0), (Weights.SIGNED, -2)):
        if lowest <= least and most <= lowest + 3:
            count = 1 if kind is Weights.UNSIGNED and most <= 1 else 2
            return Planes(kind, count, wide & 3, factor)
    return None


def bits_set(rw: Rewriter, x: Value) -> int:
    """Which bits of unsigned bytes may be set, as a mask."""
    return _bits_set(rw, x, _DEPTH)


def _bits_set(rw: Rewriter, x: Value, depth: int) -> int:
    made, dtype = rw.maker(x), x.type.dtype
    if dtype is boolean:
        return 1
    most = (1 << dtype.bits) - 1 if dtype.bits < u8.bits and dtype.kind == "u" else _ALL
    return most if made is None or depth == 0 else most & _made_by(rw, made, x, depth)


def _made_by(rw: Rewriter, made: Node, x: Value, depth: int) -> int:
    if made.op is get("clip") and made.attrs["hi"] is not None and (made.attrs["lo"] or 0) >= 0:
        within = made.attrs["lo"] is not None or x.type.dtype.kind == "u"
        limit = (1 << int(min(made.attrs["hi"], _ALL)).bit_length()) - 1
        return limit if within else _ALL
    if made.op is get("cast"):
        return _bits_set(rw, made.inputs[0], depth - 1)
    if not x.type.dtype.is_int or x.type.dtype.bits > u8.bits:
        return _ALL
    if made.op is get("pad"):
        return _bits_set(rw, made.inputs[0], depth - 1) | int(made.attrs["value"])
    if made.op is get("concat"):
        found = 0
        for v in made.inputs:
            found |= _bits_set(rw, v, depth - 1)
        return found
    if made.op is get("shl") and (by := rw.constant(made.inputs[1])) is not None and by.size == 1:
        return _bits_set(rw, made.inputs[0], depth - 1) << int(by.reshape(())) & _ALL
    return _bits_set(rw, made.inputs[0], depth - 1) if made.op in [get(name) for name in _MOVES] else _ALL


def use_bits(graph: Graph, prefers: Prefers) -> Graph:
    """Multiply bits where data and weights have no more than two each, and the target is faster that way."""

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        convolves = node.op is get("conv")
        if not convolves and node.op is not get("matmul"):
            return None
        x, w = node.inputs
        weights = rw.constant(w)
        if weights is None or x.type.dtype not in (u8, i8) or w.type.dtype is not i8 or rw.constant(x) is not None:
            return None
        if node.attrs["groups"] != 1 if convolves else (node.attrs["transpose_a"] or w.type.rank != 2):
            return None
        planes, bits = planes_of(weights), _neighbours(bits_set(rw, x))
        if planes is None or bits is None or not prefers(node, len(bits), planes.count):
            return None
        product = _conv if convolves else _matmul
        return [product(rw, node, bits, planes)]

    return replay(graph, visit)


_FEW = {1: (u2, i2), 2: (u4, i4)}  # by planes, types that tell how many data and weights have


def of_few_bits(node: Node, of_x: int, of_w: int) -> Node:
    """A product as its choice of algorithms knows it: its types tell how many planes data and weights have.

    Args:
        node: a ``conv`` or ``matmul`` of bytes.
        of_x, of_w: planes of data and of weights.
    """
    x, w = node.inputs
    types = (TensorType(x.type.shape, _FEW[of_x][0]), TensorType(w.type.shape, _FEW[of_w][1]))
    inputs = tuple(Value(v.name, t) for v, t in zip(node.inputs, types, strict=True))
    return Node(node.op, inputs, node.attrs, tuple(Value(v.name, v.type) for v in node.outputs))


def is_of_few_bits(node: Node) -> bool:
    """Whether a node is what :func:`of_few_bits` gives."""
    return [v.type.dtype for v in node.inputs] in [[a, b] for a, _ in _FEW.values() for _, b in _FEW.values()]


def with_few_bits(node: Node, rng: np.random.Generator) -> Graph:
    """A model of what :func:`of_few_bits` gave, with drawn bipolar weights, in which :func:`use_bits` finds it again.

    Args:
        node: the product.
        rng: draws the weights.
    """
    (x, w), planes = (v.type for v in node.inputs), {t: n for n, few in _FEW.items() for t in few}
    levels = np.arange(1 - (1 << planes[w.dtype]), 1 << planes[w.dtype], 2)
    b = Builder("bits")
    data = b.input("x", TensorType(x.shape, u8))
    (limited,) = b.add(get("clip"), [data], {"lo": 0, "hi": (1 << planes[x.dtype]) - 1})
    return b.finish(b.add(node.op, [limited, b.constant(rng.choice(levels, w.shape).astype(np.int8), "w")], node.attrs))


def _neighbours(mask: int) -> tuple[int, ...] | None:
    """The bits of a mask, where they are one, or two next to each other."""
    low = (mask & -mask).bit_length() - 1
    return {0: None, 1: (low,), 3: (low, low + 1)}.get(mask >> max(low, 0))


def _conv(rw: Rewriter, node: Node, bits: tuple[int, ...], planes: Planes) -> Value:
    x, w = node.inputs
    words = rw.new_constant(pack_constant(planes.numbers, 1, planes.count), f"{w.name}.bits")
    packed = rw.emit(get("pack_bits"), [x], {"axis": 1, "bits": bits})
    attrs = {name: node.attrs[name] for name in ("strides", "pads", "dilations")}
    counts = rw.emit(get("conv_bits"), [packed, words], {**attrs, "weights": planes.kind.value})
    others = tuple(range(1, planes.numbers.ndim))
    return _scaled(rw, counts, bits, planes, others, (-1, *(1,) * (planes.numbers.ndim - 2)))


def _matmul(rw: Rewriter, node: Node, bits: tuple[int, ...], planes: Planes) -> Value:
    (x, w), y = node.inputs, node.outputs[0]
    numbers = planes.numbers if node.attrs["transpose_b"] else planes.numbers.T
    planes = Planes(planes.kind, planes.count, numbers, planes.factor)
    rows = prod(x.type.shape[:-1])
    flat = x if x.type.rank == 2 else rw.emit(get("reshape"), [x], {"shape": (rows, x.type.shape[-1])})
    words = rw.new_constant(pack_constant(numbers, 1, planes.count), f"{w.name}.bits")
    packed = rw.emit(get("pack_bits"), [flat], {"axis": 1, "bits": bits})
    counts = rw.emit(get("matmul_bits"), [packed, words], {"weights": planes.kind.value})
    found = _scaled(rw, counts, bits, planes, (1,), (-1,))
    return found if x.type.rank == 2 else rw.emit(get("reshape"), [found], {"shape": y.type.shape})


def _scaled(
    rw: Rewriter, counts: Value, bits: tuple[int, ...], planes: Planes, others: tuple[int, ...], along: tuple[int, ...]
) -> Value:
    """Sums of products from counts; ``others`` are the axes of weights that are summed over."""
    y = counts
    if planes.kind is Weights.BIPOLAR:
        every = (1 << len(bits)) - 1
        most = (planes.numbers.sum(axis=others) * every).astype(np.int32).reshape(along)
        y = rw.emit(get("sub"), [rw.new_constant(most, "set"), y])
    factor = planes.factor << bits[0]
    return y if factor == 1 else rw.emit(get("mul"), [y, rw.new_constant(np.asarray(factor, np.int32))])
