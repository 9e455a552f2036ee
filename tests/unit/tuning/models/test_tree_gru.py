"""The recurrent cost model."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mlc.errors import MissingDependencyError, UsageError
from mlc.tuning.features.nodes import NAME, NODE, PARENT, PRESENT, nodes
from mlc.tuning.models.tree_gru import Encoding, TreeGru
from tests.unit.tuning.models.order import pairwise_accuracy


def programs(n: int, seed: int, padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two outermost loops with one to three inside each; what counts is the greatest extent inside, and both outside.

    The extent is the first of a loop's features, and the names are those of the places.
    """
    rng = np.random.default_rng(seed)
    context = np.zeros((n, 8 + padding, 10), np.float32)
    context[:, :8] = rng.normal(size=(n, 8, 10))
    parents = np.array([-1, -1, 0, 2, 3, 1, 5, 6, *[-1] * padding])
    inside = rng.integers(1, 4, (n, 2))
    names = np.zeros((n, 8 + padding), np.int64)
    names[:, :2] = 1, 2
    for k in range(2):
        names[:, 2 + 3 * k : 5 + 3 * k] = np.where(np.arange(3) < inside[:, k : k + 1], np.arange(3) + 3 + 3 * k, 0)
    context[names == 0] = 0
    extents = np.where(names > 0, context[:, :, 0], -9)
    speeds = 2 * extents[:, 2:8].max(axis=1) + extents[:, :2].sum(axis=1) / 2
    return nodes(context, np.repeat(parents[None], n, axis=0), names), speeds - speeds.min()


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_it_orders_programs_it_has_not_seen(objective: str, encoding: Encoding) -> None:
    pytest.importorskip("torch")
    model = TreeGru(objective, encoding, hidden=24, slots=4, epochs=20, rate=1e-2)
    features, speeds = programs(256, 0)
    model.fit(features, speeds / speeds.max())
    unseen, truth = programs(300, 1)
    assert pairwise_accuracy(model.predict(unseen), truth) > 0.72


@pytest.mark.parametrize("encoding", Encoding)
def test_which_loop_is_inside_of_which_counts(encoding: Encoding) -> None:
    """Loops that are moved under another one, or that change places with one beside them."""
    pytest.importorskip("torch")
    features, speeds = programs(40, 0)
    model = TreeGru(encoding=encoding, hidden=8, slots=2, epochs=1)
    model.fit(features, speeds)
    moved = features.copy()
    moved[:, 5, PARENT] = 1  # the loops inside of the second outermost one go into the first
    assert not np.allclose(model.predict(features), model.predict(moved), atol=1e-5)
    swapped = features[:, [1, 0, 5, 6, 7, 2, 3, 4]]
    swapped[:, :, PARENT] = [0, 0, 1, 3, 4, 2, 6, 7]
    assert np.allclose(model.predict(features), model.predict(swapped), atol=1e-5)


def test_names_tell_loops_apart_that_look_alike() -> None:
    """All loops are alike, and where the second outermost one has another name, the program is fast."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    features = programs(120, 0)[0]
    features[:, :, NODE:] = 0
    features[:, 2:] = 0
    fast = rng.random(120) < 0.5
    features[:, 1, NAME] = np.where(fast, 7, 2)
    for encoding, least in ((Encoding.NAMES, 1.0), (Encoding.CONTEXT, 0.5)):
        model = TreeGru(encoding=encoding, hidden=8, slots=2, epochs=20, rate=1e-2)
        model.fit(features, fast.astype(float))
        assert pairwise_accuracy(model.predict(features), fast.astype(float)) == least


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
    features[200:, :, NODE + 2] += 3  # tells the tasks apart
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
    padded[padded[:, :, PRESENT] == 0, 1:] = 1e9
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
    assert not model.predict(np.ones((3, 2, 12), np.float32)).any()
    with pytest.raises(UsageError, match="not from rank 2"):
        model.fit(np.ones((3, 2), np.float32), np.ones(3))
