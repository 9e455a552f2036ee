"""Pixels folded into lanes: how narrow tensors lie, and the convolution that a layer over them is.

Of activations with 8 channels, every block of 16 lanes would be half empty, on the port, on the chip and in the matrix
unit. *Folded*, a block is two neighbouring pixels of a row: ``[n, h, w/2, 2*8]``. A convolution over such tensors is a
convolution again, over blocks for pixels and lanes for channels: its weights are those of the layer wherever an input
lane is the pixel and the channel that a result lane asks for, and zero elsewhere (a block Toeplitz matrix)::

    y[w, o] = sum(x[w + t - 1, c] * k[o, c, t] for t in (3))
    y'[p, (r, o)] = sum(x'[p + v - 1, (q, c)] * k'[(r, o), (q, c), v] for v, q, c in (3, 2, 8))

with ``k'[(r, o), (q, c), v] = k[o, c, t]`` where ``t = 2*v + q - r - 1`` is a tap.

The zeros cost products, but there are half as many blocks. Where rows begin with the pixel of the pad (*before*), so
that pairs are (-1, 0), (1, 2), …, two taps do for v instead of three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir.graph import Node, Value
from mlc.ir.layout import Layout, Pad, Split
from mlc.ir.types import TensorType, i8
from mlc.ops import get
from mlc.vdla.config import VdlaConfig
from mlc.vdla.layer import Convolution

CHANNEL, COLUMN = 1, 3  # of activations


@dataclass(frozen=True)
class Fold:
    """How rows of activations are cut into blocks.

    Args:
        pixels: neighbours that are one block; 1 leaves channels in blocks of their own.
        before: zeros before the first pixel of a row.
    """

    pixels: int = 1
    before: int = 0

    def layout(self, type: TensorType, lanes: int) -> Layout:
        """``[n, c, h, w]`` as ``[n, h, w / pixels, lanes]``, lanes being pixels, then channels; rows end with zeros."""
        _, c, _, w = type.shape
        layout = Layout(type.shape).pad(CHANNEL, 0, lanes // self.pixels - c)
        layout = layout.pad(COLUMN, self.before, -(self.before + w) % self.pixels).split(COLUMN, self.pixels)
        return layout.reorder(0, 2, 3, 4, 1).fuse(3)

    @classmethod
    def of(cls, type: TensorType) -> Fold:
        """How a tensor is folded, by its layout."""
        steps = type.layout.primitives if type.layout is not None else ()
        pixels = next((p.factor for p in steps if isinstance(p, Split) and p.dim == COLUMN), 1)
        before = next((p.before for p in steps if isinstance(p, Pad) and p.dim == COLUMN), 0)
        return cls(pixels, before)


def folded(layer: Convolution, config: VdlaConfig) -> Convolution:
    """The convolution over blocks that a layer is, by the layouts of its values; the layer itself where none is folded.

    What it says of work (``macs``, ``nbytes``) is that of the blocks, zeros included.

    Raises:
        ScheduleError: there is no such convolution.
    """
    return over_blocks(layer, Fold.of(layer.x.type), Fold.of(layer.out.type), config.block_in)


def over_blocks(layer: Convolution, x: Fold, y: Fold, lanes: int) -> Convolution:
    """A layer as a convolution over blocks; itself where neither its input nor its result is folded.

    Args:
        layer: with no residual where anything is folded.
        x, y: how its input and its result lie.
        lanes: of a block.
    Raises:
        ScheduleError: there is no such convolution.
    """
    if x.pixels == y.pixels == 1:
        return layer
    attrs = layer.product.attrs
    stride, dilation, pad = attrs["strides"][1], attrs["dilations"][1], attrs["pads"][1]
    (n, c, h, w), (_, o, rows, columns) = layer.shape, layer.out_shape
    # results are not folded, but computed so many at a time that the input moves on by whole blocks
    pixels = y.pixels if y.pixels > 1 else x.pixels // gcd(x.pixels, stride)
    spread = 1 if y.pixels > 1 else pixels
    if pixels * stride % x.pixels or columns % pixels or (spread > 1 and o > lanes):
        raise ScheduleError(f"results do not lie as blocks of {x.pixels} pixels do")
    taps = layer.weights.shape[3]
    at = np.add.outer(np.arange(pixels) * stride, np.arange(taps) * dilation) - pad + x.before  # [r, t]: pixel read
    first = min(0, int(at.min()) // x.pixels)
    many = int(at.max()) // x.pixels - first + 1
    step, there, results = pixels * stride // x.pixels, -(-(x.before + w) // x.pixels), columns // pixels
    after = max(0, (results - 1) * step + many + first - there)
    if (there - first + after - many) // step + 1 != results:
        raise ScheduleError("rows end within a window")
    inner = lanes // x.pixels if x.pixels > 1 else c
    outer = lanes // pixels if y.pixels > 1 else lanes if spread > 1 else o
    tiles = np.zeros((pixels, outer, x.pixels, inner, layer.weights.shape[2], many), np.int8)
    groups, width = attrs["groups"], layer.weights.shape[1]
    for r, t in np.ndindex(at.shape):
        block, q = divmod(int(at[r, t]) - first * x.pixels, x.pixels)
        for g in range(groups):
            outs, ins = slice(g * (o // groups), (g + 1) * (o // groups)), slice(g * width, (g + 1) * width)
            tiles[r, outs, q, ins, :, block] = layer.weights[outs, :, :, t]
    weights = tiles.reshape(pixels * outer, x.pixels * inner, *tiles.shape[4:])
    top, bottom = attrs["pads"][0], attrs["pads"][2]
    window = {
        **attrs, "strides": (attrs["strides"][0], step), "dilations": (attrs["dilations"][0], 1),
        "pads": (top, -first, bottom, after), "groups": 1,
    }  # fmt: skip
    shape, out_shape = (n, weights.shape[1], h, there), (n, weights.shape[0], rows, results)
    operands = tuple(Value(name, TensorType(dims, i8)) for name, dims in (("x", shape), ("w", weights.shape)))
    sums = Value("sums", TensorType(out_shape, layer.product.outputs[0].type.dtype))

    def by_lane(values: np.ndarray | None) -> np.ndarray | None:
        if values is None or values.size == 1:
            return values
        return np.tile(np.pad(values, (0, outer - o), mode="edge"), pixels)

    return replace(
        layer, shape=shape, out_shape=out_shape, product=Node(get("conv"), operands, window, (sums,), ()),
        weights=weights, bias=by_lane(layer.bias), shift=by_lane(layer.shift), spread=spread,
    )  # fmt: skip
