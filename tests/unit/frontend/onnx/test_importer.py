from __future__ import annotations

from hashlib import sha256

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlc.errors import ImportModelError, UsageError
from mlc.frontend.base import FixedInput, TensorInfo
from mlc.frontend.common.problems import UnsupportedModelError
from mlc.frontend.onnx import OnnxFrontend
from mlc.frontend.onnx.importer import import_onnx
from mlc.ir.interp import run_graph
from tests.unit.frontend.onnx.models import (
    BOOL,
    FLOAT,
    INT64,
    graph,
    imported,
    info,
    ints,
    model,
    node,
    operators_of,
    outputs_of,
    refused,
    relu_model,
)

X = np.array([-1, 2], np.float32)


def test_the_source_is_described(tmp_path):
    proto = relu_model("n", 3)
    proto.graph.name = "small"
    proto.producer_name, proto.producer_version = "exporter", "1.2"
    proto.metadata_props.add(key="author", value="me")
    file = tmp_path / "m.onnx"
    file.write_bytes(proto.SerializeToString())
    found = OnnxFrontend().load(file, dims={"n": 2})
    source = found.source
    assert (source.format, source.path, source.name) == ("onnx", str(file), "small")
    assert source.producer == "exporter 1.2"
    assert source.sha256 == sha256(file.read_bytes()).hexdigest()
    assert source.inputs == (TensorInfo("x", (2, 3), "f32"),)
    assert source.outputs == (TensorInfo("y", (2, 3), "f32"),)
    assert source.opsets == {"ai.onnx": 17}
    assert source.metadata == {"author": "me"}
    assert found.graph.name == "small"


def test_the_front_end_knows_its_files(tmp_path):
    front = OnnxFrontend()
    assert front.matches(relu_model(1).SerializeToString()[:512], tmp_path / "x.bin")
    assert not front.matches(b"PK\x03\x04", tmp_path / "x.onnx")
    assert front.suffixes == (".onnx",)


def test_errors_name_the_file(tmp_path):
    file = tmp_path / "m.onnx"
    file.write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(ImportModelError, match=r"m\.onnx: not an ONNX model: looks like HDF5"):
        import_onnx(file)
    with pytest.raises(UsageError, match=r"gone\.onnx: cannot be opened") as caught:
        import_onnx(tmp_path / "gone.onnx")
    assert caught.value.message.count("gone.onnx") == 1


# -- names


def test_tensors_keep_the_models_names_and_what_is_made_on_the_way_gets_others():
    gemm = node("Gemm", ["x", "w", "b"], ["dense/out:0"], name="dense")
    proto = model(
        [gemm, node("Relu", ["dense/out:0"], ["y"])],
        [info("x", [1, 2])],
        ["y"],
        {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)},
    )
    found = imported(proto)
    names = [n.outputs[0].name for n in found.nodes]
    assert names == ["dense/matmul", "dense/out:0", "y"]
    assert {v.name for v in found.constants} == {"w", "b"}
    assert [n.sources for n in found.nodes] == [("dense",), ("dense",), ("Relu_1",)]


def test_a_tensor_named_like_something_made_on_the_way_keeps_its_name():
    gemm = node("Gemm", ["x", "w", "b"], ["z"], name="dense")
    stored = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    found = imported(
        model([gemm, node("Relu", ["z"], ["dense/matmul"])], [info("x", [1, 2])], ["dense/matmul"], stored)
    )
    assert found.outputs[0].name == "dense/matmul"
    assert len({v.name for n in found.nodes for v in n.outputs}) == 3


@pytest.mark.parametrize("name", ["a b", "x\ny", "'q'", '"', "\x01", "日本", "../up", "%s{}", "0" * 500])
def test_any_text_is_a_name(name):
    found = imported(model([node("Relu", ["in" + name], [name], name=name)], [info("in" + name, [2])], [name]))
    assert found.inputs[0].name == "in" + name
    assert found.output_names == (name,)


def test_messages_escape_names():
    proto = model([node("NoSuchThing", ["x"], ["y"], name="a\nb")], [info("x", [2])], ["y"])
    assert r"'a\nb'" in refused(proto, UnsupportedModelError, "NoSuchThing").message


# -- inputs, outputs, constants


def test_outputs_may_be_inputs_or_constants():
    proto = model([node("Relu", ["x"], ["y"])], [info("x", [2])], ["x", "y", "w"], {"w": X})
    out = import_onnx(proto.SerializeToString()).graph
    assert out.output_names == ("x", "y", "w")
    assert operators_of(out) == ["relu"]
    values = run_graph(out, {"x": X})
    np.testing.assert_array_equal(values["w"], X)
    np.testing.assert_array_equal(values["x"], X)


def test_inputs_that_are_not_used_stay_inputs():
    found = imported(model([node("Relu", ["x"], ["y"])], [info("x", [2]), info("unused", [3])], ["y"]))
    assert [v.name for v in found.inputs] == ["x", "unused"]


