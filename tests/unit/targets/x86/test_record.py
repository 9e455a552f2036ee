"""Target records: vectors, caches and ports of named processors, and of the machine at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlc.targets.x86 import record
from mlc.targets.x86.record import record_for, with_this_machine


@pytest.mark.parametrize("cpu, lanes, registers", [("skylake-avx512", 16, 32), ("haswell", 8, 16), ("x86-64", 4, 16)])
def test_record_knows_vectors(cpu: str, lanes: int, registers: int) -> None:
    found = record_for(cpu)
    assert (found.lanes, found.registers) == (lanes, registers)


@pytest.mark.parametrize(
    "cpu, l2, fmas",
    [("skylake-avx512", 1 << 20, 2), ("znver3", 512 << 10, 2), ("haswell", 256 << 10, 2), ("x86-64", 256 << 10, 1)],
)
def test_record_knows_caches_and_ports(cpu: str, l2: int, fmas: int) -> None:
    found = record_for(cpu)
    assert (found.l2, found.fmas) == (l2, fmas)
    assert found.l1 < found.l2 < found.l3
    assert found.l2_bandwidth > found.l3_bandwidth > found.memory_bandwidth


def test_facts_are_about_processors_that_are_known() -> None:
    assert set(record._FACTS) <= {*record._AVX512, *record._AVX2, *record._SSE}


def test_unknown_processors_with_known_vectors_have_a_record() -> None:
    assert record_for("futuristic", ("+avx512f",)).lanes == 16
    assert record_for("futuristic", ("+avx2",)).lanes == 8


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
    found = with_this_machine(record_for("znver3"), tmp_path)
    assert (found.l1, found.l2, found.l3) == (48 << 10, 1 << 20, 24 << 20)
    assert found.cores == os.cpu_count()


def test_caches_that_are_not_reported_keep_their_defaults(tmp_path: Path) -> None:
    plain = record_for("znver3")
    assert with_this_machine(plain, tmp_path).l2 == plain.l2
    cache(tmp_path, 0, "2", "Unified", "0K")
    (tmp_path / "cpu0" / "cache" / "index1").mkdir()
    assert with_this_machine(plain, tmp_path).l2 == plain.l2
