"""A task of a run, and all that is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mlc.lower.knobs import Config
from mlc.records.measurement import Failure, Measurement
from mlc.tuning.allocate import Progress
from mlc.tuning.task import Task


class Ended(StrEnum):
    """Why a task gets no more trials, though the run has some."""

    EXHAUSTED = "all tried"
    LIMIT = "limit"  # the trials of a task
    EARLY = "no gain"
    HOPELESS = "nothing works"


@dataclass(eq=False)
class TaskState:
    """A task and all that is known of it.

    Args:
        task: the task.
        number: its position among all tasks of the model, as people are shown it.
        index: its position among those of the session and its measurer.
        progress: for the allocation of trials.
        trials: what was measured, in earlier runs too.
        failures: how many of them failed how.
        decided: what to compile with; nothing while that is open.
        rejected: what was decided for once, and lost in the whole model.
        untuned: least seconds of the untuned configuration.
        best: seconds of what was decided for, or the least of any trial.
        open: whether something was measured since the decision.
        resumed: whether ``best`` was measured in an earlier run, beside an untuned time that the records do not tell.
        ended: why it gets no more trials; nothing while it may.
        peak: operations a second that all cores that run it can do for it; 0 while nothing was measured.
    """

    task: Task
    number: int
    index: int
    progress: Progress
    trials: list[tuple[Config, Measurement]] = field(default_factory=list)
    failures: dict[Failure, int] = field(default_factory=dict)
    decided: Config | None = None
    rejected: list[Config] = field(default_factory=list)
    open: bool = True
    resumed: bool = False
    untuned: float = float("inf")
    best: float = float("inf")
    ended: Ended | None = None
    peak: float = 0.0

    def fastest(self, most: int) -> list[Config]:
        """Distinct configurations that ran, the fastest first."""
        found: dict[tuple[tuple[str, object], ...], tuple[float, Config]] = {}
        for config, m in self.trials:
            if m.seconds is not None:
                key = tuple(sorted(config.items()))
                found[key] = min(found.get(key, (m.seconds, config)), (m.seconds, config), key=lambda f: f[0])
        return [config for _, config in sorted(found.values(), key=lambda f: f[0])[:most]]

    def seconds_of(self, config: Config) -> float:
        """Least seconds of a configuration alone; those of the untuned one where it was not measured."""
        timed = [m.seconds for c, m in self.trials if dict(c) == dict(config) and m.seconds is not None]
        return min(timed, default=self.untuned)

    @property
    def share_of_peak(self) -> float | None:
        """The best speed over what the machine can do; nothing while either is unknown."""
        if not self.peak or not self.task.flops or self.best == float("inf"):
            return None
        return self.task.flops / self.best / self.peak

    @property
    def gain(self) -> float | None:
        """How many times as fast as untuned the best is; nothing while both are not known from one measurement."""
        if self.resumed or self.best == float("inf") or self.untuned == float("inf"):
            return None
        return self.untuned / self.best

    def end(self, why: Ended) -> None:
        """It gets no more trials."""
        self.progress.done, self.ended = True, why

    def speed(self, seconds: float | None) -> float:
        """10^9 operations a second, or calls where there are no operations; 0 for a failure."""
        return speed(self.task, seconds)


def speed(task: Task, seconds: float | None) -> float:
    """10^9 operations a second, or calls where there are no operations; 0 for a failure."""
    return 0.0 if seconds is None else max(task.flops, 1) / seconds / 1e9
