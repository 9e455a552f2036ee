"""Whole searches over a made-up landscape: what learns, or only climbs, beats chance."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mlc.tuning.explorers import EXPLORERS
from tests.unit.tuning.landscapes import explore, tiles


@cache
def best_on_average(name: str, trials: int, batch: int, seeds: int) -> float:
    """The best speed of a run over ``tiles``."""
    space, speed = tiles()
    options = {"chains": 64, "steps": 40} if name == "annealing" else {}
    runs = (EXPLORERS[name](space, np.random.default_rng(seed), **options) for seed in range(seeds))  # type: ignore[arg-type]
    return float(np.mean([explore(explorer, speed, trials, batch).max() for explorer in runs]))


@pytest.mark.parametrize("name", ["alt", "annealing", "guided", "opevo"])
@pytest.mark.slow
def test_learning_explorers_beat_random_search(name: str) -> None:
    found, chance = (best_on_average(n, 120, 24, 10) for n in (name, "random"))
    assert found > 1.15 * chance


@pytest.mark.parametrize("name", ["descent", "gbfs", "genetic", "na2c"])
@pytest.mark.slow
def test_other_explorers_beat_random_search(name: str) -> None:
    found, chance = (best_on_average(n, 480, 40, 3) for n in (name, "random"))
    assert found > 1.05 * chance
