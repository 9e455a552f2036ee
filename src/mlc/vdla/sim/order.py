"""What follows from a stream alone, before anything happens: who waits for whom, and how long things take.

Which instruction gives a token and which one takes it follows from their order, and so does whose place in a queue a
token or a fetched instruction gets.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Unit
from mlc.vdla.sim.work import QUEUES, Work


class Ticks:
    """How long things take, in ticks.

    Attributes:
        cycle: one.
        length: of a computation; of a transfer, from its begin to its data.
        acknowledge: from a transfer's last data to its end.
        port, chip: how long a transfer holds the memory, and the memory on chip.
    """

    def __init__(self, work: Work, config: VdlaConfig) -> None:
        rate = Fraction(str(config.bytes_per_cycle))
        cycle, byte = rate.numerator, rate.denominator
        issue, latency, gap = config.dma_issue * cycle, config.dram_latency * cycle, config.burst_gap * cycle
        # Where 64 bits may not hold what a column comes to, Python's integers do.
        columns = (work.cycles, work.nbytes, work.bursts, work.elements)
        most = max(int(column.max(initial=0)) for column in columns)
        kind: Any = np.int64 if most * (cycle + byte + gap) < 1 << 62 else np.object_
        cycles, nbytes, bursts, elements = (column.astype(kind) for column in columns)
        some = work.nbytes > 0
        self.cycle = cycle
        self.length = np.where(work.moves, np.where(some & ~work.stores, issue + latency, issue), cycles * cycle)
        self.acknowledge = np.where(some & work.stores, latency, 0)
        self.port = nbytes * byte + bursts * gap
        self.chip = elements * cycle


class Links:
    """Which instructions wait for which, as far as their order says it.

    Attributes:
        chained: a transfer that may be announced while the one before it on its unit moves its data.
        followed: the next instruction on its unit is chained.
        leaves: the instruction whose place in its unit's command queue it gets.
        pop_prev, pop_next: the token that it takes; 2 * i is instruction i's token to its previous, 2 * i + 1 to its
            next unit.
        room_prev, room_next: the instruction that makes room for the token that it gives, -1 if it gives none.
        givers, takers: by queue, the instructions that give a token to it and take one.

    After n instructions, n stands for one that began before all, n + 1 for one that never does; 2 * n for a token that
    was always there, 2 * n + 1 for one that never is.
    """

    def __init__(self, work: Work, config: VdlaConfig) -> None:
        count = len(work)
        self.chained, self.followed = np.zeros((2, count), np.bool_)
        self.leaves = np.full(count, count)
        for unit in Unit:
            mine = np.flatnonzero(work.unit == unit)
            self.chained[mine[1:]] = work.moves[mine[1:]] & work.moves[mine[:-1]] & (config.dma_outstanding > 1)
            self.followed[mine[:-1]] = self.chained[mine[1:]]
            self.leaves[mine[config.cmd_queue_depth :]] = mine[: -config.cmd_queue_depth]
        self.pop_prev, self.pop_next = np.full((2, count), 2 * count)
        self.room_prev, self.room_next = np.full((2, count), -1)
        self.givers, self.takers = [], []
        for _, producer, consumer in QUEUES:
            if producer < consumer:
                gives, takes, pop, room, side = work.push_next, work.pop_prev, self.pop_prev, self.room_next, 1
            else:
                gives, takes, pop, room, side = work.push_prev, work.pop_next, self.pop_next, self.room_prev, 0
            givers = np.flatnonzero(gives & (work.unit == producer))
            takers = np.flatnonzero(takes & (work.unit == consumer))
            # The k-th token taken is the k-th given, and makes room for one as many later as the queue holds.
            pop[takers] = _shifted(2 * givers + side, 0, len(takers), 2 * count)
            room[givers] = _shifted(takers, config.dep_queue_depth, len(givers), count)
            self.givers.append(givers)
            self.takers.append(takers)


def _shifted(values: npt.NDArray[np.intp], by: int, length: int, always: int) -> npt.NDArray[np.intp]:
    """``by`` times ``always``, then the values, then ``always + 1``, cut off at a length."""
    result = np.full(length, always + 1)
    result[:by] = always
    result[by : by + len(values)] = values[: max(length - by, 0)]
    return result
