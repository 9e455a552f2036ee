"""A global model of other tasks and a local one that learns what it leaves (AutoTVM §4, eq. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.errors import UsageError
from mlc.tune.models.gbt import GradientBoosting
from mlc.tune.models.objective import Objective


def learn_globally(
    tasks: Sequence[tuple[np.ndarray, np.ndarray]], objective: Objective | str = Objective.RANK, **options: Any
) -> GradientBoosting:
    """A model of all tasks at once.

    Args:
        tasks: features ``[n, features]`` and speeds ``[n]`` of each; speeds are compared within a task only.
        objective: of training.
        options: of :class:`GradientBoosting`.
    Raises:
        UsageError: no task has anything measured, or the tasks' features differ in number.
    """
    tasks = [(features, speeds) for features, speeds in tasks if len(speeds) and np.max(speeds) > 0]
    if not tasks:
        raise UsageError("nothing to transfer: no other task has a measured configuration")
    widths = sorted({features.shape[1] for features, _ in tasks})
    if len(widths) > 1:
        raise UsageError(f"nothing to transfer: the tasks' features differ in number: {widths}")
    model = GradientBoosting(objective, **options)
    model.fit(
        np.concatenate([features for features, _ in tasks]),
        np.concatenate([speeds / np.max(speeds) for _, speeds in tasks]),
        groups=np.repeat(np.arange(len(tasks)), [len(speeds) for _, speeds in tasks]),
    )
    return model


class Transfer:
    """The sum of a global and a local model; a :class:`~mlc.tune.base.CostModel` that predicts from the start.

    Args:
        known: the global model, which stays as it is.
        local: learns what the global model leaves, once there is enough to learn from; of the same objective.
    """

    least = 0

    def __init__(self, known: GradientBoosting, local: GradientBoosting) -> None:
        if known.objective is not local.objective:
            raise UsageError(f"the global model's objective is {known.objective}, the local one's {local.objective}")
        self._known = known
        self._local = local

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        """Learn afresh; as :class:`~mlc.tune.base.CostModel` says."""
        if len(speeds) >= self._local.least:
            self._local.fit(features, speeds, base=self._known.predict(features))

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Scores, ``[n]``."""
        return self._known.predict(features) + self._local.predict(features)
