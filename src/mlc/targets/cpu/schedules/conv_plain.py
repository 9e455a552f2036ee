"""Convolution in row-major layout, for groups and where blocks of channels do not pay.

Vectors run along the pixels, a register tile is output channels × vectors of pixels: weights are broadcast, packed in
the order of use. Where windows are single pixels, all pixels of an image are one axis; strides are taken out by a copy
of those pixels that count. Else a tile of few channels spans several rows, which a search over layouts has found first,
or vectors run over the ends of rows (:mod:`conv_joined`).
"""

from __future__ import annotations

from dataclasses import replace

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import opaque, several
from mlc.targets.cpu.cost import Product, Tile, all_tiles, best_tile
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_joined import Joined, conv_joined, join, terms_of_sum
from mlc.targets.cpu.schedules.conv_tile import is_wide
from mlc.targets.cpu.schedules.injective import pick, spread, spread_rows
from mlc.targets.cpu.schedules.tile import ask_tile, finish_tile, hold_terms, rows_of_vectors
from mlc.targets.groups.group import (
    Group,
    accumulate_in_registers,
    apart_from_output,
    border_of,
    size_of,
    with_copy,
)
from mlc.targets.groups.pixels import copy_of_pixels
from mlc.targets.groups.roles import Convolution

# part of the cycles of rows that runs over their ends may take at most, with the vectors of a wide core, and others
WORTH_WIDE, WORTH_JOINED = 0.97, 0.95
# cycles an element of a copy that takes out strides (measured on Zen 5 with 60 to 912 channels of 14 × 14 to 56 × 56
# pixels), of rows and of runs:
ROWS, RUNS = 0.6, 0.3
FEW_LOADS = 0.85  # part of the best ratio of multiply-adds to loads
PARTS = (1, 2, 4, 8, 16)  # that threads may share the weights in; tiles of pixels in a block
ENOUGH_TASKS = 8  # parts of the work that a few threads can share evenly


