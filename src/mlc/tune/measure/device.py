"""Measuring by the target's accelerator, which says how long its operations take, beside measuring on the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mlc.errors import CodegenError, LowerError, ScheduleError
from mlc.lower.knobs import Config
from mlc.records.measurement import Failure, Measurement
from mlc.rewrite.group import configured
from mlc.targets.base import Tunable
from mlc.tune.foreign import ForeignError, ask
from mlc.tune.measure.local import LocalMeasurer
from mlc.tune.task import Task

Done = Callable[[int, Measurement], None]


class DeviceMeasurer:
    """Asks the accelerator for the time of every configuration; a model's answers are exact, so each is asked for once.

    Args:
        tasks: told by their positions; all of them the accelerator's.
        accelerator: knows the times.
    """

    def __init__(self, tasks: Sequence[Task], accelerator: Tunable) -> None:
        self._tasks, self._accelerator = tasks, accelerator

    def measure(self, task: int, configs: Sequence[Config], done: Done | None = None) -> list[Measurement]:
        """One measurement a configuration; ``done`` is told of each with its position."""
        results = []
        for k, config in enumerate(configs):
            results.append(self._one(self._tasks[task], config))
            if done is not None:
                done(k, results[-1])
        return results

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        """The same."""
        return self.measure(task, configs)

    def _one(self, task: Task, config: Config) -> Measurement:
        started = time.perf_counter()
        try:
            node = configured(task.node, config)
            seconds = ask(
                lambda: self._accelerator.measure(node, task.constants or {}),
                let=(ScheduleError, LowerError, CodegenError),
            )
        except ScheduleError as error:
            return Measurement(None, failure=Failure.REFUSED, message=error.message)
        except (LowerError, CodegenError) as error:
            return Measurement(None, failure=Failure.BUILD_ERROR, message=error.message)
        except ForeignError as error:
            return Measurement(None, failure=Failure.BUILD_ERROR, message=str(error))
        return Measurement(seconds, run_seconds=time.perf_counter() - started)


class SplitMeasurer:
    """Tasks of the host are measured on it, those of the accelerator by it.

    Args:
        tasks: told by their positions.
        local: measures the host's tasks, by their positions among themselves; left out where there are none.
        device: likewise for the accelerator's.
        threads: that run a kernel of the host.
    """

    def __init__(
        self, tasks: Sequence[Task], local: LocalMeasurer | None, device: DeviceMeasurer | None, threads: int
    ) -> None:
        self.threads = threads
        self._local = local
        self._by: list[tuple[LocalMeasurer | DeviceMeasurer | None, int]] = []
        counts = {True: 0, False: 0}
        for task in tasks:
            own = task.constants is not None
            self._by.append((device if own else local, counts[own]))
            counts[own] += 1

    @property
    def flushed(self) -> bool:
        """Whether the host's caches are emptied before every timed call."""
        return self._local is not None and self._local.flushed

    @property
    def peak(self) -> float:
        """Operations a second of one core of the host, the most that was seen; 0 where the accelerator has tasks."""
        mixed = any(by is not self._local for by, _ in self._by)
        return 0.0 if self._local is None or mixed else self._local.peak

    def measure(self, task: int, configs: Sequence[Config], done: Done | None = None) -> list[Measurement]:
        """One measurement a configuration; ``done`` is told of each with its position."""
        by, index = self._by[task]
        assert by is not None
        return by.measure(index, configs, done)

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        """Times that can be compared with each other."""
        by, index = self._by[task]
        assert by is not None
        return by.compare(index, configs)
