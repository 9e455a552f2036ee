"""The recurrent cost model."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mlc.errors import MissingDependencyError, UsageError
from mlc.tuning.models.tree_gru import TreeGru
from tests.unit.tuning.models.order import pairwise_accuracy


def programs(n: int, seed: int, padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Nests of 2 to 5 loops; what counts is the extent of the innermost, and the sum of all others less."""
    rng = np.random.default_rng(seed)
    features = np.zeros((n, 5 + padding, 4), np.float32)
    speeds = np.zeros(n)
    for k in range(n):
        loops = int(rng.integers(2, 6))
        features[k, :loops] = rng.normal(size=(loops, 4))
        features[k, :loops, 0] = 1
        speeds[k] = 2 * features[k, loops - 1, 1] + features[k, : loops - 1, 1].sum() / 2
    return features, speeds - speeds.min()


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_it_orders_programs_it_has_not_seen(objective: str) -> None:
    pytest.importorskip("torch")
    model = TreeGru(objective, hidden=24, slots=4, epochs=12, rate=1e-2)
    features, speeds = programs(256, 0)
    model.fit(features, speeds / speeds.max())
    unseen, truth = programs(300, 1)
    assert pairwise_accuracy(model.predict(unseen), truth) > 0.72


def test_it_leaves_the_number_of_threads_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for one another take a hundred times as long on a busy machine."""
    torch = pytest.importorskip("torch")
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    model = TreeGru(hidden=4, slots=2, epochs=1)
    features, speeds = programs(20, 0)
    model.fit(features, speeds)
    model.predict(features)
    assert asked == [1, 3, 1, 3]


def test_tasks_are_compared_only_with_themselves() -> None:
    """One of two tasks is a hundred times as fast, which says nothing about its programs."""
    pytest.importorskip("torch")
    parts = [programs(200, seed) for seed in (0, 1)]
    features = np.concatenate([parts[0][0], parts[1][0]])
    features[200:, :, 2] += 3  # tells the tasks apart
    speeds = np.concatenate([parts[0][1], 100 * parts[1][1]])
    model = TreeGru(hidden=24, slots=4, epochs=12, rate=1e-2)
    model.fit(features, speeds, groups=np.repeat([0, 1], 200))
    scores = model.predict(features)
    assert abs(scores[:200].mean() - scores[200:].mean()) < 2 * scores[:200].std()


def test_it_learns_what_another_model_leaves() -> None:
    pytest.importorskip("torch")
    features, speeds = programs(256, 0)
    model = TreeGru("regression", hidden=24, slots=4, epochs=30, rate=1e-2)
    model.fit(features, speeds, base=speeds)
    assert np.abs(model.predict(features)).max() < 0.2 * speeds.std()


def test_padding_changes_nothing_and_its_features_are_ignored() -> None:
    pytest.importorskip("torch")
    model = TreeGru(hidden=8, slots=2, epochs=1)
    features, speeds = programs(40, 0)
    model.fit(features, speeds)
    padded = programs(40, 0, padding=3)[0]
    assert np.allclose(model.predict(features), model.predict(padded), atol=1e-5)
    padded[padded[:, :, 0] == 0, 1:] = 1e9
    assert np.allclose(model.predict(features), model.predict(padded), atol=1e-5)


def test_the_same_seed_learns_the_same_and_leaves_the_global_generator_alone() -> None:
    torch = pytest.importorskip("torch")
    features, speeds = programs(40, 0)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    predicted = []
    for seed in (1, 1, 2):
        model = TreeGru(hidden=8, slots=2, epochs=2, seed=seed)
        model.fit(features, speeds)
        predicted.append(model.predict(features))
    assert torch.rand(1) == expected
    assert np.allclose(predicted[0], predicted[1], atol=1e-6)
    assert not np.allclose(predicted[0], predicted[2])


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="PyTorch") as refusal:
        TreeGru()
    assert "pip install torch" in refusal.value.hint


def test_flat_features_are_refused() -> None:
    pytest.importorskip("torch")
    model = TreeGru()
    assert not model.predict(np.ones((3, 2, 2), np.float32)).any()
    with pytest.raises(UsageError, match="not from rank 2"):
        model.fit(np.ones((3, 2), np.float32), np.ones(3))
