"""Scripts for figures of papers, run on what is small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.papers import tvm_fig4, tvm_fig10, tvm_fig16, tvm_fig17


def test_command_line_writes_table_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_fig4, "WORKLOADS", {"cell": lambda: tvm_fig4.lstm_cell(hidden=8)})
    tvm_fig4.main(["--rounds", "2", "--seconds", "0.001", "--out", str(tmp_path)])
    (result,) = json.loads((tmp_path / "tvm_fig4.json").read_text())["results"]
    assert result["error"] < 1e-5
    assert result["kernels"]["mlc"] < result["kernels"]["mlc[disabled_passes=gates+fuse]"]
    assert set(result["speedup"]) == set(tvm_fig4.UNFUSED)


def test_fig10_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_fig10, "CONVOLUTIONS", [("C1",), ("C2", 8, 32, 48, 3, 1), ("C3", 8, 32, 48, 1, 2)])
    tvm_fig10.main(["--layers", "C2", "C3", "--plans", "2", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "tvm_fig10.json").read_text())
    found = {(r["layer"], r["way"]): r for r in document["results"]}
    assert set(found) == {(layer, way) for layer in ("C2", "C3") for way in tvm_fig10.WAYS}
    for r in found.values():
        assert 0 < r["util"] <= r["eta"] <= 1
    assert found["C2", "no hiding"]["cycles"] > found["C2", "loads ahead"]["cycles"]
    assert found["C2", "full"]["untuned"] >= found["C2", "full"]["cycles"]
    text = (tmp_path / "tvm_fig10.md").read_text()
    assert "DRAM" in text
    assert "| C3 |" in text


def test_fig16_says_what_its_numbers_are(tmp_path: Path) -> None:
    tvm_fig16.main(["--networks", "dqn", "--small", "--out", str(tmp_path)])
    text = (tmp_path / "tvm_fig16.md").read_text()
    assert "cycles that the cost model expects of one core (arm -mcpu=cortex-a53), at 1.2 GHz" in text
    found = json.loads((tmp_path / "tvm_fig16.json").read_text())["results"]["dqn"]
    ours, plain = (found[side] for side in tvm_fig16.SIDES)
    assert 0 < ours["cycles"] < plain["cycles"]
    assert ours["milliseconds"] == pytest.approx(ours["cycles"] / 1.2e6)


def test_fig17_of_a_processor_that_is_here_and_one_that_is_not(tmp_path: Path) -> None:
    for target, measured in (("arm -mcpu=cortex-a53", False), ("x86", True)):
        tvm_fig17.main(["--operators", "D9", "--target", target, "--out", str(tmp_path)])
        ours = json.loads((tmp_path / "tvm_fig17.json").read_text())["results"]["D9"]["mlc"]
        assert (ours["cycles"] is None) == measured
        assert ours["milliseconds"] > 0
        text = (tmp_path / "tvm_fig17.md").read_text()
        assert ("- numbers: times on one core\n" in text) == measured
