"""The loop AST: building, walking, rebuilding and its text."""

from __future__ import annotations

from mlc.ir.expr import Load, const, select, within
from mlc.ir.index import Var, as_index
from mlc.ir.loop import (
    NOTHING,
    Allocate,
    Barrier,
    Buffer,
    Evaluate,
    For,
    ForKind,
    ForRange,
    Function,
    If,
    Seq,
    Stmt,
    Store,
    is_nothing,
    rebuild,
    seq,
    sub_statements,
    walk,
)
from mlc.ir.types import f32, i32

A, OUT = Buffer("a", (4, 8), f32), Buffer("out", (4, 8), f32)
TILE = Buffer("tile", (8,), f32, "register")
I, J, LANE = Var("i", 0, 3), Var("j", 0, 7), Var("l", 0, 7)


def store(value: float = 1.0) -> Store:
    return Store(OUT, (as_index(I), as_index(J)), const(value, f32))


def every_statement() -> Stmt:
    """One of each kind."""
    count = Buffer("n", (1,), i32)
    move = Store(TILE, (as_index(LANE),), Load(A, (as_index(I), as_index(LANE))), LANE)
    back = Store(OUT, (as_index(I), as_index(J)), Load(TILE, (as_index(J),)))
    inner = For(J, 8, ForKind.SERIAL, If(within(J, 2, 5), back, store(0.0)))
    body = seq([Evaluate("prefetch", (1,)), move, Barrier("block"), inner])
    loops = For(I, 4, ForKind.THREAD, Allocate(TILE, body), "block.x")
    few = ForRange(Var("k", 0, 7), const(0, i32), Load(count, (as_index(0),)), NOTHING)
    return seq([loops, few])


def test_text_of_every_statement() -> None:
    fn = Function("kernel", (A, Buffer("n", (1,), i32), OUT), 1, every_statement())
    assert repr(fn) == (
        "def kernel(a: f32[4,8], n: i32[1]) -> out: f32[4,8]:\n"
        '  for i in thread(4, "block.x"):\n'
        "    tile: f32[8] in register\n"
        "    prefetch(1)\n"
        "    tile[0:8] = a[i, 0:8]  # l in 8 lanes\n"
        "    barrier('block')\n"
        "    for j in range(8):\n"
        "      if 2 <= j < 5:\n"
        "        out[i, j] = tile[j]\n"
        "      else:\n"
        "        out[i, j] = 0.0\n"
        "  for k in range(0, n[0]):\n"
        "    pass\n"
    )


def test_buffers_know_their_sizes() -> None:
    b = Buffer("b", (2, 3, 4), i32, "local")
    assert (b.size, b.nbytes, b.strides()) == (24, 96, (12, 4, 1))
    assert Buffer("s", (), f32).strides() == ()
    assert Buffer("s", (), f32).size == 1


def test_sequences_are_flat() -> None:
    a, b, c = store(1), store(2), store(3)
    assert seq([a]) is a
    both = seq([a, seq([b, c])])
    assert isinstance(both, Seq)
    assert both.stmts == (a, b, c)
    assert is_nothing(seq([]))
    assert is_nothing(None)
    assert not is_nothing(a)


def test_walk_goes_in_program_order() -> None:
    names = [type(s).__name__ for s in walk(every_statement())]
    assert names == [
        "Seq", "For", "Allocate", "Seq", "Evaluate", "Store", "Barrier", "For", "If", "Store", "Store",
        "ForRange", "Seq",
    ]  # fmt: skip


def test_rebuilding_nothing_gives_the_same_statement() -> None:
    for s in walk(every_statement()):
        assert rebuild(s, lambda c: c) is s


def test_rebuilding_replaces_sub_statements() -> None:
    other = store(9)
    for s in walk(every_statement()):
        if sub_statements(s):
            new = rebuild(s, lambda _: other)
            assert set(map(id, sub_statements(new))) == {id(other)}
            assert type(new) is type(s)


def test_branch_without_else_has_one_sub_statement() -> None:
    assert len(sub_statements(If(within(J, 2, 5), store()))) == 1


def test_guarded_values_print_as_choices() -> None:
    value = select(within(as_index(J) - 1, 0, 8), Load(A, (as_index(I), as_index(J) - 1)), 0.0)
    assert repr(Store(OUT, (as_index(I), as_index(J)), value)) == "out[i, j] = select(0 <= j - 1, a[i, j - 1], 0.0)"
