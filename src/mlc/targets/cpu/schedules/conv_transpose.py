"""Transposed convolution: every phase of the output is an ordinary convolution, stored to its interleaved places.

A loop over phases stands outside the loops over positions, so register tiles are those of a convolution with stride 1,
and the output is written once, in its own layout. Rows of windows above and below the input are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.prefetch import LINE
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import assumed, plain, several
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.cost import Product, Tile, all_tiles, bandwidth, fits_registers, unrolled_steps
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_terms import AHEAD, MOST_WRITTEN
from mlc.targets.cpu.schedules.conv_tile import WORTH_BORDER, conv_tile
from mlc.targets.cpu.schedules.halves import worth_halves
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.tile import ask_tile, finish_tile
from mlc.targets.groups.borders import share_inside, without_border
from mlc.targets.groups.group import (
    Group,
    accumulate_in_registers,
    best_divisor,
    border_of,
    inner_layouts,
    is_single,
    size_of,
)
from mlc.targets.groups.layouts import MIN_BLOCKED, in_blocks
from mlc.targets.groups.roles import PhasedConvolution
from mlc.targets.groups.template import Template, constant_at, row_major

ENOUGH_PARTS = 8  # parallel iterations that several threads can share evenly
MOST_ROWS = 4  # of a phase that a tile of vectors along rows holds
MOST_PHASES, MOST_ALL_PHASES = 4, 16  # of a row, and of all axes, that such a tile holds
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)  # tiles of a row in a block
INSIDE = ("columns", "panels")  # loops over tiles in a block of vectors of channels, from outside
MOST_HELD = 8  # rows of a phase that a tile of vectors of channels spans
MOST_PANELS = 16  # tiles of channels that share a block of positions
MOST_STEPS = 16  # input channels that are unrolled there
# Times the first-level cache that the weights of a tile may take, of a phase, whose channels are summed up at once
# (measured on Zen 5: twelve layers 1.00 to 1.30 times as fast as in chunks of half of that cache, 1.09 in the mean;
# images whose weights take up to three times the cache 0.97 to 1.04 times, volumes 1.03 and 1.14).
WHOLE, WHOLE_OF_VOLUMES = 1.5, 3.0
SEEN = 0.35  # part of the time that weights take from the second-level cache which the cost model takes for hidden


def _role(g: Group) -> PhasedConvolution:
    assert isinstance(g.role, PhasedConvolution)
    return g.role


def _product(g: Group, target: Cpu) -> Product:
    """One phase of a sum over channels and taps, as the cost model knows it."""
    anchor = g.anchor
    assert anchor is not None
    columns = -(-anchor.shape[1] // target.lanes)
    *rows, width = anchor.shape[2 + len(_role(g).strides) :]
    depth = size_of([a.hi + 1 for a in anchor.reduce_axes])
    return Product(width, columns, depth, repeats=size_of(rows), whole=True)


def _cycles(g: Group, target: Cpu) -> float:
    product = _product(g, target)
    return product.cycles(conv_tile(product, target), target)


def _chosen_tile(g: Group, target: Cpu) -> Tile:
    """The register tile of a sum over channels and taps, positions of one phase × vectors of output channels."""
    anchor = g.anchor
    assert anchor is not None
    product, width = _product(g, target), anchor.shape[-1]
    default = conv_tile(product, target)
    if (anchor.reduce_axes[0].hi + 1) % target.lanes:  # not chunk after chunk, so every tile reads all of its weights
        default = _tile_of_streams(product, default, target)
    elif default.rows * default.vectors <= target.fma_latency * target.fmas:
        # too few sums, for weights that seem to come from afar for each tile, but do not chunk after chunk (measured on
        # Zen 5, 1024 channels of 4 x 4 pixels: 4 x 4 in 0.86 of the time of 4 x 2)
        default = conv_tile(replace(product, cut=True), target)
    few = sorted({default.vectors, *(k for k in divisors(product.columns) if k <= target.registers // 2)})
    return ask_tile(g.knobs, default, range(1, min(width, target.registers - 2) + 1), few, target)


def _tile_of_streams(product: Product, usual: Tile, target: Cpu) -> Tile:
    """The tile of least cost where the weights of a tile come from the second-level cache for every row of pixels.

    So many bytes hide less of the time that they take than the cost model believes (measured on Zen 5 with 88 channels
    by 104 filters of 3 × 3 taps: 3 × 7 takes 1.31 times as long as 14 × 2, where the model has it ahead by 4 %).

    Args:
        product: what is computed.
        usual: its tile otherwise.
        target: gives registers and caches.
    """
    lines = product.depth * target.vector_bytes  # of one vector's weights

    def cycles(tile: Tile) -> float:
        panel = tile.vectors * lines
        if panel <= target.l1 // 2:
            return product.cycles(tile, target)
        columns = product.columns + -product.columns % tile.vectors
        streamed = product.repeats * -(-product.extent // tile.rows) * columns * lines
        return product.cycles(tile, target) + SEEN * streamed / bandwidth(panel, target)

    whole = [
        t for t in all_tiles(product, target) if t.vectors > 1 and -product.columns % t.vectors <= product.columns // 4
    ]
    return min([usual, *whole], key=cycles)


def transposed_weight_layout(g: Group, target: Cpu) -> Layout:
    """Weights in the order of use: ``[O / tile][phases…][C / chunk][taps of a phase…][chunk of C][tile of O]``.

    Their logical shape is ``[c, o, taps…]``.

    Raises:
        ScheduleError: the configuration is refused.
    """
    role = _role(g)
    shape = role.weights.shape
    rank = len(shape) - 2
    tile = _chosen_tile(g, target)
    columns = tile.vectors * target.lanes
    layout = Layout(tuple(shape)).pad(1, 0, -shape[1] % columns)
    for d, step in enumerate(role.steps):
        layout = layout.pad(2 + 2 * d, 0, -shape[2 + d] % step).split(2 + 2 * d, step)
    layout = layout.split(1, columns).split(0, _chunk(g, tile, target))
    c, o, taps = 0, 2, range(4, 4 + 2 * rank, 2)
    return layout.reorder(o, *(t + 1 for t in taps), c, *taps, c + 1, o + 1)


def transposed_blocked(g: Group, target: Cpu) -> Schedule:
    """Transposed convolution whose output is blocked by channels.

    Raises:
        ScheduleError: the configuration is refused.
    """
    assert g.anchor is not None
    # as convolutions do (measured on Zen 5: 4 × 4 pixels take 0.88 times as long, 8 × 8 × 8 by 3 × 3 × 3 taps 0.79)
    if share_inside(g, columns=False) < WORTH_BORDER:
        g = without_border(g, columns=False)
    role, tile = _role(g), _chosen_tile(g, target)
    assert g.anchor is not None
    extra = inner_layouts(g)
    extra[g.anchor.outputs[0]] = blocked(g.anchor.shape, 1, target.lanes)
    padded = border_of(role.data) is not None
    if padded and role.data.shape[1] % target.lanes == 0:
        extra[role.data] = blocked(role.data.shape, 1, target.lanes)
    p = g.apply(extra)
    assert p.anchor is not None
    s = Schedule(p.outputs)
    pads = p.anchor.inputs[:1] if padded else []
    phases = accumulate_in_registers(s, p.anchor.outputs[0], pads)
    out = p.outputs[0]
    stage = s[out]
    n, o, *space, oi = stage.op.axes
    oo, ov = stage.split(o, tile.vectors)
    of_phase, places = _phase_loops(stage, space, role.strides)
    wo, wi = stage.split(places[-1], tile.rows)
    stage.vectorize(oi)
    channels = p.anchor.reduce_axes[0]
    chunks: Var | None = None
    chunk = _chunk(g, tile, target)
    tiles = size_of([a.hi + 1 for a in (*places[:-1], wo)])
    order = g.knobs.permutation("walk", ("channels", "phases", "rows"))
    shared = g.knobs.discrete("shared", (0, 1, 2, 3, 4), default=0)
    height = places[0].hi + 1
    _, together = g.knobs.factors("height", height, 2, default=(height, 1)) if len(places) > 1 else (height, 1)
    nest = _ask_nest(g, tile, places, oo.hi + 1, target)
    blocks = 1
    if len(places) == 1:  # whose only row may be cut in blocks
        blocks, _ = g.knobs.factors("width", places[0].hi + 1, 2, default=(1, places[0].hi + 1))
    high: list[Var] = []
    if chunk > channels.hi or tiles == 1:
        g.knobs.require((wo.hi + 1) % blocks == 0, "a row cannot be cut evenly into so many blocks")
        if several(blocks):
            first, wo = stage.split(wo, (wo.hi + 1) // blocks)
            places = [first, wo]
        inner, rows = {"columns": wo}, []
        if several(nest.held):
            places[-2], some = stage.split(places[-2], nest.held)
            high = [some]
        if together > 1:
            g.knobs.require((places[0].hi + 1) % together == 0, "rows cannot be cut evenly into such blocks")
            places[0], row = stage.split(places[0], together)
            rows = [row]
        if several(nest.panels):
            oo, panel = stage.split(oo, nest.panels)
            inner["panels"] = panel
        walk = _walked(order, oo, of_phase, places[:-1])
        within = [*rows, *(inner[name] for name in sorted(inner, key=nest.inside.index))]
        stage.reorder(n, *walk, *within, ov, *high, wi, oi)
        task = _share(stage, [n, *walk], shared)
        local = s[phases]
        local.compute_at(stage, within[-1])
        finish_tile(s, out, phases, within[-1], (wi, ov, *high))
    else:
        # as many rows at a time as keep their sums in the first-level cache, beside the weights of a chunk
        single = nest.held * nest.panels * blocks == 1
        g.knobs.require(single, "a tile of a chunk is of one row, and rows are no blocks")
        *planes, row = places[:-1] or [wo]
        row_bytes = size_of([a.hi + 1 for a in {wo, wi, ov, oi} - {row}]) * 4
        block, row = stage.split(row, max(1, target.l1 // 4 // row_bytes) if together == 1 else together)
        walk = [*_walked(order, oo, of_phase, planes), block]
        stage.reorder(n, *walk, *([row, wo] if len(places) > 1 else [row]), ov, wi, oi)
        task = _share(stage, [n, *walk], shared)
        at = block if block in stage.leaves else task
        co, _ = s[phases].split(channels, chunk)
        local, chunks = _chunked(s, phases, co, stage, at, tile)
    rank = len(space)
    *data, lane = local.op.axes
    o = data.pop(-2 * rank - 1)
    c, *taps = local.op.reduce_axes
    taps, whole = _ask_taps(g.knobs, taps)
    co, ci = local.split(c, target.lanes)
    terms = g.knobs.permutation("terms", ("taps", "channels"))
    above = [*taps, co] if terms.index("taps") < terms.index("channels") else [co, *taps]
    # a broadcast serves all vectors at once, and then its register is free again
    local.reorder(*above, ci, *data, o, lane)
    steps = g.knobs.discrete("steps", (1, 2, 4, 8), default=best_divisor(ci.hi + 1, unrolled_steps(tile, target)))
    g.knobs.require((ci.hi + 1) % steps == 0, "a ragged end of the unrolled channels")
    if steps > 1:
        ci, step = local.split(ci, steps)
        local.unroll(step)
    _unroll(local, taps, whole)
    g.knobs.require(
        tile.rows * tile.vectors * nest.held * steps * size_of([a.hi + 1 for a in taps]) * whole <= MOST_WRITTEN,
        "too much is unrolled",
    )
    weights = p.anchor.inputs[-1]
    if weights.op is None:
        ahead = plain(g.knobs.discrete("fetch_weights", AHEAD, default=0))
        if ahead:  # no loop depends on it
            local.prefetch(weights, ci, ci, distance=ahead)
    if chunks is not None and weights.size * weights.dtype.itemsize > target.l2:
        _prefetch_next_chunk(local, weights, chunks, above)
    local.vectorize(lane)
    for a in (o, data[-1], *(data[-2:-1] if high else ())):
        local.unroll(a)
    for t in pads:
        whole = g.knobs.category("copy", ("whole", "task"), default="whole") == "whole"
        if not whole:
            s[t].compute_at(stage, task)
        spread(s[t], target, parallel=whole)
    return s


class _Nest(NamedTuple):
    """How the register tiles of a phase are grouped, where all channels are summed up at once.

    Args:
        held: rows that a tile spans.
        panels: tiles of channels that share a block of positions.
        inside: the loops over ``columns``, tiles of a row, and over ``panels``, from outside.
    """

    held: int
    panels: int
    inside: tuple[str, ...]


def _ask_nest(g: Group, tile: Tile, places: Sequence[Var], columns: int, target: Cpu) -> _Nest:
    """What the knobs say; one of each where they say nothing.

    Args:
        g: the group.
        tile: positions of a row and vectors of channels of a register tile.
        places: the loops over positions of a phase, before they are split but for the last.
        columns: tiles of channels.
        target: has the registers.
    Raises:
        ScheduleError: tiles cannot be grouped so, or their sums do not fit the registers.
    """
    knobs = g.knobs
    held = 1
    if len(places) > 1:
        held = knobs.discrete("held", [k for k in divisors(places[-2].hi + 1) if k <= MOST_HELD], default=1)
    knobs.require(held == 1 or fits_registers(tile.rows * held, tile.vectors, target), "the sums of a tile do not fit")
    assert g.anchor is not None
    most_panels = min(MOST_PANELS, -(-g.anchor.shape[1] // target.lanes))
    panels = knobs.discrete("panels", range(1, most_panels + 1), default=1)
    knobs.require(columns % panels == 0, "tiles of channels cannot be cut evenly into such blocks")
    inside = knobs.permutation("inside", INSIDE) if most_panels > 1 else INSIDE
    return _Nest(held, panels, inside)


def _chunk(g: Group, tile: Tile, target: Cpu) -> int:
    """Input channels at a time; untuned, their weights of a phase and tile take half of the first-level cache.

    All of them, where those of all take little more than that cache: sums that go to memory and back for every chunk
    cost more than weights that come from the next cache.
    """
    assert g.anchor is not None
    c, *taps = g.anchor.reduce_axes
    bytes_each = size_of([t.hi + 1 for t in taps]) * tile.vectors * target.lanes * 4
    blocks, extra = divmod(c.hi + 1, target.lanes)
    if extra:
        return c.hi + 1
    most = WHOLE_OF_VOLUMES if len(taps) > 2 else WHOLE
    if (c.hi + 1) * bytes_each <= most * target.l1:
        few = blocks
    else:
        few = best_divisor(blocks, max(1, target.l1 // 2 // bytes_each // target.lanes))
    return target.lanes * g.knobs.discrete("chunk", divisors(blocks), default=few)


def _chunked(s: Schedule, phases: te.Tensor, chunks: Var, stage: Stage, at: Var, tile: Tile) -> tuple[Stage, Var]:
    """Sum chunk after chunk of the input channels over all positions of a phase.

    Gives the stage of one chunk's sums, and the loop over chunks around it.

    The weights of a chunk stay in the first-level cache for all positions; sums between chunks are in memory.
    """
    partial = s.rfactor(phases, chunks)
    total, local = s[phases], s[partial]
    total.set_scope("local")
    total.compute_at(stage, at)
    _, o, *inner, lane = total.op.axes
    of_phase, places = inner[: len(inner) // 2], inner[len(inner) // 2 :]
    wo, wi = total.split(places[-1], tile.rows)
    total.reorder(*of_phase, *total.op.reduce_axes, *places[:-1], wo, o, wi, lane)
    total.vectorize(lane)
    total.unroll(o)
    total.unroll(wi)
    local.set_scope("register")
    local.compute_at(total, wo)
    return local, total.op.reduce_axes[0]


def _prefetch_next_chunk(local: Stage, weights: te.Tensor, chunks: Var, loops: Sequence[Var]) -> None:
    """While all positions pass by the weights of one chunk, bring those of the next one into the second-level cache.

    Args:
        local: the sums of a tile over a chunk, computed inside ``chunks``.
        weights: what is fetched.
        chunks: the loop over chunks.
        loops: those of ``local`` over taps and blocks of channels; a line or some are fetched in each iteration of the
            innermost one for which there are enough.
    """
    rank = len(loops) - 1
    lines = size_of(weights.shape[-2 - rank :]) * weights.dtype.itemsize // LINE
    shared = [size_of([a.hi + 1 for _, a in local.loops_between(chunks, at) or ()]) for at in loops]
    fitting = [at for at, parts in zip(loops, shared, strict=True) if parts <= lines]
    if fitting:
        local.prefetch(weights, chunks, fitting[-1], level=2)


def transposed_plain(g: Group, target: Cpu) -> Schedule:
    """Transposed convolution in row-major layout: vectors along a row of one phase, a tile of channels × rows × phases
    × such vectors.

    Raises:
        ScheduleError: the configuration is refused.
    """
    role = _role(g)
    p = g.apply({})
    assert p.anchor is not None
    s = Schedule(p.outputs)
    pads = p.anchor.inputs[:1] if border_of(role.data) is not None else []
    phases = accumulate_in_registers(s, p.anchor.outputs[0], pads)
    out = p.outputs[0]
    stage = s[out]
    n, o, *space = stage.op.axes
    of_phase, places = _phase_loops(stage, space, role.strides)
    held_phases, inside = _ask_phases(g.knobs, role.strides)
    channels, vectors = _plain_tile(g, (o.hi + 1) // role.groups, places[-1].hi + 1, inside, target)
    height, together, held = places[0].hi + 1, 1, 1
    if len(places) > 1:
        _, together, held = g.knobs.factors("height", height, 3, default=(height, 1, 1), most={-1: MOST_ROWS})
    g.knobs.require(held * channels * vectors * inside + 2 <= target.registers, "the sums of a tile do not fit")
    order = g.knobs.permutation("walk", ("channels", "phases", "rows", "columns"))
    shared = g.knobs.discrete("shared", range(2 * len(places) + 1), default=0)
    oo, oc = stage.split(o, channels)
    wo, wv = stage.split(places[-1], vectors * target.lanes)
    wu, wi = stage.split(wv, target.lanes)
    outer, fw = of_phase[: len(of_phase) - held_phases], of_phase[len(of_phase) - held_phases :]
    high: list[Var] = []
    if several(held):
        places[0], some = stage.split(places[0], held)
        high = [some]
    loops = {"rows": places[0], "columns": wo, "panels": oo}
    extents = {"rows": height if len(places) > 1 else 1, "columns": -(-(places[-1].hi + 1) // target.lanes)}
    block = _ask_block(g, stage, loops, extents, channels, together)
    oo, wo = loops["panels"], loops["columns"]
    if len(places) > 1:
        places[0] = loops["rows"]
    around = {"channels": [oo], "phases": outer, "rows": places[:-1], "columns": [wo]}
    walk = [a for name in order for a in around[name]]
    stage.reorder(n, *walk, *block, oc, *high, *fw, wu, wi)
    # columns end in a ragged vector, which is cut off where they are a loop of their own
    before = walk[: walk.index(wo)] or [wo]
    task = _share(stage, [n, *before], shared)
    stage.vectorize(wi)
    local, at = s[phases], [*walk, *block][-1]
    local.compute_at(stage, at)
    finish_tile(s, out, phases, at, (oc, *high, *fw, wu))
    *data, row = local.op.axes
    ro, ri = local.split(row, target.lanes)
    _plain_terms(local, g.knobs, [*data, ro, ri])
    local.vectorize(ri)
    first = 2 if held_phases > 1 else 1 + len(space)  # of the axes of phases that a tile holds
    for a in (ro, data[1], *data[first : 2 + len(space)], *(data[2 + len(space) : 3 + len(space)] if high else ())):
        local.unroll(a)
    for t in pads:
        whole = g.knobs.category("copy", ("whole", "task"), default="whole") == "whole"
        if not whole:
            s[t].compute_at(stage, task)
        spread(s[t], target, parallel=whole)
    return s


def _ask_phases(knobs: Knobs, strides: Sequence[int]) -> tuple[int, int]:
    """How many of the last loops over phases a register tile has inside, and how many phases these are.

    Args:
        knobs: are asked: ``row`` is all of a row, which untuned a tile holds where they are few.
        strides: phases along each axis.
    """
    several_phases = [n for n in strides if n > 1]
    most = size_of(several_phases)
    row = strides[-1] if 1 < strides[-1] <= MOST_PHASES else 1
    if row == 1:
        return 0, 1
    whole = len(several_phases) > 1 and most <= MOST_ALL_PHASES
    held = knobs.category("phases", ("one", "row", *(("all",) if whole else ())), default="row")
    if held == "one":
        return 0, 1
    return (1, row) if held == "row" else (len(several_phases), most)


def _ask_block(
    g: Group, stage: Stage, loops: dict[str, Var], extents: Mapping[str, int], channels: int, rows: int
) -> list[Var]:
    """Blocks of tiles, of one each where the knobs say nothing.

    Args:
        g: the group.
        stage: of the result.
        loops: over ``rows``, ``columns`` and ``panels`` of channels; they become those over blocks.
        extents: rows, and vectors of a row, of a phase; 1 where there is no such loop.
        channels: of a register tile.
        rows: of a block.
    Returns:
        the loops over the tiles of a block, in the order that the knobs say.
    Raises:
        ScheduleError: tiles cannot be cut evenly into such blocks.
    """
    assert g.anchor is not None
    knobs, of_group = g.knobs, g.anchor.shape[1] // _role(g).groups
    few = [k for k in divisors(of_group) if k <= MOST_PANELS]
    panels = knobs.discrete("panels", few, default=1)
    knobs.require(of_group % (channels * panels) == 0, "channels cannot be cut evenly into such blocks")
    runs = knobs.discrete("runs", [k for k in SPLITS if k <= extents["columns"]], default=1)
    knobs.require((loops["columns"].hi + 1) % runs == 0, "tiles of a row cannot be cut evenly into such blocks")
    counts = {"rows": rows, "columns": runs, "panels": panels}
    most = {**extents, "panels": len(few)}
    names = tuple(name for name in counts if most[name] > 1)
    order = knobs.permutation("inside", names) if len(names) > 1 else names
    inner: dict[str, Var] = {}
    for name in names:
        if several(counts[name]):
            loops[name], inner[name] = stage.split(loops[name], counts[name])
    return [inner[name] for name in sorted(inner, key=order.index)]


def _plain_terms(local: Stage, knobs: Knobs, tile: Sequence[Var]) -> None:
    """Loops of the sums over channels and taps around a tile: one term after the other where the knobs say nothing."""
    c, *taps = local.op.reduce_axes
    order = knobs.permutation("terms", ("channels", "taps"))
    _, steps = knobs.factors("depth", c.hi + 1, 2, default=(c.hi + 1, 1), most={-1: MOST_STEPS})
    taps, whole = _ask_taps(knobs, taps)
    some: list[Var] = []
    if several(steps):
        c, step = local.split(c, steps)
        local.unroll(step)
        some = [step]
    # where channels are a prime number, steps have a ragged end
    ragged = knobs.discrete("steps", (1, 2, 4, 8), default=1)
    if several(ragged):
        c, step = local.split(c, ragged)
        local.unroll(step)
        some = [step, *some]
    above = [c, *taps] if order.index("channels") < order.index("taps") else [*taps, c]
    local.reorder(*above, *some, *tile)
    _unroll(local, taps, whole)


def _ask_taps(knobs: Knobs, taps: Sequence[Var]) -> tuple[list[Var], bool]:
    """The loops over taps in the order that the knobs say, and whether all are unrolled."""
    if len(taps) > 1 and all(a.hi > 0 for a in taps[-2:]):
        *outer, rows, columns = taps
        if assumed(knobs.category("columns_first", (False, True), default=False)):
            taps = [*outer, columns, rows]
    several_taps = any(a.hi > 0 for a in taps)
    return [*taps], several_taps and knobs.category("unrolled", (False, True), default=False)


def _unroll(local: Stage, taps: Sequence[Var], whole: bool) -> None:
    if assumed(whole):
        for a in taps:
            local.unroll(a)


def _plain_tile(g: Group, per_group: int, width: int, inside: int, target: Cpu) -> Tile:
    """Channels, and vectors of a row of one phase; ``inside`` phases of them share the registers."""
    room = 24 if target.registers >= 32 else 12
    most = -(-width // target.lanes)
    vectors = min(2, most)
    default = Tile(best_divisor(per_group, max(1, room // (vectors * inside))), vectors)
    few = [k for k in divisors(per_group) if k < target.registers]
    wide = range(1, min(most, target.registers // 2) + 1)

    def fits(rows: int, vectors: int, target: Cpu) -> bool:
        return rows * vectors * inside + 2 <= target.registers

    return ask_tile(g.knobs, default, few, wide, target, fits=fits)


def _phase_loops(stage: Stage, space: Sequence[Var], strides: Sequence[int]) -> tuple[list[Var], list[Var]]:
    """Split every spatial axis into positions of a phase and phases; gives the loops over phases (those that there are)
    and the loops over positions."""
    phases, places = [], []
    for a, stride in zip(space, strides, strict=True):
        q = a
        if stride > 1:
            q, f = stage.split(a, stride)
            phases.append(f)
        places.append(q)
    return phases, places


def _walked(order: tuple[str, ...], channels: Var, phases: Sequence[Var], rows: Sequence[Var]) -> list[Var]:
    """Loops around the tiles of a row, in an order."""
    loops = {"channels": [channels], "phases": [*phases], "rows": [*rows]}
    return [a for name in sorted((name for name, some in loops.items() if some), key=order.index) for a in loops[name]]


def _share(stage: Stage, loops: Sequence[Var], most: int = 0) -> Var:
    """Share the outermost loops among threads: the first, and as many as are said, or as give enough parts if 0."""
    first, *more = loops
    shared = [first]
    for k, a in enumerate(more):
        if (k >= most) if most else (k > 0 and size_of([b.hi + 1 for b in shared]) >= ENOUGH_PARTS):
            break
        shared.append(a)
    fused = stage.fuse(*shared)
    stage.parallel(fused)
    return fused


def _fits(g: Group, target: Cpu) -> bool:
    return is_single(g) and isinstance(g.role, PhasedConvolution)


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    role = _role(g)
    k = constant_at(g, site, role.weights)
    if k is None or role.groups > 1 or g.outputs[0].shape[1] < MIN_BLOCKED:
        return row_major(g, site, target)
    if worth_halves(g, target, partial(_cycles, g)):
        target = target.in_half_vectors()
    return in_blocks(g, site, target.lanes, {k: transposed_weight_layout(g, target)})


def _schedule(g: Group, target: Cpu) -> Schedule:
    return transposed_blocked(g, target) if g.outputs[0] in g.layouts else transposed_plain(g, target)


TRANSPOSED_CONVOLUTION = Template("transposed convolution", _fits, _layouts, _schedule)
