"""A layer as tensor expressions over what lies in memory, for any part of its result.

Activations are ``[n, c / 16, h, w, 16]``, weights ``[o / 16, c / 16, r, s, 16 out, 16 in]``, parameters of channels
``[o / 16, 16]``. A part is a range of rows by a range of blocks of output channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Expr, all_of, cast, const, select, within
from mlc.ir.index import Linear, as_index
from mlc.ir.types import i8, i32
from mlc.vdla.config import VdlaConfig
from mlc.vdla.layer import Convolution
from mlc.vdla.schedules.finish import NAMES, Epilogue, Finish, Product, Range


@dataclass(frozen=True)
class Shape:
    """Extents of a layer in blocks; of a convolution in groups, those of one group of blocks.

    Args:
        batch: images.
        inputs, outputs: blocks of channels.
        height, width: of the input.
        rows, columns: of the result.
        kernel, strides, dilations, pads: (h, w); pads are zeros at the top and at the left.
        narrow: whether results are stored as i8.
        blocks: channels of a block, (in, out).
        passes: products that add the bias.
        residual: cycles that adding the residual takes for one accumulator.
        vectors: numbers of channels that stand among the accumulators.
        groups: of blocks, beside each other. Where groups of channels are narrower than a block, a block is a group:
            its weights are zero between channels of different groups.
    """

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    rows: int
    columns: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]
    narrow: bool
    blocks: tuple[int, int]
    passes: int = 0
    residual: int = 0
    vectors: int = 0
    groups: int = 1

    @classmethod
    def of(cls, layer: Convolution, config: VdlaConfig) -> Shape:
        """The extents of a layer on an accelerator.

        Raises:
            ScheduleError: groups of channels cut across blocks, or the epilogue needs an ALU.
        """
        n, c, h, w = layer.shape
        _, o, rows, columns = layer.out_shape
        groups = groups_of(layer, config)
        if groups is None:
            raise ScheduleError(f"{layer.groups} groups of channels cut across blocks")
        inputs, outputs = -(-c // config.block_in) // groups, -(-o // config.block_out) // groups
        kernel = layer.weights.shape[2], layer.weights.shape[3]
        epilogue = Epilogue.of(layer, config)
        return cls(
            n, inputs, outputs, h, w, rows, columns, kernel, layer.strides,
            layer.dilations, (layer.pads[0], layer.pads[1]), layer.shift is not None,
            (config.block_in, config.block_out), epilogue.passes,
            0 if epilogue.residual is None else epilogue.residual.cycles, epilogue.vectors, groups,
        )  # fmt: skip

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def macs(self) -> int:
        """Cycles that the product takes at one tile a cycle."""
        return self.batch * self.rows * self.columns * self.inputs * self.outputs * self.taps

    def rows_read(self, rows: int) -> int:
        """Rows of input, padding included, that stand on the chip for so many rows of the result."""
        return (
            rows if self.kernel[0] == 1 else (rows - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilations[0] + 1
        )

    def columns_read(self, columns: int) -> int:
        """Columns of input, padding included, for so many columns of the result."""
        return (columns - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that have to cross the port: each tensor once, of the input only the rows that windows touch, from the
        first such column to the last."""
        rows = {
            y * self.strides[0] + r * self.dilations[0] - self.pads[0]
            for y in range(self.rows)
            for r in range(self.kernel[0])
        }
        columns = min(self.width, self.columns_read(self.columns) - self.pads[1])
        block_in, block_out = self.blocks
        results = self.batch * self.rows * self.columns * self.outputs * block_out
        return (
            self.batch * self.inputs * block_in * len([y for y in rows if 0 <= y < self.height]) * columns
            + self.inputs * self.outputs * self.taps * block_in * block_out
            + results * (1 if self.narrow else 4)
        )


