"""``mlc run --verify``: the tolerance follows the precision that a package was computed in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.cli.main import run

rng = np.random.default_rng(0)


def saved(path: str, nodes: list[onnx.NodeProto], stored: dict[str, np.ndarray], width: int) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, n]) for name, n in (("x", width), ("y", 64)))
    kept = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], kept), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, path)


def node(op: str, ins: str, out: str, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, ins.split(), [out], name=out, **attrs)


def verified(*options: str) -> tuple[int, dict]:
    code = run(["run", "m.tar", "--verify", "onnxruntime", "--json", "run.json", *options])
    (found,) = json.loads(Path("run.json").read_text())["verify"]["outputs"]
    return code, found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_floats_of_16_bits_inside(capsys: pytest.CaptureFixture[str]) -> None:
    stored = {"w": rng.standard_normal((512, 64)).astype(np.float16)}
    half, back = (int(t) for t in (TensorProto.FLOAT16, TensorProto.FLOAT))
    nodes = [
        node("Cast", "x", "h", to=half), node("Exp", "h", "e"), node("MatMul", "e w", "m"),
        node("Cast", "m", "y", to=back),
    ]  # fmt: skip
    saved("m.onnx", nodes, stored, 512)
    assert run(["compile", "m.onnx", "-o", "m.tar"]) == 0
    code, found = verified()
    assert (code, found["tolerance"], found["type"]) == (0, "computed in float16", "f32[4,64]")
    assert found["relative_error"] > 1e-4  # float32's tolerance
    assert "computed in float16" in capsys.readouterr().out
    assert verified("--rtol", "1e-4")[0] == 1


def test_models_with_steps_of_8_bits() -> None:
    stored = {"w": rng.standard_normal((64, 64)).astype(np.float32), "s": np.float32(0.05), "z": np.int8(3)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("MatMul", "d w", "m"),
        node("QuantizeLinear", "m s z", "r"), node("DequantizeLinear", "r s z", "y"),
    ]  # fmt: skip
    saved("m.onnx", nodes, stored, 64)
    assert run(["compile", "m.onnx", "-o", "m.tar"]) == 0
    code, found = verified()
    assert (code, found["tolerance"]) == (0, "computed in 8-bit steps")


def test_models_that_were_quantised(capsys: pytest.CaptureFixture[str]) -> None:
    stored = {name: rng.standard_normal((64, 64)).astype(np.float32) for name in "vw"}
    saved("m.onnx", [node("MatMul", "x v", "h"), node("Relu", "h", "r"), node("MatMul", "r w", "y")], stored, 64)
    np.savez("samples.npz", x=rng.standard_normal((16, 64)).astype(np.float32).reshape(4, 4, 64))
    quantise = ["--quantize", "int8", "--quantize-ends", "--calibrate", "samples.npz"]
    assert run(["compile", "m.onnx", *quantise, "-o", "m.tar"]) == 0
    code, found = verified()
    assert (code, found["tolerance"]) == (0, "quantised from floats")
    assert found["relative_error"] > 1e-4
    np.savez("far.npz", x=1000 * rng.standard_normal((4, 64)).astype(np.float32))
    capsys.readouterr()
    assert verified("-i", "far.npz")[0] == 1
    assert "hint: give inputs like those that the model was quantised with" in capsys.readouterr().err
