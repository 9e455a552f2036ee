"""``mlc import``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from mlc.frontend.saved import SavedFrontend
from tests.unit.cli.conftest import Result, onnx_model

Mlc = Callable[..., Result]


def test_summary(mlc: Mlc, model: Path, golden: Callable[[str], None]) -> None:
    result = mlc("import", "line.onnx")
    assert (result.code, result.err) == (0, "")
    golden(result.out)


def test_saved_model_is_read_by_every_command(mlc: Mlc, model: Path, tmp_path: Path) -> None:
    result = mlc("import", "line.onnx", "-o", "line.mlc")
    assert result.code == 0
    assert "saved as line.mlc" in result.out
    assert SavedFrontend().load(tmp_path / "line.mlc").source.path == "line.onnx"
    again = mlc("import", "line.mlc")
    assert again.out.startswith("line.mlc: saved model, first imported from onnx; opset ai.onnx 17; from tests\n")


def test_a_quantised_model_is_saved(mlc: Mlc, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 8, 6, 6])
    y = onnx.helper.make_empty_tensor_value_info("y")
    weights = onnx.numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Conv", ["x", "w"], ["y"], "c")], "g", [x], [y], [weights])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "conv.onnx",
    )
    np.savez(tmp_path / "images.npz", x=rng.standard_normal((4, 8, 6, 6)).astype(np.float32))
    result = mlc(
        "import",
        "conv.onnx",
        "--quantize",
        "int8",
        "--calibrate",
        "images.npz",
        "-o",
        "q.mlc",
        "--json",
        "q.json",
        "--quantize-report",
    )
    assert result.code == 0
    assert "quantised 1 of 1 products to int8, on 4 samples" in result.out
    assert "SNR dB  largest error  mean error" in result.out
    told = json.loads((tmp_path / "q.json").read_text())["quantization"]
    assert told["products"] == 1
    (layer,) = told["layers"]
    assert layer["snr_db"] > 25
    assert layer["operator"] == "conv"
    saved = SavedFrontend().load(tmp_path / "q.mlc").graph
    assert sum(n.op.name == "quantize" for n in saved.nodes) == 1
    assert SavedFrontend().load(tmp_path / "q.mlc").source.quantised
    shifting = ("--quantize-for", "vdla", "--quantize-ends", "-o", "v.mlc")
    assert mlc("import", "conv.onnx", "--quantize", "int8", "--calibrate", "images.npz", *shifting).code == 0
    saved = SavedFrontend().load(tmp_path / "v.mlc").graph
    assert any(n.op.name == "conv" and n.outputs[0].type.dtype.name == "i32" for n in saved.nodes)
    refused = mlc("import", "conv.onnx", "--quantize", "int8")
    assert (refused.code, "needs typical inputs" in refused.err) == (2, True)


def test_check_writes_nothing(mlc: Mlc, model: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    result = mlc("import", "line.onnx", "--check")
    assert result.code == 0
    assert result.out.endswith("every operator can be imported\n")
    assert sorted(tmp_path.iterdir()) == before


def test_json_for_programs(mlc: Mlc, model: Path) -> None:
    document = json.loads(mlc("import", "line.onnx", "--json", "-").out)
    assert document["command"] == "import"
    assert document["inputs"] == [{"name": "x", "dtype": "f32", "shape": [3, 5]}]
    assert document["operators"] == {"add": 1, "mul": 1}
    assert document["parameters"] == {"elements": 10, "bytes": 40}
    assert document["model"]["path"] == "line.onnx"


@pytest.mark.parametrize(
    "flags", [("--dim", "rows=3"), ("--shape", "x=3,5"), ("--input-shapes", "x:[3,5]"), ("--const", "x=x.npy")]
)
def test_open_dimensions_are_given_in_any_form(mlc: Mlc, tmp_path: Path, flags: tuple[str, str]) -> None:
    onnx.save(onnx_model("rows"), tmp_path / "open.onnx")
    np.save(tmp_path / "x.npy", np.zeros((3, 5), np.float32))
    result = mlc("import", "open.onnx")
    assert result.code == 2
    assert "--dim rows=" in result.err
    assert "Traceback" not in result.err
    assert mlc("import", "open.onnx", *flags).code == 0


def test_all_unsupported_operators_are_listed(mlc: Mlc, tmp_path: Path) -> None:
    onnx.save(onnx_model(extra="Frobnicate"), tmp_path / "odd.onnx")
    result = mlc("import", "odd.onnx", "-o", "odd.mlc")
    assert (result.code, result.out) == (4, "")
    assert "Frobnicate" in result.err
    assert not (tmp_path / "odd.mlc").exists()


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (("--check", "-o", "x.mlc"), 2, "error: --check writes nothing, so it cannot stand with -o"),
        (("-o", "line.onnx"), 2, "error: line.onnx: is read, so it cannot be written"),
        (("-o", "none/x.mlc"), 2, "error: none/x.mlc: cannot be written"),
        (("--json", "none/x.json"), 2, "error: none/x.json: cannot be written"),
        (("--shape", "x=3,5", "--shape", "x=3,5"), 2, "error: --shape: 'x' is given twice"),
        (("--input-shapes", "x:[3,5] junk"), 2, "error: --input-shapes: 'junk' cannot be understood"),
        (("--limit", "nodes=1"), 3, "error: line.onnx: "),
        (("--model-format", "onx"), 2, "error: no front end 'onx'"),
    ],
)
def test_refusals(mlc: Mlc, model: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = mlc("import", "line.onnx", *arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(message)
    assert onnx.load(model)


def test_other_files_are_refused_by_what_they_look_like(mlc: Mlc, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    result = mlc("import", "x.onnx")
    assert result.code == 3
    assert "HDF5" in result.err
    assert mlc("import", "none.onnx").code == 2
