"""ALT's explorer: policies that learn, layouts split by actions, walks among loops, and what they share."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.lower.knobs import Categorical, Discrete, Factors, Permutation, Space
from mlc.tuning.explorers import EXPLORERS, OF_LAYOUTS, get_explorer
from mlc.tuning.explorers.alt import LayoutSplits, LoopWalks, directions, reward
from mlc.tuning.explorers.ledger import Ledger
from mlc.tuning.explorers.memory import Memory
from mlc.tuning.explorers.ppo import STATE, Agents, Episode, Rules, states
from mlc.tuning.explorers.surrogate import Lessons, Surrogate

LAYOUTS = Space(
    (Factors("layout.h", 16, 2), Factors("layout.o", 64, 3), Categorical("layout.input", ("tiled", "as it is"))),
    {"layout.h": (1, 16), "layout.o": (4, 1, 16), "layout.input": "tiled"},
)
LOOPS = Space((Factors("rows", 64, 2), Discrete("unroll", (0, 1, 2, 4)), Categorical("order", ("a", "b"))),
              {"rows": (64, 1), "unroll": 0, "order": "a"})  # fmt: skip


class Line:
    """A cost model that takes no time: least squares."""

    least = 2

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        self._weights = np.linalg.lstsq(features, speeds, rcond=None)[0]

    def predict(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = features @ self._weights
        return found


def walks(space: Space, memory: Memory, seed: int = 0) -> tuple[Ledger, LoopWalks]:
    ledger = Ledger(space, np.random.default_rng(seed))
    lessons = memory.lessons or Lessons(Line())
    memory.lessons = lessons
    return ledger, LoopWalks(ledger, Surrogate(ledger, space.describe, lessons), memory, sample=32, length=24)


def test_directions_of_every_kind_of_knob() -> None:
    # 4 as two factors: (1, 4), (2, 2), (4, 1); the first gives to the second, the second to the first
    assert directions(Factors("f", 4, 2)).tolist() == [[0, -1, 1], [1, 0, 2], [2, 1, -1]]
    assert directions(Factors("f", 12, 2, ((-1, 4),)))[0].tolist() == [0, -1, 2]  # (3, 4) to (6, 2) only
    assert directions(Discrete("d", (1, 2, 4))).tolist() == [[0, -1, 1], [1, 0, 2], [2, 1, -1]]
    assert directions(Categorical("c", ("x", "y"))).tolist() == [[0, 1], [1, 0]]
    assert directions(Permutation("p", ("x", "y"))).tolist() == [[0, 1], [1, 0]]
    assert directions(Discrete("d", (3,))).tolist() == [[0, -1, -1]]


def test_rewards_are_a_constant_less_the_latency() -> None:
    memory = Memory()
    assert reward(memory, np.zeros(2)).tolist() == [-1, -1]  # nothing has run yet
    assert reward(memory, np.array([0.0, 10.0, 20.0, 1.0])).tolist() == [-1, 0, 0.5, -1]
    assert reward(memory, np.array([40.0])).tolist() == [0.75]


def test_states_of_a_layout_are_the_same_in_all_spaces() -> None:
    fixed = Space((Categorical("layout.h", ((4, 4),)), Factors("rows", 8, 2)), {"layout.h": (4, 4), "rows": (8, 1)})
    alone = Space((Factors("layout.h", 16, 2),), {"layout.h": (1, 16)})
    loops = Space((Factors("rows", 8, 2),), {"rows": (8, 1)})
    both = states(alone)(alone.row({"layout.h": (4, 4)})[None]) + states(loops)(loops.row({})[None])
    np.testing.assert_array_equal(states(fixed)(fixed.row({})[None]), both)


def test_a_policy_of_choices_learns_which_is_rewarded_and_takes_none_that_is_not_allowed() -> None:
    agents = Agents(np.random.default_rng(0), Rules(rate=1e-2))
    state, allowed = np.zeros(STATE), np.array([True, False, True, True])
    taken: list[int] = []
    for _ in range(30):
        steps = [agents.choice("loop", state, state, allowed) for _ in range(16)]
        taken = [int(s.action) for s in steps]
        assert 1 not in taken
        agents.learn([Episode([s], np.array([1.0 if s.action == 2 else 0.0]), None, 1.0) for s in steps])
    assert taken.count(2) >= 14


def test_a_policy_of_an_interval_learns_where_it_is_rewarded() -> None:
    agents = Agents(np.random.default_rng(0), Rules(rate=1e-2))
    seen = np.ones(3)
    actions: list[float] = []
    for _ in range(60):
        steps = [agents.interval("split", seen, np.zeros(STATE)) for _ in range(16)]
        actions = [s.action for s in steps]
        agents.learn([Episode([s], np.array([-abs(s.action - 0.85)]), None, 1.0) for s in steps])
    assert abs(np.mean(actions) - 0.85) < 0.12


def test_advantages_look_ahead_as_far_as_an_episode_goes() -> None:
    agents = Agents(np.random.default_rng(0), Rules(smoothing=1.0))
    agents._critic._weights[2][:] = agents._critic._weights[3][:] = 0  # everything is worth nothing
    state = np.zeros(STATE)
    steps = [agents.choice("a", state, state, np.array([True, True])) for _ in range(3)]
    advantages, returns = agents._judged(Episode(steps, np.array([0.0, 0.0, 8.0]), None, discount=0.5))
    assert advantages.tolist() == returns.tolist() == [2.0, 4.0, 8.0]


def test_layouts_are_divisors_nearest_to_what_the_actor_says() -> None:
    ledger = Ledger(LAYOUTS, np.random.default_rng(0))
    splits = LayoutSplits(ledger, Memory())
    for row in splits.suggest(12):
        config = LAYOUTS.config(row)
        steps = splits._taken[int(ledger.codes(row[None])[0])]
        h = min(max(steps[0].action, 0), 1) * 16
        tile = config["layout.h"]
        assert isinstance(tile, tuple)
        assert abs(tile[1] - h) == min(abs(n - h) for n in (1, 2, 4, 8, 16))
        o = config["layout.o"]
        assert isinstance(o, tuple)
        assert o[0] * o[1] * o[2] == 64
        # h, two of o unless the first has taken all of it, and how the input lies
        assert len(steps) == (3 if o[2] == 64 else 4)


def test_layouts_move_to_where_rewards_are() -> None:
    ledger = Ledger(LAYOUTS, np.random.default_rng(1))
    splits = LayoutSplits(ledger, Memory(), rate=1e-2)

    def speed(rows: np.ndarray) -> np.ndarray:
        tiles, blocks = (LAYOUTS.column(rows, name, -1) for name in ("layout.h", "layout.o"))
        return 10.0 * (1 + (tiles <= 4)) * (1 + (blocks == 32))

    def drawn(n: int) -> float:
        return float(np.mean(speed(np.stack([splits._episode()[0] for _ in range(n)]))))

    before = drawn(200)
    for _ in range(60):
        rows = np.stack([splits._episode()[0] for _ in range(4)])
        splits.learn(rows, speed(rows))
    assert drawn(200) > 1.4 * before


def test_walks_start_at_the_best_and_stay_among_what_can_be_built() -> None:
    memory = Memory()
    ledger, search = walks(LOOPS, memory)
    assert len(search.suggest(8)) == 0  # nothing is known yet
    rows = LOOPS.sample(np.random.default_rng(2), 12)
    ledger.record(rows, 1.0 + rows[:, 0])
    search.learn(rows, 1.0 + rows[:, 0])
    found = search.suggest(8)
    assert len(found) == 8
    assert ledger.new(found).all()
    assert LOOPS.column(found, "rows", 0).mean() > LOOPS.column(rows, "rows", 0).mean()
    ((path, steps),) = search._walked
    assert len(path) == 25
    assert len(steps) == 24
    assert ((path[1:] != path[:-1]).sum(axis=1) <= 1).all()
    agents = memory.agents
    assert agents is not None
    weights = agents._critic._weights[0].copy()
    search.learn(found, 1.0 + found[:, 0])
    search.suggest(8)
    assert (agents._critic._weights[0] != weights).any()


def test_what_was_measured_under_one_layout_teaches_the_model_of_another() -> None:
    memory = Memory()
    first, one = walks(LOOPS, memory)
    rows = LOOPS.sample(np.random.default_rng(2), 12)
    first.record(rows, 1.0 + rows[:, 0])
    one.learn(rows, 1.0 + rows[:, 0])
    second, other = walks(LOOPS, memory)
    assert not len(second.rows)
    found = other.suggest(4)
    assert LOOPS.column(found, "rows", 0).min() >= 16


@pytest.mark.parametrize("name", ["alt", "guided", "annealing"])
def test_explorers_of_a_task_share_a_model_where_features_mean_the_same(name: str) -> None:
    memory, model = Memory(), Line()
    make = EXPLORERS[name]
    make(LOOPS, np.random.default_rng(0), featurizer=LOOPS.describe, model=model, memory=memory)
    assert memory.lessons is not None
    assert memory.lessons.model is model
    make(LOOPS, np.random.default_rng(0), featurizer=LOOPS.describe, model=Line(), memory=memory)
    assert memory.lessons.model is model
    get_explorer(name, layouts=True)(LAYOUTS, np.random.default_rng(0), memory=memory)
    assert len(memory.lessons._pupils) == 2


def test_only_the_explorer_of_the_paper_has_one_for_layouts() -> None:
    assert get_explorer("alt", layouts=True) is OF_LAYOUTS["alt"]
    assert get_explorer("guided", layouts=True) is EXPLORERS["guided"]
    assert get_explorer("alt") is EXPLORERS["alt"]