@pytest.mark.parametrize("ir_version", [3, 10])
def test_inputs_with_an_initializer_are_constants(ir_version):
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x", [2]), info("w", [2])], ["y"], {"w": X})
    proto.ir_version = ir_version
    assert [v.name for v in imported(proto).inputs] == ["x"]


def test_constants_that_nobody_uses_are_dropped():
    shaped = model(
        [node("Reshape", ["x", "s"], ["y"])], [info("x", [2])], ["y"], {"s": ints(2, 1), "unused": X, "t": ints(1)}
    )
    assert imported(shaped).constants == {}


def test_stored_values_of_any_kind_are_kept():
    w = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x", [5])], ["y"], {"w": w})
    (array,) = imported(proto).constants.values()
    assert array.tobytes() == w.tobytes()
    np.testing.assert_array_equal(outputs_of(proto, {"x": np.zeros(5, np.float32)})["y"], w)


def test_empty_tensors_are_right():
    proto = model([node("Concat", ["x", "w"], ["y"], axis=0)], [info("x", [0, 3])], ["y"], {"w": np.ones((2, 3), "f")})
    assert outputs_of(proto, {"x": np.ones((0, 3), np.float32)})["y"].shape == (2, 3)


def test_sparse_initializers_become_dense():
    proto = model([node("Add", ["x", "w"], ["y"])], [info("x", [3]), info("w", [3])], ["y"])
    proto.graph.sparse_initializer.append(
        onnx.SparseTensorProto(
            values=helper.make_tensor("w", FLOAT, [1], [5.0]),
            indices=helper.make_tensor("i", INT64, [1], [2]),
            dims=[3],
        )
    )
    assert outputs_of(proto, {"x": np.zeros(3, np.float32)})["y"].tolist() == [0, 0, 5]


def test_an_output_of_another_type_than_declared_is_refused():
    proto = relu_model(2)
    proto.graph.output[0].CopyFrom(info("y", [2], INT64))
    refused(proto, ImportModelError, "output 'y' is declared i64, its nodes make f32")


def test_known_shapes_fold_away():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Concat", ["n1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    stored = {"zero": np.array(0), "axes": ints(0), "rest": ints(-1)}
    found = imported(model(nodes, [info("x", ["n", 2, 3])], ["y"], stored), dims={"n": 4})
    assert operators_of(found) == ["reshape"]
    assert found.outputs[0].type.shape == (4, 6)
    assert found.constants == {}


# -- constants given by the caller


def reshaping():
    return model([node("Reshape", ["x", "s"], ["y"])], [info("x", [2]), info("s", ["r"], INT64)], ["y"])


def test_an_input_that_must_be_known_is_named_with_the_flag():
    error = refused(reshaping(), UnsupportedModelError, "depends on the model's inputs", dims={"r": 2})
    assert error.inputs_to_fix == ("s",)
    assert "--const s=VALUE" in error.hint


def test_an_input_computed_on_the_way_is_traced_to_the_models_input():
    nodes = [node("Add", ["s", "one"], ["t"]), node("Neg", ["t"], ["u"]), node("Reshape", ["x", "u"], ["y"])]
    proto = model(nodes, [info("x", [2]), info("q", [1]), info("s", [1], INT64)], ["y"], {"one": ints(1)})
    assert refused(proto, UnsupportedModelError, "known at compile time").inputs_to_fix == ("s",)


def test_an_input_given_a_value_is_no_longer_an_input():
    found = import_onnx(reshaping().SerializeToString(), constants={"s": ints(2, 1)})
    assert [v.name for v in found.graph.inputs] == ["x"]
    assert found.graph.outputs[0].type.shape == (2, 1)
    (fixed,) = found.source.constants
    assert fixed == FixedInput("s", (2,), "i64", np.array([2, 1]).tobytes())


def test_values_give_symbols_their_size():
    proto = model([node("Add", ["a", "b"], ["y"])], [info("a", ["n"]), info("b", ["n"])], ["y"])
    assert imported(proto, constants={"b": X}).inputs[0].type.shape == (2,)


def test_wrong_values_are_refused():
    error = refused(reshaping(), UsageError, "no input 't' to give a value", constants={"t": X})
    assert "'x', 's'" in error.hint
    refused(reshaping(), UsageError, "given both a value and a shape", constants={"s": ints(1)}, shapes={"s": (1,)})
    refused(reshaping(), UsageError, r"input 's' is i64\[r\], the constant given for it is float32", constants={"s": X})


# -- what is not supported


