"""Bootstrap ensembles, which know how sure they are, and what to make of that (AutoTVM §3.3, Figure 7)."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import erfc, pi, sqrt

import numpy as np

from mlc.errors import UsageError
from mlc.tuning.base import CostModel

_SUREST = 0.02  # standard deviations of the scores; no five models are surer than that
_FAR = -10.0  # below, sums of nearly equal terms lose their digits


class Acquisition(StrEnum):
    """What a configuration is worth, from the mean and the deviation of its predictions."""

    MEAN = "mean"
    EXPECTED_IMPROVEMENT = "ei"  # its logarithm, which has the same order
    UPPER_CONFIDENCE_BOUND = "ucb"


class Ensemble:
    """Models of one kind, each trained on another draw with replacement; a :class:`~mlc.tuning.base.CostModel`.

    Each model's scores count in standard deviations from the mean of its scores of the training set, so that models
    whose scores have a scale of their own go together.

    Args:
        make: a model, for a seed.
        acquisition: what ``predict`` returns.
        members: models; 5 in AutoTVM §6.1.
        kappa: deviations that the upper confidence bound adds to the mean.
        seed: of the draws and the models.

    Raises:
        UsageError: there is no such acquisition.
    """

    def __init__(
        self,
        make: Callable[[int], CostModel],
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
        self._kappa = kappa
        self._seed = seed
        self._scales = [(0.0, 1.0)] * members
        self._best = 0.0
        self.least = max(m.least for m in self._models)

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        """Learn afresh; as :class:`~mlc.tuning.base.CostModel` says."""
        rng = np.random.default_rng(self._seed)
        for k, model in enumerate(self._models):
            drawn = rng.integers(0, len(speeds), len(speeds))
            model.fit(features[drawn], speeds[drawn])
            scores = model.predict(features)
            self._scales[k] = float(scores.mean()), float(scores.std()) or 1.0
        self._best = float(self.spread(features)[0].max())

    def spread(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the models' scores, ``[n]`` each."""
        scores = [(m.predict(features) - mean) / std for m, (mean, std) in zip(self._models, self._scales, strict=True)]
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
