"""Loops of a direct convolution in blocked layouts, as a plan says.

A block of pixels and a panel of channel vectors outside, a register tile of pixels × channel vectors inside, whose sums
go through all input channels at once or a chunk of them at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.prefetch import LINE
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import assumed, several
from mlc.targets.cpu.cost import Tile, balance
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_blocking import Blocking
from mlc.targets.cpu.schedules.conv_runs import put_side_by_side
from mlc.targets.cpu.schedules.injective import pick, spread
from mlc.targets.cpu.schedules.tile import finish_tile, hold_terms, instruction_loops, multiply_lanes
from mlc.targets.groups.group import Group, accumulate_in_registers, border_of, inline_rest, size_of

PREFETCHED_FROM = 4  # register tiles that share a panel of weights while the next one is fetched
FEW_TASKS = 8  # below which threads have more loops to share than those over blocks
MANY_TASKS = 16  # to which they come then
EVEN = 1.1  # times their share that two threads may wait for the slower one
# Lines of weights that are fetched at once; more wait for each other, and those that are used now behind them (measured
# on Zen 5, as fast to 1.05 times in images, and in volumes 1.02 to 1.35 times as with all at the start of a tile).
BURST = 8


@dataclass(frozen=True)
class ConvPlan:
    """What a blocked convolution chooses.

    Args:
        flat: whether pixels are one axis.
        tile: pixels and channel vectors of the register tile.
        cut: for the caches.
        block: input channels that weights are packed by.
        taps_first: whether a sum goes through all blocks of input channels tap by tap, and not block by block.
        steps: instructions for each sum that one iteration of the innermost loop takes.
        panels: register tiles of output channels that share a block of pixels.
        walk: the loops over tiles within a block of pixels, from outside: ``panels``, ``rows`` and ``tiles`` of a row.
        shared: how many of these threads share beside the blocks, and one more; as many as pay if 0.
        prefetch: whether the weights of the next tile are fetched while these are used.
        ahead: how many bytes ahead those of this tile are fetched.
        rows: whether the rows of windows that lie in the border are passed over.
        columns: whether their columns are, too.
        run: terms of a window that is a run of neighbours, in whole instructions; 0 where windows are none.
        picked: pixels of a row, where a copy is made of rows as they lie, of what a stride leaves of them; else 0.
    """

    flat: bool
    tile: Tile
    cut: Blocking
    block: int
    taps_first: bool
    steps: int
    panels: int
    walk: tuple[str, ...]
    shared: int
    prefetch: bool
    ahead: int
    rows: bool
    columns: bool
    run: int
    picked: int = 0


def _order(stage: Stage, groups: Var, space: list[Var], cut: Blocking) -> list[Var]:
    """The outer loops over channels and blocks of pixels; ``space`` keeps the loops inside a block."""
    if cut.block > space[cut.axis].hi:
        return [groups]
    block, space[cut.axis] = stage.split(space[cut.axis], cut.block)
    return [block, groups] if cut.pixels_first else [groups, block]


def chunked_loops(p: Group, plan: ConvPlan, target: Cpu, dot: Dot | None, *, copied: bool) -> Schedule:
    """Chunks of input channels outside, pixels inside; the sums of some channels stay in the cache meanwhile."""
    tile, cut = plan.tile, plan.cut
    assert p.anchor is not None
    assert cut.chunk is not None
    conv = p.anchor.outputs[0]
    s = Schedule(p.outputs)
    out = p.outputs[0]
    copies = p.anchor.inputs[:1] if copied else []
    if conv in s.outputs:
        conv = s.cache_write(conv, "local")
    else:
        s[conv].set_scope("local")
    outer, _ = s[conv].split(s[conv].op.reduce_axes[0], cut.chunk * (1 if dot is None else dot.terms))
    partial = s.rfactor(conv, outer)
    inline_rest(s, copies)
    stage, sums, local = s[out], s[conv], s[partial]
    local.set_scope("register")
    n, o, *space, oi = stage.op.axes
    oo, om = stage.split(o, tile.vectors * plan.panels)
    outside = [n, *_order(stage, oo, space, cut)]
    stage.reorder(*outside, om, *space, oi)
    at = stage.fuse(*outside)
    stage.parallel(at)
    stage.vectorize(oi)
    sums.compute_at(stage, at)
    n, o, *space, oi = sums.op.axes
    (k,) = sums.op.reduce_axes
    panels: list[Var] = []
    if plan.panels > 1:
        panel, o = sums.split(o, tile.vectors)
        panels = [panel]
    wo, wi = sums.split(space[-1], tile.rows)
    walk = _walked(plan, panels, space[:-1], wo)
    sums.reorder(k, n, *walk, wi, o, oi)
    for a in (wi, o, *([wo] if plan.columns else [])):
        sums.unroll(a)
    sums.vectorize(oi)
    local.compute_at(sums, walk[-1])
    above = _tile_body(s, local, len(space), plan, target, dot)
    weights = p.anchor.inputs[-1]  # the only one where a tensor is convolved with itself
    if plan.panels == 1 and not plan.taps_first and assumed(plan.prefetch):
        # chunks follow one another in memory, the last of some channels too
        local.prefetch(weights, k, _in_passing(cut.chunk, walk, above, plan, target), level=2)
    _fetch_input(local, p.anchor, walk[-1], above, plan, target)
    for t in copies:
        if plan.picked:
            pick(s[t], plan.picked, target)
        else:
            spread(s[t], target)
    return s


def blocked_loops(p: Group, plan: ConvPlan, target: Cpu, dot: Dot | None, *, copied: bool) -> Schedule:
    """All input channels of a register tile at once."""
    flat, tile, cut = plan.flat, plan.tile, plan.cut
    assert p.anchor is not None
    conv = p.anchor.outputs[0]
    s = Schedule(p.outputs)
    out = p.outputs[0]
    copies = p.anchor.inputs[:1] if copied else []
    if plan.run:
        copies += _border_of_rows(copies[0], out, plan)
    conv = accumulate_in_registers(s, conv, copies)
    stage = s[out]
    n, o, *space, oi = stage.op.axes
    oo, ov = stage.split(o, tile.vectors)
    panels: list[Var] = []
    if plan.panels > 1:
        oo, panel = stage.split(oo, plan.panels)
        panels = [panel]
    outside = [n, *_order(stage, oo, space, cut)]
    exact = (min(cut.block, space[-1].hi + 1) if flat else space[-1].hi + 1) % tile.rows == 0
    wo, wi = stage.split(space[-1], tile.rows)
    many = flat and wo.hi + 1 >= PREFETCHED_FROM
    by_image = _by_image(copies, plan, target)
    each = exact and not plan.columns and not (many and plan.prefetch)
    if together := 0 if by_image or each else _tiles_of_a_task(outside, wo, plan):
        tiles, wo = stage.split(wo, together)
        outside = [tiles, *outside]
    walk = _walked(plan, panels, space[:-1], wo)
    stage.reorder(*outside, *walk, ov, wi, oi)
    weights = p.anchor.inputs[-1]  # the only one where a tensor is convolved with itself
    if plan.columns:
        stage.unroll(wo)
    shared = _shared(p, plan, outside, walk, wo, exact=exact, each=each)
    image = n if by_image else None
    at = stage.fuse(*(a for a in shared if a is not image))
    stage.parallel(at)
    stage.vectorize(oi)
    local = s[conv]
    inside = at if walk[-1] in shared else walk[-1]
    local.compute_at(stage, inside)
    finish_tile(s, out, conv, inside, (wi, ov))
    above = _tile_body(s, local, len(space), plan, target, dot)
    if many and wo not in shared and assumed(plan.prefetch):
        local.prefetch(weights, at, above[0], level=2)
    _fetch_input(local, p.anchor, inside, above, plan, target)
    for t in p.inputs:
        if t not in p.anchor.inputs and t.shape == out.shape and not _is_near(t, target):
            stage.prefetch(t, inside, ov, pieces=ov)
    if plan.run:
        rows = s[copies.pop(0)]
        rows.compute_at(stage, at)
        put_side_by_side(rows)
    for t in copies:
        if image is not None:
            s[t].compute_at(stage, image)
        if plan.picked:
            pick(s[t], plan.picked, target)
        else:
            spread(s[t], target)
    return s


def _by_image(copies: Sequence[te.Tensor], plan: ConvPlan, target: Cpu) -> bool:
    """Whether what is copied is so image by image, since that of a batch would not stay in the second-level cache.

    Measured on Zen 5: 16 images of 224 x 224 pixels by 32 filters of 3 x 3 take 0.52 of the time.
    """
    return not plan.run and any(t.shape[0] > 1 and not _is_near(t, target) for t in copies)


def _border_of_rows(rows: te.Tensor, out: te.Tensor, plan: ConvPlan) -> list[te.Tensor]:
    """The image with its border that rows are copied from, where it has to be there as a whole.

    Which rows lie in the border is decided by cutting the loop over them, unless threads share another loop as well.
    """
    assert rows.op is not None
    n, o, *space, _, _ = out.shape
    several = [k for k in (n, o // (plan.tile.vectors * plan.panels), *space) if k > 1]
    return [t for t in rows.op.inputs if border_of(t) is not None and len(several) > 1]


def _walked(plan: ConvPlan, panels: list[Var], rows: list[Var], tiles: Var) -> list[Var]:
    """The loops over register tiles in the order that the plan says."""
    loops = {"panels": panels, "rows": rows, "tiles": [tiles]}
    names = sorted((name for name, some in loops.items() if some), key=plan.walk.index)
    return [a for name in names for a in loops[name]]


def _shared(
    p: Group, plan: ConvPlan, outside: list[Var], walk: list[Var], tiles: Var, *, exact: bool, each: bool
) -> list[Var]:
    """The loops that threads share: those over blocks, and of those within a block as many as the plan says.

    Untuned, these are all but the tiles of a row, and these as well where there are few others, or where pixels are one
    axis.

    Args:
        p: has the knobs.
        plan: how far to go.
        outside: loops over blocks.
        walk: loops within a block.
        tiles: the one of these over tiles of a row.
        exact: whether the last tile is a whole one; others cannot be shared, since their ends are cut off first.
        each: whether tiles can be shared one by one: no weights are fetched ahead for several of them.
    """
    at = walk.index(tiles)
    if plan.shared:
        found = outside + [a for k, a in enumerate(walk) if k + 1 < plan.shared]
        whole = exact and not plan.columns
        p.knobs.require(whole or tiles not in found, "tiles that threads share have to be whole, and a loop")
        return found
    found = outside + walk[:at]
    tasks = size_of([a.hi + 1 for a in found])
    if plan.flat and tasks == 1:  # the last tile may be a shorter one where no other loop is shared
        return found + walk[at : at + 1]
    return found + walk[at:] if each and (plan.flat or tasks < FEW_TASKS) else found


def _tiles_of_a_task(outside: Sequence[Var], tiles: Var, plan: ConvPlan) -> int:
    """How many tiles of a block of pixels a task takes, where blocks and channels are too few for threads; else 0.

    Tiles that threads share one by one, as with one block of all channels, are tasks by themselves (:func:`_shared`).
    Few tiles stay together, since each task reads the weights of its channels, unless two threads could not share the
    blocks evenly (measured on two cores of a Zen 4: five blocks of 7 x 7 pixels take 0.83 of the time, an even number
    as long as before or more).
    """
    others, count = size_of([a.hi + 1 for a in outside]), tiles.hi + 1
    if not plan.flat or plan.shared or plan.panels > 1 or not 1 < others < FEW_TASKS:
        return 0
    most = count // PREFETCHED_FROM
    if most < 2 and balance(others, 2) > EVEN:
        most = count
    parts = min(-(-MANY_TASKS // others), most)
    return -(-count // parts) if parts > 1 else 0


def _tile_body(s: Schedule, local: Stage, rank: int, plan: ConvPlan, target: Cpu, dot: Dot | None) -> list[Var]:
    """Reduction outside, register tile inside: pixels × channel vectors unrolled, and some input channels with them.

    Where columns in the border are passed over, the taps of a row are unrolled as well: which pixels of the tile they
    add to is known then.

    Args:
        s: the schedule.
        local: the stage that sums up, its last axes being channel vectors, ``rank`` spatial ones, and lanes.
        rank: of space.
        plan: how many instructions for each sum are unrolled, and whether taps are.
        target: gives the vector width.
        dot: sums up several input channels at once.
    Returns:
        the loops over taps and blocks of input channels, the outermost first.
    """
    *outer, oi = local.op.axes
    outer, o, space = outer[: -rank - 1], outer[-rank - 1], outer[-rank:]
    c, *taps = local.op.reduce_axes
    co, ci = local.split(c, plan.block)
    ci, pixels, lanes = instruction_loops(local, ci, space[-1], oi, dot)
    above = [*taps, co] if plan.taps_first else [co, *taps]
    local.reorder(*above, ci, *outer, *space[:-1], pixels, o, *lanes)
    if plan.columns:
        local.unroll(taps[-1])
        local.pragma(taps[-1], "reload")  # pixels that taps share have no registers beside the sums
    if several(plan.steps):
        ci, step = local.split(ci, plan.steps)
        local.unroll(step)
    if plan.ahead:
        _fetch_ahead(local, [*(a for a in above if not (plan.columns and a is taps[-1])), ci], plan.ahead)
    multiply_lanes(local, lanes[0], dot)
    local.unroll(o)
    local.unroll(pixels)
    if dot is None and several(plan.steps):
        hold_terms(s, local, ci, 0, c, step.hi + 1, target)
    return above


def _in_passing(chunk: int, walk: Sequence[Var], above: Sequence[Var], plan: ConvPlan, target: Cpu) -> Var:
    """The loop over terms whose iterations fetch the next chunk of weights, a few lines at a time.

    Args:
        chunk: input channels, as instructions count them.
        walk: the loops over tiles.
        above: those over blocks of input channels, and over taps.
        plan: has the tile.
        target: gives the vectors.
    """
    taps = size_of([a.hi + 1 for a in above[1:]])
    lines = chunk * taps * plan.tile.vectors * target.rows * target.vector_bytes // LINE
    shares = size_of([a.hi + 1 for a in walk])
    for a in above:
        shares *= a.hi + 1
        if lines <= BURST * shares:
            return a
    return above[-1]


def _fetch_input(local: Stage, conv: te.Compute, tiles: Var, above: Sequence[Var], plan: ConvPlan, target: Cpu) -> None:
    """Fetch what the next tile of pixels reads of an input that is larger than the second-level cache.

    Each block of channels is a stream of a few lines a tile, which processors do not follow by themselves (measured on
    Zen 5, 16 images of 56 x 56 pixels, from memory: 144 channels to 24 take 0.52 of the time).

    Args:
        local: the stage that sums up.
        conv: the convolution, of physical shapes.
        tiles: the loop inside which a tile is computed.
        above: loops over blocks of channels and taps.
        plan: the order of the latter.
        target: has the cache.
    """
    data = conv.inputs[0]
    if data.op is not None or _is_near(data, target) or len(data.shape) != len(conv.shape):
        return
    if assumed(plan.block == data.shape[-1]):  # a whole block: what is read of a row lies together
        row = above[-1 if plan.taps_first else -2]
        local.prefetch(data, tiles, row, pieces=row)


def _is_near(t: te.Tensor, target: Cpu) -> bool:
    """Whether a tensor may be in the second-level cache."""
    return t.size * t.dtype.itemsize <= target.l2


def _fetch_ahead(local: Stage, loops: Sequence[Var], distance: int) -> None:
    """Fetch weights so many bytes before they are used, in the innermost of some loops over the terms of a sum."""
    inner = [a for a in loops if a.hi > 0][-1:]
    weights = local.op.inputs[-1]
    for a in inner:
        times = size_of([b.hi + 1 for b in loops])
        each = weights.size * weights.dtype.itemsize // weights.shape[0] // times
        local.prefetch(weights, a, a, distance=-(-distance // each), level=1)
