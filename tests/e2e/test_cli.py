"""The command line from a model to a verified module, with the compiler itself."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from benchmarks.zoo import build
from mlc.cli.main import run


def test_from_a_model_to_a_verified_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(build("squeezenet", 1, True), tmp_path / "m.onnx")

    assert run(["import", "m.onnx", "-o", "m.mlc"]) == 0
    assert run(["compile", "m.mlc", "-o", "m.tar", "--verify-passes", "--dump-ir", "ir", "--json", "c.json"]) == 0
    compiled = json.loads((tmp_path / "c.json").read_text())
    dumped = {file.stem.partition("-")[2] for file in (tmp_path / "ir").iterdir()}
    assert {"fold", "fuse", "lower"} <= dumped <= {step["name"] for step in compiled["passes"]}
    assert compiled["model"]["source"] == "m.onnx"

    assert run(["run", "m.tar", "--verify", "onnxruntime", "--verify-layers", "--json", "r.json"]) == 0
    ran = json.loads((tmp_path / "r.json").read_text())
    assert ran["verify"]["ok"]
    assert ran["layers"]["ok"]
    assert len(ran["layers"]["layers"]) > 3
    assert run(["run", "m.mlc", "--verify", "onnxruntime", "--model", "m.onnx"]) == 0

    capsys.readouterr()
    assert run(["inspect", "m.tar", "--json"]) == 0
    kernel = json.loads(capsys.readouterr().out)["kernels"][0]["kernel"]
    assert run(["inspect", "m.tar", "--asm", kernel]) == 0
    assert f"\n{kernel}:\n" in f"\n{capsys.readouterr().out}"
    assert run(["inspect", "m.tar", "--src", kernel]) == 0
    assert f"def {kernel}(" in capsys.readouterr().out


def test_the_same_model_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(build("squeezenet", 1, True), tmp_path / "m.onnx")
    for name in ("a.tar", "b.tar"):
        assert run(["-q", "compile", "m.onnx", "-o", name]) == 0
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
