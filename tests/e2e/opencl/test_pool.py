"""A pool with a device: tuned, its model compared and run there, by a client without one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("distributed")
pytest.importorskip("cryptography")
pytest.importorskip("pyopencl")

from mlc.errors import DeviceError
from mlc.pool.session import Place
from mlc.targets.base import get_target
from tests.pool import local_pool

TARGET = "opencl -device=pocl"


@pytest.mark.slow  # the driver compiles every candidate for a while
def test_a_device_is_had_through_a_pool(tmp_path: Path) -> None:
    try:
        Place(TARGET, get_target(TARGET)).bench(device=True).require()
    except DeviceError as error:
        pytest.skip(error.message)
    w = numpy_helper.from_array(np.random.default_rng(0).normal(size=(32, 48)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [24, k]) for n, k in (("x", 32), ("y", 48)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [w])
    model, package = tmp_path / "m.onnx", tmp_path / "m.tar"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), model)
    with local_pool(tmp_path / "pool", {}) as pool:
        pool.scheduler()
        boards = [pool.board("one", "--target", TARGET), pool.board("mill", "--target", TARGET, "--only", "build")]
        for board in boards:
            board.has_said("serves")
        ann = ("--pool", pool.url, "--certificates", pool.certificates("ann"))
        words = ("--target", TARGET, "--trials", "3", "--pool-build", "--json", str(tmp_path / "t.json"))
        tuned = pool.tune("ann", model, tmp_path / "r.jsonl", *words, check=True)
        assert tuned.wait() == 0, tuned.said.read_text()
        found = json.loads((tmp_path / "t.json").read_text())
        assert (found["trials"], found["failures"]) == (3, [])
        assert found["whole"]["tuned_ms"] > 0
        compiled = pool.start(
            "compile", str(model), "--target", TARGET, "--records", str(tmp_path / "r.jsonl"), "-o", str(package)
        )
        assert compiled.wait() == 0, compiled.said.read_text()
        ran = pool.start("run", str(package), *ann, "--verify", "model")
        assert ran.wait() == 0, ran.said.read_text()
        assert "ok" in ran.said.read_text()
