"""Features of loops and of the relation between them (AutoTVM §3.1 and §4), in batch.

* For every loop around the heaviest stage: its extent, how it runs, iterations outside and inside it, and, for each
  buffer, the bytes it touches, how often it uses each of them again, and the stride of neighbouring iterations.
* The relation between them, which does not depend on how many loops there are: for each buffer, the greatest reuse
  among loops that touch less than some sizes, and how often such a block is entered and how much is done in it. It is
  the curve of reuse over cache size, and carries over from one operator to another.
"""

from __future__ import annotations

from math import log2, prod

import numpy as np

from mlc.ir.loop import ForKind
from mlc.lower.inline import inline
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import Values, Ways
from mlc.targets.base import Target
from mlc.tune.features.nest import Loop, Nests, Number, StageNest
from mlc.tune.task import Task, candidate

LOOPS = 12  # innermost loops that are described one by one
BUFFERS = 4  # accesses of a stage that are described, those of the most bytes
KINDS = (ForKind.SERIAL, ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED)
PER_LOOP = 4 + len(KINDS) + 3 * BUFFERS
SIZES = tuple(float(1 << k) for k in range(8, 26, 2))  # bytes: from some vectors to what no cache holds
OTHERS = 2  # further stages that are described as a whole


class LoopFeatures:
    """Describes configurations of one task by their loops.

    Args:
        task: whose configurations.
        target: whose schedules.
        relation: whether to add the relation features; without any loop features where ``loops`` is false.
        loops: whether to add those of single loops.
    """

    def __init__(self, task: Task, target: Target, *, relation: bool = True, loops: bool = True) -> None:
        self._space = task.space
        self._wanted = (loops, relation)
        # constants stay row-major: every configuration packs them its own way
        node = candidate(task, target, task.space.default)

        def template(knobs: Knobs) -> Schedule | None:
            schedule = target.schedule(node, knobs)
            if schedule is not None:
                inline(schedule)
            return schedule

        self._ways = Ways(template, task.space)

    @property
    def width(self) -> int:
        """Number of features."""
        loops, relation = self._wanted
        return (LOOPS * PER_LOOP if loops else 0) + (3 * BUFFERS * len(SIZES) if relation else 0) + 3 * OTHERS

    def valid(self, rows: np.ndarray) -> np.ndarray:
        """Which configurations the template accepts: bool ``[n]``; the lowering may still refuse some."""
        good = np.zeros(len(rows), bool)
        for way, at in self._ways.split(rows):
            good[at] = way.result is not None
        return good

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """float32 ``[n, width]``; zeros for configurations that the template refuses."""
        found = np.zeros((len(rows), self.width), np.float32)
        for way, at in self._ways.split(rows):
            if way.result is not None:
                found[at] = self._describe(way.result, Values(self._space, rows[at]))
        return found

    def sequence(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loops one after another, for models that read sequences.

        Returns:
            float32 ``[n, LOOPS, PER_LOOP]``, outermost first, and bool ``[n, LOOPS]``, which of them exist.
        """
        found = np.zeros((len(rows), LOOPS, PER_LOOP), np.float32)
        mask = np.zeros((len(rows), LOOPS), bool)
        for way, at in self._ways.split(rows):
            if way.result is not None:
                nest = _heaviest(Nests(way.result, Values(self._space, rows[at])))[0]
                matrix = _loop_matrix(nest, len(at))
                found[at], mask[at, LOOPS - min(len(nest.loops), LOOPS) :] = matrix, True
        return found, mask

    def _describe(self, schedule: Schedule, values: Values) -> np.ndarray:
        nests = Nests(schedule, values)
        n = nests.n
        main, *rest = _heaviest(nests)
        parts = []
        if self._wanted[0]:
            parts.append(_loop_matrix(main, n).reshape(n, -1))
        if self._wanted[1]:
            parts.append(_relation(main, n))
        parts.append(_summaries(rest, n))
        return np.concatenate(parts, axis=1)


def _heaviest(nests: Nests) -> list[StageNest]:
    """Stages in descending order of iterations of the first configuration."""
    ordered = sorted(
        nests.stages, key=lambda s: prod(int(a.hi) + 1 for a in (*s.op.axes, *s.op.reduce_axes)), reverse=True
    )
    return [nests.of(s) for s in ordered[: 1 + OTHERS]]


def _log(x: Number) -> Number:
    return log2(max(x, 1.0)) if isinstance(x, float) else np.log2(np.maximum(x, 1.0))


def _products(loops: tuple[Loop, ...]) -> tuple[list[Number], list[Number]]:
    """Iterations of all loops outside each loop, and of it and all inside it."""
    outside: list[Number] = []
    total: Number = 1.0
    for loop in loops:
        outside.append(total)
        total = total * loop.extent
    return outside, [total / o for o in outside]


def _buffers(nest: StageNest) -> list[int]:
    """Accesses of the most bytes, greatest first."""
    if not nest.loops:
        return []
    whole = [
        float(np.max(t)) * a.tensor.dtype.itemsize for t, a in zip(nest.loops[0].touched, nest.accesses, strict=True)
    ]
    return sorted(range(len(whole)), key=lambda k: whole[k], reverse=True)[:BUFFERS]


def _loop_matrix(nest: StageNest, n: int) -> np.ndarray:
    """float32 ``[n, LOOPS, PER_LOOP]``: the innermost loops, the last one in the last place."""
    found = np.zeros((LOOPS, PER_LOOP, n), np.float32)
    outside, inside = _products(nest.loops)
    chosen = _buffers(nest)
    skipped = max(0, len(nest.loops) - LOOPS)
    for k, loop in enumerate(nest.loops[skipped:], skipped):
        at = found[LOOPS - len(nest.loops) + k]
        at[0], at[1], at[2], at[3] = _log(loop.extent), _log(outside[k]), _log(inside[k]), loop.reduces
        at[4 + KINDS.index(loop.kind)] = 1
        for b, access in enumerate(chosen):
            first = 4 + len(KINDS) + 3 * b
            touched = loop.touched[access]
            at[first] = _log(touched * nest.accesses[access].tensor.dtype.itemsize)
            at[first + 1] = _log(inside[k] / touched)
            at[first + 2] = _log(1 + loop.stride[access])
    return found.transpose(2, 0, 1)


def _relation(nest: StageNest, n: int) -> np.ndarray:
    """float32 ``[n, BUFFERS * SIZES * 3]``, by buffer and bytes: the outermost loop that touches less than that.

    Told of it: the most reuse there or further in, iterations outside, iterations inside.
    """
    found = np.zeros((BUFFERS, len(SIZES), 3, n), np.float32)
    if not nest.loops:
        return found.reshape(-1, n).T
    outside, inside = _products(nest.loops)
    places = np.arange(n)

    def stacked(numbers: list[Number]) -> np.ndarray:
        """float32 ``[loops + 1, n]``; the last row is the body alone."""
        rows = np.zeros((len(numbers) + 1, n), np.float32)
        for row, number in zip(rows, numbers, strict=False):
            row[:] = number
        return rows

    starts = stacked([_log(o) for o in outside])
    starts[-1] = starts[-2] + np.log2(np.maximum(nest.loops[-1].extent, 1.0))
    work = stacked([_log(i) for i in inside])
    for b, access in enumerate(_buffers(nest)):
        itemsize = nest.accesses[access].tensor.dtype.itemsize
        nbytes = stacked([loop.touched[access] * itemsize for loop in nest.loops])
        reuse = stacked([_log(i / loop.touched[access]) for i, loop in zip(inside, nest.loops, strict=True)])
        reuse = np.maximum.accumulate(reuse[::-1], axis=0)[::-1]
        for t, size in enumerate(SIZES):
            at = (nbytes >= size).sum(axis=0)  # loops touch less the further in they are
            found[b, t] = reuse[at, places], starts[at, places], work[at, places]
    return found.reshape(-1, n).T


def _summaries(nests: list[StageNest], n: int) -> np.ndarray:
    """float32 ``[n, OTHERS * 3]``: iterations, how often a stage starts, and bytes it touches each time."""
    found = np.zeros((n, OTHERS, 3), np.float32)
    for k, nest in enumerate(nests):
        total: Number = 1.0
        starts: Number = 1.0
        own = len(nest.stage.leaves)
        for j, loop in enumerate(nest.loops):
            total = total * loop.extent
            starts = starts * (loop.extent if j < len(nest.loops) - own else 1.0)
        found[:, k, 0], found[:, k, 1] = _log(total), _log(starts)
        if nest.loops:
            inner = nest.loops[-own] if own else nest.loops[-1]
            found[:, k, 2] = _log(sum(inner.touched, start=0.0) * 4)
    return found.reshape(n, -1)
