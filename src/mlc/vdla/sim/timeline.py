"""When every instruction of a stream started and ended, and what it waited for: what the timing simulator finds out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlc.vdla.sim.work import QUEUES

Times = npt.NDArray[np.float64]

# Why a unit had nothing running: it waited for a token of one of the queues, or for the fetch unit.
REASONS = (*(name for name, _, _ in QUEUES), "fetch")


@dataclass(frozen=True, eq=False)
class Timeline:
    """When things happened, in cycles, one entry an instruction.

    Attributes:
        begin: it left its command queue.
        data: its first byte moved, or its computation began.
        end: what it wrote was visible.
        idle: how long its unit had nothing running before it began.
        reason: what made it begin when it did, an index of ``REASONS``; -1 where its own unit did.
        full: how long its tokens then waited for room in their queue. Only transfers that follow a transfer begin
            on its unit in that time.
        latency: how long its bytes were on their way while none of its unit's moved.
        port: how long it waited for the memory while others held it.
        moving: how long it held the memory.
        tokens: per queue, how many went through.
    """

    begin: Times
    data: Times
    end: Times
    idle: Times
    reason: npt.NDArray[np.int8]
    full: Times
    latency: Times
    port: Times
    moving: Times
    tokens: dict[str, int]

    @property
    def cycles(self) -> float:
        """Until the last instruction was done."""
        return float((self.end + self.full).max(initial=0))
