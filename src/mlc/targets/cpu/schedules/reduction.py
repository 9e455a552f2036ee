"""Reductions: rows folded along memory, columns folded across it, and chains of both (softmax, norms)."""

from __future__ import annotations

from collections import Counter

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.site import Site
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import PARALLEL_FROM, spread
from mlc.targets.groups.channels import sums_by_channel
from mlc.targets.groups.group import Group, best_divisor, inline_rest, size_of
from mlc.targets.groups.layouts import MIN_BLOCKED, in_blocks, keeps_channels
from mlc.targets.groups.roles import is_exponential
from mlc.targets.groups.rows import along_memory, rows_in_memory
from mlc.targets.groups.template import Template, row_major

CHAINS = 8  # sums that one vector of columns has under way: additions take about four cycles, two begin in each
ROW_BYTES = 256 << 10  # of intermediate results that a thread may keep for a row


def schedule_reduction(g: Group, target: Cpu) -> Schedule:
    """A group whose work is reductions without a heavy anchor."""
    kept = rows_of(g)
    return _staged(g, target) if kept is None else _rows(g, kept, target)


def rows_of(g: Group) -> int | None:
    """How many leading axes of the output make up the rows that all reductions fold; ``None`` where there are no such.

    Everything such a row needs is computed while it is in cache.
    """
    out = g.outputs[0]
    if len(g.outputs) != 1 or out.op is None or out.op.combiner is not None:
        return None
    return _row_rank(out, g.reductions)


def _row_rank(out: te.Tensor, reductions: list[te.Compute]) -> int | None:
    """How many leading axes of ``out`` every reduction keeps as they are, when it folds exactly the rest."""
    ranks = {len([a for a in op.axes if a.hi > 0]) for op in reductions}
    if not reductions or len(ranks) != 1:
        return None
    shapes = {tuple(n for n in op.shape if n > 1) for op in reductions}
    if len(shapes) != 1:
        return None
    (rows,) = shapes
    # the leading axes of ``out`` must multiply up to the rows, in order
    k = 0
    seen: list[int] = []
    while k < len(out.shape) and len(seen) < len(rows):
        if out.shape[k] > 1:
            seen.append(out.shape[k])
        k += 1
    if tuple(seen) != rows:
        return None
    if any(along_memory(op) is None for op in reductions):
        return None
    return k


def _rows(g: Group, kept: int, target: Cpu) -> Schedule:
    """One parallel loop over rows; everything a row needs is computed inside it and stays in cache."""
    (out,) = g.outputs
    s = Schedule(g.outputs)
    held = [t for t in dear_stages(g) if t is not out]
    axes = list(out.op.axes) if out.op is not None else []
    rows, inner = axes[:kept], axes[kept:]
    # what there is one of a row (a mean, the inverse of a deviation) is computed once, not for each element
    singles = [op.outputs[0] for op in g.computes if op.combiner is None and _is_single(op, rows, out)]
    inline_rest(s, [*held, *singles])
    stage = s[out]
    row_bytes = size_of([a.hi + 1 for a in inner]) * sum(t.dtype.itemsize for t in held)
    if not rows or row_bytes > ROW_BYTES:
        return _staged(g, target)
    row = stage.fuse(*rows)
    if inner and size_of([a.hi + 1 for a in inner]) > 1:
        _, vi = stage.split(stage.fuse(*inner), target.lanes_of(out.dtype))
        stage.vectorize(vi)
    if row.hi > 0 and size_of(out.shape) + sum(_work(op) for op in g.reductions) >= PARALLEL_FROM:
        stage.parallel(row)
    for op in g.computes:
        t = op.outputs[0]
        if t is out:
            continue
        if op.combiner is not None:
            for part in fold_rows(s, t, target):
                part.compute_at(stage, row)
        elif t in singles:
            s[t].compute_at(stage, row)
            s[t].set_scope("register")
        elif t in held:
            cached = s[t]
            cached.compute_at(stage, row)
            last = cached.op.axes[-1]
            if last.hi > 0:
                cached.vectorize(cached.split(last, target.lanes_of(t.dtype))[1])
    return s


def _is_single(op: te.Compute, rows: list[Var], out: te.Tensor) -> bool:
    """Whether a stage between reductions and the output has one element a row, where rows have several."""
    count = size_of([a.hi + 1 for a in rows])
    return size_of(op.shape) == count < out.size and any(t.op is not None for t in op.inputs)


def _work(op: te.Compute) -> int:
    return size_of(op.shape) * size_of([a.hi + 1 for a in op.reduce_axes])


def fold_rows(s: Schedule, t: te.Tensor, target: Cpu) -> list[Stage]:
    """Vectorise a reduction along memory: partial results a lane, then halves of the vector folded onto each other.

    Several vectors of partial results, where the axis is long: one addition would wait for the one before.
    """
    stage = s[t]
    axis = along_memory(stage.op)
    lanes = target.lanes_of(t.dtype)
    if axis is None or axis.hi + 1 < 2 * lanes or len(stage.op.bodies) > 1:
        return [stage]
    chains = max(n for n in (1, 2, 4) if n == 1 or axis.hi + 1 >= 2 * n * lanes)
    partial = s.rfactor(t, stage.split(axis, lanes * chains)[1])
    parts = [s[partial]]
    rf = parts[0]
    lane = rf.op.axes[0]
    rest = [a for a in rf.leaves if a is not lane]
    if chains > 1:
        chain, lane = rf.split(lane, lanes)
        rf.reorder(*rest, chain, lane)
        rf.unroll(chain)
    else:
        rf.reorder(*rest, lane)
    rf.vectorize(lane)
    width = lanes if chains > 1 else lanes // 2
    while width > 1:
        half = s[s.rfactor(t, s[t].split(s[t].op.reduce_axes[0], width)[1])]
        half.reorder(*half.op.axes[1:], *half.op.reduce_axes, half.op.axes[0])
        half.unroll(half.op.reduce_axes[0])
        half.vectorize(half.op.axes[0])
        parts.append(half)
        width //= 2
    for part in parts:
        part.set_scope("register")
    last = s[t]
    last.unroll(last.op.reduce_axes[0])
    return [*parts, last]


