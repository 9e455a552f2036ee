"""Builders of scalar expressions: types, simplifications, rewriting, equality."""

from __future__ import annotations

import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import (
    FALSE,
    TRUE,
    Binary,
    Call,
    Cast,
    Const,
    IndexValue,
    Load,
    Select,
    Within,
    all_of,
    as_expr,
    binary,
    call,
    cast,
    conjuncts,
    const,
    index_vars,
    loads,
    replace_loads,
    rewrite,
    same,
    select,
    substitute_vars,
    walk,
    within,
)
from mlc.ir.index import Var, as_index, dynamic
from mlc.ir.types import boolean, f32, i8, i32, i64, u8

X = te.placeholder((8,), f32, "x")
N = te.placeholder((8,), i32, "n")
I = Var("i", 0, 7)


# -- literals and types -----------------------------------------------------------------------------------------------
def test_numbers_take_the_other_operands_type() -> None:
    e = X[I] * 2 + 1
    assert isinstance(e, Binary)
    assert isinstance(e.b, Const)
    assert (e.b.value, e.b.dtype, e.dtype) == (1.0, f32, f32)
    assert repr(1 - X[I]) == "1.0 - x[i]"
    assert repr(-X[I] / 2) == "neg(x[i]) / 2.0"
    assert repr(2 / X[I] + (3 - N[I] * 1 if False else X[I])) == "(2.0 / x[i]) + x[i]"


@pytest.mark.parametrize("value, dtype, held", [(300, u8, 44), (-1, u8, 255), (200, i8, -56), (2.9, i32, 2)])
def test_integer_literals_wrap(value: float, dtype: te.DType, held: int) -> None:
    assert const(value, dtype).value == held


def test_literals_choose_a_type_when_nothing_tells() -> None:
    assert [as_expr(v).dtype for v in (1, 1.0, True)] == [i64, f32, boolean]
    assert as_expr(I).dtype is i64
    assert as_expr(I, i32).dtype is i32
    assert as_expr(I, f32).dtype is i64


def test_comparisons_give_booleans() -> None:
    assert binary("lt", X[I], 0).dtype is boolean
    assert call("isnan", X[I]).dtype is boolean


@pytest.mark.parametrize(
    "op, a, b", [("add", X[I], N[I]), ("and", X[I], X[I]), ("shl", TRUE, TRUE), ("add", TRUE, TRUE)]
)
def test_operators_refuse_wrong_types(op: str, a: te.Expr, b: te.Expr) -> None:
    with pytest.raises(VerifyError, match=rf"{op}\(.*\): operand types"):
        binary(op, a, b)


def test_functions_refuse_wrong_operands() -> None:
    with pytest.raises(VerifyError, match=r"exp\(n\[i\]\): operands"):
        call("exp", N[I])
    with pytest.raises(VerifyError, match=r"exp\(x\[i\], x\[i\]\): operands"):
        call("exp", X[I], X[I])


def test_choice_refuses_wrong_types() -> None:
    cond = within(I, 1, 3)
    with pytest.raises(VerifyError, match=r"select\(1 <= i < 3, x\[i\]: f32, n\[i\]: i32\): operand types"):
        select(cond, X[I], N[I])
    with pytest.raises(VerifyError, match="operand types"):
        select(X[I], X[I], X[I])


# -- what builders simplify -------------------------------------------------------------------------------------------
def test_neutral_operands_vanish() -> None:
    x, n = X[I], N[I]
    assert x * 1 is x
    assert 1 * x is x
    assert n + 0 is n
    assert 0 + n is n
    assert isinstance(x + 0, Binary)  # -0.0 + 0 is 0


def test_conjunctions_and_disjunctions_with_a_literal_are_decided() -> None:
    g = within(I, 1, 3)
    assert binary("and", g, TRUE) is g
    assert binary("or", FALSE, g) is g
    assert binary("and", FALSE, g) is FALSE
    assert binary("or", g, TRUE) is TRUE


