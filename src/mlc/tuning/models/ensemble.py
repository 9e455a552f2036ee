"""Bootstrap ensembles, which know how sure they are, and what to make of that (AutoTVM §3.3, Figure 7)."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import erfc, pi, sqrt
from typing import Protocol

import numpy as np

from mlc.errors import UsageError
from mlc.tuning.base import CostModel
from mlc.tuning.models.objective import Objective

_SUREST = 0.005  # of the best speed; no five models are surer than that
_FAR = -10.0  # below, sums of nearly equal terms lose their digits


class Acquisition(StrEnum):
    """What a configuration is worth, from the mean and the deviation of its predictions."""

    MEAN = "mean"
    EXPECTED_IMPROVEMENT = "ei"  # its logarithm, which has the same order
    UPPER_CONFIDENCE_BOUND = "ucb"


class Regression(CostModel, Protocol):
    """A cost model whose scores are the speeds that it expects."""

    objective: Objective


class Ensemble:
    """Models of one kind, each trained on another draw with replacement; a :class:`~mlc.tuning.base.CostModel`.

    Args:
        make: a model with the regression objective, for a seed: speeds can be compared with the best that was measured,
            and those of several models with one another.
        acquisition: what ``predict`` returns.
        members: models; 5 in AutoTVM §6.1.
        kappa: deviations that the upper confidence bound adds to the mean.
        seed: of the draws and the models.

    Raises:
        UsageError: there is no such acquisition, or the models are of another objective.
    """

    def __init__(
        self,
        make: Callable[[int], Regression],
        acquisition: Acquisition | str = Acquisition.MEAN,
        *,
        members: int = 5,
        kappa: float = 1.0,
        seed: int = 0,
    ) -> None:
        try:
            self.acquisition = Acquisition(acquisition)
        except ValueError as error:
            known = ", ".join(Acquisition)
            raise UsageError(f"unknown acquisition {acquisition!r}", hint=f"known acquisitions: {known}") from error
        self._models = [make(seed + k) for k in range(members)]
        if any(m.objective is not Objective.REGRESSION for m in self._models):
            raise UsageError("acquisitions are of predicted speeds", hint="models with the objective regression")
        self._kappa = kappa
        self._seed = seed
        self._best = 0.0
        self.least = max(m.least for m in self._models)

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        """Learn afresh; as :class:`~mlc.tuning.base.CostModel` says."""
        rng = np.random.default_rng(self._seed)
        for model in self._models:
            drawn = rng.integers(0, len(speeds), len(speeds))
            model.fit(features[drawn], speeds[drawn])
        self._best = float(np.max(speeds))

    def spread(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the models' predictions, ``[n]`` each."""
        scores = [m.predict(features) for m in self._models]
        return np.mean(scores, axis=0), np.std(scores, axis=0)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The acquisition's value, ``[n]``."""
        mean, deviation = self.spread(features)
        match self.acquisition:
            case Acquisition.MEAN:
                return mean
            case Acquisition.UPPER_CONFIDENCE_BOUND:
                return mean + self._kappa * deviation
            case Acquisition.EXPECTED_IMPROVEMENT:
                return log_expected_improvement(mean, np.maximum(deviation, _SUREST), self._best)


def log_expected_improvement(mean: np.ndarray, deviation: np.ndarray, best: float) -> np.ndarray:
    """Logarithm of how much a normal variable exceeds ``best`` on average, counting 0 where it does not; ``[n]``.

    The logarithm tells configurations apart that are far below the best, whose improvement is 0 in floating point.

    Args:
        mean: ``[n]``.
        deviation: ``[n]``, positive.
        best: what is to be exceeded.
    """
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / sqrt(2 * pi)
    below = 0.5 * np.array([erfc(-v) for v in (z / sqrt(2)).tolist()])
    near = np.log(np.maximum(density + z * below, 1e-300))
    far = -0.5 * z**2 - 0.5 * np.log(2 * pi) - 2 * np.log(np.maximum(-z, 1.0))  # the first term of its expansion
    return np.log(deviation) + np.where(z > _FAR, near, far)
