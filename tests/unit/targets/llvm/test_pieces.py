"""Vectors that are read in a few pieces."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.expr import Load, all_of, call, const, select, within
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, Store, seq
from mlc.ir.types import f32, i64, u8
from mlc.targets.llvm.pieces import pieces_of, settled
from tests.unit.targets.llvm.test_values import check

LANE = Var("lane", 0, 15)
I = Var("i", 0, 4)
RNG = np.random.default_rng(5)


def test_rows_that_are_interleaved_are_read_row_by_row() -> None:
    """The copy of three rows of bytes as a block of four channels, of which the last is padding."""
    x, y = Buffer("x", (3, 20), u8), Buffer("y", (5, 16), u8)
    row, place = as_index(LANE) % 4, as_index(I) * 4 + as_index(LANE) // 4
    value = select(within(row, 0, 3), Load(x, (row, place)), const(9, u8))
    body = Store(y, (as_index(I), as_index(LANE)), value, LANE)
    fn = Function("kernel", (x, y), 1, For(I, 5, ForKind.SERIAL, body))
    text = check(fn, np.arange(60, dtype=np.uint8).reshape(3, 20))
    assert text.count("load <4 x i8>") == 3
    assert "gather" not in text


def test_which_pieces() -> None:
    x, all_of_it = Buffer("x", (2000,), u8), range(16)
    two = pieces_of(x, as_index(LANE) // 8 * 100 + as_index(LANE) % 8 + as_index(I), LANE, all_of_it)
    assert two is not None
    assert [((p.begin - as_index(I)).const, p.size, p.lanes[0]) for p in two] == [(0, 8, (0, 0)), (100, 8, (8, 0))]
    assert pieces_of(x, as_index(LANE) * 100, LANE, all_of_it) is None  # too many
    assert pieces_of(x, (as_index(LANE) + as_index(I)) // 8, LANE, all_of_it) is None  # not always the same
    assert pieces_of(x, as_index(LANE), LANE, ()) == []
    eight = as_index(LANE) // 2 * 100 + as_index(LANE) % 2
    assert len(pieces_of(x, eight, LANE, all_of_it) or ()) == 8  # no processor gathers bytes
    assert pieces_of(Buffer("y", (2000,), f32), eight, LANE, all_of_it) is None


def test_pieces_are_read_with_neighbours_inside_the_buffer() -> None:
    five = as_index(LANE) // 5 * 100 + as_index(LANE) % 5
    found = pieces_of(Buffer("x", (305,), u8), five, LANE, range(15))
    assert found is not None
    assert [(p.begin.const, p.size, p.lanes[0]) for p in found] == [(0, 8, (0, 0)), (100, 8, (5, 0)), (200, 8, (10, 0))]
    found = pieces_of(Buffer("x", (205,), u8), five, LANE, range(15))
    assert found is not None
    assert (found[2].begin.const, found[2].lanes[0]) == (197, (10, 3))
    assert pieces_of(Buffer("x", (5,), u8), as_index(LANE) % 5, LANE, range(5)) is None  # seven would leave it


@pytest.mark.parametrize(("rows", "columns"), [(9, 8), (21, 8), (27, 6), (40, 2)])
def test_long_vectors_are_written_register_by_register(rows: int, columns: int) -> None:
    """Rows side by side: all vectors pick their lanes from the same registers."""
    lane = Var("lane", 0, rows * columns - 1)
    x, y = Buffer("x", (rows, 100), u8), Buffer("y", (3, rows * columns), u8)
    own = Buffer("own", y.shape, u8, "local")
    i, j = Var("i", 0, 2), Var("j", 0, 2)
    at = as_index(i) * columns + as_index(lane) // rows
    fill = Store(own, (as_index(i), as_index(lane)), Load(x, (as_index(lane) % rows, at)), lane)
    copy = Store(y, (as_index(j), as_index(lane)), Load(own, (as_index(j), as_index(lane))), lane)
    loops = [For(k, 3, ForKind.SERIAL, s) for k, s in ((i, fill), (j, copy))]
    fn = Function("kernel", (x, y), 1, Allocate(own, seq(loops)))
    text = check(fn, RNG.integers(0, 256, x.shape, np.uint8))
    assert text.count(f"load <{1 << (columns - 1).bit_length()} x i8>") == rows
    assert "gather" not in text


def test_vectors_longer_than_the_registers_of_their_pieces() -> None:
    """Indices of 64 bits for 16 numbers of 32: each register holds a piece, and is half as long as the vector."""
    x, y = Buffer("x", (4, 9, 2), i64), Buffer("y", (5, 16), i64)
    value = Load(x, (as_index(LANE) % 4, as_index(LANE) // 4 + as_index(I), as_index(1)))
    fn = Function("kernel", (x, y), 1, For(I, 5, ForKind.SERIAL, Store(y, (as_index(I), as_index(LANE)), value, LANE)))
    text = check(fn, np.arange(72, dtype=np.int64).reshape(4, 9, 2))
    assert "gather" not in text


def test_conditions_that_are_settled() -> None:
    inside = within(as_index(LANE), 0, 8)
    assert [settled(inside, LANE, k) for k in (7, 8)] == [True, False]
    assert [settled(call("not", inside), LANE, k) for k in (7, 8)] == [False, True]
    loose = within(as_index(LANE) + as_index(I), 0, 8)
    assert [settled(loose, LANE, k) for k in (3, 4, 8)] == [True, None, False]
    both = all_of([inside, loose])
    assert [settled(both, LANE, k) for k in (3, 4, 8)] == [True, None, False]
