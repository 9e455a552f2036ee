"""Products of bytes as processors multiply them: data, unsigned or signed, by signed weights, zero points aside.

``sum((x - z) * w) = sum(x * w) - z * sum(w)``, where ``z`` surrounds the data of a convolution, too. Where a processor
takes unsigned data, signed ones become ``x + 128``, and so does their zero point; where it takes signed ones, unsigned
ones become ``x - 128``. All sums are exact in i32, whatever wraps on the way to them.

In, for :func:`use_bytes`: a graph with ``conv`` and ``matmul`` of integers by constant weights, as importers of integer
operators and :mod:`mlc.rewrite.quantization` make them; what an accelerator takes has been taken. Out: the same
numbers, where weights have 8 bits, from products of u8, or of i8, by i8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlc.ir.graph import Attrs, Graph, Node, Value
from mlc.ir.types import DType, i8, i16, i32, u8
from mlc.ops import get
from mlc.rewrite.rewriter import Rewriter, replay

_SIGN = 128  # what makes a signed byte an unsigned one
I32_MAX = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of products of bytes.

    Args:
        value: in i32, without their offset.
        offset: what is to be added, an integer a channel that broadcasts to the value.
        bound: the greatest magnitude of both together, in the same shape.
    """

    value: Value
    offset: np.ndarray
    bound: np.ndarray


def channel_of(node: Node) -> int:
    """The dimension of the weights that is the channel of a product's result; -1 where they are no matrix."""
    rank = node.inputs[1].type.rank
    if node.op is get("conv"):
        return 0
    return -1 if rank != 2 else 0 if node.attrs["transpose_b"] else 1


def product_of_bytes(rw: Rewriter, node: Node, data: Value, zero: int, weights: np.ndarray) -> Sums | None:
    """A product of ``data - zero`` and weights.

    Args:
        rw: takes the new nodes.
        node: the product.
        data: bytes.
        zero: their zero point.
        weights: integers without a zero point.
    Returns:
        ``None`` where weights have no 8 bits, or sums might not have 32.
    """
    channel = channel_of(node)
    if channel < 0 or not weights.size or weights.min() < i8.min_value or weights.max() > i8.max_value:
        return None
    others = tuple(d for d in range(weights.ndim) if d != channel)
    wide = weights.astype(np.int64)
    bound = np.abs(wide).sum(axis=others) * u8.max_value  # of signed data with their offset, too
    if bound.max() > I32_MAX:
        return None
    convolves = node.op is get("conv")
    along = (-1, *(1,) * (weights.ndim - 2)) if convolves else (-1,)
    data, attrs = _surrounded(rw, data, zero, node.attrs) if convolves else (data, node.attrs)
    value = rw.emit(node.op, [data, rw.new_constant(weights.astype(np.int8), f"{node.inputs[1].name}.i8")], attrs)
    return Sums(value, (-zero * wide.sum(axis=others)).reshape(along), bound.reshape(along))


def total(rw: Rewriter, sums: Sums) -> Value:
    """Sums with their offset."""
    if not sums.offset.any():
        return sums.value
    # what does not fit has wrapped in the sums as well
    offset = sums.offset.astype(np.uint64).astype(np.uint32).view(np.int32)
    return rw.emit(get("add"), [sums.value, rw.new_constant(offset, "offset")])


def moved_by(dtype: DType, to: DType) -> int:
    """What is added to bytes, and to their zero point, to make them those of a type: 128, -128 or 0.

    Numbers of fewer bits lose their sign for either type.

    >>> from mlc.ir.types import i2, u4
    >>> moved_by(i8, u8), moved_by(u8, i8), moved_by(u8, u8)
    (128, -128, 0)
    >>> moved_by(i2, u8), moved_by(i2, i8), moved_by(u4, i8), moved_by(i8, i2)
    (2, 2, 0, -2)
    """
    if dtype.bits != to.bits:
        sign, its = ((1 << (t.bits - 1)) * (t.bits < u8.bits and t.kind == "i") for t in (dtype, to))
        return sign - its
    return 0 if dtype is to else _SIGN if to is u8 else -_SIGN


def with_sign_of(rw: Rewriter, x: Value, to: DType) -> Value:
    """Numbers of at most a byte as bytes of a type, each greater by :func:`moved_by`.

    They are called ``NAME.plus128`` or ``NAME.minus128``, so that layers can be compared with the model's tensors.
    """
    by = moved_by(x.type.dtype, to)
    if by == 0:
        return x if x.type.dtype is to else cast(rw, x, to.name)
    moved = rw.emit(get("add"), [cast(rw, x, "i16"), rw.new_constant(np.asarray(by, np.int16))])
    y = cast(rw, moved, to.name)
    rw.call(y, f"{x.name}.{'plus' if by > 0 else 'minus'}{abs(by)}")
    return y


def cast(rw: Rewriter, x: Value, to: str) -> Value:
    return rw.emit(get("cast"), [x], {"to": to})


def _surrounded(rw: Rewriter, data: Value, zero: int, attrs: Attrs) -> tuple[Value, Attrs]:
    """The data of a convolution, with what surrounds them where that is not 0, and its attributes."""
    pads = attrs["pads"]
    if zero == 0 or not any(pads):
        return data, attrs
    rank = len(pads) // 2
    around = {"pads": (0, 0, *pads[:rank], 0, 0, *pads[rank:]), "value": float(zero)}
    return rw.emit(get("pad"), [data], around), {**attrs, "pads": (0,) * len(pads)}


def use_bytes(graph: Graph, wanted: DType = u8) -> Graph:
    """Multiply bytes by signed bytes where integers are multiplied by constants of 8 bits.

    Args:
        graph: operators, not groups.
        wanted: the type of data that the target multiplies, u8 or i8.
    """
    moved: dict[Value, Value] = {}

    def data_of(rw: Rewriter, x: Value) -> tuple[Value, int] | None:
        """Bytes and their zero point, which may be subtracted before others move them."""
        made, zero = rw.maker(x), 0
        moves = []
        while made is not None and made.op in (get("reshape"), get("transpose")) and x.type.dtype is i16:
            moves.append(made)
            x = made.inputs[0]
            made = rw.maker(x)
        if x.type.dtype is i16 and made is not None and made.op is get("sub"):
            array, widened = rw.constant(made.inputs[1]), rw.maker(made.inputs[0])
            if array is None or array.size != 1 or widened is None or widened.op is not get("cast"):
                return None
            x, zero = widened.inputs[0], int(array.reshape(()))
            for move in reversed(moves):
                x = rw.emit(move.op, [x], move.attrs)
        dtype = x.type.dtype
        if dtype not in (u8, i8) or not dtype.min_value <= zero <= dtype.max_value:
            return None
        if x not in moved:
            moved[x] = with_sign_of(rw, x, wanted)
        return moved[x], zero + moved_by(dtype, wanted)

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op not in (get("conv"), get("matmul")) or node.outputs[0].type.dtype is not i32:
            return None
        x, w = node.inputs
        weights = rw.constant(w)
        as_they_are = x.type.dtype is wanted and w.type.dtype is i8
        if weights is None or rw.constant(x) is not None or as_they_are:
            return None
        if node.op is get("matmul") and node.attrs["transpose_a"]:
            return None
        data = data_of(rw, x)
        sums = None if data is None else product_of_bytes(rw, node, *data, weights)
        return None if sums is None else [total(rw, sums)]

    return replay(graph, visit)
