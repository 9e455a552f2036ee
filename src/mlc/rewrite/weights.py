"""Weights in small types: what layers bound by memory read is half or a quarter as much.

In: a graph whose products have constant right operands in f32. Out: the same with those in f16, bf16, i8 or 4 bits,
which the products widen as they read them. Integers get a scale for each column, by which the sums are multiplied::

    matmul(x, w) → matmul(x, i8(round(w / s))) * s

Of 8 bits it is ``max(abs(w)) / 127``; of 4 bits the one of some fractions of ``max(abs(w)) / 7`` that leaves the least
squared error, since cutting a few great numbers off costs less than coarse steps for all. Numbers of 4 bits lie in
pairs of rows, two a byte; batches of matrices get 8 bits instead.

Tables that are looked up have their rows in 16 bits, whatever products get: rows are few, and so is what they cost.
What a type cannot hold (numbers beyond its range) stays in f32. Weights of convolutions stay as well: they are read
again and again, and computing sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from mlc.ir.graph import Attrs, Graph, Node, Value
from mlc.ir.types import DType, bf16, f16, f32, i4, i8
from mlc.ops import get
from mlc.rewrite.rewriter import Rewriter, replay

_TYPES: dict[str, DType] = {"f16": f16, "bf16": bf16, "int8": i8, "int4": i4}
_FRACTIONS = np.linspace(0.4, 1.0, 25, dtype=np.float32)  # of the greatest number, that 4 bits may reach to


def store_weights(graph: Graph, kind: str) -> Graph:
    """Store constant operands of products, and tables, in a small type.

    Args:
        graph: operators, not groups.
        kind: one of ``WEIGHT_TYPES``.
    """
    return replay(graph, _Small(_TYPES[kind]).visit)


def use_bf16(graph: Graph, least: int = 1, convolves: Callable[[Node], bool] = lambda _: False) -> Graph:
    """Round both operands of products by constants to bf16; their sums stay in f32.

    Instructions take terms by twos, so an odd one gets a zero beside it.

    Args:
        graph: operators, not groups.
        least: rows from which on a product is taken. Those of one row are bound by reading, so who wants weights to be
            smaller still leaves them to :func:`store_weights`.
        convolves: which convolutions are taken; none of others than f32.
    """
    small = _Small(bf16)

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op is get("conv") and convolves(node):
            filters = small.stored_filters(rw, node)
            if filters is None:
                return None
            data = rw.emit(get("cast"), [node.inputs[0]], {"to": "bf16"})
            return [rw.emit(get("conv_wide"), [data, filters], node.attrs)]
        if node.op is not get("matmul") or node.attrs["transpose_a"] or node.inputs[1].type.rank != 2:
            return None
        x = node.inputs[0]
        stored = small.stored(rw, node) if prod(x.type.shape[:-1]) >= least else None
        if stored is None:
            return None
        w, _ = stored
        depth = 1 if node.attrs["transpose_b"] else 0
        if w.type.shape[depth] % 2:
            w = rw.emit(get("pad"), [w], _one_more(2, depth))
            x = rw.emit(get("pad"), [x], _one_more(x.type.rank, x.type.rank - 1))
        return [rw.emit(get("matmul_wide"), [rw.emit(get("cast"), [x], {"to": "bf16"}), w], node.attrs)]

    return replay(graph, visit)


def _one_more(rank: int, axis: int) -> Attrs:
    """A zero at the end of an axis."""
    return {"pads": tuple(int(k == rank + axis) for k in range(2 * rank)), "value": 0.0}


class _Small:
    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.of: dict[tuple[Value, DType], tuple[Value, Value | None] | None] = {}

    def visit(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op is get("matmul"):
            return self._product(rw, node)
        return self._table(rw, node) if node.op is get("gather") else None

    def stored(self, rw: Rewriter, node: Node) -> tuple[Value, Value | None] | None:
        """The right operand of a product of data in f32 in the small type, and its scales."""
        x, w = node.inputs
        if rw.constant(x) is not None or x.type.dtype is not f32:
            return None
        if self.dtype is i4 and node.attrs["transpose_a"]:
            return None
        return self._stored(rw, w, self.dtype, w.type.rank - (1 if node.attrs["transpose_b"] else 2))

    def stored_filters(self, rw: Rewriter, node: Node) -> Value | None:
        """The weights of a convolution of data in f32 in the small type, which is one of floats."""
        x, w = node.inputs
        if rw.constant(x) is not None or x.type.dtype is not f32:
            return None
        stored = self._stored(rw, w, self.dtype, 1)
        return None if stored is None else stored[0]

    def _product(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        stored = self.stored(rw, node)
        if stored is None:
            return None
        small, scale = stored
        if self.dtype is i4 and small.type.rank == 2:
            x = node.inputs[0]
            if x.type.shape[-1] % 2:
                x = rw.emit(get("pad"), [x], _one_more(x.type.rank, x.type.rank - 1))
            y = rw.emit(get("matmul_nibbles"), [x, small])
        else:
            y = rw.emit(node.op, [node.inputs[0], small], node.attrs)
        return [y if scale is None else rw.emit(get("mul"), [y, scale])]

    def _table(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        stored = self._stored(rw, node.inputs[0], self.dtype if self.dtype.is_float else f16, -1)
        if stored is None:
            return None
        rows = rw.emit(node.op, [stored[0], node.inputs[1]], node.attrs)
        return [rw.emit(get("cast"), [rows], {"to": "f32"})]

    def _stored(self, rw: Rewriter, w: Value, dtype: DType, depth: int) -> tuple[Value, Value | None] | None:
        """A constant in a small type and, for integers, the scales of its columns; ``None`` where it stays.

        Args:
            rw: takes the new constants.
            w: what is stored.
            dtype: the small type.
            depth: the axis of ``w`` that is summed over.
        """
        if (w, dtype) not in self.of:
            array = rw.constant(w)
            fits = array is not None and w.type.dtype is f32 and w.type.rank > 1 and array.size > 0
            self.of[w, dtype] = None if array is None or not fits else self._narrowed(rw, w, array, dtype, depth)
        return self.of[w, dtype]

    def _narrowed(
        self, rw: Rewriter, w: Value, array: np.ndarray, dtype: DType, depth: int
    ) -> tuple[Value, Value | None] | None:
        if not np.isfinite(array).all():
            return None
        name = f"{w.name}.{dtype}"
        if dtype.is_float:
            with np.errstate(over="ignore"):
                small = array.astype(dtype.numpy)
            return (rw.new_constant(small, name), None) if np.isfinite(small).all() else None
        if dtype is i4 and array.ndim == 2:
            integers, scale = quantised_coarsely(np.moveaxis(array, depth, 0))
            return rw.new_constant(in_pairs(integers), name), rw.new_constant(scale, f"{w.name}.scale")
        integers, scale = quantised(array, depth)
        # the columns of a matrix are the last axis of a product, those of a batch of them keep their places
        row = scale.reshape(-1) if array.ndim == 2 else np.moveaxis(scale, depth, -2)
        return rw.new_constant(integers, name), rw.new_constant(row, f"{w.name}.scale")


def quantised(array: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as ``integers * scale``, in i8 and f32, with a scale for all along an axis, which keeps extent 1.

    >>> quantised(np.array([[1.0, -2.0], [0.5, 0.0]], np.float32), 0)[0].tolist()
    [[127, -127], [64, 0]]
    """
    greatest = np.abs(array).max(axis=axis, keepdims=True)
    # of what underflows, nothing is left; zeros need no scale
    scale = np.maximum(greatest / np.float32(i8.max_value), np.finfo(np.float32).tiny).astype(np.float32)
    return np.rint(array / scale).clip(-i8.max_value, i8.max_value).astype(np.int8), scale


