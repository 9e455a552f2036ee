"""The books of an exploration."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlc.lower.knobs import Discrete, Space
from mlc.tuning.explorers.ledger import Ledger
from tests.fuzz import examples


def cube(knobs: int, values: int) -> Space:
    return Space(
        tuple(Discrete(f"d{k}", tuple(range(values))) for k in range(knobs)), {f"d{k}": 0 for k in range(knobs)}
    )


@examples(30)
@given(st.integers(1, 18), st.integers(1, 40))
def test_different_configurations_have_different_codes(knobs: int, values: int) -> None:
    space = cube(knobs, values)
    ledger = Ledger(space, np.random.default_rng(0))
    rows = np.unique(space.sample(np.random.default_rng(1), 500), axis=0)
    assert len(np.unique(ledger.codes(rows))) == len(rows)
    if space.size <= 1 << 63:
        assert ledger.codes(rows).tolist() == [space.index(r) for r in rows]


def test_new_means_unknown_valid_and_not_repeated() -> None:
    ledger = Ledger(cube(2, 4), np.random.default_rng(0), valid=lambda r: r[:, 1] < 3)
    ledger.record(np.array([[1, 1]]), np.array([2.0]))
    rows = np.array([[1, 1], [2, 2], [2, 2], [2, 3], [0, 0]])
    assert ledger.new(rows).tolist() == [False, True, False, False, True]
    assert ledger.take(rows, 1).tolist() == [[2, 2]]
    assert ledger.new(rows).tolist() == [False, False, False, False, True]


def test_a_configuration_measured_again_takes_its_last_speed() -> None:
    ledger = Ledger(cube(2, 4), np.random.default_rng(0))
    ledger.record(np.array([[1, 1], [2, 2]]), np.array([2.0, 3.0]))
    ledger.record(np.array([[3, 3], [1, 1], [3, 3]]), np.array([0.0, 5.0, 1.0]))
    assert ledger.rows.tolist() == [[1, 1], [2, 2], [3, 3]]
    assert ledger.speeds.tolist() == [5, 3, 1]
    rows, speeds = ledger.ranked(2)
    assert rows.tolist() == [[1, 1], [2, 2]]
    assert speeds.tolist() == [5, 3]


def test_failures_are_not_ranked() -> None:
    ledger = Ledger(cube(2, 4), np.random.default_rng(0))
    ledger.record(np.array([[1, 1], [2, 2], [0, 0]]), np.array([0.0, 3.0, np.nan]))
    assert ledger.ranked()[0].tolist() == [[2, 2]]


def test_fresh_configurations_are_drawn_evenly() -> None:
    counts = np.zeros(16)
    for seed in range(400):
        ledger = Ledger(cube(2, 4), np.random.default_rng(seed))
        ledger.record(np.array([[0, 0]]), np.array([1.0]))
        counts[[ledger.space.index(r) for r in ledger.fresh(4)]] += 1
    assert counts[0] == 0
    assert abs(counts[1:] / 400 - 4 / 15).max() < 0.1
