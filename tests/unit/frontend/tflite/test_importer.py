"""Reading files, names, shapes, and what is refused, all in one message."""

from __future__ import annotations

import numpy as np
import pytest

import mlc
from mlc.api import survey as survey_of
from mlc.errors import ImportModelError, UsageError
from mlc.frontend.base import get_frontend, guess_frontend
from mlc.frontend.common.problems import UnsupportedModelError
from mlc.frontend.limits import Limits
from mlc.frontend.tflite.importer import import_tflite
from mlc.frontend.tflite.model import read_model
from mlc.ir.interp import run_graph
from tests.unit.frontend.tflite.writer import Op, T, const, one, write

RELU = Op("RELU", [0], [1])


def chain(*names: str, custom=(), shape=(2, 3)):
    """Operators of one operand, one after the other."""
    tensors = [T(shape, name="x")] + [T(shape, name=f"y{k}") for k in range(len(names))]
    operators = [Op(name, [k], [k + 1]) for k, name in enumerate(names)]
    return write(tensors, operators, [0], [len(names)], custom=custom)


def test_a_file_is_found_by_its_content(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(chain("RELU", "ABS"))
    assert guess_frontend(path).name == "tflite"
    model = mlc.load(path)
    assert model.format == "tflite"
    assert [(t.name, t.shape, t.dtype) for t in model.inputs] == [("x", (2, 3), "f32")]
    assert [t.name for t in model.outputs] == ["y1"]
    assert model.info.opsets == {"tflite": 3}
    assert model.info.producer == "a test"
    survey = survey_of(path)
    assert survey.operators == {"ABS": 1, "RELU": 1}
    assert survey.inputs == (("x", "f32[2,3]"),)
    module = mlc.compile(model).load(1)
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    np.testing.assert_array_equal(module.run({"x": x})["y1"], np.maximum(x, 0))


def test_tensors_keep_their_names_and_steps_their_operators():
    graph = import_tflite(chain("TANH", "ABS")).graph
    assert [v.name for n in graph.nodes for v in n.outputs] == ["y0", "y1"]
    assert [n.sources for n in graph.nodes] == [("y0",), ("y1",)]


def test_names_that_repeat_get_a_number():
    tensors = [T((2,), name="t"), T((2,), name="t"), T((2,), name="t")]
    graph = import_tflite(write(tensors, [RELU, Op("ABS", [1], [2])], [0], [2])).graph
    assert [v.name for v in graph.inputs] == ["t"]
    assert graph.output_names == ("t.1",)


def test_outputs_may_be_inputs_constants_and_the_same_twice():
    tensors = [T((2,), name="x"), T((2,), name="y"), const(np.float32([1, 2]), name="c")]
    graph = import_tflite(write(tensors, [RELU], [0], [0, 1, 1, 2])).graph
    got = run_graph(graph, {"x": np.float32([-1, 3])})
    assert {k: v.tolist() for k, v in got.items()} == {"x": [-1, 3], "y": [0, 3], "y.1": [0, 3], "c": [1, 2]}


def test_dimensions_that_vary_are_those_of_the_file_or_given():
    tensors = [T((1, 3), name="x", signature=(-1, 3)), T((1, 3), name="y", signature=(-1, 3))]
    model = write(tensors, [RELU], [0], [1])
    assert import_tflite(model).source.inputs[0].shape == (1, 3)
    assert import_tflite(model, shapes={"x": (5, 3)}).source.outputs[0].shape == (5, 3)
    with pytest.raises(UsageError, match=r"input 'x' is f32\[\?,3\] in the model, the given shape has 4 at position 1"):
        import_tflite(model, shapes={"x": (5, 4)})
    with pytest.raises(UsageError, match="no input 'z' to give a shape"):
        import_tflite(model, shapes={"z": (5, 4)})
    with pytest.raises(UsageError, match="no dimension 'batch'"):
        import_tflite(model, dims={"batch": 4})


def test_inputs_may_be_fixed():
    model, _ = one("RESHAPE", [np.zeros((2, 3), np.float32), np.array([3, 2], np.int32)], [T((3, 2))], "ReshapeOptions")
    imported = import_tflite(model, constants={"t1": np.array([3, 2], np.int32)})
    assert [v.name for v in imported.graph.inputs] == ["t0"]
    assert imported.source.constants[0].name == "t1"


def test_everything_that_is_not_supported_is_named_at_once():
    with pytest.raises(UnsupportedModelError) as caught:
        import_tflite(chain("RELU", "MyOp", "FlexErf", "HASHTABLE", "ABS", custom=["MyOp", "FlexErf"]))
    assert str(caught.value).splitlines() == [
        "not supported:",
        "  MyOp, operator 'y1': is a custom operator, whose code is not in the file",
        "  FlexErf, operator 'y2': is an operator of TensorFlow itself, whose code is not in the file",
        "  HASHTABLE, operator 'y3': there is no converter for it",
    ]
    assert "mlc ops --frontend tflite" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "reason", "hint"),
    [
        ("WHILE", "is control flow, which is not followed", "recurrent layers of Keras with unroll=True"),
        ("IF", "is control flow, which is not followed", "the model's Keras or ONNX file, whose recurrences, loops"),
        ("CALL", "is control flow, which is not followed", "convert without control flow"),
        ("STABLEHLO_WHILE", "is control flow, which is not followed", "convert without control flow"),
        ("STABLEHLO_ADD", "there is no converter for it", "supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]"),
        ("FlexErf", "is an operator of TensorFlow itself", "supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]"),
    ],
)
def test_what_to_do_about_it_is_said(name, reason, hint):
    with pytest.raises(UnsupportedModelError) as caught:
        import_tflite(chain(name, custom=[name] if name.startswith("Flex") else []))
    assert f"{name}, operator 'y0': {reason}" in str(caught.value)
    assert hint in caught.value.hint


