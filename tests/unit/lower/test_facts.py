"""What follows from conditions: no value that an index takes where they hold lies outside of what is said."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.expr import Load, all_of, call, cast, within
from mlc.ir.index import Linear, Var, as_index, dynamic, evaluate
from mlc.ir.loop import Buffer
from mlc.ir.types import f32, i64
from mlc.lower.facts import Fact, Facts, bounds, facts_of, is_inside
from tests.fuzz import examples

A, B, C = Var("a", 0, 4), Var("b", 0, 3), Var("c", 0, 6)
VARS = (A, B, C)

SUMS = st.builds(
    lambda factors, const: sum((as_index(v) * c for v, c in zip(VARS, factors, strict=True)), as_index(const)),
    st.tuples(*[st.integers(-3, 8)] * 3),
    st.integers(-4, 4),
)
FORMS = st.one_of(
    SUMS,
    st.builds(lambda x, d: x // d, SUMS, st.integers(1, 9)),
    st.builds(lambda x, d: x % d, SUMS, st.integers(1, 9)),
    st.builds(lambda x, y, d: x + y // d, SUMS, SUMS, st.integers(1, 9)),
)
FACTS = st.lists(
    st.builds(lambda f, lo, n: Fact(f, lo, lo + n), FORMS, st.integers(-6, 12), st.integers(1, 30)), max_size=3
)


def values(index: Linear, facts: Facts) -> list[int]:
    """All that an index can be."""
    found = []
    for at in product(*(range(v.hi + 1) for v in VARS)):
        env = dict(zip(VARS, at, strict=True))
        if all(f.lo <= evaluate(f.index, env) < f.hi for f in facts):
            found.append(evaluate(index, env))
    return found


@given(index=FORMS, facts=FACTS, extent=st.integers(1, 20))
@examples(300)
def test_every_value_lies_within_the_bounds(index: Linear, facts: list[Fact], extent: int) -> None:
    found = values(index, tuple(facts))
    lo, hi = bounds(index, tuple(facts))
    assert all(lo <= v <= hi for v in found)
    assert is_inside(index, extent, tuple(facts)) == all(0 <= v < extent for v in found)


def test_parts_of_a_fused_loop_are_told_by_its_guard() -> None:
    fused = as_index(A) * 9 + C
    assert bounds(as_index(A) + (as_index(A) + C) // 8, (Fact(fused * 4 + B, 0, 100),)) == (0, 3)
    assert bounds((as_index(A) * 8 + C) // 2 // 3, (Fact(as_index(A) * 8 + C, 0, 18),)) == (0, 2)


def test_falsehood_of_a_one_sided_condition_tells_the_other_side() -> None:
    assert facts_of(within(A, 0, 3), holds=False) == (Fact(as_index(A), 3, 5),)
    assert facts_of(within(A, 3, 9), holds=False) == (Fact(as_index(A), 0, 3),)
    assert facts_of(within(A, 1, 3), holds=False) == ()
    assert facts_of(within(A, 1, 3), holds=False, given=(Fact(as_index(A), 1, 5),)) == (Fact(as_index(A), 3, 5),)
    assert facts_of(call("not", within(A, 0, 3))) == (Fact(as_index(A), 3, 5),)
    assert facts_of(all_of([within(A, 0, 3), within(B, 1, 9)])) == (Fact(as_index(A), 0, 3), Fact(as_index(B), 1, 9))
    assert facts_of(all_of([within(A, 0, 3), within(B, 1, 9)]), holds=False) == ()


@pytest.mark.parametrize("extent, inside", [(9, True), (8, None)])
def test_values_of_memory_are_what_they_are_promised_to_be(extent: int, inside: bool | None) -> None:
    loaded = dynamic(cast(Load(Buffer("x", (4,), f32), (as_index(B),)), i64), 0, 8)
    assert is_inside(loaded, extent, ()) is inside


@given(index=FORMS, facts=FACTS, extent=st.integers(1, 20))
@examples(200)
def test_what_is_not_tried_is_not_said(index: Linear, facts: list[Fact], extent: int) -> None:
    """With fewer points than there are values: periods stand for all of these, and facts may be left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlc.lower.facts.POINTS", 24)
        said = is_inside(index, extent, tuple(facts))
    assert said in (None, all(0 <= v < extent for v in values(index, tuple(facts))))


def test_steps_of_a_long_sum_are_tried_by_their_period() -> None:
    """A 3-D window's depth over 8 planes of 784 pixels: 2,764,800 values, 691,200 of which are unlike."""
    by, ty, tx, k, d = (Var(n, 0, e - 1) for n, e in (("by", 25), ("ty", 16), ("tx", 32), ("k", 108), ("d", 2)))
    tap = (as_index(k) * 4 + as_index(tx) % 4) // 9 % 3
    plane = (as_index(d) * 16 + ty + as_index(by) * 32) // 98 % 8
    pixel = as_index(tx) + as_index(ty) * 32 + (as_index(d) + as_index(by) * 2) % 49 * 512
    facts = (Fact(as_index(k), 0, 107), Fact(pixel + tap * 3136 - 3136, 0, 25088))
    assert is_inside(tap + plane - 1, 8, facts)
    assert not is_inside(tap + plane - 1, 8, facts[:1])


def test_parts_of_an_index_are_tried_apart() -> None:
    """Rows of a 7x7 window of stride 2, 109 pixels wide, a block of which is 128: 2,356,992 values."""
    k, i, bx, ty, tx = (Var(n, 0, e - 1) for n, e in (("k", 6), ("i", 11), ("bx", 93), ("ty", 24), ("tx", 16)))
    own = as_index(tx) + as_index(ty) % 8 * 16
    tap = (as_index(k) * 4 + (as_index(k) * 4 + as_index(i) * 3 + as_index(ty) // 8) // 7) % 7
    row = as_index(bx) + (own + as_index(bx) * 19) // 109
    facts = (Fact(own + as_index(bx) * 128, 0, 109 * 109),)
    assert is_inside(tap + row * 2, 223, facts)
    assert not is_inside(tap + row * 2, 222, facts)
    assert not is_inside(tap + row * 2, 223, ())
