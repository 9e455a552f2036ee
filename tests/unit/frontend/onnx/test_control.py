from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from mlc.errors import ImportModelError
from mlc.frontend.common.problems import UnsupportedModelError
from mlc.frontend.limits import Limits
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
)

X = np.array([-1, 2], np.float32)
FLAG = info("c", [], BOOL)


def branch(op, source="x", **stored):
    return graph([node(op, [source, *stored], ["o"])], [], ["o"], stored)


def choice(then, other, condition="c"):
    return node("If", [condition], ["y"], name="if", then_branch=then, else_branch=other)


# -- If


@pytest.mark.parametrize("flag, op", [(True, "relu"), (False, "neg")])
def test_a_known_condition_takes_one_branch(flag, op):
    proto = model([choice(branch("Relu"), branch("Neg"))], [info("x", [2])], ["y"], {"c": np.array([flag])})
    found = imported(proto)
    assert operators_of(found) == [op]
    assert found.nodes[0].outputs[0].name == "y"
    assert found.nodes[0].sources[0].startswith("if/")


def test_the_branch_not_taken_may_be_unsupported():
    proto = model([choice(branch("Relu"), branch("NoSuchThing"))], [info("x", [2])], ["y"], {"c": np.array(True)})
    assert operators_of(imported(proto)) == ["relu"]


def test_an_unknown_condition_selects():
    proto = model([choice(branch("Relu"), branch("Add", w=X))], [info("x", [2]), FLAG], ["y"])
    assert operators_of(imported(proto)) == ["relu", "add", "where"]
    for flag, expected in ((True, [0, 2]), (False, [-2, 4])):
        assert outputs_of(proto, {"x": X, "c": np.array(flag)})["y"].tolist() == expected


def test_branches_nest():
    inner = graph([choice(branch("Relu"), branch("Neg"), "d")], outputs=["y"])
    proto = model([choice(inner, branch("Abs"))], [info("x", [2]), FLAG, info("d", [1], BOOL)], ["y"])
    for c, d, expected in ((True, True, [0, 2]), (True, False, [1, -2]), (False, True, [1, 2])):
        assert outputs_of(proto, {"x": X, "c": np.array(c), "d": np.array([d])})["y"].tolist() == expected


@pytest.mark.parametrize("known", [True, False])
def test_deep_nesting_is_walked_without_recursion(known):
    body = branch("Relu")
    for _ in range(28):
        body = graph([choice(body, branch("Neg"))], outputs=["y"])
    inputs = [info("x", [2])] if known else [info("x", [2]), FLAG]
    proto = model(body.node, inputs, ["y"], {"c": np.array(True)} if known else None)
    assert operators_of(imported(proto)).count("relu") == 1


def test_branches_of_different_shapes_need_a_known_condition():
    wide = branch("Concat", w=X)
    wide.node[0].attribute.append(helper.make_attribute("axis", 0))
    proto = model([choice(branch("Relu"), wide)], [info("x", [2]), FLAG], ["y"])
    error = refused(
        proto, UnsupportedModelError, r"the branches give f32\[2\] and f32\[4\], and the condition is not known"
    )
    assert error.problems[0].nodes == ["if"]


