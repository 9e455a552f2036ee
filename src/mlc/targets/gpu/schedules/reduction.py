"""Reductions without a template of their own, windows and pools among them: a thread an element, or a block.

Every stage that is not inlined is a launch. A thread folds an element's terms alone where there are elements enough for
all units; else the threads of a block share them, leave what they found in shared memory, and a few of them fold that.
Where the larger operand lies along the result, as what is summed over rows does, a block makes neighbouring elements.
"""

from __future__ import annotations

from collections import Counter

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import Var
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.folding import Crew, fold, inside
from mlc.targets.gpu.schedules.rows import TALL
from mlc.targets.gpu.schedules.spread import BLOCKS, spread
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.roles import is_exponential
from mlc.targets.groups.rows import along_memory, rows_in_memory
from mlc.targets.groups.template import Template, row_major

UNROLLED = 16  # steps of a loop that are written out
WIDE, DEEP = (8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32)  # columns of a block, threads of each
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
    sizes = [b for b in BLOCKS if b <= target.max_threads]
    block = knobs.discrete(f"{name}.block", sizes, default=min(128, sizes[-1]))
    axis = along_memory(op)
    longest = axis or max(op.reduce_axes, key=lambda a: a.hi)
    if not _can_share(op, longest, target):
        _by_threads(s, t, block)
        return
    # a thread that has a row in memory to itself reads far from its neighbours
    busy = size_of(op.shape) >= target.units * target.warp
    alone = busy and not (axis is not None and target.shuffles and axis.hi + 1 >= target.warp)
    column = _column(op)
    ways = ("thread", "block") if column is None else ("thread", "block", "columns")
    likely = "columns" if column is not None else "thread" if alone else "block"
    by = knobs.category(f"{name}.by", ways, default=likely)
    crew = _crew(op, longest, target, knobs, name)
    if by == "thread":
        _by_threads(s, t, block)
    elif by == "columns":
        assert column is not None
        _by_columns(s, t, column, longest, _ask_columns(op, column, longest, target, knobs, name))
    else:
        _by_blocks(s, t, longest, crew)


def _column(op: te.Compute) -> Var | None:
    """The data axis along which memory has the largest operand, if it has that along one.

    Sums over the rows of a matrix are such folds.
    """
    (body, *_) = op.bodies
    largest = max((ld for ld in loads(body) if ld.indices), key=lambda ld: ld.source.size, default=None)
    if largest is None or op.combiner is not te.SUM:
        return None
    walking = (a for a in op.axes if a.hi > 0 and largest.indices[-1].terms.get(a) == 1)
    used = {v for ix in largest.indices[:-1] for v in ix.vars()}
    return next(walking, None) if used.issuperset(a for a in op.reduce_axes if a.hi > 0) else None


def _ask_columns(op: te.Compute, column: Var, axis: Var, target: Gpu, knobs: Knobs, name: str) -> tuple[int, int]:
    """Columns of a block, and threads that share the terms of each.

    Raises:
        ScheduleError: a block cannot run.
    """
    wide = min(
        knobs.discrete(f"{name}.wide", WIDE, default=target.warp if target.warp in WIDE else WIDE[0]), column.hi + 1
    )
    blocks = size_of(op.shape) // (column.hi + 1) * -(-(column.hi + 1) // wide)
    deep = 1
    # few blocks leave units idle: then the terms are shared by more threads, some for each
    while wide * deep * 2 <= min(512, target.max_threads) and axis.hi >= 8 * deep and blocks * deep < 16 * target.units:
        deep *= 2
    deep = min(knobs.discrete(f"{name}.deep", DEEP, default=min(deep, DEEP[-1])), axis.hi + 1)
    knobs.require(
        wide * deep <= target.max_threads, f"{wide * deep} threads of a block, {target.max_threads} are the most"
    )
    wanted = wide * deep * op.outputs[0].dtype.itemsize
    knobs.require(wanted <= target.shared_bytes, f"{wanted} bytes of shared memory, there are {target.shared_bytes}")
    return wide, deep


