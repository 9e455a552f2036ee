"""Convolution in row-major layout, for groups and where blocks of channels do not pay.

Vectors run along the pixels, a register tile is output channels × vectors of pixels: weights are broadcast, packed in
the order of use. Where windows are single pixels, all pixels of an image are one axis; strides are taken out by a copy
of those pixels that count. Else a tile of few channels spans several rows, which a search over layouts has found first,
or vectors run over the ends of rows (:mod:`conv_joined`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import opaque, plain, several
from mlc.targets.cpu.cost import Product, Tile, all_tiles, best_tile
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_joined import Joined, conv_joined, join
from mlc.targets.cpu.schedules.conv_terms import AHEAD, fetch_weights, terms_of_sum
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
    tasks = groups * size_of([a.hi + 1 for a in (n, *outer)])
    nest = _ask_nest(g.knobs, tasks)
    held = 1 if pointwise or not outer else _ask_held(g.knobs, outer[-1].hi + 1, tile, target)
    by_group = p.anchor.inputs[0] in copied and g.knobs.category("copy", ("whole", "group"), default="whole") == "group"
    high: list[Var] = []
    if several(held):
        outer[-1], row = stage.split(outer[-1], held)
        high = [row]
    usual = nest.share == "usual" and tasks == 1 and wo.hi + 1 >= ENOUGH_TASKS
    g.knobs.require(
        not by_group or not (usual or nest.share == "pixels"), "pixels that are shared are copied as a whole"
    )
    loops = {"tiles": wo, "panels": ot}
    if usual:
        at = ot
        stage.reorder(n, wo, *outer, ot, oc, *high, wu, lane)
        stage.parallel(wo)
    else:
        axes = _Axes(n, ot, outer, wo, [oc, *high, wu, lane])
        at, task, loops = _plain_loops(stage, axes, nest, g, tasks, by_group=by_group)
    local = s[conv]
    local.compute_at(stage, at)
    finish_tile(s, out, conv, at, (oc, *high, wu))
    ln, lo, *lspace = local.op.axes
    if not pointwise:
        local.align(lspace[-1], target.lanes)
    lu, llane = local.split(lspace[-1], target.lanes)
    terms = terms_of_sum(local, g.knobs, tile)
    *planes, lrow = lspace[:-1] if high else (*lspace[:-1], lo)
    local.reorder(*terms, ln, *planes, lo, *([lrow] if high else []), lu, llane)
    local.vectorize(llane)
    for a in (lu, lrow, lo):
        local.unroll(a)
    hold_terms(s, local, terms[-1], 1, lo, tile.rows, target)
    fetch_weights(g.knobs, local, p.anchor, loops["panels"], terms[0])
    if pointwise and p.anchor.inputs[0].op is None:
        _fetch_pixels(g.knobs, local, p.anchor.inputs[0], loops["tiles"], terms[-1])
    for t in copied:
        inside = by_group and t is p.anchor.inputs[0]
        if inside:
            s[t].compute_at(stage, task)
        if pointwise and strided:
            pick(s[t], y.shape[-1], target, parallel=not inside)
        elif by_rows and t is p.anchor.inputs[0]:
            spread_rows(s[t], target, parallel=not inside, phases=stride > 1)
        else:
            spread(s[t], target, parallel=not inside)
    return s


class _Nest(NamedTuple):
    """What threads share, and the loops over register tiles that each of them walks.

    Args:
        share: ``weights``, some of which a task multiplies by all pixels of a row or image; ``pixels``, some of which
            it multiplies by all weights; or ``usual``: weights, or tiles of pixels where weights would be one task.
        parts: of weights; as many as it takes to share them if 0.
        together: tiles of pixels in a block.
        walk: the loops over ``blocks``, over ``tiles`` of a block, and over ``panels`` of weights, from outside.
    """

    share: str
    parts: int
    together: int
    walk: tuple[str, ...]


def _ask_nest(knobs: Knobs, tasks: int) -> _Nest:
    """What the knobs say, where there are so many tasks if the weights of a group are one part."""
    parts = knobs.discrete("parts", (0, *PARTS), default=0)
    together = knobs.discrete("together", PARTS, default=1)
    walk = knobs.permutation("walk", ("blocks", "tiles", "panels"))
    shares = ("usual", "weights", "pixels") if tasks == 1 else ("usual", "pixels")
    share = knobs.category("share", shares, default="usual")
    return _Nest(share, parts, together, walk)


class _Axes(NamedTuple):
    """Loops over a result: images, tiles of channels, rows, tiles of pixels of a row, and those of a register tile."""

    images: Var
    panels: Var
    rows: list[Var]
    pixels: Var
    tile: list[Var]


def _plain_loops(
    stage: Stage, axes: _Axes, nest: _Nest, g: Group, tasks: int, *, by_group: bool
) -> tuple[Var, Var, dict[str, Var]]:
    """Loops over the register tiles, those that threads share outside.

    Args:
        stage: of the result.
        axes: its loops.
        nest: what is shared, and the order of the others.
        g: the group, whose knobs refuse what cannot be cut evenly.
        tasks: that there are where the weights of a group are one part.
        by_group: whether a task has all rows of a group of channels.
    Returns:
        the loop in which a tile is computed, the loop over tasks, and those over tiles by their names.
    Raises:
        ScheduleError: the configuration is refused.
    """
    role = g.role
    assert isinstance(role, Convolution)
    n, ot, outer, wo, tile = axes
    tiles = (ot.hi + 1) // role.groups
    by_pixels = nest.share == "pixels"
    # as many parts as it takes to share the weights
    parts = nest.parts or (1 if by_pixels else _enough_parts(tiles, tasks))
    g.knobs.require(tiles % parts == 0, "weights cannot be cut evenly into so many parts")
    first = [n]
    if by_group:  # so that it is known whose channels are read
        group, ot = stage.split(ot, tiles)
        first = [n, group]
    ob, ot = stage.split(ot, tiles // parts)
    loops = {"tiles": wo, "panels": ot}
    if nest.together > 1:
        g.knobs.require((wo.hi + 1) % nest.together == 0, "tiles of pixels cannot be cut evenly into such blocks")
        loops["blocks"], loops["tiles"] = stage.split(wo, nest.together)
    walk = [loops[name] for name in sorted(loops, key=nest.walk.index)]
    if by_pixels and role.single_pixels:
        block = loops.get("blocks", loops["tiles"])
        walk.remove(block)
        stage.reorder(*first, *outer, block, ob, *walk, *tile)
        task = block
    elif by_pixels:
        stage.reorder(*first, *outer, ob, *walk, *tile)
        task = stage.fuse(*first, *outer)
    else:
        # all pixels by some of the weights, one tile of pixels after the other
        stage.reorder(*first, ob, *outer, *walk, *tile)
        task = stage.fuse(*first, ob) if by_group else stage.fuse(*first, ob, *outer)
    stage.parallel(task)
    return walk[-1], task, loops


def _fetch_pixels(knobs: Knobs, local: Stage, data: te.Tensor, tiles: Var, terms: Var) -> None:
    """Fetch what a later tile of pixels reads of each channel, as many tiles ahead as the knobs say; untuned none.

    Args:
        knobs: are asked.
        local: the stage that sums up.
        data: the input, whose pixels follow one another.
        tiles: the loop over tiles of pixels.
        terms: the innermost loop over terms of a sum.
    """
    ahead = plain(knobs.discrete("fetch_pixels", AHEAD, default=0))
    if ahead:  # no loop depends on it
        local.prefetch(data, tiles, terms, distance=ahead, pieces=terms)


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
