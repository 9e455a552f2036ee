"""Index forms: the value is Python's, the range holds it, and equal values that ought to be recognised are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir import te
from mlc.ir.expr import const, most_occurrences
from mlc.ir.index import (
    ZERO,
    Linear,
    Remainder,
    Var,
    as_index,
    depends_on,
    dynamic,
    dynamics,
    evaluate,
    is_fixed,
    linear_text,
    substitute,
)
from mlc.ir.types import i32
from tests.fuzz import examples
from tests.unit.ir.forms import DIVISORS, Tree, apply, trees

RANGES = [(0, 0), (0, 1), (0, 6), (0, 15), (0, 16), (-5, 4), (3, 3), (2, 9), (-20, -3)]
TREES = trees(len(RANGES))


def variables() -> list[Var]:
    return [Var(f"v{k}", lo, hi) for k, (lo, hi) in enumerate(RANGES)]


def points() -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(lo, hi) for lo, hi in RANGES])


@given(tree=TREES, point=points())
@examples(100)
def test_value_is_that_of_python(tree: Tree, point: tuple[int, ...]) -> None:
    vs = variables()
    form = as_index(apply(tree, [as_index(v) for v in vs]))
    assert evaluate(form, dict(zip(vs, point, strict=True))) == apply(tree, point)


@given(tree=TREES, point=points())
@examples(100)
def test_bounds_contain_every_value(tree: Tree, point: tuple[int, ...]) -> None:
    lo, hi = as_index(apply(tree, [as_index(v) for v in variables()])).bounds()
    assert lo <= apply(tree, point) <= hi


@given(tree=TREES, inner=st.lists(TREES, min_size=3, max_size=3), point=points())
@examples(100)
def test_substitution_commutes_with_evaluation(tree: Tree, inner: list[Tree], point: tuple[int, ...]) -> None:
    """Replacing variables by forms (within the variables' ranges) and then evaluating, or the other way round."""
    vs = variables()
    forms = [as_index(v) for v in vs]
    env = {}
    for v, t in zip(vs, inner, strict=False):
        env[v] = as_index(apply(t, forms)) % (v.hi - v.lo + 1) + v.lo
    values = dict(zip(vs, point, strict=True))
    direct = {**values, **{v: evaluate(f, values) for v, f in env.items()}}
    form = as_index(apply(tree, forms))
    new = substitute(form, env)
    assert evaluate(new, values) == evaluate(form, direct)
    lo, hi = new.bounds()
    assert lo <= evaluate(new, values) <= hi


@given(tree=TREES, point=points())
@examples(50)
def test_substituting_numbers_leaves_a_constant(tree: Tree, point: tuple[int, ...]) -> None:
    vs = variables()
    form = as_index(apply(tree, [as_index(v) for v in vs]))
    new = substitute(form, dict(zip(vs, point, strict=True)))
    assert new.is_const
    assert new.const == apply(tree, point)


@given(parts=st.lists(TREES, min_size=2, max_size=5), data=st.data())
@examples(50)
def test_sums_are_equal_in_any_order_unless_quotients_repeat(parts: list[Tree], data: st.DataObject) -> None:
    """Forms of equal sums are equal and hash alike, as long as nothing invites to undo a split in two ways."""
    vs = [as_index(v) for v in variables()]
    forms = [as_index(apply(t, vs)) for t in parts]
    if any("%" in linear_text(f) for f in forms):
        return
    other = data.draw(st.permutations(forms))
    a, b = sum(forms, ZERO), sum(other, ZERO)
    assert a == b
    assert hash(a) == hash(b)


@given(tree=TREES, n=DIVISORS, point=points())
@examples(50)
def test_provable_multiples_are_multiples(tree: Tree, n: int, point: tuple[int, ...]) -> None:
    if as_index(apply(tree, [as_index(v) for v in variables()])).multiple_of(n):
        assert apply(tree, point) % n == 0


@given(tree=TREES, point=points(), k=st.integers(0, len(RANGES) - 1))
@examples(50)
def test_coefficient_is_the_stride_along_a_variable(tree: Tree, point: tuple[int, ...], k: int) -> None:
    vs = variables()
    step = as_index(apply(tree, [as_index(v) for v in vs])).coefficient(vs[k])
    hi = RANGES[k][1]
    if step is not None and point[k] < hi:
        moved = (*point[:k], point[k] + 1, *point[k + 1 :])
        assert apply(tree, moved) - apply(tree, point) == step


# -- the cancellations that lowering relies on ----------------------------------------------------------------------
def test_split_index_cancels() -> None:
    o, i = Var("o", 0, 3), Var("i", 0, 15)
    c = as_index(o) * 16 + i
    assert c // 16 == as_index(o)
    assert c % 16 == as_index(i)
    assert (c + 5) // 4 == as_index(o) * 4 + (as_index(i) + 5) // 4


def test_fused_index_cancels() -> None:
    x = as_index(Var("x", 0, 99))
    assert x // 7 * 7 + x % 7 == x
    assert x % 7 + x // 7 * 7 == x
    assert (x // 7 * 7 + x % 7) * 3 == x * 3
    assert x % 7 * 2 + x // 7 * 14 == x * 2


def test_nested_quotients_and_remainders_merge() -> None:
    x = as_index(Var("x", 0, 999))
    assert x // 4 // 3 == x // 12
    assert x % 12 % 4 == x % 4
    assert x % 12 // 4 == x // 4 % 3
    assert x // 12 * 12 + x % 12 // 4 * 4 + x % 4 == x
    assert x % 1 == ZERO
    assert x // 1 is x


def test_division_by_more_than_the_range_is_decided() -> None:
    x = as_index(Var("x", 0, 9))
    assert x // 10 == ZERO
    assert x % 10 == x
    assert (x - 10) // 10 == as_index(-1)
    assert (x - 10) % 10 == x


def test_variable_of_one_value_is_that_value() -> None:
    assert as_index(Var("x", 3, 3)) == as_index(3)


def test_unchanged_forms_come_back_themselves() -> None:
    x, y = Var("x", 0, 9), Var("y", 0, 9)
    form = as_index(x) // 3 + y
    assert substitute(form, {}) is form
    assert substitute(form, {Var("z", 0, 1): 0}) is form
    assert form + 0 is form
    assert form * 1 is form


def test_product_with_a_constant_form_is_allowed() -> None:
    x = as_index(Var("x", 0, 9))
    assert as_index(3) * x == x * 3 == 3 * x
    assert x * as_index(3) == x * 3
    assert x * 0 == ZERO


def test_reflected_operators() -> None:
    x = as_index(Var("x", 0, 9))
    assert (5 - x).bounds() == (-4, 5)
    assert 5 + x == x + 5
    assert Var("y", 0, 4) != Var("y", 0, 4)


def test_coefficient_is_unknown_inside_a_quotient() -> None:
    x, y = Var("x", 0, 9), Var("y", 0, 9)
    form = as_index(x) // 3 + as_index(y) * 2
    assert form.coefficient(x) is None
    assert form.coefficient(y) == 2
    assert form.coefficient(Var("z", 0, 9)) == 0


# -- run-time values ---------------------------------------------------------------------------------------------------
def test_run_time_values_are_equal_when_their_expressions_are() -> None:
    rows = te.placeholder((4,), i32, "rows")
    k = Var("k", 0, 3)
    a, b = dynamic(rows[k], 0, 9), dynamic(rows[k], 0, 9)
    assert a == b
    assert hash(a) == hash(b)
    assert a - b == ZERO
    assert a != dynamic(rows[k], 0, 8)
    assert a != dynamic(rows[0], 0, 9)


def test_run_time_values_take_part_in_everything() -> None:
    rows = te.placeholder((4,), i32, "rows")
    k = Var("k", 0, 3)
    form = dynamic(rows[k], 0, 9) * 2 // 3 + k
    assert form.bounds() == (0, 9)
    assert form.vars() == {k}
    assert [d.hi for d in dynamics(form)] == [9]
    (atom,) = [a for a in form.terms if not isinstance(a, Var)]
    assert depends_on(atom, k)
    assert not depends_on(atom, Var("z", 0, 3))
    assert substitute(form, {k: 2}) == dynamic(rows[2], 0, 9) * 2 // 3 + 2
    assert evaluate(form, {k: 1}, lambda _: 7) == 7 * 2 // 3 + 1


def test_run_time_values_can_be_rewritten() -> None:
    rows = te.placeholder((4,), i32, "rows")
    form = dynamic(rows[1], 0, 9) % 4
    assert substitute(form, {}, lambda _: const(3, i32)) == dynamic(const(3, i32), 0, 9) % 4


def test_run_time_value_needs_an_evaluator() -> None:
    with pytest.raises(TypeError, match="run-time index int\\(3\\) needs an evaluator"):
        evaluate(dynamic(const(3, i32), 0, 9), {})


# -- refusals --------------------------------------------------------------------------------------------------------
def test_product_of_two_variables_is_refused() -> None:
    x, y = as_index(Var("x", 0, 9)), as_index(Var("y", 0, 9))
    with pytest.raises(TypeError, match=r"product of two index variables: \(x\) \* \(y\)"):
        _ = x * y


@pytest.mark.parametrize("divisor", [0, -3])
def test_divisors_must_be_positive(divisor: int) -> None:
    x = as_index(Var("x", 0, 9))
    with pytest.raises(ValueError, match=f"index divided by {divisor}"):
        _ = x // divisor
    with pytest.raises(ValueError, match=f"index modulo {divisor}"):
        _ = x % divisor


# -- text ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "build, text",
    [
        (lambda x, y: ZERO, "0"),
        (lambda x, y: as_index(-3), "-3"),
        (lambda x, y: x - 1, "x - 1"),
        (lambda x, y: 4 * x + y + 2, "4*x + y + 2"),
        (lambda x, y: -x - y * 3, "-x - 3*y"),
        (lambda x, y: x // 3 * 2, "2*(x//3)"),
        (lambda x, y: (x + y) % 3, "(x + y)%3"),
        (lambda x, y: (2 * x) // 3, "(2*x)//3"),
        (lambda x, y: x // 3, "x//3"),
    ],
)
def test_text_reads_back(build: Callable[[Linear, Linear], Linear], text: str) -> None:
    """The text is Python, and means the same."""
    x, y = Var("x", 0, 9), Var("y", 0, 9)
    form = build(as_index(x), as_index(y))
    assert str(form) == text


@given(tree=TREES, point=points())
@examples(50)
def test_text_of_any_form_means_the_same(tree: Tree, point: tuple[int, ...]) -> None:
    vs = variables()
    form = as_index(apply(tree, [as_index(v) for v in vs]))
    names = {v.name: n for v, n in zip(vs, point, strict=True)}
    assert eval(linear_text(form), {}, names) == apply(tree, point)


def test_a_remainder_knows_its_quotient() -> None:
    v, w = Var("v", 0, 99), Var("w", 0, 3)
    for form, quotient in ((as_index(v), "v//7"), (as_index(v) * 2 + w, "(2*v + w)//7"), (as_index(v) + 700, "v//7")):
        (atom,) = (form % 7).terms
        assert isinstance(atom, Remainder)
        for _ in range(2):
            assert str(atom.quotient) == quotient
    (atom,) = (as_index(v) * 7 % 14).terms  # 7 * (v % 2), and 7*v // 14 is v // 2
    assert isinstance(atom, Remainder)
    assert str(atom.quotient) == "v//2"
    wide = Remainder(as_index(v) + 10, 7)  # its quotient is no atom but 1 + (v + 3) // 7
    assert wide.quotient is None


def test_a_form_without_a_variable() -> None:
    v, w = Var("v", 0, 99), Var("w", 0, 3)
    form = as_index(v) * 4 + w + as_index(w) % 2 + 5
    assert str(form.without(w)) == "4*v + w%2 + 5"
    assert form.without(v) + as_index(v) * 4 == form


def test_what_is_known_at_run_time_only_is_found_at_any_depth() -> None:
    v, row = Var("v", 0, 99), dynamic(const(3, i32), 0, 9)
    for form in (row, row + v, (row + v) // 4, ((row + v) % 7 + v) // 3):
        assert not is_fixed(form)
        assert len(dynamics(form)) == 1
    for form in (ZERO, as_index(v), as_index(v) // 3, (as_index(v) % 7 + v) // 3):
        assert is_fixed(form)
        assert not dynamics(form)


def test_forms_that_share_atoms_are_not_walked_as_trees() -> None:
    """Every level reads the one below twice: as trees these have 2^60 leaves."""
    i, j = Var("i", 0, 1000), Var("j", 0, 100)
    form, want = as_index(i), 7 * 12 + 1
    for k in range(60):
        form = form // 3 + form % 5 * 2 + k
        want = want // 3 + want % 5 * 2 + k
    replaced = substitute(form, {i: as_index(j) * 7 + 1})
    assert evaluate(replaced, {j: 12}) == want
    assert (form.vars(), replaced.vars()) == ({i}, {j})
    assert form.coefficient(i) is None
    assert most_occurrences([form]) == 2**60