def _by_columns(s: Schedule, t: te.Tensor, column: Var, axis: Var, tile: tuple[int, int]) -> None:
    """Every block folds some neighbouring elements, whose operands are neighbours, too; threads share their terms."""
    wide, deep = tile
    op = s[t].op
    where, which = op.axes.index(column), op.reduce_axes.index(axis)
    acc = s.cache_write(t, "local")
    share = s.rfactor(acc, s[acc].split(s[acc].op.reduce_axes[which], deep)[1])
    own = s.cache_write(share, "local")
    out = s[t]
    rest = [a for k, a in enumerate(out.op.axes) if k != where]
    bx, tx = out.split(out.op.axes[where], wide)
    out.reorder(*rest, bx, tx)
    at = out.fuse(*rest, bx) if rest else bx
    out.bind(at, "blockIdx.x")
    out.bind(tx, "threadIdx.x")
    part = s[share]
    inside(part, out, at, "shared")
    y, *axes = part.op.axes
    jo, jx = part.split(axes.pop(where), wide)
    part.reorder(*axes, jo, y, jx)
    part.bind(y, "threadIdx.y")
    part.bind(jx, "threadIdx.x")
    inside(s[own], part, jx, "local")
    inside(s[acc], out, tx, "local")


def _can_share(op: te.Compute, longest: Var, target: Gpu) -> bool:
    """Whether threads can fold one element together, and it is worth it."""
    terms = size_of([a.hi + 1 for a in op.reduce_axes])
    worth = 2 * target.warp if not target.shuffles else target.warp
    return len(op.bodies) == 1 and terms >= worth and longest.hi > 0 and target.shared_bytes > 0


def _crew(op: te.Compute, longest: Var, target: Gpu, knobs: Knobs, name: str) -> Crew:
    """The threads of a block.

    Raises:
        ScheduleError: a block cannot run.
    """
    sizes = [b for b in BLOCKS if b <= target.max_threads]
    count = size_of(op.shape)
    likely = min(256, next((b for b in sizes if 2 * b > longest.hi), sizes[-1]))
    if target.shuffles and count * target.warp >= target.units * target.warp * 4:
        likely = sizes[0]  # a warp each keeps all units busy
    wide = knobs.discrete(f"{name}.threads", sizes, default=likely)
    tall = 1
    while target.shuffles and wide * tall * 2 <= 128 and count >= 2 * tall * target.units:
        tall *= 2
    tall = knobs.discrete(f"{name}.tall", TALL, default=tall)
    few = knobs.discrete(f"{name}.few", (1, 4, 8, 16, 32), default=8)
    threads = wide * tall
    knobs.require(threads <= target.max_threads, f"{threads} threads of a block, {target.max_threads} are the most")
    return Crew.of(wide, tall, few, target, [op])


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


def _by_blocks(s: Schedule, t: te.Tensor, axis: Var, crew: Crew) -> None:
    """Every block folds an element or some, whose terms its threads share."""
    op = s[t].op
    if not op.axes:
        for count in (crew.wide, crew.few):  # one element: its shares are a launch of their own
            a = axis if s[t].op is op else s[t].op.reduce_axes[0]
            if 1 < count <= a.hi:
                share = s.rfactor(t, s[t].split(a, count)[1])
                s[share].set_scope("global")
                spread_rows(s[share])
        return
    which = op.reduce_axes.index(axis)
    acc = s.cache_write(t, "local")
    out = s[t]
    across = max((d for d, a in enumerate(op.axes) if a.hi > 0), default=0)
    rest, ty = out.split(out.op.axes[across], crew.tall)
    out.bind(out.fuse(*out.op.axes[:across], rest), "blockIdx.x")
    out.bind(ty, crew.rows)
    fold(s, acc, s[acc].op.reduce_axes[which], out, ty, crew, across=across)
    inside(s[acc], out, ty, "local")


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
