"""A layer's product as its operator states it, over what lies in memory: in blocks of channels, part by part.

The operator says what an element is (``mlc.ops``), layouts say where elements lie, and the rest is rewriting:
``relayout`` gives the sums over blocks, ``part_of`` takes some rows and blocks of them, and ``over_blocks`` makes them
sums over whole blocks of input, with tiles of weights that are zero where a block has no channel or one of another
group. Tiles are expressions of constants; code generation evaluates and packs them in the order of their loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, replace_loads, substitute_vars
from mlc.ir.index import Linear, Var, as_index, substitute
from mlc.ir.layout import Layout, blocked
from mlc.lower.contraction import over_blocks
from mlc.lower.part import part_of
from mlc.lower.relayout import relayout
from mlc.vdla.config import VdlaConfig
from mlc.vdla.layer import Convolution
from mlc.vdla.layouts import Blocks
from mlc.vdla.schedules.finish import Product, Range

BLOCK, ROWS, COLUMNS, LANE = 1, 2, 3, 4  # dimensions of activations as schedules see them; the first one are images


def image_layout(shape: Sequence[int], block: int) -> Layout:
    """``[n, c/16, h, w, 16]`` for activations ``[n, c, h, w]``; rows of a matrix are the pixels of an image.

    That is how schedules see them, wherever they lie (:class:`~mlc.vdla.layouts.Blocks`).
    """
    if len(shape) == 4:
        return blocked(shape, 1, block)
    rows, columns = shape
    layout = Layout((rows, columns)).pad(1, 0, -columns % block).split(1, block)
    return layout.split(0, 1).split(0, rows).reorder(0, 3, 1, 2, 4)


@dataclass(frozen=True, eq=False)
class Sums:
    """A layer's product over physical activations and row-major weights.

    Args:
        x: the input as it lies.
        weights: as the operator takes them.
        data: the input as windows slide over it, with zeros around it, ``[n, c/16, h, w, 16]``.
        result: sums, i32 ``[n, o/16, h, w, 16]``.
        stored: where the blocks of the input are.
        pads: zeros above the input and at its left.
        spread: how many blocks of the result are neighbouring pixels in memory.
    """

    x: te.Tensor
    weights: te.Tensor
    data: te.Tensor
    result: te.Tensor
    stored: Blocks
    pads: tuple[int, int]
    spread: int = 1

    @classmethod
    def of(cls, layer: Convolution, config: VdlaConfig) -> Sums:
        """Express a layer's product.

        Raises:
            ScheduleError: its operator states no product of a window.
        """
        node = layer.product
        x, w = (te.placeholder(v.type.shape, v.type.dtype, name) for v, name in zip(node.inputs, "xw", strict=True))
        (y,) = node.op.express([x, w], node.attrs)  # type: ignore[misc]
        if y.op is None or len(y.op.inputs) != 2:
            raise ScheduleError(f"{node.op.name} is no product of two operands")
        data = next(t for t in y.op.inputs if t is not w)
        whole = _whole_blocks(x, data, config.block_in)
        y = _reading(y.op, data, whole)
        (stored,) = whole.op.inputs  # type: ignore[union-attr]
        (read,) = loads(whole.op.bodies[0])  # type: ignore[union-attr]
        top, left = (-ix.const for ix in read.indices[2:]) if len(read.indices) == 4 else (0, 0)
        usual = image_layout(stored.shape, config.block_in)
        blocks = Blocks.of(layer.x.type, usual.physical_shape)
        layouts = {
            stored: blocks.layout or usual, whole: image_layout(whole.shape, config.block_in),
            y: image_layout(y.shape, config.block_out),
        }  # fmt: skip
        (result,), new = relayout([y], layouts)
        return cls(new[stored], w, new[whole], result, blocks, (top, left), layer.spread)

    @property
    def load(self) -> Load:
        """How a term reads the input."""
        assert self.result.op is not None
        return next(ld for ld in loads(self.result.op.bodies[0]) if ld.source is self.data)

    @property
    def axes(self) -> tuple[Var, ...]:
        assert self.result.op is not None
        return self.result.op.axes

    def part(self, rows: Range, blocks: Range, inputs_outer: bool) -> Product:
        """The sums of some rows and blocks of output channels.

        Args:
            rows, blocks: begin and end.
            inputs_outer: whether tiles of weights stand on the chip by input channels first, else by output channels.
        """
        whole = [(0, n) for n in self.result.shape]
        whole[BLOCK], whole[ROWS] = blocks, rows
        sums = part_of(self.result, whole, sparse=(ROWS,), whole=(LANE,))
        assert sums.op is not None
        o, j = sums.op.axes[BLOCK], sums.op.axes[LANE]
        data = next(t for t in sums.op.inputs if t.op is not None)
        moving = {v for ld in loads(sums.op.bodies[0]) if ld.source is data for v in _channel(ld).vars()}
        taps = [r for r in sums.op.reduce_axes if r not in moving]

        def order(c: Var, k: Var) -> list[Var]:
            return [*((c, o) if inputs_outer else (o, c)), *taps, j, k]

        total, tiles = over_blocks(sums, data, (BLOCK, LANE), order, "tiles")
        return Product(data, tiles, total, self.stored)

    def spans(self) -> list[tuple[Range, Range]]:
        """Runs of blocks of the result that read the same blocks of the input: both ranges, in order."""
        o, last = self.axes[BLOCK], self.stored.extents[BLOCK] - 1

        def read(k: int) -> Range:
            lo, hi = substitute(self.load.indices[BLOCK], {o: k}).bounds()
            return lo, min(hi, last) + 1

        found = []
        for inputs, run in groupby(range(o.hi + 1), key=read):
            blocks = list(run)
            found.append(((blocks[0], blocks[-1] + 1), inputs))
        return found


def _channel(ld: Load) -> Linear:
    channel: Linear = ld.indices[BLOCK] * ld.source.shape[LANE] + ld.indices[LANE]
    return channel


def _whole_blocks(x: te.Tensor, data: te.Tensor, block: int) -> te.Tensor:
    """What windows slide over, in whole blocks of channels; what is beyond the last channel counts for nothing.

    Args:
        x: the input.
        data: the same with zeros around it, or itself, which then becomes a copy.
        block: channels of a block.
    """
    stored = te.placeholder(_rounded(x.shape, block), x.dtype, x.name)
    if data.op is None:
        return te.compute(stored.shape, lambda *at: stored[at], "data", tag="copy")
    (body,) = data.op.bodies

    def element(*at: Linear) -> Expr:
        here = substitute_vars(body, dict(zip(data.op.axes, at, strict=True)))  # type: ignore[union-attr]
        # of a single channel, an expression names no axis of channels: in a whole block there is one again
        return replace_loads(here, lambda ld: Load(stored, (ld.indices[0], as_index(at[1]), *ld.indices[2:])))

    names = [a.name for a in data.op.axes]
    return te.compute(_rounded(data.shape, block), element, "data", axis_names=names, tag=data.op.tag)


def _rounded(shape: Sequence[int], block: int) -> tuple[int, ...]:
    return shape[0], -(-shape[1] // block) * block, *shape[2:]


def _reading(op: te.Compute, old: te.Tensor, new: te.Tensor) -> te.Tensor:
    """A compute's result with one tensor in the place of another."""

    def swap(ld: Load) -> Expr:
        return Load(new, ld.indices) if ld.source is old else ld

    bodies = tuple(replace_loads(b, swap) for b in op.bodies)
    (t,) = te.finish(te.Compute(op.name, op.axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs))
    return t