def test_everything_that_is_not_supported_is_in_one_report():
    nodes = [
        node("Frob", ["x"], ["a"], name="f1", domain="my"),
        node("Frob", ["a"], ["b"], name="f2", domain="my"),
        node("Relu", ["b"], ["c"]),
        node("NoSuchThing", ["c"], ["d"], name="n"),
        node("StringNormalizer", ["t"], ["e"], name="s"),
        *[node("Frob", ["x"], [f"z{k}"], name=f"z{k}", domain="my") for k in range(5)],
    ]
    proto = model(
        nodes,
        [info("x", [2]), info("t", [1], TensorProto.STRING)],
        ["d", "e", *[f"z{k}" for k in range(5)]],
        domains={"my": 3},
    )
    error = refused(proto, UnsupportedModelError, "^not supported:\n")
    lines = [line.strip() for line in error.message.splitlines()[1:]]
    assert lines == [
        "input 't': element type string is not supported",
        "Frob (my 3), 7 nodes ('f1', 'f2', 'z0' and 4 more): there is no converter for it",
        "NoSuchThing (ai.onnx 17), node 'n': ONNX has no operator of this name",
        "StringNormalizer (ai.onnx 17), node 's': there is no converter for it",
    ]
    assert "mlc ops" in error.hint


def test_limits_of_attributes_are_reported_like_operators():
    nodes = [
        node("Constant", [], ["s"], value_string="text"),
        node("Gelu", ["x"], ["y"], name="g"),
    ]
    error = refused(model(nodes, [info("x", [2])], ["y", "s"]), UnsupportedModelError, "strings are not supported")
    assert "Gelu (ai.onnx 17), node 'g': exists since operator set 20 only" in error.message


def test_an_operator_older_than_what_is_understood_says_so():
    error = refused(
        model([node("Scan", ["", "x"], ["y"], body=graph([]), num_scan_inputs=1)], [info("x", [2])], ["y"], opset=8),
        UnsupportedModelError,
        "Scan .* defined before operator set 9, the oldest understood",
    )
    assert len(error.problems) == 1


def test_nodes_that_nobody_needs_may_be_unsupported():
    proto = model([node("NoSuchThing", ["x"], ["z"]), node("Relu", ["x"], ["y"])], [info("x", [2])], ["y"])
    assert operators_of(imported(proto)) == ["relu"]


def test_outputs_that_nobody_needs_may_be_unsupported():
    drop = node("MaxPool", ["x"], ["y", "where"], kernel_shape=[2])
    assert operators_of(imported(model([drop], [info("x", [1, 1, 4])], ["y"]))) == ["max_pool"]


def test_initializers_of_types_that_mlc_lacks_are_reported():
    proto = model([node("Relu", ["x"], ["y"])], [info("x", [2])], ["y", "w"])
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [1], [1.0]))
    error = refused(proto, UnsupportedModelError, "element type float8e4m3fn is not supported")
    assert "initializer 'w': element" in error.message


def test_operators_defined_by_others_need_no_converter():
    proto = model([node("SwiGLU", ["x", "x"], ["y"], name="act")], [info("x", [2])], ["y"], opset=28)
    found = imported(proto)
    assert {s for n in found.nodes for s in n.sources} == {"act"}
    silu = X / (1 + np.exp(-X))
    got = run_graph(found, {"x": X})["y"]
    np.testing.assert_allclose(got, silu * X, rtol=1e-6)


def test_operators_that_are_missing_are_reported_together_with_open_dimensions():
    """Giving the dimensions would not help, so it must not be the first thing to be asked for."""
    inner = graph([node("StringNormalizer", ["x"], ["o"], name="words")], [], ["o"])
    then = graph([node("Neg", ["x"], ["o"])], [], ["o"])
    own = helper.make_function("own", "f", ["p"], ["r"], [node("Nope", ["p"], ["r"])], [helper.make_opsetid("", 17)])
    nodes = [
        node("RegexFullMatch", ["x"], ["a"], name="match"),
        node("Conv", ["x", "x"], ["b"], name="conv"),
        node("f", ["b"], ["c"], domain="own", name="call"),
        node("If", ["t"], ["d"], then_branch=then, else_branch=inner),
        node("Unneeded", ["x"], ["e"]),
    ]
    inputs = [info("x", ["batch", 3]), info("t", [], BOOL)]
    proto = model(nodes, inputs, ["a", "c", "d"], functions=[own], domains={"own": 1})
    error = refused(proto, UnsupportedModelError, "not supported")
    assert [line.split(":")[0] for line in error.message.splitlines()[1:]] == [
        "  RegexFullMatch (ai.onnx 17), node 'match'",
        "  Nope (ai.onnx 17), node 'call/Nope_0'",
        "  besides, shapes must be fixed at compile time",
    ]
    assert "--dim batch=1" in error.hint


def test_thousands_of_open_dimensions_are_not_all_listed():
    names = [f"x{k}" for k in range(5000)]
    proto = model([node("Sum", names, ["y"])], [info(name, [f"d{name}"]) for name in names], ["y"])
    error = refused(proto, UsageError, "shapes must be fixed at compile time: input 'x0'.*; and 4960 more")
    assert len(error.hint) < 2000
