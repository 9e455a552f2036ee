"""OpEvo's operators against the paper's definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.lower.knobs import Discrete, Space
from mlc.tuning.explorers import EXPLORERS
from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.opevo import OpEvo, recombine
from tests.fuzz import examples

SPACE = Space(tuple(Discrete(f"d{k}", tuple(range(40))) for k in range(4)), {f"d{k}": 0 for k in range(4)})


@examples(40)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8), st.integers(0, 99))
def test_knobs_are_inherited_in_proportion_to_fitness(fitness: list[float], seed: int) -> None:
    parents = np.arange(len(fitness))[:, None] * 10 + np.arange(3)
    n = 4000
    children = recombine(parents, np.array(fitness), n, np.random.default_rng(seed))
    assert (children % 10 == np.arange(3)).all()
    for knob in range(3):
        share = np.bincount(children[:, knob] // 10, minlength=len(fitness)) / n
        chance = np.array(fitness) / sum(fitness)
        assert np.abs(share - chance).max() < 6 * np.sqrt(0.25 / n)


def test_parents_without_fitness_have_no_children() -> None:
    children = recombine(np.array([[0, 0], [1, 1]]), np.array([3.0, 0.0]), 50, np.random.default_rng(0))
    assert not children.any()


def test_children_stay_near_the_fastest_and_are_new() -> None:
    ledger = Ledger(SPACE, np.random.default_rng(0))
    fast = np.array([[5, 5, 5, 5], [30, 30, 30, 30]])
    ledger.record(np.concatenate([fast, [[k, 20, 20, 20] for k in range(6)]]), np.array([9.0, 9.0, *[0.0] * 6]))
    children = OpEvo(ledger, parents=8).breed(200)
    assert ledger.new(children).all()
    distance = np.minimum(abs(children - 5), abs(children - 30))
    assert distance.mean() < 2  # walks of 0.5^k steps are one step long on average
    assert (abs(children - 20) > 4).mean() > 0.98


def test_a_known_neighbourhood_is_left_by_mutating_again() -> None:
    ledger = Ledger(SPACE, np.random.default_rng(0))
    cube = np.stack(np.meshgrid(*[np.arange(8, 13)] * 4), axis=-1).reshape(-1, 4)
    ledger.record(cube, np.where((cube == 10).all(axis=1), 50.0, 1e-9))
    children = OpEvo(ledger, parents=1).breed(32)
    assert ledger.new(children).all()
    assert abs(children - 10).max() < 15


def test_before_anything_is_known_or_when_all_failed_it_draws_evenly() -> None:
    ledger = Ledger(SPACE, np.random.default_rng(0))
    opevo = OpEvo(ledger)
    assert abs(opevo.breed(4000).mean() - 19.5) < 1
    ledger.record(SPACE.sample(ledger.rng, 20), np.zeros(20))
    assert abs(opevo.breed(4000).mean() - 19.5) < 1


def test_generations_have_as_many_children_as_asked() -> None:
    ledger = Ledger(SPACE, np.random.default_rng(0))
    ledger.record(SPACE.sample(ledger.rng, 20), np.arange(20.0))
    opevo = OpEvo(ledger, children=8)
    first = opevo.suggest(3)
    ledger.take(first, 3)
    again = opevo.suggest(5)
    assert len(first) == 3
    assert len(again) == 5
    assert ledger.new(again).all()


@pytest.mark.parametrize(
    ("batch", "children", "bred"), [(16, None, [16]), (16, 8, [16]), (5, None, [5]), (4, 12, [12])]
)
def test_a_batch_breeds_one_generation(batch: int, children: int | None, bred: list[int]) -> None:
    """From the parents that are the fastest by then, so what a batch has told counts in the next one."""
    ledger = Ledger(SPACE, np.random.default_rng(0))
    ledger.record(SPACE.sample(ledger.rng, 20), np.arange(20.0))
    opevo = OpEvo(ledger, children=children)
    sizes: list[int] = []
    breed = opevo.breed
    opevo.breed = lambda n, *rest: (sizes.append(n), breed(n, *rest))[1]  # type: ignore[method-assign]
    rows = ledger.take(opevo.suggest(batch), batch)
    assert len(rows) == batch
    assert sizes == bred
    fastest = rows[-1:] + 0
    ledger.record(rows, np.zeros(batch))
    ledger.record(fastest, np.array([1e6]))
    if children is None:  # nothing is left of the old generation
        assert abs(opevo.suggest(40) - fastest).mean() < 2


def test_a_tuning_run_breeds_one_generation_a_batch() -> None:
    explorer = EXPLORERS["opevo"](SPACE, np.random.default_rng(0))
    first = explorer.propose(16)
    explorer.observe(first, np.where((first == first[3]).all(axis=1), 9.0, 1e-9))
    assert abs(explorer.propose(16) - first[3]).mean() < 2
