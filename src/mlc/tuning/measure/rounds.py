"""What a measurer knows of a task, and what it knows of one call while that goes on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlc.lower.knobs import Config
from mlc.records.measurement import Measurement
from mlc.tuning.base import Done
from mlc.tuning.measure.building import Built
from mlc.tuning.measure.timing import Drift


@dataclass
class State:
    """What is known of a task."""

    untuned: Built | None = None
    case: str = ""  # how the reference was made
    broken: Measurement | None = None  # why nothing of it can be measured
    drift: Drift | None = None
    record: float = math.inf  # seconds of a call of the best so far

    @property
    def aim(self) -> float:
        """What the best takes on the machine as it is now."""
        return self.record * (1.0 if self.drift is None else self.drift.slowdown)


@dataclass
class Round:
    """One call of ``measure``."""

    number: int
    configs: Sequence[Config]
    done: Done
    together: bool = False
    kept: bool = False  # whether what is fastest is kept for a decision
    known: bool = False  # whether all have been loaded and checked before
    running: bool = False  # whether what is ready is being run, until there is no more
    waiting: deque[int] = field(default_factory=deque)
    ready: deque[Built] = field(default_factory=deque)
    results: dict[int, Measurement] = field(default_factory=dict)
    loaded: dict[int, Built] = field(default_factory=dict)  # what was timed together

    def finish(self, index: int, measurement: Measurement) -> None:
        self.results[index] = measurement
        self.done(index, measurement)


def faster(first: Measurement, second: Measurement) -> Measurement:
    """The one with less time; one without any says what is wrong with the candidate."""
    if first.seconds is None or second.seconds is None:
        return first if first.seconds is None else second
    return min(first, second, key=lambda m: m.seconds or 0.0)


def round_of(number: int, configs: Sequence[Config], done: Done, *, together: bool = False) -> Round:
    """One whose candidates have all to be built."""
    return Round(number, configs, done, together, kept=not together, waiting=deque(range(len(configs))))
