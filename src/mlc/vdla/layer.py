"""What one offloaded group asks of the accelerator: sums, and what happens to them before they are stored.

The sums are those of a product (a ``Convolution``), or activations as they are (``Elementwise``). The grammar of a
group's body, in this order, each line but the first optional::

    acc = conv(x: i8, w: i8) | matmul(x: i8, w: i8)         i32; conv may be in groups
        | shl(cast(x: i8), k) | cast(x: i8) | x             k: one number, or one a channel
    acc = add(acc, bias)                                    i32, one number a channel; may come second
    acc = add(acc, shl(cast(residual: i8), k))              no shl where k is 0
    acc = relu(acc) | clip(acc, lo=0, hi=...)
    y   = cast(clip(round_shift(acc, shift), -128, 127))    i8; shift: one number, or one a channel

A product of matrices is a 1x1 convolution with rows as pixels. Activations that are not widened are only activated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from mlc.errors import UnsupportedError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import i8, i32
from mlc.ops import get
from mlc.rewrite.group import body_of

I8_MIN, I8_MAX = -128, 127


@dataclass(frozen=True, eq=False)
class Layer:
    """Sums, and what happens to them.

    Args:
        x, out: the values that are read and made, as the group's node has them.
        shape: of the input, ``(n, c, h, w)``.
        out_shape: of the result, ``(n, o, h, w)``.
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
    bias: np.ndarray | None = field(default=None, kw_only=True)
    residual: Value | None = field(default=None, kw_only=True)
    residual_shift: np.ndarray | None = field(default=None, kw_only=True)
    relu: bool = field(default=False, kw_only=True)
    most: int | None = field(default=None, kw_only=True)
    shift: np.ndarray | None = field(default=None, kw_only=True)

    @property
    def macs(self) -> int:
        """Multiplications that the layer asks for, whatever the machine does besides."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of the layer's tensors, each once, without padding; of its input only the rows and columns it needs."""
        n, c, *_ = self.shape
        rows, columns = self._needed()
        read = n * c * rows * columns * self.x.type.dtype.itemsize
        result = prod(self.out_shape)
        added = 0 if self.residual is None else result
        bias = 0 if self.bias is None else self.bias.nbytes
        return read + result * self.out.type.dtype.itemsize + added + bias

    def _needed(self) -> tuple[int, int]:
        """Rows and columns of the input that results depend on."""
        return self.shape[2], self.shape[3]

    @property
    def most_stored(self) -> np.ndarray | None:
        """``most`` after the shift, one number or one a channel; ``None`` where nothing is clipped or shifted."""
        if self.most is None or self.shift is None:
            return None
        places = self.shift.astype(np.int64)
        half = np.where(places > 0, np.int64(1) << np.maximum(places - 1, 0), 0)
        return (np.int64(self.most) + half) >> places


@dataclass(frozen=True, eq=False)
class Convolution(Layer):
    """A product with its epilogue.

    Args:
        product: the operator that states it, applied to activations and weights.
        weights: i8, as the operator takes them.
        spread: how many blocks of results, one after the other, are neighbouring pixels in memory, see
            :mod:`mlc.vdla.fold`.
    """

    product: Node
    weights: np.ndarray
    spread: int = field(default=1, kw_only=True)

    @property
    def macs(self) -> int:
        """Multiplications of the product, without padding of channels."""
        results = self.product.outputs[0].type
        return results.size * self.weights.size // self.out_shape[1]

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.weights.nbytes

    def _needed(self) -> tuple[int, int]:
        if self.product.op is not get("conv"):
            return super()._needed()
        attrs = self.product.attrs
        rows, columns = (
            len({at for o in range(out) for t in range(taps) if 0 <= (at := o * stride + t * dilation - pad) < extent})
            for extent, out, taps, stride, dilation, pad in zip(
                self.shape[2:], self.out_shape[2:], self.weights.shape[2:], attrs["strides"], attrs["dilations"],
                attrs["pads"][:2], strict=True,
            )
        )  # fmt: skip
        return rows, columns


