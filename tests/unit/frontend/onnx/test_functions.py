from __future__ import annotations

import numpy as np
import pytest
from onnx import AttributeProto, helper

from mlc.errors import ImportModelError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.functions import FunctionTable
from tests.unit.frontend.onnx.models import (
    BOOL,
    graph,
    imported,
    info,
    model,
    node,
    operators_of,
    outputs_of,
    refused,
)

X = np.array([-1, 2], np.float32)


def function(name, nodes, inputs=("a",), outputs=("b",), attributes=(), **options):
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return helper.make_function("my", name, inputs, outputs, nodes, imports, attributes, **options)


def calling(functions, nodes=(), stored=None):
    outputs = ["y"] if nodes else []
    return model(nodes, [info("x", [2])], outputs, stored, functions=functions, domains={"my": 1})


def call(name, *inputs, outputs=("y",), **attrs):
    return node(name, list(inputs), list(outputs), domain="my", name="call", **attrs)


def slope():
    """A LeakyRelu whose slope is the function's attribute ``s``."""
    leaky = node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(AttributeProto(name="alpha", ref_attr_name="s", type=AttributeProto.FLOAT))
    return leaky


def test_a_function_is_expanded_where_it_is_called():
    f = function("f", [node("Relu", ["a"], ["t"]), node("Neg", ["t"], ["b"], name="inner")])
    found = imported(calling([f], [call("f", "x")]))
    assert operators_of(found) == ["relu", "neg"]
    assert [n.sources for n in found.nodes] == [("call/Relu_0",), ("call/inner",)]
    assert [n.outputs[0].name for n in found.nodes] == ["call/t", "y"]


def test_attributes_come_from_the_call_or_the_default():
    given = function("given", [slope()], attributes=["s"])
    default = function("default", [slope()], attribute_protos=[helper.make_attribute("s", 0.5)])

    def run(f, **attrs):
        return outputs_of(calling([f], [call(f.name, "x", **attrs)]), {"x": X})["y"].tolist()

    assert run(given, s=0.25) == [-0.25, 2]
    assert run(given) == pytest.approx([-0.01, 2])
    assert run(default) == [-0.5, 2]
    assert run(default, s=0.25) == [-0.25, 2]


def test_attributes_reach_into_subgraphs():
    leaky = slope()
    choice = node(
        "If", ["c"], ["b"], then_branch=graph([leaky], outputs=["b"]), else_branch=graph([leaky], outputs=["b"])
    )
    f = function("f", [choice], inputs=("a", "c"), attributes=["s"])
    proto = calling([f], [call("f", "x", "c", s=0.25)], stored={"c": np.array(True)})
    assert outputs_of(proto, {"x": X})["y"].tolist() == [-0.25, 2]


def test_operands_may_be_left_out():
    f = function("f", [node("Clip", ["a", "lo", "hi"], ["b"])], inputs=("a", "lo", "hi"))
    stored = {"hi": np.float32(1)}
    assert outputs_of(calling([f], [call("f", "x", "", "hi")], stored=stored), {"x": X})["y"].tolist() == [-1, 1]
    assert outputs_of(calling([f], [call("f", "x")]), {"x": X})["y"].tolist() == [-1, 2]
    needy = function("g", [node("Add", ["a", "lo"], ["b"])], inputs=("a", "lo"))
    refused(calling([needy], [call("g", "x")]), ImportModelError, r"node 'call/Add_0' \(Add\): input 'B' is missing")


def test_outputs_that_are_not_wanted_are_not_made():
    f = function("f", [node("Relu", ["a"], ["b"]), node("NoSuchThing", ["a"], ["c"])], outputs=("b", "c"))
    assert operators_of(imported(calling([f], [call("f", "x")]))) == ["relu"]
    assert operators_of(imported(calling([f], [call("f", "x", outputs=("y", "unused"))]))) == ["relu"]


def test_a_function_may_give_its_operand_back():
    f = function("f", [node("Identity", ["a"], ["b"])])
    found = imported(calling([f], [call("f", "x")]))
    assert found.outputs == found.inputs
    assert found.output_names == ("y",)


def test_a_function_takes_the_place_of_an_operator_of_its_name():
    own = helper.make_function("", "Relu", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)])
    assert operators_of(imported(model([node("Relu", ["x"], ["y"])], [info("x", [2])], ["y"], functions=[own]))) == [
        "neg"
    ]


def test_too_many_operands_are_refused():
    f = function("f", [node("Relu", ["a"], ["b"])])
    refused(calling([f], [call("f", "x", "x")]), ImportModelError, "2 inputs and 1 outputs, the function has 1 and 1")


def test_functions_that_call_themselves_are_refused():
    own = function("f", [call("f", "a", outputs=("b",))])
    refused(calling([own], [call("f", "x")]), ImportModelError, "function 'f' calls itself")
    ping = function("ping", [call("pong", "a", outputs=("b",))])
    pong = function("pong", [call("ping", "a", outputs=("b",))])
    refused(calling([ping, pong]), ImportModelError, r"calls itself \(by way of '(ping|pong)'\)")
    inside = graph([call("f", "a", outputs=("b",))], outputs=["b"])
    hidden = function("f", [node("If", ["a"], ["b"], then_branch=inside, else_branch=inside)])
    refused(calling([hidden]), ImportModelError, "function 'f' calls itself")


def test_two_functions_of_one_name_are_refused():
    f = function("f", [node("Relu", ["a"], ["b"])])
    refused(calling([f, f]), ImportModelError, "function 'f' is defined twice")


def towers(count, calls):
    """Functions of which each calls the next several times."""

    def nodes(k):
        return [call(f"f{k + 1}", "a" if c == 0 else f"t{c}", outputs=(f"t{c + 1}",)) for c in range(calls)]

    last = [node("Relu", ["a"], ["b"])]
    return [
        function(f"f{k}", nodes(k) if k < count - 1 else last, outputs=(f"t{calls}",) if k < count - 1 else ("b",))
        for k in range(count)
    ]


@pytest.mark.timeout(5)
def test_expansion_is_measured_before_it_is_done():
    proto = calling(towers(30, 2), [call("f0", "x")])
    refused(proto, ImportModelError, "functions expanded: 1610612735, the limit 'nodes' is 100000")
    refused(calling(towers(70, 1)), ImportModelError, "nesting of calls: 65, the limit 'depth' is 64")


def test_functions_that_nobody_calls_count_for_nothing():
    proto = calling(towers(30, 2), [node("Relu", ["x"], ["y"])])
    assert operators_of(imported(proto)) == ["relu"]


def test_long_chains_of_functions_are_measured_without_recursion():
    table = FunctionTable(calling(towers(60, 1), [call("f0", "x")]), Limits())
    assert len(table.table) == 60


def test_functions_know_only_their_own_operands():
    f = function("f", [node("Add", ["a", "x"], ["b"])])
    refused(calling([f], [call("f", "x")]), ImportModelError, r"node 'Add_0' \(Add\): reads 'x', which nothing makes")


def test_conditions_of_the_model_reach_a_function():
    then, other = (graph([node(op, ["a"], ["b"])], outputs=["b"]) for op in ("Relu", "Neg"))
    f = function("f", [node("If", ["c"], ["b"], then_branch=then, else_branch=other)], inputs=("a", "c"))
    proto = model([call("f", "x", "c")], [info("x", [2]), info("c", [], BOOL)], ["y"], functions=[f], domains={"my": 1})
    for flag, expected in ((True, [0, 2]), (False, [1, -2])):
        assert outputs_of(proto, {"x": X, "c": np.array(flag)})["y"].tolist() == expected
