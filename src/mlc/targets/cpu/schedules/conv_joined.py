"""Convolution in row-major layout whose vectors run over the ends of rows, and of images.

Rows that are no whole vectors leave lanes empty: half of them where images are small. Here results are one run over
all rows of a copy (:mod:`~mlc.targets.groups.joined`), and a register tile is output channels × vectors of the run. Its
sums go to memory, from where rows are taken for what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlc.ir.index import Var
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import pinned
from mlc.targets.cpu.cost import HIDDEN, TILE_OVERHEAD, USABLE, Tile, balance, bandwidth, step_cycles
from mlc.targets.cpu.record import Cpu
from mlc.targets.groups.group import Group, accumulate_in_registers, size_of
from mlc.targets.groups.joined import Rows, joined, may_be_joined, rows_of
from mlc.targets.groups.roles import Convolution

ENOUGH_TASKS = 8  # parts of the work that a few threads can share evenly
MOST_STEPS = 8  # terms of a sum that are unrolled
COPIED = 0.3  # cycles an element of the copy (measured on Zen 5: 0.2 to 0.33)


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
    stage.reorder(*lead, group, block, ot, *images, oc, h, across, lane)
    at = stage.fuse(*lead, group, block)
    stage.parallel(at)
    stored, local = s[sums], s[total]
    stored.set_scope("local")
    stored.compute_at(stage, ot)
    _, so, q = stored.op.axes
    stored.align(q, lanes)
    qo, qi = stored.split(q, tile.vectors * lanes)
    qu, lane = stored.split(qi, lanes)
    stored.reorder(qo, so, qu, lane)
    stored.vectorize(lane)
    stored.unroll(so)
    stored.unroll(qu)
    local.compute_at(stored, qo)
    ln, lo, lq = local.op.axes
    local.align(lq, lanes)
    lu, llane = local.split(lq, lanes)
    terms = terms_of_sum(local, g.knobs)
    local.reorder(*terms, ln, lo, lu, llane)
    local.vectorize(llane)
    local.unroll(lu)
    local.unroll(lo)
    # the channels of a group follow one another, where all rows of an image are copied (measured on Zen 5: up to 1.08
    # times as fast)
    far = source.size * source.dtype.itemsize > USABLE * target.l2
    if far and lies is None and lead and high == height:
        local.prefetch(new.get(source, source), at, terms[0], level=2)
    turned = lies is not None and bool(lies.core.primitives)
    channels = role.weights.shape[1]
    inside = not turned or channels % lanes == 0 or lanes % channels == 0
    if inside:  # else groups begin anywhere in a block, and all blocks are turned beforehand
        s[copy].compute_at(stage, at)
    _copy(s[copy], rows, target, turned=turned, parallel=not inside)
    return s


def terms_of_sum(local: Stage, knobs: Knobs) -> list[Var]:
    """The loops over terms of a sum, from outside: input channels in blocks, all taps of a block, and some unrolled."""
    channels, *taps = local.op.reduce_axes
    n = channels.hi + 1
    _, block, steps = knobs.factors("depth", n, 3, default=(n, 1, 1), most={-1: MOST_STEPS})
    order = knobs.permutation("terms", ("blocks", "taps", "channels"))
    loops = {"blocks": [channels], "taps": taps}
    unrolled: list[Var] = []
    if steps > 1:
        channels, last = local.split(channels, steps)
        local.unroll(last)
        unrolled, loops["blocks"] = [last], [channels]
    if block > 1:
        channels, inner = local.split(channels, block)
        loops["blocks"], loops["channels"] = [channels], [inner]
    names = sorted((name for name, some in loops.items() if some), key=order.index)
    return [a for name in names for a in loops[name]] + unrolled


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
