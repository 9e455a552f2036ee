"""Cost models by name, as a user chooses them, and what each of them reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlc.errors import UsageError
from mlc.tuning.base import CostModel, Featurizer
from mlc.tuning.features import LoopFeatures
from mlc.tuning.models.ensemble import Acquisition, Ensemble
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.objective import Objective
from mlc.tuning.models.transfer import Transfer
from mlc.tuning.models.tree_gru import TreeGru


@dataclass(frozen=True)
class Choice:
    """A cost model to choose.

    Args:
        make: one for a seed.
        reads_loops: whether it reads loops one after another, and not all features side by side.
        objective: of the boosted trees that it is, which alone can go on from what others have learnt.
    """

    make: Callable[[int], CostModel]
    reads_loops: bool = False
    objective: Objective | None = None


def _ensemble(acquisition: Acquisition) -> Choice:
    return Choice(lambda seed: Ensemble(lambda s: GradientBoosting(seed=s), acquisition, seed=seed))


COST_MODELS: dict[str, Choice] = {
    "rank": Choice(lambda seed: GradientBoosting(Objective.RANK, seed=seed), objective=Objective.RANK),
    "regression": Choice(
        lambda seed: GradientBoosting(Objective.REGRESSION, seed=seed), objective=Objective.REGRESSION
    ),
    "ei": _ensemble(Acquisition.EXPECTED_IMPROVEMENT),
    "ucb": _ensemble(Acquisition.UPPER_CONFIDENCE_BOUND),
    "treegru": Choice(lambda seed: TreeGru(seed=seed), reads_loops=True),
}


def cost_model(name: str) -> Choice:
    """The choice of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in COST_MODELS:
        raise UsageError(f"unknown cost model {name!r}", hint=f"known cost models: {', '.join(sorted(COST_MODELS))}")
    return COST_MODELS[name]


def make_model(name: str, seed: int, known: GradientBoosting | None) -> CostModel:
    """A cost model for one task.

    Args:
        name: one of :data:`COST_MODELS`.
        seed: of everything random in it.
        known: what was learnt from other tasks; for boosted trees only.
    Raises:
        UsageError: there is no such model.
    """
    local = cost_model(name).make(seed)
    return Transfer(known, local) if known is not None and isinstance(local, GradientBoosting) else local


def transferable(name: str) -> Objective:
    """The objective of a cost model that can go on from what was learnt from other tasks.

    Raises:
        UsageError: there is no such model, or it cannot.
    """
    objective = cost_model(name).objective
    if objective is None:
        raise UsageError(
            f"the cost model {name!r} cannot learn from other records",
            hint="those that can: " + ", ".join(n for n, c in COST_MODELS.items() if c.objective is not None),
        )
    return objective


def features_for(name: str, features: LoopFeatures) -> Featurizer:
    """What a cost model reads."""
    if not cost_model(name).reads_loops:
        return features

    def loops(rows: np.ndarray) -> np.ndarray:
        found, present = features.sequence(rows)
        return np.concatenate([present[..., None].astype(np.float32), found], axis=2)

    return loops
