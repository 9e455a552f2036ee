"""How long a launch takes that reads, folds and writes: element-wise groups, folds, norms, transposes.

Such launches do little with what they read, so what counts is how many bytes move, and how many are under way at a
time. Every time a thread waits for memory takes :data:`~mlc.targets.gpu.cost.LATENCY`, in which its unit moves what all
of its resident threads have asked for: few threads, or narrow loads, do not draw all of the bandwidth (Little's law; V.
Volkov, "Better Performance at Lower Occupancy", GTC 2010). So the greatest of three times counts, and a part of the
others shows: of memory's bandwidth, of the waits of a thread in as many waves of blocks as there are, and of
instructions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from mlc.ir.expr import Binary, Call, Expr, Select, walk
from mlc.targets.gpu.cost import (
    CACHED,
    HIDING,
    LATENCY,
    MEETING,
    MOST_BLOCKS,
    OVERHEAD,
    SECTOR,
    SHOWS,
    moving,
)
from mlc.targets.gpu.record import Gpu

Choice = TypeVar("Choice")

BLOCKS = (32, 64, 128, 256, 512, 1024)  # threads of a block that are compared
AT_ONCE = 4  # loads of a loop that compilers have under way at a time
INDEXING = 16  # instructions of a thread before its first load: which element is its, and whether there is one
ACCESS = 2  # instructions of a load or a store, its address included
EXCHANGE = 6  # of a step of a fold among the threads of a warp: about 23 cycles, others about 4
INTRINSIC = 8  # of a division or an exponential: of 128 operations a cycle, 16 are such (CUDA's guide, 5.4.1)
USUAL = 256  # threads of a block at most, where the model sees no difference (CUDA's best practices: 128 to 256)
ALIKE = 1.02  # times the least time that counts as no slower: the model knows no better


@dataclass(frozen=True)
class Launch:
    """What a launch does, as far as a default needs it.

    Args:
        blocks: in all.
        threads: of a block.
        nbytes: that come from global memory or go there.
        waits: for memory, of a thread, one after the other.
        instructions: of a thread; barriers are some, too (``MEETING``).
        registers: of a thread, beside those for addresses.
        shared: bytes of a block.
    """

    blocks: int
    threads: int
    nbytes: float
    waits: float
    instructions: float
    registers: int = 0
    shared: int = 0


def seconds(w: Launch, target: Gpu) -> float:
    """What a launch is expected to take, beside what beginning it does; 0 where it has no blocks."""
    if not w.blocks:
        return 0.0
    lanes = ceil(w.threads / target.warp) * target.warp
    together = min(MOST_BLOCKS, target.threads // lanes, target.register_file // (lanes * (w.registers + OVERHEAD)))
    if w.shared:
        together = min(together, target.shared_of_unit // w.shared)
    together = max(1, together)
    rounds = ceil(w.blocks / target.units)  # blocks of the busiest unit
    hidden = min(1.0, min(together, rounds) * lanes / (HIDING * target.warp))
    wide = target.vector_bytes // 4 if target.vectors else 1  # of numbers in an instruction
    issued = 2 * wide * w.instructions * rounds * target.units * lanes / (target.gflops * 1e9) / hidden
    waiting = ceil(rounds / together) * w.waits * LATENCY
    moved = moving(w.nbytes, w.blocks, target)
    bound = max(issued, waiting, moved)
    return float(bound + SHOWS * (issued + waiting + moved - bound))


def fastest(some: Iterable[tuple[Choice, Launch]], target: Gpu) -> Choice:
    """The choice whose launch is expected to be fastest; of those that are alike, the one that waits least often.

    Of those again, it is the one of the fewest blocks; none of these has more threads than usual, if that can be.

    Args:
        some: choices with what they come to, at least one.
        target: the device.
    """
    found = [
        (seconds(w, target), (max(w.threads, USUAL), w.waits, w.blocks), k, choice)
        for k, (choice, w) in enumerate(some)
    ]
    least = min(time for time, *_ in found) * ALIKE
    return min((one for one in found if one[0] <= least), key=lambda one: (one[1], one[0], one[2]))[-1]


def threads_for(count: int, nbytes: int, steps: int, target: Gpu) -> int:
    """Threads of a block, where each of so many reads something for some steps, does little with it, and writes it.

    Args:
        count: of threads in all; a block has no more.
        nbytes: that all of them move.
        steps: of each.
        target: the device.
    """
    instructions = INDEXING + (ACCESS + 1) * steps + ACCESS
    some = (
        (b, Launch(ceil(count / b), b, nbytes, waits(steps), instructions)) for b in BLOCKS if b <= target.max_threads
    )
    return max(1, min(count, fastest(some, target)))


def instructions_of(e: Expr) -> int:
    """Arithmetic instructions that an expression comes to, without those of its indices."""
    return sum(
        INTRINSIC if type(n) is Call or (type(n) is Binary and n.op == "div") else 1
        for n in walk(e)
        if type(n) in (Call, Binary, Select)
    )


def waits(loads: int) -> int:
    """How often a thread waits for so many loads of a loop."""
    return ceil(loads / AT_ONCE)


def by_sectors(run: int) -> float:
    """How many times its bytes memory moves of what is read in runs of so many; caches keep a part of the rest."""
    return max(1.0, CACHED * SECTOR / run)


def in_turns(run: int) -> float:
    """How many times as long threads of a warp take to load what lies in runs of so many bytes: a turn a sector."""
    return max(1.0, SECTOR / run)


def meeting(threads: int, target: Gpu) -> int:
    """Instructions for which a thread waits at a barrier of a block; a warp alone does not wait."""
    return MEETING if threads > target.warp else ACCESS
