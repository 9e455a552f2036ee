"""Element-wise and index-mapping groups, and the default loop nest of any stage at the root."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.schedule import Schedule, Stage
from mlc.targets.x86.record import X86
from mlc.targets.x86.schedules.group import Group, inline_rest, size_of

PARALLEL_FROM = 1 << 14  # elements below which waking a second thread costs more than it gives


def schedule_injective(g: Group, target: X86) -> Schedule:
    """Everything inlined into the outputs, whose loops are flat, parallel and vectorised."""
    s = Schedule(g.outputs)
    inline_rest(s, ())
    for t in g.outputs:
        spread(s[t], target)
    return s


def lanes_of(t: te.Tensor, target: X86) -> int:
    """Lanes for elements of a tensor: as many as f32 has, twice that for narrow types would only spill."""
    return target.lanes if t.dtype.bits <= 32 else max(1, target.lanes // 2)


def spread(stage: Stage, target: X86, *, parallel: bool = True) -> None:
    """Default loops of a stage without a reduction: outer axes shared by threads, the innermost in vectors."""
    axes = list(stage.op.axes)
    if not axes:
        return
    t = stage.op.outputs[0]
    lanes = lanes_of(t, target)
    total = size_of(t.shape)
    last = axes[-1]
    if last.hi + 1 < lanes and total > last.hi + 1:
        last = stage.fuse(*axes)
        axes = [last]
    outer: list[Var] = axes[:-1]
    vo, vi = stage.split(last, lanes)
    stage.vectorize(vi)
    if not parallel or total < PARALLEL_FROM:
        return
    rows = size_of([a.hi + 1 for a in outer])
    if rows >= 8 or (outer and vo.hi == 0):
        stage.parallel(stage.fuse(*outer))
    elif (last.hi + 1) % lanes == 0 or vo.hi >= 64:
        stage.parallel(stage.fuse(*outer, vo) if outer else vo)
    elif outer:
        stage.parallel(stage.fuse(*outer))
