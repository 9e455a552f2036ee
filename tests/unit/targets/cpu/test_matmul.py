"""Register tiles of matrix products."""

from __future__ import annotations

import pytest

from mlc.targets.cpu.schedules.matmul import tile_of
from mlc.targets.x86.record import record_for


@pytest.mark.parametrize("cpu, n", [("skylake-avx512", 64), ("skylake-avx512", 33), ("haswell", 24)])
def test_an_operand_that_comes_from_memory_is_read_by_one_panel_of_columns(cpu: str, n: int) -> None:
    target = record_for(cpu)
    tile = tile_of(128, n, 128, target, far=True)
    assert tile.rows > 1
    assert tile.vectors * target.lanes >= n


def test_columns_that_registers_cannot_hold_leave_the_tile_as_it_is() -> None:
    target = record_for("haswell")
    assert tile_of(128, 512, 128, target, far=True) == tile_of(128, 512, 128, target)
