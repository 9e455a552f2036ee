"""Every command of ``docs/deploying.md``, with qemu in the board's place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.zoo import build
from tests.emulated import needs_emulator
from tests.ports import free_port

PAGE = Path(__file__).parents[3] / "docs" / "deploying.md"
BOARD, POOL = (
    "".join(re.findall(r"```sh\n(.*?)```", part, re.DOTALL)) for part in PAGE.read_text().split("## A pool of boards")
)


def product() -> onnx.ModelProto:
    """A model of one kernel, for what takes its time with every one."""
    w = numpy_helper.from_array(np.ones((64, 96), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [48, k]) for n, k in (("x", 64), ("y", 96)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def run(commands: str, folder: Path, model: onnx.ModelProto) -> subprocess.CompletedProcess[str]:
    """Runs commands of the page, with a port that nobody uses."""
    onnx.save(model, folder / "model.onnx")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = commands.replace("8786", str(free_port()))
    return subprocess.run(
        ["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@needs_emulator
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="no gcc-aarch64-linux-gnu")
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    done = run(BOARD, tmp_path, build("resnet8", small=True))
    assert done.returncode == 0, done.stderr
    assert "output0.bin: " in done.stdout
    assert "needs          neon" in done.stdout


@pytest.mark.slow  # tests of the pool itself lie in `tests/e2e/pool`
def test_a_pool_is_made_and_used_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("cryptography")
    done = run(POOL, tmp_path, product())
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout
    assert "8 trials" in done.stdout + done.stderr
    assert "mill leaves" in done.stdout + done.stderr