def _fold_columns(s: Schedule, t: te.Tensor) -> list[Stage]:
    """Sums of columns, a vector of neighbours at once: several of them in turn, since one would wait for the last.

    Returns:
        the stages, all to be computed where the columns' vector is.
    """
    stages = []
    last = s[t].op.reduce_axes[-1]
    chains = best_divisor(last.hi + 1, CHAINS)
    if chains > 1 and len(s[t].op.bodies) == 1:
        partial = s[s.rfactor(t, s[t].split(last, chains)[1])]
        partial.set_scope("register")
        chain, *data = partial.op.axes
        partial.reorder(*data[:-1], *(a for a in partial.leaves if a not in partial.op.axes), chain, data[-1])
        partial.unroll(chain)
        partial.vectorize(data[-1])
        stages.append(partial)
    stage = s[t]
    *data, lane = stage.op.axes
    stage.reorder(*data, *stage.op.reduce_axes, lane)
    if stages:
        for a in stage.op.reduce_axes:
            stage.unroll(a)
    stage.vectorize(lane)
    return [*stages, stage]


def _staged(g: Group, target: Cpu) -> Schedule:
    s = Schedule(g.outputs)
    inline_between(s, g, target)
    for op in g.computes:
        fold_or_spread(s, op, target)
    return s


def inline_between(s: Schedule, g: Group, target: Cpu) -> None:
    """Inlines what lies between reductions, but for exponentials, which are dear, and for what is there once for many.

    A mean or the inverse of a deviation would be found anew for every element that it belongs to.
    """
    most = max((t.size for t in g.outputs), default=0)
    plain = [op for op in g.computes if op.combiner is None]
    few = [op for op in plain if size_of(op.shape) * target.lanes <= most and any(t.op is not None for t in op.inputs)]
    inline_rest(s, [*dear_stages(g), *(op.outputs[0] for op in few)])


def dear_stages(g: Group) -> list[te.Tensor]:
    """Exponentials that are read more than once: they are kept rather than taken again."""
    readers = Counter(t for op in g.computes for t in op.inputs)
    return [t for op in g.computes if is_exponential(op) for t in op.outputs if readers[t] > 1]


def fold_or_spread(s: Schedule, op: te.Compute, target: Cpu) -> None:
    """A stage at the root with loops of its own, unless it is inlined."""
    t = op.outputs[0]
    if s[t].inlined:
        return
    if op.combiner is None:
        spread(s[t], target)
    else:
        fold(s, t, target)


def fold(s: Schedule, t: te.Tensor, target: Cpu) -> None:
    """A reduction at the root: accumulated in registers, then stored."""
    op = s[t].op
    if any(a.hi < 0 for a in op.reduce_axes) or size_of(op.shape) == 0:
        return
    axis = along_memory(op)
    work = _work(op)
    lanes = target.lanes_of(t.dtype)
    acc = s.cache_write(t, "register")
    out, local = s[t], s[acc]
    if not out.op.axes:
        return
    vector = axis is None and out.op.axes[-1].hi + 1 >= 4
    axes = list(out.op.axes)
    if vector:
        vo, vi = out.split(axes[-1], lanes)
        outer = [*axes[:-1], vo]
        out.vectorize(vi)
        exact = (axes[-1].hi + 1) % min(lanes, axes[-1].hi + 1) == 0
    else:
        outer, exact = axes, True
    at = outer[-1]
    if exact:
        at = out.fuse(*outer)
    elif len(outer) > 1:
        shared = out.fuse(*outer[:-1])
        if work >= PARALLEL_FROM and shared.hi > 0:
            out.parallel(shared)
    if exact and work >= PARALLEL_FROM and at.hi > 0:
        out.parallel(at)
    local.compute_at(out, at)
    if vector:
        for part in _fold_columns(s, acc):
            part.compute_at(out, at)
    else:
        for part in fold_rows(s, acc, target):
            part.compute_at(out, at)


def _fits(g: Group, target: Cpu) -> bool:
    return bool(g.reductions)


def reduction_layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    """Blocks of channels, where a blocked operand is read channel by channel."""
    out = g.outputs[0]
    if len(g.outputs) == 1 and len(out.shape) >= 3 and out.shape[1] >= MIN_BLOCKED:
        g = sums_by_channel(g, [t for t, ty in zip(g.inputs, site.inputs, strict=True) if ty.layout is not None])
        by_channel = any(t.layout is not None and t.shape[:2] == out.shape[:2] for t in site.inputs)
        if by_channel and keeps_channels(g, site.inputs):
            return in_blocks(g, site, target.lanes)
    return row_major(g, site, target)


def _schedule(g: Group, target: Cpu) -> Schedule:
    return schedule_reduction(rows_in_memory(sums_by_channel(g, g.layouts)), target)


REDUCTION = Template("reduction", _fits, reduction_layouts, _schedule)
