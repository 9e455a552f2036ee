"""Tasks of several machines, each with a measurer of its own, as one."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.lower.knobs import Config
from mlc.records.measurement import Measurement
from mlc.tuning.base import Done, Measurer


class SplitMeasurer:
    """Gives every task to the measurer that it is for.

    Args:
        parts: for each task its measurer, and its position among those of that measurer.
        threads: that run a kernel of the host.
    """

    def __init__(self, parts: Sequence[tuple[Measurer, int]], threads: int) -> None:
        self.threads = threads
        self._parts = tuple(parts)

    @property
    def flushed(self) -> bool:
        """Whether caches are emptied before every timed call."""
        return all(by.flushed for by, _ in self._parts)

    @property
    def peak(self) -> float:
        """Operations a second of one core, the most that was seen; 0 where a machine does not say or several differ."""
        return self._parts[0][0].peak if len({id(by) for by, _ in self._parts}) == 1 else 0.0

    def measure(self, task: int, configs: Sequence[Config], done: Done | None = None) -> list[Measurement]:
        """One measurement a configuration; ``done`` is told of each with its position."""
        by, index = self._parts[task]
        return by.measure(index, configs, done)

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        """Times that can be compared with each other."""
        by, index = self._parts[task]
        return by.compare(index, configs)
