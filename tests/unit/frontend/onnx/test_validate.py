from __future__ import annotations

import pytest
from onnx import ModelProto, helper

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.validate import check_model, opset_of, read_opsets
from tests.unit.frontend.onnx.models import BOOL, graph, info, model, node, relu_model


def refuse(proto, match, error=ImportModelError, limits=None):
    with pytest.raises(error, match=match) as caught:
        check_model(proto, limits or Limits())
    return caught.value


def relu(**changes):
    proto = relu_model(2)
    for name, new in changes.items():
        setattr(proto, name, new)
    return proto


def test_a_sound_model_gives_its_versions():
    proto = model([node("Relu", ["x"], ["y"])], [info("x", [2])], ["y"], opset=13, domains={"my.own": 3})
    assert check_model(proto, Limits()) == {"": 13, "my.own": 3}


def test_both_spellings_of_the_standard_domain_are_one():
    assert read_opsets([helper.make_opsetid("ai.onnx", 13), helper.make_opsetid("", 13)], "it") == {"": 13}
    assert opset_of("ai.onnx", {"": 13}) == 13


def test_the_format_version_is_checked():
    refuse(relu(ir_version=0), "has no format version")
    error = refuse(relu(ir_version=99), r"format version \(ir_version\) is 99", UnsupportedError)
    assert "newer onnx" in error.hint


def test_the_first_formats_had_no_imports():
    proto = relu(ir_version=2)
    del proto.opset_import[:]
    assert check_model(proto, Limits()) == {"": 1}


def test_operator_sets_are_checked():
    error = refuse(model([], opset=9999), "uses operator set 9999, the newest known is", UnsupportedError)
    assert "export the model for operator set" in error.hint
    refuse(model([], opset=0), "operator set 'ai.onnx' has version 0")
    refuse(model([], opset=-1), "operator set 'ai.onnx' has version -1")
    twice = model([])
    twice.opset_import.append(helper.make_opsetid("", 9))
    refuse(twice, "operator set 'ai.onnx' is imported in two versions")
    with pytest.raises(ImportModelError, match=r"the model imports no operator set 'my.own'"):
        opset_of("my.own", {"": 13})


def test_names_are_single():
    x = info("x", [2])
    refuse(model([], [x, x]), "the graph: two inputs are called 'x'")
    proto = relu()
    for _ in range(2):
        proto.graph.initializer.add(name="w")
    refuse(proto, "two initializers are called 'w'")
    refuse(model([], [info("", [2])]), "an input or initializer has no name")
    refuse(model([node("Relu", ["x"], ["x"])], [x]), "makes 'x', which exists already")
    refuse(
        model([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"], name="neg")], [x]),
        r"node 'neg' \(Neg\): makes 'y', which exists already",
    )


def test_what_is_read_must_be_made():
    refuse(model([node("Relu", ["x"], ["y"])]), r"node 'Relu_0' \(Relu\): reads 'x', which nothing makes")
    refuse(model([], outputs=["y"]), "the graph: output 'y' is never made")
    refuse(model([], outputs=[""]), "output '' is never made")


def test_order_does_not_matter():
    check_model(model([node("Neg", ["a"], ["b"]), node("Relu", ["x"], ["a"])], [info("x", [2])], ["b"]), Limits())


def branches(body, depth=1):
    for _ in range(depth):
        body = graph([node("If", ["c"], ["o"], then_branch=body, else_branch=body)], outputs=["o"])
    return model(body.node, [info("c", [], BOOL), info("x", [2])], ["o"])


def test_subgraphs_see_what_is_around_them():
    check_model(branches(graph([node("Relu", ["x"], ["o"])], outputs=["o"]), 2), Limits())
    refuse(branches(graph([node("Relu", ["z"], ["o"])], outputs=["o"])), "reads 'z', which nothing makes")
    refuse(branches(graph([], outputs=["z"])), "node 'If_0': subgraph: output 'z' is never made")


def test_nesting_and_nodes_are_limited():
    proto = branches(graph([node("Relu", ["x"], ["o"])], outputs=["o"]), 4)
    refuse(proto, "nesting of subgraphs: 4, the limit 'depth' is 3", limits=Limits(depth=3))
    refuse(proto, "nodes in the model: 31, the limit 'nodes' is 30", limits=Limits(nodes=30))


def test_nodes_have_an_operator_and_single_attributes():
    refuse(model([node("", [], ["y"], name="n")]), "node 'n': has no operator")
    twice = node("Elu", ["x"], ["y"], name="n", alpha=1.0)
    twice.attribute.add().CopyFrom(twice.attribute[0])
    refuse(model([twice], [info("x", [2])]), r"node 'n' \(Elu\): attribute 'alpha' occurs twice")


def test_functions_are_checked_like_graphs():
    def with_function(nodes, inputs=("a",), outputs=("b",)):
        function = helper.make_function("my", "f", inputs, outputs, nodes, [helper.make_opsetid("", 17)])
        return model([], functions=[function], domains={"my": 1})

    check_model(with_function([node("Relu", ["a"], ["b"])]), Limits())
    refuse(with_function([node("Relu", ["z"], ["b"])]), "reads 'z', which nothing makes")
    refuse(with_function([]), "function 'f': output 'b' is never made")
    refuse(with_function([node("Relu", ["a"], ["b"])], inputs=("a", "a")), "function 'f': two inputs have one name")
    refuse(with_function([node("Relu", ["a"], ["b"])] * 2), "makes 'b', which exists already")


@pytest.mark.parametrize(
    "old, what",
    [
        (b"naaame", "node"),
        (b"tensooor", "name"),
        (b"prooducer", "producer"),
        (b"metaaa", "metadata"),
        (b"batchhh", "dimension"),
        (b"domaaain", "operator set"),
    ],
)
def test_names_must_be_text(old, what):
    proto = model(
        [node("Relu", ["tensooor"], ["y"], name="naaame")],
        [info("tensooor", ["batchhh"])],
        ["y"],
        domains={"domaaain": 1},
    )
    proto.producer_name = "prooducer"
    proto.metadata_props.add(key="k", value="metaaa")
    data = proto.SerializeToString().replace(old, b"\xff" + old[1:])
    refuse(ModelProto.FromString(data), "is not UTF-8 text")


def test_outputs_have_names_of_their_own():
    proto = model([node("Relu", ["x"], ["y"])], [info("x", [2])], ["y", "y"])
    refuse(proto, "the graph: two outputs are called 'y'")
