"""The schedule of a part of a product: tiles of pixels and channels, what is loaded where, how finely.

The loops of a part, with the places where operands are loaded::

    <part>
    for n: for <pixels: ho, wo> and <blocks: oo>, in either order
        <pixels> <blocks>                       # right inside the loops that an operand depends on
        for co:                                 # chunks of input channels
            <chunk>
            GEMM over the chunk and the tile
        STORE the tile
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.vdla.config import VdlaConfig
from mlc.vdla.intrinsics import ACC, INP, WGT, gemm
from mlc.vdla.layouts import Blocks
from mlc.vdla.schedules.finish import Epilogue, Finish, Product, Range
from mlc.vdla.schedules.product import Sums


class At(StrEnum):
    """Where an operand is loaded."""

    PART = "part"  # once, before everything
    OWN = "own"  # inside the loops that it depends on
    CHUNK = "chunk"  # for every chunk of input channels


class Threads(StrEnum):
    """What virtual threads share."""

    NONE = "none"
    ROWS = "rows"
    BLOCKS = "blocks"


@dataclass(frozen=True)
class Choice:
    """How a part is computed.

    Args:
        rows, blocks: of the result, begin and end.
        tile: rows, columns, blocks of output channels and blocks of input channels of one step; none need divide
            what it cuts.
        blocks_outer: whether loops over blocks of channels stand around those over pixels.
        data_at, tiles_at: where input and weights are loaded.
        inputs_outer: whether tiles of weights stand on the chip by input channels first.
        piece: blocks of output channels whose weights one load brings; 0 for as many as there are.
        lead: blocks of output channels of each of the GEMMs that the first becomes, so that it need not wait for all
            its weights; 0 leaves it whole.
        slots: how many places tiles of accumulators take in turns, at most.
        threads: whether two virtual threads take turns at the tiles of rows or of blocks.
        biases_once: whether one load brings the biases of all the layer's blocks; they stay for the parts that follow.
    """

    rows: Range
    blocks: Range
    tile: tuple[int, int, int, int]
    blocks_outer: bool = False
    data_at: At = At.OWN
    tiles_at: At = At.OWN
    inputs_outer: bool = False
    piece: int = 0
    lead: int = 0
    slots: int = 2
    threads: Threads = Threads.NONE
    biases_once: bool = False


@dataclass(eq=False)
class Segment:
    """A scheduled part.

    Args:
        params: of its function: what is read, then the result.
        schedule: what becomes that function.
        slots: how many places each memory's buffers take in turns; what is not named goes round the whole memory.
    """

    params: list[te.Tensor]
    schedule: Schedule
    slots: dict[str, int]


@dataclass(eq=False)
class LayerPlan:
    """A layer's schedule: parts to be emitted one after the other.

    Args:
        segments: the scheduled parts.
        arrays: the values of every parameter of theirs that is constant, by name.
        structural: whether tokens are to follow from the structure of loops and threads, not from conflicts.
    """

    segments: list[Segment]
    arrays: dict[str, np.ndarray]
    structural: bool = False


def schedule_part(
    product: Sums,
    epilogue: Epilogue,
    choice: Choice,
    config: VdlaConfig,
    slots: dict[str, int],
    stored: Mapping[str, Blocks] | None = None,
) -> Segment:
    """Schedule the part of a layer that a choice is about.

    Args:
        product: what is summed up.
        epilogue: what happens to the sums.
        choice: the part, and how it is computed.
        config: the accelerator.
        slots: how many places each memory's buffers take in turns.
        stored: see :class:`~mlc.vdla.schedules.finish.Finish`.
    Raises:
        ScheduleError: the choice does not fit the loops.
    """
    main = product.part(choice.rows, choice.blocks, choice.inputs_outer)
    whole = product.result.shape
    finish = Finish(epilogue, whole, choice.rows, choice.blocks, config.block_in, product.spread, stored)
    result = finish.result(lambda *at: main.sums[at])
    s = Schedule([result])
    high, wide, many, _ = choice.tile
    out = s[result]
    n, o, h, w, j = out.axes
    ho, hi = out.split(h, high)
    wo, wi = out.split(w, wide)
    oo, oi = out.split(o, many)
    threads: list[Var] = []
    if choice.threads is not Threads.NONE:
        if choice.threads is Threads.ROWS:
            ho, thread = out.split(ho, 2)
        else:
            oo, thread = out.split(oo, 2)
        out.vthread(thread)
        threads.append(thread)
    outer = [n, oo, ho, wo, *threads] if choice.blocks_outer else [n, ho, wo, oo, *threads]
    out.reorder(*outer, oi, hi, wi, j)

    sums = s[main.sums]
    sums.set_scope(ACC)
    sums.compute_at(out, outer[-1])
    chunk = _order_sums(sums, choice, config)
    data, tiles = s[main.inputs], s[main.weights]
    data.set_scope(INP)
    tiles.set_scope(WGT)
    _attach(data, choice.data_at, out, outer[-1] if choice.threads is Threads.ROWS else wo, sums, chunk)
    _attach(tiles, choice.tiles_at, out, outer[-1] if choice.threads is Threads.BLOCKS else oo, sums, chunk)
    if choice.piece:
        piece, _ = tiles.split(tiles.axes[1 if choice.inputs_outer else 0], piece_of(choice))
        tiles.pragma(piece, "dma_copy", 2 if choice.inputs_outer and choice.tile[3] > 1 else 1)

    for added in finish.products:
        add_product(s, added, out, outer[-1], config, tiles_once=added is finish.biases and choice.biases_once)
    for t in finish.operands:
        s[t].set_scope(ACC)
        s[t].compute_at(out, outer[-1])
    order_buffers(s, finish, main)
    return Segment([product.x, product.weights, *finish.params, result], s, slots)


def tile_sizes(n: int) -> list[int]:
    """Values of a tile size: all small ones, and of the greater ones the smallest for every number of tiles."""
    return sorted({*range(1, min(n, 16) + 1), *tile_steps(n)})


def tile_steps(n: int) -> list[int]:
    """The smallest tile size for every number of tiles."""
    return sorted({-(-n // k) for k in range(1, n + 1)})


def piece_of(choice: Choice) -> int:
    """Blocks whose weights one load brings: as many as asked for or a few more, so that all loads are alike.

    Where they were not, each would bring a single block, and take longer to begin than to arrive.
    """
    many = min(choice.tile[2], choice.blocks[1] - choice.blocks[0])
    return next((n for n in range(choice.piece, many) if many % n == 0), many)


def _order_sums(sums: Stage, choice: Choice, config: VdlaConfig) -> Var:
    """Order the loops of the product, and make its innermost ones the intrinsic; gives the loop over chunks."""
    n, o, h, w, j = sums.axes
    c, *taps, k = sums.reduce_axes
    chunk, ci = sums.split(c, choice.tile[3])
    sums.reorder(chunk, n, o, ci, *taps, h, w, j, k)
    if choice.lead:
        sums.pragma(o, "gemm_lead", choice.lead)
    sums.tensorize(j, gemm(config))
    return chunk


def add_product(
    s: Schedule, product: Product, out: Stage, at: Var, config: VdlaConfig, *, tiles_once: bool = False
) -> None:
    """Compute what is added to a tile right after it; its weights are loaded for the tile, or all before everything."""
    sums = s[product.sums]
    n, o, h, w, j = sums.axes
    *passes, k = sums.reduce_axes
    sums.reorder(*passes, n, o, h, w, j, k)  # sums outside: clearing is a nest of its own, and the rest one product
    sums.set_scope(ACC)
    sums.tensorize(j, gemm(config))
    s[product.inputs].set_scope(INP)
    s[product.weights].set_scope(WGT)
    for t in (product.inputs, product.sums) if tiles_once else (product.inputs, product.weights, product.sums):
        s[t].compute_at(out, at)


def order_buffers(s: Schedule, finish: Finish, *products: Product) -> None:
    """Let buffers on the chip have the orders of what they are loaded from, or stored to, in DRAM.

    What lies side by side in both is one transfer.

    Args:
        s: the schedule.
        finish: what its sums become.
        products: what is summed up, beside what that adds.
    """
    every = [*products, *finish.products]
    for product in every:
        if product.stored is not None:
            _order(s[product.inputs], product.stored)
            if product.stored.run < product.stored.extents[1]:
                s[product.inputs].split(s[product.inputs].op.axes[1], product.stored.run)
    for t in (*(product.sums for product in every), *finish.operands):
        if len(t.shape) == len(finish.whole):
            _order(s[t], finish.blocks_of("out"))


def _order(stage: Stage, stored: Blocks) -> None:
    axes = [stage.op.axes[d] for d in stored.order]
    if axes != list(stage.op.axes):
        stage.storage_order(*axes)


def _attach(stage: Stage, at: At, out: Stage, own: Var, sums: Stage, chunk: Var) -> None:
    if at is At.OWN:
        stage.compute_at(out, own)
    elif at is At.CHUNK:
        stage.compute_at(sums, chunk)
