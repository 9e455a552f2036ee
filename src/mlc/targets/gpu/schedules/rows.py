"""Groups that fold rows and then go over them again (softmax, norms): one launch, in which blocks make whole rows.

Threads next to each other share the elements of a row, and fold it as :mod:`mlc.targets.gpu.schedules.folding` says;
nothing of it goes through global memory. Others have rows of their own, where rows are too short to keep a block busy.
What is dear and needed twice is kept in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.expr import Load, loads
from mlc.ir.index import as_index
from mlc.ir.layout import Layout
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.folding import Crew, fold, inside, share
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
    crew = _crew(rows, target)
    dear = [op.outputs[0] for op in p.computes if op.combiner is None and _is_dear(op, p)]
    held = sum(size_of(t.shape[1:]) * t.dtype.itemsize for t in dear) * crew.tall
    left = sum(op.outputs[0].dtype.itemsize * crew.left * crew.tall for op in p.computes if op is not out.op)
    # where a warp makes a row, to take an exponential twice is less than to wait for the block
    fits = held + left <= target.shared_bytes and (crew.lanes == 1 or crew.warps > 1)
    g.knobs.require(left <= target.shared_bytes, f"{left} bytes of shared memory, there are {target.shared_bytes}")
    if dear and not g.knobs.category("kept", (True, False), default=fits):
        dear = []
    s = Schedule(p.outputs)
    values = [op.outputs[0] for op in p.computes if op.combiner is None and size_of(op.shape) == rows.count]
    inline_rest(s, [*dear, *values])
    stage = s[out]
    row, *columns = stage.op.axes
    bx, ty = stage.split(row, crew.tall)
    stage.bind(bx, "blockIdx.x")
    stage.bind(ty, crew.rows)
    share(stage, columns, crew)
    for op in p.computes:
        t = op.outputs[0]
        if t is out or s[t].inlined:
            continue
        # what is shared is computed by loops over all rows of the block: each thread would need all of these
        alike = t in dear or (crew.tall > 1 and (crew.warps > 1 or bool(dear)))
        if op.combiner is not None:
            own = s.cache_write(t, "local") if alike and crew.lanes > 1 else t
            fold(s, own, s[own].op.reduce_axes[0], stage, ty, crew)
            if own is not t:
                inside(s[own], s[t], s[t].op.axes[0], "local")
        inside(s[t], stage, ty, "shared" if alike else "local")
        if alike:
            s[t].bind(s[t].op.axes[0], crew.rows)
        if t in dear:
            share(s[t], s[t].op.axes[1:], crew)
    return s


def _crew(rows: Rows, target: Gpu) -> Crew:
    """The threads of a block.

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
    few = knobs.discrete("few", (1, 4, 8, 16, 32), default=max(4, min(32, wide // 8)) if wide >= 32 else 1)
    return Crew.of(wide, tall, few, target, rows.group.reductions)


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
