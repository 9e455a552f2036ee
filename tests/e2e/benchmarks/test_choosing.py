"""The speed of choosing: the table is there for any space that is named."""

from __future__ import annotations

import pytest

from benchmarks import choosing


def test_a_line_a_space(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xgboost")
    monkeypatch.setattr(choosing, "CANDIDATES", 200)
    monkeypatch.setattr(choosing, "KNOWN", 32)
    monkeypatch.setattr(choosing, "BATCH", 8)
    monkeypatch.setattr(choosing, "BATCHES", 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    choosing.main(["MM1", "--target", "x86 -mcpu=haswell"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "candidates a second" in lines[0]
    assert lines[2].startswith("| MM1")
