"""Gradient boosting: objectives, groups, files."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.tuning.models.gbt import GradientBoosting, pairwise
from mlc.tuning.models.objective import Objective
from tests.unit.tuning.landscapes import tiles
from tests.unit.tuning.models.order import pairwise_accuracy, rank_correlation, top_recall

SPACE, SPEED = tiles()


def measured(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and speeds of random configurations."""
    rows = SPACE.sample(np.random.default_rng(seed), n)
    return SPACE.describe(rows), SPEED(rows) / 100


@pytest.mark.parametrize("objective", list(Objective))
def test_both_objectives_order_what_they_have_not_seen(objective: Objective) -> None:
    model = GradientBoosting(objective, rounds=40)
    model.fit(*measured(300, 0))
    features, speeds = measured(1000, 1)
    predicted = model.predict(features)
    assert predicted.dtype == np.float64
    assert pairwise_accuracy(predicted, speeds) > 0.8
    assert rank_correlation(predicted, speeds) > 0.7
    assert top_recall(predicted, speeds, 100) > 0.5


def test_regression_predicts_speeds() -> None:
    model = GradientBoosting("regression", rounds=40)
    model.fit(*measured(600, 0))
    features, speeds = measured(500, 1)
    assert abs(model.predict(features) - speeds).mean() < 0.5 * abs(speeds - speeds.mean()).mean()


def test_the_same_seed_learns_the_same() -> None:
    features, speeds = measured(100, 0)
    predicted = []
    for seed in (1, 1, 2):
        model = GradientBoosting(rounds=10, seed=seed)
        model.fit(features, speeds)
        predicted.append(model.predict(features))
    assert np.array_equal(predicted[0], predicted[1])
    assert not np.array_equal(predicted[0], predicted[2])


def test_the_rank_loss_has_the_derivatives_of_equation_2() -> None:
    speeds, scores, pairs = np.array([3.0, 1.0, 2.0, 1.0]), np.array([0.3, 0.1, -0.4, 0.2]), 20_000
    gradient, curvature = pairwise(speeds, None, pairs, np.random.default_rng(0))(scores)

    def loss(f: np.ndarray) -> float:
        """Mean over both members of all pairs."""
        sign = np.sign(speeds[:, None] - speeds)
        return float((np.log1p(np.exp(-sign * (f[:, None] - f))) * abs(sign)).sum() / 4 / 2)

    for k, step in enumerate(np.eye(4) * 1e-4):
        assert gradient[k] == pytest.approx((loss(scores + step) - loss(scores - step)) / 2e-4, abs=0.01)
        second = (loss(scores + step) - 2 * loss(scores) + loss(scores - step)) / 1e-8
        assert curvature[k] == pytest.approx(second, abs=0.01)


def test_only_examples_of_one_group_are_compared() -> None:
    speeds, groups = np.array([1.0, 2.0, 10.0, 20.0]), np.array([7, 7, 3, 3])
    gradient, _ = pairwise(speeds, groups, 50, np.random.default_rng(0))(np.zeros(4))
    assert gradient[0] == pytest.approx(gradient[2], abs=0.15)
    assert (gradient[[0, 2]] > 0).all()
    assert (gradient[[1, 3]] < 0).all()
    assert gradient[:2].sum() == pytest.approx(0)


def test_trees_learn_what_a_base_leaves() -> None:
    features, speeds = measured(300, 0)
    base = speeds - features[:, 2] / 10
    model = GradientBoosting("regression", rounds=60)
    model.fit(features, speeds, base=base)
    assert abs(model.predict(features) - features[:, 2] / 10).max() < 0.15


@pytest.mark.parametrize("speeds", [np.zeros(20), np.ones(20)])
@pytest.mark.parametrize("objective", list(Objective))
def test_equal_speeds_teach_nothing(objective: Objective, speeds: np.ndarray) -> None:
    model = GradientBoosting(objective, rounds=5)
    features = measured(20, 0)[0]
    model.fit(features, speeds)
    assert np.ptp(model.predict(features)) < 1e-6


def test_without_examples_all_are_alike() -> None:
    assert not GradientBoosting().predict(np.ones((3, 2), np.float32)).any()


def test_nothing_is_predicted_of_nothing() -> None:
    model = GradientBoosting(rounds=2)
    model.fit(*measured(20, 0))
    assert model.predict(np.zeros((0, 17), np.float32)).shape == (0,)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="unknown objective 'rang'"):
        GradientBoosting("rang")
