"""The benchmark of training steps: what it keeps and shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import __main__ as training
from benchmarks.training import case


def given(**times: float) -> dict[str, Any]:
    return {"times": {k.replace("_", "."): v for k, v in times.items()}, "agrees": True, "failures": {}}


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(folder: Path, key: str, *, prepare: bool) -> dict[str, object]:
        asked.append(key)
        if "lltm" in key:
            raise KeyboardInterrupt
        if key.startswith("inference"):
            return {**given(mlc=1.0), "agrees": False}
        return given(mlc=1.0, eager=4.0, torch_compile=2.0 * int(key.split()[2]))

    monkeypatch.setattr(training, "run", run)
    out = tmp_path / "r.json"
    common = ["--batch", "1", "4", "--threads", "1", "--out", str(out)]
    with pytest.raises(KeyboardInterrupt):
        training.main(["mi_lstm", "lltm", *common, "--kind", "step"])
    assert list(json.loads(out.read_text())["cases"]) == ["step mi_lstm 1 1"]
    training.main(["mi_lstm", *common])
    assert asked[2:] == ["inference mi_lstm 1 1", "step mi_lstm 4 1", "inference mi_lstm 4 1"]
    text = out.with_suffix(".md").read_text()
    assert "| mi_lstm | 4 | 1 | 1.000 | 4.000 | 8.000 | 4.00 | 8.00 | yes |" in text
    assert "| step, novel networks, batch 1 to 16 | torch.compile | 2 | 4.00 | 2.00 |" in text
    assert "| mi_lstm | 1 | 1 | 1.000 | - | - | - | - | **no** |" in text


def test_preparing_keeps_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "run", lambda folder, key, *, prepare: {"prepared": prepare})
    training.main(["lltm", "--prepare", "--out", str(tmp_path / "r.json")])
    assert not list(tmp_path.iterdir())


def test_a_case_that_dies_is_told(tmp_path: Path) -> None:
    found = training.run(tmp_path, "step nothing 1 1", prepare=False)
    assert found["failures"] == {"all": "KeyError: 'nothing'"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", training.KINDS)
def test_a_network_is_measured(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(case, "SECONDS", 0.0)
    found = case.measured(tmp_path, kind, "lltm", 2, 1)
    assert found["agrees"]
    assert set(found["times"]) == {"mlc", "eager", "torch.compile"}
    assert not found["failures"]
