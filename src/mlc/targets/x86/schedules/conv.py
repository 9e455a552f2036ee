"""Direct convolution in blocked layouts, and in plain ones for groups and few channels.

Blocked: outputs ``NCHW[v]c`` with ``v`` the vector width, a register tile of pixels × channel vectors, one broadcast of
the input and one fused multiply-add a vector; weights are packed in the order in which they are used. What tiles do
well: ``benchmarks`` and the roofline of 2 FMA and 2 loads a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.ir import te
from mlc.ir.layout import Layout, blocked
from mlc.lower.schedule import Schedule, Stage
from mlc.targets.x86.cost import Product, Tile, all_tiles, best_tile, may_unroll
from mlc.targets.x86.record import X86
from mlc.targets.x86.schedules.group import (
    Group,
    accumulate_in_registers,
    best_divisor,
    finish_tile,
    inner_layouts,
    padded_input,
    size_of,
)
from mlc.targets.x86.schedules.injective import spread

MIN_BLOCKED = 8  # output channels from which a blocked layout pays
UNROLLED_SUMS = 64  # multiply-adds of a loop body; more do not hide more of the loop, and fill the instruction cache


def conv_product(x: Sequence[int], y: Sequence[int], taps: Sequence[int], flat: bool, target: X86) -> Product:
    """A convolution as the cost model knows it: the pixels of a row (of all rows where ``flat``) by channel vectors.

    Args:
        x: shape of the input, ``[n, c, …]``.
        y: shape of the output.
        taps: extents of the window.
        flat: whether the pixels of all rows may share a tile.
        target: gives the vector width.
    """
    space, window = y[2:], size_of(taps)
    columns = -(-y[1] // target.lanes)
    extent = size_of(space) if flat else space[-1]
    repeats = max(1, y[0]) * (1 if flat else size_of(space[:-1]))
    # neighbouring pixels read the same rows, so one more brings in a column of the window
    fresh = 4 * x[1] * window // (taps[-1] if taps else 1)
    return Product(extent, columns, x[1] * window, repeats, row_bytes=fresh)


def conv_tile(product: Product, target: X86, vectors: int | None = None) -> Tile:
    """Pixels and channel vectors of the register tile of least cost.

    Args:
        product: what is computed.
        target: gives registers, ports and caches.
        vectors: how many channel vectors there must be; a divisor of all there are unless given.
    """
    tiles = list(all_tiles(product, target))
    if vectors is None:
        tiles = [t for t in tiles if product.columns % t.vectors == 0]
        # with one vector every sum needs a load of its own, which no model makes good (measured: half the speed)
        tiles = [t for t in tiles if t.vectors > 1] or tiles
    else:
        tiles = [t for t in tiles if t.vectors == vectors]
    return best_tile(product, target, tiles)


def weight_layout(shape: Sequence[int], out_dim: int, in_dim: int, vectors: int, target: X86) -> Layout:
    """Weights in the order of use: ``[O / tile][C / block][taps…][block of C][tile of O]``.

    Args:
        shape: logical shape.
        out_dim: dimension of the output channels.
        in_dim: dimension of the input channels.
        vectors: channel vectors of a register tile.
        target: gives the vector width.
    """
    tile = vectors * target.lanes
    block = min(target.lanes, shape[in_dim])
    layout = Layout(tuple(shape)).pad(out_dim, 0, -shape[out_dim] % tile).pad(in_dim, 0, -shape[in_dim] % block)
    layout = layout.split(out_dim, tile)
    c = in_dim + (1 if in_dim > out_dim else 0)
    layout = layout.split(c, block)
    o = out_dim + (1 if out_dim > in_dim else 0)
    taps = [k for k in range(len(layout.physical_shape)) if k not in (o, o + 1, c, c + 1)]
    return layout.reorder(o, c, *taps, c + 1, o + 1)


def conv_blocked(g: Group, target: X86) -> Schedule:
    """Convolution whose output is blocked by channels."""
    assert g.anchor is not None
    anchor = g.anchor
    y = anchor.outputs[0]
    extra = inner_layouts(g)
    pad = padded_input(anchor)
    data = anchor.inputs[0]
    if pad is not None and pad.shape[1] % target.lanes == 0:
        extra[pad] = blocked(pad.shape, 1, target.lanes)
    flat = is_flat(anchor, g.layouts)
    if flat:
        # 1×1, stride 1: pixels are one axis, and for all without margins the memory is the same
        spatial = len(y.shape) - 2
        for t in (*g.inputs, *(op.outputs[0] for op in te.topological(g.outputs))):
            layout = extra.get(t) or g.layouts.get(t) or Layout(t.shape)
            if len(t.shape) == len(y.shape) and t.shape[2:] == y.shape[2:] and (t.op or not layout.has_margins):
                extra[t] = layout.core.fuse(2, spatial)
    p = g.apply(extra)
    taps = [a.hi + 1 for a in anchor.reduce_axes[1:]]
    product = conv_product(data.shape, y.shape, taps, flat, target)
    return _blocked_loops(p, product, target, pad is not None, flat)


def is_flat(anchor: te.Compute, layouts: Mapping[te.Tensor, Layout]) -> bool:
    """Whether pixels are one axis: a window of 1×1, stride 1, over an input that has no margins."""
    data, y = anchor.inputs[0], anchor.outputs[0]
    known = layouts.get(data)
    return padded_input(anchor) is None and _pointwise(anchor, data, y) and not (known and known.has_margins)


def _pointwise(anchor: te.Compute, data: te.Tensor, y: te.Tensor) -> bool:
    taps = [a for a in anchor.reduce_axes[1:] if a.hi > 0]
    return not taps and all(k == 1 for k in anchor.attrs["strides"]) and data.shape[2:] == y.shape[2:]


def _blocked_loops(p: Group, product: Product, target: X86, has_pad: bool, flat: bool) -> Schedule:
    assert p.anchor is not None
    conv = p.anchor.outputs[0]
    s = Schedule(p.outputs)
    out = p.outputs[0]
    pad = padded_input(p.anchor) if has_pad else None
    conv = accumulate_in_registers(s, conv, [pad] if pad is not None else [])
    vectors = p.anchor.inputs[1].shape[-1] // target.lanes
    stage = s[out]
    n, o, *space, oi = stage.op.axes
    width = space[-1]
    tile = conv_tile(product, target, vectors)
    oo, ov = stage.split(o, vectors)
    wo, wi = stage.split(width, tile.rows)
    stage.reorder(n, oo, *space[:-1], wo, ov, wi, oi)
    exact = (width.hi + 1) % tile.rows == 0
    shared = [n, oo, *space[:-1]]
    if (flat or size_of([a.hi + 1 for a in shared]) < 8) and exact:
        shared.append(wo)
    at = stage.fuse(*shared)
    stage.parallel(at)
    stage.vectorize(oi)
    local = s[conv]
    inside = at if wo in shared else wo
    local.compute_at(stage, inside)
    finish_tile(s, out, conv, inside, (wi, ov))
    _tile_body(local, tile, target)
    if pad is not None:
        spread(s[pad], target)
    return s


def _tile_body(local: Stage, tile: Tile, target: X86) -> None:
    """Reduction outside, register tile inside: pixels × channel vectors unrolled, and some input channels with them."""
    n, o, *space, oi = local.op.axes
    c, *taps = local.op.reduce_axes
    co, ci = local.split(c, target.lanes)
    local.reorder(co, *taps, ci, n, *space, o, oi)
    if may_unroll(tile.rows, tile.vectors, target):
        steps = best_divisor(ci.hi + 1, max(1, UNROLLED_SUMS // (tile.rows * tile.vectors)))
        local.unroll(local.split(ci, steps)[1])
    local.vectorize(oi)
    local.unroll(o)
    local.unroll(space[-1])


def conv_plain(g: Group, target: X86) -> Schedule:
    """Convolution in row-major layout: vectors along the width, a register tile of channels × vectors of pixels."""
    assert g.anchor is not None
    pad = padded_input(g.anchor)
    y = g.anchor.outputs[0]
    extra: dict[te.Tensor, Layout] = {}
    data = g.anchor.inputs[0]
    flat = pad is None and _pointwise(g.anchor, data, y) and not g.layouts.get(data)
    if flat and len(y.shape) > 3:
        for t in (*g.inputs, *(op.outputs[0] for op in te.topological(g.outputs))):
            if len(t.shape) == len(y.shape) and t.shape[2:] == y.shape[2:] and t not in g.layouts:
                extra[t] = Layout(t.shape).fuse(2, len(y.shape) - 2)
    p = g.apply(extra)
    assert p.anchor is not None
    conv = p.anchor.outputs[0]
    s = Schedule(p.outputs)
    pad = padded_input(p.anchor)
    conv = accumulate_in_registers(s, conv, [pad] if pad is not None else [])
    out = p.outputs[0]
    stage = s[out]
    n, o, *space = stage.op.axes
    width = space[-1]
    per_group = (o.hi + 1) // int(p.anchor.attrs.get("groups", 1))
    channels = best_divisor(per_group, 6 if target.registers >= 32 else 4)
    vectors = min(4 if target.registers >= 32 else 2, -(-(width.hi + 1) // target.lanes))
    oo, oc = stage.split(o, channels)
    wo, wv = stage.split(width, vectors * target.lanes)
    stage.reorder(n, oo, *space[:-1], wo, oc, wv)
    wu, wi = stage.split(wv, target.lanes)
    at = stage.fuse(n, oo, *space[:-1])
    stage.parallel(at)
    stage.vectorize(wi)
    local = s[conv]
    local.compute_at(stage, wo)
    finish_tile(s, out, conv, wo, (oc, wu))
    ln, lo, *lspace = local.op.axes
    lo_w, li_w = local.split(lspace[-1], target.lanes)
    local.reorder(*local.op.reduce_axes, ln, *lspace[:-1], lo, lo_w, li_w)
    local.vectorize(li_w)
    local.unroll(lo_w)
    local.unroll(lo)
    if pad is not None:
        spread(s[pad], target)
    return s
