"""Ensembles: what they are unsure of, and acquisitions."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.tuning.models.ensemble import Ensemble, log_expected_improvement
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.objective import Objective
from tests.unit.tuning.models.order import pairwise_accuracy


def boosted(seed: int) -> GradientBoosting:
    return GradientBoosting("regression", rounds=20, seed=seed)


def line(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).random((n, 2)).astype(np.float32)
    return x, x[:, 0].astype(np.float64)


@pytest.mark.parametrize("acquisition", ["mean", "ei", "ucb"])
def test_every_acquisition_prefers_what_is_fast(acquisition: str) -> None:
    model = Ensemble(boosted, acquisition)
    model.fit(*line(100, 0))
    features, speeds = line(400, 1)
    assert model.least == 8
    assert pairwise_accuracy(model.predict(features), speeds) > 0.7


def test_members_disagree_where_there_was_nothing_to_learn() -> None:
    features, speeds = line(200, 0)
    rng = np.random.default_rng(2)
    speeds = speeds + rng.normal(0, 0.3, 200) * (features[:, 1] > 0.5)
    model = Ensemble(boosted)
    model.fit(features, speeds)
    _, deviation = model.spread(line(500, 3)[0])
    noisy = line(500, 3)[0][:, 1] > 0.5
    assert deviation[noisy].mean() > 2 * deviation[~noisy].mean()


def test_the_bound_adds_deviations_to_the_mean() -> None:
    features, speeds = line(60, 0)
    model = Ensemble(boosted, "ucb", kappa=2.0)
    model.fit(features, speeds)
    mean, deviation = model.spread(features)
    assert np.allclose(model.predict(features), mean + 2 * deviation)


def test_the_same_seed_learns_the_same() -> None:
    features, speeds = line(60, 0)
    predicted = []
    for seed in (1, 1, 2):
        model = Ensemble(boosted, seed=seed)
        model.fit(features, speeds)
        predicted.append(model.predict(features))
    assert np.array_equal(predicted[0], predicted[1])
    assert not np.array_equal(predicted[0], predicted[2])


def test_expected_improvement_is_the_mean_gain() -> None:
    rng = np.random.default_rng(0)
    for mean, deviation in ((0.0, 1.0), (-2.0, 0.5), (1.5, 2.0)):
        drawn = np.maximum(rng.normal(mean, deviation, 400_000) - 0.5, 0).mean()
        found = np.exp(log_expected_improvement(np.array([mean]), np.array([deviation]), 0.5)[0])
        assert found == pytest.approx(drawn, abs=0.01)


def test_expected_improvement_grows_with_the_mean_however_small_it_is() -> None:
    means = np.linspace(-300, 20, 4001)
    found = log_expected_improvement(means, np.ones(4001), 0.0)
    assert np.isfinite(found).all()
    assert (np.diff(found) > 0).all()
    assert np.exp(found[-1]) == pytest.approx(20)


def test_the_gain_is_over_the_best_that_was_measured() -> None:
    """Not over the best prediction, which is less: the same gain is expected of all models of one expectation."""

    class Fixed:
        objective, least = Objective.REGRESSION, 1

        def fit(self, features: np.ndarray, speeds: np.ndarray) -> None: ...

        def predict(self, features: np.ndarray) -> np.ndarray:
            return features[:, 0].astype(float)

    model = Ensemble(lambda _seed: Fixed(), "ei")
    features = np.array([[0.5], [0.7]], np.float32)
    model.fit(features, np.array([0.6, 0.9]))
    found = np.exp(model.predict(np.array([[1.0], [1.1]])))
    assert found == pytest.approx([0.1, 0.2], abs=1e-6)


def test_orders_have_no_acquisitions() -> None:
    with pytest.raises(UsageError, match="acquisitions are of predicted speeds") as refusal:
        Ensemble(lambda seed: GradientBoosting("rank", seed=seed), "ucb")
    assert "regression" in refusal.value.hint


def test_unknown_acquisitions_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown acquisition 'best'") as refusal:
        Ensemble(boosted, "best")
    assert "mean, ei, ucb" in refusal.value.hint
