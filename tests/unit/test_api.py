"""``mlc.load`` and ``mlc.compile``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc
from mlc.errors import MemoryLimitError, OutputError, UnsupportedError, UsageError
from mlc.settings import CompileOptions, Observer
from tests.unit.cli.conftest import WEIGHTS, fake_build, model, parts  # noqa: F401

# The model and the package are those of the command line's tests.
pytestmark = pytest.mark.filterwarnings("error")


class Recorder(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def stage(self, name: str) -> None:
        self.events.append(("stage", name))

    def passed(self, name: str, program: object, seconds: float) -> None:
        self.events.append(("passed", name, seconds))

    def kernel(self, done: int, total: int) -> None:
        self.events.append(("kernel", done, total))


def test_load_and_save(model: Path, tmp_path: Path) -> None:  # noqa: F811
    loaded = mlc.load(model)
    assert (loaded.format, loaded.info.format) == ("onnx", "onnx")
    assert [(t.name, t.shape, t.dtype) for t in (*loaded.inputs, *loaded.outputs)] == [
        ("x", (3, 5), "f32"),
        ("y", (3, 5), "f32"),
    ]
    loaded.save(tmp_path / "line.mlc")
    again = mlc.load(tmp_path / "line.mlc")
    assert (again.format, again.info) == ("mlc", loaded.info)
    assert repr(again.graph) == repr(loaded.graph)
    with pytest.raises(OutputError):
        loaded.save(tmp_path / "none" / "x.mlc")


def test_a_front_end_can_be_named(model: Path) -> None:  # noqa: F811
    assert mlc.load(model, frontend="onnx").format == "onnx"
    with pytest.raises(UsageError, match="no front end 'caffe'"):
        mlc.load(model, frontend="caffe")


def test_compile_save_load_and_run(model: Path, fake_build: dict[str, Any], tmp_path: Path) -> None:  # noqa: F811
    recorder = Recorder()
    package = mlc.compile(mlc.load(model), "x86", dump_dir=tmp_path / "ir", observer=recorder)
    assert package.report.passes == (("fold", 0.25), ("fuse", 0.5))
    assert package.report.peak_bytes > 1 << 20
    assert recorder.events == [
        ("stage", "optimise"),
        ("passed", "fold", 0.25),
        ("passed", "fuse", 0.5),
        ("stage", "generate code"),
        ("kernel", 1, 2),
        ("kernel", 2, 2),
    ]
    assert (tmp_path / "ir" / "01-fold.txt").read_text() == "graph after fold\n"
    manifest = package.save(tmp_path / "line.tar")
    assert manifest.model.name == "line"
    x = np.ones((3, 5), np.float32)
    with package.load(threads=1) as module, mlc.load_module(tmp_path / "line.tar") as again:
        np.testing.assert_array_equal(module.run({"x": x})["y"], again.run({"x": x})["y"])
        np.testing.assert_array_equal(module.run({"x": x})["y"], x * WEIGHTS["w"] + WEIGHTS["b"])


def test_quantize(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "v"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    stored = [numpy_helper.from_array(array, name) for array, name in zip(w, "vw", strict=True)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", tensors[:1], tensors[1:], stored)), tmp_path / "m.onnx")
    samples = rng.standard_normal((16, 8)).astype(np.float32)
    found = mlc.quantize(mlc.load(tmp_path / "m.onnx"), {"x": samples}, per_channel=True, ends=True)
    assert isinstance(found, mlc.Quantization)
    assert (found.products, found.samples, set(found.tensors)) == (2, 16, {"x", "h"})
    assert found.accuracy[0].snr_db > 25
    with mlc.compile(found.model).load(threads=1) as module:
        y = module.run({"x": samples[:1]})["y"]
    wanted = samples[:1] @ w[0] @ w[1]
    assert np.abs(y - wanted).max() < 0.1 * np.abs(wanted).max()


def test_refusals(model: Path, fake_build: dict[str, Any], tmp_path: Path) -> None:  # noqa: F811
    loaded = mlc.load(model)
    with pytest.raises(UsageError, match="the optimisation level must be from 0 to 3, not 4"):
        mlc.compile(loaded, opt_level=4)
    with pytest.raises(UsageError, match="unknown target 'x87'"):
        mlc.compile(loaded, "x87")
    with pytest.raises(OutputError, match="cannot be made"):
        mlc.compile(loaded, dump_dir=model)


def test_operands_are_packed_while_a_model_runs_where_memory_allows(tmp_path: Path) -> None:
    m, k = 128, 768
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [m, k]), ("w", [k, k]), ("y", [m, k]))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    onnx.save(helper.make_model(helper.make_graph([node], "g", tensors[:2], tensors[2:])), tmp_path / "m.onnx")
    loaded, around = mlc.load(tmp_path / "m.onnx"), 4 * (2 * m * k + k * k)
    target = "x86 -mcpu=skylake-avx512"
    assert mlc.compile(loaded, target).manifest.memory.workspace_bytes >= 4 * k * k
    limit = around + (1 << 16)
    assert around + mlc.compile(loaded, target, memory=limit).manifest.memory.workspace_bytes <= limit
    with pytest.raises(UnsupportedError, match=f"a run takes at least {around} bytes"):
        mlc.compile(loaded, target, memory=around - 1)


def test_whole_batches_whose_kernels_are_not_tuned_are_no_way_out(
    model: Path,  # noqa: F811
    fake_build: dict[str, Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []

    def build_package(graph: object, target: object, options: CompileOptions, *others: object) -> None:
        asked.append(options.disabled_passes)
        if "slices" in options.disabled_passes:
            raise UsageError("no tuned configuration")
        raise MemoryLimitError("too much", hint="", needed=100, slices=True)

    monkeypatch.setattr(sys.modules["mlc.build"], "build_package", build_package)
    with pytest.raises(MemoryLimitError, match="too much"):
        mlc.compile(mlc.load(model), memory=99, require_tuned=True, threads=2)
    assert asked == [(), ("slices",)]


def test_targets_say_what_this_machine_can_do() -> None:
    from mlc.api import targets

    (x86,) = (info for info in targets() if info.name == "x86")
    assert x86.compiles
    assert x86.runs == (not x86.reason)


def test_importing_mlc_imports_little() -> None:
    code = (
        "import mlc, sys; mlc.__version__; mlc.errors; print(*{'numpy', 'onnx', 'llvmlite', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_unknown_names_are_unknown() -> None:
    assert "compile" in dir(mlc)
    with pytest.raises(AttributeError, match="module 'mlc' has no attribute 'tune_it'"):
        mlc.tune_it  # noqa: B018
