"""A training run that is killed at any moment goes on from its last checkpoint, to the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc

EPOCHS = 400


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])],
        "net",
        [info("x", TensorProto.FLOAT, [16, 24])], [info("y", TensorProto.FLOAT, [16, 5])],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) * 0.2, n)
         for n, s in (("w", (24, 32)), ("v", (32, 5)))],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    x = rng.standard_normal((4096, 24)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, label=rng.integers(0, 5, 4096))

    def command(name: str) -> list[str]:
        options = ["--data", "d.npz", "--epochs", str(EPOCHS), "-o", name, "--resume", "--threads", "1"]
        return [sys.executable, "-m", "mlc", "-q", "train", "m.onnx", *options]

    subprocess.run(command("whole.mlc"), cwd=tmp_path, check=True)
    chance = random.Random(1)
    for _ in range(20):
        running = subprocess.Popen(command("killed.mlc"), cwd=tmp_path)
        time.sleep(chance.uniform(0.5, 4.0))
        running.send_signal(signal.SIGKILL)
        running.wait()
        left = {file for file in os.listdir(tmp_path) if file.startswith("killed")}
        assert left <= {"killed.mlc", "killed.mlc.checkpoint", "killed.mlc.checkpoint.previous"}
    subprocess.run(command("killed.mlc"), cwd=tmp_path, check=True)
    whole, killed = (mlc.load(tmp_path / name).graph.constants for name in ("whole.mlc", "killed.mlc"))
    for (v, a), b in zip(whole.items(), killed.values(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=v.name)
