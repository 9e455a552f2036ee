"""Features of loops and of the relation between them (AutoTVM §3.1 and §4), in batch.

* For every loop around the heaviest stage: its extent, how it runs, iterations outside and inside it, and, for each
  buffer, the bytes it touches, how often it uses each of them again, and the stride of neighbouring iterations.
* The relation between them, which does not depend on how many loops there are: for each buffer, the greatest reuse
  among loops that touch less than some sizes, and how often such a block is entered and how much is done in it. It is
  the curve of reuse over cache size, and carries over from one operator to another.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir.loop import ForKind
from mlc.lower.inline import inline
from mlc.lower.knobs import Config, Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import Values, Way, Ways
from mlc.targets.base import Target
from mlc.tune.features.formula import Formula, Formulas, Program
from mlc.tune.features.nest import Nests, Number, StageNest
from mlc.tune.task import Task, candidate

LOOPS = 12  # innermost loops that are described one by one
BUFFERS = 4  # accesses of a stage that are described, those of the greatest buffers
KINDS = (ForKind.SERIAL, ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED)
EXTENT, OUTSIDE, INSIDE, REDUCES, KIND = range(5)
BUFFER = KIND + len(KINDS)  # bytes, reuse and stride of the first buffer, then those of the next
PER_LOOP = BUFFER + 3 * BUFFERS
SIZES = tuple(range(8, 26, 2))  # log2 of bytes: from some vectors to what no cache holds
OTHERS = 2  # further stages that are described as a whole
_LOGGER = logging.getLogger("mlc")


@dataclass(frozen=True, eq=False)
class _Unknown:
    """What there is of a configuration on which the template, or what describes its schedules, has failed."""


@dataclass(frozen=True, eq=False)
class _Compiled:
    """The features of all configurations that take one way.

    Args:
        program: gives ``LOOPS * PER_LOOP + 3 * OTHERS`` numbers.
        loops: how many loops there are, at most ``LOOPS``.
    """

    program: Program
    loops: int


class LoopFeatures:
    """Describes configurations of one task by their loops.

    Where a template fails with anything but a refusal, that costs the configuration its description and not the run its
    life: the log has a warning, and the trial goes ahead, in which whoever builds the configuration says what became of
    it.

    Args:
        task: whose configurations.
        target: whose schedules.
        loops: whether to give the features of single loops.
        relation: whether to give those of their relation.
    """

    def __init__(self, task: Task, target: Target, *, loops: bool = True, relation: bool = True) -> None:
        self._name, self._space = task.name, task.space
        self._wanted = (loops, relation)
        node = candidate(task, target, task.space.default)

        def template(knobs: Knobs) -> Schedule | _Unknown | None:
            try:
                schedule = target.schedule(node, knobs)
                if schedule is not None:
                    inline(schedule)
            except ScheduleError:
                raise
            except Exception as error:  # of a template that anybody may have written
                return self._unknown(knobs.config, error)
            return schedule

        self._troubles: set[str] = set()
        self._ways = Ways(template, task.space)
        self._formulas = Formulas()
        self._compiled: dict[Way, _Compiled | None] = {}  # none where there is nothing to describe
        # ways that differ in what features do not tell, such as prefetches, share a program
        self._programs: dict[tuple[object, ...], _Compiled] = {}

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
        """float32 ``[n, width]``; zeros for configurations that the template refuses or fails on."""
        numbers, count = self._numbers(rows)
        loops, relation = self._wanted
        first = LOOPS * PER_LOOP
        parts = [numbers[first:]]
        if relation:
            parts.insert(0, _relation(numbers[:first].reshape(LOOPS, PER_LOOP, -1), count))
        if loops:
            parts.insert(0, numbers[:first])
        return np.concatenate(parts).T

    def sequence(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loops one after another, for models that read sequences.

        Returns:
            float32 ``[n, LOOPS, PER_LOOP]``, outermost first and the innermost last, and bool ``[n, LOOPS]``, which of
            them exist.
        """
        numbers, count = self._numbers(rows)
        matrix = numbers[: LOOPS * PER_LOOP].reshape(LOOPS, PER_LOOP, -1).transpose(2, 0, 1)
        return matrix, np.arange(LOOPS) >= LOOPS - count[:, None]

    def _numbers(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float32 ``[LOOPS * PER_LOOP + 3 * OTHERS, n]``, and how many loops each configuration has."""
        numbers = np.zeros((LOOPS * PER_LOOP + 3 * OTHERS, len(rows)), np.float32)
        count = np.zeros(len(rows), np.int64)
        parts: dict[_Compiled, list[np.ndarray]] = {}
        for way, at in self._ways.split(rows):
            if way not in self._compiled:
                self._compiled[way] = self._compile(way.result, rows[at[0]])
            compiled = self._compiled[way]
            if compiled is not None:
                parts.setdefault(compiled, []).append(at)
        for compiled, where in parts.items():
            at = np.concatenate(where)
            numbers[:, at] = compiled.program.run(Values(self._space, rows[at]))
            count[at] = compiled.loops
        return numbers, count

    def _compile(self, schedule: Schedule | _Unknown | None, row: np.ndarray) -> _Compiled | None:
        """What describes all configurations that have such a schedule, ``row`` among them."""
        if not isinstance(schedule, Schedule):
            return None
        try:
            outputs, loops = _features(Nests(schedule, self._formulas))
        except Exception as error:  # of an expression that nobody has thought of
            self._unknown(self._space.config(row), error)
            return None
        key = (loops, *(id(o) if isinstance(o, Formula) else float(o) for o in outputs))
        if key not in self._programs:
            self._programs[key] = _Compiled(Program(outputs), loops)
        return self._programs[key]

    def _unknown(self, config: Config, error: Exception) -> _Unknown:
        """Says what went wrong, once."""
        text = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        if text not in self._troubles:
            self._troubles.add(text)
            shown = ", ".join(f"{name}={value}" for name, value in config.items())
            _LOGGER.warning(
                "%s: a configuration cannot be described and is tried without: %s (%s)",
                self._name, text[:200], shown[:200],
            )  # fmt: skip
        return _Unknown()


def _features(nests: Nests) -> tuple[list[Number], int]:
    """``LOOPS * PER_LOOP + 3 * OTHERS`` numbers, and how many loops they tell of."""
    main, *rest = _heaviest(nests)
    found: list[Number] = [0.0] * (LOOPS * PER_LOOP)
    skipped = max(0, len(main.loops) - LOOPS)
    outside, inside = _products(main)
    for k, loop in enumerate(main.loops[skipped:], skipped):
        first = (LOOPS - len(main.loops) + k) * PER_LOOP
        found[first + EXTENT] = nests.log(loop.extent)
        found[first + OUTSIDE] = nests.log(outside[k])
        found[first + INSIDE] = nests.log(inside[k])
        found[first + REDUCES] = float(loop.reduces)
        found[first + KIND + KINDS.index(loop.kind)] = 1.0
        for b, access in enumerate(_buffers(main)):
            at = first + BUFFER + 3 * b
            touched = loop.touched[access]
            nbytes = main.accesses[access].tensor.dtype.itemsize
            found[at] = nests.log(touched) + log2(nbytes)
            found[at + 1] = nests.log(inside[k] / touched)
            found[at + 2] = nests.log(1 + loop.stride[access])
    for nest in rest:
        found += _summary(nests, nest)
    found += [0.0] * (3 * (OTHERS - len(rest)))
    return found, len(main.loops) - skipped


def _heaviest(nests: Nests) -> list[StageNest]:
    """Stages in descending order of iterations."""
    ordered = sorted(
        nests.stages, key=lambda s: prod(int(a.hi) + 1 for a in (*s.op.axes, *s.op.reduce_axes)), reverse=True
    )
    return [nests.of(s) for s in ordered[: 1 + OTHERS]]


def _products(nest: StageNest) -> tuple[list[Number], list[Number]]:
    """Iterations of all loops outside each loop, and of it and all inside it."""
    outside: list[Number] = []
    total: Number = 1.0
    for loop in nest.loops:
        outside.append(total)
        total = total * loop.extent
    inside: list[Number] = []
    total = 1.0
    for loop in reversed(nest.loops):
        total = total * loop.extent
        inside.append(total)
    return outside, inside[::-1]


def _buffers(nest: StageNest) -> list[int]:
    """Accesses to the greatest buffers, greatest first."""
    nbytes = [prod(a.tensor.shape) * a.tensor.dtype.itemsize for a in nest.accesses]
    return sorted(range(len(nbytes)), key=lambda k: nbytes[k], reverse=True)[:BUFFERS]


def _summary(nests: Nests, nest: StageNest) -> list[Number]:
    """Iterations of a stage, how often it starts, and the elements it touches each time."""
    total: Number = 1.0
    starts: Number = 1.0
    own = len(nest.stage.leaves)
    for j, loop in enumerate(nest.loops):
        total = total * loop.extent
        if j < len(nest.loops) - own:
            starts = starts * loop.extent
    touched = sum(nest.loops[-own].touched, start=0.0) if own else 1.0
    return [nests.log(total), nests.log(starts), nests.log(touched)]


def _relation(loops: np.ndarray, count: np.ndarray) -> np.ndarray:
    """float32 ``[BUFFERS * SIZES * 3, n]``, by buffer and size: the outermost loop that touches less than that.

    Told of it: the most reuse there or further in, iterations outside, iterations inside.

    Args:
        loops: float32 ``[LOOPS, PER_LOOP, n]``.
        count: how many loops each configuration has.
    """
    n = loops.shape[2]
    missing = np.arange(LOOPS)[:, None] < LOOPS - count
    places = np.arange(n)
    body = np.zeros((1, n), np.float32)
    starts = np.concatenate([loops[:, OUTSIDE], loops[-1:, OUTSIDE] + loops[-1:, EXTENT]])
    work = np.concatenate([loops[:, INSIDE], body])
    found = np.zeros((BUFFERS, len(SIZES), 3, n), np.float32)
    for b in range(BUFFERS):
        nbytes = np.where(missing, np.inf, loops[:, BUFFER + 3 * b])
        reuse = np.concatenate([loops[:, BUFFER + 3 * b + 1], body])
        reuse = np.maximum.accumulate(reuse[::-1], axis=0)[::-1]
        for t, size in enumerate(SIZES):
            at = (nbytes >= size).sum(axis=0)  # loops touch less the further in they are
            found[b, t] = reuse[at, places], starts[at, places], work[at, places]
    return found.reshape(-1, n)
