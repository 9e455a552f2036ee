from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.vdla.codegen.memory import Instance, Memory


def placed(memory: Memory, size: int) -> Instance:
    it = Instance("tile", size)
    memory.place(it)
    return it


def test_buffers_go_round_the_memory() -> None:
    memory = Memory("m", 10)
    begins = []
    for _ in range(5):
        it = placed(memory, 3)
        begins.append(it.base)
        memory.release(it)
    assert begins == [0, 3, 6, 0, 3]


def test_what_is_in_use_is_stepped_over() -> None:
    memory = Memory("m", 10)
    kept = placed(memory, 4)
    begins = []
    for _ in range(4):
        it = placed(memory, 3)
        begins.append(it.base)
        memory.release(it)
    assert kept.base == 0
    assert begins == [4, 7, 4, 7]


def test_a_buffer_too_many_is_refused() -> None:
    memory = Memory("m", 10)
    placed(memory, 4)
    placed(memory, 4)
    with pytest.raises(ScheduleError, match="tile takes 3 elements of m, which has 10, of which 8 are in use"):
        placed(memory, 3)
    with pytest.raises(ScheduleError, match="the buffers in m take 11 elements, it has 10"):
        memory.reserve(11)


def test_places_of_its_own_are_taken_in_turn() -> None:
    memory = Memory("m", 10)
    begins = []
    for _ in range(3):
        it = Instance("tile", 4, (2, 6))
        begins.append(memory.place(it))
        memory.release(it)
    assert begins == [2, 6, 2]


def test_reserved_ranges_follow_one_another() -> None:
    memory = Memory("m", 10)
    assert [memory.reserve(6), memory.reserve(4), memory.reserve(6)] == [0, 6, 0]


def test_contents_are_found_again_until_they_are_overwritten() -> None:
    memory = Memory("m", 10)
    first = placed(memory, 4)
    memory.wrote(slice(0, 4), np.array([70, 71, -1, 73]))
    memory.release(first)
    part = Instance("part", 2)
    assert memory.find(part, np.arange(2), np.array([-1, 73]))
    assert part.base == 2
    # only the elements that will be read matter
    sparse = Instance("sparse", 3)
    assert memory.find(sparse, np.array([0, 2]), np.array([71, 73]))
    assert sparse.base == 1
    assert not memory.find(Instance("other", 2), np.arange(2), np.array([73, 74]))
    memory.wrote(slice(3, 4))
    assert not memory.find(Instance("late", 2), np.arange(2), np.array([-1, 73]))


def test_contents_are_forgotten_with_their_source() -> None:
    memory = Memory("m", 10)
    memory.wrote(slice(0, 4), np.array([70, 71, 120, -1]))
    memory.forget(70, 100)
    assert memory.content[:4].tolist() == [-2, -2, 120, -1]


def test_a_place_of_its_own_is_found_if_it_holds_the_same() -> None:
    memory = Memory("m", 10)
    for begin, value in ((2, 5), (6, 9)):
        it = Instance("tile", 1, (2, 6))
        memory.place(it)
        memory.wrote(slice(begin, begin + 1), np.array([value]))
        memory.release(it)
    it = Instance("tile", 1, (2, 6))
    assert memory.find(it, np.arange(1), np.array([9]))
    assert it.base == 6


def test_a_buffer_that_goes_round_a_part_of_the_memory_stays_there() -> None:
    memory = Memory("m", 10)
    memory.wrote(slice(0, 10), np.arange(10))
    begins = []
    for _ in range(4):
        it = Instance("tile", 3, None, (2, 9))
        memory.place(it)
        begins.append(it.base)
        memory.release(it)
    assert begins == [2, 5, 2, 5]
    assert not memory.find(Instance("tile", 2, None, (2, 9)), np.arange(2), np.array([8, 9]))
    assert memory.find(Instance("tile", 2, None, (2, 9)), np.arange(2), np.array([7, 8]))


def test_a_tile_begins_with_the_rows_that_the_one_before_ends_with() -> None:
    memory = Memory("m", 32)
    offsets = np.arange(12)  # four rows of three
    first = Instance("tile", 12)
    memory.wrote(memory.place(first) + offsets, 100 + offsets)
    memory.release(first)
    second = Instance("tile", 12)
    assert memory.overlap(second, 3, offsets, 106 + offsets) == 2
    assert second.base == 6
    assert memory.next == 18
    memory.wrote(6 + offsets, 106 + offsets)
    memory.release(second)
    assert memory.overlap(Instance("tile", 12), 3, offsets, 118 + offsets) == 0  # it shares nothing
    long = np.arange(24)
    assert memory.overlap(Instance("tile", 24), 3, long, 112 + long) == 0  # it would leave the memory


def test_rows_are_not_shared_over_what_is_in_use() -> None:
    memory = Memory("m", 32)
    offsets = np.arange(12)
    first = Instance("tile", 12)
    memory.wrote(memory.place(first) + offsets, 100 + offsets)
    memory.release(first)
    memory.next = 14
    placed(memory, 2)
    memory.next = 12
    assert memory.overlap(Instance("tile", 12), 3, offsets, 106 + offsets) == 0


def test_rows_are_not_shared_where_the_next_tile_would_have_no_room_beside_this_one() -> None:
    memory = Memory("m", 24)  # of two tiles
    offsets = np.arange(12)
    first = Instance("tile", 12)
    memory.wrote(memory.place(first) + offsets, 100 + offsets)
    memory.release(first)
    second = Instance("tile", 12)
    assert memory.overlap(second, 3, offsets, 106 + offsets) == 0
    assert memory.place(second) == 12
