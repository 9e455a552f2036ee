"""Groups that fold rows and then go over them again (softmax, norms): one launch, in which blocks make whole rows.

Threads next to each other share the elements of a row, and fold it as :mod:`mlc.targets.gpu.schedules.folding` says;
nothing of it goes through global memory. Others have rows of their own, where rows are too short to keep a block busy.
What is dear and needed twice is kept in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from mlc.ir import te
from mlc.ir.expr import Load, loads
from mlc.ir.index import as_index
from mlc.ir.layout import Layout
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.cost import CACHED
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.fold_cost import coming_together, of_crew
from mlc.targets.gpu.schedules.folding import FEW, Crew, fold, inside, share
from mlc.targets.gpu.schedules.spread import reads_of
from mlc.targets.gpu.stream_cost import ACCESS, BLOCKS, INDEXING, Launch, by_sectors, fastest, meeting, waits
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.roles import is_exponential
from mlc.targets.groups.rows import rows_in_memory
from mlc.targets.groups.template import Template, row_major

TALL = (1, 2, 4, 8, 16)  # rows of a block
WIDE = (8, 16, *BLOCKS)  # threads of a row


@dataclass(frozen=True)
class Pass:
    """What is done with all elements of a row.

    Args:
        terms: elements.
        instructions: for each.
        fresh: whether something comes from memory that no pass before has read.
        folds: whether they are folded.
    """

    terms: int
    instructions: int
    fresh: bool
    folds: bool


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

    @cached_property
    def dear(self) -> list[te.Tensor]:
        """What could be kept in shared memory, since taking it twice is dear."""
        p = self.group
        return [op.outputs[0] for op in p.computes if op.combiner is None and _is_dear(op, p)]

    def begun(self, kept: Sequence[te.Tensor]) -> Schedule:
        """A schedule in which all is inlined but folds, what rows have one of, and what is kept."""
        s = Schedule(self.group.outputs)
        values = (
            op.outputs[0] for op in self.group.computes if op.combiner is None and size_of(op.shape) == self.count
        )
        inline_rest(s, [*kept, *values])
        return s

    def shared(self, crew: Crew, *, kept: bool) -> int:
        """Bytes of shared memory of a block."""
        out = self.group.outputs[0].op
        left = sum(op.outputs[0].dtype.itemsize * crew.left * crew.tall for op in self.group.computes if op is not out)
        held = sum(size_of(t.shape[1:]) * t.dtype.itemsize for t in self.dear) if kept else 0
        return left + held * crew.tall

    def ways(self, crew: Crew, target: Gpu) -> list[bool]:
        """Whether what is dear can be kept; where there is nothing to keep, it is not."""
        return [k for k in (True, False)[not self.dear :] if not k or self.shared(crew, kept=k) <= target.shared_bytes]

    @cached_property
    def _passes(self) -> Mapping[bool, list[Pass]]:
        """What is done with rows one after the other, where what is dear is kept and where it is not."""
        found: dict[bool, list[Pass]] = {}
        for kept in (True, False):
            s, seen = self.begun(self.dear if kept else []), set()
            found[kept] = []
            for stage in s.stages:
                if stage.inlined or (stage.op.combiner is None and size_of(stage.op.shape) == self.count):
                    continue
                terms = size_of([a.hi + 1 for a in stage.op.reduce_axes]) or size_of(stage.op.shape[1:])
                operations, read = reads_of(stage)
                long = [t for t in read if t.size > self.count]
                fresh = any(t.op is None and t not in seen for t in long)
                seen.update(long)
                found[kept].append(
                    Pass(terms, operations + ACCESS * (len(long) + 1), fresh, stage.op.combiner is not None)
                )
        return found

    def launch(self, crew: Crew, target: Gpu, *, kept: bool) -> Launch:
        """What the launch comes to."""
        instructions, waiting = float(INDEXING), 0.0
        for one in self._passes[kept]:
            steps = of_crew(crew, one.terms) if one.folds else ceil(one.terms / crew.wide)
            instructions += steps * one.instructions
            waiting += waits(steps) * (1 if one.fresh else CACHED)
            if one.folds:
                instructions += coming_together(crew, one.terms, target)
            elif kept and self.dear:
                instructions += meeting(crew.wide * crew.tall, target)
        tensors = (*self.group.inputs, *self.group.outputs)
        nbytes = sum(t.size * t.dtype.itemsize for t in tensors)
        run = crew.wide * max(t.dtype.itemsize for t in tensors)
        return Launch(
            ceil(self.count / crew.tall),
            crew.wide * crew.tall,
            nbytes * by_sectors(run),
            waiting,
            instructions,
            shared=self.shared(crew, kept=kept),
        )


def schedule_rows(g: Group, target: Gpu) -> Schedule:
    """Everything in one launch.

    Raises:
        ScheduleError: the configuration is refused.
    """
    rows = rows_of(g)
    assert rows is not None
    p = rows.group
    out = p.outputs[0]
    crew = _ask_crew(rows, target)
    dear = rows.dear
    left = rows.shared(crew, kept=False)
    g.knobs.require(left <= target.shared_bytes, f"{left} bytes of shared memory, there are {target.shared_bytes}")
    if dear:
        usual = fastest(((k, rows.launch(crew, target, kept=k)) for k in rows.ways(crew, target)), target)
        if not g.knobs.category("kept", (True, False), default=usual):
            dear = []
    s = rows.begun(dear)
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


def _crews(rows: Rows, target: Gpu) -> Iterator[Crew]:
    """Threads of a block that can run."""
    folds = rows.group.reductions
    for wide in WIDE:
        for tall in TALL:
            for few in FEW:
                crew = Crew.of(wide, tall, few, target, folds)
                possible = wide * tall <= target.max_threads and (crew.lanes == 1 or few == FEW[0])
                if possible and rows.shared(crew, kept=False) <= target.shared_bytes:
                    yield crew


def _ask_crew(rows: Rows, target: Gpu) -> Crew:
    """The threads of a block.

    Raises:
        ScheduleError: a block cannot run.
    """
    knobs = rows.group.knobs
    usual = fastest(
        (
            (crew, rows.launch(crew, target, kept=kept))
            for crew in _crews(rows, target)
            for kept in rows.ways(crew, target)
        ),
        target,
    )
    wide = knobs.discrete("wide", WIDE, default=usual.wide)
    tall = knobs.discrete("tall", TALL, default=usual.tall)
    threads = wide * tall
    knobs.require(threads <= target.max_threads, f"{threads} threads of a block, {target.max_threads} are the most")
    few = knobs.discrete("few", FEW, default=usual.few)
    return Crew.of(wide, tall, few, target, rows.group.reductions)


def _is_dear(op: te.Compute, g: Group) -> bool:
    readers = sum(op.outputs[0] in reader.inputs for reader in g.computes)
    return is_exponential(op) and readers > 1


def rows_of(g: Group) -> Rows | None:
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
    return target.shared_bytes > 0 and bool(g.reductions) and g.role is None and rows_of(g) is not None


ROWS = Template("rows", _fits, row_major, schedule_rows)
