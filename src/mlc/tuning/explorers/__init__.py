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
from mlc.tuning.explorers.alt import LayoutSplits, LoopWalks
from mlc.tuning.explorers.annealing import Annealing
from mlc.tuning.explorers.descent import Descent
from mlc.tuning.explorers.gbfs import GreedyBestFirst
from mlc.tuning.explorers.genetic import Genetic
from mlc.tuning.explorers.guided import Guided
from mlc.tuning.explorers.ledger import Ledger, Valid
from mlc.tuning.explorers.limits import whole
from mlc.tuning.explorers.memory import Memory
from mlc.tuning.explorers.na2c import ActorCritic
from mlc.tuning.explorers.opevo import OpEvo
from mlc.tuning.explorers.search import Search, Strategy
from mlc.tuning.explorers.simple import Grid, Random
from mlc.tuning.explorers.surrogate import Lessons, Surrogate

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
        memory: Memory | None = None,
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
            memory: what it shares with explorers of other spaces of the same task; nothing unless given.
            options: of the strategy; see its class. ``polish=n`` ends the search with coordinate descent from the best
                configuration, once ``n`` have been measured.
        """
        ...


def _explorer(strategy: Callable[..., Strategy], *, learns: bool = False, remembers: bool = False) -> Factory:
    """A factory of explorers that follow a strategy.

    Args:
        strategy: takes a ledger, what else it asks for here, and options.
        learns: whether it is given a cost model.
        remembers: whether it is given the memory of the task.
    """

    def make(
        space: Space,
        rng: np.random.Generator,
        *,
        featurizer: Featurizer | None = None,
        model: CostModel | None = None,
        seeds: np.ndarray | None = None,
        valid: Valid | None = None,
        memory: Memory | None = None,
        polish: int | None = None,
        **options: Any,
    ) -> Search:
        whole(0, polish=polish)
        memory = Memory() if memory is None else memory
        ledger = Ledger(space, rng, seeds, valid)
        helpers: list[Surrogate | Memory] = []
        if learns:
            helpers.append(_surrogate(ledger, featurizer, model, memory))
        if remembers:
            helpers.append(memory)
        return Search(ledger, strategy(ledger, *helpers, **options), Descent(ledger), polish)

    return make


def _surrogate(ledger: Ledger, featurizer: Featurizer | None, model: CostModel | None, memory: Memory) -> Surrogate:
    """The cost model of a space; that of the task, where features mean the same in all its spaces."""
    if featurizer is not None and memory.lessons is not None:
        return Surrogate(ledger, featurizer, memory.lessons)
    if model is None:
        from mlc.tuning.models.gbt import GradientBoosting

        model = GradientBoosting(seed=int(ledger.rng.integers(1 << 31)))
    lessons = Lessons(model)
    if featurizer is None:  # knobs are described, and those of other spaces are others
        return Surrogate(ledger, ledger.space.describe, lessons)
    memory.lessons = lessons
    return Surrogate(ledger, featurizer, lessons)


EXPLORERS: dict[str, Factory] = {
    "alt": _explorer(LoopWalks, learns=True, remembers=True),
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

OF_LAYOUTS: dict[str, Factory] = {"alt": _explorer(LayoutSplits, remembers=True)}
"""Explorers of layout spaces, of those that go about these otherwise than about loops."""


def explorer_names() -> list[str]:
    """Names of every explorer that is installed."""
    return sorted({*EXPLORERS, *(e.name for e in entry_points(group=_GROUP))})


def get_explorer(name: str, *, layouts: bool = False) -> Factory:
    """The factory of a name.

    Args:
        name: of an explorer.
        layouts: whether it is for a layout space.
    Raises:
        UsageError: there is no such explorer.
    """
    if layouts and name in OF_LAYOUTS:
        return OF_LAYOUTS[name]
    if name in EXPLORERS:
        return EXPLORERS[name]
    for point in entry_points(group=_GROUP):
        if point.name == name:
            factory: Factory = point.load()
            return factory
    raise UsageError(f"unknown explorer {name!r}", hint=f"known explorers: {', '.join(explorer_names())}")
