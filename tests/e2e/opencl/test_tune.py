"""Tuning for an OpenCL device, from a model to a package that uses what was found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from mlc.cli.main import run
from mlc.errors import DeviceError
from mlc.records.files import read_records
from mlc.records.record import DECIDED, encode
from mlc.targets.opencl.driver import OpenClDevice, open_device
from tests.e2e.compiled import assert_same, network, reference

TARGET = "opencl -device=pocl"
RNG = np.random.default_rng(0)
FEEDS = {"x": RNG.standard_normal((17, 24)).astype(np.float32)}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], "product"), helper.make_node("Relu", ["m"], ["y"], "relu")]
    found = network(nodes, FEEDS, ["y"], {"w": RNG.standard_normal((24, 40)).astype(np.float32)})
    onnx.save(found, "m.onnx")
    return found


def tune(*options: str) -> int:
    """Runs the command in a process of its own: this one may have opened the device before."""
    common = ["--target", TARGET, "-o", "r.jsonl", "--batch", "2", "--threads", "1", "--run-timeout", "300"]
    common += ["--repeat", "3", "--min-repeat-ms", "1"]
    return subprocess.run(
        [sys.executable, "-m", "mlc", "-q", "tune", "m.onnx", *common, *options], check=False
    ).returncode


def test_from_a_model_to_a_tuned_package(pocl: OpenClDevice, model: onnx.ModelProto) -> None:
    assert tune("--trials", "3", "--explorer", "random", "--no-check") == 0
    records = read_records([Path("r.jsonl")]).records
    trials = [r for r in records if r.explorer != DECIDED]
    assert len(trials) == 3
    assert {r.fingerprint.cpu for r in records} == {"opencl-pocl"}
    assert {r.result.failure for r in trials} == {None}
    assert (
        run(["compile", "m.onnx", "--target", TARGET, "--records", "r.jsonl", "-o", "m.tar", "--json", "c.json"]) == 0
    )
    assert [r["found"] for r in json.loads(Path("c.json").read_text())["tuned"]] == ["hit"]
    np.savez("in.npz", **FEEDS)
    assert run(["run", "m.tar", "-i", "in.npz", "-o", "out.npz", "--bench", "--iterations", "2", "--profile",
                "--json", "p.json"]) == 0  # fmt: skip
    with np.load("out.npz") as got:
        assert_same(dict(got), reference(model, FEEDS))
    figures = json.loads(Path("p.json").read_text())
    assert set(figures["bench"]["phases"]) == {"to device", "kernels", "from device"}
    (kernel,) = [row for row in figures["profile"] if row["sources"] == ["product", "relu"]]
    assert kernel["gflops"] > 0


@pytest.mark.slow
def test_a_run_goes_on_with_a_cost_model_and_checks_the_whole(pocl: OpenClDevice, model: onnx.ModelProto) -> None:
    for trials in ("2", "24"):
        assert tune("--trials", trials, "--json", "t.json") == 0
        assert json.loads(Path("t.json").read_text())["whole"]["error"] < 1e-5
    assert tune("--trials", "26", "--transfer", "r.jsonl", "--no-check") == 0


@pytest.mark.slow
def test_layouts_are_searched_recorded_and_compiled(
    pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two convolutions and a pool: the convolutions' layouts are searched, in order, and applied from records."""
    monkeypatch.chdir(tmp_path)
    feeds = {"x": RNG.standard_normal((1, 8, 12, 12)).astype(np.float32)}
    weights = {f"w{k}": RNG.standard_normal((16, c, 3, 3)).astype(np.float32) for k, c in enumerate((8, 16))}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "act"),
        helper.make_node("Conv", ["b", "w1"], ["c"], "second", pads=[1] * 4),
        helper.make_node("MaxPool", ["c"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    onnx.save(network(nodes, feeds, ["y"], weights), "m.onnx")
    assert tune("--layouts", "--trials", "24", "--no-check") == 0
    records = read_records([Path("r.jsonl")]).records
    best = {r.workload: r for r in sorted(records, key=lambda r: -(r.result.seconds or 1.0)) if r.layouts}
    assert len(best) == 2
    assert not [r for r in records if r.layouts and r.result.failure is not None]
    Path("s.jsonl").write_bytes(b"".join(encode(replace(r, explorer=DECIDED)) for r in best.values()))
    assert run(["inspect", "s.jsonl"]) == 0
    assert "searched layout" in capsys.readouterr().out
    assert run(["compile", "m.onnx", "--target", TARGET, "--records", "s.jsonl", "-o", "m.tar", "--dump-layouts"]) == 0
    assert "searched" in capsys.readouterr().out
    assert run(["-q", "run", "m.tar", "--verify", "onnxruntime", "--model", "m.onnx"]) == 0


@pytest.mark.slow
def test_algorithms_are_compared_on_the_device(
    pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: what measures candidates afterwards is forked off."""
    monkeypatch.chdir(tmp_path)
    feeds = {"x": RNG.standard_normal((1, 16, 12, 12)).astype(np.float32)}
    weights = {"w": RNG.standard_normal((16, 16, 3, 3)).astype(np.float32)}
    onnx.save(network([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], feeds, ["y"], weights), "m.onnx")
    assert tune("--algorithms", "--trials", "2", "--no-check") == 0
    assert any("algorithm" in r.config for r in read_records([Path("r.jsonl")]).records)


def test_a_device_that_was_open_before_a_fork_is_refused(pocl: OpenClDevice) -> None:
    """A driver has threads: in a process that was forked off it would wait for ever."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            open_device({"device": "pocl"})
        except DeviceError as error:
            os.write(write, error.message.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as message:
        assert message.read() == "OpenCL was in use when this process was forked off, and does not survive that"
    os.waitpid(child, 0)
