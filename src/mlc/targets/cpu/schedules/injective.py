"""Element-wise and index-mapping groups, and the default loop nest of any stage at the root."""

from __future__ import annotations

from mlc.ir.expr import Load, Within, loads, walk
from mlc.ir.index import ZERO, Var, as_index, substitute, weighted
from mlc.ir.loop import dense_strides
from mlc.ir.site import Site
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.record import Cpu
from mlc.targets.groups.group import Group, inline_rest, inner_layouts, size_of
from mlc.targets.groups.layouts import in_layout, inherited_layout
from mlc.targets.groups.template import Template, row_major

PARALLEL_FROM = 1 << 14  # elements below which waking a second thread costs more than it gives
ENOUGH = 8  # iterations of a parallel loop that a few threads can share evenly enough


def schedule_injective(g: Group, target: Cpu) -> Schedule:
    """Everything inlined into the outputs, whose loops are flat, parallel and vectorised."""
    s = Schedule(g.outputs)
    inline_rest(s, ())
    for t in {t.op: t for t in g.outputs}.values():  # one loop nest may give several
        spread(s[t], target)
    return s


def spread(stage: Stage, target: Cpu, *, parallel: bool = True) -> None:
    """Default loops of a stage without a reduction: outer axes shared by threads, the innermost in vectors.

    Where a vector reads across memory and another axis along it (layouts that differ), that axis is unrolled by a
    vector too, and the code generator makes square blocks of it, transposed in registers. So are several axes that are
    less than a vector together, as the taps of a window.
    """
    axes = list(stage.op.axes)
    if not axes:
        return
    t = stage.op.outputs[0]
    lanes = target.lanes_of(t.dtype)
    total = size_of(t.shape)
    across = _axis_along_memory(stage, lanes)
    along = _axes_along_memory(stage, lanes) if across is None else []
    last = axes.pop()
    while axes and last.hi + 1 < lanes and axes[-1] is not across:
        last = stage.fuse(axes.pop(), last)
    vo, vi = stage.split(last, lanes)
    stage.vectorize(vi)
    if across is not None:
        k = axes.index(across)
        axes[k], inner = stage.split(across, lanes)
        stage.reorder(*axes, vo, inner, vi)
        stage.unroll(inner)
    elif along:
        axes = [a for a in axes if a not in along]
        stage.reorder(*axes, vo, *along, vi)
        for a in along:
            stage.unroll(a)
    if not parallel or total < PARALLEL_FROM:
        return
    # a loop with guards is cut only where it is one of its own, so the innermost stays out if there are enough others
    apart = across is not None or bool(along) or (vo.hi == 0 and _chooses(stage))
    outer = axes[:-1] if apart and size_of([a.hi + 1 for a in axes[:-1]]) >= ENOUGH else axes
    rows = size_of([a.hi + 1 for a in outer])
    if rows >= ENOUGH or (outer and vo.hi == 0):
        stage.parallel(stage.fuse(*outer))
    elif across is None and not along and ((last.hi + 1) % lanes == 0 or vo.hi >= 64):
        stage.parallel(stage.fuse(*outer, vo) if outer else vo)
    elif outer:
        stage.parallel(stage.fuse(*outer))


def pick(stage: Stage, width: int, target: Cpu, *, parallel: bool = True) -> None:
    """Loops of a copy of the pixels that count: along rows, where the distance of what is read stays the same.

    Args:
        stage: the copy, row-major; its spatial axes may be one.
        width: pixels of a row.
        target: gives the vector width.
        parallel: whether threads share it.
    """
    *outer, last = stage.op.axes
    rows, along = stage.split(last, width)
    _, lane = stage.split(along, target.lanes)
    stage.vectorize(lane)
    if parallel:
        stage.parallel(stage.fuse(*outer, rows))


