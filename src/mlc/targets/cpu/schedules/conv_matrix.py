"""Convolutions by a unit that multiplies whole matrices (AMX): pixels by channels, sixteen of each.

Rows of a matrix of data are pixels that lie at one distance from each other, 64 channels side by side in each, so the
input is copied to blocks of so many channels first, its border with it. Results are in blocks of the vector width, as
everywhere, and so are weights: a matrix of theirs is sixteen rows of what vectors read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, replace_loads
from mlc.ir.index import Linear, Var, as_index, substitute
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.lower.knobs import divisors
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import assumed
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.matrix import MatrixUnit, Sums
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_runs import may_run, put_side_by_side, run_weight_layout, terms_of_run
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.matrix_tile import (
    COPIED,
    WORTH_MATRICES,
    Work,
    ask_rows,
    ask_sums,
    best_rows,
    least_cycles,
)
from mlc.targets.cpu.schedules.matrix_walk import Walk, ask_walk, cut_loops, write_out
from mlc.targets.cpu.schedules.tile import finish_tile, instruction_loops, multiply_lanes
from mlc.targets.groups.group import (
    Group,
    accumulate_in_registers,
    apart_from_output,
    border_of,
    inner_layouts,
    replace_anchor,
    size_of,
    with_copy,
)
from mlc.targets.groups.layouts import in_blocks
from mlc.targets.groups.roles import Convolution
from mlc.targets.groups.template import input_at
from mlc.targets.groups.terms import over_channels, over_runs

MOST_LINES = 16  # rows of results that are computed after one copy of what is under their windows


class Way(StrEnum):
    """What matrices of data are read from: the image, a copy of what every pixel reads, or one of rows under windows.

    Pixels of a matrix lie at one distance. In the image, the end of a row of windows changes that; it does not where
    what pixels read is copied side by side (im2col), which small images and odd ones gain by. Windows over few channels
    are runs in a copy of their rows (:mod:`mlc.targets.cpu.schedules.conv_runs`).
    """

    IMAGE = "image"
    GATHERED = "gathered"
    RUNS = "runs"


class MatrixConv(NamedTuple):
    """A convolution as the unit computes it.

    Args:
        way: what is read.
        work: of an image, or of a row of pixels where windows are runs.
        repeats: how often.
        copied: bytes that are copied before.
    """

    way: Way
    work: Work
    repeats: int
    copied: int


def ask_matrices(g: Group, target: Cpu, by_vectors: float) -> MatrixConv | None:
    """How the unit computes a convolution where that takes less, and as the knobs say: vectors have knobs of their own.

    Args:
        g: the convolution.
        target: may have the unit.
        by_vectors: cycles by an instruction on vectors.
    """
    ways = _ways(g, target)
    if not ways:
        return None
    unit = _unit(g, target)
    cycles = {w.way: w.repeats * least_cycles(w.work, unit, target) + w.copied / COPIED for w in ways}
    best = min(cycles, key=lambda way: cycles[way])
    if cycles[best] >= WORTH_MATRICES * by_vectors:
        return None
    # runs have blocks of other terms
    others = [str(way) for way in cycles if (way is Way.RUNS) == (best is Way.RUNS)]
    chosen = g.knobs.category("matrices", others, default=str(best))
    found = next(w for w in ways if w.way == chosen)
    return found._replace(work=ask_rows(g.knobs, found.work, unit))


def _unit(g: Group, target: Cpu) -> MatrixUnit:
    """The unit for a convolution that it can compute."""
    assert isinstance(g.role, Convolution)
    unit = target.matrices_of(g.role.data.dtype, g.role.weights.dtype)
    assert unit is not None
    return unit


def _ways(g: Group, target: Cpu) -> list[MatrixConv]:
    """The ways in which the unit can compute a convolution."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    unit = target.matrices_of(role.data.dtype, role.weights.dtype)
    if unit is None:
        return []
    if role.groups != 1 or role.bits is not None or len(role.taps) != 2 or size_of(anchor.shape) == 0:
        return []
    n, o, *space = anchor.shape
    pixels, taps, columns = size_of(space), size_of(role.taps), -(-o // target.lanes)
    ways: list[MatrixConv] = []
    if may_run(role, unit.dot(unit.rows), target):
        steps = terms_of_run(role, unit.dot(unit.rows)) // unit.terms
        copied = space[0] * role.data.shape[-1] * role.data.shape[1] * role.taps[0]
        ways.append(MatrixConv(Way.RUNS, Work(1, space[-1], space[-1], columns, steps), n * space[0], n * copied))
    blocks = -(-role.weights.shape[1] // unit.terms)
    along = pixels if role.single_pixels and role.data.shape[2:] == tuple(space) else space[-1]
    copied = blocks * unit.terms * size_of(role.data.shape[2:])
    ways.append(MatrixConv(Way.IMAGE, Work(1, pixels, along, columns, blocks * taps), n, n * copied))
    copied = pixels * blocks * taps * unit.terms
    ways.append(MatrixConv(Way.GATHERED, Work(1, pixels, 0, columns, blocks * taps), n, n * copied))
    best = [(way, best_rows(way.work, unit, target)) for way in ways]
    return [way._replace(work=work) for way, work in best if work is not None]


def matrix_layouts(g: Group, site: Site, target: Cpu, way: MatrixConv) -> LayoutChoice:
    """Results in blocks of the vector width, weights in panels of what is summed up at once."""
    role, unit = g.role, _unit(g, target)
    assert isinstance(role, Convolution)
    k = input_at(g, role.weights)
    assert k is not None
    sums = ask_sums(g.knobs, way.work, unit, target)
    packed = {k: _weights(role, way, sums, unit.dot(sums.rows), target)}
    return in_blocks(g, site, target.lanes, packed)


def lies_in_matrices(g: Group, target: Cpu, way: MatrixConv) -> bool:
    """Whether weights lie as the unit reads them: those that are known only when the model runs do not."""
    role, unit = g.role, _unit(g, target)
    assert isinstance(role, Convolution)
    sums = ask_sums(g.knobs, way.work, unit, target)
    return g.layouts.get(role.weights) == _weights(role, way, sums, unit.dot(sums.rows), target)


def _weights(role: Convolution, way: MatrixConv, sums: Sums, dot: Dot, target: Cpu) -> Layout:
    """``[O / panel][C / 64][taps…][16][panel][4]`` of ``[o, c, taps…]``; of runs, terms are in place of C and taps."""
    shape, panel = role.weights.shape, sums.vectors * target.lanes
    if way.way is Way.RUNS:
        return run_weight_layout(shape, sums.vectors, target, dot)
    layout = Layout(tuple(shape)).pad(0, 0, -shape[0] % panel).pad(1, 0, -shape[1] % dot.terms)
    layout = layout.split(0, panel).split(2, dot.terms)
    taps = range(4, len(layout.physical_shape))
    return dot.packed(layout.reorder(0, 2, *taps, 3, 1), target.lanes)


def conv_by_matrices(g: Group, target: Cpu, way: MatrixConv) -> Schedule:
    """A convolution whose sums are in registers of matrices.

    Raises:
        ScheduleError: the configuration is refused.
    """
    unit = _unit(g, target)
    sums = ask_sums(g.knobs, way.work, unit, target)
    dot = unit.dot(sums.rows)
    assert isinstance(g.role, Convolution)
    blocks = way.work.steps // (1 if way.way is Way.RUNS else size_of(g.role.taps))
    walk = ask_walk(g.knobs, way.work, sums, blocks)
    terms = g.knobs.permutation("terms", ("blocks", "taps"))
    if way.way is Way.RUNS:
        return _by_rows(over_runs(g, way.work.steps * unit.terms), sums, walk, dot, target)
    return _by_pixels(_in_matrices(g, way, sums, unit.terms), sums, walk, terms, dot, target)


def _in_matrices(g: Group, way: MatrixConv, sums: Sums, terms: int) -> Group:
    """The group with a copy of what is read in blocks of so many channels, and pixels as one axis."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    if way.way is Way.GATHERED:
        g = _gathered(apart_from_output(g, anchor.outputs[0]))
    elif border_of(anchor.inputs[0]) is None:
        g = with_copy(g)
    assert g.anchor is not None
    channels = role.weights.shape[1]
    g = over_channels(g, g.anchor.inputs[0], role.weights, channels + -channels % terms, copied=True)
    assert g.anchor is not None
    y, copy = g.anchor.outputs[0], g.anchor.inputs[0]
    extra = inner_layouts(g)
    for t in (*g.inputs, *(op.outputs[0] for op in g.computes)):
        layout = extra.get(t) or g.layouts.get(t) or Layout(t.shape)
        if len(t.shape) == 4 and t.shape[2:] == y.shape[2:] and t is not copy and (t.op or not layout.has_margins):
            extra[t] = layout.core.fuse(2, 2)
    extra[copy] = blocked(copy.shape, 1, terms)
    if way.way is Way.GATHERED:
        beyond = -size_of(y.shape[2:]) % (sums.rows * sums.bands)
        extra[copy] = extra[copy].fuse(4, 2).pad(4, 0, beyond)
        extra[y] = extra[y].pad(2, 0, beyond)
    return g.apply(extra)


def _gathered(g: Group) -> Group:
    """The group with its anchor reading a copy ``[n, c, taps…, pixels…]`` of what it reads for each pixel."""
    anchor = g.anchor
    assert anchor is not None
    data = anchor.inputs[0]
    (read,) = {ld for body in anchor.bodies for ld in loads(body) if ld.source is data}
    n, _, *space = anchor.axes
    axes = [n, *anchor.reduce_axes, *space]

    def element(*at: Linear) -> Expr:
        return data[tuple(substitute(ix, dict(zip(axes, at, strict=True))) for ix in read.indices)]

    shape = tuple(a.hi + 1 for a in axes)
    copy = te.compute(shape, element, "gathered", tag="copy", axis_names=[a.name for a in axes])

    def swap(ld: Load) -> Expr:
        return Load(copy, tuple(map(as_index, axes))) if ld.source is data else ld

    return replace_anchor(g, te.with_bodies(anchor, [replace_loads(body, swap) for body in anchor.bodies]))


def _by_pixels(p: Group, sums: Sums, walk: Walk, terms: tuple[str, ...], dot: Dot, target: Cpu) -> Schedule:
    """Panels of channels and tiles of pixels, the last of which may not be whole: then panels go first.

    Registers of matrices are configured where a function begins, and would be for every tile if it were tested.
    """
    assert p.anchor is not None
    conv, copy = p.anchor.outputs[0], p.anchor.inputs[0]
    s = Schedule(p.outputs)
    conv = accumulate_in_registers(s, conv, [copy])
    stage = s[p.outputs[0]]
    n, o, pixels, oi = stage.op.axes
    whole = (pixels.hi + 1) % (sums.rows * sums.bands) == 0
    panels, ov = stage.split(o, sums.vectors)
    tiles, wi = stage.split(pixels, sums.rows * sums.bands)
    loops = cut_loops(stage, panels, tiles, walk)
    stage.reorder(n, *loops, ov, wi, oi)
    p.knobs.require(whole or walk.order[0] == "panels", "tiles that are no whole ones come after panels")
    shared = loops[: walk.shared or (2 if whole else 1)]
    p.knobs.require(whole or len(shared) < 2, "tiles that threads share are whole")
    fetch = p.knobs.category("prefetch", (False, True), default=False)
    alone = walk.order[0] == "panels" and len(shared) == 1
    p.knobs.require(alone or not fetch, "the panel that is fetched is the next of a loop of its own")
    at = stage.fuse(n, *shared)
    left = [a for a in loops if a not in shared]
    above = _sum_up(s, conv, at, left[-1] if left else at, (wi, ov), oi, terms, sums, walk, dot)
    if alone and assumed(fetch):
        s[conv].prefetch(p.anchor.inputs[-1], at, above[-1], level=2)
    spread(s[copy], target)
    return s


def _by_rows(g: Group, sums: Sums, walk: Walk, dot: Dot, target: Cpu) -> Schedule:
    """Rows of pixels, which threads share, each after a copy of the rows under its windows."""
    p = g.apply(inner_layouts(g))
    assert p.anchor is not None
    conv, copy = p.anchor.outputs[0], p.anchor.inputs[0]
    bordered = [t for t in (copy.op.inputs if copy.op is not None else ()) if border_of(t) is not None]
    s = Schedule(p.outputs)
    conv = accumulate_in_registers(s, conv, [copy, *bordered])
    stage = s[p.outputs[0]]
    n, o, *rows, pixels, oi = stage.op.axes
    panels, ov = stage.split(o, sums.vectors)
    tiles, wi = stage.split(pixels, sums.rows * sums.bands)
    loops = cut_loops(stage, panels, tiles, walk)
    lines = p.knobs.discrete("lines", [k for k in divisors(rows[-1].hi + 1) if k <= MOST_LINES], default=1)
    *rows, line = *rows[:-1], *stage.split(rows[-1], lines)
    stage.reorder(n, *rows, line, *loops, ov, wi, oi)
    at = stage.fuse(n, *rows)
    _sum_up(s, conv, at, loops[-1], (wi, ov), oi, ("blocks",), sums, walk, dot)
    s[copy].compute_at(stage, at)
    put_side_by_side(s[copy])
    for t in bordered:
        spread(s[t], target)
    return s


def _sum_up(
    s: Schedule,
    conv: te.Tensor,
    shared: Var,
    at: Var,
    loops: tuple[Var, Var],
    lane: Var,
    terms: tuple[str, ...],
    sums: Sums,
    walk: Walk,
    dot: Dot,
) -> list[Var]:
    """Terms outside, matrices inside; then what follows the sums.

    Args:
        s: the schedule.
        conv: the sums.
        shared: the loop of the result that threads share.
        at: the one inside which a tile is computed.
        loops: over pixels and vectors of a tile.
        lane: of a vector.
        terms: the order of the loops over blocks of terms, and over taps, from outside.
        sums: of a tile.
        walk: how many blocks of terms are written out.
        dot: the instruction.
    Returns:
        the loops over terms, from outside.
    """
    (out,) = s.outputs
    stage, local = s[out], s[conv]
    stage.parallel(shared)
    stage.vectorize(lane)
    local.compute_at(stage, at)
    n, o, *rows, pixels, oi = local.op.axes
    local.align(pixels, sums.rows * sums.bands)
    finish_tile(s, out, conv, at, loops)
    c, *taps = local.op.reduce_axes
    blocks, bands, lanes = instruction_loops(local, c, pixels, oi, dot)
    blocks, written = write_out(local, blocks, walk)
    order = {"blocks": [blocks], "taps": taps}
    above = [a for name in terms for a in order[name]]
    local.reorder(*above, *written, n, *rows, bands, o, *lanes)
    multiply_lanes(local, lanes[0], dot)
    local.unroll(o)
    local.unroll(bands)
    return above
