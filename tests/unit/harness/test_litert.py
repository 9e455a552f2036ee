"""LiteRT as the reference, and which program runs which format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlc.errors import MissingDependencyError, UnsupportedError, UsageError
from mlc.harness import litert_child
from mlc.harness.litert import LitertReference
from mlc.harness.reference import Tap, open_reference, reference_of
from tests.unit.frontend.tflite.writer import Op, T, write

pytest.importorskip("ai_edge_litert", reason="LiteRT, the reference")
X = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = [T((1, 3), name="x", signature=(-1, 3)), T((1, 3), name="t"), T((1, 3), name="y")]
    model = write(tensors, [Op("NEG", [0], [1]), Op("CEIL", [1], [2])], [0], [2])
    path = tmp_path / "m.tflite"
    path.write_bytes(model)
    return path


def test_outputs_and_tensors_in_between(path: Path) -> None:
    found = LitertReference(path, threads=1)
    np.testing.assert_array_equal(found.run({"x": X + 0.5})["y"], np.ceil(-(X + 0.5)))
    assert {"t", "y"} <= found.tensor_names()
    (batch,) = found.intermediates({"x": X}, [Tap("t", 24)])
    np.testing.assert_array_equal(batch["t"], -X)


def test_inputs_that_were_fixed_are_given_again(path: Path) -> None:
    np.testing.assert_array_equal(LitertReference(path, constants={"x": X}).run({})["y"], -X)
    with pytest.raises(UsageError, match="LiteRT needs input 'x'"):
        LitertReference(path).run({})


def test_formats_have_programs(path: Path) -> None:
    assert reference_of("tflite") == "tflite"
    assert reference_of("") == reference_of("onnx") == "onnxruntime"
    assert isinstance(open_reference("tflite", "tflite", path), LitertReference)
    with pytest.raises(UsageError, match="onnxruntime does not run tflite models") as caught:
        open_reference("onnxruntime", "tflite", path)
    assert "--verify tflite" in caught.value.hint
    with pytest.raises(UsageError, match="nothing here runs caffe models"):
        reference_of("caffe")


def test_what_litert_cannot_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.tflite").write_bytes(b"nonsense" * 10)
    with pytest.raises(UnsupportedError, match="LiteRT cannot run it"):
        LitertReference(tmp_path / "m.tflite")
    monkeypatch.setitem(__import__("sys").modules, "ai_edge_litert", None)
    with pytest.raises(MissingDependencyError, match="LiteRT, the reference to compare with, is not installed"):
        litert_child._litert()


@pytest.mark.parametrize("name", ["NEG", "ELU"])
def test_usual_kernels_are_told(name: str, tmp_path: Path) -> None:
    """Of some operators there is no reference kernel, and then of the whole model none is used."""
    path = tmp_path / "m.tflite"
    path.write_bytes(write([T((1, 3), name="x"), T((1, 3), name="y")], [Op(name, [0], [1])], [0], [1]))
    found = LitertReference(path)
    said = "LiteRT has no reference kernel for ELU; its usual kernels run the whole model, and may round otherwise"
    assert found.note == (said if name == "ELU" else "")
    found.run({"x": X[:1]})


def test_a_process_that_ends_is_one_error(path: Path) -> None:
    """Some of its kernels abort."""
    found = LitertReference(path)
    found._process.kill()
    with pytest.raises(UnsupportedError, match=r"m\.tflite: LiteRT was ended by SIGKILL while it ran it") as caught:
        found.run({"x": X})
    assert "--verify reference.npz" in caught.value.hint
