"""Memory of the device: places, growth, and that nothing reaches beyond it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.vdla.sim.dram import Dram


def test_places_are_aligned_apart_and_zero() -> None:
    dram = Dram()
    first, second = dram.alloc(1), dram.alloc(300, alignment=1024)
    assert (first, second) == (0, 1024)
    assert dram.room(second) == 512
    dram.write(second, b"\1" * 300)
    dram.free(second)
    assert dram.alloc(300) == 256
    assert not dram.read(256, 512).any()


def test_places_are_zero_whoever_wrote_there() -> None:
    dram = Dram()
    dram.write(1000, b"\1" * 100)  # where nothing is allocated
    assert dram.read(1000, 100).all()
    dram.rows(2000, 2, 100, 5000, (), np.uint8)[:] = 1
    assert not dram.read(dram.alloc(1 << 20), 1 << 20).any()
    # Rows that were handed out may be written later.
    rows = dram.rows(1 << 18, 1, 8, 8, (), np.uint8)
    dram.free(0)
    rows[:] = 1
    assert not dram.read(dram.alloc(1 << 20), 1 << 20).any()


def test_freed_neighbours_become_one_hole() -> None:
    dram = Dram()
    places = [dram.alloc(256) for _ in range(4)]
    for place in (places[0], places[2], places[1]):
        dram.free(place)
    assert dram.alloc(768) == 0
    assert dram.alloc(256) == 1024


def test_random_places_never_overlap() -> None:
    rng = np.random.default_rng(0)
    dram = Dram()
    live: dict[int, int] = {}
    for _ in range(500):
        if live and rng.integers(2):
            dram.free(place := int(rng.choice(list(live))))
            del live[place]
        else:
            size = int(rng.integers(1, 5000))
            place = dram.alloc(size, int(rng.choice([1, 256, 512, 4096])))
            live[place] = dram.room(place)
            assert live[place] >= size
        spans = sorted(live.items())
        assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))
    for place in live:
        dram.free(place)
    assert dram.alloc(1) == 0


def test_a_place_that_something_stored_into_is_cleared_when_it_is_given_out() -> None:
    dram = Dram()
    dram.rows(1024, 2, 4, 8, (16,), np.int8)[:] = 7  # as a store without a buffer does
    dram.alloc(1 << 21)
    assert not dram.read(0, 1 << 21).any()
    huge = dram.alloc(3 << 30)  # takes nothing before it is touched
    dram.write(huge + (3 << 30) - 4, b"abcd")
    assert dram.read(huge, 4096).max() == 0


def test_memory_grows_and_keeps_its_content() -> None:
    dram = Dram()
    place = dram.alloc(256)
    dram.write(place, np.arange(64, dtype=np.int32))
    dram.alloc(1 << 22)
    np.testing.assert_array_equal(dram.read(place, 256).view(np.int32), np.arange(64))
    dram.rows(1 << 21, 1, 1, 1, (), np.uint8)[:] = 7
    dram.alloc(1 << 23)
    assert dram.read(1 << 21, 2).tolist() == [7, 0]


def test_rows_are_views_of_the_memory() -> None:
    dram = Dram()
    dram.alloc(4096)
    rows = dram.rows(2, 3, 4, 5, (2, 2), np.int8)
    rows[1, 2] = [[1, 2], [3, 4]]
    assert dram.read((2 + 5 + 2) * 4, 4).tolist() == [1, 2, 3, 4]
    assert dram.rows(0, 0, 4, 5, (2,), np.int32).shape == (0, 4, 2)
    # Rows may overlap.
    assert dram.rows(0, 3, 4, 1, (), np.uint32).shape == (3, 4)


def test_what_reaches_beyond_the_memory_is_refused() -> None:
    dram = Dram(limit=1 << 20)
    for reach in (lambda: dram.read((1 << 20) - 4, 8), lambda: dram.write(1 << 20, b"1"), lambda: dram.read(-1, 1)):
        with pytest.raises(DeviceError, match="lies outside the 1048576 of the memory"):
            reach()
    assert dram.rows((1 << 18) - 8, 2, 4, 4, (), np.int32).shape == (2, 4)
    with pytest.raises(DeviceError, match="DRAM bytes 1048544 to 1048580 lie outside"):
        dram.rows((1 << 18) - 8, 2, 4, 5, (), np.int32)


def test_a_full_memory_and_wrong_places_are_refused() -> None:
    dram = Dram(limit=1 << 21)
    place = dram.alloc(1 << 20)
    with pytest.raises(DeviceError, match="memory of 2097152 bytes is full"):
        dram.alloc((1 << 20) + 1)
    dram.alloc(1 << 20)
    dram.free(place)
    with pytest.raises(DeviceError, match="nothing was allocated at address 0"):
        dram.free(place)
    assert [dram.room(at) for at in (0, 1 << 20, (1 << 20) + 7, 1 << 21)] == [0, 1 << 20, (1 << 20) - 7, 0]
    with pytest.raises(DeviceError, match="cannot allocate -1 bytes"):
        dram.alloc(-1)
    with pytest.raises(DeviceError, match="cannot align to 300 bytes"):
        dram.alloc(1, 300)
