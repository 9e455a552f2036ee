"""Convolutions over blocks of channels: a thread makes some pixels of some blocks, in registers.

It loads a few input channels of the pixels that its windows meet, a vector each, and for each of these channels a
vector of weights a block; so one load of either serves as many products as there are blocks or pixels. Weights are
packed in the order in which they are used. Nothing is shared: what neighbours read again, caches have.
"""

from __future__ import annotations

from math import prod

from mlc.ir.layout import Layout, blocked
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
    terms_of,
)
from mlc.targets.gpu.schedules.product import schedule_product
from mlc.targets.gpu.vector_cost import FILTERS, PIXELS, Conv, Tile, best_tile, refusal
from mlc.targets.groups.group import Group, ends_in_anchor, inline_rest, inner_layouts, is_single
from mlc.targets.groups.pixels import copy_of_pixels, skips_pixels
from mlc.targets.groups.roles import Convolution
from mlc.targets.groups.template import Template, constant_at, row_major

LEAST = 4  # output channels of a group from which blocks pay


def weight_layout(shape: tuple[int, ...], block: int, terms: int) -> Layout:
    """Weights ``[O / block][C / terms][taps…][terms][block]``.

    >>> weight_layout((6, 8, 3, 3), 4, 8).physical_shape
    (2, 1, 3, 3, 8, 4)
    """
    layout = Layout(shape).pad(0, 0, -shape[0] % block).split(0, block).split(2, terms)
    return layout.reorder(0, 2, *range(4, len(shape) + 2), 3, 1)


def schedule_convolution(g: Group, target: Gpu) -> Schedule:
    """A few pixels and blocks of channels a thread.

    Raises:
        ScheduleError: the configuration is refused.
    """
    block = block_of(g.layouts.get(g.outputs[0]))
    if block is None:
        return schedule_product(g, target)
    packed = g.layouts[_role(g).weights]
    terms = packed.physical_shape[-2]
    g = copy_of_pixels(g) if skips_pixels(g) else g
    role = _role(g)
    source = source_of(role.data)
    in_vectors = block_of(g.layouts.get(source)) == terms
    flat = role.single_pixels and role.data.shape[2:] == g.outputs[0].shape[2:]
    assert g.anchor is not None
    rank = len(role.taps)
    extra = inner_layouts(g)
    if role.data.op is not None and in_vectors:
        extra[role.data] = blocked(role.data.shape, 1, terms)
    if flat and rank > 1:
        space = g.outputs[0].shape[2:]
        for t in (*g.inputs, *(t for op in g.computes for t in op.outputs)):
            layout = extra.get(t) or g.layouts.get(t) or Layout(t.shape)
            if len(t.shape) == rank + 2 and t.shape[2:] == space and t is not role.weights:
                extra[t] = layout.core.fuse(2, rank)
    conv = _conv(g, role, block, terms, target, flat=flat)
    tile = _ask_tile(g, conv, target)
    p = g.apply(extra)
    return _loops(p, tile, terms, target, in_vectors=in_vectors)


def _role(g: Group) -> Convolution:
    assert isinstance(g.role, Convolution)
    return g.role


def _conv(g: Group, role: Convolution, block: int, terms: int, target: Gpu, *, flat: bool) -> Conv:
    """The convolution as the cost model knows it."""
    out = g.outputs[0]
    n, filters, *space = out.shape
    rows, columns = (1, prod(space)) if flat else (prod(space[:-1]), space[-1])
    operands = (role.data, role.weights, out)
    return Conv(
        n * rows, columns, -(-filters // block), block, terms,
        role.weights.shape[1] // terms * prod(role.taps[:-1]), role.taps[-1], 1 if flat else role.strides[-1],
        role.dilations[-1], role.data.dtype.itemsize, target.vector_bytes,
        sum(t.size * t.dtype.itemsize for t in operands),
    )  # fmt: skip


def _ask_tile(g: Group, conv: Conv, target: Gpu) -> Tile:
    """The tile that the knobs say; what the cost model thinks best where they say nothing.

    Raises:
        ScheduleError: a thread's registers do not suffice.
    """
    best, knobs = best_tile(conv, target), g.knobs
    pixels = knobs.discrete("pixels", PIXELS, default=best.pixels)
    filters = knobs.discrete("filters", FILTERS, default=best.filters)
    knobs.require(conv.blocks % filters == 0, f"{conv.blocks} blocks of channels are no multiple of {filters}")
    row = conv.taps > 1 and knobs.category("row", (True, False), default=best.row)
    tile = Tile(min(pixels, conv.columns), filters, row)
    why = refusal(conv, tile, target)
    knobs.require(not why, why)
    return tile


def _loops(p: Group, tile: Tile, terms: int, target: Gpu, *, in_vectors: bool) -> Schedule:
    assert p.anchor is not None
    s = Schedule(p.outputs)
    sums, out = p.anchor.outputs[0], p.outputs[0]
    data, weights = p.anchor.inputs
    sums = s.cache_write(sums, "local") if sums in s.outputs else sums
    s[sums].set_scope("local")
    weights = s.cache_read(weights, "local", [sums])
    data = s.cache_read(data, "local", [sums]) if data.op is None else data
    inline_rest(s, [data, weights])
    stage, acc = s[out], s[sums]
    n, o, *space, lane = stage.op.axes
    oo, of = stage.split(o, tile.filters)
    wo, wi = stage.split(space.pop(), tile.pixels)
    loops = [wo, *([stage.fuse(*space)] if space else []), stage.fuse(n, oo)]
    thread = bind_threads(stage, loops, p.knobs, target, (of, wi, lane))
    stage.unroll(of)
    stage.unroll(wi)
    stage.vectorize(lane)
    acc.compute_at(stage, thread)
    c, *taps = acc.op.reduce_axes
    co, ci = acc.split(c, terms)
    n, ao, *outer, ax, lane = acc.op.axes
    *rows, tap = taps
    acc.reorder(co, *rows, tap, ci, n, *outer, ao, ax, lane)
    written = p.knobs.category("unroll", (True, False), default=True)
    for a in (*((tap,) if written else ()), ci, ao, ax):
        acc.unroll(a)
    acc.vectorize(lane)
    at = (rows[-1] if rows else co) if tile.row else tap
    hold(s[data], acc, at, vectors=in_vectors)
    hold(s[weights], acc, ci, vectors=True)
    return s


def _fits(g: Group, target: Gpu) -> bool:
    role = g.role
    if not is_single(g) or not isinstance(role, Convolution) or not ends_in_anchor(g) or role.bits is not None:
        return False
    return all(t.dtype in FLOATS for t in (role.data, role.weights, *g.outputs))


def _layouts(g: Group, site: Site, target: Gpu) -> LayoutChoice:
    """Blocks of channels, where these are enough and the weights can be packed."""
    role = _role(g)
    k = constant_at(g, site, role.weights)
    channels, filters = role.weights.shape[1], role.weights.shape[0] // role.groups
    block = block_for(g.outputs[0], target, of=filters if role.groups > 1 else 0)
    if k is None or block is None or filters < LEAST or channels < 1:
        return row_major(g, site, target)
    source = source_of(role.data)
    lies = site.inputs[g.inputs.index(source)].layout if source in g.inputs else None
    return in_blocks_of(g, site, block, {k: weight_layout(role.weights.shape, block, terms_of(channels, lies))})


BLOCKED_CONVOLUTION: Template[Gpu] = Template("convolution in blocks", _fits, _layouts, schedule_convolution)