def plain_product(g: Group, target: Cpu) -> Product:
    """A convolution as the cost model knows it: the channels of a group by the vectors of pixels of a row or image."""
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    _, filters, *space = anchor.shape
    pixels = size_of(space) if role.single_pixels else space[-1]
    return Product(
        extent=filters // role.groups,
        columns=-(-pixels // target.lanes),
        depth=size_of([a.hi + 1 for a in anchor.reduce_axes]),
        repeats=role.groups,
    )


def plain_tile(g: Group, target: Cpu) -> Tile:
    """Output channels and vectors of pixels of a register tile; the channels divide those of a group.

    Of tiles that need few loads a multiply-add, the one of least cost: pixels lie far apart, so their loads are dearer
    than the model believes (measured: 2 × 5 takes a fifth longer than 4 × 3 where the model has it ahead).
    """
    product = plain_product(g, target)
    tiles = [t for t in all_tiles(product, target) if product.extent % t.rows == 0]
    if product.columns == 1 and spans_rows(g, target):
        return Tile(tall_tile(g, target).rows, 1)
    reuse = [t.rows * t.vectors / (t.rows + t.vectors) for t in tiles]
    return best_tile(product, target, [t for t, r in zip(tiles, reuse, strict=True) if r >= FEW_LOADS * max(reuse)])


def spans_rows(g: Group, target: Cpu) -> bool:
    """Whether a register tile may span several rows of an image."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    return not role.single_pixels and len(anchor.shape) > 3 and not target.in_order and size_of(anchor.shape) > 0


def tall_tile(g: Group, target: Cpu) -> Tile:
    """Output channels and rows of a register tile, where a row is one vector: loads are shared by several (GRP-2)."""
    anchor = g.anchor
    assert anchor is not None
    product, height = plain_product(g, target), anchor.shape[-2]
    product = replace(product, columns=height)
    channels = [k for k in divisors(product.extent) if k + 1 < target.registers]
    tiles = [Tile(k, held_rows(height, k, 1, target.registers, _hidden(target))) for k in channels]
    return best_tile(product, target, tiles)


def plain_cycles(g: Group, target: Cpu) -> float:
    """Cycles of a row-major convolution, with a copy of what a stride leaves of its input."""
    role, anchor, product = g.role, g.anchor, plain_product(g, target)
    assert isinstance(role, Convolution)
    assert anchor is not None
    plan = joins(g, target)
    if plan is not None:
        return plan.cycles + _picking(g, RUNS)
    times, product, tile = _by_rows(g, target)
    return times * product.cycles(tile, target) + _picking(g, ROWS)


def _picking(g: Group, cycles: float) -> float:
    """Cycles of the copy of what a stride leaves, of so many an element."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    if all(k == 1 for k in role.strides):
        return 0.0
    copied = (anchor.shape[0], role.data.shape[1], *anchor.shape[2:]) if role.single_pixels else role.data.shape
    return cycles * size_of(copied)


def _by_rows(g: Group, target: Cpu) -> tuple[int, Product, Tile]:
    """How often which product is computed row by row, and its tile."""
    role, anchor, product = g.role, g.anchor, plain_product(g, target)
    assert isinstance(role, Convolution)
    assert anchor is not None
    if product.columns == 1 and spans_rows(g, target):
        times, height = size_of((anchor.shape[0], *anchor.shape[2:-2])), anchor.shape[-2]
        return times, replace(product, columns=height), tall_tile(g, target)
    rows = size_of(anchor.shape[:1] if role.single_pixels else (anchor.shape[0], *anchor.shape[2:-1]))
    return rows, product, plain_tile(g, target)


def joins(g: Group, target: Cpu) -> Joined | None:
    """How vectors run over the ends of rows, where that is expected to be faster than row by row."""
    plan = join(g, target)
    if plan is None:
        return None
    times, product, tile = _by_rows(g, target)
    # windows overlap, so rows wait for what they read no more than runs do
    by_rows = times * product.computing(tile, target)
    # rows are filled up to whole vectors in every phase of a stride, which shorter vectors are less
    saved = _picking(g, (ROWS - RUNS) * target.lanes / 16)
    worth = WORTH_WIDE if is_wide(target) else WORTH_JOINED
    return plan if plan.cycles < worth * by_rows + saved else None


def plain_weight_layout(g: Group, target: Cpu) -> Layout:
    """Weights ``[O / tile][C][taps…][tile of O]``.

    Raises:
        ScheduleError: the configuration is refused.
    """
    role = g.role
    assert isinstance(role, Convolution)
    shape = role.weights.shape
    return Layout(shape).split(0, _chosen_tile(g, target).rows).reorder(0, *range(2, len(shape) + 1), 1)


def _chosen_tile(g: Group, target: Cpu) -> Tile:
    """The register tile that the knobs say; :func:`plain_tile` where they say nothing."""
    plan, product = joins(g, target), plain_product(g, target)
    few = [k for k in divisors(product.extent) if k < target.registers]
    columns = product.columns if plan is None else plan.vectors
    wide = range(1, min(columns, target.registers // 2) + 1)
    return ask_tile(g.knobs, plain_tile(g, target) if plan is None else plan.tile, few, wide, target)


def conv_plain(g: Group, target: Cpu) -> Schedule:
    """Convolution whose output is row-major.

    Raises:
        ScheduleError: the configuration is refused.
    """
    if (plan := joins(g, target)) is not None:
        return conv_joined(g, plan, _chosen_tile(g, target), target)
    assert g.anchor is not None
    g = apart_from_output(g, g.anchor.outputs[0])
    role = g.role
    assert isinstance(role, Convolution)
    pointwise, strided, groups = role.single_pixels, any(k > 1 for k in role.strides), role.groups
    if pointwise and not _read_as_they_are(g):
        g = copy_of_pixels(g)
    tile = _chosen_tile(g, target)
    assert g.anchor is not None
    excess, stride = -g.anchor.shape[-1] % target.lanes, role.strides[-1]
    if not pointwise and g.anchor.inputs[0].op is None and (excess or stride > 1):
        g = with_copy(g)
    assert g.anchor is not None
    data, y = g.anchor.inputs[0], g.anchor.outputs[0]
    # what lies in blocks of channels is turned in registers
    by_rows = groups > 1 and not pointwise and data.op is not None and not any(t in g.layouts for t in data.op.inputs)
    extra: dict[te.Tensor, Layout] = {}
    if not pointwise and data.op is not None:
        extra[data] = rows_of_vectors(data.shape, excess, stride, target.lanes)
    if pointwise and len(y.shape) > 3:
        for t in (*g.inputs, *(op.outputs[0] for op in g.computes)):
            if len(t.shape) == len(y.shape) and t.shape[2:] == y.shape[2:] and t not in g.layouts:
                extra[t] = Layout(t.shape).fuse(2, len(y.shape) - 2)
    whole = extra.get(y, Layout(y.shape))
    width = len(whole.physical_shape) - 1
    extra[y] = whole.pad(width, 0, -whole.physical_shape[-1] % target.lanes)
    p = g.apply(extra)
    assert p.anchor is not None
    conv = p.anchor.outputs[0]
    s = Schedule(p.outputs)
    copied = [t for t in p.anchor.inputs if t.op is not None]
    accumulate_in_registers(s, conv, copied)
    out = p.outputs[0]
    stage = s[out]
    n, o, *outer, last = stage.op.axes
    ot, oc = stage.split(o, tile.rows)
    wo, wv = stage.split(last, tile.vectors * target.lanes)
    wu, lane = stage.split(wv, target.lanes)
    stage.vectorize(lane)
    tiles = (ot.hi + 1) // groups
    tasks = groups * size_of([a.hi + 1 for a in (n, *outer)])
    wanted = g.knobs.discrete("parts", (0, *PARTS), default=0)  # 0: as many as it takes
    together = g.knobs.discrete("together", PARTS, default=1)
    order = g.knobs.permutation("walk", ("blocks", "tiles", "panels"))
    held = 1 if pointwise or not outer else _ask_held(g.knobs, outer[-1].hi + 1, tile, target)
    high: list[Var] = []
    if several(held):
        outer[-1], row = stage.split(outer[-1], held)
        high = [row]
    if tasks == 1 and wo.hi + 1 >= ENOUGH_TASKS:
        at = ot
        stage.reorder(n, wo, *outer, ot, oc, *high, wu, lane)
        stage.parallel(wo)
    else:
        # all pixels by some of the weights, one tile of pixels after the other; as many parts as it takes to share them
        parts = wanted or _enough_parts(tiles, tasks)
        g.knobs.require(tiles % parts == 0, "weights cannot be cut evenly into so many parts")
        ob, ot = stage.split(ot, tiles // parts)
        loops = {"tiles": wo, "panels": ot}
        if together > 1:
            g.knobs.require((wo.hi + 1) % together == 0, "tiles of pixels cannot be cut evenly into such blocks")
            loops["blocks"], loops["tiles"] = stage.split(wo, together)
        walk = [loops[name] for name in sorted(loops, key=order.index)]
        at = walk[-1]
        stage.reorder(n, ob, *outer, *walk, oc, *high, wu, lane)
        stage.parallel(stage.fuse(n, ob, *outer))
    local = s[conv]
    local.compute_at(stage, at)
    finish_tile(s, out, conv, at, (oc, *high, wu))
    ln, lo, *lspace = local.op.axes
    if not pointwise:
        local.align(lspace[-1], target.lanes)
    lu, llane = local.split(lspace[-1], target.lanes)
    terms = terms_of_sum(local, g.knobs)
    *planes, lrow = lspace[:-1] if high else (*lspace[:-1], lo)
    local.reorder(*terms, ln, *planes, lo, *([lrow] if high else []), lu, llane)
    local.vectorize(llane)
    for a in (lu, lrow, lo):
        local.unroll(a)
    hold_terms(s, local, terms[-1], 1, lo, tile.rows, target)
    for t in copied:
        if pointwise and strided:
            pick(s[t], y.shape[-1], target)
        elif by_rows and t is p.anchor.inputs[0]:
            spread_rows(s[t], target, phases=stride > 1)
        else:
            spread(s[t], target)
    return s


def _ask_held(knobs: Knobs, height: int, tile: Tile, target: Cpu) -> int:
    """Rows of an image that a tile spans; untuned, so many that its sums hide the latency of a multiply-add."""
    usual = 1 if target.in_order else held_rows(height, tile.rows, tile.vectors, target.registers, _hidden(target))
    held = knobs.discrete("held", divisors(height), default=usual)
    knobs.require((tile.rows + 1) * tile.vectors * held <= target.registers, "the sums of a tile do not fit")
    return held


def _hidden(target: Cpu) -> int:
    """Sums that it takes to hide the latency of a multiply-add."""
    return target.fmas * target.fma_latency


@opaque
def held_rows(height: int, channels: int, vectors: int, registers: int, hidden: int) -> int:
    """Rows of an image that a tile spans: as many as fit of one vector, whose numbers are broadcast once.

    Of more vectors, a tile of few sums spans so many that these do not wait for each other.
    """
    sums = channels * vectors
    fitting = [k for k in divisors(height) if (sums + vectors) * k < registers]
    if vectors == 1:
        return max(fitting, default=1)
    if sums >= hidden or not fitting:
        return 1
    return min((k for k in fitting if k * sums > hidden), default=max(fitting))  # scheduling is not perfect


@opaque
def _enough_parts(tiles: int, tasks: int) -> int:
    return next((k for k in range(1, tiles) if tiles % k == 0 and k * tasks >= ENOUGH_TASKS), tiles)


def _read_as_they_are(g: Group) -> bool:
    """Whether every pixel of a row-major input counts."""
    assert g.anchor is not None
    data = g.anchor.inputs[0]
    return border_of(data) is None and data.shape[2:] == g.anchor.shape[2:] and data not in g.layouts
