"""Target records: vectors, caches and ports of named processors."""

from __future__ import annotations

import pytest

from mlc.ir.types import bf16, f32
from mlc.targets.x86 import record
from mlc.targets.x86.record import host_name, known_features, record_for


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


def test_vectors_without_words_have_no_products_of_them() -> None:
    found = record_for("knl")
    assert (found.lanes, [d.types[:2] for d in found.dots]) == (16, [(f32, bf16)])  # which takes vectors of 32 bits


@pytest.mark.parametrize(
    ("cpu", "gain"), [("knl", 1), ("haswell", 1.5), ("skylake-avx512", 1.5), ("alderlake", 4), ("znver4", 4)]
)
def test_what_bytes_gain(cpu: str, gain: float) -> None:
    """Two terms by two instructions, of which one has more units than the other; or four terms by one, or one."""
    assert record_for(cpu).bytes_gain == gain


@pytest.mark.parametrize(
    "named, has, expected",
    [
        ("rocketlake", "sapphirerapids", "sapphirerapids"),  # as a hypervisor may call it
        ("sapphirerapids", "skylake-avx512", "sapphirerapids"),  # it hides some of what there is
        ("graniterapids", "graniterapids", "graniterapids"),
        ("znver4", "znver4", "znver4"),
        ("znver9", "znver5", "znver5"),
        ("generic", "haswell", "haswell"),
        ("generic", "x86-64", "x86-64"),
    ],
)
def test_a_machine_is_named_by_what_it_has(named: str, has: str, expected: str) -> None:
    assert host_name(named, known_features(has)) == expected
