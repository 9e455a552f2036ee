"""What of a schedule matters on a grid of threads, besides its loops: who shares what, and how memory sees a warp.

Told of the launch that the heaviest stage is in: threads of a block and blocks, bytes that a block shares, elements
that a thread keeps for itself, work of a thread; of what the threads fetch together, how much that is and how
neighbouring threads read it (coalescing); of every buffer that the heaviest stage reads, how neighbouring threads do (a
broadcast, a run of neighbours, or so many banks apart).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add, mul

import numpy as np

from mlc.ir.loop import BLOCK_AXES, THREAD_AXES
from mlc.lower.bounds import SHARED
from mlc.lower.stage import Stage
from mlc.lower.threads import PRIVATE
from mlc.tuning.features.nest import Access, Nests, Number, StageNest

FETCHES, READS = 2, 4  # shared stages, and accesses of the heaviest stage, that are described
_FIRST, _OF_FETCH = 7, 3  # numbers of the launch, and of a shared stage
NUMBERS = _FIRST + _OF_FETCH * FETCHES + READS
FEATURES = NUMBERS + FETCHES + 2 * READS
_BANKS, _LANES, _LINE = 32, 32, 32  # words that memory gives at once, threads that ask at once, words of their requests


def numbers_of(nests: Nests, main: StageNest, accesses: Sequence[int]) -> list[Number]:
    """``NUMBERS`` formulas or numbers of a schedule.

    Args:
        nests: of its stages.
        main: the heaviest stage.
        accesses: those of it that are described, by position.
    """
    root = main.stage
    while root.attach is not None:
        root = root.attach.stage
    guests = [s for s in nests.stages if s is not root and _is_in(s, root)]
    threads = [_bound(nests, [root, *guests], axis) for axis in THREAD_AXES]
    blocks = [_bound(nests, [root], axis) for axis in BLOCK_AXES]
    shared = [s for s in guests if s.scope == SHARED]
    kept = [s for s in guests if s.scope in PRIVATE]
    work = _product(
        lp.extent for lp, (host, at) in zip(main.loops, nests.around(main.stage), strict=True)
        if host.leaves[at] not in host.threads
    )  # fmt: skip
    found: list[Number] = [
        threads[-1],
        _product(threads),
        _product(blocks),
        _sum(nests.elements(s) * float(s.op.outputs[0].dtype.itemsize) for s in shared),
        _sum(nests.elements(s) for s in kept),
        work,
        float(len(shared)),
    ]
    shared = sorted(shared, key=lambda s: float(np.prod(s.op.shape)), reverse=True)[:FETCHES]
    for s in shared:
        rounds = _product(nests.extent(s, leaf) for leaf in s.leaves if leaf not in s.threads)
        leaf = next((a for a in s.leaves if s.threads.get(a) == THREAD_AXES[-1]), None)
        step: Number = 0.0
        if leaf is not None:
            reads = [a for a in nests.of(s).accesses if a.tensor not in s.op.outputs]
            steps = nests.steps(s, s, leaf)
            step = nests.apart(reads[0], steps) if reads else 0.0
        found += [nests.elements(s), rounds, step]
    found += [1.0, 1.0, 0.0] * (FETCHES - len(shared))
    tx = next(((h, h.leaves[at]) for h, at in nests.around(main.stage) if _is_x(h, at)), None)
    apart: list[Number] = []
    for k in accesses[:READS]:
        access: Access = main.accesses[k]
        apart.append(0.0 if tx is None else nests.apart(access, nests.steps(main.stage, *tx)))
    return [*found, *apart, *[0.0] * (READS - len(apart))]


def features(numbers: np.ndarray) -> np.ndarray:
    """float32 ``[FEATURES, n]`` of ``[NUMBERS, n]``: logarithms, lines a warp fetches, banks that it meets twice."""
    fetched = numbers[_FIRST + 2 : _FIRST + _OF_FETCH * FETCHES : _OF_FETCH]
    read = numbers[_FIRST + _OF_FETCH * FETCHES :]
    return np.concatenate(
        [_log(1 + numbers), _log(_lines(fetched)), _log(_lines(read)), _log(_conflicts(read))]
    ).astype(np.float32)


def _lines(apart: np.ndarray) -> np.ndarray:
    """Lines of memory that the threads of a warp read together, where they read words so far apart."""
    return np.clip(np.ceil(apart * _LANES / _LINE), 1, _LANES)


def _conflicts(apart: np.ndarray) -> np.ndarray:
    """How many threads of a warp meet at a bank, where they read words so far apart; those of one word meet at none."""
    steps = np.rint(np.minimum(apart, 1 << 30)).astype(np.int64)
    return np.where(steps == 0, 1, np.gcd(steps, _BANKS))


def _log(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.log2(np.maximum(x, 1.0))
    return found


def _is_in(stage: Stage, root: Stage) -> bool:
    while stage.attach is not None:
        stage = stage.attach.stage
    return stage is root


def _is_x(host: Stage, at: int) -> bool:
    return host.threads.get(host.leaves[at]) == THREAD_AXES[-1]


def _bound(nests: Nests, stages: Sequence[Stage], axis: str) -> Number:
    """The greatest extent of what is bound to an axis."""
    extents = [nests.extent(s, a) for s in stages for a in s.leaves if s.threads.get(a) == axis]
    return reduce(nests.greater, extents, 1.0)


def _product(numbers: Iterable[Number]) -> Number:
    return reduce(mul, numbers, 1.0)


def _sum(numbers: Iterable[Number]) -> Number:
    return reduce(add, numbers, 0.0)
