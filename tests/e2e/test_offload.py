"""A model quantised, divided between this machine and a made-up accelerator, packed, and run: from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from mlc.api import quantize
from mlc.cli.main import run
from mlc.ir.interp import run_graph
from tests.devices import ToyPoint
from tests.e2e.compiled import network

rng = np.random.default_rng(0)
IMAGES = rng.standard_normal((6, 3, 8, 8)).astype(np.float32)
STORED = {
    "w0": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) / 5,
    "w1": rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8,
    "b1": rng.standard_normal(8).astype(np.float32),
    "w2": rng.standard_normal((8, 8, 1, 1)).astype(np.float32) / 3,
    "fc": rng.standard_normal((8, 5)).astype(np.float32),
}


def residual_network() -> onnx.ModelProto:
    """A first convolution, a residual block whose shortcut has a convolution too, a pool and a classifier."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], "first", pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"], "relu0"),
        node("Conv", ["r0", "w1", "b1"], ["c1"], "body", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", ["r0", "w2"], ["c2"], "shortcut", strides=[2, 2]),
        node("Add", ["c1", "c2"], ["a"], "add"),
        node("Relu", ["a"], ["r1"], "relu1"),
        node("GlobalAveragePool", ["r1"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flatten"),
        node("MatMul", ["f", "fc"], ["y"], "classifier"),
    ]
    return network(nodes, {"x": IMAGES[:1]}, ["y"], STORED)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model and its samples, and a world in which the toy is installed."""
    monkeypatch.chdir(tmp_path)
    onnx.save(residual_network(), tmp_path / "net.onnx")
    np.savez(tmp_path / "images.npz", x=IMAGES)
    monkeypatch.setattr("mlc.targets.base.entry_points", lambda group: [ToyPoint(value="tests.devices:ToyTarget")])
    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [ToyPoint()])
    return tmp_path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def called(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        return int(code), capsys.readouterr().out

    return called


def test_from_model_to_cycles(folder: Path, call: Callable[..., tuple[int, str]]) -> None:
    quantised = ("--quantize", "int8", "--calibrate", "images.npz")
    code, out = call(
        "compile",
        "net.onnx",
        "--target",
        "toy",
        *quantised,
        "--dump-offloads",
        "--check-regions",
        "-o",
        "n.tar",
        "--json",
        "c.json",
    )
    assert code == 0
    assert "accelerator  takes over 2 operations, in 1 program\n" in out
    assert "checked      every program against the interpreter, on random data\n" in out
    assert "quantised 2 of 4 products to int8, on 6 samples" in out
    assert "in floats  first: a first convolution, of 3 channels" in out
    lines = out.splitlines()
    (body,) = [line for line in lines if line.startswith("region0") and "shl" in line]
    assert "body, add, relu1" in body or "body" in body
    assert any(line.startswith("host") and "works on f32" in line for line in lines)
    document = json.loads((folder / "c.json").read_text())
    assert document["quantization"]["products"] == 2
    assert document["quantization"]["accuracy"][0]["snr_db"] > 20
    assert document["quantization"]["seconds"] > 0
    assert [o["region"] for o in document["offloads"]].count("region0") == 2
    assert document["programs"] == {"region0": {"operations": 2}}

    np.savez(folder / "one.npz", x=IMAGES[2:3])
    code, out = call("run", "n.tar", "-i", "one.npz", "-o", "got.npz", "--profile", "--json", "r.json")
    assert code == 0
    assert "on the device" in out
    (report,) = json.loads((folder / "r.json").read_text())["device"]
    assert (report["step"], report["cycles"], report["seconds"]) == ("region0", 200, 0.2)
    profile = json.loads((folder / "r.json").read_text())["profile"]
    assert [row["ms"] for row in profile if row["kernel"] == "region0"] == [200.0]

    code, out = call("inspect", "n.tar")
    assert code == 0
    assert "  device         toy, 640 B of its memory\n" in out

    # the same integers as on the host alone, and as the interpreter computes them
    call("import", "net.onnx", *quantised, "--quantize-for", "toy", "-o", "net.mlc")
    call("compile", "net.mlc", "-o", "host.tar")
    call("run", "host.tar", "-i", "one.npz", "-o", "host.npz")
    got, host = np.load("got.npz")["y"], np.load("host.npz")["y"]
    np.testing.assert_array_equal(got, host)
    found = quantize(mlc.load("net.onnx"), {"x": IMAGES}, "vdla")
    (expected,) = run_graph(found.model.graph, {"x": IMAGES[2:3]}).values()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_an_accelerator_with_nothing_to_do_is_mentioned(folder: Path, call: Callable[..., tuple[int, str]]) -> None:
    code, out = call("compile", "net.onnx", "--target", "toy", "--dry-run")
    assert code == 0
    assert "accelerator  takes over nothing; --dump-offloads says why" in out


def test_a_model_in_integers_can_be_saved_and_read(folder: Path) -> None:
    found = quantize(mlc.load("net.onnx"), {"x": IMAGES}, "vdla", per_channel=True, ends=True, keep=["shortcut"])
    assert found.floats == {"shortcut": "kept on demand"}
    found.model.save("net.mlc")
    again = mlc.load("net.mlc")
    for image in IMAGES:
        (a,), (b,) = (run_graph(m.graph, {"x": image[None]}).values() for m in (found.model, again))
        np.testing.assert_array_equal(a, b)


def test_a_level_without_optimisation_divides_as_well(folder: Path) -> None:
    found = quantize(mlc.load("net.onnx"), {"x": IMAGES}, "vdla")
    feeds = {"x": IMAGES[:1]}
    results = []
    for level in (0, 1, 3):
        with mlc.compile(found.model, "toy", opt_level=level, verify_passes=True).load(1) as module:
            results.append(module.run(feeds)["y"])
            assert len(module.device_runs) == 1
    np.testing.assert_allclose(results[0], results[2], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-5, atol=1e-5)
