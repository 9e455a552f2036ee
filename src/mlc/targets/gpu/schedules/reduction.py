"""Reductions without a template of their own, windows and pools among them: a thread an element, or a block.

Every stage that is not inlined is a launch. A thread folds an element's terms alone where there are elements enough for
all units; else the threads of a block share them, leave what they found in shared memory, and a few of them fold that.
Where the larger operand lies along the result, as what is summed over rows does, a block makes neighbouring elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import Var
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.fold_cost import Fold
from mlc.targets.gpu.schedules.folding import FEW, Crew, fold, inside
from mlc.targets.gpu.schedules.rows import TALL
from mlc.targets.gpu.schedules.spread import spread
from mlc.targets.gpu.stream_cost import BLOCKS, fastest, seconds
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.roles import is_exponential
from mlc.targets.groups.rows import along_memory, rows_in_memory
from mlc.targets.groups.template import Template, row_major

UNROLLED = 16  # steps of a loop that are written out
WIDE, DEEP = (8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32, 64, 128)  # columns of a block, threads of each
SHARES, FEWER = tuple(1 << n for n in range(5, 17)), tuple(1 << n for n in range(10))  # of a single element's terms


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
    axis = along_memory(op)
    longest = axis or max(op.reduce_axes, key=lambda a: a.hi)
    work = Fold.of(s[t], longest)
    sizes = [b for b in BLOCKS if b <= target.max_threads]
    alone = fastest(((b, work.by_thread(b, target)) for b in sizes), target)
    block = knobs.discrete(f"{name}.block", sizes, default=alone)
    if not _is_worth_sharing(op, longest, target):
        _by_threads(s, t, block)
        return
    ways = {"thread": seconds(work.by_thread(block, target), target)}
    crew = tile = None
    column = _column(op) if op.axes and target.shared_bytes else None
    if op.axes and target.shared_bytes:
        crew = fastest(((crew, work.by_crew(crew, target)) for crew in _crews(op, target)), target)
        ways["block"] = seconds(work.by_crew(crew, target), target)
    if column is not None:
        some = {n: work.by_columns(column.hi + 1, *n, target) for n in _tiles(op, column, longest, target)}
        tile = fastest(some.items(), target)
        ways["columns"] = seconds(some[tile], target)
    pairs = {(n, few): work.in_shares(n, few, block, target) for n in SHARES for few in FEWER if few < n}
    pair = min(pairs, key=lambda pair: pairs[pair])
    ways["shares"] = pairs[pair]
    by = knobs.category(f"{name}.by", tuple(ways), default=min(ways, key=lambda way: ways[way]))
    # all is asked, whichever way is taken: a tuner draws from what was asked untuned
    crew = crew and _ask_crew(op, crew, target, knobs, name)
    tile = tile and _ask_tile(tile, column, longest, knobs, name)
    shares = knobs.discrete(f"{name}.shares", SHARES, default=pair[0])
    fewer = knobs.discrete(f"{name}.fewer", FEWER, default=pair[1])
    if by == "thread":
        _by_threads(s, t, block)
    elif by == "columns":
        assert column is not None
        assert tile is not None
        reason = _refusal_of_columns(op, *tile, target)
        knobs.require(not reason, reason)
        _by_columns(s, t, column, longest, tile)
    elif by == "shares":
        _by_shares(s, t, longest, (shares, fewer), block, beside=work.between == 1)
    else:
        assert crew is not None
        threads = crew.wide * crew.tall
        knobs.require(threads <= target.max_threads, f"{threads} threads of a block, {target.max_threads} are the most")
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


def _tiles(op: te.Compute, column: Var, axis: Var, target: Gpu) -> Iterator[tuple[int, int]]:
    """Columns of a block, and threads that share the terms of each, of which a block can run."""
    for wide in WIDE:
        for deep in DEEP:
            tile = min(wide, column.hi + 1), min(deep, axis.hi + 1)
            if not _refusal_of_columns(op, *tile, target):
                yield tile


def _refusal_of_columns(op: te.Compute, wide: int, deep: int, target: Gpu) -> str:
    if wide * deep > target.max_threads:
        return f"{wide * deep} threads of a block, {target.max_threads} are the most"
    wanted = wide * deep * op.outputs[0].dtype.itemsize
    return f"{wanted} bytes of shared memory, there are {target.shared_bytes}" if wanted > target.shared_bytes else ""


def _ask_tile(usual: tuple[int, int], column: Var | None, axis: Var, knobs: Knobs, name: str) -> tuple[int, int]:
    """Columns of a block, and threads that share the terms of each."""
    assert column is not None
    wide, deep = (next(n for n in values if n >= k) for k, values in zip(usual, (WIDE, DEEP), strict=True))
    wide = min(knobs.discrete(f"{name}.wide", WIDE, default=wide), column.hi + 1)
    return wide, min(knobs.discrete(f"{name}.deep", DEEP, default=deep), axis.hi + 1)


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


def _is_worth_sharing(op: te.Compute, longest: Var, target: Gpu) -> bool:
    """Whether an element has so many terms that threads should fold it together."""
    terms = size_of([a.hi + 1 for a in op.reduce_axes])
    worth = 2 * target.warp if not target.shuffles else target.warp
    return terms >= worth and longest.hi > 0


def _crews(op: te.Compute, target: Gpu) -> Iterator[Crew]:
    """Threads of a block that can run."""
    for wide in (b for b in BLOCKS if b <= target.max_threads):
        for tall in TALL:
            for few in FEW:
                crew = Crew.of(wide, tall, few, target, [op])
                if wide * tall <= target.max_threads and (crew.lanes == 1 or few == FEW[0]):
                    yield crew


def _ask_crew(op: te.Compute, usual: Crew, target: Gpu, knobs: Knobs, name: str) -> Crew:
    """The threads of a block."""
    sizes = [b for b in BLOCKS if b <= target.max_threads]
    wide = knobs.discrete(f"{name}.threads", sizes, default=usual.wide)
    tall = knobs.discrete(f"{name}.tall", TALL, default=usual.tall)
    few = knobs.discrete(f"{name}.few", FEW, default=usual.few)
    return Crew.of(wide, tall, few, target, [op])


def _by_shares(s: Schedule, t: te.Tensor, axis: Var, counts: tuple[int, int], block: int, *, beside: bool) -> None:
    """Launches one after the other, each of which leaves so many shares of every element for the next one to fold.

    Threads next to each other fold shares of the same element where the terms of these lie ``beside`` each other.
    """
    op = s[t].op
    for count in counts:
        a = axis if s[t].op is op else s[t].op.reduce_axes[0]
        if 1 < count <= a.hi:
            share = s.rfactor(t, s[t].split(a, count)[1])
            s[share].set_scope("global")
            _by_threads(s, share, block, innermost=0 if beside else None)
    _by_threads(s, t, block)


def _by_threads(s: Schedule, t: te.Tensor, block: int, innermost: int | None = None) -> None:
    """Every thread folds an element, in registers; neighbours lie along the last axis, unless another is innermost."""
    if not s[t].op.axes:
        return  # one element, one thread
    acc = s.cache_write(t, "local")
    out, folded = s[t], s[acc]
    axes = list(out.op.axes)
    if innermost is not None:
        axes.append(axes.pop(innermost))
        out.reorder(*axes)
    bx, tx = out.split(out.fuse(*axes), block)
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
    which = op.reduce_axes.index(axis)
    acc = s.cache_write(t, "local")
    out = s[t]
    across = max((d for d, a in enumerate(op.axes) if a.hi > 0), default=0)
    rest, ty = out.split(out.op.axes[across], crew.tall)
    out.bind(out.fuse(*out.op.axes[:across], rest), "blockIdx.x")
    out.bind(ty, crew.rows)
    fold(s, acc, s[acc].op.reduce_axes[which], out, ty, crew, across=across)
    inside(s[acc], out, ty, "local")


def _fits(g: Group, target: Gpu) -> bool:
    return bool(g.reductions)


def _schedule(g: Group, target: Gpu) -> Schedule:
    return schedule_reduction(rows_in_memory(g), target)


REDUCTION = Template("reduction", _fits, row_major, _schedule)
