"""A layer as tensor expressions over what lies in memory, for any part of its result.

Activations are ``[n, c / 16, h, w, 16]``, weights ``[o / 16, c / 16, r, s, 16 out, 16 in]``, parameters of channels
``[o / 16, 16]``. A part is a range of rows by a range of blocks of output channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Expr, all_of, binary, cast, const, select, within
from mlc.ir.index import Linear, as_index
from mlc.ir.types import DType, i8, i32
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.fields import IMMEDIATES
from mlc.vdla.layer import I8_MAX, I8_MIN, Layer

Range = tuple[int, int]
NAMES = ("n", "o", "h", "w", "oi")


@dataclass(frozen=True)
class Shape:
    """Extents of a layer in blocks.

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

    @classmethod
    def of(cls, layer: Layer, config: VdlaConfig) -> Shape:
        """The extents of a layer on an accelerator."""
        n, c, h, w = layer.shape
        _, o, rows, columns = layer.out_shape
        kernel = layer.weights.shape[2], layer.weights.shape[3]
        epilogue = Epilogue.of(layer, config)
        return cls(
            n, -(-c // config.block_in), -(-o // config.block_out), h, w, rows, columns, kernel, layer.strides,
            layer.dilations, (layer.pads[0], layer.pads[1]), layer.shift is not None,
            (config.block_in, config.block_out), epilogue.passes,
            epilogue.residual_passes + min(1, epilogue.residual_up),
            [epilogue.bias, epilogue.residual, epilogue.shift].count("vector"),
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


Amount = int | Literal["vector"]  # a number, or one a channel
PLACES = 6  # the greatest power of two that an i8 holds
PASSES = 8  # products for a bias, at most
RESIDUAL_PASSES = 9  # products for a residual, at most


@dataclass(frozen=True)
class Epilogue:
    """What happens to the sums of a product.

    Adding is cheaper by the matrix unit: one cycle for an accumulator, against two and those that load the operand.

    Args:
        bias: whether i32 numbers of channels are added: by how many products, or by the ALU ("vector").
        residual: by how many places an i8 tensor is moved up that is added; ``None`` for no tensor.
        residual_passes: by how many products with a multiple of the identity; 0 where the ALU adds it.
        residual_up: by how many places the ALU moves such a product up, before it goes on.
        relu: whether negative sums become 0.
        most: the greatest sum let through, or ``None``.
        most_stored: the same after the shift, where ``most`` itself is too great for an instruction's constant.
        shift: how many places are dropped; ``None`` where the sums are stored.
    """

    bias: Amount | None = None
    residual: Amount | None = None
    residual_passes: int = 0
    residual_up: int = 0
    relu: bool = False
    most: int | None = None
    most_stored: int | None = None
    shift: Amount | None = None

    @classmethod
    def of(cls, layer: Layer, config: VdlaConfig) -> Epilogue:
        """The epilogue of a layer.

        Raises:
            ScheduleError: it needs an ALU.
        """
        bias: Amount | None = None
        if layer.bias is not None:
            passes = -(-int(np.abs(layer.bias.astype(np.int64)).max()) // greatest_bias(config)) or 1
            bias = passes if passes <= PASSES else "vector"
        residual = None if layer.residual_shift is None else _amount(layer.residual_shift)
        again = up = 0
        if isinstance(residual, int):
            if config.ext_alu:
                again, up = 1, max(0, residual - PLACES)
            else:
                again = -(-(1 << residual) // I8_MAX)
                if again > RESIDUAL_PASSES:
                    raise ScheduleError(f"a residual that is moved up by {residual} places needs ext_alu")
        shift = None if layer.shift is None else _amount(layer.shift)
        most, stored = layer.most, None
        if most is not None and most not in IMMEDIATES and layer.most_stored is not None:
            most, stored = None, int(layer.most_stored[0])
        return cls(bias, residual, again, up, layer.relu, most, stored, shift)

    @property
    def passes(self) -> int:
        """Products that add the bias."""
        return self.bias if isinstance(self.bias, int) else 0


def greatest_bias(config: VdlaConfig) -> int:
    """The greatest magnitude that one product adds to every pixel, from an input element of 1, 127, 127 …"""
    return I8_MAX * (1 + I8_MAX * (config.block_in - 1))


def _amount(places: np.ndarray) -> Amount:
    return int(places[0]) if (places == places[0]).all() else "vector"


def constants(layer: Layer, config: VdlaConfig) -> dict[str, np.ndarray]:
    """The arrays of every parameter that is constant, by name, as ``express`` reads them."""
    shape, epilogue = Shape.of(layer, config), Epilogue.of(layer, config)
    (bi, bo), (o, c, kh, kw) = shape.blocks, layer.weights.shape
    padded = np.zeros((shape.outputs * bo, shape.inputs * bi, kh, kw), np.int8)
    padded[:o, :c] = layer.weights
    blocked = padded.reshape(shape.outputs, bo, shape.inputs, bi, kh, kw).transpose(0, 2, 4, 5, 1, 3)
    arrays = {"w": np.ascontiguousarray(blocked)}

    def vector(values: np.ndarray | None) -> np.ndarray:
        assert values is not None
        whole = np.zeros(shape.outputs * bo, np.int32)
        whole[:o] = values
        return whole.reshape(shape.outputs, bo)

    if epilogue.bias == "vector":
        arrays["bias"] = vector(layer.bias)
    elif epilogue.bias is not None:
        arrays["ones"] = np.array([1] + [I8_MAX] * (bi - 1), np.int8)
        arrays["bias_tiles"] = _bias_tiles(vector(layer.bias), epilogue.bias, bi)
    if epilogue.residual_passes and isinstance(epilogue.residual, int):
        left = 1 << (epilogue.residual - epilogue.residual_up)
        multiples = [min(I8_MAX, left - p * I8_MAX) for p in range(epilogue.residual_passes)]
        arrays["identity"] = np.multiply.outer(multiples, np.eye(bo, bi, dtype=np.int64)).astype(np.int8)
    elif epilogue.residual == "vector":
        arrays["residual_scale"] = vector(
            None if layer.residual_shift is None else np.left_shift(1, layer.residual_shift)
        )
    if epilogue.shift == "vector":
        arrays["shift"] = vector(layer.shift)
    return arrays


def _bias_tiles(bias: np.ndarray, passes: int, lanes: int) -> np.ndarray:
    """Numbers as products with 1, 127, 127 …: i8 ``[o, passes, 16 out, 16 in]`` from i32 ``[o, 16]``."""
    tiles = np.zeros((bias.shape[0], passes, bias.shape[1], lanes), np.int64)
    left = bias.astype(np.int64)
    for p in range(passes):
        for k in range(lanes - 1, 0, -1):
            # what is left after the others have taken all that they can
            tiles[:, p, :, k] = np.clip(np.rint(left / I8_MAX), -I8_MAX, I8_MAX)
            left = left - tiles[:, p, :, k] * I8_MAX
        tiles[:, p, :, 0] = np.clip(left, -I8_MAX, I8_MAX)
        left = left - tiles[:, p, :, 0]
    assert not left.any()
    return tiles.astype(np.int8)


@dataclass(eq=False)
class Product:
    """Something that the matrix unit adds to the result.

    Args:
        inputs, weights: what it multiplies, to be brought onto the chip.
        sums: i32, of the result's shape.
    """

    inputs: te.Tensor
    weights: te.Tensor
    sums: te.Tensor


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
        rows, blocks: begin and end.
        inputs_outer: whether tiles of weights stand on the chip by ``[inputs, outputs, r, s]``, else by
            ``[outputs, inputs, r, s]``.
    """
    (kh, kw), (bi, bo) = shape.kernel, shape.blocks
    count, high = blocks[1] - blocks[0], rows[1] - rows[0]
    x = te.placeholder((shape.batch, shape.inputs, shape.height, shape.width, bi), i8, "x")
    data = _data(x, shape, rows)
    weights = te.placeholder((shape.outputs, shape.inputs, kh, kw, bo, bi), i8, "w")
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

    region = (shape.batch, count, high, shape.columns, bo)
    sums = te.compute(region, term, "sums", axis_names=NAMES, tag="conv")
    finish = _Finish(shape, epilogue, rows, blocks, sums)
    out = finish.out
    whole = (shape.batch, shape.outputs, shape.rows, shape.columns, bo)
    if region != whole:
        axes = tuple(te.axis(n, name) for n, name in zip(region, NAMES, strict=True))
        offsets = (0, blocks[0], rows[0], 0, 0)
        out.home = te.Home(
            whole, axes, tuple(as_index(a) + d for a, d in zip(axes, offsets, strict=True)), ((0, 0),) * 5
        )
    main = Product(data, tiles, sums)
    return Part([x, weights, *finish.params, out], main, finish.products, finish.operands, out)


def _data(x: te.Tensor, shape: Shape, rows: Range) -> te.Tensor:
    """The input as the windows of some rows of the result slide over it."""
    (kh, _), (stride, _), (top, left) = shape.kernel, shape.strides, shape.pads

    def element(n: Linear, c: Linear, y: Linear, z: Linear, k: Linear) -> Expr:
        row = (y + rows[0]) * stride - top if kh == 1 else y + (rows[0] * stride - top)
        column = z - left
        inside = all_of([within(row, 0, shape.height), within(column, 0, shape.width)])
        return select(inside, x[n, c, row, column, k], const(0, i8))

    high, wide = shape.rows_read(rows[1] - rows[0]), shape.columns_read(shape.columns)
    extents = (shape.batch, shape.inputs, high, wide, shape.blocks[0])
    return te.compute(extents, element, "data", axis_names=("n", "c", "y", "z", "ci"), tag="pad")


class _Finish:
    """What the sums become.

    Attributes:
        params: further inputs.
        products: what the matrix unit adds.
        operands: further inputs as accumulators.
        out: the result.
    """

    def __init__(self, shape: Shape, epilogue: Epilogue, rows: Range, blocks: Range, sums: te.Tensor) -> None:
        self.shape, self.epilogue = shape, epilogue
        self.rows, self.blocks = rows, blocks
        self.sums = sums
        self.params: list[te.Tensor] = []
        self.products: list[Product] = []
        self.operands: list[te.Tensor] = []
        bias, residual = self._bias(), self._residual()
        shift = self._vector("shift") if epilogue.shift == "vector" else None

        def element(n: Linear, o: Linear, y: Linear, z: Linear, j: Linear) -> Expr:
            value: Expr = sums[n, o, y, z, j]
            if residual is not None:
                # a residual that the ALU moves up comes first, and products go on from there
                added = residual(n, o, y, z, j)
                first = epilogue.residual_up or not epilogue.residual_passes
                value = added + value if first else value + added
            if bias is not None:
                value = value + bias(n, o, y, z, j)
            if epilogue.relu:
                value = binary("max", value, 0)
            if epilogue.most is not None:
                value = binary("min", value, epilogue.most)
            if epilogue.shift is None:
                return value
            value = _rounded(value, epilogue.shift if shift is None else shift[o, j])
            if epilogue.most_stored is not None:
                value = binary("min", value, epilogue.most_stored)
            return cast(binary("min", binary("max", value, I8_MIN), I8_MAX), i8)

        self.out = te.compute(sums.shape, element, "out", axis_names=NAMES)

    def _param(self, name: str, shape: tuple[int, ...], dtype: DType) -> te.Tensor:
        self.params.append(te.placeholder(shape, dtype, name))
        return self.params[-1]

    def _vector(self, name: str) -> te.Tensor:
        """Numbers of channels, as accumulators."""
        first, end = self.blocks
        whole = self._param(name, (self.shape.outputs, self.shape.blocks[1]), i32)
        part = te.compute(
            (end - first, self.shape.blocks[1]), lambda o, j: whole[o + first, j], f"{name}.acc",
            axis_names=("o", "oi"), tag="copy",
        )  # fmt: skip
        self.operands.append(part)
        return part

    def _bias(self) -> Callable[..., Expr] | None:
        passes, (first, end), (bi, bo) = self.epilogue.bias, self.blocks, self.shape.blocks
        if passes is None:
            return None
        if passes == "vector":
            vector = self._vector("bias")
            return lambda n, o, y, z, j: vector[o, j]
        ones = self._param("ones", (bi,), i8)
        whole = self._param("bias_tiles", (self.shape.outputs, passes, bo, bi), i8)
        data = te.compute(ones.shape, lambda k: ones[k], "ones.inp", axis_names=("ci",), tag="copy")
        tiles = te.compute(
            (end - first, passes, bo, bi), lambda o, p, j, k: whole[o + first, p, j, k], "bias_tiles.wgt",
            axis_names=("o", "p", "j", "k"), tag="copy",
        )  # fmt: skip
        p, k = te.reduce_axis(passes, "p"), te.reduce_axis(bi, "k")
        sums = te.compute(
            self.sums.shape,
            lambda n, o, y, z, j: te.sum_of(cast(data[k], i32) * cast(tiles[o, p, j, k], i32), (p, k)),
            "bias_sums",
            axis_names=NAMES,
        )
        self.products.append(Product(data, tiles, sums))
        return lambda *at: sums[at]

    def _residual(self) -> Callable[..., Expr] | None:
        places, shape = self.epilogue.residual, self.shape
        if places is None:
            return None
        (bi, bo), first, row = shape.blocks, self.blocks[0], self.rows[0]
        whole = self._param("residual", (shape.batch, shape.outputs, shape.rows, shape.columns, bo), i8)
        if passes := self.epilogue.residual_passes:
            identity = self._param("identity", (passes, bo, bi), i8)
            data = te.compute(
                self.sums.shape, lambda n, o, y, z, k: whole[n, o + first, y + row, z, k], "residual.inp",
                axis_names=NAMES, tag="copy",
            )  # fmt: skip
            tile = te.compute(
                identity.shape,
                lambda p, j, k: identity[p, j, k],
                "identity.wgt",
                axis_names=("p", "j", "k"),
                tag="copy",
            )
            p, k = te.reduce_axis(passes, "p"), te.reduce_axis(bi, "k")
            sums = te.compute(
                self.sums.shape,
                lambda n, o, y, z, j: te.sum_of(cast(data[n, o, y, z, k], i32) * cast(tile[p, j, k], i32), (p, k)),
                "residual_sums",
                axis_names=NAMES,
            )
            self.products.append(Product(data, tile, sums))
            if not (more := self.epilogue.residual_up):
                return lambda *at: sums[at]
            up = te.compute(
                self.sums.shape, lambda *at: binary("shl", sums[tuple(at)], more), "residual.up", axis_names=NAMES
            )
            self.operands.append(up)
            return lambda *at: up[at]
        added = te.compute(
            self.sums.shape, lambda n, o, y, z, j: cast(whole[n, o + first, y + row, z, j], i32), "residual.acc",
            axis_names=NAMES,
        )  # fmt: skip
        self.operands.append(added)
        scale = self._vector("residual_scale")
        up = te.compute(
            self.sums.shape, lambda n, o, y, z, j: added[n, o, y, z, j] * scale[o, j], "residual.up", axis_names=NAMES
        )
        self.operands.append(up)
        return lambda *at: up[at]


def _rounded(value: Expr, places: Expr | int | str) -> Expr:
    """``floor(value / 2**places + 1/2)``."""
    if isinstance(places, Expr):
        half = binary("and", binary("shr", value, binary("max", places, 1) - 1), 1)
        return select(binary("gt", places, 0), binary("shr", value, places) + half, value)
    assert isinstance(places, int)
    if places == 0:
        return value
    return binary("shr", value, places) + binary("and", binary("shr", value, places - 1), 1)
