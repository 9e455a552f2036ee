"""The choice of a product's tile: what fits the device, and what keeps it busy."""

from __future__ import annotations

import pytest

from mlc.ir.types import f32
from mlc.targets.cuda.arch import DEVICES as GPUS
from mlc.targets.gpu.cost import Product, Tile, best_tile, fitted, moving, refusal, seconds, shared_bytes, tiles
from mlc.targets.gpu.schedules.parts import best_parts
from mlc.targets.gpu.schedules.product import product_seconds
from mlc.targets.gpu.schedules.window import Work, pixels
from mlc.targets.gpu.tensor_cores import MMAS, best_fragments
from mlc.targets.opencl.devices import DEVICES

GENERIC, MALI = DEVICES["generic"], DEVICES["mali"]
LARGE = Product(1, 1024, 1024, 1024, 4)


@pytest.mark.parametrize("p", [LARGE, Product(1, 1, 1000, 512, 4), Product(12, 7, 5, 3, 4), Product(1, 1, 1, 1, 8)])
@pytest.mark.parametrize("device", DEVICES)
def test_every_tile_fits_device_and_product(p: Product, device: str) -> None:
    target = DEVICES[device]
    found = list(tiles(p, target, shared=target.shared_bytes > 0))
    assert found
    for t in found:
        assert t == fitted(t, p)
        assert t.ty * t.tx <= target.max_threads
        assert not target.shared_bytes or shared_bytes(t, p) <= target.shared_bytes
        assert (t.rows, t.columns) <= (p.m, p.n)


def test_a_large_product_is_made_in_large_tiles() -> None:
    best = best_tile(LARGE, GENERIC, shared=True)
    assert best.rows * best.columns >= 16
    assert best.ty * best.tx >= 2 * GENERIC.warp


def test_a_small_product_is_shared_out() -> None:
    small = Product(1, 64, 64, 64, 4)
    best = best_tile(small, GENERIC, shared=True)
    assert (64 // best.high) * (64 // best.wide) >= GENERIC.units


def test_neighbours_of_long_runs_meet_in_banks() -> None:
    whole, strips = (Tile(8, 8, 8, 16, 8, 2, 1, n) for n in (1, 2))
    assert seconds(strips, LARGE, GENERIC, shared=True) < seconds(whole, LARGE, GENERIC, shared=True)


def test_blocks_have_registers_for_all_of_their_threads() -> None:
    tile = Tile(4, 8, 32, 32, 4)
    assert refusal(tile, LARGE, DEVICES["generic"], shared=True).startswith("1024 threads")
    assert refusal(tile, LARGE, GPUS["a100"], shared=True) == ""
    assert refusal(Tile(8, 8, 32, 32, 4), LARGE, GPUS["a100"], shared=True) == (
        "about 96 registers of a thread, there are 64"
    )


def test_all_tiles_are_compared_as_each_is() -> None:
    for p in (LARGE, Product(3, 20, 196, 40, 4)):
        best = best_tile(p, GENERIC, shared=True)
        each = min(tiles(p, GENERIC, shared=True), key=lambda t: seconds(t, p, GENERIC, shared=True))
        assert seconds(best, p, GENERIC, shared=True) <= seconds(each, p, GENERIC, shared=True)


def test_few_results_are_added_up_in_parts() -> None:
    a100 = GPUS["a100"]

    def parts(p: Product) -> int:
        return best_parts(p, p.k, a100, lambda p: product_seconds(p, f32, f32, a100))[0]

    assert parts(Product(1, 1, 1000, 2048, 4)) > 4
    assert parts(Product(1, 512, 49, 4608, 4)) > 4
    assert parts(LARGE) == 1
    assert parts(Product(1, 1, 10, 8, 4)) == 1


def test_long_sums_of_some_results_are_added_up_in_parts() -> None:
    """MM3: 512 by 1024 results are 32 blocks of 128 by 128, for 132 units; in four parts they are 128."""
    h200 = GPUS["h200"]

    def parts(p: Product) -> int:
        return best_parts(p, p.k, h200, lambda p: product_seconds(p, f32, f32, h200))[0]

    assert parts(Product(1, 512, 1024, 4096, 4)) == 4
    assert parts(Product(1, 512, 4096, 1024, 4)) == 1


def test_few_blocks_do_not_have_all_of_the_bandwidth() -> None:
    h200 = GPUS["h200"]
    seconds = [moving(1e9, blocks, h200) for blocks in (25, 66, 132, 1000)]
    assert seconds[0] > 2 * seconds[1]
    assert seconds[1:] == [1e9 / (h200.gbytes * 1e9)] * 3
    mma = MMAS["f16", "f16"]
    tile = best_fragments((1, 3136, 144, 24), h200, mma)
    assert -(-3136 // tile.high) * -(-144 // tile.wide) >= 66


def test_more_work_takes_longer() -> None:
    tile = Tile(4, 4, 8, 8, 8)
    times = [seconds(tile, Product(1, n, n, n, 4), GENERIC, shared=True) for n in (128, 512, 2048)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    "tile, reason",
    [
        (Tile(1, 1, 32, 32, 4), "1024 threads of a block, 256 are the most"),
        (Tile(8, 8, 16, 16, 64), "67584 bytes of shared memory, there are 32768"),
        (Tile(8, 8, 4, 4, 4), "about 96 registers of a thread, there are 64"),
        (Tile(4, 4, 8, 8, 8), ""),
    ],
)
def test_refusals_say_what_is_missing(tile: Tile, reason: str) -> None:
    assert refusal(tile, LARGE, GENERIC, shared=True) == reason
    assert not refusal(Tile(4, 4, 8, 8, 8), LARGE, MALI, shared=False)


def test_many_pixels_are_made_several_a_thread() -> None:
    many = Work(512, (56, 56), (3, 3), (1, 1), (1, 1))
    rows, columns = min(pixels(many, GENERIC), key=lambda rc: many.seconds(rc[0], rc[1], GENERIC))
    assert rows * columns > 1
    assert many.seconds(rows, columns, GENERIC) < many.seconds(1, 1, GENERIC)


def test_few_pixels_are_shared_out() -> None:
    few = Work(16, (7, 7), (3, 3), (1, 1), (1, 1))
    assert min(pixels(few, GENERIC), key=lambda rc: few.seconds(rc[0], rc[1], GENERIC)) == (1, 1)


def test_windows_of_a_thread_fit_its_registers() -> None:
    large = Work(16, (56, 56), (9, 9), (2, 2), (1, 1))
    assert all(large.patch(rc[0], rc[1]) < GENERIC.registers for rc in pixels(large, GENERIC))
    assert not list(pixels(large, GENERIC))
