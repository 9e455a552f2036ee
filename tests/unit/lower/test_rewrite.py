"""Rewriting of loop ASTs."""

from __future__ import annotations

from mlc.ir.expr import FALSE, TRUE, Expr, Load, cast, const, within
from mlc.ir.index import Var, as_index, dynamic
from mlc.ir.loop import NOTHING, Allocate, Buffer, For, ForKind, ForRange, If, Stmt, Store, is_nothing, seq
from mlc.ir.types import f32, i64
from mlc.lower.rewrite import decided, exprs_of, loop_of, map_exprs, slice_loop, substitute_stmt

X, OUT, TMP = Buffer("x", (9,), f32), Buffer("out", (9,), f32), Buffer("tmp", (9,), f32, "local")
I, K, N = Var("i", 0, 3), Var("k", 0, 8), Var("n", 0, 3)


def load(index: object) -> Expr:
    return Load(X, (as_index(index),))  # type: ignore[arg-type]


def store(index: object, value: Expr | None = None) -> Store:
    return Store(OUT, (as_index(index),), value if value is not None else load(index))  # type: ignore[arg-type]


def sample() -> Stmt:
    """Every place where an expression can stand, over a loop variable ``n`` from outside."""
    few = ForRange(K, cast(load(N), i64), const(4, i64), store(K))
    choice = If(within(as_index(N) + I, 2, 5), store(N), store(as_index(N) + 1))
    gather = store(I, load(dynamic(cast(load(N), i64), 0, 8)))
    return Allocate(TMP, For(I, 4, ForKind.SERIAL, seq([few, choice, gather])))


def test_substitution_reaches_every_place() -> None:
    text = repr(substitute_stmt(sample(), {N: 1}))
    assert text == (
        "tmp: f32[9] in local\n"
        "for i in range(4):\n"
        "  for k in range(i64(x[1]), 4):\n"
        "    out[k] = x[k]\n"
        "  if 2 <= i + 1:\n"
        "    out[1] = x[1]\n"
        "  else:\n"
        "    out[2] = x[2]\n"
        "  out[i] = x[int(i64(x[1]))]"
    )


def test_substituting_nothing_gives_the_same_statement() -> None:
    s = sample()
    assert substitute_stmt(s, {Var("z", 0, 1): 0}) is s


def test_decided_branches_and_empty_loops_disappear() -> None:
    only = For(I, 4, ForKind.SERIAL, Allocate(TMP, If(within(N, 2, 3), store(I))))
    assert is_nothing(substitute_stmt(only, {N: 1}))
    assert repr(substitute_stmt(only, {N: 2})) == "for i in range(4):\n  tmp: f32[9] in local\n  out[i] = x[i]"


def test_map_reaches_values_conditions_and_bounds() -> None:
    seen: list[Expr] = []

    def note(e: Expr) -> Expr:
        seen.append(e)
        return e

    s = sample()
    assert map_exprs(s, note) is s
    texts = ["i64(x[n])", "4", "x[k]", "2 <= n + i < 5", "x[n]", "x[n + 1]", "x[int(i64(x[n]))]"]
    assert [str(e) for e in seen] == texts


def test_map_decides_branches() -> None:
    branch = If(within(N, 1, 2), store(0), store(1))
    assert repr(map_exprs(branch, lambda e: TRUE if e is branch.cond else e)) == "out[0] = x[0]"
    assert repr(map_exprs(branch, lambda e: FALSE if e is branch.cond else e)) == "out[1] = x[1]"


def test_decided() -> None:
    a, b = store(0), store(1)
    assert decided(TRUE, a, b) is a
    assert decided(FALSE, a, b) is b
    assert decided(FALSE, a, None) is NOTHING
    assert decided(within(N, 1, 2), NOTHING, None) is NOTHING
    assert isinstance(decided(within(N, 1, 2), a, None), If)


def test_expressions_of_a_statement() -> None:
    assert [
        len(exprs_of(s)) for s in (store(0), If(TRUE, NOTHING), sample(), ForRange(K, load(0), load(1), NOTHING))
    ] == [
        1,
        1,
        0,
        2,
    ]


def test_slices_of_a_loop() -> None:
    loop = For(I, 4, ForKind.PARALLEL, store(I), "x")
    assert repr(slice_loop(loop, 1, 4)) == 'for i in parallel(3, "x"):\n  out[i + 1] = x[i + 1]'
    assert repr(slice_loop(loop, 2, 3)) == "out[2] = x[2]"
    assert slice_loop(loop, 2, 2) is NOTHING


def test_loop_of_one_or_no_iteration() -> None:
    like, body = For(I, 4, ForKind.UNROLLED, NOTHING), store(0)
    assert loop_of(I, 1, like, body) is body
    assert loop_of(I, 0, like, body) is NOTHING
    assert loop_of(I, 4, like, NOTHING) is NOTHING
    assert isinstance(loop_of(I, 4, like, body), For)
