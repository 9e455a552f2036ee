"""Vectors that are read in a few pieces."""

from __future__ import annotations

import numpy as np

from mlc.ir.expr import Load, all_of, call, const, select, within
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, Store
from mlc.ir.types import u8
from mlc.targets.llvm.pieces import pieces_of, settled
from tests.unit.targets.llvm.test_values import check

LANE = Var("lane", 0, 15)
I = Var("i", 0, 4)


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
    two = pieces_of(as_index(LANE) // 8 * 100 + as_index(LANE) % 8 + as_index(I), LANE, [True] * 16)
    assert two is not None
    assert [((p.begin - as_index(I)).const, p.size, p.lanes[0]) for p in two] == [(0, 8, (0, 0)), (100, 8, (8, 0))]
    assert pieces_of(as_index(LANE) * 100, LANE, [True] * 16) is None  # too many
    assert pieces_of((as_index(LANE) + as_index(I)) // 8, LANE, [True] * 16) is None  # not always the same
    assert pieces_of(as_index(LANE) // 5 * 100 + as_index(LANE) % 5, LANE, [True] * 16) is None  # of five elements
    assert pieces_of(as_index(LANE), LANE, [False] * 16) == []


def test_conditions_that_are_settled() -> None:
    inside = within(as_index(LANE), 0, 8)
    assert [settled(inside, LANE, k) for k in (7, 8)] == [True, False]
    assert [settled(call("not", inside), LANE, k) for k in (7, 8)] == [False, True]
    loose = within(as_index(LANE) + as_index(I), 0, 8)
    assert [settled(loose, LANE, k) for k in (3, 4, 8)] == [True, None, False]
    both = all_of([inside, loose])
    assert [settled(both, LANE, k) for k in (3, 4, 8)] == [True, None, False]
