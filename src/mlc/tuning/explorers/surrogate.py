"""A cost model over the configurations of one exploration, or of several of the same task."""

from __future__ import annotations

import numpy as np

from mlc.tuning.base import CostModel, Featurizer
from mlc.tuning.explorers.ledger import Ledger


class Lessons:
    """A cost model, and all that teaches it: explorations of one task whose features mean the same.

    Under each layout of a task the loops are a space of their own; what was measured under one layout tells of the
    loops under another, since features describe the loops that come of both (ALT §5.2.3).

    Args:
        model: learns and predicts.
    """

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._pupils: list[Surrogate] = []
        self._stale = True

    def join(self, pupil: Surrogate) -> None:
        """From now on the model learns from what this exploration has measured as well."""
        self._pupils.append(pupil)
        self._stale = True

    def leave(self) -> None:
        """From now on the model learns from the exploration that was the first to join, and from no other."""
        del self._pupils[1:]
        self._stale = True

    def forget(self) -> None:
        """Something was measured: the model has to learn again."""
        self._stale = True

    def learnt(self) -> bool:
        """Bring the model up to date; whether it can tell anything."""
        speeds = self.speeds()
        if len(speeds) < self.model.least:
            return False
        if not speeds.any():  # nothing measured, or all of it failed
            return self.model.least == 0
        if self._stale:
            self.model.fit(self.features(), speeds / speeds.max())
            self._stale = False
        return True

    def speeds(self) -> np.ndarray:
        """Of all that was measured, ``[n]``; 0 for failures."""
        return np.concatenate([p.ledger.speeds for p in self._pupils])

    def features(self) -> np.ndarray:
        """Of all that was measured, ``[n, features]``."""
        return np.concatenate([f for p in self._pupils if len(f := p.features())])


class Surrogate:
    """Learns from all that the ledger knows, when asked and something is new.

    Args:
        ledger: the books.
        featurizer: describes configurations.
        lessons: the model, and the explorations that teach it; this one joins them.
    """

    def __init__(self, ledger: Ledger, featurizer: Featurizer, lessons: Lessons) -> None:
        self.ledger = ledger
        self.lessons = lessons
        self._featurizer = featurizer
        self._features: np.ndarray | None = None
        lessons.join(self)

    def forget(self) -> None:
        """Something was measured: the model has to learn again."""
        self.lessons.forget()

    def ready(self) -> bool:
        """Bring the model up to date; whether it can tell anything of what was tried here.

        What it knows of other spaces alone does not count: describing thousands of candidates of a space that gets a
        few trials would take longer than these.
        """
        return len(self.ledger.rows) >= self.lessons.model.least and self.lessons.learnt()

    def features(self) -> np.ndarray:
        """Of all that this exploration has measured, ``[n, features]``."""
        done = 0 if self._features is None else len(self._features)
        if self._features is None or done < len(self.ledger.rows):
            more = self._featurizer(self.ledger.rows[done:])
            self._features = more if self._features is None else np.concatenate([self._features, more])
        return self._features

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Scores, float64 ``[n]``; more is better.

        Raises:
            ValueError: the model gave something that is no number.
        """
        scores = np.asarray(self.lessons.model.predict(self._featurizer(rows)), np.float64)
        if not np.isfinite(scores).all():
            raise ValueError("the cost model predicts what is no number")
        return scores
