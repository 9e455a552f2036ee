"""Which task the next batch of trials goes to: where it shortens the model most.

The model takes ``sum(weight * seconds)``. A task's gradient is estimated from what its last trials gained, and, while
it is young, from the hope that its time falls in proportion to its trials (the scheme of Ansor's task scheduler,
simplified to one model); a task whose space is used up, or of which nothing works, gets no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

TRUST = 0.3  # in what the last trials gained, against the hope that more trials gain as much again
WINDOW = 3  # batches that count as the last ones
GAIN = 0.99  # of the best before, from which trials count as having gained something
PATIENCE = 16  # trials without a gain after which half as much is hoped for
HOPELESS = 64  # trials, all of them failures, after which a task gets no more
NEAR_ROOF = 0.97  # part of what is possible from which nothing is hoped for


@dataclass
class Progress:
    """How far the tuning of one task is.

    Args:
        weight: calls of the task in the model.
        least: seconds that no configuration can beat (operations over the machine's peak).
        history: best seconds after each batch; ``inf`` while nothing has worked.
        trials: measured, failures included.
        stale: trials since the best last fell.
        done: no more trials: the space is used up, or stopped early, or nothing works.
    """

    weight: int
    least: float = 0.0
    history: list[float] = field(default_factory=list)
    trials: int = 0
    stale: int = 0
    done: bool = False

    @property
    def best(self) -> float:
        return self.history[-1] if self.history else float("inf")

    def measured(self, trials: int, best: float) -> None:
        """A batch is over.

        Args:
            trials: how many it had.
            best: the least seconds of any configuration so far.
        """
        before = self.best
        self.trials += trials
        self.stale = 0 if best < GAIN * before else self.stale + trials
        self.history.append(min(best, before))
        self.done |= self.best == float("inf") and self.trials >= HOPELESS

    def gradient(self) -> float:
        """Seconds of the model that one more trial is expected to save."""
        if not self.history or self.best == float("inf"):
            return float("inf")
        back = self.history[max(0, len(self.history) - 1 - WINDOW)]
        batches = min(WINDOW, len(self.history) - 1)
        per_trial = self.trials / max(1, len(self.history) - 1)
        gained = (back - self.best) / max(1.0, batches * per_trial) if batches and back < float("inf") else 0.0
        left = max(0.0, self.best - self.least / NEAR_ROOF)
        hoped = left / max(1, self.trials) * PATIENCE / (PATIENCE + self.stale)
        return self.weight * (TRUST * gained + (1 - TRUST) * hoped)


def next_task(tasks: Sequence[Progress]) -> int | None:
    """The task that gets the next batch: every task once, then the greatest gradient; none when all are done."""
    open_tasks = [k for k, t in enumerate(tasks) if not t.done]
    if not open_tasks:
        return None
    fresh = [k for k in open_tasks if not tasks[k].trials]
    if fresh:  # those that take the most time first, since a budget may end early
        return max(fresh, key=lambda k: tasks[k].weight * tasks[k].least)
    return max(open_tasks, key=lambda k: tasks[k].gradient())
