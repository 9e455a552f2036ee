"""What the verifier of kernels refuses."""

from __future__ import annotations

import pytest

from mlc.errors import VerifyError
from mlc.ir.expr import Expr, Load, cast, const, select, within
from mlc.ir.index import Var, as_index, dynamic
from mlc.ir.loop import (
    Access,
    Allocate,
    Barrier,
    Buffer,
    Evaluate,
    For,
    ForKind,
    ForRange,
    Function,
    If,
    Stmt,
    Store,
    seq,
)
from mlc.ir.types import f32, i64
from mlc.lower.verify import verify

X, OUT, GONE = Buffer("x", (4,), f32), Buffer("out", (4,), f32), Buffer("gone", (4,), f32)
I, Z = Var("i", 0, 3), Var("z", 0, 3)


def check(s: Stmt, *, final: bool = True) -> None:
    verify(Function("kernel", (X, OUT), 1, s), final=final)


def store(value: Expr, index: object = I, b: Buffer = OUT) -> Store:
    return Store(b, (as_index(index),), value)  # type: ignore[arg-type]


def load(index: object, b: Buffer = X) -> Expr:
    return Load(b, (as_index(index),))  # type: ignore[arg-type]


def loop(body: Stmt, kind: ForKind = ForKind.SERIAL) -> Stmt:
    return For(I, 4, kind, body)


def operand(b: Buffer, *indices: Var | int) -> Stmt:
    return loop(Evaluate("use", (Access(b, tuple(as_index(ix) for ix in indices), (1,)),)))


ONE = const(1.0, f32)


def test_good_kernels_pass() -> None:
    tmp = Buffer("tmp", (4,), f32, "local")
    lane = Var("l", 0, 3)
    row = dynamic(cast(load(I), i64), 0, 3)
    guarded = select(within(as_index(I) - 5, 0, 4), load(as_index(I) - 5), 0.0)
    body = seq([store(load(row), 0), If(within(I, 1, 3), store(ONE), store(guarded)), Evaluate("x", ()), Barrier("y")])
    check(seq([loop(body), Allocate(tmp, Store(tmp, (as_index(lane),), load(lane), lane))]))
    k = Var("k", 0, 3)
    check(ForRange(k, const(0, i64), const(4, i64), store(ONE, k)))


@pytest.mark.parametrize(
    "s, message",
    [
        (loop(store(load(Z))), r"kernel: \['z'\] unbound in\nout\[i\] = x\[z\]"),
        (loop(store(ONE, Z)), r"kernel: unbound index in\nout\[z\] = 1.0"),
        (loop(If(within(Z, 1, 2), store(ONE))), r"kernel: \['z'\] unbound in\nif 1 <= z < 2"),
        (ForRange(Z, load(I), ONE, store(ONE, Z)), r"kernel: \['i'\] unbound"),
        (ForRange(Z, ONE, load(I), store(ONE, Z)), r"kernel: \['i'\] unbound"),
        (loop(loop(store(ONE))), "kernel: i is bound twice"),
        (ForRange(I, const(0, i64), const(4, i64), loop(store(ONE))), "kernel: i is bound twice"),
        (loop(ForRange(I, const(0, i64), const(4, i64), store(ONE))), "kernel: i is bound twice"),
        (operand(GONE, I), r"kernel: gone: f32\[4\] is not in scope in\nuse\(gone\[i\]\)"),
        (operand(X, Z), r"kernel: unbound index in\nuse\(x\[z\]\)"),
        (operand(X, 4), r"kernel: x\[4\] is out of bounds in\nuse"),
        (operand(X, I, I), r"kernel: x\[i, i\] has 2 of 1 indices"),
        (For(I, 5, ForKind.SERIAL, store(ONE)), r"kernel: i ranges over \[0, 3\], the loop over 5"),
        (For(Var("i", 1, 3), 4, ForKind.SERIAL, seq([])), r"kernel: i ranges over \[1, 3\], the loop over 4"),
        (loop(store(load(I, GONE))), r"kernel: gone: f32\[4\] is not in scope in\nout\[i\] = gone\[i\]"),
        (loop(store(ONE, I, GONE)), r"kernel: gone: f32\[4\] is not in scope in\ngone\[i\] = 1.0"),
        (seq([Allocate(GONE, seq([])), loop(store(load(I, GONE)))]), "gone: .* is not in scope"),
        (loop(store(load(dynamic(cast(load(I, GONE), i64), 0, 3)))), "gone: .* is not in scope"),
        (loop(store(const(1, i64))), r"kernel: store of i64 with 1 indices into out: f32\[4\]"),
        (Store(OUT, (), ONE), r"kernel: store of f32 with 0 indices into out: f32\[4\]"),
        (loop(store(Load(X, (as_index(I), as_index(I))))), r"kernel: x\[i, i\] has 2 of 1 indices"),
        (loop(store(load(as_index(I) + 4))), r"kernel: x\[i \+ 4\] is out of bounds in\nout\[i\] = x\[i \+ 4\]"),
        (loop(store(load(as_index(I) - 4))), r"x\[i - 4\] is out of bounds"),
        (loop(store(ONE, as_index(I) + 4)), r"kernel: the store is out of bounds in\nout\[i \+ 4\] = 1.0"),
        (loop(store(ONE), ForKind.UNROLLED), "kernel: a loop is still unrolled:\nfor i in unrolled"),
        (loop(store(ONE), ForKind.VECTORIZED), "kernel: a loop is still vectorized:\nfor i in vectorized"),
        (loop(If(within(I, 0, 1), seq([]), store(load(Z)))), r"\['z'\] unbound"),
    ],
)
def test_bad_kernels_are_refused(s: Stmt, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        check(s)


def test_loops_to_be_removed_may_be_there_before_the_end() -> None:
    check(loop(store(ONE), ForKind.UNROLLED), final=False)
    check(loop(store(ONE), ForKind.VECTORIZED), final=False)


def test_a_branch_that_is_never_taken_may_name_any_place() -> None:
    """Such as the last part of a concatenation, in a piece of a loop that only the first part reaches."""
    outside = as_index(I) - 6
    check(loop(If(within(I, 0, 4), store(ONE), store(load(outside), outside))))


def test_what_is_no_statement_is_refused() -> None:
    class Odd(Stmt):
        pass

    with pytest.raises(VerifyError, match="kernel: Odd is no statement"):
        check(Odd())
