"""Features of loops and of the relation between them (AutoTVM §3.1 and §4), in batch.

* For every loop around the heaviest stage: its extent, how it runs, iterations outside and inside it, and, for each
  buffer, the bytes it touches, how often it uses each of them again, and the stride of neighbouring iterations.
* The relation between them, which does not depend on how many loops there are: for each buffer, the greatest reuse
  among loops that touch less than some sizes, and how often such a block is entered and how much is done in it. It is
  the curve of reuse over cache size, and carries over from one operator to another.

A schedule gives formulas for extents, touched elements and strides (:func:`outline_of`); everything else is computed
from their values, for configurations of many schedules at once (:func:`described`, :func:`relation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log2, prod
from operator import mul

import numpy as np

from mlc.ir.loop import ForKind
from mlc.lower.stage import Stage
from mlc.lower.symbolic import Sym
from mlc.tuning.features.grid import numbers_of
from mlc.tuning.features.nest import Nests, Number, StageNest

LOOPS = 12  # innermost loops that are described one by one
BUFFERS = 4  # accesses of a stage that are described, those of the greatest buffers
KINDS = (ForKind.SERIAL, ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED)
_ALIKE = {ForKind.THREAD: ForKind.PARALLEL, ForKind.VTHREAD: ForKind.UNROLLED}  # which grids have besides
EXTENT, OUTSIDE, INSIDE, REDUCES, KIND = range(5)
BUFFER = KIND + len(KINDS)  # bytes, reuse and stride of the first buffer, then those of the next
PER_LOOP = BUFFER + 3 * BUFFERS
SIZES = tuple(range(8, 26, 2))  # log2 of bytes: from some vectors to what no cache holds
OTHERS = 2  # further stages that are described as a whole

_TOUCHED, _STRIDE = 1, 1 + BUFFERS  # after the extent of a loop
_PER_LOOP = _STRIDE + BUFFERS
_START = LOOPS * _PER_LOOP  # iterations of the loops outside of those that are described
NUMBERS = _START + 1 + 3 * OTHERS


@dataclass(frozen=True, eq=False)
class Outline:
    """What the features of all configurations with one structure of loops are made of.

    Args:
        numbers: ``NUMBERS`` formulas or numbers, and where wanted those of :mod:`~mlc.tuning.features.grid`: of each
            loop, outermost first and the innermost last, its extent, the
            elements that it touches of each buffer and its stride in each; iterations of the loops outside of those;
            of each further stage its iterations, how often it starts, and the elements that it touches each time.
        loops: how many there are, at most ``LOOPS``.
        runs: float32 ``[LOOPS, BUFFER - REDUCES]``, whether each sums up and how it runs.
        itemsize: log2 of the bytes of an element of each buffer, one a buffer that there is.
    """

    numbers: tuple[Number, ...]
    loops: int
    runs: np.ndarray
    itemsize: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Outlines:
    """Some outlines, as arrays over them: ``loops`` and ``buffers`` count what there is, ``[outlines]``."""

    loops: np.ndarray
    buffers: np.ndarray
    runs: np.ndarray
    itemsize: np.ndarray

    @staticmethod
    def of(outlines: Sequence[Outline]) -> Outlines:
        itemsize = np.zeros((len(outlines), BUFFERS))
        for k, o in enumerate(outlines):
            itemsize[k, : len(o.itemsize)] = o.itemsize
        return Outlines(
            np.array([o.loops for o in outlines]),
            np.array([len(o.itemsize) for o in outlines]),
            np.array([o.runs for o in outlines]),
            itemsize,
        )

    def __getitem__(self, which: np.ndarray) -> Outlines:
        return Outlines(self.loops[which], self.buffers[which], self.runs[which], self.itemsize[which])


def outline_of(nests: Nests, *, grid: bool = False) -> Outline:
    """The outline of a schedule.

    Args:
        nests: of its stages.
        grid: whether it is for grids of threads.
    """
    main, *rest = _heaviest(nests)
    numbers: list[Number] = [1.0, *[1.0] * BUFFERS, *[0.0] * BUFFERS] * LOOPS
    runs = np.zeros((LOOPS, BUFFER - REDUCES), np.float32)
    skipped = max(0, len(main.loops) - LOOPS)
    buffers = _buffers(main)
    for k, loop in enumerate(main.loops[skipped:], LOOPS - len(main.loops) + skipped):
        first = k * _PER_LOOP
        numbers[first] = loop.extent
        for b, access in enumerate(buffers):
            numbers[first + _TOUCHED + b] = loop.touched[access]
            numbers[first + _STRIDE + b] = loop.stride[access]
        runs[k, 0] = loop.reduces
        runs[k, KIND - REDUCES + KINDS.index(_ALIKE.get(loop.kind, loop.kind))] = 1.0
    numbers.append(_product(loop.extent for loop in main.loops[:skipped]))
    for nest in rest:
        numbers += _summary(nest)
    numbers += [1.0] * (3 * (OTHERS - len(rest)))
    if grid:
        numbers += numbers_of(nests, main, buffers)
    itemsize = tuple(log2(main.accesses[b].tensor.dtype.itemsize) for b in buffers)
    return Outline(tuple(numbers), len(main.loops) - skipped, runs, itemsize)


def _heaviest(nests: Nests) -> list[StageNest]:
    """The stage of most iterations, then others in descending order of them, as far as no knob decides on these."""

    def extents(stage: Stage) -> list[int]:
        return [a.hi + 1 for a in (*stage.op.axes, *stage.op.reduce_axes)]

    main = max(nests.stages, key=lambda s: prod(map(int, extents(s))))
    rest = sorted((s for s in nests.stages if s is not main), key=lambda s: _fixed(extents(s)), reverse=True)
    return [nests.of(s) for s in (main, *rest[:OTHERS])]


def _fixed(extents: Iterable[int]) -> int:
    """The product of what is the same in all configurations."""
    return prod(n for n in extents if not isinstance(n, Sym))


def _product(numbers: Iterable[Number]) -> Number:
    return reduce(mul, numbers, 1.0)


def _buffers(nest: StageNest) -> list[int]:
    """Accesses to the greatest buffers, greatest first."""
    made = nest.stage.op.outputs
    sizes = [_fixed(a.tensor.shape) if a.tensor in made else prod(a.tensor.shape) for a in nest.accesses]
    nbytes = [size * a.tensor.dtype.itemsize for size, a in zip(sizes, nest.accesses, strict=True)]
    return sorted(range(len(nbytes)), key=lambda k: nbytes[k], reverse=True)[:BUFFERS]


def _summary(nest: StageNest) -> list[Number]:
    """Iterations of a stage, how often it starts, and the elements it touches each time."""
    own = len(nest.stage.leaves)
    starts = _product(loop.extent for loop in nest.loops[: len(nest.loops) - own])
    touched = sum(nest.loops[-own].touched, start=0.0) if own else 1.0
    return [_product(loop.extent for loop in nest.loops), starts, touched]


def described(numbers: np.ndarray, outlines: Outlines) -> tuple[np.ndarray, np.ndarray]:
    """Features of single loops, and of the further stages.

    Args:
        numbers: float64 ``[NUMBERS, n]``.
        outlines: of each configuration, ``n`` of them.
    Returns:
        float32 ``[LOOPS, PER_LOOP, n]`` and ``[3 * OTHERS, n]``.
    """
    n = numbers.shape[1]
    found = np.zeros((LOOPS, PER_LOOP, n), np.float32)
    first = LOOPS - int(outlines.loops.max())
    most = int(outlines.buffers.max())
    loops = numbers[:_START].reshape(LOOPS, _PER_LOOP, n)[first:]
    extent = loops[:, 0]
    touched = loops[:, _TOUCHED : _TOUCHED + most]
    stride = loops[:, _STRIDE : _STRIDE + most]
    inside = np.multiply.accumulate(extent[::-1])[::-1]
    last = BUFFER + 3 * most
    part = found[first:]
    part[:, EXTENT] = _log(extent)
    part[:, OUTSIDE] = _log(np.multiply.accumulate(np.concatenate([numbers[_START : _START + 1], extent[:-1]])))
    part[:, INSIDE] = _log(inside)
    part[:, REDUCES:BUFFER] = outlines.runs[:, first:].transpose(1, 2, 0)
    part[:, BUFFER:last:3] = _log(touched) + outlines.itemsize[:, :most].T
    part[:, BUFFER + 1 : last : 3] = _log(inside[:, None] / touched)
    part[:, BUFFER + 2 : last : 3] = _log(1 + stride)
    if outlines.buffers.min() < most:
        part[:, BUFFER + 1 : last : 3] *= np.arange(most)[:, None] < outlines.buffers
    if outlines.loops.min() < outlines.loops.max():
        found *= (np.arange(LOOPS)[:, None] >= LOOPS - outlines.loops)[:, None]
    return found, _log(numbers[_START + 1 : NUMBERS]).astype(np.float32)


def _log(x: np.ndarray) -> np.ndarray:
    """The logarithm to base 2; 0 for what is less than 1."""
    found: np.ndarray = np.log2(np.maximum(x, 1.0))
    return found


def relation(loops: np.ndarray, count: np.ndarray) -> np.ndarray:
    """float32 ``[BUFFERS * SIZES * 3, n]``, by buffer and size: the outermost loop that touches less than that.

    Told of it: the most reuse there or further in, iterations outside, iterations inside.

    Args:
        loops: float32 ``[LOOPS, PER_LOOP, n]``.
        count: how many loops each configuration has.
    """
    n = loops.shape[2]
    missing = np.arange(LOOPS)[:, None] < LOOPS - count
    places = np.arange(n)
    sizes = np.array(SIZES, np.float32)[:, None, None]
    body = np.zeros((1, n), np.float32)
    starts = np.concatenate([loops[:, OUTSIDE], loops[-1:, OUTSIDE] + loops[-1:, EXTENT]])
    work = np.concatenate([loops[:, INSIDE], body])
    found = np.zeros((BUFFERS, len(SIZES), 3, n), np.float32)
    for b in range(BUFFERS):
        nbytes = np.where(missing, np.inf, loops[:, BUFFER + 3 * b])
        reuse = np.concatenate([loops[:, BUFFER + 3 * b + 1], body])
        reuse = np.maximum.accumulate(reuse[::-1], axis=0)[::-1]
        at = (nbytes >= sizes).sum(axis=1, dtype=np.int8)  # loops touch less the further in they are
        where = at.astype(np.int64) * n + places
        for k, figure in enumerate((reuse, starts, work)):
            found[b, :, k] = figure.reshape(-1)[where]
    return found.reshape(-1, n)
