"""Whole models for ARM processors, run under an emulator through the C example of their packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

import mlc
from benchmarks.zoo import build, sample_inputs
from mlc.cli.main import run
from tests.e2e.compiled import assert_same
from tests.e2e.test_zoo import LIGHT, NETWORKS, OPERATORS
from tests.e2e.test_zoo import reference as zoo_reference
from tests.emulated import emulated, needs_emulator

pytestmark = needs_emulator

# in order; out of order; with everything (no emulator here has that very processor, so one with everything runs it)
PROCESSORS = ("cortex-a53", "cortex-a76", "neoverse-v1")
QUICK = {
    ("resnet8", "cortex-a53"),
    ("mobilenet_v2", "cortex-a76"),
    ("lstm_lm", "cortex-a53"),
    ("bert_tiny", "cortex-a76"),
}
QUICK |= {("resnet8", "neoverse-v1"), ("C4", "cortex-a53"), ("D5", "cortex-a76"), ("MM3", "cortex-a53")}
CASES = [
    pytest.param(name, cpu, marks=() if (name, cpu) in QUICK else pytest.mark.slow)
    for name in (*NETWORKS, *OPERATORS)
    for cpu in PROCESSORS
]


@pytest.mark.parametrize(("name", "cpu"), CASES)
def test_small_model_agrees_with_onnxruntime(name: str, cpu: str, tmp_path: Path) -> None:
    model = build(name, small=True)
    inputs = sample_inputs(model, 1)
    onnx.save(model, tmp_path / "model.onnx")
    package = mlc.compile(mlc.load(tmp_path / "model.onnx"), f"arm -mcpu={cpu}", verify_passes=True)
    assert_same(emulated(package, inputs, threads=2), zoo_reference(model, inputs), tolerance=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", PROCESSORS)
@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_model_agrees_with_onnxruntime(path: Path, cpu: str) -> None:
    model = onnx.load(path)
    known = {t.name for t in model.graph.initializer}
    inputs = {name: array for name, array in sample_inputs(model, 5).items() if name not in known}
    package = mlc.compile(mlc.load(path), f"arm -mcpu={cpu}")
    assert_same(emulated(package, inputs, threads=2), zoo_reference(model, inputs), tolerance=1e-4)


def test_from_a_file_to_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(build("dqn", small=True), "m.onnx")
    assert run(["compile", "m.onnx", "--target", "arm -mcpu=cortex-a72", "-o", "m.tar"]) == 0
    assert run(["run", "m.tar", "--emulate", "--verify", "onnxruntime", "--outputs", "out.npz"]) == 0
    with np.load("out.npz") as got:
        assert list(got) == ["q_values"]
    capsys.readouterr()
    assert run(["run", "m.tar"]) == 6
    said = capsys.readouterr().err
    assert "the module was compiled for aarch64, and this machine is" in said
    assert "mlc run --emulate" in said


@pytest.mark.slow  # zig builds the C library the first time
@pytest.mark.skipif(find_spec("ziglang") is None, reason="no ziglang")
def test_linked_with_musl(tmp_path: Path) -> None:
    model = build("dqn", small=True)
    inputs = sample_inputs(model, 1)
    onnx.save(model, tmp_path / "model.onnx")
    package = mlc.compile(mlc.load(tmp_path / "model.onnx"), "arm -mcpu=cortex-a72 -libc=musl")
    assert b"libc.so\0" in package.members["lib/model.so"]
    assert_same(emulated(package, inputs, threads=2), zoo_reference(model, inputs), tolerance=1e-4)


def test_random_numbers_are_those_of_the_seed(tmp_path: Path) -> None:
    """The same numbers as on this machine."""
    from onnx import TensorProto, helper

    node = helper.make_node("RandomNormal", [], ["y"], shape=[3, 5])
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    model = mlc.load(tmp_path / "m.onnx")
    mlc.compile(model, "arm").save(tmp_path / "arm.tar")
    with mlc.compile(model).load(1) as module:
        want = module.run({}, seed=7)
    from mlc.runtime import emulate_module

    with emulate_module(tmp_path / "arm.tar") as foreign:
        assert foreign.draws
        assert_same(foreign.run({}, seed=7), want, tolerance=1e-6)
        assert not np.array_equal(foreign.run({})["y"], foreign.run({})["y"])


@pytest.mark.parametrize("option", ["--bench", "--profile", "--verify-layers"])
def test_what_needs_the_processor_itself_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "m.tar", "--emulate", option]) == 2
    assert "need the processor itself" in capsys.readouterr().err
