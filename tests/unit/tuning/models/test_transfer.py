"""Learning from other tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.tuning.explorers import EXPLORERS
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.transfer import Transfer, learn_globally
from tests.unit.tuning.landscapes import Speed, explore, tiles
from tests.unit.tuning.models.order import pairwise_accuracy


def measured(speed: Speed, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    space, _ = tiles()
    rows = space.sample(np.random.default_rng(seed), n)
    return space.describe(rows), speed(rows)


OTHERS = [tiles((2.6, 3.4, 4.5, 5.0))[1], tiles((2.2, 3.4, 5.5, 6.0))[1]]
# The same landscapes on different machines: one of them twenty times as fast.
HISTORY = [measured(OTHERS[0], 400, 0), (measured(OTHERS[1], 400, 1)[0], 20 * measured(OTHERS[1], 400, 1)[1])]


def taught(tasks: list[tuple[np.ndarray, np.ndarray]], **options: Any) -> GradientBoosting:
    model = GradientBoosting(**options)
    learn_globally(tasks, model)
    return model


def test_tasks_are_compared_only_with_themselves() -> None:
    model = taught(HISTORY, rounds=40)
    for other, scale in zip(OTHERS, (1, 20), strict=True):
        features, speeds = measured(other, 500, 9)
        assert pairwise_accuracy(model.predict(features), scale * speeds) > 0.85


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_both_models_together_know_more_than_either(objective: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((2500, 6)).astype(np.float32)
    here, unseen = features[:60], features[500:]
    known = taught([(features[:500], features[:500, 0] + features[:500, 1])], objective=objective, rounds=40)
    local, model = (GradientBoosting(objective, rounds=40) for _ in range(2))
    both = Transfer(known, model)
    for learner in (local, both):
        learner.fit(here, here[:, 0] + here[:, 1] + 2 * here[:, 2])
    truth = unseen[:, 0] + unseen[:, 1] + 2 * unseen[:, 2]
    alone = max(pairwise_accuracy(m.predict(unseen), truth) for m in (known, local))
    assert pairwise_accuracy(both.predict(unseen), truth) > alone + 0.02


def test_before_anything_is_measured_the_global_model_decides() -> None:
    known = taught(HISTORY, rounds=10)
    model = Transfer(known, GradientBoosting(rounds=10))
    features, speeds = measured(tiles()[1], 5, 0)
    model.fit(features, speeds)
    assert model.least == 0
    assert np.array_equal(model.predict(features), known.predict(features))


def test_transfer_shortens_the_search() -> None:
    space, speed = tiles()
    best = {}
    for transfer in (True, False):
        found = []
        for seed in range(4):
            model = Transfer(taught(HISTORY, rounds=40), GradientBoosting()) if transfer else None
            options = {"chains": 64, "steps": 40}
            explorer = EXPLORERS["annealing"](space, np.random.default_rng(seed), model=model, **options)
            found.append(explore(explorer, speed, 32, 16).max())
        best[transfer] = np.mean(found)
    assert best[True] > 1.3 * best[False]


def test_refusals() -> None:
    with pytest.raises(UsageError, match="no kernel with a measured configuration"):
        learn_globally([(np.ones((2, 3)), np.zeros(2)), (np.zeros((0, 3)), np.zeros(0))], GradientBoosting())
    with pytest.raises(UsageError, match=r"differ in number: \[2, 3\]"):
        learn_globally([(np.ones((2, 3)), np.ones(2)), (np.ones((2, 2)), np.ones(2))], GradientBoosting())
    with pytest.raises(UsageError, match="objective is rank, the local one's regression"):
        Transfer(GradientBoosting("rank"), GradientBoosting("regression"))
