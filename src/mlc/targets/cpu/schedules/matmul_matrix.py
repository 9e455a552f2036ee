"""Matrix products by a unit that multiplies whole matrices (AMX): 16 rows by 16 columns, 64 terms at a time."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import assumed
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.matrix import MatrixUnit, Sums
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.matrix_tile import COPIED, Work, ask_sums, best_rows, least_cycles
from mlc.targets.cpu.schedules.matrix_walk import ask_walk, cut_loops, write_out
from mlc.targets.cpu.schedules.tile import finish_tile, instruction_loops, multiply_lanes
from mlc.targets.groups.group import Group, accumulate_in_registers, apart_from_output, with_copy
from mlc.targets.groups.layouts import in_layout
from mlc.targets.groups.roles import Contraction
from mlc.targets.groups.terms import over_depth

FEW_PANELS = 8  # below which threads share tiles of rows as well, and none fetches the weights of the next panel


def work_of_matrices(g: Group, target: Cpu) -> Work | None:
    """What the unit has to do for a product of rows whose terms are neighbours; ``None`` where it cannot do it."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Contraction)
    assert anchor is not None
    unit = target.matrices_of(role.left.dtype, role.right.dtype)
    if unit is None or role.bits is not None:
        return None
    (m, n), depth = anchor.shape, anchor.reduce_axes[0].hi + 1
    if n % target.lanes or not m:
        return None
    columns, steps = n // target.lanes, -(-depth // unit.terms)
    found = [best_rows(Work(1, m, along, columns, steps), unit, target) for along in (m, 0)]
    # where the last matrix of rows is not full, they are copied
    copied = m * steps * unit.terms * role.left.dtype.itemsize / COPIED
    cycles = {work: least_cycles(work, unit, target) + (0 if work.along else copied) for work in found if work}
    return min(cycles, key=lambda work: cycles[work], default=None)


def _unit(g: Group, target: Cpu) -> MatrixUnit:
    """The unit for a product that it can compute."""
    assert isinstance(g.role, Contraction)
    unit = target.matrices_of(g.role.left.dtype, g.role.right.dtype)
    assert unit is not None
    return unit


def panels_of_matrices(right: te.Tensor, sums: Sums, target: Cpu, dot: Dot, *, transposed: bool) -> Layout:
    """``[N / panel][K / 64][16][panel][4]`` of a right operand of bytes."""
    n_dim, k_dim = (0, 1) if transposed else (1, 0)
    panel = sums.vectors * target.lanes
    layout = Layout(right.shape).pad(n_dim, 0, -right.shape[n_dim] % panel)
    layout = layout.pad(k_dim, 0, -right.shape[k_dim] % dot.terms).split(n_dim, panel)
    return dot.packed(layout.reorder(0, 2, 1) if transposed else layout.reorder(1, 0, 2), target.lanes)


def matrix_layouts(g: Group, site: Site, target: Cpu, work: Work, k: int) -> LayoutChoice:
    """Row-major, the right operand, which is the input ``k``, in panels."""
    role, unit = g.role, _unit(g, target)
    assert isinstance(role, Contraction)
    sums = ask_sums(g.knobs, work, unit, target)
    packed = panels_of_matrices(role.right, sums, target, unit.dot(sums.rows), transposed=role.transposed)
    return in_layout(g, site, None, target.lanes, {k: packed})


def product_by_matrices(g: Group, target: Cpu, work: Work) -> Schedule:
    """A product whose sums are in registers of matrices.

    Raises:
        ScheduleError: the configuration is refused.
    """
    unit, anchor = _unit(g, target), g.anchor
    assert anchor is not None
    sums = ask_sums(g.knobs, work, unit, target)
    walk = ask_walk(g.knobs, work, sums, work.steps)
    dot = unit.dot(sums.rows)
    depth, padded = anchor.reduce_axes[0].hi + 1, work.steps * unit.terms
    layouts: dict[te.Tensor, Layout] = {}
    copy = None
    beyond = -anchor.shape[0] % (sums.rows * sums.bands)
    filled = padded == depth and beyond == 0
    copied = g.knobs.category("copy", (False, True), default=padded > depth or work.along == 0)
    g.knobs.require(copied or filled, "rows of no whole matrices are copied")
    if copied:
        g = with_copy(g)
        assert isinstance(g.role, Contraction)
        copy = g.role.left
        layout = Layout(copy.shape).pad(0, 0, beyond).pad(1, 0, padded - depth)
        layouts[copy] = layout.split(1, unit.terms).reorder(1, 0, 2)
    g = over_depth(g, padded)
    assert g.anchor is not None
    if beyond:
        y = g.anchor.outputs[0]
        g = apart_from_output(g, y)
        layouts[y] = Layout(y.shape).pad(0, 0, beyond)
    p, new = g.applied(layouts)
    assert p.anchor is not None
    product = p.anchor.outputs[0]
    copies = [] if copy is None else [new[copy]]
    s = Schedule(p.outputs)
    product = accumulate_in_registers(s, product, copies)
    out = p.outputs[0]
    stage = s[out]
    i, j = stage.op.axes
    panels, ji = stage.split(j, sums.vectors * target.lanes)
    tiles, ii = stage.split(i, sums.rows * sums.bands)
    ju, jv = stage.split(ji, target.lanes)
    loops = cut_loops(stage, panels, tiles, walk)
    stage.reorder(*loops, ii, ju, jv)
    fetch = g.knobs.category("prefetch", (False, True), default=panels.hi + 1 >= FEW_PANELS)
    alone = walk.order[0] == "panels" and walk.shared < 2
    g.knobs.require(alone or beyond == 0, "tiles that are no whole ones come after panels, and are not shared")
    g.knobs.require(alone or not fetch, "the panel that is fetched is the next of a loop of its own")
    shared = loops[: walk.shared or (1 if assumed(fetch) or beyond else 2)]
    at = stage.fuse(*shared)
    stage.parallel(at)
    stage.vectorize(jv)
    left = [a for a in loops if a not in shared]
    local, inside = s[product], left[-1] if left else at
    local.compute_at(stage, inside)
    finish_tile(s, out, product, inside, (ii, ju))
    i, j = local.op.axes
    local.align(i, sums.rows * sums.bands)
    (k,) = local.op.reduce_axes
    vectors, lane = local.split(j, target.lanes)
    k, bands, lanes = instruction_loops(local, k, i, lane, dot)
    k, written = write_out(local, k, walk)
    local.reorder(k, *written, bands, vectors, *lanes)
    if len(shared) == 1 and assumed(fetch):
        local.prefetch(p.anchor.inputs[1], at, k, level=2)
    multiply_lanes(local, lanes[0], dot)
    local.unroll(vectors)
    local.unroll(bands)
    for t in copies:
        spread(s[t], target)
    return s