def spread_rows(stage: Stage, target: Cpu, *, parallel: bool = True, phases: bool = False) -> None:
    """Loops of a copy with a border, row by row, so that what is tested of a row is tested once.

    Several short rows in a vector, as :func:`spread` has them, would be gathered element by element.
    """
    n, channels, *inner, last = stage.op.axes
    vectors, lane = stage.split(last, target.lanes_of(stage.op.outputs[0].dtype))
    stage.vectorize(lane)
    for a in (*inner[-1:], vectors) if phases else (vectors,):
        stage.unroll(a)
    if parallel:
        stage.parallel(stage.fuse(n, channels))


def _chooses(stage: Stage) -> bool:
    """Whether what is computed depends on where (the operands of a concat, padding)."""
    return any(type(node) is Within for body in stage.op.bodies for node in walk(body))


def _axis_along_memory(stage: Stage, lanes: int) -> Var | None:
    """The axis other than the innermost along which the stage reads vectors of neighbours; the innermost skips some."""
    *outer, last = [a for a in stage.op.axes if a.hi > 0] or stage.op.axes
    if stage.op.outputs[0].dtype.bits != 32 or lanes < 4:
        return None
    for ld in (_source(ld, stage) for body in stage.op.bodies for ld in loads(body)):
        if ld.source.dtype.bits != 32:
            continue
        for axis in outer:
            if axis.hi + 1 < lanes:
                continue
            block, inner = Var("block", 0, axis.hi // lanes), Var("inner", 0, lanes - 1)
            indices = [substitute(ix, {axis: as_index(block) * lanes + inner}) for ix in ld.indices]
            step = 1
            offset = ZERO
            for ix, n in zip(reversed(indices), reversed(ld.source.shape), strict=True):
                offset, step = offset + ix * step, step * n
            if offset.coefficient(inner) == 1 and offset.coefficient(last) not in (0, 1, None):
                return axis
    return None


def _axes_along_memory(stage: Stage, lanes: int) -> list[Var]:
    """Axes that together run along what the stage reads, half a vector to a vector long; the innermost skips that much.

    So the weights of windows are read that are packed: vectors of channels, all taps of one next to each other.
    """
    *outer, last = [a for a in stage.op.axes if a.hi > 0] or stage.op.axes
    if stage.op.outputs[0].dtype.bits != 32 or last.hi + 1 < lanes:
        return []
    for ld in (_source(ld, stage) for body in stage.op.bodies for ld in loads(body)):
        if ld.source.dtype.bits != 32:
            continue
        offset = weighted(ld.indices, dense_strides(ld.source.shape))
        steps = {abs(step): axis for axis in outer if (step := offset.coefficient(axis)) is not None}
        long, along = 1, []
        while (axis := steps.get(long)) is not None and long * (axis.hi + 1) <= lanes:
            along.append(axis)
            long *= axis.hi + 1
        if 2 * long >= lanes and (offset.coefficient(last) or 0) >= long:
            return along[::-1]
    return []


def _source(ld: Load, stage: Stage) -> Load:
    """What an access reads in the end, through inlined stages that only move elements."""
    while (inner := stage.schedule.find(ld.source)) is not None and inner.inlined:
        body = inner.op.bodies[ld.source.which]
        if type(body) is not Load:
            break
        env = dict(zip(inner.op.axes, ld.indices, strict=True))
        ld = Load(body.source, tuple(substitute(ix, env) for ix in body.indices))
    return ld


def _fits(g: Group, target: Cpu) -> bool:
    return not g.reductions


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    """What an operand has (ALT §4.2)."""
    if len(g.outputs) != 1:
        return row_major(g, site, target)
    return in_layout(g, site, inherited_layout(g, site.inputs, target.lanes), target.lanes)


def _schedule(g: Group, target: Cpu) -> Schedule:
    return schedule_injective(g.apply(inner_layouts(g)), target)


ELEMENT_WISE = Template("element-wise", _fits, _layouts, _schedule)
