"""Features of loops and of the relation between them (AutoTVM §3.1 and §4), in batch.

* For every loop around the heaviest stage: its extent, how it runs, iterations outside and inside it, and, for each
  buffer, the bytes it touches, how often it uses each of them again, and the stride of neighbouring iterations.
* The relation between them, which does not depend on how many loops there are: for each buffer, the greatest reuse
  among loops that touch less than some sizes, and how often such a block is entered and how much is done in it. It is
  the curve of reuse over cache size, and carries over from one operator to another.

* Where wanted the loops of further stages as well, and which of all loops each is directly inside of: the loop AST.

A schedule gives formulas for extents, touched elements and strides (:func:`outline_of`); everything else is computed
from their values, for configurations of many schedules at once (:func:`described`, :func:`relation`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log2, prod
from operator import mul
from zlib import crc32

import numpy as np

from mlc.ir.loop import ForKind
from mlc.lower.stage import Stage
from mlc.lower.symbolic import Sym
from mlc.tuning.features.grid import numbers_of
from mlc.tuning.features.nest import Loop, Nests, Number, StageNest

LOOPS = 12  # innermost loops that are described one by one
BUFFERS = 4  # accesses of a stage that are described, those of the greatest buffers
KINDS = (ForKind.SERIAL, ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED)
_ALIKE = {ForKind.THREAD: ForKind.PARALLEL, ForKind.VTHREAD: ForKind.UNROLLED}  # which grids have besides
EXTENT, OUTSIDE, INSIDE, REDUCES, KIND = range(5)
BUFFER = KIND + len(KINDS)  # bytes, reuse and stride of the first buffer, then those of the next
PER_LOOP = BUFFER + 3 * BUFFERS
SIZES = tuple(range(8, 26, 2))  # log2 of bytes: from some vectors to what no cache holds
OTHERS = 2  # further stages that are described as a whole
BRANCH = 6  # innermost loops of each of these that a tree has
NODES = LOOPS + OTHERS * BRANCH  # of a tree
NAMES = 64  # what loops are called is told by numbers below, the same in all programs

_TOUCHED, _STRIDE = 1, 1 + BUFFERS  # after the extent of a loop
_PER_LOOP = _STRIDE + BUFFERS
NUMBERS = LOOPS * _PER_LOOP + 1 + 3 * OTHERS


@dataclass(frozen=True, eq=False)
class Chain:
    """What the features of loops around a stage are made of, the innermost of them, in all configurations of a kind.

    Args:
        numbers: ``numbers_of_chain(most)`` formulas or numbers: of each loop, outermost first and the innermost last,
            its extent, the elements that it touches of each buffer and its stride in each; then iterations of the loops
            outside of those.
        loops: how many there are, at most ``most``; those that are missing come first.
        runs: float32 ``[most, BUFFER - REDUCES]``, whether each sums up and how it runs.
        itemsize: log2 of the bytes of an element of each buffer, one a buffer that there is.
    """

    numbers: tuple[Number, ...]
    loops: int
    runs: np.ndarray
    itemsize: tuple[float, ...]

    @property
    def key(self) -> Hashable:
        """The same for chains that describe alike."""
        return self.numbers, self.loops, self.runs.tobytes(), self.itemsize


@dataclass(frozen=True, eq=False)
class Chains:
    """Some chains of as many loops at most, as arrays: ``loops`` and ``buffers`` count what there is, ``[chains]``."""

    loops: np.ndarray
    buffers: np.ndarray
    runs: np.ndarray
    itemsize: np.ndarray

    @staticmethod
    def of(chains: Sequence[Chain]) -> Chains:
        itemsize = np.zeros((len(chains), BUFFERS))
        for k, c in enumerate(chains):
            itemsize[k, : len(c.itemsize)] = c.itemsize
        return Chains(
            np.array([c.loops for c in chains]),
            np.array([len(c.itemsize) for c in chains]),
            np.array([c.runs for c in chains]),
            itemsize,
        )

    def __getitem__(self, which: np.ndarray) -> Chains:
        return Chains(self.loops[which], self.buffers[which], self.runs[which], self.itemsize[which])


@dataclass(frozen=True, eq=False)
class Outline:
    """What the features of all configurations with one structure of loops are made of.

    Args:
        numbers: ``NUMBERS`` formulas or numbers: those of the heaviest stage's loops, then of each further stage its
            iterations, how often it starts, and the elements that it touches each time; and where wanted those of
            :mod:`~mlc.tuning.features.grid`, or of :mod:`~mlc.tuning.features.tree`.
        chain: the loops around the heaviest stage, at most ``LOOPS``.
        tree: how these and further loops are inside of one another; nothing where that is not wanted.
    """

    numbers: tuple[Number, ...]
    chain: Chain
    tree: Tree | None = None

    @property
    def key(self) -> Hashable:
        """The same for outlines that describe alike."""
        return self.numbers, self.chain.key, None if self.tree is None else self.tree.key


@dataclass(frozen=True, eq=False)
class Tree:
    """How loops are inside of one another: those of a chain first, then those of further stages.

    Args:
        branches: chains of further stages, without the loops around them that others have.
        parents: int64 ``[nodes]``, the loop that each is directly inside of, always an earlier one; -1 for none.
        names: int64 ``[nodes]``, numbers of what the loops are called; 0 for those that are missing.
    """

    branches: tuple[Chain, ...]
    parents: np.ndarray
    names: np.ndarray

    @property
    def key(self) -> Hashable:
        """The same for trees that describe alike."""
        return tuple(b.key for b in self.branches), self.parents.tobytes(), self.names.tobytes()


def outline_of(nests: Nests, *, grid: bool = False, tree: bool = False) -> Outline:
    """The outline of a schedule.

    Args:
        nests: of its stages.
        grid: whether it is for grids of threads.
        tree: whether to tell how loops are inside of one another.
    """
    main, *rest = _heaviest(nests)
    chain = chain_of(main, main.loops, LOOPS)
    numbers = [*chain.numbers]
    for nest in rest:
        numbers += _summary(nest)
    numbers += [1.0] * (3 * (OTHERS - len(rest)))
    found = _tree_of(nests, main, rest) if tree else None
    if grid:
        numbers += numbers_of(nests, main, _buffers(main))
    elif found is not None:
        numbers += [n for b in found.branches for n in b.numbers]
    return Outline(tuple(numbers), chain, found)


def numbers_of_chain(most: int) -> int:
    """How many numbers describe at most so many loops."""
    return most * _PER_LOOP + 1


def chain_of(nest: StageNest, own: Sequence[Loop], most: int) -> Chain:
    """The innermost loops around a stage, at most ``most`` of its ``own`` ones, which are the last of all of them."""
    numbers: list[Number] = [1.0, *[1.0] * BUFFERS, *[0.0] * BUFFERS] * most
    runs = np.zeros((most, BUFFER - REDUCES), np.float32)
    loops = min(len(own), most)
    buffers = _buffers(nest)
    for k, loop in enumerate(nest.loops[len(nest.loops) - loops :], most - loops):
        first = k * _PER_LOOP
        numbers[first] = loop.extent
        for b, access in enumerate(buffers):
            numbers[first + _TOUCHED + b] = loop.touched[access]
            numbers[first + _STRIDE + b] = loop.stride[access]
        runs[k, 0] = loop.reduces
        runs[k, KIND - REDUCES + KINDS.index(_ALIKE.get(loop.kind, loop.kind))] = 1.0
    numbers.append(_product(loop.extent for loop in nest.loops[: len(nest.loops) - loops]))
    itemsize = tuple(log2(nest.accesses[b].tensor.dtype.itemsize) for b in buffers)
    return Chain(tuple(numbers), loops, runs, itemsize)


def _tree_of(nests: Nests, main: StageNest, rest: Sequence[StageNest]) -> Tree:
    """The loops around the heaviest stage as a chain, and those of further stages beside or inside of it."""
    parents, names = np.full(NODES, -1, np.int64), np.zeros(NODES, np.int64)
    place: dict[tuple[Stage, int], int] = {}  # of the loops that have one

    def put(stage: Stage, loops: int, end: int) -> None:
        """Gives the innermost loops around a stage the places before ``end``."""
        around = nests.around(stage)
        for k in range(len(around) - loops, len(around)):
            at = end - len(around) + k
            # loops may be left out in between
            outer = next((place[a] for a in reversed(around[:k]) if a in place), -1)
            host, leaf = around[k]
            place[around[k]], parents[at] = at, outer
            names[at] = 1 + crc32(f"{host.name}.{host.leaves[leaf].name}".encode()) % (NAMES - 1)

    chain = chain_of(main, main.loops, LOOPS)
    put(main.stage, chain.loops, LOOPS)
    branches = []
    # whatever others are inside of has its place before them
    for k, nest in enumerate(sorted(rest, key=lambda n: len({host for host, _ in nests.around(n.stage)}))):
        around = nests.around(nest.stage)
        own = [loop for loop, a in zip(nest.loops, around, strict=True) if a not in place and a[0] is nest.stage]
        branches.append(chain_of(nest, own, BRANCH))
        put(nest.stage, branches[-1].loops, LOOPS + (k + 1) * BRANCH)
    nothing = Chain((1.0,) * numbers_of_chain(BRANCH), 0, np.zeros((BRANCH, BUFFER - REDUCES), np.float32), ())
    return Tree((*branches, *[nothing] * (OTHERS - len(branches))), parents, names)


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


def described(numbers: np.ndarray, chains: Chains) -> tuple[np.ndarray, np.ndarray]:
    """Features of the loops around the heaviest stage, and of the further stages.

    Args:
        numbers: float64 ``[NUMBERS, n]``.
        chains: of each configuration, ``n`` of them.
    Returns:
        float32 ``[LOOPS, PER_LOOP, n]`` and ``[3 * OTHERS, n]``.
    """
    start = numbers_of_chain(LOOPS)
    return contexts(numbers[:start], chains, LOOPS), _log(numbers[start:NUMBERS]).astype(np.float32)


def contexts(numbers: np.ndarray, chains: Chains, loops: int) -> np.ndarray:
    """Features of single loops, float32 ``[loops, PER_LOOP, n]``.

    Args:
        numbers: float64 ``[numbers_of_chain(loops), n]``.
        chains: of each configuration, ``n`` of them.
        loops: how many a chain has at most.
    """
    n = numbers.shape[1]
    found = np.zeros((loops, PER_LOOP, n), np.float32)
    first = loops - int(chains.loops.max())
    most = int(chains.buffers.max())
    if first == loops:
        return found
    told = numbers[:-1].reshape(loops, _PER_LOOP, n)[first:]
    extent = told[:, 0]
    touched = told[:, _TOUCHED : _TOUCHED + most]
    stride = told[:, _STRIDE : _STRIDE + most]
    inside = np.multiply.accumulate(extent[::-1])[::-1]
    last = BUFFER + 3 * most
    part = found[first:]
    part[:, EXTENT] = _log(extent)
    part[:, OUTSIDE] = _log(np.multiply.accumulate(np.concatenate([numbers[-1:], extent[:-1]])))
    part[:, INSIDE] = _log(inside)
    part[:, REDUCES:BUFFER] = chains.runs[:, first:].transpose(1, 2, 0)
    part[:, BUFFER:last:3] = _log(touched) + chains.itemsize[:, :most].T
    part[:, BUFFER + 1 : last : 3] = _log(inside[:, None] / touched)
    part[:, BUFFER + 2 : last : 3] = _log(1 + stride)
    if chains.buffers.min() < most:
        part[:, BUFFER + 1 : last : 3] *= np.arange(most)[:, None] < chains.buffers
    if chains.loops.min() < chains.loops.max():
        found *= (np.arange(loops)[:, None] >= loops - chains.loops)[:, None]
    return found


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
