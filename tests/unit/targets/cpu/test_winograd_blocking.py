"""How the x86 target cuts Winograd convolutions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.cpu.cost import Tile
from mlc.targets.cpu.schedules.winograd import Work, blocking, padding, room
from mlc.targets.x86.record import record_for
from mlc.tuning.task import tasks_of
from tests.unit.targets.cpu.operators import convolution

HASWELL, ZEN, SKYLAKE = (record_for(cpu) for cpu in ("haswell", "znver3", "skylake-avx512"))


@pytest.mark.parametrize("target", [HASWELL, ZEN, SKYLAKE], ids=lambda t: t.cpu)
@pytest.mark.parametrize("tiles, slices, window, channels", [(196, 1, 1, 64), (49, 1, 1, 128), (13, 8, 3, 64)])
def test_blocks_are_whole_parts(tiles, slices, window, channels, target) -> None:  # type: ignore[no-untyped-def]
    cut = blocking(Work(tiles, slices, window, channels, channels, 6), target)
    assert tiles % cut.block == 0
    assert slices % cut.slices == 0


def test_few_cores_work_on_blocks_of_their_own() -> None:
    work = Work(196, 1, 1, 64, 64, 6)
    few = blocking(work, replace(ZEN, cores=2))
    assert few.block < work.tiles
    assert work.tiles // few.block % 2 == 0


def test_many_weights_are_read_once() -> None:
    work = Work(16, 1, 1, 256, 256, 6)
    assert blocking(work, ZEN).block == work.tiles


def test_points_a_power_of_two_apart_are_moved_out_of_one_set() -> None:
    tile = Tile(6, 2)
    assert padding((6, 6, 16, 256), tile, ZEN) == 1
    assert padding((6, 6, 196, 64), tile, ZEN) == 1
    assert padding((6, 6, 49, 128), tile, ZEN) == 0


def test_a_product_takes_no_further_row_of_tiles_for_it() -> None:
    assert padding((6, 6, 12, 256), Tile(6, 2), ZEN) == 0


def test_points_of_a_tile_have_sets_of_the_cache_for_themselves() -> None:
    """64 tiles of 16 channels are 4096 bytes, so far apart that all 36 points would share the sets of one."""
    machine = record_for("znver5")
    work = Work(tiles=256, slices=1, window=1, channels=16, filters=16, points=6)
    assert room(36, 64, (1, 16), machine) < 36
    assert room(36, blocking(work, machine).block, (1, 16), machine) == 36


@pytest.mark.parametrize(
    "cpu, channels, size, first",
    [
        ("haswell", 32, 120, "channels"),
        ("haswell", 32, 56, "tiles"),
        ("skylake-avx512", 32, 120, "tiles"),  # 1.8 MB, not twice the second-level cache
        ("skylake-avx512", 32, 224, "channels"),
        ("skylake-avx512", 128, 112, "tiles"),
    ],
)
def test_images_that_lie_far_are_transformed_plane_by_plane(cpu: str, channels: int, size: int, first: str) -> None:
    """Where a vector is a part of a line, or planes are few, one plane after the other is read on, and written on."""
    graph = convolution(1, channels, (size, size), channels, 3, blocked=True)
    *_, task = tasks_of(graph, get_target(f"x86 -mcpu={cpu}"), CompileOptions("m", "test", ""), Observer())
    default = task.space.default
    assert [default[name][0] for name in ("inward", "outward")] == [first, first]  # type: ignore[index]


def test_images_count_among_what_passes_between_phases() -> None:
    """24 MB of points and weights alone would stay in 32 MB."""
    volume = Work(tiles=49, slices=8, window=3, channels=128, filters=128, points=6)
    assert blocking(volume, record_for("znver4")).block < volume.tiles


def test_panels_of_weights_from_memory_leave_room_for_the_next() -> None:
    machine = record_for("znver4")
    volume = Work(tiles=4, slices=2, window=3, channels=512, filters=512, points=6)
    assert blocking(volume, machine).tile.vectors == 1
    assert blocking(replace(volume, tiles=16), machine).tile.vectors == 2  # which have more to compute


@pytest.mark.parametrize("channels, size, steps", [(256, 14, 1), (128, 28, 2), (64, 56, 4)])
def test_weights_that_stream_are_fetched_line_by_line(channels: int, size: int, steps: int) -> None:
    """Of so few rows of tiles as 14 x 14 pixels are, one step brings a line; few weights stay near for all blocks."""
    graph = convolution(1, channels, (size, size), channels, 3, blocked=True)
    *_, task = tasks_of(graph, get_target("x86 -mcpu=znver5"), CompileOptions("m", "test", ""), Observer())
    assert task.space.default["steps"] == steps
