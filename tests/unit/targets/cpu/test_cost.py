"""The cost model knows what was measured: it ranks tiles as the machines did."""

from __future__ import annotations

import pytest

from mlc.targets.cpu.cost import Product, Tile, all_tiles, balance, bandwidth, best_tile, fits_registers, step_cycles
from mlc.targets.cpu.record import Cpu
from mlc.targets.x86.record import record_for

SERVER = record_for("skylake-avx512")
ZEN3 = record_for("znver3")
HASWELL = record_for("haswell")
SSE = record_for("x86-64")


def efficiency(product: Product, tile: tuple[int, int], target: Cpu) -> float:
    """Part of the multiply-add peak."""
    ideal = product.extent * product.columns * product.depth * product.repeats / target.fmas / product.threads
    return ideal / product.cycles(Tile(*tile), target)


@pytest.mark.parametrize(
    "target, fits, spills",
    [
        (SERVER, [(14, 2), (9, 3), (6, 4), (30, 1), (31, 1)], [(7, 4), (15, 2), (32, 1)]),
        (ZEN3, [(6, 2), (4, 3), (14, 1)], [(3, 4), (7, 2), (5, 3), (15, 1)]),
    ],
)
def test_tiles_that_fit_the_registers(target: Cpu, fits: list[tuple[int, int]], spills: list[tuple[int, int]]) -> None:
    assert all(fits_registers(*t, target) for t in fits)
    assert not any(fits_registers(*t, target) for t in spills)
    for rows, vectors in spills:
        assert step_cycles(rows, vectors, target) > 2 * rows * vectors / target.fmas


def test_steps_are_bound_by_multiplications_loads_or_latency() -> None:
    assert step_cycles(6, 2, ZEN3) == 6  # 12 multiply-adds, 2 a cycle
    assert 6 < step_cycles(12, 1, ZEN3) < 7.5  # 13 loads, 2 a cycle
    assert step_cycles(4, 1, ZEN3) == pytest.approx(4.6)  # 4 sums wait for one another
    assert step_cycles(4, 1, HASWELL) > step_cycles(4, 1, ZEN3)  # a cycle longer
    assert step_cycles(28, 1, SERVER) > 28 / 2
    assert step_cycles(14, 2, SERVER) == 14


def test_small_tiles_and_those_that_spill_lose_as_measured() -> None:
    # GFLOP/s of 97 measured on Zen 3 for 240 x 240 x 256: 4x3 96, 5x2 94, 13x1 81, 8x1 80, 6x1 72, 3x4 41, 5x3 31
    p = Product(240, 30, 256)
    order = [(4, 3), (5, 2), (13, 1), (8, 1), (6, 1), (3, 4)]
    found = [efficiency(p, t, ZEN3) for t in order]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.9
    assert found[4] < 0.75
    assert found[5] < 0.5


@pytest.mark.parametrize("m, n, k", [(512, 1024, 1024), (512, 4096, 1024), (128, 768, 768), (35, 2608, 650)])
@pytest.mark.parametrize("target", [SERVER, ZEN3, HASWELL, SSE], ids=["server", "zen3", "haswell", "sse"])
def test_matrix_products_get_tiles_close_to_the_peak(target: Cpu, m: int, n: int, k: int) -> None:
    p = Product(m, n // target.lanes, k)
    tile = best_tile(p, target)
    assert fits_registers(*tile, target)
    assert efficiency(p, tile, target) > 0.85
    assert tile.vectors > 1


def test_a_tile_of_seven_on_sixteen_pays_for_its_ragged_end() -> None:
    p = Product(16, 8, 1024)
    assert efficiency(p, (7, 2), SERVER) < efficiency(p, (8, 2), SERVER)
    assert best_tile(p, SERVER, [Tile(7, 2), Tile(8, 2), Tile(12, 2)]).rows == 8


def test_tiles_follow_narrow_extents() -> None:
    # 7 pixels, 64 channels: two vectors of 16 channels each, or 4 pixels and 3 vectors of 8
    assert best_tile(Product(7, 32, 4608, repeats=7), SERVER) == (7, 2)
    assert best_tile(Product(7, 64, 4608, repeats=7), ZEN3) == (4, 3)


def test_a_single_row_is_bound_by_bandwidth() -> None:
    for target in (SERVER, ZEN3):
        p = Product(1, 1024 // target.lanes, 1024)
        one, many = Tile(1, 1), best_tile(p, target)
        assert many.vectors >= 4
        assert p.cycles(many, target) < p.cycles(one, target)
        assert p.cycles(many, target) >= 1024 * 1024 * 4 / target.l2_bandwidth


def test_bandwidth_falls_from_level_to_level() -> None:
    for target in (SERVER, ZEN3, HASWELL, SSE):
        sizes = (8 << 10, 128 << 10, 4 << 20, 256 << 20)
        found = [bandwidth(n, target) for n in sizes]
        assert found == sorted(found, reverse=True)
        assert found[1:] == [target.l2_bandwidth, target.l3_bandwidth, target.memory_bandwidth]


def test_threads_wait_for_the_slowest() -> None:
    assert balance(8, 2) == 1
    assert balance(9, 2) == pytest.approx(10 / 9)
    assert balance(1, 4) == 4
    p = Product(6, 2, 256)
    assert Product(6, 2, 256, threads=2).cycles(Tile(3, 2), ZEN3) < p.cycles(Tile(3, 2), ZEN3)
    assert Product(6, 2, 256, threads=2).cycles(Tile(6, 2), ZEN3) == pytest.approx(p.cycles(Tile(6, 2), ZEN3))


def test_choice_can_be_limited() -> None:
    p = Product(14, 8, 512)
    assert best_tile(p, ZEN3, [Tile(2, 2), Tile(1, 2)]) == (2, 2)
    assert all(fits_registers(*t, ZEN3) for t in all_tiles(p, ZEN3))
