"""Cost models by name, as a user chooses them, and what each of them reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mlc.errors import UsageError
from mlc.tuning.base import CostModel
from mlc.tuning.models.ensemble import Acquisition, Ensemble
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.objective import Objective
from mlc.tuning.models.transfer import Additive, Transfer
from mlc.tuning.models.tree_gru import Encoding, TreeGru


@dataclass(frozen=True)
class Choice:
    """A cost model to choose.

    Args:
        text: what it is, in a line.
        one: a model for a seed, which also learns from other tasks.
        acquisition: what is made of the predictions of several of them; nothing where there is one only.
        tree: whether it reads all loops as a tree (:mod:`mlc.tuning.features.nodes`), and not features side by side.
    """

    text: str
    one: Callable[[int], Additive]
    acquisition: Acquisition | None = None
    tree: bool = False

    def make(self, seed: int, known: Additive | None = None) -> CostModel:
        """The cost model of one task.

        Args:
            seed: of everything random in it.
            known: what a model of the same choice has learnt from other tasks; nothing where there are none.
        """
        one = self.one if known is None else partial(_above, known, self.one)
        return one(seed) if self.acquisition is None else Ensemble(one, self.acquisition, seed=seed)


def _above(known: Additive, one: Callable[[int], Additive], seed: int) -> Transfer:
    return Transfer(known, one(seed))


def _trees(objective: Objective) -> Callable[[int], Additive]:
    return lambda seed: GradientBoosting(objective, seed=seed)


def _network(objective: Objective, encoding: Encoding) -> Choice:
    inputs = "the context of each loop" if encoding is Encoding.CONTEXT else "an embedding of each loop's name"
    text = f"TreeGRU over the loop AST, from {inputs}; objective {objective} (needs PyTorch)"
    return Choice(text, lambda seed: TreeGru(objective, encoding, seed=seed), tree=True)


def _bootstrap(acquisition: Acquisition, text: str) -> Choice:
    return Choice(f"{text} of five boosted trees by regression", _trees(Objective.REGRESSION), acquisition)


COST_MODELS: dict[str, Choice] = {
    "rank": Choice("boosted trees, which learn the order of configurations", _trees(Objective.RANK)),
    "regression": Choice("boosted trees, which learn their speeds", _trees(Objective.REGRESSION)),
    "ei": _bootstrap(Acquisition.EXPECTED_IMPROVEMENT, "expected improvement"),
    "ucb": _bootstrap(Acquisition.UPPER_CONFIDENCE_BOUND, "upper confidence bound"),
    "mean": _bootstrap(Acquisition.MEAN, "mean"),
    "treegru": _network(Objective.RANK, Encoding.CONTEXT),
    "treegru-regression": _network(Objective.REGRESSION, Encoding.CONTEXT),
    "treegru-vanilla": _network(Objective.RANK, Encoding.NAMES),
    "treegru-vanilla-regression": _network(Objective.REGRESSION, Encoding.NAMES),
}


def cost_model(name: str) -> Choice:
    """The choice of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in COST_MODELS:
        raise UsageError(f"unknown cost model {name!r}", hint=f"known cost models: {', '.join(COST_MODELS)}")
    return COST_MODELS[name]
