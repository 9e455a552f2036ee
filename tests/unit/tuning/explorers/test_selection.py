"""The choice of a batch (AutoTVM eq. 3)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlc.tuning.explorers.selection import diverse
from tests.fuzz import examples


def gain(rows: np.ndarray, scores: np.ndarray, chosen: list[int], alpha: float) -> float:
    """AutoTVM eq. 3."""
    return float(scores[chosen].sum() + alpha * sum(len(set(column)) for column in rows[chosen].T.tolist()))


@examples(60)
@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0, 2))
def test_the_greedy_choice_is_nearly_the_best(seed: int, n: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    rows, scores = rng.integers(0, 3, (9, 3)), rng.random(9)
    chosen = diverse(rows, scores, n, alpha).tolist()
    assert len(set(chosen)) == n
    best = max(gain(rows, scores, list(c), alpha) for c in combinations(range(9), n))
    assert gain(rows, scores, chosen, alpha) >= (1 - 1 / np.e) * best
    steps = [gain(rows, scores, chosen[: k + 1], alpha) - gain(rows, scores, chosen[:k], alpha) for k in range(n)]
    for k, step in enumerate(steps):  # each one is the best addition there was
        rest = set(range(9)) - set(chosen[:k])
        more = [gain(rows, scores, [*chosen[:k], c], alpha) - gain(rows, scores, chosen[:k], alpha) for c in rest]
        assert step >= max(more) - 1e-9


def test_without_weight_the_best_are_chosen_in_order() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.7])
    assert diverse(np.zeros((4, 2), int), scores, 3, 0.0).tolist() == [1, 3, 2]


def test_no_more_are_chosen_than_there_are() -> None:
    assert sorted(diverse(np.zeros((2, 2), int), np.ones(2), 5, 1.0)) == [0, 1]
    assert diverse(np.zeros((0, 2), int), np.ones(0), 5, 1.0).shape == (0,)
