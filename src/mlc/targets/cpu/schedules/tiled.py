"""Complex operators over tiled layouts: loops that follow whatever layout the layout space gives (ALT §4.3, §5.2).

The loops of the result are rebuilt over its layout: tiles outside, shared by threads, then the next level of tiles, and
a register tile over the innermost one, a block of rows, columns and channels. The input is read where it lies, in tiles
that hold all of what a tile of results reads; where it has to be put there first, that is a stage of its own, for all
tiles at once or tile by tile. The results of a transposed convolution are computed phase by phase, each like those of a
convolution, or with the phases of a row in one register tile, and stored to their places among the others. So the
loop space is another one for each layout, and its knobs are asked anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import Var, weighted
from mlc.ir.loop import dense_strides
from mlc.ir.site import Site
from mlc.lower.knobs import divisors
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import pinned, several
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_terms import fetch_weights
from mlc.targets.cpu.schedules.injective import spread, spread_rows
from mlc.targets.cpu.schedules.tile import finish_tile
from mlc.targets.cpu.schedules.tiled_tile import MOST_PANELS, best_choice, shape_of
from mlc.targets.groups.group import Group, accumulate_in_registers, best_divisor, size_of
from mlc.targets.groups.template import Template
from mlc.targets.groups.tiling import (
    Tiling,
    arranged,
    ask_terms,
    is_tiled,
    layouts_of,
    levels_of,
    may_be_tiled,
    tiling_of,
)

BANDS = ("blocks", "bands")  # loops around tiles, from outside
MOST_RAGGED = 8  # rows of a tile that need not divide those of an image
MOST_UNROLLED = 2048  # products of a row in vectors: more take a compiler seconds, and code does not stay in a cache


def schedule_tiled(g: Group, target: Cpu) -> Schedule:
    """A sum of products, and what follows it, over the layouts that its configuration says.

    Raises:
        ScheduleError: the configuration is refused.
    """
    return tiled_loops(g, tiling_of(g), target)


def tiled_loops(
    g: Group, tiling: Tiling, target: Cpu, *, passes_rows: bool = False, passes_columns: bool = False,
    in_bands: bool = False,
) -> Schedule:  # fmt: skip
    """The same over layouts that are known, of which the result's may be stored in other dimensions.

    Args:
        g: the group, logical.
        tiling: its layouts.
        target: the processor.
        passes_rows: whether rows of windows that lie in the border are passed over.
        passes_columns: whether columns are, besides, which a tile has code of its own for.
        in_bands: whether tiles that are whole images are cut in bands, which may be around blocks of channels, and
            have ends of their own. Where layouts are searched, smaller tiles do that.
    Raises:
        ScheduleError: the configuration is refused.
    """
    knobs = g.knobs
    usual = best_choice(shape_of(g, tiling, target), target)
    g, inner, copied = arranged(g, tiling, passes_rows=passes_rows, passes_columns=passes_columns)
    p, new = g.applied({**inner, g.outputs[0]: tiling.output})
    assert p.anchor is not None
    s = Schedule(p.outputs)
    copies = [] if copied is None else [new[copied]]
    total = accumulate_in_registers(s, p.anchor.outputs[0], copies)
    out = p.outputs[0]
    stage = s[out]
    lead, levels = levels_of(stage.op.axes, tiling)
    *outside, held = levels
    phases: list[Var] = []
    for k, stride in enumerate(tiling.strides):
        if stride > 1:
            held[k], phase = stage.split(held[k], stride)
            phases.append(phase)
    # a register tile may span several blocks of channels, and a part of the innermost block in space
    panels = _ask_inner(g, "panels", outside[-1][-1], MOST_PANELS, usual.panels)
    lanes = target.lanes_of(out.dtype)
    wide, across = held[-1].hi + 1, held[-2].hi + 1
    vector_axes = [name for name, n in (("channels", wide), ("space", across)) if n > 1] or ["channels"]
    along = knobs.category("vector", vector_axes, default=usual.along)
    # along the other axis a vector is one element, and there may be as many as it has
    most = knobs.discrete("vectors", divisors(wide), default=usual.vectors)
    vectors_held = best_divisor(-(-wide // lanes), most) if along == "channels" else most
    rows: list[int] = []
    for name, a, n in zip(tiling.names, held[:-1], usual.rows, strict=False):
        extent = a.hi + 1
        few = {*divisors(extent), *(range(1, min(extent, MOST_RAGGED) + 1) if in_bands else ())}
        most = knobs.discrete(f"rows.{name}", sorted(few), default=n)
        rows.append(best_divisor(-(-extent // lanes), most) if along == "space" and a is held[-2] else most)
    # of a row's phases, neighbours in memory
    held_phases = "row" if usual.together else "none"
    held_phases = knobs.category("phases.held", ("none", "row"), default=held_phases) if phases else "none"
    together = phases[-1:] if held_phases == "row" and tiling.strides[-1] > 1 else []
    sums = size_of(rows) * vectors_held * panels * size_of([a.hi + 1 for a in together])
    knobs.require(sums <= target.registers, "the sums of a tile do not fit the registers")

    names = tiling.names
    # all loops over tiles, or only the outermost: what is between is seldom another number of parts, and each is a way
    # of its own through this template, since a slice cannot be traced
    every = len(lead) + len(tiling.names)
    shared = pinned(knobs.discrete("shared", (len(lead) + 1, every), default=every))
    order, walk = (_ask_order(g, name, names, usual.outer) for name in ("order", "walk"))
    outside[-1][-1], panel = stage.split(outside[-1][-1], panels)  # of one, too: searches then know one way, not two
    *first, space, channels = [*held]
    lane: Var
    if along == "channels":
        groups, lane = stage.split(channels, min(lanes, wide))
        over, vector = stage.split(groups, vectors_held)
        cut = [stage.split(a, n) for a, n in zip((*first, space), rows, strict=True)]
    else:
        over, vector = stage.split(channels, vectors_held)
        groups, lane = stage.split(space, min(lanes, across))
        cut = [stage.split(a, n) for a, n in zip((*first, groups), rows, strict=True)]
    tiles = dict(zip(names, (*(o for o, _ in cut), over), strict=True))
    tile = [i for _, i in cut]
    registers = [*together, *tile, panel, vector]
    blocks = [dict(zip(names, level, strict=True)) for level in outside]
    over_blocks = [*(blocks[0][n] for n in order), *(level[n] for level in blocks[1:] for n in walk)]
    nest, bands = _ask_bands(g, stage, tiles) if in_bands else (BANDS, [])
    over_tiles = [tiles[n] for n in walk]
    apart = phases[: len(phases) - len(together)]
    around = not apart or knobs.category("phases", ("around", "within"), default="around") == "around"
    nested = [*apart, *over_tiles] if around else [*over_tiles, *apart]
    named = {"blocks": over_blocks, "bands": bands}
    loops = [*lead, *(a for name in sorted(named, key=nest.index) for a in named[name]), *nested]
    stage.reorder(*loops, *registers, lane)
    at = stage.fuse(*loops[:shared])
    stage.parallel(at)
    stage.vectorize(lane)
    inside = [at, *loops[shared:]][-1]
    local = s[total]
    local.compute_at(stage, inside)
    finish_tile(s, out, total, inside, registers)
    terms = _sum_up(g, local, tiling, along, lanes, sums, ordered=in_bands)
    if in_bands:
        over = blocks[0][names[-1]]
        whole = vectors_held * (lanes if along == "channels" else 1) >= wide
        fetch_weights(knobs, local, p.anchor, over if over in stage.leaves else at, terms[0], whole=whole)
    for t in copies:
        # tile by tile, what is copied is still in the cache when it is read
        apart = knobs.category("copy", ("apart", "by tile"), default="apart") == "apart"
        if not apart:
            s[t].compute_at(stage, at)
        short = tiling.data is None and 1 < s[t].op.axes[-1].hi + 1 < target.lanes and len(s[t].op.axes) > 2
        (spread_rows if short else spread)(s[t], target, parallel=apart)
    return s


def _ask_bands(g: Group, stage: Stage, tiles: dict[str, Var]) -> tuple[tuple[str, ...], list[Var]]:
    """Tiles of space in bands along its first axis: untuned one, inside of the loop over blocks of channels.

    Args:
        g: the group, logical.
        stage: of the result.
        tiles: the loops over tiles, by axes; the first becomes that over the tiles of a band.
    Returns:
        the order of the loops over ``blocks`` and over ``bands``, and the latter loop.
    Raises:
        ScheduleError: tiles cannot be cut evenly into bands.
    """
    first, extent = next(iter(tiles)), g.outputs[0].shape[2]
    nest = g.knobs.permutation("nest", BANDS)
    bands, _ = g.knobs.factors("bands", extent, 2, default=(1, extent))
    count = tiles[first].hi + 1
    g.knobs.require(count % bands == 0, "tiles of space cannot be cut evenly into so many bands")
    if not several(bands):
        return nest, []
    band, tiles[first] = stage.split(tiles[first], count // bands)
    return nest, [band]


def _ask_inner(g: Group, name: str, axis: Var, most: int, usual: int) -> int:
    """How much of a loop is inside, a divisor of it."""
    return g.knobs.discrete(name, [n for n in divisors(axis.hi + 1) if n <= most], default=usual)


def _ask_order(g: Group, name: str, names: Sequence[str], usual: str) -> Sequence[str]:
    """The order of loops over tiles: channels (or columns) inside of all others, or outside.

    Each order is a way of its own through this template, and describing a way costs a search as much as describing all
    configurations that take it. Orders of rows and columns among each other would be three times as many, and more.
    """
    *space, channels = names
    outside = g.knobs.category(name, ("space", "channels"), default=usual)
    return names if outside == "space" else [channels, *space]


def _sum_up(g: Group, local: Stage, tiling: Tiling, along: str, lanes: int, sums: int, *, ordered: bool) -> list[Var]:
    """The sums of a register tile: terms outside, in the order of the knobs, some of them unrolled; gives the loops."""
    *data, space, channels = local.op.axes
    panel = data.pop(tiling.lead + tiling.levels * len(tiling.names) - 1)
    # a number that all lanes share meets all vectors that it is multiplied by, and then its register is free again
    if along == "channels":
        vector, lane = local.split(channels, min(lanes, channels.hi + 1))
        tile = [*data, space, panel, vector]
    else:
        vector, lane = local.split(space, min(lanes, space.hi + 1))
        tile = [panel, channels, *data, vector]
    # what is loaded one by one is written out so, like products
    each = lane.hi + 1 if along == "space" and not _lie_together(local.op, space) else 1
    loops, _ = ask_terms(g.knobs, local, tiling, sums * each, MOST_UNROLLED, ordered=ordered)
    local.reorder(*loops, *tile, lane)
    local.vectorize(lane)
    for a in tile:
        local.unroll(a)
    return loops


def _lie_together(op: te.Compute, axis: Var) -> bool:
    """Whether what a sum reads of its data for neighbours along an axis are neighbours in memory, too."""
    data = op.inputs[0]
    read = [x for body in op.bodies for x in loads(body) if x.source is data]
    strides = dense_strides(data.shape)
    return all(weighted(x.indices, strides).coefficient(axis) == 1 for x in read)


def _fits(g: Group, target: Cpu) -> bool:
    return is_tiled(g.knobs) and may_be_tiled(g)


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    found = layouts_of(g, site)
    made = replace(g, layouts={**g.layouts, **{g.inputs[k]: layout for k, layout in found.asked.items()}})
    g.knobs.expected = best_choice(shape_of(made, tiling_of(g), target), target).cycles
    return found


TILED = Template("tiled layouts", _fits, _layouts, schedule_tiled)
