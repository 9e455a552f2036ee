"""Records that nobody named: those that come with the program, and those in the user's cache."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from mlc.errors import OutputError
from mlc.records import places
from mlc.records.best import Found
from mlc.records.files import read_records
from mlc.records.places import default_files, journal_of, shipped_file, shipped_files
from mlc.records.record import Fingerprint, encode
from mlc.records.shelf import Shelf, keep
from mlc.targets.base import get_target
from tests.unit.records.test_record import DOCUMENT, HERE, record

KEY = "0123456789abcdef"


def on_shelf(tmp_path: Path, *lines: bytes, threads: int = 1) -> Shelf:
    file = tmp_path / "r.jsonl"
    file.write_bytes(b"".join(lines))
    return Shelf([file], HERE, threads)


def test_the_best_of_a_workload_is_found_and_others_are_not_even_read(tmp_path: Path) -> None:
    broken = encode(record(3, workload="fedcba9876543210")).replace(b'"rows":6', b'"rows":7')
    found = on_shelf(tmp_path, encode(record(0, 2e-3)), encode(record(1, 1e-3)), broken, b"rubbish\n")
    assert found.find(KEY, DOCUMENT) == (Found.HIT, record(1, 1e-3))
    assert found.find("fedcba9876543210", DOCUMENT) == (Found.MISS, None)  # damaged
    assert found.find("0" * 16, DOCUMENT) == (Found.MISS, None)


def test_one_thread_and_many_are_different_matters(tmp_path: Path) -> None:
    lines = [encode(record(k, 1e-3, threads=n)) for k, n in enumerate((1, 2, 8))]
    for threads, expected in {1: 1, 2: 2, 3: 2, 6: 8, 64: 8}.items():
        _, found = on_shelf(tmp_path, *lines, threads=threads).find(KEY, DOCUMENT)
        assert found is not None
        assert found.threads == expected
    assert on_shelf(tmp_path, lines[0], threads=2).find(KEY, DOCUMENT)[0] is Found.MISS


def test_other_processors_records_are_not_used(tmp_path: Path) -> None:
    wide = Fingerprint("skylake-avx512", ("avx512f",), 16)
    assert on_shelf(tmp_path, encode(record(0, fingerprint=wide))).find(KEY, DOCUMENT)[0] is Found.MISS


def test_a_file_that_cannot_be_read_is_told_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="mlc"):
        assert Shelf([tmp_path / "gone.jsonl"], HERE, 1).find(KEY, DOCUMENT)[0] is Found.MISS
    assert "gone.jsonl: cannot be read" in caplog.text


def test_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = get_target("x86 -mcpu=haswell")
    monkeypatch.setattr(places, "SHIPPED", tmp_path / "logs")
    cache = tmp_path / "cache"
    assert default_files(target, cache) == []
    journal = journal_of(cache, "my/net", "abcdef0123456789")
    assert journal == cache / "tuning" / "my_net-abcdef01.jsonl"
    best = replace(record(1, 1e-3))
    kept = keep(cache, journal, [record(0, 2e-3), best])
    assert read_records([kept]).records == [best]
    assert default_files(target, cache) == [kept]
    shipped_file(target).parent.mkdir()
    shipped_file(target).touch()
    assert default_files(target, cache) == [shipped_file(target), kept]


def test_records_of_processors_with_other_vectors_or_units_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    haswell, zen2, zen3, zen4, zen5, skylake = (
        get_target(f"x86 -mcpu={cpu}") for cpu in ("haswell", "znver2", "znver3", "znver4", "znver5", "skylake-avx512")
    )
    for target in (zen2, zen3, zen5):
        shipped_file(target).touch()
    names = {t.describe()["cpu"]: [f.name for f in shipped_files(t)] for t in (haswell, zen3, zen4, zen5, skylake)}
    assert names == {
        "haswell": ["x86-256x2-znver2.jsonl", "x86-256x2-znver3.jsonl"],
        "znver3": ["x86-256x2-znver3.jsonl"],
        "znver4": [],
        "znver5": ["x86-512x2-znver5.jsonl"],
        "skylake-avx512": ["x86-512x2-znver5.jsonl"],
    }


def test_a_cache_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(OutputError, match="cannot be made"):
        keep(tmp_path / "cache", Path("j.jsonl"), [])


def test_records_of_a_device_are_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mlc.records.places.SHIPPED", tmp_path)
    pocl, mali = (get_target(f"opencl -device={d}") for d in ("pocl", "mali"))
    shipped_file(pocl).touch()
    assert [f.name for f in shipped_files(pocl)] == ["opencl-pocl.jsonl"]
    assert shipped_files(mali) == []
