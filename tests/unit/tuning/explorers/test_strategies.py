"""What sets each strategy apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlc.lower.knobs import Categorical, Discrete, Factors, Space
from mlc.tuning.base import batch_of
from mlc.tuning.explorers import EXPLORERS
from mlc.tuning.explorers.annealing import Annealing
from mlc.tuning.explorers.descent import Descent
from mlc.tuning.explorers.gbfs import GreedyBestFirst
from mlc.tuning.explorers.genetic import Genetic
from mlc.tuning.explorers.guided import Guided
from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.na2c import ActorCritic, Move
from mlc.tuning.explorers.network import Network
from mlc.tuning.explorers.surrogate import Lessons, Surrogate

SPACE = Space(tuple(Discrete(f"d{k}", tuple(range(40))) for k in range(4)), {f"d{k}": 0 for k in range(4)})
MIXED = Space(
    (Factors("f", 64, 3), Discrete("d", tuple(range(8))), Categorical("c", tuple("abcd"))),
    {"f": (64, 1, 1), "d": 0, "c": "a"},
)


class Sum:
    """A cost model that knows: the greater the first feature, the faster."""

    least = 2
    fits = 0

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        assert len(features) == len(speeds)
        assert speeds.max() == 1
        self.fits += 1

    def predict(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = features[:, 0].astype(float)
        return found


def ledger_with(space: Space, rows: list[list[int]], speeds: list[float]) -> Ledger:
    ledger = Ledger(space, np.random.default_rng(0))
    ledger.record(np.array(rows), np.array(speeds))
    return ledger


def first_column(rows: np.ndarray) -> np.ndarray:
    return rows[:, :1].astype(np.float32)


def test_a_grid_counts_with_the_last_knob_fastest() -> None:
    rows = EXPLORERS["grid"](MIXED, np.random.default_rng(0)).propose(200)
    default = MIXED.index(MIXED.row({}))
    assert [MIXED.index(r) for r in rows] == [default, *[k for k in range(200) if k != default][:199]]


def test_best_first_search_expands_the_fastest_first_and_each_once() -> None:
    ledger = ledger_with(SPACE, [[10] * 4, [30] * 4, [20] * 4], [3.0, 2.0, 0.0])
    search = GreedyBestFirst(ledger, neighbours=5)
    first = ledger.take(search.suggest(5), 5)
    second = ledger.take(search.suggest(5), 5)
    assert (abs(first - 10).sum(axis=1) == 1).all()
    assert (abs(second - 30).sum(axis=1) == 1).all()
    assert len(first) == len(second) == 5


def test_best_first_search_starts_over_when_all_is_expanded() -> None:
    ledger = ledger_with(SPACE, [[10] * 4], [1.0])
    search = GreedyBestFirst(ledger, neighbours=5)
    taken = [ledger.take(search.suggest(5), 5) for _ in range(2)]
    assert len(np.unique(np.concatenate(taken), axis=0)) == 8  # all neighbours of the only configuration
    assert not len(search.suggest(5))


def test_descent_tries_the_neighbours_of_the_fastest_then_of_the_next() -> None:
    ledger = ledger_with(SPACE, [[10] * 4, [30] * 4, [20] * 4], [3.0, 2.0, 0.0])
    rows = Descent(ledger).suggest(100)
    assert (abs(rows[:8] - 10).sum(axis=1) == 1).all()
    assert (abs(rows[8:] - 30).sum(axis=1) == 1).all()
    assert len(rows) == 16


def test_descent_goes_on_with_the_knob_that_helped() -> None:
    ledger = ledger_with(SPACE, [[10, 10, 10, 10]], [1.0])
    descent = Descent(ledger)
    for row, speed in (([10, 10, 10, 10], 1.0), ([10, 10, 11, 10], 2.0)):
        ledger.record(np.array([row]), np.array([speed]))
        descent.learn(np.array([row]), np.array([speed]))
    assert descent.suggest(1).tolist() == [[10, 10, 12, 10]]


def test_a_genetic_generation_mixes_its_parents() -> None:
    rng = np.random.default_rng(0)
    parents = np.where(rng.random((100, 1)) < 0.5, 5, 30) * np.ones((100, 4), np.int64)
    parents[:, 0] += rng.integers(0, 3, 100)
    ledger = ledger_with(SPACE, parents.tolist(), [1.0] * 100)
    children = Genetic(ledger, population=6, mutation=0.0).suggest(60)
    assert len(children) == 60
    assert np.isin(children[:, 1:], [5, 30]).mean() > 0.6  # the others were known, and were given random knobs


def test_annealing_finds_the_top_of_the_model_and_leaves_a_share_to_chance() -> None:
    ledger = ledger_with(SPACE, SPACE.sample(np.random.default_rng(1), 8).tolist(), [1.0] * 8)
    annealing = Annealing(ledger, Surrogate(ledger, first_column, Lessons(Sum())), alpha=0.0, epsilon=0.25)
    rows = annealing.suggest(16)
    assert len(rows) == 12
    assert (rows[:, 0] >= 38).all()
    assert ledger.new(rows).all()


def test_chains_persist_between_batches() -> None:
    ledger = ledger_with(SPACE, SPACE.sample(np.random.default_rng(1), 8).tolist(), [1.0] * 8)
    annealing = Annealing(
        ledger,
        Surrogate(ledger, first_column, Lessons(Sum())),
        steps=60,
        patience=60,
        elite=0.0,
        chains=32,
        temperature=0.05,
    )  # fmt: skip
    before = [annealing.suggest(4), annealing._at][1]
    annealing._steps = 0
    annealing.suggest(4)
    assert before is not None
    assert np.array_equal(before, annealing._at)
    assert before[:, 0].mean() > 25


def test_diversity_spreads_a_batch() -> None:
    ledger = ledger_with(SPACE, SPACE.sample(np.random.default_rng(1), 8).tolist(), [1.0] * 8)
    values = []
    for alpha in (0.0, 5.0):
        ledger.rng = np.random.default_rng(2)
        rows = Annealing(
            ledger, Surrogate(ledger, first_column, Lessons(Sum())), alpha=alpha, epsilon=0, spread=8
        ).suggest(16)
        values.append(sum(len(np.unique(column)) for column in rows.T))
    assert values[1] > 1.2 * values[0]


def test_chains_keep_to_what_is_valid() -> None:
    seen: list[np.ndarray] = []

    def describe(rows: np.ndarray) -> np.ndarray:
        seen.append(rows)
        return first_column(rows)

    ledger = Ledger(SPACE, np.random.default_rng(0), valid=lambda r: r[:, 0] < 20)
    ledger.record(np.array([[1, 1, 1, 1], [2, 2, 2, 2]]), np.array([1.0, 2.0]))
    rows = Annealing(ledger, Surrogate(ledger, describe, Lessons(Sum()))).suggest(8)
    assert len(rows)
    assert (np.concatenate(seen)[:, 0] < 20).all()


def test_guided_evolution_measures_the_best_children_and_neighbours_of_the_fastest() -> None:
    ledger = ledger_with(SPACE, [[20, k, k, k] for k in range(1, 17)], [1.0] * 15 + [2.0])
    guided = Guided(ledger, Surrogate(ledger, first_column, Lessons(Sum())), trust=1.0, kappa=0.0, descent=0.25)
    rows = guided.suggest(16)
    assert rows[:11, 0].min() > 22
    assert (np.diff(rows[:12, 0]) <= 0).all()
    assert len(rows) == 16
    assert (abs(rows[12:] - [20, 16, 16, 16]).sum(axis=1) == 1).all()


def test_guided_evolution_hopes_for_the_best_of_what_it_does_not_know() -> None:
    """All known configurations lie at one end of a knob; the more doubt counts, the farther the batch goes."""
    ledger = ledger_with(SPACE, [[k, k, k, 1] for k in range(1, 17)], list(range(1, 17)))
    far = []
    for kappa in (0.0, 20.0):
        ledger.rng = np.random.default_rng(3)
        guided = Guided(ledger, Surrogate(ledger, first_column, Lessons(Sum())), trust=0.0, kappa=kappa, descent=0.0)
        far.append(guided.suggest(16)[:, 3].mean())
    assert far[1] > 1.5 * far[0]


def test_guided_evolution_begins_with_what_other_tasks_have_taught() -> None:
    class Known:
        least = 0

        def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
            raise AssertionError("nothing was measured")

        def predict(self, features: np.ndarray) -> np.ndarray:
            return np.asarray(features[:, 0], np.float64)

    space = Space((Discrete("n", tuple(range(100))),), {"n": 0})
    explorer = EXPLORERS["guided"](space, np.random.default_rng(0), model=Known(), anywhere=2000)
    first, *others = explorer.propose(9)
    assert first[0] == 0  # the default
    assert sum(int(row[0]) >= 90 for row in others) >= 5


class Broken(Sum):
    """A cost model that fails now and then."""

    def __init__(self, fitting: bool, prediction: float | None) -> None:
        self.fitting, self.prediction = fitting, prediction

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        if self.fitting:
            raise RuntimeError("Number of columns does not match")

    def predict(self, features: np.ndarray) -> np.ndarray:
        if self.prediction is None:
            raise RuntimeError("Number of columns does not match")
        return np.full(len(features), self.prediction)


@pytest.mark.parametrize("name", ["annealing", "guided"])
@pytest.mark.parametrize("model", [Broken(True, 0.0), Broken(False, None), Broken(False, math.nan)])
def test_a_cost_model_that_fails_costs_its_advice_and_not_the_run(
    name: str, model: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    explorer = EXPLORERS[name](SPACE, np.random.default_rng(0), model=model)
    for _ in range(4):
        rows = explorer.propose(8)
        assert len(rows) == 8
        explorer.observe(rows, rows.sum(axis=1) + 1.0)
    assert len(caplog.messages) == 1
    assert "drawn at random" in caplog.messages[0]


@pytest.mark.parametrize("name", ["annealing", "guided"])
def test_features_that_cannot_be_had_cost_no_run(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def describe(rows: np.ndarray) -> np.ndarray:
        raise TypeError("NoneType has no extent")

    explorer = EXPLORERS[name](SPACE, np.random.default_rng(0), featurizer=describe, model=Sum())
    for _ in range(3):
        rows = explorer.propose(8)
        assert len(rows) == 8
        explorer.observe(rows, rows.sum(axis=1) + 1.0)
    assert "TypeError: NoneType has no extent" in caplog.text


def test_a_model_learns_only_when_something_is_new() -> None:
    ledger, model = ledger_with(SPACE, [[1, 1, 1, 1]], [2.0]), Sum()
    described: list[int] = []

    def describe(rows: np.ndarray) -> np.ndarray:
        described.append(len(rows))
        return first_column(rows)

    surrogate = Surrogate(ledger, describe, Lessons(model))
    assert not surrogate.ready()
    ledger.record(np.array([[2, 1, 1, 1]]), np.array([4.0]))
    assert surrogate.ready()
    assert surrogate.ready()
    ledger.record(np.array([[3, 1, 1, 1], [2, 1, 1, 1]]), np.array([8.0, 1.0]))
    surrogate.forget()
    assert surrogate.ready()
    assert model.fits == 2
    assert described == [2, 1]


def test_an_actor_learns_which_way_is_up() -> None:
    ledger = Ledger(MIXED, np.random.default_rng(0))
    search = ActorCritic(ledger, epsilon=0.0)
    start = MIXED.row({"f": (4, 4, 4), "d": 3})
    around, _ = ledger.topology.neighbours(start)
    better = around[:, 1] > start[1]

    def chance() -> float:
        """Probability of the one step that raises the discrete knob."""
        scores = search._actor(search._options(start, around))[:, 0]
        return float(np.exp(scores[better]).sum() / np.exp(scores).sum())

    before = chance()
    rows = np.concatenate([start[None], around])
    speeds = np.concatenate([[1.0], np.where(better, 1.0, 0.2)])
    ledger.record(rows, speeds)
    for _ in range(15):
        codes = ledger.codes(around).tolist()
        search._pending = {code: Move(start, around, k, code) for k, code in enumerate(codes)}
        search.learn(rows, speeds)
        assert not search._pending
    assert chance() > 1.5 * before


def test_gradients_of_a_network_are_those_of_its_loss() -> None:
    rng = np.random.default_rng(0)
    network, x, target = Network(3, 5, 1e-2, rng, 2), rng.normal(size=(7, 3)), rng.normal(size=(7, 2))

    def loss() -> float:
        return float(((network(x) - target) ** 2).sum())

    gradients = network.gradients(x, 2 * (network(x) - target))
    for weight, gradient in zip(network._weights, gradients, strict=True):
        at = tuple(rng.integers(0, n) for n in weight.shape)
        kept = weight[at]
        sides = []
        for step in (1e-5, -1e-5):
            weight[at] = kept + step
            sides.append(loss())
        weight[at] = kept
        assert np.isclose((sides[0] - sides[1]) / 2e-5, gradient[at], rtol=1e-4, atol=1e-6)
    first = loss()
    for _ in range(200):
        network.step(x, 2 * (network(x) - target))
    assert loss() < first / 4


@pytest.mark.parametrize(("name", "least"), [("descent", 15), ("gbfs", 5), ("guided", 7)])
def test_the_first_batch_lies_around_the_default(name: str, least: int) -> None:
    """A default is seldom far from the best; best-first search asks for five of its neighbours at a time."""
    knobs = tuple(Discrete(f"d{k}", tuple(range(40))) for k in range(9))
    space = Space(knobs, {k.name: 20 for k in knobs})
    first, *others = EXPLORERS[name](space, np.random.default_rng(0)).propose(16)
    assert (first == 20).all()
    near = [row for row in others if abs(row - 20).sum() == 1]
    assert len(near) >= least
    if name != "gbfs":  # one of each knob before a second one of any
        assert len({int(np.flatnonzero(row != 20)[0]) for row in near[:7]}) == min(7, len(near))


def test_the_first_walks_of_the_actor_critic_start_at_the_default() -> None:
    space = Space(SPACE.knobs, {k.name: 20 for k in SPACE.knobs})
    _, *others = EXPLORERS["na2c"](space, np.random.default_rng(0)).propose(16)
    assert max(abs(row - 20).sum() for row in others) <= 3


@pytest.mark.parametrize(("least", "expected"), [(0, [2] * 8 + [10]), (2, [10] * 5)])
def test_guided_asks_for_few_at_first_where_other_tasks_tell_which(least: int, expected: list[int]) -> None:
    model = Sum()
    model.least = least
    explorer = EXPLORERS["guided"](MIXED, np.random.default_rng(0), model=model, first=2)
    sizes = []
    for _ in expected:
        rows = explorer.propose(batch_of(explorer, 10))
        explorer.observe(rows, 1.0 + rows.sum(axis=1))
        sizes.append(len(rows))
    assert sizes == expected
    assert batch_of(EXPLORERS["random"](MIXED, np.random.default_rng(0)), 10) == 10


def test_guided_begins_with_what_other_tasks_tell_to_be_the_fastest() -> None:
    model = Sum()
    model.least = 0
    first, *others = EXPLORERS["guided"](MIXED, np.random.default_rng(0), model=model).propose(6)
    assert (first == MIXED.row({})).all()
    scores = MIXED.describe(np.array(others))[:, 0]
    assert (scores == MIXED.describe(MIXED.sample(np.random.default_rng(1), 4096))[:, 0].max()).all()
