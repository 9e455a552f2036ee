"""The Gaussian process over knobs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlc.lower.knobs import Categorical, Discrete, Factors, Permutation, Space
from mlc.tuning.models.process import Process, _some
from tests.unit.tuning.models.order import pairwise_accuracy

SPACE = Space(
    (
        Factors("m", 64, 2),
        Discrete("rows", tuple(range(1, 15))),
        Categorical("order", ("a", "b", "c")),
        Permutation("walk", ("x", "y", "z")),
        Discrete("unused", (1, 2, 4, 8)),
    ),
    {"m": (64, 1), "rows": 1, "order": "a", "walk": ("x", "y", "z"), "unused": 1},
)


def speeds_of(rows: np.ndarray) -> np.ndarray:
    """A peak at six rows and a tile of eight; one category and one order are a fifth slower; one knob means nothing."""
    inner = np.log2(SPACE.column(rows, "m", 1))
    peak = np.exp(-((SPACE.column(rows, "rows") - 6) ** 2) / 12 - (inner - 3) ** 2 / 6)
    return 100 * peak * np.where(rows[:, 2] == 1, 0.8, 1.0) * np.where(rows[:, 3] == 4, 0.8, 1.0)


def drawn(n: int, seed: int = 0) -> np.ndarray:
    return np.unique(SPACE.sample(np.random.default_rng(seed), 2 * n), axis=0)[:n]


def learnt(n: int, seed: int = 0) -> tuple[Process, np.ndarray]:
    process, rows = Process(SPACE), drawn(n, seed)
    for part in (n // 2, n):
        process.fit(rows[:part], speeds_of(rows[:part]), np.random.default_rng(1))
    return process, rows


def test_it_orders_configurations_it_has_not_seen() -> None:
    process, _ = learnt(96)
    unseen = drawn(400, 5)
    assert pairwise_accuracy(process.posterior(unseen).mean, speeds_of(unseen)) > 0.85


def test_it_is_sure_of_what_it_has_seen_and_not_of_the_rest() -> None:
    process, rows = learnt(64)
    known, unknown = process.posterior(rows).variance, process.posterior(drawn(300, 7)).variance
    assert np.median(known) < 0.3 * np.median(unknown)


def test_the_posterior_is_that_of_the_textbook() -> None:
    """Mean ``k K^-1 y`` and variance ``s (1 - k K^-1 k)`` (Rasmussen and Williams, eqs. 2.25 and 2.26)."""
    process, rows = learnt(40)
    asked = drawn(9, 3)
    observed, at = process._coordinates(rows), process._coordinates(asked)
    kernel = process._kernel(observed, observed) + process._noise * np.eye(40)
    cross = process._kernel(at, observed)
    targets = speeds_of(rows)
    targets = (targets - targets.mean()) / targets.std()
    found = process.posterior(asked)
    np.testing.assert_allclose(found.mean, cross @ np.linalg.solve(kernel, targets), atol=1e-8)
    explained = np.einsum("ij,ji->i", cross, np.linalg.solve(kernel, cross.T))
    np.testing.assert_allclose(found.variance / process._variance, 1 - explained, atol=1e-8)


def test_a_batch_counts_on_what_its_members_will_tell() -> None:
    """As if each choice were observed: the variances left are those of a process that has observed them."""
    process, _ = learnt(40)
    asked = drawn(60, 3)
    known = process.posterior(asked)
    batch = known.choose(known.mean, 6, 2.0)
    assert len(set(batch.tolist())) == 6
    assert (np.diff(known.mean[batch]) <= 0).all()
    # all alike but for the mean: without that count, neighbours of the best would fill the batch
    alike = np.repeat(asked[:1], 5, axis=0)
    both = process.posterior(np.concatenate([alike, asked[1:2]]))
    hope = np.array([0.0, 0.0, 0.0, 0.0, 0.0, -1e-6])
    assert 5 in both.choose(hope, 2, 2.0)


def test_single_points_and_equal_speeds_are_no_trouble() -> None:
    process = Process(SPACE)
    process.fit(drawn(1), np.array([3.0]), np.random.default_rng(0))
    assert np.isfinite(process.posterior(drawn(5)).mean).all()
    process.fit(drawn(20), np.zeros(20), np.random.default_rng(0))
    found = process.posterior(drawn(5, 2))
    assert np.isfinite(found.mean).all()
    assert (found.variance > 0).all()


def test_a_space_without_choices_is_no_trouble() -> None:
    process = Process(Space((Discrete("one", (4,)),), {"one": 4}))
    rows = np.zeros((1, 1), np.int64)
    process.fit(rows, np.ones(1), np.random.default_rng(0))
    assert np.isfinite(process.posterior(rows).mean).all()


@given(st.integers(769, 900), st.integers(0, 5))
def test_many_observations_are_thinned_and_the_fastest_stay(n: int, seed: int) -> None:
    values = np.random.default_rng(seed).random(n)
    chosen = _some(values, 768, np.random.default_rng(seed))
    assert len(np.unique(chosen)) == 768
    assert set(np.argsort(-values)[:384]) <= set(chosen.tolist())
