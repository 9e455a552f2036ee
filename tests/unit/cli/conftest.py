"""Shared by the command line's tests: the command in this process, a model, and a module that fits it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.build import Built
from mlc.cli.main import run
from mlc.ir.graph import Graph
from mlc.runtime import ModelSpec, ResultSpec, StepSpec, TensorSpec
from mlc.settings import CompileOptions, Observer
from tests.unit.runtime.conftest import Parts, package_of

HANDMADE = Path(__file__).parents[1] / "runtime" / "handmade.ll"
WEIGHTS = {"w": np.arange(1, 6, dtype=np.float32), "b": np.full(5, 0.5, np.float32)}


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def mlc(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs the command in an empty folder; ``mlc("ops", "--json")``."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLC_DUMP", "MLC_DEBUG", "MLC_VERIFY", "MLC_SEED"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(int(code), captured.out, captured.err)

    return call


def onnx_model(rows: int | str = 3, extra: str | None = None) -> onnx.ModelProto:
    """y = x * w + b over x: f32[rows,5], and perhaps a node of an operator that does not exist."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["t"], "Mul_0"),
        helper.make_node("Add", ["t", "b"], ["y"], "Add_1"),
    ]
    if extra:
        nodes.append(helper.make_node(extra, ["y"], ["z"], f"{extra}_2"))
    graph = helper.make_graph(
        nodes,
        "line",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 5])],
        [helper.make_tensor_value_info("z" if extra else "y", TensorProto.FLOAT, [rows, 5])],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, producer_name="tests", ir_version=9)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An ONNX file of y = x * w + b."""
    path = tmp_path / "line.onnx"
    onnx.save(onnx_model(), path)
    return path


@pytest.fixture(scope="session")
def parts() -> Parts:
    """The same model as a package, from LLVM IR written by hand."""
    steps = (
        StepSpec("scale", ("Mul_0",), 15, 140, (ResultSpec("t", "f32", (3, 5), "workspace", 64, 0, _column_major()),)),
        StepSpec("shift", ("Add_1",), 15, 140, (ResultSpec("y", "f32", (3, 5), "output"),)),
    )
    x, y = TensorSpec("x", "f32", (3, 5)), TensorSpec("y", "f32", (3, 5))
    made = package_of(HANDMADE.read_text(), (x,), (y,), steps, WEIGHTS, workspace_bytes=144)
    kernels = b"### scale\n\nt[0] = x[0]\n\n### shift\n\ny[0] = t[0]\n"
    return replace(made, members={**made.members, "src/kernels.txt": kernels})


def _column_major() -> Any:
    from mlc.runtime import Physical

    return Physical("transpose(1,0) pad(4)", (5, 4), (("transpose", (1, 0)), ("slice", ((0, 3), (0, 5)))))


@pytest.fixture
def module(parts: Parts, model: Path, tmp_path: Path) -> Path:
    """A module.tar that says it was compiled from ``model``."""
    spec = ModelSpec("line", sha256(model.read_bytes()).hexdigest(), str(model))
    return parts.but(model=spec).write(tmp_path / "module.tar")


@pytest.fixture
def fake_build(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Puts ``parts`` in the place of what the compiler would make; gives what it was asked for."""
    asked: dict[str, Any] = {}

    def build_package(
        graph: Graph, target: object, options: CompileOptions, observer: Observer, configure: object = None
    ) -> object:
        asked.update(graph=graph, target=target, options=options)
        observer.stage("optimise")
        observer.passed("fold", "graph after fold", 0.25)
        observer.passed("fuse", "graph after fuse", 0.5)
        observer.stage("generate code")
        observer.kernel(1, 2)
        observer.kernel(2, 2)
        model = ModelSpec(options.name, options.sha256, options.source)
        manifest = replace(parts.manifest, model=model)
        return Built(manifest, parts.params, parts.members)

    fake = ModuleType("mlc.build")
    fake.build_package = build_package  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlc.build", fake)
    monkeypatch.setattr("mlc.records.places.SHIPPED", Path("no such folder"))
    return asked
