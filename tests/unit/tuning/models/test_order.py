"""Figures of merit of predictions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import examples
from tests.unit.tuning.models.order import pairwise_accuracy, rank_correlation, top_recall


@examples(60)
@given(st.integers(0, 10_000), st.integers(2, 900))
def test_perfect_and_opposite_orders(seed: int, n: int) -> None:
    actual = np.random.default_rng(seed).permutation(n).astype(float)
    assert rank_correlation(actual**3, actual) == pytest.approx(1)
    assert rank_correlation(-actual, actual) == pytest.approx(-1)
    assert pairwise_accuracy(np.exp(actual / n), actual) == 1
    assert pairwise_accuracy(-actual, actual) == 0
    assert top_recall(actual, actual, 5) == 1


def test_ties_share_ranks_and_count_half() -> None:
    actual = np.array([1.0, 2.0, 3.0, 3.0])
    assert rank_correlation(actual, actual) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.9486833)
    assert pairwise_accuracy(np.array([1.0, 1.0, 2.0, 0.0]), actual) == pytest.approx((0.5 + 1 + 0 + 1 + 0) / 5)


def test_constants_tell_nothing() -> None:
    actual = np.array([1.0, 2.0, 3.0])
    assert rank_correlation(np.ones(3), actual) == 0
    assert pairwise_accuracy(np.ones(3), actual) == 0.5
    assert pairwise_accuracy(actual, np.ones(3)) == 0.5


def test_recall_counts_those_found() -> None:
    actual = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    assert top_recall(np.array([5.0, 0.0, 4.0, 1.0, 3.0]), actual, 3) == pytest.approx(2 / 3)
    assert top_recall(actual, actual, 99) == 1
    assert top_recall(actual, actual, 0) == 0