def test_types_that_are_not_computed_with_are_named():
    tensors = [T((2,), kind="STRING", name="words"), T((2,), name="y")]
    with pytest.raises(UnsupportedModelError, match="input 'words': element type STRING is not supported"):
        import_tflite(write(tensors, [RELU], [0], [1]))


def test_weights_of_4_bits_are_unpacked():
    packed = bytes([0x7F, 0x80, 0x01])  # -1, 7, 0, -8, 1
    tensors = [T((5,), kind="INT4", raw=packed, scale=0.5), T((5,), name="y")]
    graph = import_tflite(write(tensors, [Op("DEQUANTIZE", [0], [1], {}, "DequantizeOptions")], [], [1])).graph
    assert run_graph(graph, {})["y"].tolist() == [-0.5, 3.5, 0.0, -4.0, 0.5]


@pytest.mark.parametrize(
    ("tensors", "operators", "message"),
    [
        (
            [T((2,)), T((2,))],
            [Op("RELU", [7], [1])],
            r"Operator 0 \(RELU\): inputs: there is no tensor 7, the graph has 2",
        ),
        ([T((2,)), T((2,))], [Op("RELU", [0], [-1])], r"outputs: there is no tensor -1"),
        ([T((2,)), T((2,))], [Op("RELU", [-1], [1])], r"operator 0 \(RELU\): input 0 is missing"),
        ([T((2,)), T((2,)), T((2,))], [Op("RELU", [2], [1])], r"tensor 2 \('t2'\) is used, but nothing makes it"),
        ([T((2,)), T((2,))], [RELU, RELU], r"tensor 1 \('t1'\) is made twice"),
        ([T((-2,)), T((2,))], [RELU], r"tensor 0 \('t0'\): negative extent in shape \[-2\]"),
        ([T((2,)), T((2,)), T((3,), raw=b"12345")], [RELU], r"\[3\] takes 12 bytes, 5 are stored"),
        ([T((2,), scale=float("nan")), T((2,))], [RELU], "a scale is nan"),
        ([T((2,), scale=[1, 2, 3]), T((2,))], [RELU], r"3 scales along axis 0 of \[2\]"),
        ([T((1 << 20, 1 << 20)), T((2,))], [RELU], "the limit 'tensor_bytes'"),
        ([T((1,) * 40), T((2,))], [RELU], "the limit 'rank' is 32"),
        ([T((2,), name="n" * 5000), T((2,))], [RELU], "the limit 'name_length' is 4096"),
    ],
)
def test_what_contradicts_itself_is_refused(tensors, operators, message):
    with pytest.raises(ImportModelError, match=message):
        import_tflite(write(tensors, operators, [0], [1]))


def test_limits_hold():
    model = chain(*["RELU"] * 40)
    with pytest.raises(ImportModelError, match="operators of the file: 40, the limit 'nodes' is 30"):
        read_model(model, Limits(nodes=30))
    with pytest.raises(ImportModelError, match=r"the model: \d+ bytes, the limit 'file_bytes' is 100 bytes"):
        read_model(model, Limits(file_bytes=100))


def test_other_files_are_named(tmp_path):
    for data, what in (
        (b"PK\x03\x04", "looks like a zip archive"),
        (b"", "looks like an empty file"),
        (b"\0" * 40, "not a TFLite"),
    ):
        path = tmp_path / "model.tflite"
        path.write_bytes(data)
        with pytest.raises(ImportModelError, match=what):
            mlc.load(path, frontend="tflite")


def test_operators_are_listed_with_their_limits():
    found = {(o.domain, o.name): o for o in get_frontend("tflite").supported_operators()}
    assert len(found) >= 100
    assert found["", "TRANSPOSE_CONV"].limits
