"""``docs/templates.md``: its template is found by an entry point, and every command that it has is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc
from mlc.cli.main import run
from mlc.records.files import read_records
from mlc.targets.cpu.schedules.templates import named_templates
from mlc.tuning import whole

PAGE = (Path(__file__).parents[2] / "docs" / "templates.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models, and the page's package as somebody has installed it."""
    site = tmp_path / "site"
    about = site / "row_sums-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "row_sums.py").write_text(blocks("python")[0])
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: row-sums\nVersion: 1.0\n")
    (group,) = re.findall(r"entry-points.\"(.*)\"", blocks("toml")[0])
    (entry,) = re.findall(r"^(rows) = \"(.*)\"$", blocks("toml")[0], re.MULTILINE)
    (about / "entry_points.txt").write_text(f"[{group}]\n{entry[0]} = {entry[1]}\n")
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32), "w")
    axes = numpy_helper.from_array(np.array([1]), "axes")
    monkeypatch.chdir(tmp_path)
    save("net", [helper.make_node("MatMul", ["x", "w"], ["y"])], (40, 48), (40, 64), [w])
    save("sums", [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)], (96, 300), (96,), [axes])
    return tmp_path


def save(name: str, nodes: list[onnx.NodeProto], x: tuple[int, ...], y: tuple[int, ...], stored: list) -> None:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x), ("y", y))]
    model = helper.make_model(helper.make_graph(nodes, name, infos[:1], infos[1:], stored))
    model.ir_version = 10
    onnx.save(model, f"{name}.onnx")


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's package is found by this process, too."""
    monkeypatch.syspath_prepend(str(folder / "site"))
    named_templates.cache_clear()
    yield folder / "site"
    named_templates.cache_clear()
    sys.modules.pop("row_sums", None)


def test_the_commands_of_the_page(folder: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one in a process of its own; models are compared for a moment only."""
    monkeypatch.setattr(whole, "SECONDS", 0.2)
    first, *others = "".join(blocks("sh")).splitlines()
    assert first == "mlc tune --template help"
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "mlc", *shlex.split(first)[1:]]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["master", "rows"]
    for line in others:
        hasty = ["--repeat", "3", "--min-repeat-ms", "0.1"] if "--trials" in line else []
        assert run([*shlex.split(line)[1:], *hasty]) == 0, line
    for name, records in (("master", "master.jsonl"), ("rows", "rows.jsonl")):
        found = read_records([folder / records]).records
        assert {r.config["template"] for r in found} <= {name, "usual"}
        assert any(r.result.seconds is not None and r.config["template"] == name for r in found)
    x = np.random.default_rng(1).standard_normal((96, 300)).astype(np.float32)
    (y,) = mlc.load_module(folder / "sums.tar", 1).run({"x": x}).values()
    np.testing.assert_allclose(y, x.sum(axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--template", "master", "--layouts"], "a template has layouts of its own"),
        (["--template", "nobody"], "no kernel of the model takes the template 'nobody'"),
        (["--template", "master", "--build-only", "c"], "templates can be asked for where candidates are measured"),
    ],
)
def test_refusals(folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "net.onnx", "--trials", "2", *arguments]) != 0
    assert message in capsys.readouterr().err
