"""Winograd convolution: transforms in registers, a matrix product for each point, everything in blocked layouts.

Tiles are one axis over all images. They are taken in blocks whose transformed inputs and products stay in the
second-level cache, every thread with blocks of its own; or, where the weights are so many that reading them once a
block would cost more, all at once in three phases that threads share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.layout import Layout
from mlc.lower.schedule import Schedule, Stage
from mlc.ops.winograd import KERNEL, tile_counts
from mlc.targets.x86.cost import HIDDEN, Product, Tile, all_tiles, bandwidth, best_tile, may_unroll, step_cycles
from mlc.targets.x86.record import X86
from mlc.targets.x86.schedules.conv import UNROLLED_SUMS, conv_product, conv_tile
from mlc.targets.x86.schedules.group import Group, best_divisor, inline_rest, inner_layouts, padded_input
from mlc.targets.x86.schedules.injective import spread

MAX_BLOCK_BYTES = 768 << 10  # of what a thread keeps on its stack
TRANSFORM = 2.5  # cycles that a transform takes for each point of a tile and vector of channels, loads included


@dataclass(frozen=True)
class Blocking:
    """How the work is cut: ``block`` tiles at a time (all of them: in phases), and the register tile of the product."""

    block: int
    tile: Tile
    cycles: float


def blocking(tiles: int, channels: int, filters: int, points: int, target: X86) -> Blocking:
    """The fastest way to cut a convolution of ``tiles`` tiles with ``points²`` points each."""
    found = [_phases(tiles, channels, filters, points, target)]
    tile_bytes = 4 * points * points * (channels + filters)
    for block in range(1, min(tiles - 1, 64) + 1):
        if tiles % block == 0 and block * tile_bytes <= MAX_BLOCK_BYTES:
            found.append(_blocks(tiles, block, channels, filters, points, target))
    return min(found, key=lambda b: b.cycles)


def _product(tiles: int, channels: int, filters: int, target: X86) -> Product:
    return Product(tiles, -(-filters // target.lanes), channels)


def _register_tile(product: Product, target: X86) -> Tile:
    tiles = [t for t in all_tiles(product, target) if product.columns % t.vectors == 0]
    return best_tile(product, target, [t for t in tiles if t.vectors > 1] or tiles)


def _steps(product: Product, tile: Tile, target: X86) -> float:
    """Cycles of a product whose operands are near."""
    rows, ragged = divmod(product.extent, tile.rows)
    one = rows * step_cycles(tile.rows, tile.vectors, target)
    if ragged:
        one += step_cycles(ragged, tile.vectors, target)
    return one * product.depth * (product.columns // tile.vectors)


def _transforms(tiles: int, channels: int, filters: int, points: int, target: X86) -> float:
    return TRANSFORM * points * points * tiles * (channels + filters) / target.lanes


def _blocks(tiles: int, block: int, channels: int, filters: int, points: int, target: X86) -> Blocking:
    product = _product(block, channels, filters, target)
    tile = _register_tile(product, target)
    count = tiles // block
    weights = 4 * points * points * channels * filters
    held = 4 * points * points * block * (channels + filters)
    compute = count * points * points * _steps(product, tile, target)
    load = count * (weights / bandwidth(weights + held, target) + 2 * held / bandwidth(held, target))
    near = _transforms(tiles, channels, filters, points, target)
    return Blocking(block, tile, near + max(compute, load) + (1 - HIDDEN) * min(compute, load))


def _phases(tiles: int, channels: int, filters: int, points: int, target: X86) -> Blocking:
    product = _product(tiles, channels, filters, target)
    tile = _register_tile(product, target)
    weights = 4 * points * points * channels * filters
    held = 4 * points * points * tiles * (channels + filters)
    compute = points * points * _steps(product, tile, target)
    load = weights / bandwidth(weights + held, target) + 3 * held / bandwidth(weights + held, target)
    near = _transforms(tiles, channels, filters, points, target)
    return Blocking(tiles, tile, near + max(compute, load) + (1 - HIDDEN) * min(compute, load))


def best_winograd_tile(x: Sequence[int], weights: Sequence[int], pads: Sequence[int], target: X86) -> int:
    """The tile for which a 3×3 convolution is estimated to be fastest; 0 when a direct one is.

    Tiles of six are never chosen: they save little more, and their error is twice that of tiles of four.
    """
    filters, channels = weights[:2]
    if channels % target.lanes or filters % target.lanes or not all(x):
        return 0
    space = x[2] + pads[0] + pads[2] - KERNEL + 1, x[3] + pads[1] + pads[3] - KERNEL + 1
    direct = conv_product(x, (x[0], filters, *space), (KERNEL, KERNEL), False, target)
    best, least = 0, 0.95 * direct.cycles(conv_tile(direct, target), target)
    for m in (2, 4):
        high, wide = tile_counts(space, m)
        cycles = blocking(x[0] * high * wide, channels, filters, m + KERNEL - 1, target).cycles
        if cycles < least:
            best, least = m, cycles
    return best


def winograd_fits(g: Group, target: X86) -> bool:
    """Whether whole vectors hold the channels, and nothing follows that changes the shape."""
    assert g.anchor is not None
    channels, filters = weights_of(g).shape[2:]
    out, tiles = g.outputs[0], _stage(g, "winograd_tiles")
    return channels % target.lanes == 0 and filters % target.lanes == 0 and out.shape == tiles.shape


def weights_of(g: Group) -> te.Tensor:
    """The transformed weights that the product reads."""
    assert g.anchor is not None
    return g.anchor.inputs[1]


def winograd_weights(g: Group, target: X86) -> Layout:
    """Weights in the order of use: ``[points²][O / block][C][block]``."""
    shape = weights_of(g).shape
    block = _cut(g, target).tile.vectors * target.lanes
    return Layout(tuple(shape)).split(3, block).reorder(0, 1, 3, 2, 4).fuse(0, 2)


def _cut(g: Group, target: X86) -> Blocking:
    assert g.anchor is not None
    points, _, tiles, filters = g.anchor.shape
    return blocking(tiles, g.anchor.reduce_axes[0].hi + 1, filters, points, target)


def _stage(g: Group, tag: str) -> te.Tensor:
    return next(op.outputs[0] for op in g.computes if op.tag == tag)


def _loops_over_tiles(stored: Layout, m: int) -> Layout:
    """``[tiles][O / v][m][m][v]`` for an output stored as ``[n][O / v][h][w][v]``."""
    core = stored.core
    n, _, h, w, _ = core.physical_shape
    high, wide = tile_counts((h, w), m)
    tiled = core.pad(2, 0, high * m - h).split(2, m).pad(4, 0, wide * m - w).split(4, m)
    # now [n][O / v][high][m][wide][m][v]
    tiled = tiled.reorder(0, 2, 4, 1, 3, 5, 6).fuse(0, 3)
    assert tiled.physical_shape[0] == n * high * wide
    return tiled


def schedule_winograd(g: Group, target: X86) -> Schedule:
    """Input transform, product and output transform with what follows the convolution."""
    assert g.anchor is not None
    (out,) = g.outputs
    cut = _cut(g, target)
    conv = _stage(g, "winograd_tiles")
    assert conv.op is not None
    loops = _loops_over_tiles(g.layouts[out], conv.op.attrs["tile"])
    extra = {t: loops for t in (*inner_layouts(g), out)}
    pad = next((op.outputs[0] for op in g.computes if op.tag == "pad"), None)
    if pad is not None:
        extra[pad] = Layout(pad.shape).split(1, target.lanes).reorder(0, 1, 3, 4, 2)
    p = g.apply(extra)
    (out,) = p.outputs
    columns, points, products, rows = (
        _stage(p, tag) for tag in ("winograd_columns", "winograd_points", "winograd", "winograd_rows")
    )
    pad = padded_input(columns.op) if columns.op is not None else None
    s = Schedule(p.outputs)
    sums = s.cache_write(products, "register")
    held = [columns, points, rows, products, *([pad] if pad is not None else [])]
    inline_rest(s, held)
    if pad is not None:
        spread(s[pad], target)
    phases = cut.block == out.shape[0]
    _inputs(s[points], s[columns], target, parallel=phases)
    _products(s[products], s[sums], cut.tile, target, parallel=phases)
    stage = s[out]
    tile, filters, i, j, lane = stage.op.axes
    if phases:
        at = stage.fuse(tile, filters)
        stage.parallel(at)
    else:
        block, inner = stage.split(tile, cut.block)
        stage.parallel(block)
        s[points].compute_at(stage, block)
        s[products].compute_at(stage, block)
        at = filters
        del inner
    stage.unroll(i)
    stage.unroll(j)
    stage.vectorize(lane)
    _whole(s[rows])
    s[rows].compute_at(stage, at)
    return s


def _whole(stage: Stage) -> None:
    """All points of one tile and one vector of channels, in registers."""
    a, b, _, lane = stage.op.axes
    stage.set_scope("register")
    stage.unroll(a)
    stage.unroll(b)
    stage.vectorize(lane)


def _inputs(points: Stage, columns: Stage, target: X86, *, parallel: bool) -> None:
    """Transform tile by tile, a vector of channels at once."""
    e, f, tile, channel = points.op.axes
    outer, lane = points.split(channel, target.lanes)
    points.reorder(tile, outer, e, f, lane)
    points.unroll(e)
    points.unroll(f)
    points.vectorize(lane)
    at = outer
    if parallel:
        at = points.fuse(tile, outer)
        points.parallel(at)
    else:
        points.set_scope("local")
    _whole(columns)
    columns.compute_at(points, at)


def _products(products: Stage, sums: Stage, tile: Tile, target: X86, *, parallel: bool) -> None:
    """A register tile of tiles × filters for each point."""
    e, f, row, column = products.op.axes
    rows, inner_row = products.split(row, tile.rows)
    columns, inner_column = products.split(column, tile.vectors * target.lanes)
    vector, lane = products.split(inner_column, target.lanes)
    products.reorder(e, f, columns, rows, inner_row, vector, lane)
    shared = products.fuse(e, f, columns) if parallel else products.fuse(e, f)
    if parallel:
        products.parallel(shared)
    else:
        products.set_scope("local")
    products.unroll(inner_row)
    products.unroll(vector)
    products.vectorize(lane)
    sums.compute_at(products, rows)
    (c,) = sums.op.reduce_axes
    *points, row, column = sums.op.axes
    vector, lane = sums.split(column, target.lanes)
    sums.reorder(c, *points, row, vector, lane)
    if may_unroll(tile.rows, tile.vectors, target):
        steps = best_divisor(c.hi + 1, max(1, UNROLLED_SUMS // (tile.rows * tile.vectors)))
        outer, inner = sums.split(c, steps)
        sums.reorder(outer, inner, *points, row, vector, lane)
        sums.unroll(inner)
    sums.unroll(row)
    sums.unroll(vector)
    sums.vectorize(lane)
