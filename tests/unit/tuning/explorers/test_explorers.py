"""What all explorers promise: the default first, nothing twice, whole spaces, the same seed the same proposals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import UsageError
from mlc.lower.knobs import Categorical, Discrete, Factors, Space
from mlc.tuning.base import Explorer
from mlc.tuning.explorers import EXPLORERS, explorer_names, get_explorer
from mlc.tuning.explorers.ledger import ENUMERABLE
from mlc.tuning.explorers.limits import MOST
from mlc.tuning.options import TuneOptions
from mlc.tuning.searches import check_explorer
from tests.fuzz import examples
from tests.unit.tuning.landscapes import tiles

NAMES = sorted(EXPLORERS)
SMALL = Space(
    (Factors("f", 12, 2), Discrete("d", (1, 2, 4)), Categorical("c", ("x", "y"))), {"f": (3, 4), "d": 2, "c": "y"}
)
ONE = Space((Factors("f", 1, 3), Discrete("d", (4,))), {"f": (1, 1, 1), "d": 4})
BIG = Space(tuple(Discrete(f"d{k}", tuple(range(1, 10))) for k in range(10)), {f"d{k}": 1 for k in range(10)})
HUGE = Space(tuple(Discrete(f"d{k}", tuple(range(1, 33))) for k in range(16)), {f"d{k}": 1 for k in range(16)})
MODELLED = {"alt", "annealing", "guided"}


class Line:
    """A cost model that takes no time: least squares."""

    least = 4

    def fit(self, features: np.ndarray, speeds: np.ndarray) -> None:
        self._weights = np.linalg.lstsq(features, speeds, rcond=None)[0]

    def predict(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = features @ self._weights
        return found


def make(name: str, space: Space, seed: int, **options: object) -> Explorer:
    """An explorer, quick and small where it has a model."""
    if name in MODELLED:
        options["model"] = Line()
    if name == "annealing":
        options |= {"chains": 16, "steps": 10}
    if name == "alt":
        options |= {"sample": 32, "length": 16, "epochs": 2}
    return EXPLORERS[name](space, np.random.default_rng(seed), **options)  # type: ignore[arg-type]


def smooth(rows: np.ndarray) -> np.ndarray:
    return 10.0 / (1 + rows.sum(axis=1))


def failing(rows: np.ndarray) -> np.ndarray:
    return np.zeros(len(rows))


def codes(space: Space, rows: np.ndarray) -> list[int]:
    return [space.index(r) for r in rows]


def run(explorer: Explorer, speed: Callable[[np.ndarray], np.ndarray], batches: list[int]) -> np.ndarray:
    """All proposals in order, observed in another order."""
    rows = [explorer.propose(0)]
    for n in batches:
        proposed = explorer.propose(n)
        assert proposed.dtype == np.int64
        assert len(proposed) <= n
        rows.append(proposed)
        explorer.observe(proposed[::-1], speed(proposed[::-1]))
    return np.concatenate(rows)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize("speed", [smooth, failing])
@pytest.mark.parametrize("n", [1, 5, 64])
def test_a_small_space_is_exhausted_without_repetition(name: str, speed: Callable[..., np.ndarray], n: int) -> None:
    explorer = make(name, SMALL, 0)
    rows = run(explorer, speed, [n] * (SMALL.size // n + 2))
    assert sorted(codes(SMALL, rows)) == list(range(SMALL.size))
    assert rows[0].tolist() == SMALL.row({}).tolist()
    assert explorer.propose(5).shape == (0, 3)


def test_a_space_of_one_configuration(name: str) -> None:
    explorer = make(name, ONE, 0)
    assert run(explorer, smooth, [4, 4, 4]).tolist() == [[0, 0]]


@pytest.mark.parametrize("space", [BIG, HUGE])
def test_big_spaces_are_not_listed(name: str, space: Space) -> None:
    assert space.size > 10**9 > ENUMERABLE
    rows = run(make(name, space, 0), smooth, [16] * 6)
    assert len(set(codes(space, rows))) == len(rows) == 96
    assert ((rows >= 0) & (rows < space.counts)).all()


@pytest.mark.parametrize("speed", [smooth, failing])
def test_the_same_seed_proposes_the_same(name: str, speed: Callable[..., np.ndarray]) -> None:
    first, second, other = (run(make(name, BIG, s), speed, [8] * 5) for s in (3, 3, 4))
    assert first.tolist() == second.tolist()
    assert name == "grid" or first.tolist() != other.tolist()


def test_seeds_follow_the_default(name: str) -> None:
    seeds = np.array([[5, 2, 1], [1, 1, 0], [5, 2, 1], SMALL.row({})])
    explorer = make(name, SMALL, 0, seeds=seeds)
    rows = run(explorer, smooth, [2, 2, 40])
    assert rows[:3].tolist() == [SMALL.row({}).tolist(), [5, 2, 1], [1, 1, 0]]
    assert sorted(codes(SMALL, rows)) == list(range(SMALL.size))


def test_what_was_measured_before_is_not_proposed(name: str) -> None:
    explorer = make(name, SMALL, 0, seeds=np.array([[1, 1, 0], [0, 0, 0]]))
    before = np.array([SMALL.row({}), [1, 1, 0], [2, 2, 1]])
    explorer.observe(before, np.array([3.0, 0.0, 5.0]))
    rows = run(explorer, smooth, [7] * 7)
    assert rows[0].tolist() == [0, 0, 0]
    assert sorted(codes(SMALL, np.concatenate([rows, before]))) == list(range(SMALL.size))


def test_proposals_may_run_ahead_of_observations(name: str) -> None:
    explorer = make(name, SMALL, 0)
    ahead = [explorer.propose(4) for _ in range(4)]
    for rows in ahead[::-1]:
        explorer.observe(rows, smooth(rows))
    rows = np.concatenate([*ahead, run(explorer, smooth, [8] * 4)])
    assert sorted(codes(SMALL, rows)) == list(range(SMALL.size))


def test_only_valid_configurations_are_proposed_but_for_the_default(name: str) -> None:
    explorer = make(name, SMALL, 0, valid=lambda r: r[:, 1] == 0, seeds=np.array([[0, 2, 0]]))
    rows = run(explorer, smooth, [4] * 5)
    assert rows[0].tolist() == SMALL.row({}).tolist()
    assert (rows[1:, 1] == 0).all()
    assert len(set(codes(SMALL, rows))) == len(rows) == 1 + SMALL.size // 3


def test_where_nothing_is_valid_the_default_remains(name: str) -> None:
    explorer = make(name, SMALL, 0, valid=lambda r: np.zeros(len(r), bool))
    assert run(explorer, smooth, [4, 4]).tolist() == [SMALL.row({}).tolist()]


def test_rarely_valid_configurations_of_a_big_space_are_found(name: str) -> None:
    explorer = make(name, BIG, 0, valid=lambda r: (r[:, -4:] == 0).all(axis=1))
    rows = run(explorer, smooth, [8] * 3)
    assert len(rows) == 24
    assert (rows[:, -4:] == 0).all()


def test_speeds_that_are_no_speeds_count_as_failures(name: str) -> None:
    explorer = make(name, SMALL, 0)
    odd = [np.nan, -np.inf, np.inf, -1.0]
    rows = run(explorer, lambda r: np.resize(odd, len(r)), [5] * 8)
    assert sorted(codes(SMALL, rows)) == list(range(SMALL.size))


def test_polish_ends_in_a_local_optimum(name: str) -> None:
    space, speed = tiles()
    explorer = make(name, space, 0, seeds=space.sample(np.random.default_rng(5), 30), polish=40)
    rows = run(explorer, speed, [16] * 16)
    speeds = speed(rows)
    best = rows[speeds.argmax()]
    near = np.array(list(space.neighbours(best)))
    assert speeds.max() >= speed(near).max()
    known = set(codes(space, rows))
    assert all(k in known for k in codes(space, near))


@examples(25)
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 9), max_size=12), st.integers(0, 99), st.floats(0, 1))
def test_any_rhythm_any_failures(name: str, batches: list[int], seed: int, share: float) -> None:
    explorer = make(name, SMALL, seed)
    luck = np.random.default_rng(seed + 1)
    rows = run(explorer, lambda r: smooth(r) * (luck.random(len(r)) > share), batches)
    assert len(set(codes(SMALL, rows))) == len(rows) == min(sum(batches), SMALL.size)


def test_names() -> None:
    assert set(NAMES) <= set(explorer_names())
    assert get_explorer("opevo") is EXPLORERS["opevo"]
    with pytest.raises(UsageError, match="unknown explorer 'opevol'") as refusal:
        get_explorer("opevol")
    assert "gbfs" in refusal.value.hint
    with pytest.raises(UsageError, match="mutation rate q is 1"):
        EXPLORERS["opevo"](SMALL, np.random.default_rng(0), q=1)


WHOLE = {
    "alt": ("sample", "length", "top", "hidden", "epochs"),
    "annealing": ("chains", "steps", "patience"),
    "gbfs": ("neighbours",),
    "genetic": ("population", "elite"),
    "guided": ("parents", "children", "first"),
    "na2c": ("steps", "hidden", "epochs"),
    "opevo": ("parents", "children"),
}
SHARES = {
    "annealing": ("epsilon", "elite"),
    "genetic": ("mutation",),
    "guided": ("trust", "descent", "around"),
    "na2c": ("epsilon", "discount"),
}
POSITIVE = {"alt": ("rate", "clip"), "na2c": ("rate",)}
NOT_NEGATIVE = {"annealing": ("temperature", "alpha"), "guided": ("kappa", "faith")}
REFUSED = [
    *((n, o, v, f"whole number from 1 to {MOST}") for n, some in WHOLE.items() for o in some for v in (0, -2, 1.5)),
    *(("guided", o, v, f"whole number from 0 to {MOST}") for o in ("near", "anywhere") for v in (-1, 0.5)),
    *((n, o, v, "number from 0 to 1") for n, some in SHARES.items() for o in some for v in (-0.1, 1.1)),
    *((n, o, v, "number above 0") for n, some in POSITIVE.items() for o in some for v in (0, -1.0, float("inf"))),
    *((n, o, -0.1, "number of at least 0") for n, some in NOT_NEGATIVE.items() for o in some),
    ("alt", "top", True, "whole number"),
    ("alt", "sample", MOST + 1, "whole number"),
    ("annealing", "spread", 0.5, "number of at least 1"),
    ("na2c", "rate", float("nan"), "number above 0"),
    ("random", "polish", -1, "whole number from 0"),
    ("guided", "q", 0, "between 0 and 1"),
    ("guided", "q", float("nan"), "between 0 and 1"),
]


@pytest.mark.parametrize(("explorer", "option", "value", "what"), REFUSED)
def test_options_that_mean_nothing_are_refused_before_any_trial(
    explorer: str, option: str, value: float, what: str
) -> None:
    with pytest.raises(UsageError, match=what) as refusal:
        check_explorer(TuneOptions(explorer=explorer, explorer_options={option: value}))
    assert refusal.value.message.startswith(f"explorer {explorer}: ")
    assert f"{option} is {value}" in refusal.value.message
    assert "docs/cli.md" in refusal.value.hint


@pytest.mark.parametrize(
    ("explorer", "options"),
    [
        ("alt", dict.fromkeys(WHOLE["alt"], 1)),
        ("annealing", {"chains": 1, "temperature": 0, "epsilon": 0, "elite": 1, "spread": 1, "alpha": 0}),
        ("guided", {"near": 0, "anywhere": 0, "trust": 1, "kappa": 0, "descent": 0, "around": 1, "polish": 0}),
    ],
)
def test_options_at_the_ends_of_their_ranges_do(explorer: str, options: dict[str, float]) -> None:
    check_explorer(TuneOptions(explorer=explorer, explorer_options=options))
    assert len(run(make_with(explorer, options), smooth, [8] * 4)) == 32


def make_with(name: str, options: dict[str, float]) -> Explorer:
    """An explorer with these options and a quick cost model."""
    return EXPLORERS[name](BIG, np.random.default_rng(0), model=Line(), **options)
