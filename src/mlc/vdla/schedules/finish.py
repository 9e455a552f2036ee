"""What becomes of a layer's sums: what is added to them, activation, and the shift to 8 bits.

Adding is cheaper by the matrix unit, which takes one cycle for an accumulator where the ALU takes two, and for which
another unit loads: numbers of channels are products with constant vectors, activations are products with 2^k times the
identity. What that cannot do is the ALU's. Only this, who adds what and when, is decided here; what is computed is what
the operators state (:mod:`mlc.vdla.schedules.stated`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Expr, cast, const
from mlc.ir.index import Linear, as_index
from mlc.ir.types import DType, i8, i32
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.fields import IMMEDIATES
from mlc.vdla.layer import I8_MAX, I8_MIN, Layer
from mlc.vdla.layouts import Blocks, Extents
from mlc.vdla.schedules.stated import stated

Range = tuple[int, int]
Amount = int | Literal["vector"]  # a number, or one a channel
NAMES = ("n", "o", "h", "w", "oi")
PLACES = 6  # the greatest power of two that an i8 holds
PASSES = 8  # products for a bias, at most
LIFT_PASSES = 9  # products for a tensor that is added, at most


@dataclass(frozen=True)
class Lift:
    """How an i8 tensor comes among the accumulators.

    Args:
        places: how many places it is moved up by.
        passes: by how many products with a multiple of the identity; 0 where it is loaded, and widened, as it is.
        up: by how many places the ALU moves it up then.
    """

    places: Amount
    passes: int = 0
    up: int = 0

    @classmethod
    def of(cls, places: np.ndarray, config: VdlaConfig, *, matrix: bool = True) -> Lift:
        """The cheapest way.

        Args:
            places: one number, or one a channel.
            config: the accelerator.
            matrix: whether the matrix unit may do it.
        Raises:
            ScheduleError: it needs an ALU.
        """
        if not (places == places[0]).all():
            return cls("vector")
        amount = int(places[0])
        passes = -(-(1 << amount) // I8_MAX)
        if config.ext_alu and not matrix:
            return cls(amount, 0, amount)
        if config.ext_alu and passes > 2:  # the ALU takes longer than one product more, and less than two
            return cls(amount, 1, amount - PLACES)
        if passes > LIFT_PASSES or not matrix:
            raise ScheduleError(f"a residual that is moved up by {amount} places needs ext_alu")
        return cls(amount, passes)

    @property
    def cycles(self) -> int:
        """Of the matrix unit and of immediate operations of the ALU, for one accumulator."""
        return self.passes + min(1, self.up)

    def constants(self, name: str, blocks: tuple[int, int], vector: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays that it takes.

        Args:
            name: of the tensor.
            blocks: channels of a block, (in, out).
            vector: places, i32 ``[o, 16]``.
        """
        if self.places == "vector":
            return {f"{name}_scale": np.left_shift(1, vector).astype(np.int32)}
        left = 1 << (self.places - self.up)
        multiples = [min(I8_MAX, left - p * I8_MAX) for p in range(self.passes)]
        identity = np.multiply.outer(multiples, np.eye(blocks[1], blocks[0], dtype=np.int64)).astype(np.int8)
        return {f"{name}_identity": identity} if self.passes else {}


