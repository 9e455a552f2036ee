from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlc.vdla.codegen.dma import Block, Dim, blocks, contents
from tests.fuzz import examples


def by_hand(dims: tuple[Dim, ...], memory: np.ndarray, size: int) -> np.ndarray:
    """What a nest of copies leaves in a memory of which nothing (-7) was written."""
    out = np.full(size, -7)
    for at in product(*(range(d.extent) for d in dims)):
        inside = all(d.lo <= k < d.hi for k, d in zip(at, dims, strict=True))
        dram = sum(k * d.dram for k, d in zip(at, dims, strict=True))
        out[sum(k * d.sram for k, d in zip(at, dims, strict=True))] = memory[dram] if inside else 0
    return out


def transferred(moved: tuple[Block, ...], memory: np.ndarray, size: int) -> np.ndarray:
    out = np.full(size, -7)
    for b in moved:
        rows = np.zeros((b.top + b.rows + b.bottom, b.left + b.width + b.right), int)
        assert max(b.top, b.bottom, b.left, b.right) <= 15
        for r in range(b.rows):
            start = b.dram + r * b.stride
            rows[b.top + r, b.left : b.left + b.width] = memory[start : start + b.width]
        out[b.sram : b.sram + rows.size] = rows.reshape(-1)
    return out


@st.composite
def nests(draw: st.DrawFn) -> tuple[Dim, ...]:
    """Nests over a dense or sparse block on the chip, from some part of a larger array, in any order of loops."""
    extents = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dense = draw(st.booleans())
    sram = dram = 1
    dims: list[Dim] = []
    for n in reversed(extents):
        lo = draw(st.integers(0, n)) if draw(st.booleans()) else 0
        hi = draw(st.integers(lo, n)) if draw(st.booleans()) else n
        dims.append(Dim(n, sram, dram, lo, hi))
        sram *= n if dense else n + draw(st.integers(0, 2))
        dram *= n + draw(st.integers(0, 2))
    return tuple(draw(st.permutations(dims)))


@examples(300)
@given(nests(), st.integers(0, 2))
def test_transfers_leave_what_the_nest_does(dims: tuple[Dim, ...], split: int) -> None:
    memory = np.arange(100, 100 + 5**7)
    size = 1 + sum((d.extent - 1) * d.sram for d in dims)
    expected = by_hand(dims, memory, size)
    assert (transferred(blocks(dims, split), memory, size) == expected).all()
    where, numbers = contents(dims)
    assert (where == np.flatnonzero(expected != -7)).all()
    assert (np.where(numbers < 0, 0, memory[numbers]) == expected[where]).all()


def full(extent: int, sram: int, dram: int) -> Dim:
    return Dim(extent, sram, dram, 0, extent)


def test_rows_and_channels_that_follow_one_another_are_one_burst() -> None:
    dims = full(4, 196, 196), full(14, 14, 14), full(14, 1, 1)
    assert blocks(dims) == (Block(0, 0, 1, 784, 784),)


def test_a_border_of_zeros_is_part_of_the_transfer() -> None:
    dims = Dim(16, 16, 14, 1, 15), Dim(16, 1, 1, 1, 15)
    assert blocks(dims) == (Block(0, 14 + 1, 14, 14, 14, 1, 1, 1, 1),)


def test_a_third_dimension_is_enumerated() -> None:
    dims = full(2, 12, 100), full(3, 4, 10), full(4, 1, 1)
    assert blocks(dims) == (Block(0, 0, 3, 4, 10), Block(12, 100, 3, 4, 10))


def test_a_border_around_rows_of_all_channels_is_part_of_the_transfer() -> None:
    rows_then_channels = Dim(6, 4 * 16, 4 * 14, 1, 6), full(4, 16, 14), Dim(16, 1, 1, 1, 15)
    assert blocks(rows_then_channels) == (Block(0, 57, 20, 14, 14, 4, 0, 1, 1),)
    pixels = Dim(6, 4 * 16, 4 * 14, 1, 6), Dim(16, 4, 4, 1, 15), full(4, 1, 1)
    assert blocks(pixels) == (Block(0, 60, 5, 56, 56, 1, 0, 4, 4),)


def test_a_border_of_more_channels_than_its_field_holds_is_split() -> None:
    rows_then_channels = Dim(4, 20 * 4, 20 * 2, 1, 4), full(20, 4, 2), Dim(4, 1, 1, 1, 3)
    assert blocks(rows_then_channels) == (
        Block(0, 0, 0, 20, 20, top=1), Block(20, 41, 60, 2, 2, 15, 0, 1, 1),
    )  # fmt: skip
    pixels = Dim(3, 20 * 4, 20 * 2, 0, 3), Dim(4, 20, 20, 1, 3), full(20, 1, 1)
    assert len(blocks(pixels)) == 3


def test_every_second_column_is_a_transfer_of_columns() -> None:
    assert blocks((full(7, 1, 2),)) == (Block(0, 0, 7, 1, 2),)


def test_wide_borders_are_split() -> None:
    memory = np.arange(1, 200)
    for dims in (
        (Dim(40, 4, 4, 20, 22), full(4, 1, 1)),
        (full(2, 40, 5), Dim(40, 1, 1, 18, 20)),
        (Dim(3, 40, 5, 1, 2), Dim(40, 1, 1, 2, 20)),
    ):
        size = dims[0].extent * dims[0].sram
        assert (transferred(blocks(dims), memory, size) == by_hand(dims, memory, size)).all()
