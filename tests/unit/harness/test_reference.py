"""onnxruntime as the reference."""

from __future__ import annotations

import builtins
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.errors import ImportModelError, MissingDependencyError, UnsupportedError, UsageError
from mlc.harness import reference
from mlc.harness.reference import OnnxReference, Tap, batches, find_source
from mlc.runtime.manifest import ModelSpec
from tests.unit.cli.conftest import WEIGHTS, onnx_model

X = np.ones((3, 5), np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "line.onnx"
    onnx.save(onnx_model(), path)
    return path


def test_outputs(path: Path) -> None:
    np.testing.assert_array_equal(OnnxReference(path).run({"x": X})["y"], X * WEIGHTS["w"] + WEIGHTS["b"])


@pytest.mark.parametrize("quantised", [False, True])
def test_models_with_steps_of_8_bits_are_run_as_they_stand(tmp_path: Path, quantised: bool) -> None:
    op = ("QuantizeLinear", "DequantizeLinear") if quantised else ("Mul", "Div")
    nodes = [helper.make_node(op[0], ["x", "s"], ["q"]), helper.make_node(op[1], ["q", "s"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(np.float32(0.1), "s")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    level = OnnxReference(tmp_path / "m.onnx")._session.get_session_options().graph_optimization_level
    assert level.name == ("ORT_DISABLE_ALL" if quantised else "ORT_ENABLE_ALL")


@pytest.mark.parametrize("data", [np.uint8, np.int8])
def test_products_of_bytes_are_exact(tmp_path: Path, data: type) -> None:
    """Wherever they are asked for, though onnxruntime's own may saturate where the processor has no VNNI."""
    x, w = np.full((1, 64), np.iinfo(data).max, data), np.full((64, 3), 127, np.int8)
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], ["p"]), helper.make_node("Neg", ["p"], ["y"])]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("x", kind, x.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    found = OnnxReference(tmp_path / "m.onnx")
    want = x.astype(np.int32) @ w.astype(np.int32)
    np.testing.assert_array_equal(found.run({"x": x})["y"], -want)
    (taps,) = found.intermediates({"x": x}, [Tap("p", 12)])
    np.testing.assert_array_equal(taps["p"], want)


def test_intermediates_come_in_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BATCH_BYTES", 100)
    found = OnnxReference(path)
    assert found.tensor_names() == {"t", "y"}
    taps = [Tap("t", 60), Tap("y", 60)]
    first, second = found.intermediates({"x": X}, taps)
    assert (list(first), list(second)) == (["t"], ["y"])
    np.testing.assert_array_equal(first["t"], X * WEIGHTS["w"])


def test_external_data_is_found(tmp_path: Path) -> None:
    model = onnx_model()
    folder = tmp_path / "big"
    folder.mkdir()
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    found = OnnxReference(folder / "m.onnx")
    (batch,) = found.intermediates({"x": X}, [Tap("t", 60)])
    np.testing.assert_array_equal(batch["t"], X * WEIGHTS["w"])


def test_batches_are_cut_by_size() -> None:
    big = reference.BATCH_BYTES
    assert list(batches([Tap("a", big + 1), Tap("b", 1), Tap("c", big - 1), Tap("d", 1)])) == [["a"], ["b", "c"], ["d"]]
    assert list(batches([])) == []


def test_inputs_made_constant_are_given_again(tmp_path: Path) -> None:
    scalar = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("a", "b", "c")]
    node = helper.make_node("Add", ["a", "b"], ["c"])
    graph = helper.make_graph([node], "g", scalar[:2], scalar[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    feeds = {"a": np.float32(1)}
    assert OnnxReference(tmp_path / "m.onnx", constants={"b": 2}).run(feeds)["c"] == 3
    with pytest.raises(UsageError, match="onnxruntime needs input 'b', which the module does not have") as raised:
        OnnxReference(tmp_path / "m.onnx").run(feeds)
    assert "--const b=VALUE" in raised.value.hint


def test_what_onnxruntime_cannot_do_is_one_error(tmp_path: Path, path: Path) -> None:
    onnx.save(onnx_model(extra="Frobnicate"), tmp_path / "odd.onnx")
    with pytest.raises(UnsupportedError, match=r"odd\.onnx: onnxruntime cannot run it: "):
        OnnxReference(tmp_path / "odd.onnx")
    with pytest.raises(UnsupportedError, match="onnxruntime cannot run it: "):
        OnnxReference(path).run({"x": np.ones((3, 4), np.float32)})


def test_a_file_that_is_no_onnx(tmp_path: Path, path: Path) -> None:
    found = OnnxReference(path)
    path.write_bytes(b"junk")
    with pytest.raises(ImportModelError, match="cannot be read as ONNX"):
        found.tensor_names()


def test_without_onnxruntime(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "onnxruntime":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependencyError, match="is not installed") as raised:
        OnnxReference(path)
    assert "pip install onnxruntime" in raised.value.hint


def test_the_source_is_found_where_it_was_or_beside_the_module(path: Path, tmp_path: Path) -> None:
    digest = sha256(path.read_bytes()).hexdigest()
    module = tmp_path / "module.tar"
    assert find_source(module, ModelSpec("m", digest, str(path))) == path
    assert find_source(module, ModelSpec("m", digest, "elsewhere/line.onnx")) == path
    with pytest.raises(UsageError, match=r"was compiled from gone\.onnx, which is not there any more"):
        find_source(module, ModelSpec("m", digest, "gone.onnx"))
    with pytest.raises(UsageError, match="which was changed since"):
        find_source(module, ModelSpec("m", "0" * 64, str(path)))
    with pytest.raises(UsageError, match="does not say which file it was compiled from"):
        find_source(module, ModelSpec("m", digest, ""))


def test_a_weight_in_the_model_is_no_tensor_to_tap(tmp_path: Path) -> None:
    model = onnx_model()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1), "unused"))
    onnx.save(model, tmp_path / "m.onnx")
    assert "unused" not in OnnxReference(tmp_path / "m.onnx").tensor_names()
