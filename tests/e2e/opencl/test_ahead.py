"""Candidates built by one process that never opens the device, and measured by another that has no model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from mlc.cli.main import run
from mlc.records.files import read_records
from mlc.records.record import DECIDED
from mlc.targets.opencl.driver import OpenClDevice
from tests.e2e.compiled import network

TARGET = "opencl -device=pocl"
RNG = np.random.default_rng(0)
FEEDS = {"x": RNG.standard_normal((17, 24)).astype(np.float32)}
QUICK = ["--repeat", "3", "--min-repeat-ms", "0.1", "--run-timeout", "300"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], "product"), helper.make_node("Softmax", ["m"], ["y"], "s")]
    onnx.save(network(nodes, FEEDS, ["y"], {"w": RNG.standard_normal((24, 40)).astype(np.float32)}), "m.onnx")


def build(*options: str) -> int:
    how = ["--target", TARGET, "--threads", "1", "--explorer", "random", "--build-only", "c", *options]
    return run(["-q", "tune", "m.onnx", *how])


def measure(*options: str) -> int:
    """Runs the command in a process of its own: this one may have opened the device before."""
    command = [sys.executable, "-m", "mlc", "-q", "measure", "c", *QUICK, *options]
    return subprocess.run(command, check=False).returncode


def test_built_here_and_measured_there(quick_pocl: OpenClDevice, model: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr("mlc.runtime.device.entry_points", lambda group: [])  # there is no driver
        assert build("--trials", "8", "-o", "r.jsonl", "--json", "b.json") == 0
    counts = json.loads(Path("b.json").read_text())["tasks"]
    assert len(counts) == 2
    assert all(n >= 4 for n in counts.values())
    Path("m.onnx").rename("away.onnx")
    with Path("c").open("ab") as file:
        file.write(b'{"crc":"0')  # whoever built was killed in the midst of a line
    assert measure("-o", "r.jsonl", "--json", "m.json") == 0
    trials = [r for r in read_records([Path("r.jsonl")]).records if r.explorer != DECIDED]
    assert len(trials) == sum(counts.values())
    assert {r.fingerprint.cpu for r in trials} == {"opencl-pocl"}
    assert {r.result.failure for r in trials} == {None}
    assert {t["trials"] for t in json.loads(Path("m.json").read_text())["tasks"]} == set(counts.values())
    assert measure("-o", "r.jsonl") == 0  # nothing is left to do
    assert len([r for r in read_records([Path("r.jsonl")]).records if r.explorer != DECIDED]) == len(trials)
    Path("away.onnx").rename("m.onnx")
    assert (
        run(["-q", "compile", "m.onnx", "--target", TARGET, "--records", "r.jsonl", "-o", "m.tar", "--json", "c.json"])
        == 0
    )
    assert [r["found"] for r in json.loads(Path("c.json").read_text())["tuned"]] == ["hit", "hit"]


@pytest.mark.slow
def test_what_is_built_is_not_built_again(model: None) -> None:
    assert build("--trials", "8") == 0
    lines = Path("c").read_bytes()
    assert build("--trials", "8") == 0
    assert Path("c").read_bytes() == lines
    Path("c").write_bytes(lines[:-40])  # killed
    assert build("--trials", "8") == 0
    assert Path("c").read_bytes().count(b"\n") == lines.count(b"\n")


def test_refusals(model: None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text("no candidates\n")
    for arguments, code, message in (
        (["measure", "text", "-o", "r"], 2, "error: text: holds no candidates"),
        (["measure", "m.onnx", "-o", "r"], 2, "error: m.onnx: holds no candidates"),
        (["measure", "gone", "-o", "r"], 2, "error: gone: cannot be read: No such file"),
        (["tune", "m.onnx", "--build-only", "text"], 2, "error: text: holds no candidates"),
        (["tune", "m.onnx", "--build-only", "c", "--fresh"], 2, "error: --fresh is for a run that measures"),
    ):
        capsys.readouterr()
        assert run(["-q", *arguments]) == code
        assert capsys.readouterr().err.startswith(message)
    assert Path("text").read_text() == "no candidates\n"
    assert not Path("r").exists()
    assert build("--trials", "4") == 0
    capsys.readouterr()
    assert run(["-q", "tune", "m.onnx", "--target", "opencl -device=mali", "--build-only", "c"]) == 2
    assert "c: is for 'opencl -device=pocl" in capsys.readouterr().err
