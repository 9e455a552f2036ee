"""The accelerator of ``docs/accelerators.md``: found by its entry points, compiled for, and run."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc
from mlc.errors import CodegenError, ScheduleError
from mlc.ir.graph import Builder
from mlc.ir.interp import run_function
from mlc.ir.loop import Barrier, Function
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.rewrite.fuse import fuse

ROOT = Path(__file__).parents[2]
TOY = ROOT / "examples" / "toy"
GUIDE = ROOT / "docs" / "accelerators.md"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy as a package that somebody has installed."""
    about = tmp_path / "site" / "toy-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copytree(TOY, about.parent / "toy")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[mlc.targets]\ntoy = toy.target:Target\n[mlc.devices]\ntoy = toy.target:Driver\n"
    )
    monkeypatch.syspath_prepend(about.parent)


def network(path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """``relu(relu(x @ w) @ v)`` as ONNX, an input, and what comes out."""
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((24, 32), (32, 16)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (16, 24)), ("y", (16, 16)))]
    stored = [numpy_helper.from_array(a, n) for n, a in (("w", w), ("v", v))]
    model = helper.make_model(helper.make_graph(nodes, "net", infos[:1], infos[1:], stored))
    model.ir_version = 10
    onnx.save(model, path)
    x = rng.standard_normal((16, 24)).astype(np.float32)
    return path, x, np.maximum(np.maximum(x @ w, 0) @ v, 0)


def test_model_runs_on_the_toy(installed: None, tmp_path: Path) -> None:
    path, x, expected = network(tmp_path / "net.onnx")
    compiled = mlc.compile(mlc.load(path), target="toy")
    assert "examples/main.c" not in compiled.members  # it could not drive the device
    assert "examples/main.c" in mlc.compile(mlc.load(path)).members
    compiled.save(tmp_path / "module.tar")
    with mlc.load_module(tmp_path / "module.tar") as module:
        (y,) = module.run({"x": x}).values()
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)
        assert [run.step.kernel for run in module.device_runs] == ["region0", "region1"]
        for run, tiles, depth in zip(module.device_runs, (2 * 4, 2 * 2), (3, 4), strict=True):
            taken = tiles * (1 + depth * (16 + 16 + 8) + 16)
            assert run.report == {"cycles": taken, "seconds": taken / 1e9}
            assert run.step.device is not None


def toy_kernel(m: int, k: int, n: int) -> tuple[types.ModuleType, Function]:
    """The toy, and its kernel of a product."""
    toy = importlib.import_module("examples.toy.machine")
    g = Builder("net")
    x, w = g.input("x", TensorType((m, k), f32)), g.input("w", TensorType((k, n), f32))
    (y,) = g.add(get("matmul"), [x, w], names=["y"])
    (node,) = fuse(g.finish([y])).nodes
    return toy, toy.kernel(node, "product")


def test_guide_shows_what_there_is() -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    source = "".join(file.read_text() for file in sorted(TOY.glob("*.py")))
    for language, text in blocks:
        if language == "python":
            assert text in source, f"the example has no longer\n{text}"
    printed, second = (text for language, text in blocks if language == "output")
    assert printed == repr(toy_kernel(16, 24, 32)[1])
    ran = subprocess.run([sys.executable, "-m", "examples.toy.overlapped"], cwd=ROOT, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == (second, "")
    (points,) = (text for language, text in blocks if language == "toml")
    assert all(f'{name} = "toy.target:{made}"' in points for name, made in (("toy", "Target"), ("toy", "Driver")))


def test_guide_shows_what_is_refused() -> None:
    with pytest.raises(ScheduleError) as refused:
        toy_kernel(8, 8, 4)
    said = " ".join(GUIDE.read_text().split())
    assert str(refused.value) in said


def test_interpreter_runs_the_kernel_before_the_machine_does() -> None:
    _, fn = toy_kernel(16, 24, 8)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((16, 24), (24, 8)))
    y = np.full((16, 8), 99, np.float32)
    run_function(fn, [x, w, y])
    np.testing.assert_array_equal(y, x @ w)


def test_code_has_no_word_for_other_statements() -> None:
    toy, _ = toy_kernel(8, 8, 8)
    with pytest.raises(CodegenError, match=r"the machine has no instruction for\nbarrier"):
        toy.code(Function("none", (), 0, Barrier("all")), {})


def test_machine_is_sixty_lines() -> None:
    *_, body = (TOY / "machine.py").read_text().partition("\nT = 8\n")
    assert len([line for line in body.splitlines() if line.strip()]) < 60
