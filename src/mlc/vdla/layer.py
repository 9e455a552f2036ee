"""What one offloaded group asks of the accelerator: a product, and what happens to its sums before they are stored.

The grammar of a group's body, in this order, each line but the first optional::

    acc = conv(x: i8, w: i8) | matmul(x: i8, w: i8)        i32
    acc = add(acc, bias)                                    i32, one number a channel
    acc = add(acc, shl(cast(residual: i8), k))              k: one number, or one a channel; no shl where it is 0
    acc = relu(acc) | clip(acc, lo=0, hi=...)
    y   = cast(clip(round_shift(acc, shift), -128, 127))    i8; shift: one number, or one a channel

A product of matrices is a 1x1 convolution with rows as pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mlc.errors import UnsupportedError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import i8, i32
from mlc.ops import get
from mlc.rewrite.group import body_of

I8_MIN, I8_MAX = -128, 127


@dataclass(frozen=True, eq=False)
class Layer:
    """One product with its epilogue.

    Args:
        x, out: the values that are read and made, as the group's node has them.
        shape: of the input, ``(n, c, h, w)``.
        out_shape: of the result, ``(n, o, h, w)``.
        weights: i8[o, c, kh, kw].
        strides, dilations: along (h, w).
        pads: zeros (top, left, bottom, right).
        bias: i32[o], or ``None``.
        residual: an i8 value of the result's shape that is added, or ``None``.
        residual_shift: binary places it is moved up by, i32[1] or i32[o].
        relu: whether negative sums become 0.
        most: the greatest sum let through, or ``None``, also where saturation to i8 would not let it through anyway.
        shift: binary places dropped, i32[1] or i32[o]; ``None`` where the result is the sums themselves, i32.
    """

    x: Value
    out: Value
    shape: tuple[int, int, int, int]
    out_shape: tuple[int, int, int, int]
    weights: np.ndarray
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    bias: np.ndarray | None = None
    residual: Value | None = None
    residual_shift: np.ndarray | None = None
    relu: bool = False
    most: int | None = None
    shift: np.ndarray | None = None

    @property
    def macs(self) -> int:
        """Multiplications of the product, without padding of channels."""
        n, _, h, w = self.out_shape
        return n * h * w * self.weights.size

    @property
    def most_stored(self) -> np.ndarray | None:
        """``most`` after the shift, one number or one a channel; ``None`` where nothing is clipped or shifted."""
        if self.most is None or self.shift is None:
            return None
        places = self.shift.astype(np.int64)
        half = np.where(places > 0, np.int64(1) << np.maximum(places - 1, 0), 0)
        return (np.int64(self.most) + half) >> places


def read_layer(group: Node, constants: Mapping[Value, np.ndarray]) -> Layer:
    """The layer that a group states.

    Args:
        group: a node with a body, see the grammar above.
        constants: arrays of the group's inputs that are constants, row-major.
    Raises:
        UnsupportedError: it states no layer; the message is the reason, in a few words.
    """
    return _Reader(group, constants).read()


class _Reader:
    """Walks along the body's chain of nodes."""

    def __init__(self, group: Node, constants: Mapping[Value, np.ndarray]) -> None:
        self.group = group
        self.body: Graph = body_of(group)
        self.outer = dict(zip(self.body.inputs, group.inputs, strict=True))
        self.arrays = {
            **self.body.constants,
            **{v: constants[outer] for v, outer in self.outer.items() if outer in constants},
        }
        self.makers = self.body.producers()
        self.readers = self.body.consumers()
        self.left = {n for n in self.body.nodes}
        self.clamped = False  # whether what is shifted was brought into the range of i8

    def read(self) -> Layer:
        products = [n for n in self.body.nodes if n.op in (get("conv"), get("matmul"))]
        if len(products) != 1:
            raise UnsupportedError("not a product" if not products else "several products")
        (product,) = products
        layer = self._conv(product) if product.op is get("conv") else self._matmul(product)
        self.left.discard(product)
        at = product.outputs[0]
        while (node := self._reader(at)) is not None:
            self.left.discard(node)
            layer = self._epilogue(layer, node, at)
            at = node.outputs[0]
        if self.left:
            raise UnsupportedError(f"{next(iter(self.left)).op.name} beside the product is not supported")
        if layer.shift is not None and at.type.dtype is not i8:
            raise UnsupportedError("the result is shifted, but not narrowed to i8")
        if (at,) != self.body.outputs:
            raise UnsupportedError("more than the last result is needed")
        if (most := layer.most_stored) is not None and most.min() >= I8_MAX:
            layer = replace(layer, most=None)
        return replace(layer, out=self.group.outputs[0])

    def _reader(self, v: Value) -> Node | None:
        readers = self.readers.get(v, [])
        if not readers:
            return None
        if len(readers) > 1 or v in self.body.outputs:
            raise UnsupportedError("more than the last result is needed")
        return readers[0]

    # -- the product ------------------------------------------------------------------------------------------------
    def _conv(self, node: Node) -> Layer:
        x, w = node.inputs
        if x.type.rank != 4:
            raise UnsupportedError(f"a convolution over {x.type.rank - 2} axes")
        if node.attrs["groups"] != 1:
            raise UnsupportedError("a convolution in groups")
        top, left, bottom, right = node.attrs["pads"]
        return Layer(
            self._activation(x), self.group.outputs[0], _four(x.type.shape), _four(node.outputs[0].type.shape),
            self._weights(w), _two(node.attrs["strides"]), _two(node.attrs["dilations"]), (top, left, bottom, right),
        )  # fmt: skip

    def _matmul(self, node: Node) -> Layer:
        x, w = node.inputs
        if x.type.rank != 2 or w.type.rank != 2:
            raise UnsupportedError("a batched product")
        if node.attrs["transpose_a"]:
            raise UnsupportedError("a product with its rows transposed")
        weights = self._weights(w)
        weights = weights if node.attrs["transpose_b"] else weights.T
        (rows, columns), out = x.type.shape, node.outputs[0].type.shape[1]
        return Layer(
            self._activation(x), self.group.outputs[0], (1, columns, rows, 1), (1, out, rows, 1),
            np.ascontiguousarray(weights)[:, :, None, None],
        )  # fmt: skip

    def _activation(self, v: Value) -> Value:
        if v.type.dtype is not i8:
            raise UnsupportedError(f"works on {v.type.dtype}, not on i8")
        if v not in self.outer or v in self.arrays:
            raise UnsupportedError("its operand is a constant")
        return self.outer[v]

    def _weights(self, v: Value) -> np.ndarray:
        if v.type.dtype is not i8:
            raise UnsupportedError(f"weights are {v.type.dtype}, not i8")
        if v not in self.arrays:
            raise UnsupportedError("weights are not constant")
        return self.arrays[v]

    # -- what follows -----------------------------------------------------------------------------------------------
    def _epilogue(self, layer: Layer, node: Node, at: Value) -> Layer:
        op, name = node.op, node.op.name
        if layer.shift is not None:
            if op is get("clip") and (node.attrs["lo"], node.attrs["hi"]) == (I8_MIN, I8_MAX):
                self.clamped = True
                return layer
            if op is get("cast") and node.outputs[0].type.dtype is i8 and self.clamped:
                return layer
            raise UnsupportedError(f"{name} after the shift")
        if op is get("add"):
            a, b = node.inputs
            other = b if a is at else a
            if other is at:
                raise UnsupportedError("the sums are added to themselves")
            if other in self.arrays:
                if layer.bias is not None or layer.residual is not None or layer.relu:
                    raise UnsupportedError("a second bias")
                return replace(layer, bias=self._by_channel(layer, other, whole=True))
            if layer.residual is not None or layer.relu:
                raise UnsupportedError("a second residual")
            residual, shift = self._residual(layer, other)
            return replace(layer, residual=residual, residual_shift=shift)
        if op is get("relu"):
            return replace(layer, relu=True)
        if op is get("clip") and node.attrs["lo"] == 0:
            limits = [limit for limit in (layer.most, node.attrs["hi"]) if limit is not None]
            return replace(layer, relu=True, most=min(limits, default=None))
        if op is get("round_shift") and node.inputs[0] is at:
            return replace(layer, shift=self._by_channel(layer, node.inputs[1]))
        raise UnsupportedError(f"{name} after a product")

    def _residual(self, layer: Layer, v: Value) -> tuple[Value, np.ndarray]:
        shift = np.zeros(1, np.int32)
        node = self.makers.get(v)
        if node is not None and node.op is get("shl"):
            self.left.discard(node)
            shift = self._by_channel(layer, node.inputs[1])
            node = self.makers.get(node.inputs[0])
        if node is None or node.op is not get("cast") or node.inputs[0].type.dtype is not i8:
            raise UnsupportedError(f"adds {v.type.dtype} that are no i8 activations")
        self.left.discard(node)
        if node.inputs[0].type.shape != self.group.outputs[0].type.shape:
            raise UnsupportedError("adds a tensor of another shape")
        return self._activation(node.inputs[0]), shift

    def _by_channel(self, layer: Layer, v: Value, whole: bool = False) -> np.ndarray:
        """A constant of one number, or of one a channel, as a vector; ``whole``: always one a channel."""
        if v not in self.arrays or v.type.dtype is not i32:
            raise UnsupportedError("a parameter is no constant of 32 bits")
        array, channels = self.arrays[v], layer.out_shape[1]
        if array.size == 1:
            return np.full(channels if whole else 1, array.reshape(()), np.int32)
        axis = 1 if self.group.outputs[0].type.rank == 4 else -1
        wanted = [1] * array.ndim
        wanted[axis] = channels
        # numpy aligns shapes at their ends: [o, 1, 1] stands for [1, o, 1, 1]
        if array.ndim == 3 and axis == 1:
            wanted = [channels, 1, 1]
        if list(array.shape) != wanted:
            raise UnsupportedError(f"a parameter of shape {list(array.shape)}")
        return array.reshape(-1).astype(np.int32)


def _four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    n, c, h, w = shape
    return n, c, h, w


def _two(values: tuple[int, ...]) -> tuple[int, int]:
    a, b = values
    return int(a), int(b)
