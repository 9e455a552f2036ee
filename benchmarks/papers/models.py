"""Cost models of the figures, and what they see of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from benchmarks.papers.replay import Features, replay_of
from benchmarks.papers.spaces import Setting
from mlc.tuning.base import CostModel
from mlc.tuning.features import LoopFeatures
from mlc.tuning.models.ensemble import Acquisition, Ensemble
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.objective import Objective
from mlc.tuning.models.transfer import Additive, Transfer, learn_globally
from mlc.tuning.models.tree_gru import TreeGru

Maker = Callable[[int], Additive]  # a model for a seed


# -- what a model sees: functions of a setting and rows of its whole space ---------------------------------------------
def loops_alone(setting: Setting, rows: np.ndarray) -> np.ndarray:
    """The context of each loop, one after the other: float32 ``[n, features]``."""
    return LoopFeatures(setting.task, setting.target, relation=False)(rows)


def relation_alone(setting: Setting, rows: np.ndarray) -> np.ndarray:
    """The context relation: float32 ``[n, features]``."""
    return LoopFeatures(setting.task, setting.target, loops=False)(rows)


def configuration(setting: Setting, rows: np.ndarray) -> np.ndarray:
    """The knobs themselves, each in columns that all spaces give to knobs of its name: float32 ``[n, features]``.

    What a space does not have is 0, and what two spaces call alike need not mean the same.
    """
    found = np.zeros((len(rows), len(_KNOBS), _COLUMNS), np.float32)
    for at, knob in enumerate(setting.part.whole.knobs):
        if knob.name in _KNOBS:
            found[:, _KNOBS.index(knob.name), : knob.width] = knob.table[rows[:, at]]
    return found.reshape(len(rows), -1)


# Those that some space of the figures has to choose.
_KNOBS = ("flat", "vectors", "rows", "blocks", "chunk", "depth", "terms", "panels", "tiles", "walk")
_COLUMNS = 3  # of a knob; the most that any of these has


def loop_tree(setting: Setting, rows: np.ndarray) -> np.ndarray:
    """All loops as a tree: float32 ``[n, nodes, NODE + features]``."""
    return LoopFeatures(setting.task, setting.target, tree=True)(rows)


# -- models ------------------------------------------------------------------------------------------------------------
def boosting(objective: Objective = Objective.RANK) -> Maker:
    """Boosted trees."""
    return partial(_boosting, objective)


def tree_gru(objective: Objective = Objective.RANK) -> Maker:
    """A recurrent network over loops; see :func:`loop_tree`."""
    return partial(_tree_gru, objective)


def bootstrap(acquisition: Acquisition) -> Callable[[int], CostModel]:
    """Five boosted trees by regression, each on another draw."""
    return partial(_bootstrap, acquisition)


def transfer(kind: Callable[[Objective], Maker], features: Features, sources: tuple[str, ...], samples: int) -> Maker:
    """A model of other tables' samples, and a local one on top (AutoTVM eq. 4), both of a kind and with rank loss."""
    return partial(_transfer, kind, features, sources, samples)


def _transfer(
    kind: Callable[[Objective], Maker], features: Features, sources: tuple[str, ...], samples: int, seed: int
) -> CostModel:
    local = kind(Objective.RANK)(seed)
    return Transfer(_known(kind, features, sources, samples), local)


@cache
def _known(kind: Callable[[Objective], Maker], features: Features, sources: tuple[str, ...], samples: int) -> Additive:
    """The global model; the same for all searches, so learnt once a process."""
    model = kind(Objective.RANK)(0)
    tasks = []
    for name in sources:
        replay = replay_of(name)
        drawn = np.random.default_rng(0).permutation(len(replay.rows))[:samples]
        tasks.append((replay.described(features)[drawn], replay.speeds[drawn]))
    learn_globally(tasks, model)
    return model


def _boosting(objective: Objective, seed: int) -> Additive:
    return GradientBoosting(objective, seed=seed)


def _tree_gru(objective: Objective, seed: int) -> Additive:
    return TreeGru(objective, seed=seed)


def _bootstrap(acquisition: Acquisition, seed: int) -> CostModel:
    return Ensemble(lambda member: GradientBoosting(Objective.REGRESSION, seed=member), acquisition, seed=seed)
