"""Depthwise convolutions and pools over blocks of channels: a thread makes some pixels of a block, in registers.

What their windows meet in a row is loaded once, a vector a pixel; so is the weight of a tap.
"""

from __future__ import annotations

from math import prod

from mlc.ir import te
from mlc.ir.layout import blocked
from mlc.ir.site import Site
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.blocks.common import (
    FLOATS,
    bind_threads,
    block_for,
    block_of,
    hold,
    in_blocks_of,
    source_of,
)
from mlc.targets.gpu.schedules.plain import schedule_plain
from mlc.targets.gpu.vector_cost import PIXELS, Conv, Tile, best_tile, refusal
from mlc.targets.groups.group import Group, inline_rest, inner_layouts, is_single
from mlc.targets.groups.roles import Window, role_of
from mlc.targets.groups.template import Template, constant_at, row_major

LEAST = 4  # channels from which blocks pay
UNROLLED = 16  # taps of a row that are written out


def _window(g: Group) -> tuple[te.Compute, Window] | None:
    """The stage that slides over its input, when it is the group's one reduction, and what it does."""
    found = g.reductions
    role = role_of(found[0]) if len(found) == 1 else None
    return (found[0], role) if isinstance(role, Window) else None


def schedule_window(g: Group, target: Gpu) -> Schedule:
    """A few pixels a thread.

    Raises:
        ScheduleError: the configuration is refused.
    """
    found, block = _window(g), block_of(g.layouts.get(g.outputs[0]))
    assert found is not None
    if block is None:
        return schedule_plain(g, target)
    op, role = found
    source = source_of(role.data)
    in_vectors = block_of(g.layouts.get(source)) == block
    extra = inner_layouts(g)
    extra[op.outputs[0]] = blocked(op.shape, 1, block)
    if role.data.op is not None and in_vectors:
        extra[role.data] = blocked(role.data.shape, 1, block)
    tile = _ask_tile(g, role, block, target)
    p, new = g.applied(extra)
    s = Schedule(p.outputs)
    sums, data, out = new[op.outputs[0]], new.get(role.data, role.data), p.outputs[0]
    sums = s.cache_write(sums, "local") if sums in s.outputs else sums
    s[sums].set_scope("local")
    data = s.cache_read(data, "local", [sums]) if data.op is None else data
    weights = None
    if role.weights is not None:
        weights = s.cache_read(new.get(role.weights, role.weights), "local", [sums])
    inline_rest(s, [data, *([] if weights is None else [weights])])
    stage, acc = s[out], s[sums]
    n, c, *space, lane = stage.op.axes
    wo, wi = stage.split(space.pop(), tile.pixels)
    loops = [wo, *([stage.fuse(*space)] if space else []), stage.fuse(n, c)]
    thread = bind_threads(stage, loops, p.knobs, target, (wi, lane))
    stage.unroll(wi)
    stage.vectorize(lane)
    acc.compute_at(stage, thread)
    *rows, tap = acc.op.reduce_axes
    acc.reorder(*rows, tap, *acc.op.axes)
    if tap.hi < UNROLLED:
        acc.unroll(tap)
    acc.unroll(acc.op.axes[-2])
    acc.vectorize(acc.op.axes[-1])
    at = (rows[-1] if rows else None) if tile.row else tap
    if at is None:
        hold_at_thread = s[data]
        hold(hold_at_thread, stage, thread, vectors=in_vectors)
    else:
        hold(s[data], acc, at, vectors=in_vectors)
    if weights is not None:
        hold(s[weights], acc, tap, vectors=True)
    return s


def _ask_tile(g: Group, role: Window, block: int, target: Gpu) -> Tile:
    """The tile that the knobs say; what the cost model thinks best where they say nothing.

    Raises:
        ScheduleError: a thread's registers do not suffice.
    """
    out, knobs = g.outputs[0], g.knobs
    n, channels, *space = out.shape
    size = out.dtype.itemsize
    # a block is a convolution of its own, in which each channel is a term that a vector has already
    work = Conv(
        n * -(-channels // block) * prod(space[:-1]), space[-1], 1, block, 1, prod(role.taps[:-1]), role.taps[-1],
        role.strides[-1], role.dilations[-1], size, target.vector_bytes, (role.data.size + out.size) * size,
    )  # fmt: skip
    best = best_tile(work, target)
    pixels = knobs.discrete("pixels", PIXELS, default=best.pixels)
    row = work.taps > 1 and knobs.category("row", (True, False), default=best.row)
    tile = Tile(min(pixels, space[-1]), 1, row)
    why = refusal(work, tile, target)
    knobs.require(not why, why)
    return tile


def _fits(g: Group, target: Gpu) -> bool:
    found = _window(g) if is_single(g) else None
    if found is None or g.outputs[0].shape != found[0].shape or len(found[0].bodies) != 1:
        return False
    op, role = found
    if role.weights is not None and role.weights.shape[0] != role.data.shape[1]:
        return False
    return all(t.dtype in FLOATS for t in (role.data, *op.outputs, *g.outputs))


def _layouts(g: Group, site: Site, target: Gpu) -> LayoutChoice:
    """Blocks of channels: a pool's are those of what it reads, a depthwise convolution's can be any."""
    found = _window(g)
    assert found is not None
    _, role = found
    source = source_of(role.data)
    lies = block_of(site.inputs[g.inputs.index(source)].layout) if source in g.inputs else None
    if role.weights is None:
        return row_major(g, site, target) if lies is None else in_blocks_of(g, site, lies, {})
    k = constant_at(g, site, role.weights)
    block = lies or (block_for(g.outputs[0], target) if target.vectors else None)
    if k is None or block is None or g.outputs[0].shape[1] < LEAST:
        return row_major(g, site, target)
    return in_blocks_of(g, site, block, {k: blocked(role.weights.shape, 0, block)})


BLOCKED_WINDOW: Template[Gpu] = Template("window in blocks", _fits, _layouts, schedule_window)
