"""Target records: vectors, caches and ports of named processors."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from mlc.ir.types import bf16, f32, i8, u8
from mlc.targets.base import get_target
from mlc.targets.x86 import record, target
from mlc.targets.x86.features import needed_features
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


def test_matrices_multiply_bytes_and_bf16_where_there_is_amx() -> None:
    units = record_for("sapphirerapids").matrices
    assert [(unit.types, unit.terms, unit.products_per_cycle) for unit in units] == [
        ((u8, i8), 64, 1024),
        ((bf16, bf16), 32, 512),
    ]
    assert not record_for("sapphirerapids", ("-amx-tile",)).matrices
    assert not record_for("znver5").matrices
    # as many as vectors do, where matrices do not
    assert get_target("x86 -mcpu=sapphirerapids").most_products(4) == 1024 / 32
    assert get_target("x86 -mcpu=znver5").most_products(4) == 4


def test_matrices_that_linux_does_not_give_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    host = {**dict.fromkeys(known_features("sapphirerapids"), True), "sse4a": False}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: host)
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "sapphirerapids")
    for given in (True, False):
        monkeypatch.setattr(target, "has_matrices", lambda given=given: given)
        chosen = target.X86Target.from_options({})
        assert bool(chosen.record.matrices) == given
        assert ("amx-tile" in needed_features(chosen.record)) == given
