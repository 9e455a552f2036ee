"""Groups that fold rows and then go over them again (softmax, norms): one launch, in which blocks make whole rows.

Threads along x share the elements of a row. Each folds its share, leaves the result in shared memory, a few fold these,
and every thread folds what is left for itself: two barriers a reduction, and nothing of it goes through global memory.
Threads along y have rows of their own, where rows are too short to keep a block busy. What is dear and needed twice is
kept in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.expr import Load, loads
from mlc.ir.index import Var, as_index
from mlc.ir.layout import Layout
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.spread import BLOCKS
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.roles import is_exponential
from mlc.targets.groups.rows import rows_in_memory
from mlc.targets.groups.template import Template, row_major

TALL = (1, 2, 4, 8, 16)  # rows of a block
WIDE = (8, 16, *BLOCKS)  # threads of a row
SHARE = 4  # elements of a row that a thread takes at least, where there are enough


@dataclass(frozen=True)
class Rows:
    """A group whose results' first axis counts rows.

    Args:
        group: it.
        columns: elements of a row of the result.
        terms: of the longest sum.
    """

    group: Group
    columns: int
    terms: int

    @property
    def count(self) -> int:
        return self.group.outputs[0].shape[0]


def schedule_rows(g: Group, target: Gpu) -> Schedule:
    """Everything in one launch.

    Raises:
        ScheduleError: the configuration is refused.
    """
    rows = _rows(g)
    assert rows is not None
    p = rows.group
    out = p.outputs[0]
    wide, tall = _block(rows, target)
    dear = [op.outputs[0] for op in p.computes if op.combiner is None and _is_dear(op, p)]
    held = sum(size_of(t.shape[1:]) * t.dtype.itemsize for t in dear) * tall
    few = g.knobs.discrete("few", (1, 4, 8, 16, 32), default=max(4, min(32, wide // 8)) if wide >= 32 else 1)
    left = sum(op.outputs[0].dtype.itemsize * (wide + few + 1) * tall for op in p.computes if op is not out.op)
    fits = held + left <= target.shared_bytes
    g.knobs.require(left <= target.shared_bytes, f"{left} bytes of shared memory, there are {target.shared_bytes}")
    if dear and not g.knobs.category("kept", (True, False), default=fits):
        dear = []
    s = Schedule(p.outputs)
    values = [op.outputs[0] for op in p.computes if op.combiner is None and size_of(op.shape) == rows.count]
    inline_rest(s, [*dear, *values])
    stage = s[out]
    row, *columns = stage.op.axes
    bx, ty = stage.split(row, tall)
    stage.bind(bx, "blockIdx.x")
    stage.bind(ty, "threadIdx.y")
    _share_columns(stage, columns, wide)
    for op in p.computes:
        t = op.outputs[0]
        if t is out or s[t].inlined:
            continue
        shares = _shares(s, t, (wide, few)) if op.combiner is not None else []
        for share in shares:
            folded = s.cache_write(share, "local")
            _inside(s[share], stage, ty, "shared")
            lane, own = s[share].op.axes[:2]
            s[share].reorder(own, lane)
            s[share].bind(own, "threadIdx.y")
            s[share].bind(lane, "threadIdx.x")
            _inside(s[folded], s[share], lane, "local")
        if t in dear:
            _inside(s[t], stage, ty, "shared")
            _share_columns(s[t], s[t].op.axes[1:], wide)
            s[t].bind(s[t].op.axes[0], "threadIdx.y")
        elif tall > 1:
            # shares are computed by loops over all rows of the block: each thread would need all of these
            _inside(s[t], stage, ty, "shared")
            s[t].bind(s[t].op.axes[0], "threadIdx.y")
        else:
            _inside(s[t], stage, ty, "local")
    return s


def _block(rows: Rows, target: Gpu) -> tuple[int, int]:
    """Threads along a row, and rows, of a block.

    Raises:
        ScheduleError: a block cannot run.
    """
    knobs = rows.group.knobs
    longest = max(rows.columns, rows.terms)
    widest = min(256, target.max_threads)
    wide = max([w for w in WIDE if w <= widest and w * SHARE <= longest], default=WIDE[0])
    # few rows leave units idle: then each is shared by more threads
    while wide * 2 <= min(widest, longest) and rows.count * wide < target.units * target.warp * 4:
        wide *= 2
    wide = knobs.discrete("wide", WIDE, default=wide)
    tall = 1
    while wide * tall * 2 <= 128 and rows.count >= 2 * tall * target.units:
        tall *= 2
    tall = knobs.discrete("tall", TALL, default=min(tall, TALL[-1]))
    threads = wide * tall
    knobs.require(threads <= target.max_threads, f"{threads} threads of a block, {target.max_threads} are the most")
    return wide, tall


def _share_columns(stage: Stage, columns: tuple[Var, ...] | list[Var], wide: int) -> None:
    """Threads next to each other take elements next to each other."""
    if columns:
        _, tx = stage.split(stage.fuse(*columns), wide)
        stage.bind(tx, "threadIdx.x")


def _inside(stage: Stage, host: Stage, axis: Var, scope: str) -> None:
    stage.compute_at(host, axis)
    stage.set_scope(scope)


def _shares(s: Schedule, t: te.Tensor, counts: tuple[int, ...]) -> list[te.Tensor]:
    """Partial results of a reduction, so many at a time."""
    found: list[te.Tensor] = []
    for count in counts:
        (a,) = s[t].op.reduce_axes
        if 1 < count <= a.hi:
            found.append(s.rfactor(t, s[t].split(a, count)[1]))
    return found


def _is_dear(op: te.Compute, g: Group) -> bool:
    readers = sum(op.outputs[0] in reader.inputs for reader in g.computes)
    return is_exponential(op) and readers > 1


def _rows(g: Group) -> Rows | None:
    """The group with rows along the first axis; nothing where it does not go by rows."""
    if len(g.outputs) != 1 or g.outputs[0].op is None or g.outputs[0].op.combiner is not None:
        return None
    p = rows_in_memory(g)
    folds = p.reductions
    shape = p.outputs[0].shape
    if not folds or any(len(op.reduce_axes) != 1 or len(op.bodies) != 1 for op in folds) or 0 in shape:
        return None
    rank = next((k for k in range(1, len(shape) + 1) if all(_counts(op.shape, shape[:k]) for op in folds)), None)
    if rank is None or any(a.hi < 0 for op in folds for a in op.reduce_axes):
        return None
    if any(not _keeps_row(op, rank, p) for op in p.computes):
        return None
    alike = {t for op in p.computes for t in (*op.inputs, *op.outputs) if t.shape[:rank] == shape[:rank]}
    if rank > 1:
        p = p.apply({t: Layout(t.shape).fuse(0, rank) for t in alike})
    terms = max(a.hi + 1 for op in folds for a in op.reduce_axes)
    return Rows(p, size_of(shape[rank:]), terms)


def _counts(shape: tuple[int, ...], rows: tuple[int, ...]) -> bool:
    """Whether a tensor has an element a row."""
    return shape[: len(rows)] == rows and size_of(shape) == size_of(rows)


def _keeps_row(op: te.Compute, rank: int, g: Group) -> bool:
    """Whether an element needs, of all that the group computes, only what is in its own row."""

    def own(ld: Load) -> bool:
        return all(ix == as_index(a) or a.hi == 0 for ix, a in zip(ld.indices, op.axes[:rank], strict=False))

    return all(own(ld) for body in op.bodies for ld in loads(body) if ld.source.op is not None)


def _fits(g: Group, target: Gpu) -> bool:
    return target.shared_bytes > 0 and bool(g.reductions) and g.role is None and _rows(g) is not None


ROWS = Template("rows", _fits, row_major, schedule_rows)
