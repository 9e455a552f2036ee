"""The benchmark of training steps: what it keeps and shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.training import __main__ as training


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(name: str, batch: int, threads: int) -> dict[str, object]:
        asked.append((name, batch, threads))
        if name == "lltm":
            raise KeyboardInterrupt
        times = {"mlc": 1.0, "eager": 4.0, "torch.compile": 2.0 * batch}
        return {"step": times, "step agrees": True, "inference": {"mlc": 1.0}, "inference agrees": False}

    monkeypatch.setattr(training, "measured", measured)
    out = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        training.main(["mi_lstm", "lltm", "--batch", "1", "4", "--out", str(out)])
    assert list(json.loads(out.read_text())["cases"]) == ["mi_lstm 1 1"]
    monkeypatch.setattr(training, "NOVEL", ("mi_lstm",))
    training.main(["mi_lstm", "--batch", "1", "4", "--out", str(out)])
    assert asked == [("mi_lstm", 1, 1), ("lltm", 1, 1), ("mi_lstm", 4, 1)]
    text = out.with_suffix(".md").read_text()
    assert "| mi_lstm | 4 | 1 | 1.000 | 4.000 | 8.000 | 4.00 | 8.00 | yes |" in text
    assert "novel networks, torch.compile / mlc: geometric mean 4.00" in text
    assert "| mi_lstm | 1 | 1 | 1.000 | - | - | - | - | **no** |" in text


@pytest.mark.slow
def test_a_network_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(training, "ROUNDS", 1)
    monkeypatch.setattr(training, "SECONDS", 0.0)
    found = training.measured("lltm", 2, 1)
    assert found["step agrees"]
    assert found["inference agrees"]
    assert set(found["step"]) == set(found["inference"]) == {"mlc", "eager", "torch.compile"}
    assert "failures" not in found
