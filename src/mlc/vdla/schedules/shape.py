"""Extents of a product, as far as choosing its schedule goes: read from its expressions."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from mlc.ir.index import Linear, Var
from mlc.vdla.config import VdlaConfig
from mlc.vdla.layer import Convolution
from mlc.vdla.schedules.finish import Epilogue
from mlc.vdla.schedules.product import COLUMNS, ROWS, Sums


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
        groups: of blocks, beside each other; the blocks of each read the same blocks of the input. Tiles of weights are
            zero between channels of different groups.
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
    def of(cls, layer: Convolution, config: VdlaConfig, sums: Sums | None = None) -> Shape:
        """The extents of a layer on an accelerator.

        Args:
            layer: what is asked for.
            config: the accelerator.
            sums: its product's expressions, where they are at hand.
        Raises:
            ScheduleError: the epilogue needs an ALU, or its operator states no product.
        """
        sums = sums or Sums.of(layer, config)
        high, wide = (_Window.along(sums, d) for d in (ROWS, COLUMNS))
        spans = sums.spans()
        lengths = {end - begin for (begin, end), _ in spans}
        # where groups of channels cut across blocks, every block is a group of its own
        outputs = lengths.pop() if len(lengths) == 1 else 1
        epilogue = Epilogue.of(layer, config)
        batch, blocks, rows, columns, _ = sums.result.shape
        return cls(
            batch, max(end - begin for _, (begin, end) in spans), outputs, sums.stored.extents[ROWS],
            sums.stored.extents[COLUMNS], rows, columns, (high.taps, wide.taps), (high.stride, wide.stride),
            (high.dilation, wide.dilation), sums.pads, layer.shift is not None,
            (config.block_in, config.block_out), epilogue.passes,
            0 if epilogue.residual is None else epilogue.residual.cycles, epilogue.vectors, blocks // outputs,
        )  # fmt: skip

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def biases_once(self) -> bool:
        """Whether the biases of all groups of blocks are loaded together.

        Transfers of a tile or two take longer to begin than to arrive. No more than the tiles of two groups: that many
        are in the memory anyway while loads run ahead.
        """
        return self.groups > 1 and self.groups * self.passes <= 2 * self.inputs * self.taps

    @property
    def macs(self) -> int:
        """Cycles that the product takes at one tile a cycle."""
        return self.batch * self.rows * self.columns * self.inputs * self.outputs * self.taps

    def rows_read(self, rows: int) -> int:
        """Rows of input, padding included, that stand on the chip for so many rows of the result."""
        stride, reach = self.strides[0], (self.kernel[0] - 1) * self.dilations[0]
        # rows between those that windows touch are left out
        step = gcd(stride, self.dilations[0] if self.kernel[0] > 1 else 0)
        return ((rows - 1) * stride + reach) // step + 1

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


@dataclass(frozen=True)
class _Window:
    """How windows move along one dimension of the input.

    Args:
        taps: of a window, ``dilation`` apart.
        stride: from one window to the next.
    """

    taps: int
    dilation: int
    stride: int

    @classmethod
    def along(cls, sums: Sums, d: int) -> _Window:
        at, op = sums.load.indices[d], sums.result.op
        assert op is not None
        taps = [r for r in op.reduce_axes if _step(at, r)]
        stride = _step(at, op.axes[d]) or 1
        return cls(prod(r.hi + 1 for r in taps), max((_step(at, r) for r in taps), default=1), stride)


def _step(ix: Linear, v: Var) -> int:
    return ix.coefficient(v) or 0
