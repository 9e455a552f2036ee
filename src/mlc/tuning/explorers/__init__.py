"""Explorers: which configurations of a space to measure next.

All of them are a :class:`~mlc.tuning.explorers.search.Search` around a strategy, on one
:class:`~mlc.tuning.explorers.ledger.Ledger`: the default configuration is proposed first, then given seeds, and nothing
twice. Other packages add explorers as entry points of the group ``mlc.explorers``, called like those in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np

from mlc.errors import UsageError
from mlc.lower.knobs import Space
from mlc.tuning.base import CostModel, Explorer, Featurizer
from mlc.tuning.explorers.annealing import Annealing
from mlc.tuning.explorers.descent import Descent
from mlc.tuning.explorers.gbfs import GreedyBestFirst
from mlc.tuning.explorers.genetic import Genetic
from mlc.tuning.explorers.guided import Guided
from mlc.tuning.explorers.ledger import Ledger, Valid
from mlc.tuning.explorers.na2c import ActorCritic
from mlc.tuning.explorers.opevo import OpEvo
from mlc.tuning.explorers.search import Search, Strategy
from mlc.tuning.explorers.simple import Grid, Random
from mlc.tuning.explorers.surrogate import Surrogate

_GROUP = "mlc.explorers"


class Factory(Protocol):
    """Makes an explorer of one space."""

    def __call__(
        self,
        space: Space,
        rng: np.random.Generator,
        *,
        featurizer: Featurizer | None = None,
        model: CostModel | None = None,
        seeds: np.ndarray | None = None,
        valid: Valid | None = None,
        **options: Any,
    ) -> Explorer:
        """An explorer.

        Args:
            space: what to explore.
            rng: the same generator in the same state gives the same proposals for the same observations.
            featurizer: describes configurations to the model; the knobs themselves unless given.
            model: gradient boosting with the rank objective unless given.
            seeds: configurations to try right after the default one, int64 ``[n, knobs]``.
            valid: tells which of many configurations ``[n, knobs]`` can be built, bool ``[n]``.
            options: of the strategy; see its class. ``polish=n`` ends the search with coordinate descent from the best
                configuration, once ``n`` have been measured.
        """
        ...


def _explorer(strategy: Callable[..., Strategy], *, learns: bool = False) -> Factory:
    """A factory of explorers that follow a strategy; one that ``learns`` is given a cost model."""

    def make(
        space: Space,
        rng: np.random.Generator,
        *,
        featurizer: Featurizer | None = None,
        model: CostModel | None = None,
        seeds: np.ndarray | None = None,
        valid: Valid | None = None,
        polish: int | None = None,
        **options: Any,
    ) -> Search:
        if learns and model is None:
            from mlc.tuning.models.gbt import GradientBoosting

            model = GradientBoosting(seed=int(rng.integers(1 << 31)))
        ledger = Ledger(space, rng, seeds, valid)
        helpers = [Surrogate(ledger, featurizer or space.describe, model)] if learns and model is not None else []
        return Search(ledger, strategy(ledger, *helpers, **options), Descent(ledger), polish)

    return make


EXPLORERS: dict[str, Factory] = {
    "annealing": _explorer(Annealing, learns=True),
    "descent": _explorer(Descent),
    "gbfs": _explorer(GreedyBestFirst),
    "genetic": _explorer(Genetic),
    "grid": _explorer(Grid),
    "guided": _explorer(Guided, learns=True),
    "na2c": _explorer(ActorCritic),
    "opevo": _explorer(OpEvo),
    "random": _explorer(Random),
}


def explorer_names() -> list[str]:
    """Names of every explorer that is installed."""
    return sorted({*EXPLORERS, *(e.name for e in entry_points(group=_GROUP))})


def get_explorer(name: str) -> Factory:
    """The factory of a name.

    Raises:
        UsageError: there is no such explorer.
    """
    if name in EXPLORERS:
        return EXPLORERS[name]
    for point in entry_points(group=_GROUP):
        if point.name == name:
            factory: Factory = point.load()
            return factory
    raise UsageError(f"unknown explorer {name!r}", hint=f"known explorers: {', '.join(explorer_names())}")