@dataclass(frozen=True, eq=False)
class Elementwise(Layer):
    """Activations with another tensor, numbers of channels, an activation function and another scale.

    Args:
        lift: binary places that the input is moved up by, i32[1] or i32[c].
    """

    lift: np.ndarray


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
        self.what = "a product"
        self.clipped = False  # whether the sums have come to fit i8

    def read(self) -> Layer:
        products = [n for n in self.body.nodes if n.op in (get("conv"), get("matmul"))]
        if len(products) > 1:
            raise UnsupportedError("several products")
        if not products:
            layer, at = self._activations()
        else:
            (product,) = products
            layer = self._conv(product) if product.op is get("conv") else self._matmul(product)
            self.left.discard(product)
            at = product.outputs[0]
        begin = at
        while (node := self._reader(at)) is not None:
            self.left.discard(node)
            layer = self._epilogue(layer, node, at)
            at = node.outputs[0]
        if self.left:
            beside = next(n for n in self.body.nodes if n in self.left).op.name
            raise UnsupportedError(f"{beside} beside {self.what} is not supported")
        if layer.shift is not None and at.type.dtype is not i8:
            raise UnsupportedError("the result is shifted, but not narrowed to i8")
        if (at,) != self.body.outputs:
            raise UnsupportedError("more than the last result is needed")
        if at.type.shape != begin.type.shape:
            raise UnsupportedError("the result has another shape")
        if isinstance(layer, Elementwise):
            if at.type.dtype is i8 and layer.shift is None:
                layer = replace(layer, shift=np.zeros(1, np.int32))
            if layer.shift is None and layer.bias is None and layer.residual is None and not layer.relu:
                raise UnsupportedError("a conversion alone")
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
        return Convolution(
            self._activation(x), self.group.outputs[0], _four(x.type.shape), _four(node.outputs[0].type.shape),
            node, self._weights(w),
        )  # fmt: skip

    def _matmul(self, node: Node) -> Layer:
        x, w = node.inputs
        if x.type.rank != 2 or w.type.rank != 2:
            raise UnsupportedError("a batched product")
        if node.attrs["transpose_a"]:
            raise UnsupportedError("a product with its rows transposed")
        (rows, columns), out = x.type.shape, node.outputs[0].type.shape[1]
        return Convolution(
            self._activation(x), self.group.outputs[0], (1, columns, rows, 1), (1, out, rows, 1), node, self._weights(w)
        )

    # -- no product -------------------------------------------------------------------------------------------------
    def _activations(self) -> tuple[Layer, Value]:
        """What a group without a product begins with, and the value in its body that goes on."""
        self.what = "activations"
        first = self.body.nodes[0]
        if first.op not in (get("cast"), get("relu"), get("clip")):
            raise UnsupportedError("no product, addition or activation")
        x, at = self._activation(first.inputs[0]), first.inputs[0]
        shape = _channels_second(x.type.shape)
        layer = Elementwise(x, self.group.outputs[0], shape, shape, np.zeros(1, np.int32))
        if first.op is not get("cast"):
            return layer, at
        at = first.outputs[0]
        if at.type.dtype is not i32:
            raise UnsupportedError(f"a conversion to {at.type.dtype}")
        self.left.discard(first)
        node = self._reader(at)
        if node is not None and node.op is get("shl") and node.inputs[0] is at:
            self.left.discard(node)
            return replace(layer, lift=self._by_channel(layer, node.inputs[1])), node.outputs[0]
        return layer, at

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
            if op is get("clip") and _fits_i8(node):
                self.clipped = True
                return layer
            if op is get("cast") and node.outputs[0].type.dtype is i8 and self.clipped:
                return layer
            raise UnsupportedError(f"{name} after the shift")
        if op is get("clip") and _fits_i8(node):
            self.clipped = True
            return replace(layer, shift=np.zeros(1, np.int32))
        if op is get("add"):
            a, b = node.inputs
            other = b if a is at else a
            if other is at:
                raise UnsupportedError("the sums are added to themselves")
            if at.type.dtype is not i32:
                raise UnsupportedError(f"adds in {at.type.dtype}")
            if other in self.arrays:
                if layer.bias is not None or layer.relu:
                    raise UnsupportedError("a second bias")
                return replace(layer, bias=self._by_channel(layer, other, whole=True))
            if layer.residual is not None or layer.relu:
                raise UnsupportedError("a second residual")
            residual, shift = self._residual(layer, other)
            return replace(layer, residual=residual, residual_shift=shift)
        if op is get("relu"):
            return replace(layer, relu=True)
        if op is get("clip") and node.attrs["lo"] == 0:
            limits = [m for m in (layer.most, node.attrs["hi"]) if m is not None]
            return replace(layer, relu=True, most=min(limits, default=None))
        if op is get("round_shift") and node.inputs[0] is at:
            return replace(layer, shift=self._by_channel(layer, node.inputs[1]))
        raise UnsupportedError(f"{name} after {self.what}")

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
        rank = self.group.outputs[0].type.rank
        wanted = [1] * rank
        wanted[1 if rank > 2 else -1] = channels
        # shapes are aligned at their ends: [o, 1, 1] stands for [1, o, 1, 1]
        if [1] * (rank - array.ndim) + list(array.shape) != wanted:
            raise UnsupportedError(f"a parameter of shape {list(array.shape)}")
        return array.reshape(-1).astype(np.int32)


def _fits_i8(clip: Node) -> bool:
    return (clip.attrs["lo"], clip.attrs["hi"]) == (I8_MIN, I8_MAX)


def _channels_second(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The shape of activations as an image's, ``(n, c, h, w)``; rows of a matrix are pixels."""
    match shape:
        case n, c, h, w:
            return n, c, h, w
        case rows, c:
            return 1, c, rows, 1
        case n, c, *rest if rest:
            return n, c, prod(rest), 1
    raise UnsupportedError(f"a tensor of {len(shape)} axes")


def _four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    n, c, h, w = shape
    return n, c, h, w
