"""The checker of kernels: it finds what the interpreter finds, and says what is wrong and where."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.expr import Const, Load, cast, select, within
from mlc.ir.index import Linear, Var, as_index, dynamic
from mlc.ir.loop import Allocate, Barrier, Buffer, Commit, For, ForKind, Function, If, Shuffle, Stmt, Store, Wait, seq
from mlc.ir.types import f32, i64
from mlc.lower.prove import prove
from tests.fuzz import examples
from tests.unit.lower.grids import GRIDS, Grid, exchanged, mutations, product, run, stencil, sums


def fault(fn: Function) -> str:
    """What the checker says; nothing where it finds nothing wrong."""
    try:
        prove(fn)
    except VerifyError as error:
        return error.message
    return ""


def runs(fn: Function, grid: Grid) -> bool:
    try:
        run(fn, grid.arrays())
    except VerifyError:
        return False
    return True


@pytest.mark.parametrize("name", GRIDS)
def test_checker_and_interpreter_agree_on_mutations(name: str) -> None:
    grid = GRIDS[name]()
    fn = grid.kernel()
    assert not fault(fn)
    found = [(what, mutant) for what, mutant in mutations(fn)]
    wrong = [what for what, mutant in found if runs(mutant, grid) != (not fault(mutant))]
    assert not wrong
    assert sum(bool(fault(mutant)) for _, mutant in found) >= len(found) // 3


KERNELS = st.one_of(
    st.builds(
        product,
        st.integers(1, 6),
        st.integers(1, 6),
        st.integers(1, 6),
        rows=st.sampled_from([(2, 1), (4, 2), (3, 1)]),
        columns=st.sampled_from([(2, 1), (4, 2), (3, 3)]),
        depth=st.integers(1, 4),
    ),
    st.builds(sums, st.integers(1, 3), st.integers(1, 12), st.integers(1, 5)),
    st.builds(exchanged, st.integers(1, 3), st.integers(4, 12), st.sampled_from([2, 4])),
    st.builds(stencil, st.integers(1, 3), st.integers(5, 9), st.integers(1, 5)),
)


@given(grid=KERNELS, data=st.data())
@examples(60)
def test_what_the_interpreter_finds_the_checker_finds(grid: Grid, data: st.DataObject) -> None:
    fn = grid.kernel()
    assert not fault(fn)
    _, mutant = data.draw(st.sampled_from(list(mutations(fn))))
    if not runs(mutant, grid):
        assert fault(mutant)


# -- one fault each ---------------------------------------------------------------------------------------------------
T = Var("tx", 0, 7)
B = Var("bx", 0, 2)
X, Y = Buffer("x", (24,), f32), Buffer("y", (24,), f32)
C = Buffer("c", (8,), f32, "shared")
HERE = as_index(T)
AT = as_index(B) * 8 + T


def kernel(*stmts: Stmt) -> Function:
    threads = For(T, 8, ForKind.THREAD, seq(stmts), "threadIdx.x")
    return Function("k", (X, Y), 1, For(B, 3, ForKind.THREAD, Allocate(C, threads), "blockIdx.x"))


FILL, USE = Store(C, (HERE,), Load(X, (AT,))), Store(Y, (AT,), Load(C, (7 - HERE,)))
MEET = Barrier("shared")
MINE, OTHER = Buffer("mine", (1,), f32, "local"), Buffer("other", (1,), f32, "local")
ANYWHERE = dynamic(cast(Load(X, (AT,)), i64), 0, 30)


@pytest.mark.parametrize(
    "stmts, message",
    [
        ((FILL, USE), "c is read where another thread may have written it since the last barrier"),
        ((FILL, MEET, USE, FILL), "c is written where another thread may have read it since the last barrier"),
        ((FILL, If(within(T, 0, 4), MEET), USE), "a barrier that not all threads reach"),
        ((FILL, MEET, Store(Y, (AT,), Load(C, (HERE + 1,)))), r"a load that may leave c: f32\[8\] at tx \+ 1"),
        ((Store(Y, (AT + 1,), Load(X, (AT,))),), r"a store that may leave y: f32\[24\] at 8\*bx \+ tx \+ 1"),
        ((Store(Y, (AT,), Load(X, (ANYWHERE,))),), "a load that may leave x"),
        ((Store(Y, (HERE,), Load(X, (AT,))),), "y is written where another thread of the launch may write it"),
        (
            (Store(Y, (AT,), Load(X, (AT,))), Store(Y, (23 - AT,), Load(X, (AT,)))),
            "y is written where another thread of the launch may write it",
        ),
        ((FILL, For(Var("k", 0, 3), 4, ForKind.THREAD, FILL, "threadIdx.y")), "a loop over threads inside of threads"),
    ],
)
def test_faults_are_named(stmts: tuple[Stmt, ...], message: str) -> None:
    with pytest.raises(VerifyError, match=f"^k: {message}"):
        prove(kernel(*stmts))


ZERO = (as_index(0),)


@pytest.mark.parametrize(
    "stmt, message",
    [
        (If(within(T, 0, 4), Shuffle(OTHER, ZERO, MINE, ZERO, 1)), "an exchange between threads that not all .* reach"),
        (Shuffle(OTHER, ZERO, MINE, ZERO, 8), "an exchange with threads that are not there, in blocks 8 threads wide"),
        (Shuffle(OTHER, ZERO, MINE, ZERO, 3), "an exchange with threads that are not there"),
        (Shuffle(OTHER, ZERO, C, ZERO, 1), "an exchange of what threads have in common"),
        (Shuffle(OTHER, (as_index(1),), MINE, ZERO, 1), "a store that may leave other"),
    ],
)
def test_faults_of_exchanges_are_named(stmt: Stmt, message: str) -> None:
    for b in (MINE, OTHER):
        stmt = Allocate(b, stmt)
    with pytest.raises(VerifyError, match=f"^k: {message}"):
        prove(kernel(stmt))


@pytest.mark.parametrize(
    "stmts",
    [
        (FILL, MEET, USE),
        (If(within(AT, 0, 23), Store(Y, (AT + 1,), Load(X, (AT,)))),),
        (Store(Y, (AT,), select(within(AT - 1, 0, 24), Load(X, (AT - 1,)), 0.0)),),
        (Store(Y, (AT,), select(within(AT, 0, 4), 0.0, Load(X, (AT - 4,)))),),
        (If(within(T, 0, 1), Store(Y, (as_index(B),), Load(X, (AT,)))),),
        (FILL, If(within(B, 1, 2), MEET)),
    ],
)
def test_sound_kernels_pass(stmts: tuple[Stmt, ...]) -> None:
    assert not fault(kernel(*stmts))


def test_threads_of_one_block_only_are_no_launch_of_many() -> None:
    alone = Function("k", (X, Y), 1, For(T, 8, ForKind.THREAD, Store(Y, (HERE,), Load(X, (HERE,))), "threadIdx.x"))
    assert not fault(alone)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from([4, 6, 8, 32]), st.integers(1, 3))
@examples(100)
def test_threads_of_fused_loops_are_told_by_places(shape: list[int], threads: int, step: int) -> None:
    """A number of a thread, split into indices of any shape; two threads at one element are found."""
    size = prod(shape)
    out = Buffer("out", (*shape, step), f32)
    bx, tx = Var("bx", 0, -(-size // threads) - 1), Var("tx", 0, threads - 1)

    def kernel(number: Linear) -> Function:
        at: list[Linear] = []
        flat = number
        for n in reversed(shape):
            at.insert(0, flat % n)
            flat = flat // n
        body: Stmt = If(within(number, 0, size), Store(out, (*at, as_index(0)), Const(1.0, f32)))
        for v, axis in ((tx, "threadIdx.x"), (bx, "blockIdx.x")):
            body = For(v, v.hi + 1, ForKind.THREAD, body, axis)
        return Function("k", (out,), 1, body)

    number = as_index(bx) * threads + tx
    assert not fault(kernel(number))
    if size > 1:
        assert "where another thread of the launch may write it" in fault(kernel(number // 2))


@pytest.mark.parametrize("apart, sound", [(32, True), (16, False)])
def test_strips_of_large_results_are_told_apart(apart: int, sound: bool) -> None:
    """By how far apart they are: there are too many elements to count them."""
    out = Buffer("out", (1 << 12, 1 << 12), f32)
    by, bx, tx = Var("by", 0, (1 << 12) - 1), Var("bx", 0, 63), Var("tx", 0, 31)
    at = as_index(bx) * 64 + tx
    s = seq([Store(out, (as_index(by), at + n), Const(1.0, f32)) for n in (0, apart)])
    for var, axis in ((tx, "threadIdx.x"), (bx, "blockIdx.x"), (by, "blockIdx.y")):
        s = For(var, var.hi + 1, ForKind.THREAD, s, axis)
    assert (not fault(Function("k", (out,), 1, s))) == sound


@pytest.mark.parametrize("step, sound", [(4, True), (3, False)])
def test_copies_of_a_long_loop_are_told_apart(step: int, sound: bool) -> None:
    """By where they go: two buffers in turns of 32 by 257 elements, filled by 64 iterations, are too many to count."""
    x, c = Buffer("x", (19, 32, 257), f32), Buffer("c", (2, 32, 257), f32, "shared")
    ko, i, ty, tx = Var("ko", 0, 18), Var("i", 0, 63), Var("ty", 0, 31), Var("tx", 0, 3)
    at = (as_index(tx) + as_index(ty) % 8 * 4, as_index(i) * step + as_index(ty) // 8)
    copy = Store(c, (as_index(ko) % 2, *at), Load(x, (as_index(ko), *at)), asynchronous=True)
    steps = For(ko, 19, ForKind.SERIAL, seq([Wait(0), Barrier("shared"), For(i, 64, ForKind.SERIAL, copy), Commit()]))
    threads = For(ty, 32, ForKind.THREAD, For(tx, 4, ForKind.THREAD, steps, "threadIdx.x"), "threadIdx.y")
    s = For(B, 3, ForKind.THREAD, Allocate(c, threads), "blockIdx.x")
    said = fault(Function("k", (x,), 0, s))
    assert not said if sound else "a copy that nobody has waited for may be under way" in said