def quantised_coarsely(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The columns of a matrix as ``integers * scale`` with whole numbers from -7 to 7, in i8, and a scale each in f32.

    >>> integers, scale = quantised_coarsely(np.array([[1.0], [-7.0], [3.0]], np.float32))
    >>> integers.T.tolist(), scale.tolist()
    ([[1, -7, 3]], [1.0])
    """
    most = np.float32(i4.max_value)
    whole = np.maximum(np.abs(array).max(axis=0) / most, np.finfo(np.float32).tiny).astype(np.float32)
    best, least = whole, np.full(array.shape[1], np.inf, np.float32)
    for fraction in _FRACTIONS:
        scale = np.maximum(whole * fraction, np.finfo(np.float32).tiny)
        error = np.square(np.rint(array / scale).clip(-most, most) * scale - array).sum(axis=0)
        best, least = np.where(error <= least, scale, best), np.minimum(error, least)
    return np.rint(array / best).clip(-most, most).astype(np.int8), best


def in_pairs(integers: np.ndarray) -> np.ndarray:
    """Rows of numbers of 4 bits in pairs, the first of each in the low half of a byte; an odd one gets a row of zeros.

    >>> in_pairs(np.array([[1], [-1], [2]], np.int8)).tolist()
    [[-15], [2]]
    """
    low, high = integers[::2], np.zeros_like(integers[::2])
    high[: len(integers) // 2] = integers[1::2]
    return (high << 4 | low & 15).astype(np.int8)
