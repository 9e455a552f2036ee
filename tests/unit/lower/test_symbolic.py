"""One traced run of a template stands for every configuration that its guards accept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.types import f32
from mlc.lower.knobs import Categorical, Discrete, Knobs, Space, space_of
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import Sym, Tracer, Values, Ways, opaque


def _template(knobs: Knobs) -> Schedule:
    a = te.placeholder((24, 30), f32, "a")
    b = te.compute(a.shape, lambda i, j: a[i, j] * 2, "b")
    s = Schedule([b])
    stage = s[b]
    i, j = stage.op.axes
    rows = knobs.discrete("rows", (1, 2, 3, 5, 7, 24), default=3)
    outer, middle, inner = knobs.factors("columns", 30, 3, default=(30, 1, 1))
    knobs.require(rows * inner <= 60, "a tile is too large")
    io, ii = stage.split(i, rows)
    jo, ji = stage.split(j, middle * inner)
    jm, jv = stage.split(ji, inner)
    stage.reorder(io, jo, ii, jm, jv)
    if 24 % rows == 0:
        stage.fuse(io, jo)
    if knobs.category("unroll", (False, True), default=False):
        stage.unroll(jm)
    if knobs.permutation("order", ("a", "b"))[0] == "b":
        stage.vectorize(jv)
    assert outer * middle * inner == 30
    return s


def test_every_configuration_takes_the_way_that_its_own_run_takes() -> None:
    space = space_of(_template)
    rows = np.array([space.at(k) for k in range(space.size)])
    ways = Ways(_template, space)
    parts = ways.split(rows)
    assert sorted(np.concatenate([at for _, at in parts])) == list(range(space.size))
    assert len(parts) < space.size / 20
    for way, at in parts:
        values = Values(space, rows[at])
        for position, row in enumerate(rows[at]):
            try:
                plain = _template(Knobs(space.config(row)))
            except ScheduleError:
                assert way.result is None
                continue
            (stage,), (traced,) = plain.stages, way.result.stages
            assert [a.name for a in stage.leaves] == [a.name for a in traced.leaves]
            assert list(stage.kinds.values()) == list(traced.kinds.values())
            for a, b in zip(stage.leaves, traced.leaves, strict=True):
                assert a.hi == np.broadcast_to(values.of(b.hi), len(at))[position]


def test_splitting_again_uses_the_ways_that_are_known() -> None:
    space = space_of(_template)
    ways = Ways(_template, space)
    rows = space.sample(np.random.default_rng(0), 200)
    first = ways.split(rows)
    known = ways.count
    again = ways.split(rows)
    assert ways.count == known
    assert [(id(w), at.tolist()) for w, at in first] == [(id(w), at.tolist()) for w, at in again]


def test_ways_do_not_depend_on_who_came_first() -> None:
    space = space_of(_template)
    rows = space.sample(np.random.default_rng(0), 300)
    together, one_by_one = Ways(_template, space), Ways(_template, space)
    alone = [one_by_one.split(row[None])[0][0] for row in rows]
    for way, at in together.split(rows):
        for k in at:
            assert [(g.compare, g.outcome) for g in way.guards] == [(g.compare, g.outcome) for g in alone[k].guards]
    found = one_by_one.split(rows)
    assert one_by_one.count == together.count == len(found)
    assert all(alone[k] is way for way, at in found for k in at)


OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "swapped -": lambda a, b: b - a,
    "negated //": lambda a, b: -(-a // b),
    "divmod": lambda a, b: sum(divmod(a, b)),
    "min": min,
    "max": max,
}


@given(st.sampled_from(sorted(OPERATIONS)), st.integers(1, 50), st.booleans())
def test_arithmetic_remembers_how_a_number_came_about(name: str, other: int, symbolic: bool) -> None:
    def ask(knobs: Knobs) -> int:
        n = knobs.discrete("n", range(1, 9), default=3)
        m = knobs.discrete("m", (1, 2, 5), default=2)
        return OPERATIONS[name](n, m if symbolic else other)

    space = space_of(ask)
    rows = np.array([space.at(k) for k in range(space.size)])
    for way, at in Ways(ask, space).split(rows):
        found = np.broadcast_to(Values(space, rows[at]).of(way.result), len(at))
        wanted = [ask(Knobs(space.config(r))) for r in rows[at]]
        assert found.tolist() == wanted


def test_a_fraction_of_a_size_pins_the_size() -> None:
    def ask(knobs: Knobs) -> bool:
        return knobs.discrete("n", (1, 2, 3, 4), default=1) / 2 > 0.9

    space = space_of(ask)
    rows = np.array([space.at(k) for k in range(space.size)])
    parts = Ways(ask, space).split(rows)
    assert [(way.result, at.tolist()) for way, at in parts] == [(True, [3]), (True, [2]), (True, [1]), (False, [0])]


def test_an_opaque_function_is_one_step_without_guards() -> None:
    @opaque
    def digits(n: int) -> int:
        return len(str(n)) if n > 5 else 0

    tracer = Tracer({})
    n = tracer.number(12, None, (), "n")
    assert digits(n) == 2
    guards = len(tracer.guards)
    assert guards == 1  # of the comparison in this test
    assert digits(3) == 0


def test_a_knob_that_is_asked_twice_must_be_the_same() -> None:
    knobs = Knobs()
    knobs.discrete("n", (1, 2), default=1)
    knobs.discrete("n", (1, 2), default=2)
    with pytest.raises(ScheduleError, match="asked for twice"):
        knobs.discrete("n", (1, 3), default=1)


def test_a_knob_that_only_some_ways_ask_for_keeps_its_default_there() -> None:
    def ask(knobs: Knobs) -> int:
        rows = knobs.discrete("rows", (1, 2, 3), default=1)
        if rows == 1:
            return rows
        return rows * knobs.discrete("late", (1, 5), default=5) + knobs.category("later", (1, 2), default=2)

    space = space_of(ask)
    assert [k.name for k in space.knobs] == ["rows"]
    rows = np.array([space.at(k) for k in range(space.size)])
    found = {}
    for way, at in Ways(ask, space).split(rows):
        for k in at:
            found[int(k)] = int(np.broadcast_to(Values(space, rows).of(way.result), len(rows))[k])
    assert found == {0: 1, 1: 12, 2: 17}


def test_values_that_do_not_matter_are_not_asked_for() -> None:
    def template(knobs: Knobs) -> list[str]:
        order = knobs.permutation("order", ("a", "b", "c", "d"))
        small = knobs.category("small", (False, True), default=False)
        form = knobs.category("form", ("plain", "packed", "tiled"), default="plain")
        rows = knobs.discrete("rows", (1, 2, 3, 4), default=1)
        if rows > 1:
            return sorted("ab", key=order.index)
        return [str(form == "plain"), str(bool(small))] if rows * 2 > 1 else list(order)

    space = space_of(template)
    rows = np.array([space.at(k) for k in range(space.size)])
    parts = Ways(template, space).split(rows)
    assert len(parts) == 2 + 3 * 2
    for way, at in parts:
        assert all(template(Knobs(space.config(row))) == way.result for row in rows[at])


def test_what_a_space_leaves_no_choice_of_is_no_number_under_trace() -> None:
    """As of a layout under which loops are searched: the template would have several values, the space has one."""

    def template(knobs: Knobs) -> int:
        high, low = knobs.factors("tile", 24, 2, default=(1, 24))
        assert not isinstance(high, Sym)
        one = knobs.discrete("one", (1,), default=1)
        assert isinstance(one, Sym)  # of one value anyway: loops that may be left out depend on numbers being traced
        return high * low * knobs.discrete("n", (1, 2), default=1)

    space = Space((Categorical("tile", ((4, 6),)), Discrete("one", (1,)), Discrete("n", (1, 2))), {"tile": (4, 6)})
    ((way, at),) = Ways(template, space).split(np.array([[0, 0, 0], [0, 0, 1]]))
    assert at.tolist() == [0, 1]
    assert Values(space, np.array([[0, 0, 0], [0, 0, 1]])).of(way.result).tolist() == [24, 48]
    assert not way.guards
