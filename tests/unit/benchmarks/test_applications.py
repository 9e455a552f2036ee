"""Networks from Keras's file and from ONNX: both are written, compiled, and timed in turns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import applications

os.environ.setdefault("KERAS_BACKEND", "torch")  # what exports
for package in ("torch", "h5py", "keras"):
    pytest.importorskip(package, reason=f"{package} is not installed")


def test_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import keras

    def small(name: str) -> Any:
        assert name == "MobileNet"
        layers = [keras.layers.Conv2D(4, 3, strides=2, padding="same"), keras.layers.GlobalAveragePooling2D()]
        return keras.Sequential([keras.Input((9, 9, 3)), *layers])

    if keras.backend.backend() != "torch":
        pytest.skip("Keras runs on another backend here")
    monkeypatch.setattr(applications, "build", small)
    monkeypatch.setattr(applications, "ROUNDS", 2)
    monkeypatch.setattr(applications, "BLOCK_SECONDS", 1e-4)
    assert applications.main([str(tmp_path), "--models", "MobileNet"]) == 0
    assert applications.main([str(tmp_path), "--time", str(tmp_path / "report")]) == 0
    assert "| MobileNet |" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "report" / "bench.json").read_text())["networks"]
    assert row["error"] < 1e-5
    assert row["ratio"]["count"] == 2


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        applications.main(["--models", "nope"])
    assert "not among them: nope" in capsys.readouterr().err
