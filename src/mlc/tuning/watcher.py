"""Who is told how a run goes on."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.lower.knobs import Config
from mlc.records.measurement import Measurement
from mlc.tuning.state import TaskState


class Watcher:
    """Is told how a run goes on; every method may be left out."""

    def algorithms(self, name: str, done: int, total: int) -> None:
        """The algorithms of an operator are run in turns, before the run begins.

        Args:
            name: of the operator.
            done: operators that this is over for.
            total: operators that there is a choice for.
        """

    def layouts(self, name: str, done: int, total: int) -> None:
        """The layouts of an operator of a network are searched; what follows is about this operator alone.

        Args:
            name: of its task.
            done: operators that have theirs.
            total: that there are, as far as is known.
        """

    def began(
        self, tasks: Sequence[TaskState], done: int, trials: int | None, seconds: float | None, damaged: int
    ) -> None:
        """The run begins.

        Args:
            tasks: that it is about.
            done: trials in the records already.
            trials: that there can be in the end, those included; nothing where only time ends the run.
            seconds: left of its time; nothing where it has no limit.
            damaged: lines of the records that could not be read.
        """

    def measured(self, task: TaskState, config: Config, result: Measurement) -> None:
        """A configuration was measured, or failed."""

    def batch(self, task: TaskState, tasks: Sequence[TaskState]) -> None:
        """A batch of a task is over."""

    def stopped(self) -> None:
        """The user has stopped the search; what it found is decided between, unless that is stopped as well."""

    def deciding(self, task: TaskState, done: int, total: int) -> None:
        """The search is over, and the best configurations of a task are measured once more.

        Args:
            task: whose they are.
            done: tasks that this is over for.
            total: tasks that it has to be done for.
        """

    def checking(self, what: str, share: float = 0.0) -> None:
        """The whole model is looked at.

        Args:
            what: is done now.
            share: of it that is done; told again and again where it takes seconds.
        """
