"""Conditions that others decide go, and results stay the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.expr import Expr, Load, all_of, cast, const, within
from mlc.ir.index import Var, as_index, dynamic
from mlc.ir.interp import run_function
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, If, Stmt, Store, seq, walk
from mlc.ir.types import f32, i64
from mlc.lower.implied import drop_implied
from tests.fuzz import examples
from tests.unit.lower.test_facts import FORMS, VARS

A, B, C = VARS
OUT = Buffer("out", tuple(v.hi + 1 for v in VARS), f32)
ONE, TWO = const(1.0, f32), const(2.0, f32)


def store(value: Expr) -> Store:
    return Store(OUT, tuple(as_index(v) for v in VARS), value)


def check(s: Stmt) -> str:
    """The text of a statement without what is implied, once it is known to do the same."""
    results = []
    for body in (s, drop_implied(s)):
        for v in reversed(VARS):
            body = For(v, v.hi + 1, ForKind.SERIAL, body)
        out = np.full(OUT.shape, 77, np.float32)
        run_function(Function("kernel", (OUT,), 1, body), [out])
        results.append(out)
    np.testing.assert_array_equal(*results)
    return repr(drop_implied(s))


def test_condition_that_another_implies_goes() -> None:
    inner = If(within(as_index(B) * 7 + C + 3, 0, 27), store(ONE))
    assert check(If(within(C, 0, 3), inner)) == "if c < 3:\n  out[a, b, c] = 1.0"


def test_condition_beside_one_that_implies_it_goes() -> None:
    both = all_of([within(as_index(A) * 2 + B, 0, 7), within(as_index(A) * 6 + as_index(B) * 3 + 2, 0, 20)])
    assert check(If(both, store(ONE))) == "if 6*a + 3*b + 2 < 20:\n  out[a, b, c] = 1.0"


def test_of_equal_conditions_one_stays() -> None:
    both = all_of([within(A, 0, 2), within(A, 0, 2)])
    assert check(If(both, If(within(A, 0, 2), store(ONE), store(TWO)))) == "if a < 2:\n  out[a, b, c] = 1.0"


def test_condition_that_cannot_hold_takes_the_other_side() -> None:
    s = If(within(A, 0, 2), If(within(as_index(A) + B, 6, 9), store(ONE), store(TWO)))
    assert check(s) == "if a < 2:\n  out[a, b, c] = 2.0"
    assert check(If(within(A, 0, 2), If(all_of([within(B, 1, 9), within(A, 3, 4)]), store(ONE)))) == "pass"


def test_other_side_knows_nothing_of_a_condition() -> None:
    s = If(within(A, 0, 3), store(ONE), If(within(as_index(A) + 1, 0, 4), store(TWO)))
    assert check(s) == repr(s)


def test_what_memory_holds_may_change() -> None:
    cell = Buffer("cell", (1,), i64, "local")
    value = dynamic(Load(cell, (as_index(0),)), 0, 7)
    change = Store(cell, (as_index(0),), cast(const(5.0, f32), i64))
    s = If(within(value, 0, 3), seq([change, If(within(value, 0, 3), store(ONE))]))
    assert drop_implied(s) is s


CONDS = st.lists(
    st.builds(lambda f, lo, n: within(f, lo, lo + n), FORMS, st.integers(-6, 12), st.integers(1, 40)),
    min_size=1,
    max_size=2,
).map(all_of)
TREES: st.SearchStrategy[Stmt] = st.recursive(
    st.sampled_from((store(ONE), store(TWO))),
    lambda inner: st.one_of(
        st.builds(If, CONDS, inner, st.one_of(st.none(), inner)),
        st.builds(lambda a, b: seq([a, b]), inner, inner),
    ),
    max_leaves=6,
)


@given(s=TREES)
@examples(300)
def test_random_branches_keep_their_meaning(s: Stmt) -> None:
    check(s)
    assert len(list(walk(drop_implied(s)))) <= len(list(walk(s)))


def test_what_has_nothing_implied_comes_back_itself() -> None:
    tile = Buffer("tile", (4,), f32, "register")
    s = Allocate(tile, If(within(Var("k", 0, 9), 0, 3), store(ONE)))
    assert drop_implied(s) is s
