"""Sets of places against sets of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlc.vdla.check.places import Block, gathered, granules, nth, read, run, write
from tests.fuzz import examples


def members(places) -> list[int]:
    size = read(np.zeros(2000, np.int32), places).size
    return [nth(places, position) for position in range(size)]


@examples(300)
@given(st.integers(0, 99), st.integers(1, 5), st.integers(0, 99), st.integers(1, 99), st.sampled_from([4, 16]))
def test_granules_are_those_of_every_byte(start: int, rows: int, pitch: int, width: int, size: int) -> None:
    places = granules(start, rows, pitch, width, size)
    expected = {(start + r * pitch + b) // size for r in range(rows) for b in range(width)}
    assert set(members(places)) == expected
    state = np.zeros(2000, np.int32)
    write(state, places, 7)
    assert set(np.flatnonzero(state)) == expected


def test_rows_of_whole_granules_are_a_block_and_neighbours_a_run() -> None:
    assert granules(32, 3, 64, 32, 16) == Block(2, 3, 4, 2)
    assert granules(32, 3, 32, 32, 16) == run(2, 6)
    assert gathered(np.array([5, 4, 6, 4])) == run(4, 3)
    assert members(gathered(np.array([9, 4, 6]))) == [4, 6, 9]