def groups_of(layer: Convolution, config: VdlaConfig) -> int | None:
    """How many groups of blocks a layer has; ``None`` where its groups of channels cut across blocks."""
    c, o = layer.shape[1] // layer.groups, layer.out_shape[1] // layer.groups
    if layer.groups == 1 or (c % config.block_in == 0 and o % config.block_out == 0):
        return layer.groups
    if c == o and config.block_in == config.block_out and config.block_in % c == 0:
        return -(-layer.shape[1] // config.block_in)
    return None


def constants(layer: Convolution, config: VdlaConfig) -> dict[str, np.ndarray]:
    """The arrays of every parameter that is constant, by name, as ``express`` reads them."""
    shape = Shape.of(layer, config)
    (bi, bo), (o, c, kh, kw) = shape.blocks, layer.weights.shape
    outputs = shape.groups * shape.outputs
    padded = np.zeros((outputs * bo, shape.inputs * bi, kh, kw), np.int8)
    # where a block holds several groups, each begins at a channel of its own
    channels = np.arange(o)[:, None]
    begin = channels % bo // c * c if layer.groups > 1 and c < bi else 0
    padded[channels, begin + np.arange(c)] = layer.weights
    blocked = padded.reshape(outputs, bo, shape.inputs, bi, kh, kw).transpose(0, 2, 4, 5, 1, 3)
    return {"w": np.ascontiguousarray(blocked), **Epilogue.of(layer, config).constants(layer, shape.blocks)}


@dataclass(eq=False)
class Part:
    """Expressions of a part of a layer.

    Args:
        params: what is read, then the result; ``constants`` has the arrays of those that are constant, by name, the
            others are ``x`` and ``residual``.
        main: the layer's product: the input as windows slide over it, padded and without rows that no window touches,
            and the tiles of weights.
        more: products for bias and residual.
        operands: what else the result is made of, i32.
        out: what is stored.
    """

    params: list[te.Tensor]
    main: Product
    more: list[Product]
    operands: list[te.Tensor]
    out: te.Tensor


def express(shape: Shape, epilogue: Epilogue, rows: Range, blocks: Range, inputs_outer: bool) -> Part:
    """The part of a layer with the given rows and blocks of output channels.

    Args:
        shape: of the whole layer.
        epilogue: what happens to the sums.
        rows, blocks: begin and end; the blocks are of one group.
        inputs_outer: whether tiles of weights stand on the chip by ``[inputs, outputs, r, s]``, else by
            ``[outputs, inputs, r, s]``.
    """
    (kh, kw), (bi, bo) = shape.kernel, shape.blocks
    count = blocks[1] - blocks[0]
    inputs, outputs = shape.groups * shape.inputs, shape.groups * shape.outputs
    x = te.placeholder((shape.batch, inputs, shape.height, shape.width, bi), i8, "x")
    data = _data(x, shape, rows, blocks[0] // shape.outputs * shape.inputs)
    weights = te.placeholder((outputs, shape.inputs, kh, kw, bo, bi), i8, "w")
    if inputs_outer:
        tiles = te.compute(
            (shape.inputs, count, kh, kw, bo, bi), lambda c, o, r, s, j, k: weights[o + blocks[0], c, r, s, j, k],
            "tiles", axis_names=("c", "o", "r", "s", "j", "k"), tag="copy",
        )  # fmt: skip
    else:
        tiles = te.compute(
            (count, shape.inputs, kh, kw, bo, bi), lambda o, c, r, s, j, k: weights[o + blocks[0], c, r, s, j, k],
            "tiles", axis_names=("o", "c", "r", "s", "j", "k"), tag="copy",
        )  # fmt: skip
    c, r, s, k = (te.reduce_axis(n, name) for n, name in ((shape.inputs, "c"), (kh, "r"), (kw, "s"), (bi, "k")))

    def term(n: Linear, o: Linear, y: Linear, z: Linear, j: Linear) -> te.Reduction:
        row = y if kh == 1 else y * shape.strides[0] + as_index(r) * shape.dilations[0]
        column = z * shape.strides[1] + as_index(s) * shape.dilations[1]
        tile = (as_index(c), o) if inputs_outer else (o, as_index(c))
        product = cast(data[n, c, row, column, k], i32) * cast(tiles[(*tile, r, s, j, k)], i32)
        return te.sum_of(product, (c, r, s, k))

    whole = (shape.batch, outputs, shape.rows, shape.columns, bo)
    finish = Finish(epilogue, whole, rows, blocks, bi)
    sums = te.compute(finish.region, term, "sums", axis_names=NAMES, tag="conv")
    out = finish.result(lambda *at: sums[at])
    if finish.region != whole:
        axes = tuple(te.axis(n, name) for n, name in zip(finish.region, NAMES, strict=True))
        offsets = (0, blocks[0], rows[0], 0, 0)
        out.home = te.Home(
            whole, axes, tuple(as_index(a) + d for a, d in zip(axes, offsets, strict=True)), ((0, 0),) * 5
        )
    main = Product(data, tiles, sums)
    return Part([x, weights, *finish.params, out], main, finish.products, finish.operands, out)


def _data(x: te.Tensor, shape: Shape, rows: Range, block: int) -> te.Tensor:
    """The input from a block on, as the windows of some rows of the result slide over it."""
    (kh, _), (stride, _), (top, left) = shape.kernel, shape.strides, shape.pads

    def element(n: Linear, c: Linear, y: Linear, z: Linear, k: Linear) -> Expr:
        row = (y + rows[0]) * stride - top if kh == 1 else y + (rows[0] * stride - top)
        column = z - left
        inside = all_of([within(row, 0, shape.height), within(column, 0, shape.width)])
        return select(inside, x[n, c + block, row, column, k], const(0, i8))

    high, wide = shape.rows_read(rows[1] - rows[0]), shape.columns_read(shape.columns)
    extents = (shape.batch, shape.inputs, high, wide, shape.blocks[0])
    return te.compute(extents, element, "data", axis_names=("n", "c", "y", "z", "ci"), tag="pad")