def test_guards_decide_themselves() -> None:
    assert within(I, 0, 8) is TRUE
    assert within(I, 8, 20) is FALSE
    assert within(as_index(I) - 10, 0, 8) is FALSE
    assert within(I, 5, 5) is FALSE
    assert within(I, 6, 2) is FALSE
    assert isinstance(within(I, 0, 7), Within)


def test_choice_with_a_decided_guard_is_its_side() -> None:
    a, b = X[I], X[0]
    assert select(TRUE, a, b) is a
    assert select(FALSE, a, b) is b
    choice = select(within(I, 0, 3), 1.0, b)
    assert isinstance(choice, Select)
    assert choice.dtype is f32


def test_conjunction_of_guards() -> None:
    a, b, c = within(I, 1, 3), within(I, 2, 4), within(I, 3, 5)
    assert all_of([]) is TRUE
    assert all_of([a, TRUE]) is a
    assert all_of([a, FALSE, b]) is FALSE
    assert conjuncts(all_of([a, b, c])) == [a, b, c]
    assert conjuncts(a) == [a]


def test_casts() -> None:
    x = X[I]
    assert cast(x, f32) is x
    assert isinstance(cast(x, i32), Cast)
    index = cast(as_expr(I), i32)
    assert isinstance(index, IndexValue)
    assert index.dtype is i32


# -- walking and rewriting --------------------------------------------------------------------------------------------
def test_walk_visits_operands_first_and_shared_nodes_once() -> None:
    x = X[I]
    e = x * x + call("exp", x)
    order = walk(e)
    assert order[0] is x
    assert order[-1] is e
    assert len(order) == 4


def test_loads_and_variables_inside_run_time_indices_are_found() -> None:
    e = X[dynamic(N[I], 0, 7)]
    assert [ld.source for ld in loads(e)] == [N, X]
    assert index_vars(e) == {I}


def test_deep_expressions_need_no_recursion() -> None:
    e: te.Expr = X[I]
    for _ in range(5000):
        e = e + 1.5
    assert len(loads(e)) == 1
    assert same(e, substitute_vars(e, {Var("z", 0, 1): 0}))


def test_rewriting_nothing_gives_the_same_object() -> None:
    e = select(within(I, 1, 3), call("exp", X[I]), cast(N[I], f32))
    assert rewrite(e, lambda n: n) is e
    assert substitute_vars(e, {}) is e
    assert substitute_vars(e, {Var("z", 0, 1): 0}) is e
    assert replace_loads(e, lambda ld: ld) is e


def test_substitution_decides_guards() -> None:
    e = select(within(I, 1, 3), X[I], 0.0)
    assert same(substitute_vars(e, {I: 2}), X[2])
    assert same(substitute_vars(e, {I: 0}), const(0, f32))
    assert repr(substitute_vars(as_expr(I), {I: 3})) == "i64(3)"


def test_replaced_loads_may_be_inside_run_time_indices() -> None:
    e = X[dynamic(N[I], 0, 7)]
    other = te.placeholder((8,), i32, "other")
    new = replace_loads(e, lambda ld: Load(other, ld.indices) if ld.source is N else ld)
    assert repr(new) == "x[int(other[i])]"


def test_structural_equality() -> None:
    j = Var("j", 0, 7)

    def build(v: Var) -> te.Expr:
        return select(within(v, 1, 3), call("exp", X[v]), cast(N[v], f32))

    assert same(build(I), build(I))
    assert not same(build(I), build(j))
    assert not same(X[I], N[I])
    assert not same(X[I] + 1.0, X[I] + 2.0)
    assert not same(X[I] + 1.0, X[I] - 1.0)
    assert not same(const(1, i32), const(1, i64))
    assert not same(Call("exp", (X[I],), f32), Call("log", (X[I],), f32))
    assert not same(within(I, 1, 3), within(I, 1, 4))
