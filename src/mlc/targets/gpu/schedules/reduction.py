"""Reductions without a template of their own, windows and pools among them: a thread an element, or a block.

Every stage that is not inlined is a launch. A thread folds an element's terms alone where there are elements enough for
all units; else the threads of a block share them, leave what they found in shared memory, and a few of them fold that.
"""

from __future__ import annotations

from collections import Counter

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.spread import BLOCKS, spread
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.roles import is_exponential
from mlc.targets.groups.rows import along_memory, rows_in_memory
from mlc.targets.groups.template import Template, row_major

UNROLLED = 16  # steps of a loop that are written out
WARP = 32  # threads of a block, where there are few elements


def schedule_reduction(g: Group, target: Gpu) -> Schedule:
    """A launch a stage.

    Raises:
        ScheduleError: the configuration is refused.
    """
    s = Schedule(g.outputs)
    inline_between(s, g)
    for k, op in enumerate(g.computes):
        schedule_stage(s, op, target, g.knobs, f"stage{k}")
    return s


def inline_between(s: Schedule, g: Group) -> None:
    """Inlines what lies between reductions, but for what is dear, or there once for many who read it."""
    readers = Counter(t for op in g.computes for t in op.inputs)
    plain = [op for op in g.computes if op.combiner is None]
    dear = [op.outputs[0] for op in plain if is_exponential(op) and readers[op.outputs[0]] > 1]
    most = max((t.size for t in g.outputs), default=0)
    few = [op.outputs[0] for op in plain if size_of(op.shape) * 8 <= most and any(t.op is not None for t in op.inputs)]
    inline_rest(s, [*dear, *few])


def schedule_stage(s: Schedule, op: te.Compute, target: Gpu, knobs: Knobs, name: str) -> None:
    """A stage at the root with loops of its own, unless it is inlined.

    Raises:
        ScheduleError: the configuration is refused.
    """
    t = op.outputs[0]
    if s[t].inlined or size_of(op.shape) == 0:
        return
    if op.combiner is None:
        spread(s[t], target, knobs, name)
        return
    terms = size_of([a.hi + 1 for a in op.reduce_axes])
    together = len(op.bodies) == 1 and terms >= 2 * target.warp and target.shared_bytes > 0
    sizes = [b for b in BLOCKS if b <= target.max_threads]
    block = knobs.discrete(f"{name}.block", sizes, default=min(128, sizes[-1]))
    if not together:
        _by_threads(s, t, block)
        return
    alone = size_of(op.shape) >= target.units * target.warp
    by = knobs.category(f"{name}.by", ("thread", "block"), default="thread" if alone else "block")
    axis = along_memory(op) or max(op.reduce_axes, key=lambda a: a.hi)
    likely = next((b for b in sizes if 2 * b > axis.hi), sizes[-1])
    threads = knobs.discrete(f"{name}.threads", sizes, default=min(likely, 256))
    few = knobs.discrete(f"{name}.few", (1, 4, 8, 16, 32), default=8)
    if by == "thread":
        _by_threads(s, t, block)
    else:
        _by_blocks(s, t, axis, threads, few)


def _by_threads(s: Schedule, t: te.Tensor, block: int) -> None:
    """Every thread folds an element, in registers."""
    if not s[t].op.axes:
        return  # one element, one thread
    acc = s.cache_write(t, "local")
    out, folded = s[t], s[acc]
    bx, tx = out.split(out.fuse(*out.op.axes), block)
    out.bind(bx, "blockIdx.x")
    out.bind(tx, "threadIdx.x")
    folded.compute_at(out, tx)
    steps = 1
    for a in reversed(folded.op.reduce_axes):
        steps *= max(1, a.hi + 1)
        if steps > UNROLLED:
            break
        folded.unroll(a)


def _by_blocks(s: Schedule, t: te.Tensor, axis: Var, threads: int, few: int) -> None:
    """Every block folds an element: its threads a share each, a few of them the shares, each of them what is left."""
    op = s[t].op
    which = op.reduce_axes.index(axis)
    acc = s.cache_write(t, "local") if op.axes else t
    shares: list[te.Tensor] = []
    for count in (threads, few):
        a = s[acc].op.reduce_axes[which if not shares else 0]
        if 1 < count <= a.hi:
            shares.append(s.rfactor(acc, s[acc].split(a, count)[1]))
    if not op.axes:
        for share in shares:  # one element: its shares are a launch of their own
            s[share].set_scope("global")
            spread_rows(s[share])
        return
    out = s[t]
    at = out.fuse(*out.op.axes)
    out.bind(at, "blockIdx.x")
    for share in shares:
        s[share].compute_at(out, at)
        s[share].set_scope("shared")
        s[share].bind(s[share].op.axes[0], "threadIdx.x")
    s[acc].compute_at(out, at)


def spread_rows(stage: Stage) -> None:
    """A thread an element of the first axis."""
    bx, tx = stage.split(stage.op.axes[0], WARP)
    stage.bind(bx, "blockIdx.x")
    stage.bind(tx, "threadIdx.x")


def _fits(g: Group, target: Gpu) -> bool:
    return bool(g.reductions)


def _schedule(g: Group, target: Gpu) -> Schedule:
    return schedule_reduction(rows_in_memory(g), target)


REDUCTION = Template("reduction", _fits, row_major, _schedule)
