"""Convolution in row-major layout whose vectors run over the ends of rows, and of images.

Rows that are no whole vectors leave lanes empty: half of them where images are small. Here results are one run over
all rows of a copy (:mod:`~mlc.targets.groups.joined`), and a register tile is output channels × vectors of the run. Its
sums go to memory, from where rows are taken for what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlc.ir.index import Var
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import assumed, pinned, several
from mlc.targets.cpu.cost import HIDDEN, TILE_OVERHEAD, USABLE, Tile, balance, bandwidth, step_cycles
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_terms import fetch_weights, terms_of_sum
from mlc.targets.groups.group import Group, accumulate_in_registers, size_of
from mlc.targets.groups.joined import Rows, joined, may_be_joined, rows_of
from mlc.targets.groups.roles import Convolution

ENOUGH_TASKS = 8  # parts of the work that a few threads can share evenly
COPIED = 0.3  # cycles an element of the copy (measured on Zen 5: 0.2 to 0.33)
WALK = ("columns", "panels")  # loops over register tiles, from outside
SPLITS = (1, 2, 4, 8, 16)  # register tiles of a run in a block
MOST_SHARES = 16  # parts of a group's channels, and tiles of channels whose sums are stored before any is read


@dataclass(frozen=True)
class Joined:
    """What a convolution over runs chooses.

    Args:
        rows: how they follow one another.
        block: rows of results that are one run; all where images are joined.
        tile: channels and vectors of the register tile.
        vectors: of a run.
        cycles: that it is expected to take, without the copy.
    """

    rows: Rows
    block: int
    tile: Tile
    vectors: int
    cycles: float


def join(g: Group, target: Cpu) -> Joined | None:
    """The run of least cycles; nothing where a group has none, or the processor takes operations in order.

    Loads that lie in two lines of a cache delay such a one.
    """
    if target.in_order or target.terms > 1 or not may_be_joined(g):
        return None
    return min(_choices(g, target), key=lambda found: found.cycles)


def _choices(g: Group, target: Cpu) -> Iterator[Joined]:
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    n, filters, height, width = anchor.shape
    channels = filters // role.groups
    threads = min(target.cores, ENOUGH_TASKS)
    for images in (False, True) if n > 1 else (False,):
        rows = rows_of(g, images=images)
        for block in [height] if images else divisors(height):
            vectors = -(-_extent(rows, block, width, target) // target.lanes)
            runs = role.groups * (n // rows.images) * (height // block)
            # rows that windows of this block and the next one see are copied for both
            again = COPIED * role.weights.shape[1] * role.data.shape[-1] * rows.reach[0] * role.strides[0]
            for tile in _tiles(channels, vectors, target):
                cycles = _cycles(g, rows, vectors, tile, target) + (again if block < height else 0)
                yield Joined(rows, block, tile, vectors, runs * cycles * balance(runs, threads))


def _extent(rows: Rows, block: int, width: int, target: Cpu) -> int:
    """Results of a run: whatever takes rows out of it reads the last one in whole vectors, or it is less than one."""
    whole = width if width <= target.lanes else width + -width % target.lanes
    return rows.extent((rows.images - 1) * rows.height + block, whole)


def _tiles(channels: int, vectors: int, target: Cpu) -> Iterator[Tile]:
    for rows in divisors(channels):
        for wide in range(1, min(vectors, target.registers // 2) + 1):
            if rows * wide + wide + 1 <= target.registers:
                yield Tile(rows, wide)


def _cycles(g: Group, rows: Rows, vectors: int, tile: Tile, target: Cpu) -> float:
    """Cycles of a run: a vector of the copy lies in two lines of the cache, and sums go to memory and back."""
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    whole, rest = divmod(vectors, tile.vectors)
    passes = anchor.shape[1] // role.groups // tile.rows
    depth = size_of([a.hi + 1 for a in anchor.reduce_axes])
    compute = 0.0
    for wide, times in ((tile.vectors, whole), (rest, 1)):
        if wide and times:
            loads = (2 * wide + tile.rows) / target.loads * 1.05
            step = max(step_cycles(tile.rows, wide, target), loads)
            compute += times * (depth * step + TILE_OVERHEAD + 2 * tile.rows * wide)
    copied = role.weights.shape[1] * size_of(role.strides) * (vectors * target.vector_bytes + 4 * rows.beyond)
    load = copied / bandwidth(copied + tile.rows * vectors * target.vector_bytes, target)
    return passes * (max(compute, load) + (1 - HIDDEN) * min(compute, load))


def conv_joined(g: Group, plan: Joined, tile: Tile, target: Cpu) -> Schedule:
    """Convolution over runs.

    Args:
        g: a group whose output is row-major.
        plan: how.
        tile: channels and vectors of the register tile.
        target: gives the vector width.
    """
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    rows, lanes = plan.rows, target.lanes
    height, width = anchor.shape[-2:]
    blocks = divisors(height) if rows.images == 1 else (height,)
    high = pinned(g.knobs.discrete("block", blocks, default=plan.block))
    vectors = -(-_extent(rows, high, width, target) // lanes)
    g.knobs.require(tile.vectors <= vectors, "a run has fewer vectors than a tile")
    excess = vectors * lanes - rows.extent((rows.images - 1) * rows.height + high, width)
    source = role.data if role.data.op is None else role.data.op.inputs[0]
    lies = g.layouts.get(source)
    g, copy = joined(g, rows, excess)
    p, new = g.applied({})
    assert p.anchor is not None
    copy, sums = new.get(copy, copy), p.anchor.outputs[0]
    s = Schedule(p.outputs)
    total = s.cache_write(sums, "register")
    accumulate_in_registers(s, total, [copy, sums])
    out = p.outputs[0]
    stage = s[out]
    n, o, h, w = stage.op.axes
    ot, oc = stage.split(o, tile.rows)
    across, lane = stage.split(w, min(lanes, width))
    stage.vectorize(lane)
    images, lead = ([n], []) if rows.images > 1 else ([], [n])
    block, h = stage.split(h, high)
    group, ot = stage.split(ot, (ot.hi + 1) // role.groups)
    cut = _ask_cut(g.knobs, plan, tile, anchor.shape[1] // role.groups, vectors)
    outer = {"images": lead, "groups": [group], "blocks": [block]}
    if several(cut.shares):
        part, ot = stage.split(ot, (ot.hi + 1) // cut.shares)
        outer["groups"].append(part)
    inner: list[Var] = []
    if several(cut.panels):
        ot, panel = stage.split(ot, cut.panels)
        inner = [panel]
    shared = _ask_order(g.knobs, outer, anchor.shape[0] if lead else 1, role.groups, len(blocks))
    stage.reorder(*shared, ot, *images, *inner, oc, h, across, lane)
    at = stage.fuse(*shared)
    stage.parallel(at)
    stored, local = s[sums], s[total]
    stored.set_scope("local")
    stored.compute_at(stage, ot)
    _, so, q = stored.op.axes
    stored.align(q, lanes)
    qo, qi = stored.split(q, tile.vectors * lanes)
    qu, lane = stored.split(qi, lanes)
    walk = []
    if several(cut.runs):
        first, qo = stored.split(qo, cut.runs)
        walk = [first]
    loops = {"columns": qo}
    if several(cut.panels):
        loops["panels"], so = stored.split(so, tile.rows)
    walk += [loops[name] for name in sorted(loops, key=cut.walk.index)]
    stored.reorder(*walk, so, qu, lane)
    stored.vectorize(lane)
    stored.unroll(so)
    stored.unroll(qu)
    local.compute_at(stored, walk[-1])
    ln, lo, lq = local.op.axes
    local.align(lq, lanes)
    lu, llane = local.split(lq, lanes)
    terms = terms_of_sum(local, g.knobs, tile)
    local.reorder(*terms, ln, lo, lu, llane)
    local.vectorize(llane)
    local.unroll(lu)
    local.unroll(lo)
    turned = lies is not None and bool(lies.core.primitives)
    channels = role.weights.shape[1]
    inside = not turned or channels % lanes == 0 or lanes % channels == 0
    if inside:  # else groups begin anywhere in a block, and all blocks are turned beforehand
        inside = g.knobs.category("copy", ("inside", "apart"), default="inside") == "inside"
    if lies is None and lead:
        # the channels of a group follow one another, where all rows of an image are copied (measured on Zen 5: up to
        # 1.08 times as fast)
        far = source.size * source.dtype.itemsize > USABLE * target.l2
        whole = inside and high == height
        fetch = g.knobs.category("fetch", (False, True), default=far and whole)
        g.knobs.require(whole or not fetch, "what the next task copies lies apart, or is there already")
        if whole and assumed(fetch):
            local.prefetch(new.get(source, source), at, terms[0], level=2)
    fetch_weights(g.knobs, local, p.anchor, ot, terms[0])
    if inside:
        s[copy].compute_at(stage, at)
    _copy(s[copy], rows, target, turned=turned, parallel=not inside)
    return s


class _Cut(NamedTuple):
    """How the register tiles of a run are grouped.

    Args:
        shares: parts of a group's channels, each of which is a task.
        panels: tiles of channels whose sums are stored before what follows reads them.
        runs: tiles of a run in a block.
        walk: the loops over ``columns``, tiles of a block, and over ``panels``, from outside.
    """

    shares: int
    panels: int
    runs: int
    walk: tuple[str, ...]


def _ask_cut(knobs: Knobs, plan: Joined, tile: Tile, channels: int, vectors: int) -> _Cut:
    """What the knobs say; one of each where they say nothing.

    Args:
        knobs: are asked.
        plan: the run where they say nothing.
        tile: channels and vectors of the register tile.
        channels: of results of a group.
        vectors: of a run.
    Raises:
        ScheduleError: tiles cannot be grouped so.
    """
    few = [k for k in divisors(channels) if k <= MOST_SHARES]
    shares = knobs.discrete("shares", few, default=1)
    panels = knobs.discrete("panels", few, default=1)
    runs = knobs.discrete("runs", [k for k in SPLITS if k <= plan.vectors], default=1)
    walk = knobs.permutation("tiles", WALK) if len(few) > 1 else WALK
    knobs.require(
        channels % (tile.rows * shares * panels) == 0, "tiles of channels cannot be cut evenly into such parts"
    )
    knobs.require(-(-vectors // tile.vectors) % runs == 0, "tiles of a run cannot be cut evenly into such blocks")
    return _Cut(shares, panels, runs, walk)


def _ask_order(knobs: Knobs, loops: Mapping[str, Sequence[Var]], images: int, groups: int, blocks: int) -> list[Var]:
    """The loops that threads share, of several images in the order that the knobs say.

    Args:
        knobs: are asked.
        loops: by name, in the order that they have where the knobs say nothing.
        images, groups: how many there are.
        blocks: of how many sizes blocks of rows may be.
    """
    there = tuple(name for name, n in zip(loops, (images, groups, blocks), strict=True) if n > 1)
    order = knobs.permutation("order", there) if images > 1 and len(there) > 1 else there
    names = [*(name for name in loops if name not in there), *sorted(there, key=order.index)]
    return [a for name in names for a in loops[name]]


def _copy(stage: Stage, rows: Rows, target: Cpu, *, turned: bool, parallel: bool) -> None:
    """Loops of the copy, row by row: all that is made of a row of the input while it is there.

    Args:
        stage: the copy.
        rows: how they follow one another.
        target: gives the vector width.
        turned: whether the input lies in blocks of channels, so many of which are turned to rows in registers.
        parallel: whether threads share it.
    """
    n, c, a, b, row, column = stage.op.axes
    vectors, lane = stage.split(column, target.lanes)
    images, some = [], []
    if rows.images > 1:
        image, row = stage.split(row, rows.height)
        images = [image]
    if turned:
        c, inner = stage.split(c, target.lanes)
        some = [inner]
    stage.reorder(n, c, *images, row, a, b, vectors, *some, lane)
    stage.vectorize(lane)
    for axis in (a, b, *(some or [vectors])):
        stage.unroll(axis)
    if parallel:
        stage.parallel(stage.fuse(n, c))
