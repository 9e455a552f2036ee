"""What the parts of tuning know of each other.

task → space → explorer ⇄ cost model → measurer → records. Configurations travel as rows of indices into a
:class:`~mlc.lower.knobs.Space`; every part that draws random numbers takes a ``numpy.random.Generator``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from mlc.lower.knobs import Config
from mlc.records.measurement import Measurement

Done = Callable[[int, Measurement], None]
"""Is told of a result, and of its configuration's position."""


class Explorer(Protocol):
    """Proposes configurations.

    ``propose`` and ``observe`` take turns; every proposal is observed, in any order. An explorer never proposes what it
    has proposed or observed before, and gives fewer than asked only when the space has no more. It may have a method
    ``most``, which says how many it would have measured at once (:func:`batch_of`).
    """

    def propose(self, n: int) -> np.ndarray:
        """At most ``n`` new configurations, int64 ``[n, knobs]``."""
        ...

    def observe(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        """What was measured.

        Args:
            rows: configurations, int64 ``[n, knobs]``; those of earlier runs come in here as well, unproposed.
            speeds: float64 ``[n]``, 10^9 operations a second (or any other figure of which more is better);
                0 for a configuration that failed.
        """
        ...


def batch_of(explorer: Explorer, n: int) -> int:
    """How many to ask an explorer for that are measured before it goes on, of at most ``n``.

    Measuring many at once is what a search with much time before it can afford; one that learns from each batch has
    more of the first ones if they are small.
    """
    asked = getattr(explorer, "most", None)
    most = None if asked is None else asked()
    return n if most is None else min(n, most)


class Measurer(Protocol):
    """Builds configurations of some tasks, checks their results and says how long they take.

    What it builds for and runs on is the target's affair: see :mod:`mlc.targets.bench`.

    Attributes:
        threads: that run a kernel.
    """

    threads: int

    @property
    def flushed(self) -> bool:
        """Whether caches are emptied before every timed call."""
        ...

    @property
    def peak(self) -> float:
        """Operations a second of one core, the most that was seen; 0 where that is unknown."""
        ...

    def measure(self, task: int, configs: Sequence[Config], done: Done | None = None) -> list[Measurement]:
        """Measures configurations.

        Args:
            task: position of the task.
            configs: what to measure.
            done: told of each result as soon as it is known, with the position of its configuration.
        Returns:
            one result a configuration, in order; a failure of a configuration is a result.
        """
        ...

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        """Measures a few configurations in turns, a sample each, for a last decision between them."""
        ...


Elsewhere = Callable[..., AbstractContextManager[Any]]
"""Makes a :class:`Measurer` that measures on other machines than this one: of tasks and a target, and by keyword of
``threads`` (as many as there are if ``None``), ``compile_options``, ``options`` and ``rng``, as a local one is made.
Its ``whole`` (:class:`~mlc.tuning.whole.Turns`) compares whole models there; ``None`` where nothing can."""


class Featurizer(Protocol):
    """Describes configurations to a cost model."""

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """float32 ``[n, features]`` for int64 ``[n, knobs]``."""
        ...


class CostModel(Protocol):
    """Predicts which configurations are fast."""

    @property
    def least(self) -> int:
        """Measured configurations that it needs before it can tell anything; 0 where it knows from other tasks."""
        ...

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        """Learn from all that is known, afresh.

        Args:
            features: float32 ``[n, features]``.
            speeds: float64 ``[n]``, 0 for failures; scaled by the caller so that the best is 1.
        """
        ...

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Scores, float64 ``[n]``; more is better. Their scale means nothing unless the model says so."""
        ...
