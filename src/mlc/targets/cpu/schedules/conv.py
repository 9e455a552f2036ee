"""Direct convolution in blocked layouts.

Outputs ``NCHW[v]c`` with ``v`` the vector width, a register tile of pixels × channel vectors, one broadcast of
the input and one fused multiply-add a vector; weights are packed in the order in which they are used. What tiles do
well: ``benchmarks`` and the roofline of 2 FMA and 2 loads a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout, blocked
from mlc.lower.knobs import divisors
from mlc.lower.schedule import Schedule, Stage
from mlc.lower.symbolic import pinned
from mlc.targets.cpu.cost import Product, Tile, all_tiles, best_tile, fits_registers, unrolled_steps
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_blocking import Blocking, cut_for_caches
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.groups.group import (
    Group,
    accumulate_in_registers,
    best_divisor,
    finish_tile,
    inline_rest,
    inner_layouts,
    padded_input,
    size_of,
)
from mlc.targets.groups.pixels import copy_of_pixels, skips_pixels

MIN_BLOCKED = 8  # output channels from which a blocked layout pays
WORTH_FLAT = 0.9  # part of the cycles that tiles over short rows may take at most
MOST_BLOCKS = 64  # that the pixels of a convolution are cut into
PREFETCHED_FROM = 4  # register tiles that share a panel of weights while the next one is fetched


def conv_product(x: Sequence[int], y: Sequence[int], taps: Sequence[int], flat: bool, target: Cpu) -> Product:
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


@lru_cache(maxsize=1024)  # every run of the template asks several times
def conv_tile(product: Product, target: Cpu, vectors: int | None = None) -> Tile:
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


def weight_layout(shape: Sequence[int], out_dim: int, in_dim: int, vectors: int, target: Cpu) -> Layout:
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


def conv_blocked(g: Group, target: Cpu) -> Schedule:
    """Convolution whose output is blocked by channels."""
    assert g.anchor is not None
    if skips_pixels(g.anchor):
        g = copy_of_pixels(g)
    anchor = g.anchor
    assert anchor is not None
    y = anchor.outputs[0]
    extra = inner_layouts(g)
    data = anchor.inputs[0]
    if _copied_input(anchor) is not None and data.shape[1] % target.lanes == 0:
        extra[data] = blocked(data.shape, 1, target.lanes)
    plan = plan_conv(g, target)
    if plan.flat:
        # for all without margins the memory is the same
        spatial = len(y.shape) - 2
        for t in (*g.inputs, *(op.outputs[0] for op in te.topological(g.outputs))):
            layout = extra.get(t) or g.layouts.get(t) or Layout(t.shape)
            if len(t.shape) == len(y.shape) and t.shape[2:] == y.shape[2:] and (t.op or not layout.has_margins):
                extra[t] = layout.core.fuse(2, spatial)
    p = g.apply(extra)
    return _chunked_loops(p, plan, target) if plan.cut.chunk is not None else _blocked_loops(p, plan, target)


@dataclass(frozen=True)
class ConvPlan:
    """What a blocked convolution chooses.

    Args:
        flat: whether pixels are one axis.
        tile: pixels and channel vectors of the register tile.
        cut: for the caches.
        steps: input channels that one iteration of the innermost loop takes.
        prefetch: whether the next weights are fetched while these are used.
    """

    flat: bool
    tile: Tile
    cut: Blocking
    steps: int
    prefetch: bool


def plan_conv(g: Group, target: Cpu) -> ConvPlan:
    """What the knobs say, and the cost model where they say nothing.

    Args:
        g: a convolution; its weights may be packed already, as this plan (of the same knobs) has it.
        target: gives registers and caches.
    """
    anchor, knobs = g.anchor, g.knobs
    assert anchor is not None
    weights = anchor.inputs[1]
    data, y = shapes_of(anchor)
    taps = [a.hi + 1 for a in anchor.reduce_axes[1:]]
    space, channels = y[2:], data[1]
    flat = is_flat(anchor, g.layouts, target)
    if may_be_flat(anchor) and not skips_pixels(anchor):
        flat = knobs.category("flat", (False, True), default=flat)
    product = conv_product(data, y, taps, flat, target)
    packed = g.layouts.get(weights)
    tile = conv_tile(product, target, None if packed is None else pinned(packed.physical_shape[-1] // target.lanes))
    few = [v for v in divisors(product.columns) if v <= target.registers // 2]
    vectors = knobs.discrete("vectors", few, default=tile.vectors)
    rows = knobs.discrete("rows", range(1, min(size_of(space), target.registers - 2) + 1), default=tile.rows)
    knobs.require(fits_registers(rows, vectors, target), "the sums of a tile do not fit the registers")
    cut = cut_for_caches(data, y, size_of(taps), flat, tile, target)
    tile = Tile(rows, vectors)

    extent = size_of(space) if flat else space[0]
    cuts = {k for n in (size_of(space), space[0]) for k in divisors(n) if k <= MOST_BLOCKS}
    blocks = knobs.discrete("blocks", sorted(cuts), default=extent // cut.block)
    knobs.require(extent % blocks == 0, "pixels cannot be cut evenly into so many blocks")
    first = knobs.category("order", ("pixels", "channels"), default="pixels" if cut.pixels_first else "channels")
    whole = channels % target.lanes == 0
    parts = [k * target.lanes for k in divisors(channels // target.lanes)[:-1]] if whole else []
    # 0 sums all channels up at once
    chunk = pinned(knobs.discrete("chunk", (0, *parts), default=cut.chunk or 0))
    inner = min(target.lanes, channels)
    unrolled = best_divisor(inner, unrolled_steps(Tile(int(rows), int(vectors)), target))
    steps = knobs.discrete("steps", divisors(inner), default=unrolled)
    far = come_from_far(weights, target)
    fetch = knobs.category("prefetch", (False, True), default=far)
    return ConvPlan(flat, tile, Blocking(extent // blocks, first == "pixels", chunk or None), steps, fetch)


def shapes_of(anchor: te.Compute) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of input and output as the cost model counts them: every group of channels is an image of its own."""
    groups = int(anchor.attrs.get("groups", 1))
    x, y = ((t[0] * groups, t[1] // groups, *t[2:]) for t in (anchor.inputs[0].shape, anchor.shape))
    return x, y


def may_be_blocked(anchor: te.Compute, target: Cpu) -> bool:
    """Whether a convolution can have outputs in blocks of channels: groups must consist of whole blocks."""
    x, y = shapes_of(anchor)
    whole = x[1] % target.lanes == 0 and y[1] % target.lanes == 0
    return y[1] >= MIN_BLOCKED and (anchor.tag == "conv" or (anchor.tag == "group_conv" and whole))


def _copied_input(anchor: te.Compute) -> te.Tensor | None:
    """The copy that a convolution reads in place of its input: with a border, or without pixels that do not count."""
    data = anchor.inputs[0]
    return data if data.op is not None and data.op.tag in ("pad", "copy") else None


def is_flat(anchor: te.Compute, layouts: Mapping[te.Tensor, Layout], target: Cpu) -> bool:
    """Whether pixels are one axis.

    They are for a window of 1×1 over an input without margins, or a copy of those pixels that a stride leaves, where it
    costs nothing. They also are where rows are so short that register tiles which go on in the next row save more than
    finding every pixel costs.
    """
    data, y = anchor.inputs[0], anchor.outputs[0]
    if skips_pixels(anchor):
        return True
    known = layouts.get(data)
    if padded_input(anchor) is None and _pointwise(anchor, data, y) and not (known and known.has_margins):
        return True
    if not may_be_flat(anchor):
        return False
    taps = [a.hi + 1 for a in anchor.reduce_axes[1:]]
    rows, pixels = (
        product.cycles(conv_tile(product, target), target)
        for product in (conv_product(*shapes_of(anchor), taps, flat, target) for flat in (False, True))
    )
    return pixels < WORTH_FLAT * rows


def may_be_flat(anchor: te.Compute) -> bool:
    """Whether pixels can be one axis at all."""
    y = anchor.outputs[0]
    return skips_pixels(anchor) or (len(y.shape) == 4 and y.size > 0 and anchor.tag in ("conv", "group_conv"))


def _pointwise(anchor: te.Compute, data: te.Tensor, y: te.Tensor) -> bool:
    taps = [a for a in anchor.reduce_axes[1:] if a.hi > 0]
    return not taps and all(k == 1 for k in anchor.attrs["strides"]) and data.shape[2:] == y.shape[2:]


def _order(stage: Stage, groups: Var, space: list[Var], cut: Blocking) -> list[Var]:
    """The outer loops over channels and blocks of pixels; ``space`` keeps the loops inside a block."""
    if cut.block > space[0].hi:
        return [groups]
    block, space[0] = stage.split(space[0], cut.block)
    return [block, groups] if cut.pixels_first else [groups, block]


def _chunked_loops(p: Group, plan: ConvPlan, target: Cpu) -> Schedule:
    """Chunks of input channels outside, pixels inside; the sums of some channels stay in the cache meanwhile."""
    tile, cut = plan.tile, plan.cut
    assert p.anchor is not None
    assert cut.chunk is not None
    conv = p.anchor.outputs[0]
    s = Schedule(p.outputs)
    out = p.outputs[0]
    copied = _copied_input(p.anchor)
    if conv in s.outputs:
        conv = s.cache_write(conv, "local")
    else:
        s[conv].set_scope("local")
    outer, _ = s[conv].split(s[conv].op.reduce_axes[0], cut.chunk)
    partial = s.rfactor(conv, outer)
    inline_rest(s, [copied] if copied is not None else [])
    stage, sums, local = s[out], s[conv], s[partial]
    local.set_scope("register")
    n, o, *space, oi = stage.op.axes
    oo, om = stage.split(o, tile.vectors)
    outside = [n, *_order(stage, oo, space, cut)]
    stage.reorder(*outside, om, *space, oi)
    at = stage.fuse(*outside)
    stage.parallel(at)
    stage.vectorize(oi)
    sums.compute_at(stage, at)
    n, o, *space, oi = sums.op.axes
    (k,) = sums.op.reduce_axes
    wo, wi = sums.split(space[-1], tile.rows)
    sums.reorder(k, n, *space[:-1], wo, wi, o, oi)
    for a in (wi, o):
        sums.unroll(a)
    sums.vectorize(oi)
    local.compute_at(sums, wo)
    steps = _tile_body(local, len(space), plan.steps, target)
    weights = p.anchor.inputs[1]
    if plan.prefetch:
        # chunks follow one another in memory, the last of some channels too
        local.prefetch(weights, k, steps, level=2)
    if copied is not None:
        spread(s[copied], target)
    return s


def _blocked_loops(p: Group, plan: ConvPlan, target: Cpu) -> Schedule:
    """All input channels of a register tile at once."""
    flat, tile, cut = plan.flat, plan.tile, plan.cut
    assert p.anchor is not None
    conv = p.anchor.outputs[0]
    s = Schedule(p.outputs)
    out = p.outputs[0]
    copied = _copied_input(p.anchor)
    conv = accumulate_in_registers(s, conv, [copied] if copied is not None else [])
    stage = s[out]
    n, o, *space, oi = stage.op.axes
    oo, ov = stage.split(o, tile.vectors)
    shared = [n, *_order(stage, oo, space, cut)]
    exact = (min(cut.block, space[-1].hi + 1) if flat else space[-1].hi + 1) % tile.rows == 0
    wo, wi = stage.split(space[-1], tile.rows)
    shared += space[:-1]
    stage.reorder(*shared, wo, ov, wi, oi)
    weights = p.anchor.inputs[1]
    far = flat and plan.prefetch and wo.hi + 1 >= PREFETCHED_FROM
    if (flat or size_of([a.hi + 1 for a in shared]) < 8) and exact and not far:
        shared.append(wo)
    at = stage.fuse(*shared)
    stage.parallel(at)
    stage.vectorize(oi)
    local = s[conv]
    inside = at if wo in shared else wo
    local.compute_at(stage, inside)
    finish_tile(s, out, conv, inside, (wi, ov))
    steps = _tile_body(local, len(space), plan.steps, target)
    if far:
        local.prefetch(weights, at, steps, level=2)
    if copied is not None:
        spread(s[copied], target)
    return s


def come_from_far(weights: te.Tensor, target: Cpu) -> bool:
    """Whether weights are so many that they are fetched ahead, a panel while the one before is used.

    They are read in order, and yet each line takes long enough to come to leave the core idle (measured on Zen 3 with
    1024 × 1024 channels on 7 × 7 pixels: 86 % of peak without, 97 % with).
    """
    return weights.size * 4 > target.l2


def _tile_body(local: Stage, rank: int, steps: int, target: Cpu) -> Var:
    """Reduction outside, register tile inside: pixels × channel vectors unrolled, and some input channels with them.

    Args:
        local: the stage that sums up, its last axes being channel vectors, ``rank`` spatial ones, and lanes.
        rank: of space.
        steps: input channels that are unrolled.
        target: gives the vector width.
    Returns:
        the outermost loop.
    """
    *outer, oi = local.op.axes
    outer, o, space = outer[: -rank - 1], outer[-rank - 1], outer[-rank:]
    c, *taps = local.op.reduce_axes
    co, ci = local.split(c, target.lanes)
    local.reorder(co, *taps, ci, *outer, *space, o, oi)
    if steps > 1:
        local.unroll(local.split(ci, steps)[1])
    local.vectorize(oi)
    local.unroll(o)
    local.unroll(space[-1])
    return co
