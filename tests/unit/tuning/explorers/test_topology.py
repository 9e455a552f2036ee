"""Moves and walks on the graph of configurations against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.lower.knobs import Categorical, Discrete, Factors, Knob, Permutation, Space
from mlc.tuning.explorers.topology import Topology
from tests.fuzz import examples

KNOBS: list[Knob] = [
    Factors("f", 8, 3),  # OpEvo's Figure 1a
    Factors("g", 12, 2, ((-1, 4),)),
    Permutation("p", ("a", "b", "c")),
    Discrete("d", (1, 2, 3, 4)),
    Categorical("c", tuple("abcdef")),
    Discrete("one", (7,)),
]
SPACE = Space(tuple(KNOBS), {k.name: k.values[0] for k in KNOBS})


def stationary(knob: Knob, q: float) -> np.ndarray:
    """Column ``u``: where a q-random walk from ``u`` stops, ``(1 - q) (I - q T)^-1`` (OpEvo, appendix A)."""
    n = len(knob.values)
    steps = np.zeros((n, n))
    for u in range(n):
        for v in knob.neighbours(u):
            steps[v, u] = 1 / len(knob.neighbours(u))
    return (1 - q) * np.linalg.inv(np.eye(n) - q * steps)


@pytest.mark.parametrize("q", [0.3, 0.5, 0.7])
def test_a_walk_stops_where_the_paper_says(q: float) -> None:
    topology, rng, n = Topology(SPACE), np.random.default_rng(1), 40_000
    start = SPACE.sample(rng, 1)[0]
    stops = topology.walk(np.repeat(start[None], n, axis=0), q, rng)
    for at, knob in enumerate(KNOBS[:-1]):
        expected = stationary(knob, q)[:, start[at]]
        assert expected.sum() == pytest.approx(1)
        counts = np.bincount(stops[:, at], minlength=len(knob.values))
        chi = float(((counts - n * expected) ** 2 / (n * expected)).sum())
        free = len(knob.values) - 1
        assert chi < free + 5 * np.sqrt(2 * free), knob.name


def test_knobs_walk_independently_and_lone_values_stay() -> None:
    topology, rng = Topology(SPACE), np.random.default_rng(2)
    stops = topology.walk(np.zeros((20_000, len(KNOBS)), np.int64), 0.5, rng)
    assert (stops[:, -1] == 0).all()
    moved = (stops[:, :5] > 0).astype(float)
    assert np.abs(np.corrcoef(moved.T) - np.eye(5)).max() < 0.03


@examples(60)
@given(st.integers(0, 10_000))
def test_neighbours_are_those_of_the_space(seed: int) -> None:
    row = SPACE.sample(np.random.default_rng(seed), 1)[0]
    moved, knobs = Topology(SPACE).neighbours(row)
    assert {tuple(r) for r in moved} == {tuple(r) for r in SPACE.neighbours(row)}
    assert len(moved) == len(list(SPACE.neighbours(row)))
    assert [int(np.flatnonzero(r != row)[0]) for r in moved] == knobs.tolist()


def test_a_move_takes_one_knob_to_a_neighbour_and_picks_evenly() -> None:
    topology, rng = Topology(SPACE), np.random.default_rng(3)
    rows = np.repeat(SPACE.sample(rng, 1), 20_000, axis=0)
    moved = topology.move(rows, rng)
    changed = moved != rows
    assert (changed.sum(axis=1) == 1).all()
    assert np.abs(changed[:, :5].mean(axis=0) - 0.2).max() < 0.015
    for at, knob in enumerate(KNOBS[:-1]):
        values = moved[changed[:, at], at]
        near = knob.neighbours(int(rows[0, at]))
        assert set(values.tolist()) == set(near)
        assert np.bincount(values).max() < 1.3 * len(values) / len(near)


def test_where_nothing_can_move_nothing_does() -> None:
    space = Space((Discrete("a", (1,)), Categorical("b", ("x",))), {})
    topology, rng = Topology(space), np.random.default_rng(0)
    rows = np.zeros((3, 2), np.int64)
    assert (topology.move(rows, rng) == rows).all()
    assert (topology.walk(rows, 0.9, rng) == rows).all()
    assert topology.neighbours(rows[0])[0].shape == (0, 2)
    assert topology.move(rows[:0], rng).shape == (0, 2)
