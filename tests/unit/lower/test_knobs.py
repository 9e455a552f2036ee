"""Knobs, their topologies, and spaces of them."""

from __future__ import annotations

import re
import time
from itertools import product
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.lower.knobs import (
    Categorical,
    Discrete,
    Factors,
    Knob,
    Knobs,
    Permutation,
    Space,
    divisors,
    frozen,
    prime_factors,
    space_of,
)
from tests.fuzz import examples

extents = st.integers(1, 120)
factors = st.builds(lambda n, p: Factors("f", n, p), extents, st.integers(1, 4))
permutations = st.integers(1, 4).map(lambda n: Permutation("p", tuple("abcd"[:n])))
discretes = st.sets(st.integers(-8, 64), min_size=1, max_size=8).map(lambda v: Discrete("d", tuple(sorted(v))))
categoricals = st.sets(st.text(max_size=3), min_size=1, max_size=5).map(lambda v: Categorical("c", tuple(v)))
knobs = st.one_of(factors, permutations, discretes, categoricals)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    made = draw(st.tuples(factors, permutations, discretes, categoricals))
    picked = made[: draw(st.integers(1, 4))]
    return Space(picked, {k.name: k.values[draw(st.integers(0, len(k.values) - 1))] for k in picked})


def reached(knob: Knob, start: int) -> set[int]:
    """Values that steps to neighbours lead to."""
    seen, todo = {start}, [start]
    while todo:
        more = set(knob.neighbours(todo.pop())) - seen
        seen |= more
        todo += more
    return seen


@examples(60)
@given(extents, st.integers(1, 3))
def test_factorisations_are_complete_and_distinct(extent: int, parts: int) -> None:
    values = Factors("f", extent, parts).values
    assert len(set(values)) == len(values)
    assert set(values) == {f for f in product(divisors(extent), repeat=parts) if prod(f) == extent}


def test_factorisations_keep_limits_by_position_from_the_end() -> None:
    knob = Factors("f", 24, 3, ((-1, 4), (-2, 3)))
    assert set(knob.values) == {f for f in Factors("f", 24, 3).values if f[2] <= 4 and f[1] <= 3}


@examples(150)
@given(knobs)
def test_neighbourhoods_are_symmetric_and_connected(knob: Knob) -> None:
    nears = [knob.neighbours(k) for k in range(len(knob.values))]
    for k, near in enumerate(nears):
        assert len(set(near)) == len(near)
        assert k not in near
        assert all(k in nears[j] for j in near)
    assert reached(knob, 0) == set(range(len(knob.values)))


@examples(60)
@given(extents, st.integers(2, 4), st.data())
def test_limited_factorisations_stay_connected(extent: int, parts: int, data: st.DataObject) -> None:
    most = ((-1, data.draw(st.integers(1, extent))),)
    knob = Factors("f", extent, parts, most)
    assert reached(knob, 0) == set(range(len(knob.values)))


@examples(60)
@given(factors)
def test_adjacent_factorisations_differ_in_the_place_of_one_prime(knob: Factors) -> None:
    primes = set(prime_factors(knob.extent))
    for k, here in enumerate(knob.values):
        expected = set()
        for j, there in enumerate(knob.values):
            moved = [(a, b) for a, b in zip(here, there, strict=True) if a != b]
            if len(moved) == 2 and any(moved[0][i] == p * moved[0][1 - i] for p in primes for i in (0, 1)):
                expected.add(j)
        assert set(knob.neighbours(k)) == expected


def test_adjacency_of_the_other_kinds() -> None:
    order = Permutation("p", ("a", "b", "c"))
    assert len(order.values) == factorial(3)
    near = [order.values[k] for k in order.neighbours(order.values.index(("a", "b", "c")))]
    assert set(near) == {("b", "a", "c"), ("c", "b", "a"), ("a", "c", "b")}
    number = Discrete("d", (1, 2, 4, 8))
    assert [number.neighbours(k) for k in range(4)] == [(1,), (0, 2), (1, 3), (2,)]
    thing = Categorical("c", ("x", "y", "z"))
    assert [thing.neighbours(k) for k in range(3)] == [(1, 2), (0, 2), (0, 1)]


@examples(100)
@given(knobs)
def test_tables_describe_each_value_by_finite_numbers(knob: Knob) -> None:
    table = knob.table
    assert table.shape == (len(knob.values), knob.width)
    assert table.dtype == np.float32
    assert np.isfinite(table).all()
    assert len(np.unique(table, axis=0)) == len(knob.values)


@examples(100)
@given(spaces(), st.data())
def test_numbers_rows_and_configurations_stand_for_each_other(space: Space, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, space.size - 1))
    row = space.at(number)
    assert (row >= 0).all()
    assert (row < space.counts).all()
    assert space.index(row) == number
    assert space.row(space.config(row)).tolist() == row.tolist()


@examples(50)
@given(spaces(), st.integers(0, 20), st.integers(0, 1000))
def test_samples_lie_in_the_space_and_are_described(space: Space, n: int, seed: int) -> None:
    rows = space.sample(np.random.default_rng(seed), n)
    assert rows.shape == (n, len(space.knobs))
    assert ((rows >= 0) & (rows < space.counts)).all()
    assert space.describe(rows).shape == (n, sum(k.width for k in space.knobs))


