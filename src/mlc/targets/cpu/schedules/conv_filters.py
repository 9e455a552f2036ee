"""Grouped convolutions whose result lies in blocks of a divisor of the filters of a group.

Groups that are no whole vectors of channels are computed along the pixels of a row (:mod:`conv_plain`), and short rows
leave most of a vector empty. Blocks of filters may fill it better: so a search over layouts has found (ALT, figure 9,
GRP-4: 2.25 times as fast). The loops are those of tiled layouts, without what of windows lies in the border,
and the cost model compares both.
"""

from __future__ import annotations

from dataclasses import replace

from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.lower.knobs import divisors
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_plain import joins, plain_cycles
from mlc.targets.cpu.schedules.conv_tile import (
    WIDE_VECTOR,
    WORTH_BORDER,
    WORTH_BORDER_OF_VOLUMES,
    is_wide,
)
from mlc.targets.cpu.schedules.tiled_tile import MOVED, Choice, best_choice, shape_of
from mlc.targets.groups.borders import share_inside
from mlc.targets.groups.group import Group, size_of
from mlc.targets.groups.layouts import in_layout
from mlc.targets.groups.roles import Convolution
from mlc.targets.groups.template import input_at
from mlc.targets.groups.tiling import blocks_of_filters, may_be_tiled

# part of the cycles of rows that blocks of filters may take at most: those that make whole vectors, and others, which
# whatever follows element by element or slides a window over reads in pieces
WORTH_FILTERS, WORTH_ODD = 0.95, 0.92
FILLED = 4  # a block fills this part of a vector at least
# cycles an element of copies of the input (measured on Zen 5 with 60 to 912 channels of 14 × 14 to 56 × 56 pixels):
SURROUNDED = 0.25  # by a border, for blocks
TURNED, TURNED_PIXELS = 0.9, 0.3  # for rows, where it lay in blocks; of windows, and of single pixels that all count
TURNED_WHOLE = 0.2  # for runs, and for rows by a wide core without strides: squares of channels and pixels


def worthy_block(g: Group, site: Site, target: Cpu) -> int:
    """Filters of the blocks that are expected to be faster than rows; 0 where none are, or there are no groups.

    A result that has to be row-major is converted, and its blocks have to be worth that. What the group's own layouts
    are does not count: it is asked again when they are known, and answers alike.
    """
    g = replace(g, layouts={})
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    filters = anchor.shape[1] // role.groups
    if role.groups == 1 or not may_be_tiled(g) or size_of(anchor.shape) == 0:
        return 0
    read = role.data if role.data.op is None else role.data.op.inputs[0]
    at = input_at(g, read)
    lies = None if at is None else site.inputs[at].layout
    moved = 2 * 4 * size_of(anchor.shape) / MOVED if site.row_major else 0.0
    # whoever makes blocks of channels surrounds them by zeros if asked
    moved += SURROUNDED * size_of(role.data.shape) if role.data.op is not None and lies is None else 0.0
    cycles: dict[int, float] = {}
    for block in divisors(filters):
        if target.lanes <= FILLED * block <= FILLED * target.lanes:
            rows, columns = passes_over(g, block, target)
            share = share_inside(g, columns=columns) if rows else 1.0
            cycles[block] = share * _choice(g, block, target).cycles + moved
    block = min(cycles, key=cycles.__getitem__, default=0)
    worth = WORTH_FILTERS if block and target.lanes % block == 0 else WORTH_ODD
    return block if block and cycles[block] < worth * _rows_and_copies(g, lies, target) else 0


def _choice(g: Group, block: int, target: Cpu) -> Choice:
    """The register tile of blocks of so many filters, without copies."""
    return best_choice(replace(shape_of(g, blocks_of_filters(g, block), target), moved=0), target)


def passes_over(g: Group, block: int, target: Cpu) -> tuple[bool, bool]:
    """Whether blocks of so many filters are computed without the rows of windows that lie in the border; and columns.

    Rows take a test a row of a window, where a tile is of one row of results, and a core to hide it: a wide one
    (measured on Zen 5: 1.1 to 1.2 times as fast, in vectors of 8 0.975 to 1.04), or one that multiplies a vector a
    cycle (on Zen 4: 1.05). Columns take code of their own for each column of a window, where a tile is a whole row (on
    Zen 4: 1.10; not measured on others).
    """
    rank, single = len(g.outputs[0].shape) - 2, target.fmas == 1 and target.vector_bytes >= WIDE_VECTOR
    least = WORTH_BORDER if rank < 3 else WORTH_BORDER_OF_VOLUMES
    if not (single or is_wide(target)) or share_inside(g, columns=single) >= least:
        return False, False
    *high, long = _choice(g, block, target).rows
    whole = single and long == g.outputs[0].shape[-1]
    return all(n == 1 for n in high) and (whole or share_inside(g, columns=False) < least), whole


def _rows_and_copies(g: Group, lies: Layout | None, target: Cpu) -> float:
    """Cycles of the row-major convolution, with the copy of its input where it needs one.

    Args:
        g: the convolution.
        lies: the layout of its input.
        target: the processor.
    """
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    strided = any(k > 1 for k in role.strides)
    if role.single_pixels:  # as one axis, which is turned in whole vectors
        copied, turned = (anchor.shape[0], role.data.shape[1], *anchor.shape[2:]), TURNED if strided else TURNED_PIXELS
    else:
        squares = joins(g, target) is not None or (is_wide(target) and not strided)
        copied, turned = role.data.shape, TURNED_WHOLE if squares else TURNED
    moved = 0.0 if lies is None else turned
    return plain_cycles(g, target) + moved * size_of(copied)


def in_filters(g: Group, site: Site, k: int, block: int) -> LayoutChoice:
    """The choice of blocks of filters.

    Args:
        g: a grouped convolution.
        site: where it stands.
        k: which of its inputs weights are.
        block: filters of a block.
    """
    weights = blocks_of_filters(g, block).weights
    assert weights is not None
    return in_layout(g, site, blocked(g.outputs[0].shape, 1, block), block, {k: weights})


def block_of(g: Group) -> int:
    """Filters of the blocks that the result of a grouped convolution lies in; 0 where it does not."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    layout = g.layouts.get(g.outputs[0])
    if role.groups == 1 or layout is None or not may_be_tiled(g):
        return 0
    block = layout.core.physical_shape[-1]
    filters = anchor.shape[1] // role.groups
    return block if filters % block == 0 and layout.core == blocked(g.outputs[0].shape, 1, block) else 0