@dataclass(frozen=True)
class Epilogue:
    """What happens to sums.

    Args:
        bias: whether i32 numbers of channels are added: by how many products, or by the ALU ("vector").
        residual: how an i8 tensor is added; ``None`` for no tensor.
        relu: whether negative sums become 0.
        most: the greatest sum let through, or ``None``.
        most_stored: the same after the shift, where ``most`` itself is too great for an instruction's constant.
        shift: how many places are dropped; ``None`` where the sums are stored.
    """

    bias: Amount | None = None
    residual: Lift | None = None
    relu: bool = False
    most: int | None = None
    most_stored: int | None = None
    shift: Amount | None = None

    @classmethod
    def of(cls, layer: Layer, config: VdlaConfig, *, matrix: bool = True) -> Epilogue:
        """The epilogue of a layer.

        Args:
            layer: what is asked for.
            config: the accelerator.
            matrix: whether the matrix unit may add the residual.
        Raises:
            ScheduleError: it needs an ALU.
        """
        bias: Amount | None = None
        if layer.bias is not None:
            passes = -(-int(np.abs(layer.bias.astype(np.int64)).max()) // greatest_bias(config)) or 1
            bias = passes if passes <= PASSES else "vector"
        residual = None if layer.residual_shift is None else Lift.of(layer.residual_shift, config, matrix=matrix)
        shift: Amount | None = None
        if layer.shift is not None:
            shift = int(layer.shift[0]) if (layer.shift == layer.shift[0]).all() else "vector"
        most, stored = layer.most, None
        if most is not None and most not in IMMEDIATES and layer.most_stored is not None:
            most, stored = None, int(layer.most_stored[0])
        return cls(bias, residual, layer.relu, most, stored, shift)

    @property
    def passes(self) -> int:
        """Products that add the bias."""
        return self.bias if isinstance(self.bias, int) else 0

    @property
    def vectors(self) -> int:
        """How many numbers of channels stand among the accumulators."""
        lifted = self.residual is not None and self.residual.places == "vector"
        return (self.bias == "vector") + (self.shift == "vector") + lifted

    @property
    def stored_as_it_is(self) -> bool:
        """Whether the ALU does nothing between the sums and their store."""
        lifted = self.residual is not None and (self.residual.up > 0 or not self.residual.passes)
        clipped = self.most is not None or self.most_stored is not None
        return not (self.vectors or lifted or clipped or (self.relu and self.shift is None))

    def constants(self, layer: Layer, blocks: tuple[int, int]) -> dict[str, np.ndarray]:
        """The arrays of every parameter of its own, by name.

        Args:
            layer: whose epilogue it is.
            blocks: channels of a block, (in, out).
        """
        arrays: dict[str, np.ndarray] = {}
        if layer.bias is not None:
            bias = by_blocks(layer.bias, layer, blocks[1])
            if isinstance(self.bias, int):
                arrays["ones"] = np.array([1] + [I8_MAX] * (blocks[0] - 1), np.int8)
                arrays["bias_tiles"] = _bias_tiles(bias, self.bias, blocks[0])
            else:
                arrays["bias"] = bias
        if self.residual is not None and layer.residual_shift is not None:
            arrays |= self.residual.constants("residual", blocks, by_blocks(layer.residual_shift, layer, blocks[1]))
        if self.shift == "vector" and layer.shift is not None:
            arrays["shift"] = by_blocks(layer.shift, layer, blocks[1])
        return arrays


def stored_blocks(layer: Layer, whole: Extents, spread: int = 1) -> dict[str, Blocks]:
    """Where the blocks of a layer's result and of what is added to it are.

    Args:
        layer: whose.
        whole: extents of its result, as schedules see it.
        spread: how many blocks of the result are neighbouring pixels in memory.
    """
    found = {"out": Blocks.of(layer.out.type, _side_by_side(whole, spread))}
    if layer.residual is not None:
        found["residual"] = Blocks.of(layer.residual.type, whole)
    return found


def _side_by_side(whole: Extents, spread: int) -> Extents:
    """Extents of a result whose blocks are neighbouring pixels, if they are."""
    images, blocks, rows, columns, lanes = whole
    return (images, 1, rows, columns * blocks, lanes) if spread > 1 else whole


def greatest_bias(config: VdlaConfig) -> int:
    """The greatest magnitude that one product adds to every pixel, from an input element of 1, 127, 127 …"""
    return I8_MAX * (1 + I8_MAX * (config.block_in - 1))


def by_blocks(values: np.ndarray, layer: Layer, block: int) -> np.ndarray:
    """One number, or one a channel of the result, as i32 ``[o / block, block]`` with zeros for what is no channel."""
    channels = layer.out_shape[1]
    whole = np.zeros(-(-channels // block) * block, np.int32)
    whole[:channels] = values
    return whole.reshape(-1, block)


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
        stored: where the blocks of the inputs are, if they are activations.
    """

    inputs: te.Tensor
    weights: te.Tensor
    sums: te.Tensor
    stored: Blocks | None = None


class Finish:
    """Expressions of what a part of a layer becomes.

    Args:
        epilogue: what happens to the sums.
        whole: extents of the layer's result.
        rows, blocks: the part of it.
        block_in: channels of a block of input.
        spread: how many blocks of the result are neighbouring pixels in memory: 1, or all that there are.
        stored: where the blocks of the result and of activations that are read are, by name; of those left out, as
            schedules see them.

    Attributes:
        region: extents of the part.
        params: what is read, without the sums' own operands.
        products: what the matrix unit adds.
        biases: the one of them that adds biases, with the tiles of all the layer's blocks.
        operands: what else is brought among the accumulators.
    """

    def __init__(
        self,
        epilogue: Epilogue,
        whole: Extents,
        rows: Range,
        blocks: Range,
        block_in: int,
        spread: int = 1,
        stored: Mapping[str, Blocks] | None = None,
    ) -> None:
        self.epilogue = epilogue
        self.stored = stored or {}
        self.whole, self.rows, self.blocks = whole, rows, blocks
        self.block_in, self.spread = block_in, spread
        self.region = whole[0], blocks[1] - blocks[0], rows[1] - rows[0], whole[3], whole[4]
        self.params: list[te.Tensor] = []
        self.products: list[Product] = []
        self.biases: Product | None = None
        self.operands: list[te.Tensor] = []

    def result(self, sums: Callable[..., Expr]) -> te.Tensor:
        """What is stored, given the sums at an index."""
        epilogue, lift = self.epilogue, self.epilogue.residual
        bias = self._bias()
        residual = self.lifted("residual", lift) if lift is not None else None
        shifts = self._vector("shift") if epilogue.shift == "vector" else None

        def element(n: Linear, o: Linear, y: Linear, z: Linear, j: Linear) -> Expr:
            value = sums(n, o, y, z, j)
            if lift is not None and residual is not None:
                # a residual that the ALU moves up comes first, and products go on from there
                terms = (residual(n, o, y, z, j), value)
                value = stated("add", *(terms if lift.up or not lift.passes else reversed(terms)))
            if bias is not None:
                value = stated("add", value, bias(n, o, y, z, j))
            if epilogue.relu:
                value = stated("relu", value)
            if epilogue.most is not None:
                value = stated("clip", value, lo=None, hi=epilogue.most)
            if epilogue.shift is None:
                return value
            places = shifts[o, j] if shifts is not None else const(int(epilogue.shift), i32)
            value = stated("round_shift", value, places)
            if epilogue.most_stored is not None:
                value = stated("clip", value, lo=None, hi=epilogue.most_stored)
            return stated("cast", stated("clip", value, lo=I8_MIN, hi=I8_MAX), to="i8")

        out = te.compute(self.region, element, "out", axis_names=NAMES)
        stored = self.blocks_of("out")
        if self.region != self.whole or self.spread > 1 or stored.layout is not None:
            axes = tuple(te.axis(n, name) for n, name in zip(self.region, NAMES, strict=True))
            begins = (0, self.blocks[0], self.rows[0], 0, 0)
            n, o, y, z, j = (as_index(a) + d for a, d in zip(axes, begins, strict=True))
            if self.spread > 1:
                z, o = z * self.whole[1] + o, as_index(0)
            out.home = te.Home(stored.shape, axes, stored.at(n, o, y, z, j), ((0, 0),) * len(stored.shape))
        return out

    def blocks_of(self, name: str) -> Blocks:
        """Where the blocks of the result, or of an operand of its shape, are."""
        return self.stored.get(name) or Blocks(_side_by_side(self.whole, self.spread if name == "out" else 1))

    def lifted(self, name: str, lift: Lift) -> Callable[..., Expr]:
        """An i8 tensor of the result's shape among the accumulators."""
        bi, bo = self.block_in, self.whole[-1]
        first, row = self.blocks[0], self.rows[0]
        stored = self.blocks_of(name)
        whole = self._param(name, stored.shape, i8)
        if lift.passes:
            identity = self._param(f"{name}_identity", (lift.passes, bo, bi), i8)
            data = te.compute(
                self.region, lambda n, o, y, z, k: whole[stored.at(n, o + first, y + row, z, k)], f"{name}.inp",
                axis_names=NAMES, tag="copy",
            )  # fmt: skip
            tile = te.compute(
                identity.shape, lambda p, j, k: identity[p, j, k], f"{name}.wgt",
                axis_names=("p", "j", "k"), tag="copy",
            )  # fmt: skip
            p, k = te.reduce_axis(lift.passes, "p"), te.reduce_axis(bi, "k")
            found = te.compute(
                self.region,
                lambda n, o, y, z, j: te.sum_of(cast(data[n, o, y, z, k], i32) * cast(tile[p, j, k], i32), (p, k)),
                f"{name}_sums",
                axis_names=NAMES,
            )
            self.products.append(Product(data, tile, found, stored))
        else:
            found = te.compute(
                self.region, lambda n, o, y, z, j: cast(whole[stored.at(n, o + first, y + row, z, j)], i32),
                f"{name}.acc", axis_names=NAMES,
            )  # fmt: skip
            self.operands.append(found)
        if lift.places == "vector":
            scale = self._vector(f"{name}_scale")
            up = te.compute(
                self.region, lambda n, o, y, z, j: found[n, o, y, z, j] * scale[o, j], f"{name}.up", axis_names=NAMES
            )
        elif lift.up:
            up = te.compute(
                self.region,
                lambda *at: stated("shl", found[tuple(at)], const(lift.up, i32)),
                f"{name}.up",
                axis_names=NAMES,
            )
        else:
            return lambda *at: found[at]
        self.operands.append(up)
        return lambda *at: up[at]

    def _param(self, name: str, shape: tuple[int, ...], dtype: DType) -> te.Tensor:
        self.params.append(te.placeholder(shape, dtype, name))
        return self.params[-1]

    def _vector(self, name: str) -> te.Tensor:
        """Numbers of channels, as accumulators."""
        first, end = self.blocks
        whole = self._param(name, (self.whole[1], self.whole[-1]), i32)
        part = te.compute(
            (end - first, self.whole[-1]), lambda o, j: whole[o + first, j], f"{name}.acc",
            axis_names=("o", "oi"), tag="copy",
        )  # fmt: skip
        self.operands.append(part)
        return part

    def _bias(self) -> Callable[..., Expr] | None:
        passes, first, bi, bo = self.epilogue.bias, self.blocks[0], self.block_in, self.whole[-1]
        if passes is None:
            return None
        if passes == "vector":
            vector = self._vector("bias")
            return lambda n, o, y, z, j: vector[o, j]
        ones = self._param("ones", (bi,), i8)
        whole = self._param("bias_tiles", (self.whole[1], passes, bo, bi), i8)
        data = te.compute(ones.shape, lambda k: ones[k], "ones.inp", axis_names=("ci",), tag="copy")
        tiles = te.compute(
            whole.shape, lambda o, p, j, k: whole[o, p, j, k], "bias_tiles.wgt",
            axis_names=("o", "p", "j", "k"), tag="copy",
        )  # fmt: skip
        p, k = te.reduce_axis(passes, "p"), te.reduce_axis(bi, "k")
        sums = te.compute(
            self.region,
            lambda n, o, y, z, j: te.sum_of(cast(data[k], i32) * cast(tiles[o + first, p, j, k], i32), (p, k)),
            "bias_sums",
            axis_names=NAMES,
        )
        self.biases = Product(data, tiles, sums)
        self.products.append(self.biases)
        return lambda *at: sums[at]
