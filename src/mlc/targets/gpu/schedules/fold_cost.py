"""What launches come to that fold: an element a thread, a row a crew of threads, or some columns a block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import Var, weighted
from mlc.ir.loop import dense_strides
from mlc.lower.stage import Stage
from mlc.targets.gpu.cost import SECTOR
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.folding import Crew
from mlc.targets.gpu.schedules.spread import reads_of
from mlc.targets.gpu.stream_cost import (
    ACCESS,
    EXCHANGE,
    INDEXING,
    Launch,
    by_sectors,
    in_turns,
    meeting,
    seconds,
    waits,
)
from mlc.targets.groups.group import size_of


def coming_together(crew: Crew, terms: int, target: Gpu) -> float:
    """Instructions of a thread from what it has folded itself to the row's fold, as :mod:`.folding` does it."""
    threads = crew.wide * crew.tall
    if crew.lanes > 1:
        if crew.wide > terms:
            return 0
        steps = EXCHANGE * log2(crew.lanes)
        return steps + (meeting(threads, target) + (ACCESS + 1) * crew.warps if crew.warps > 1 else 0)
    left, steps = 0, 0.0
    for count in (crew.wide, crew.few):
        if 1 < count < (left or terms):
            steps += meeting(threads, target) + ((ACCESS + 1) * ceil(left / count) if left else ACCESS)
            left = count
    return steps + (ACCESS + 1) * left


def of_crew(crew: Crew, terms: int) -> int:
    """Terms of a row that a thread folds itself."""
    shared = crew.wide <= terms if crew.lanes > 1 else 1 < crew.wide < terms
    return ceil(terms / crew.wide) if shared else terms


@dataclass(frozen=True)
class Fold:
    """A stage that folds.

    Args:
        count: of its elements.
        longest: terms along the axis that threads can share.
        others: times so many.
        operations: of a term, and
        loads: of a term.
        itemsize: bytes of what is read most of, and
        nbytes: that are read and written.
        apart: how far apart, in elements, neighbouring elements of the stage begin to read, and
        between: neighbouring terms are.
    """

    count: int
    longest: int
    others: int
    operations: int
    loads: int
    itemsize: int
    nbytes: int
    apart: int
    between: int

    @classmethod
    def of(cls, stage: Stage, longest: Var) -> Fold:
        """That of a stage, with all that is inlined into it."""
        op = stage.op
        operations, read = reads_of(stage)
        count = size_of(op.shape)
        terms = size_of([a.hi + 1 for a in op.reduce_axes])
        nbytes = sum(min(t.size, count * terms) * t.dtype.itemsize for t in read)
        written = sum(t.size * t.dtype.itemsize for t in op.outputs)
        itemsize = max((t.dtype.itemsize for t in read), default=4)
        along = max(1, longest.hi + 1)
        return cls(
            count,
            along,
            max(1, terms // along),
            operations,
            len(read),
            itemsize,
            nbytes + written,
            *_distances(op, longest),
        )

    def _launch(self, blocks: int, threads: int, steps: int, run: int, more: float, shared: int = 0) -> Launch:
        """Of threads that fold so many terms each, neighbours ``run`` bytes together, and then do something more."""
        each = self.operations + ACCESS * self.loads * in_turns(run)
        nbytes = self.nbytes * by_sectors(run)
        return Launch(blocks, threads, nbytes, waits(steps), INDEXING + steps * each + more, self.loads, shared)

    def _run(self, terms: int, elements: int, target: Gpu) -> int:
        """Bytes next to each other that a warp reads at a time, whose threads have so many terms and elements."""
        if terms > 1 and self.between == 1:
            return self.itemsize * min(terms, self.longest)
        beside = min(elements, max(1, target.warp // terms))
        if self.apart > 1:
            beside = min(beside, max(1, SECTOR // self.itemsize // self.apart))
        return self.itemsize * beside if self.apart else SECTOR

    def by_thread(self, block: int, target: Gpu) -> Launch:
        """An element a thread."""
        steps = self.longest * self.others
        return self._launch(ceil(self.count / block), block, steps, self._run(1, block, target), ACCESS)

    def by_crew(self, crew: Crew, target: Gpu) -> Launch:
        """A row a crew."""
        more = coming_together(crew, self.longest, target) + ACCESS
        steps = of_crew(crew, self.longest) * self.others
        shared = crew.left * crew.tall * max(4, self.itemsize)
        run = self._run(crew.wide, crew.tall, target)
        return self._launch(ceil(self.count / crew.tall), crew.wide * crew.tall, steps, run, more, shared)

    def by_columns(self, columns: int, wide: int, deep: int, target: Gpu) -> Launch:
        """Columns of a row of so many, and threads that share the terms of each."""
        blocks = self.count // columns * ceil(columns / wide)
        steps = ceil(self.longest / deep) * self.others
        more = (meeting(wide * deep, target) + (ACCESS + 1) * deep if deep > 1 else 0) + ACCESS
        shared = wide * deep * max(4, self.itemsize)
        return self._launch(blocks, wide * deep, steps, wide * self.itemsize, more, shared)

    def in_shares(self, shares: int, few: int, block: int, target: Gpu) -> float:
        """Seconds of a launch that makes so many shares of each element, one that makes these a few, and one for those.

        Beginning all of them but the first is a part of it.
        """
        taken, left = 0.0, self.longest
        for count in (shares, few, 1):
            if count < left:
                threads = self.count * count
                steps = ceil(left / count) * (1 if taken else self.others)
                run = self._run(count, 1, target) if self.between == 1 else self._run(1, block, target)
                whole = self._launch(ceil(threads / block), min(threads, block), steps, run, ACCESS)
                if taken:
                    moved = self.count * left * self.itemsize
                    whole = replace(whole, nbytes=moved)
                    taken += target.launch_us * 1e-6
                taken += seconds(whole, target)
                left = count
        return taken


def _distances(op: te.Compute, longest: Var) -> tuple[int, int]:
    """How far apart, in elements of the largest operand, neighbouring elements begin to read, and terms are."""
    largest = max((ld for b in op.bodies for ld in loads(b) if ld.indices), key=lambda ld: ld.source.size, default=None)
    if largest is None:
        return 1, 1
    offset = weighted(largest.indices, dense_strides(largest.source.shape))
    last = next((a for a in reversed(op.axes) if a.hi > 0), None)
    return abs(offset.coefficient(last) or 0) if last is not None else 1, abs(offset.coefficient(longest) or 0)
