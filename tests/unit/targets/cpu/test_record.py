"""Records of processors: element sizes, and what the machine at hand reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlc.ir.types import DType, f16, f32, f64, i8
from mlc.targets.cpu.record import Cpu, with_this_machine

PLAIN = Cpu("generic", (), 4, 32)


@pytest.mark.parametrize("dtype, lanes", [(i8, 4), (f16, 4), (f32, 4), (f64, 2)])
def test_narrow_elements_take_the_lanes_of_the_narrowest_that_fill_vectors(dtype: DType, lanes: int) -> None:
    assert PLAIN.lanes_of(dtype) == lanes


def test_processors_that_compute_with_narrow_elements_have_more_lanes_for_them() -> None:
    assert Cpu("generic", (), 4, 32, elements=(2, 4, 8)).lanes_of(f16) == 8


def cache(folder: Path, index: int, level: str, kind: str, size: str) -> None:
    place = folder / "cpu0" / "cache" / f"index{index}"
    place.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("size", size)):
        (place / name).write_text(text + "\n")


def test_cache_sizes_of_this_machine_are_read(tmp_path: Path) -> None:
    cache(tmp_path, 0, "1", "Data", "48K")
    cache(tmp_path, 1, "1", "Instruction", "64K")
    cache(tmp_path, 2, "2", "Unified", "1M")
    cache(tmp_path, 3, "3", "Unified", "24576K")
    found = with_this_machine(PLAIN, tmp_path)
    assert (found.l1, found.l2, found.l3) == (48 << 10, 1 << 20, 24 << 20)
    assert found.cores == os.cpu_count()


def test_caches_that_are_not_reported_keep_their_defaults(tmp_path: Path) -> None:
    assert with_this_machine(PLAIN, tmp_path).l2 == PLAIN.l2
    cache(tmp_path, 0, "2", "Unified", "0K")
    (tmp_path / "cpu0" / "cache" / "index1").mkdir()
    assert with_this_machine(PLAIN, tmp_path).l2 == PLAIN.l2