def test_wrong_ifs_are_refused():
    two = info("c", [2], BOOL)
    proto = model([choice(branch("Relu"), branch("Neg"))], [info("x", [2]), two], ["y"])
    refused(proto, ImportModelError, "the condition has 2 elements, not one")
    known = model([choice(branch("Relu"), branch("Neg"))], [info("x", [2])], ["y"], {"c": np.array([True, True])})
    refused(known, ImportModelError, "the condition has 2 elements, not one")
    takes = branch("Relu")
    takes.input.append(info("k", [2]))
    refused(
        model([choice(takes, takes)], [info("x", [2])], ["y"], {"c": np.array(True)}),
        ImportModelError,
        "subgraph 'then' has 1 inputs, 0 expected",
    )
    more = node("If", ["c"], ["y", "z"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    refused(
        model([more], [info("x", [2])], ["y", "z"], {"c": np.array(True)}),
        ImportModelError,
        "2 outputs, the subgraph gives 1",
    )


def test_what_is_unsupported_in_a_branch_is_reported():
    proto = model([choice(branch("NoSuchThing"), branch("Frobnicate"))], [info("x", [2]), FLAG], ["y"])
    message = refused(proto, UnsupportedModelError, "not supported").message
    assert "node 'if/then/NoSuchThing_0'" in message
    assert "node 'if/else/Frobnicate_0'" in message


# -- Loop


def loop(body, *operands, outputs=("y",)):
    return node("Loop", list(operands), list(outputs), name="loop", body=body)


def doubling(extra=(), outputs=()):
    """A body that doubles ``v`` and goes on."""
    nodes = [node("Identity", ["go"], ["go2"]), node("Add", ["v", "v"], ["w"]), *extra]
    return graph(nodes, [info("i", [], INT64), info("go", [], BOOL), info("v", [2])], ["go2", "w", *outputs])


def test_a_loop_of_known_length_is_unrolled():
    proto = model([loop(doubling(), "m", "", "x")], [info("x", [2])], ["y"], {"m": np.array(3)})
    assert operators_of(imported(proto)) == ["add"] * 3
    assert outputs_of(proto, {"x": X})["y"].tolist() == [-8, 16]


def test_the_number_of_the_round_is_known_inside():
    number = [node("Cast", ["i"], ["f"], to=FLOAT), node("Add", ["w", "f"], ["s"])]
    proto = model(
        [loop(doubling(number, ["s"]), "m", "", "x", outputs=("y", "all"))],
        [info("x", [2])],
        ["all"],
        {"m": np.array(2)},
    )
    assert outputs_of(proto, {"x": X})["all"].tolist() == [[-2, 4], [-3, 9]]


def test_a_loop_may_end_by_its_condition():
    body = graph(
        [node("Less", ["i", "last"], ["go2"]), node("Add", ["v", "v"], ["w"])],
        [info("i", [], INT64), info("go", [], BOOL), info("v", [2])],
        ["go2", "w"],
        {"last": np.array(2)},
    )
    proto = model([loop(body, "", "c", "x")], [info("x", [2])], ["y"], {"c": np.array(True)})
    assert operators_of(imported(proto)) == ["add"] * 3


def test_a_loop_of_no_rounds_gives_what_it_got():
    for stored in ({"m": np.array(0), "c": np.array(True)}, {"m": np.array(5), "c": np.array(False)}):
        found = imported(model([loop(doubling(), "m", "c", "x")], [info("x", [2])], ["y"], stored))
        assert found.outputs == found.inputs
    gathers = loop(doubling([], ["w"]), "m", "", "x", outputs=("y", "all"))
    refused(
        model([gathers], [info("x", [2])], ["all"], {"m": np.array(0)}), UnsupportedModelError, "the loop has no rounds"
    )


def test_loops_that_data_ends_are_not_supported():
    counted = model([loop(doubling(), "m", "", "x")], [info("x", [2]), info("m", [], INT64)], ["y"])
    assert refused(counted, UnsupportedModelError, "the number of rounds").inputs_to_fix == ("m",)
    asked = model([loop(doubling(), "", "c", "x")], [info("x", [2]), FLAG], ["y"])
    refused(asked, UnsupportedModelError, "the condition depends on the model's inputs")
    endless = model([loop(doubling(), "", "", "x")], [info("x", [2])], ["y"])
    refused(endless, UnsupportedModelError, "the loop never ends")
    inside = graph(
        [
            node("ReduceMax", ["v"], ["m"], keepdims=0),
            node("Greater", ["m", "t"], ["go2"]),
            node("Add", ["v", "v"], ["w"]),
        ],
        [info("i", [], INT64), info("go", [], BOOL), info("v", [2])],
        ["go2", "w"],
        {"t": np.float32(0)},
    )
    data = model([loop(inside, "m", "", "x")], [info("x", [2])], ["y"], {"m": np.array(9)})
    refused(data, UnsupportedModelError, "the condition to go on depends on the model's inputs")


@pytest.mark.timeout(20)
def test_long_loops_are_cut_off():
    proto = model([loop(doubling(), "m", "", "x")], [info("x", [2])], ["y"], {"m": np.array(1 << 62)})
    refused(proto, ImportModelError, "loops expanded: 1001, the limit 'nodes' is 1000", limits=Limits(nodes=1000))


def test_wrong_loops_are_refused():
    few = graph([node("Identity", ["go"], ["go2"])], [info("i", [], INT64), info("go", [], BOOL), info("v")], ["go2"])
    proto = model([loop(few, "m", "", "x")], [info("x", [2])], ["y"], {"m": np.array(2)})
    refused(proto, ImportModelError, "the body has 1 outputs, at least 2 expected")
    proto = model([loop(doubling(), "m", "", "x")], [info("x", [2])], ["y"], {"m": ints(1, 2)})
    refused(proto, ImportModelError, "the number of rounds has 2 elements, not one")


def test_what_is_unsupported_in_a_loop_is_reported_once():
    nodes = [node("Identity", ["go"], ["go2"]), node("NoSuchThing", ["v"], ["w"])]
    body = graph(nodes, [info("i", [], INT64), info("go", [], BOOL), info("v", [2])], ["go2", "w"])
    proto = model([loop(body, "m", "", "x")], [info("x", [2])], ["y"], {"m": np.array(50)})
    assert refused(proto, UnsupportedModelError, "NoSuchThing").problems[0].nodes == ["loop/0/NoSuchThing_1"]
    unknown = model([node("NoSuchThing", ["x"], ["m"]), loop(doubling(), "m", "", "x")], [info("x", [2])], ["y"])
    assert "depends on operators that are not supported" in refused(unknown, UnsupportedModelError, "NoSuch").message


def test_constants_in_a_body_are_stored_once():
    body = doubling([node("Add", ["w", "big"], ["z"])], ["z"])
    body.initializer.append(helper.make_tensor("big", FLOAT, [2], [1.0, 2.0]))
    proto = model([loop(body, "m", "", "x", outputs=("y", "all"))], [info("x", [2])], ["all"], {"m": np.array(4)})
    assert len(imported(proto).constants) == 1


def test_gathered_values_must_keep_their_shape():
    grow = node("Concat", ["w", "w"], ["z"], axis=0)
    body = graph(
        [node("Identity", ["go"], ["go2"]), node("Concat", ["v", "v"], ["w"], axis=0), grow],
        [info("i", [], INT64), info("go", [], BOOL), info("v")],
        ["go2", "w", "z"],
    )
    gathers = loop(body, "m", "", "x", outputs=("y", "all"))
    proto = model([gathers], [info("x", [2])], ["all"], {"m": np.array(2)})
    refused(proto, UnsupportedModelError, "changes its shape from round to round")
    plain = model([gathers], [info("x", [2])], ["y"], {"m": np.array(2)})
    assert imported(plain).outputs[0].type.shape == (8,)


# -- Scan


def scan(body, *operands, outputs, **attrs):
    return node("Scan", list(operands), list(outputs), name="scan", body=body, **attrs)


def summing():
    """A body that adds its row to the state and gives the sum out as well."""
    nodes = [node("Add", ["s", "row"], ["t"]), node("Identity", ["t"], ["out"])]
    return graph(nodes, [info("s", [2]), info("row", [2])], ["t", "out"])


ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def run_scan(rows, axis_of_output=0, **attrs):
    proto = model(
        [scan(summing(), "s", "x", outputs=("last", "all"), num_scan_inputs=1, **attrs)],
        [info("s", [2]), info("x", rows.shape)],
        ["last", "all"],
    )
    return outputs_of(proto, {"s": np.zeros(2, np.float32), "x": rows})


def test_a_scan_is_unrolled():
    out = run_scan(ROWS)
    assert out["last"].tolist() == [6, 9]
    assert out["all"].tolist() == np.cumsum(ROWS, axis=0).tolist()


def test_axes_and_directions_of_a_scan():
    out = run_scan(ROWS.T.copy(), scan_input_axes=[1], scan_output_axes=[-1])
    assert out["all"].tolist() == np.cumsum(ROWS, axis=0).T.tolist()
    out = run_scan(ROWS, scan_input_directions=[1], scan_output_directions=[1])
    assert out["all"].tolist() == np.cumsum(ROWS[::-1], axis=0)[::-1].tolist()


def test_wrong_scans_are_refused():
    def refuse(match, error=ImportModelError, operands=("s", "x"), **attrs):
        attrs = {"num_scan_inputs": 1, **attrs}
        nodes = [scan(summing(), *operands, outputs=("a", "b"), **attrs)]
        refused(model(nodes, [info("s", [2]), info("x", [3, 2]), info("z", [4, 2])], ["a", "b"]), error, match)

    refuse("3 of 2 inputs to scan", num_scan_inputs=3)
    refuse("0 of 2 inputs to scan", num_scan_inputs=0)
    refuse("attribute 'scan_input_axes' has 2 values, 1 expected", scan_input_axes=[0, 0])
    refuse("axis 2 of a tensor of rank 2", scan_input_axes=[2])
    refuse(r"the scanned inputs differ in length: \[3, 4\]", operands=("x", "z"), num_scan_inputs=2)


def test_sequences_are_not_supported():
    proto = model(
        [node("SequenceConstruct", ["x"], ["s"]), node("SequenceLength", ["s"], ["y"])], [info("x", [2])], ["y"]
    )
    assert "SequenceConstruct" in refused(proto, UnsupportedModelError, "no converter").message
    takes = model([node("SequenceLength", ["s"], ["y"])], [], ["y"])
    takes.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    assert "input 's': is a sequence" in refused(takes, UnsupportedModelError, "only tensors").message
