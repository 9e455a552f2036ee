from __future__ import annotations

import pytest
from onnx import helper

from mlc.errors import ImportModelError
from mlc.frontend.onnx.schema import find_schema, first_version, type_string
from mlc.ir.graph import Value
from mlc.ir.types import ALL_DTYPES, TensorType, bf16, f32, i64


def value(dtype, *shape):
    return Value("v", TensorType(shape, dtype))


def check(node, opset=17):
    find_schema("", node.op_type, opset).check_node(node, {a.name: a for a in node.attribute})


def test_versions_are_told_apart():
    assert find_schema("", "Softmax", 12).since == 11
    assert find_schema("", "Softmax", 17).since == 13
    assert find_schema("", "Gelu", 17) is None
    assert find_schema("", "NoSuchThing", 17) is None
    assert find_schema("com.microsoft", "Gelu", 1) is None
    assert first_version("", "Gelu") == 20
    assert first_version("", "NoSuchThing") is None


@pytest.mark.parametrize("dtype", ALL_DTYPES.values())
def test_every_type_has_a_spelling(dtype):
    assert type_string(dtype) in find_schema("", "Identity", 25).inputs[0].types


@pytest.mark.parametrize(
    "node, match",
    [
        (helper.make_node("Relu", [], ["y"]), "0 inputs, 1 expected"),
        (helper.make_node("Relu", ["a", "b"], ["y"]), "2 inputs, 1 expected"),
        (helper.make_node("Clip", ["a", "b", "c", "d"], ["y"]), "4 inputs, 1 to 3 expected"),
        (helper.make_node("Concat", [], ["y"], axis=0), "0 inputs, 1 or more expected"),
        (helper.make_node("Relu", ["a"], ["y", "z"]), "2 outputs, 1 expected"),
        (helper.make_node("Add", ["", "b"], ["y"]), "input 'A' is missing"),
        (helper.make_node("Relu", ["a"], ["y"], alpha=1.0), "has no attribute 'alpha' in opset version 14"),
        (helper.make_node("Concat", ["a"], ["y"]), "attribute 'axis' is missing"),
        (helper.make_node("Concat", ["a"], ["y"], axis=1.0), "attribute 'axis' is of type FLOAT, not INT"),
    ],
)
def test_malformed_nodes_are_refused(node, match):
    with pytest.raises(ImportModelError, match=match):
        check(node)


def test_well_formed_nodes_pass():
    check(helper.make_node("Clip", ["a", "", "c"], ["y"]))
    check(helper.make_node("Concat", ["a"] * 50, ["y"], axis=-1))


def test_element_types_are_checked():
    add = find_schema("", "Add", 13)
    add.check_types([value(f32), value(f32)])
    with pytest.raises(ImportModelError, match="inputs 'A' and 'B' are f32 and i64"):
        add.check_types([value(f32), value(i64)])
    with pytest.raises(ImportModelError, match="input 'X' cannot be i64 in opset version"):
        find_schema("", "Sigmoid", 13).check_types([value(i64)])
    with pytest.raises(ImportModelError, match="input 'X' cannot be bf16 in opset version 11"):
        find_schema("", "Conv", 17).check_types([value(bf16), value(bf16)])


def test_an_operand_left_out_must_be_optional():
    find_schema("", "Clip", 13).check_types([value(f32), None, None])
    with pytest.raises(ImportModelError, match="input 'B' is missing"):
        find_schema("", "Add", 13).check_types([value(f32), None])


def test_variadic_operands_may_differ_where_the_definition_says_so():
    find_schema("", "Loop", 13).check_types([value(i64), None, value(f32), value(i64)])
    with pytest.raises(ImportModelError, match="are f32 and i64"):
        find_schema("", "Concat", 13).check_types([value(f32), value(i64)])


def test_definitions_in_other_operators_are_found():
    node = helper.make_node("Celu", ["x"], ["y"], alpha=2.0)
    fixed = find_schema("", "HardSwish", 14).function(helper.make_node("HardSwish", ["x"], ["y"]), {}, 14, [])
    assert {n.op_type for n in fixed.node} == {"HardSigmoid", "Mul"}
    schema = find_schema("", "Celu", 12)
    assert schema.is_function
    types = [TensorType((2,), f32)]
    assert "Elu" in {n.op_type for n in schema.function(node, {"alpha": node.attribute[0]}, 12, types).node}
    assert schema.defaults()["alpha"].f == 1.0


def test_a_definition_of_a_later_opset_serves_an_older_model():
    function = find_schema("", "Elu", 11).function(helper.make_node("Elu", ["x"], ["y"]), {}, 11, [])
    assert function.opset_import[0].version == 18


def test_there_may_be_no_definition():
    conv = find_schema("", "Conv", 17)
    assert not conv.is_function
    assert conv.function(helper.make_node("Conv", ["x", "w"], ["y"]), {}, 17, []) is None
    # this one needs the operand's type
    norm = helper.make_node("LayerNormalization", ["x", "s"], ["y"])
    assert find_schema("", "LayerNormalization", 17).function(norm, {}, 17, []) is None
