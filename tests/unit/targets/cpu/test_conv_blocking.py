"""Blocks of pixels and chunks of channels that convolutions are cut into."""

from __future__ import annotations

import pytest

from mlc.ir import te
from mlc.ir.types import f32
from mlc.targets.cpu.cost import Tile
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_blocking import LEAST_STEPS, Blocking, cut_for_caches
from mlc.targets.x86.record import record_for

TARGETS = [record_for(cpu) for cpu in ("skylake-avx512", "haswell", "x86-64")]


def cut(channels: int, filters: int, size: int, tile: Tile, target: Cpu, taps: int = 1) -> Blocking:
    x, y = (te.placeholder((1, c, size, size), f32, name) for c, name in ((channels, "x"), (filters, "y")))
    return cut_for_caches(x.shape, y.shape, (taps, 1), taps == 1, tile, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("taps", [1, 9])
@pytest.mark.parametrize("channels, filters, size", [(256, 64, 56), (1024, 1024, 7), (1040, 48, 13), (512, 512, 14)])
def test_blocks_and_chunks_are_whole_parts(channels, filters, size, taps, target) -> None:  # type: ignore[no-untyped-def]
    found = cut(channels, filters, size, Tile(6, 2), target, taps)
    assert (size * size if taps == 1 else size) % found.block == 0
    if found.chunk is not None:
        assert channels % found.chunk == 0
        assert found.chunk % target.lanes == 0
        assert found.chunk * taps >= LEAST_STEPS


def test_weights_of_a_chunk_and_the_sums_of_a_block_leave_room_in_the_first_cache() -> None:
    haswell = TARGETS[1]
    for size in (14, 28, 56):
        found = cut(512, 512, size, Tile(6, 2), haswell)
        assert found.chunk is not None
        assert 4 * 2 * haswell.lanes * (found.chunk + found.block) + 4 * 6 * found.chunk < haswell.l1


def test_few_channels_are_summed_up_at_once() -> None:
    assert cut(64, 256, 56, Tile(6, 2), TARGETS[1]).chunk is None


def test_channels_without_a_fitting_part_stay_whole() -> None:
    assert cut(8 * 67, 64, 28, Tile(6, 2), TARGETS[1]).chunk is None


def test_blocks_end_where_tiles_do() -> None:
    # 98 pixels are 16 tiles and two pixels more, for which the sums of a tile wait as long as for six
    assert cut(512, 512, 14, Tile(6, 2), TARGETS[1]).block == 196


def test_inputs_beyond_the_second_cache_are_read_once() -> None:
    assert cut(256, 64, 56, Tile(6, 2), TARGETS[1]).pixels_first


def test_rows_of_a_deep_volume_are_finished_one_after_the_other() -> None:
    """Slices under a window of three are 7 MB: what they share would be gone before the next one is computed."""
    server = TARGETS[0]
    x, y = (1, 192, 10, 56, 56), (1, 192, 8, 56, 56)
    assert cut_for_caches(x, y, (3, 1, 1), False, Tile(8, 3), server) == Blocking(1, True, None, axis=1)
    # a window in one slice shares nothing with the next
    assert cut_for_caches(x, y, (1, 3, 3), False, Tile(8, 3), server).axis == 0