@examples(50)
@given(spaces(), st.integers(0, 1000))
def test_neighbours_of_a_configuration_move_one_knob(space: Space, seed: int) -> None:
    row = space.sample(np.random.default_rng(seed), 1)[0]
    near = list(space.neighbours(row))
    steps = sum(len(k.neighbours(int(i))) for k, i in zip(space.knobs, row, strict=True))
    assert len({tuple(r) for r in near}) == len(near) == steps
    assert all(np.count_nonzero(r != row) == 1 for r in near)


def test_numbers_of_a_huge_space_do_not_overflow() -> None:
    space = Space(tuple(Discrete(f"d{k}", tuple(range(1000))) for k in range(8)), {})
    assert space.size == 10**24
    assert space.index(space.at(10**24 - 5)) == 10**24 - 5


def test_columns_are_the_values_of_one_knob_or_part() -> None:
    space = Space((Factors("f", 6, 2), Discrete("d", (1, 4))), {})
    rows = np.array([[space.knobs[0].values.index((3, 2)), 1], [space.knobs[0].values.index((1, 6)), 0]])
    assert space.column(rows, "f", 1).tolist() == [2, 6]
    assert space.column(rows, "d").tolist() == [4, 1]


def test_a_row_takes_defaults_for_what_is_not_named_and_lists_for_tuples() -> None:
    space = Space((Factors("f", 6, 2), Discrete("d", (1, 4))), {"f": (6, 1), "d": 4})
    assert space.config(space.row({})) == {"f": (6, 1), "d": 4}
    assert space.config(space.row({"f": [2, 3]})) == {"f": (2, 3), "d": 4}


def template(knobs: Knobs) -> tuple[object, ...]:
    rows = knobs.discrete("rows", (4, 1, 2), default=6)
    knobs.require(rows < 6 or "rows" not in knobs.config, "too many rows")
    return (
        rows,
        knobs.factors("k", 12, 2, default=(3, 4), most={-1: 4}),
        knobs.category("pack", (True, False), default=True),
    )


def test_a_template_gets_defaults_or_what_the_configuration_says() -> None:
    assert template(Knobs()) == (6, (3, 4), True)
    assert template(Knobs({"rows": 2, "k": [6, 2]})) == (2, (6, 2), True)


def test_the_space_of_a_template_is_what_it_asks_for() -> None:
    space = space_of(template)
    assert [k.name for k in space.knobs] == ["rows", "k", "pack"]
    assert space.knobs[0].values == (1, 2, 4, 6)
    assert all(f[1] <= 4 for f in space.knobs[1].values)
    assert space.default == {"rows": 6, "k": (3, 4), "pack": True}


def test_a_knob_may_be_asked_for_again() -> None:
    knobs = Knobs()
    assert knobs.discrete("rows", (1, 2), default=1) == knobs.discrete("rows", (1, 2), default=1)
    assert len(knobs.space().knobs) == 1


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda k: k.permutation("p", "abcdefg"), "knob p: 7 items have too many orders; at most 6"),
        (lambda k: k.factors("f", 12, 2, default=(5, 2)), "knob f: its default (5, 2) is none of its values"),
        (lambda k: k.category("c", ("a",), default="b"), "knob c: its default b is none of its values"),
        (lambda k: (k.discrete("d", (1,), default=1), k.discrete("d", (2,), default=2)), "knob d is asked for twice"),
        (lambda k: k.discrete("rows", (1, 2), default=1), "knob rows has no value 3; it has 1, 2"),
        (lambda k: k.discrete("rows", tuple(range(10, 30)), default=10), "10, 11, 12, 13, 14, 15, 16, 17 …"),
        (lambda k: k.require(False, "a reason"), "configuration refused: a reason"),
    ],
)
def test_refusals(ask: object, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        ask(Knobs({"rows": 3}))  # type: ignore[operator]


def test_a_row_refuses_a_value_that_a_knob_does_not_have() -> None:
    with pytest.raises(ScheduleError, match="knob d has no value 3"):
        Space((Discrete("d", (1, 4)),), {"d": 1}).row({"d": 3})


@examples(50)
@given(st.integers(1, 5000))
def test_primes_and_divisors(n: int) -> None:
    assert prod(prime_factors(n)) == n
    assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]


def test_frozen_turns_lists_into_tuples_all_the_way_down() -> None:
    assert frozen([1, [2, "a"], (3,)]) == (1, (2, "a"), (3,))


def test_divisors_of_large_extents_come_at_once() -> None:
    n = (1 << 32) * 3**4 * 5 * 7
    start = time.process_time()
    for _ in range(1000):
        assert len(divisors(n)) == 33 * 5 * 2 * 2
    assert len(divisors((1 << 31) - 1)) == 2
    assert time.process_time() - start < 1


def test_what_comes_nearest_to_a_configuration_of_a_like_space() -> None:
    def asks(rows: int, depth: int, most: int) -> Space:
        def template(knobs: Knobs) -> None:
            knobs.factors("rows", rows, 3, default=(rows, 1, 1))
            knobs.discrete("steps", range(1, most + 1), default=1)
            knobs.permutation("order", ("a", "b"))
            knobs.category("wide", (False, True) if depth > 8 else (False,), default=False)

        return space_of(template)

    large, small = asks(64, 64, 8), asks(48, 8, 4)
    chosen = {"rows": (4, 2, 8), "steps": 7, "order": ("b", "a"), "wide": True}
    near = small.config(small.nearest(chosen))
    assert near == {"rows": (3, 2, 8), "steps": 4, "order": ("b", "a"), "wide": False}
    assert large.config(large.nearest(chosen)) == chosen
    assert large.config(large.nearest({"other": 3})) == large.default
