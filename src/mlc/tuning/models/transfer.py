"""A global model of other tasks and a local one that learns what it leaves (AutoTVM §4, eq. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mlc.errors import UsageError
from mlc.tuning.models.objective import Objective


class Additive(Protocol):
    """A cost model that can learn what another one leaves, and from several tasks."""

    objective: Objective
    least: int

    def fit(
        self,
        features: np.ndarray,
        speeds: np.ndarray,
        *,
        groups: np.ndarray | None = None,
        base: np.ndarray | None = None,
    ) -> None: ...

    def predict(self, features: np.ndarray) -> np.ndarray: ...


def learn_globally(tasks: Sequence[tuple[np.ndarray, np.ndarray]], model: Additive) -> None:
    """Teaches a model all tasks at once.

    Args:
        tasks: features ``[n, ...]`` and speeds ``[n]`` of each; speeds are compared within a task only.
        model: learns.
    Raises:
        UsageError: no task has anything measured, or the tasks' features differ in number.
    """
    tasks = [(features, speeds) for features, speeds in tasks if len(speeds) and np.max(speeds) > 0]
    if not tasks:
        raise UsageError(
            "nothing to transfer: the records have no kernel with a measured configuration that can be learnt from",
            hint="mlc inspect FILE shows what is in them",
        )
    widths = sorted({features.shape[1:] for features, _ in tasks})
    if len(widths) > 1:
        shown = [w[0] if len(w) == 1 else w for w in widths]
        raise UsageError(f"nothing to transfer: the tasks' features differ in number: {shown}")
    model.fit(
        np.concatenate([features for features, _ in tasks]),
        np.concatenate([speeds / np.max(speeds) for _, speeds in tasks]),
        groups=np.repeat(np.arange(len(tasks)), [len(speeds) for _, speeds in tasks]),
    )


class Transfer:
    """The sum of a global and a local model; a :class:`~mlc.tuning.base.CostModel` that predicts from the start.

    Args:
        known: the global model, which stays as it is.
        local: learns what the global model leaves, once there is enough to learn from; of the same objective.
    """

    least = 0

    def __init__(self, known: Additive, local: Additive) -> None:
        if known.objective is not local.objective:
            raise UsageError(f"the global model's objective is {known.objective}, the local one's {local.objective}")
        self.objective = local.objective
        self._known = known
        self._local = local

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        """Learn afresh; as :class:`~mlc.tuning.base.CostModel` says."""
        if len(speeds) >= self._local.least:
            self._local.fit(features, speeds, base=self._known.predict(features))

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Scores, ``[n]``."""
        return self._known.predict(features) + self._local.predict(features)
