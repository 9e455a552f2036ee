from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.attributes import AttributeReader, attribute_type, resolve_references
from mlc.frontend.onnx.external import ExternalData


@pytest.fixture
def noted():
    return []


@pytest.fixture
def reader(noted):
    return AttributeReader(ExternalData(None), Limits(), noted.append)


def test_values_become_python_values(reader):
    node = helper.make_node("Any", [], ["y"], i=7, f=0.5, s="text", ints=[1, 2], floats=[0.5, 1.5], strings=["a", "b"])
    assert reader.read(resolve_references(node, None)) == {
        "i": 7, "f": 0.5, "s": "text", "ints": (1, 2), "floats": (0.5, 1.5), "strings": ("a", "b"),
    }  # fmt: skip


def test_strings_that_are_no_text_keep_their_bytes_visible(reader):
    attr = AttributeProto(name="s", type=AttributeProto.STRING, s=b"a\xff")
    assert reader.value(attr, "x") == "a\\xff"


def test_tensors_become_arrays_decoded_once(reader, noted):
    array = np.arange(3, dtype=np.int64)
    node = helper.make_node("Any", [], ["y"], t=numpy_helper.from_array(array))
    attributes = resolve_references(node, None)
    first, second = reader.read(attributes)["t"], reader.read(attributes)["t"]
    np.testing.assert_array_equal(first, array)
    assert first is second
    assert noted == [first]


def test_sparse_tensors_become_dense_arrays(reader):
    sparse = onnx.SparseTensorProto(
        values=numpy_helper.from_array(np.ones(1, np.float32)),
        indices=numpy_helper.from_array(np.array([1])),
        dims=[3],
    )
    attr = AttributeProto(name="v", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
    assert reader.value(attr, "x").tolist() == [0, 1, 0]


def test_graphs_stay_graphs(reader):
    graph = helper.make_graph([], "g", [], [])
    node = helper.make_node("If", ["c"], ["y"], then_branch=graph)
    assert reader.read(resolve_references(node, None))["then_branch"].name == "g"


def test_a_type_left_out_is_told_from_the_field_in_use(reader):
    assert reader.value(AttributeProto(name="a", i=3), "x") == 3
    assert reader.value(AttributeProto(name="a", ints=[3, 4]), "x") == (3, 4)
    assert attribute_type(AttributeProto(name="a", i=3, f=1.0)) == AttributeProto.UNDEFINED
    with pytest.raises(ImportModelError, match="attribute 'a': has no type"):
        reader.value(AttributeProto(name="a"), "attribute 'a'")


def test_tensors_of_types_that_mlc_lacks_are_named(reader):
    node = helper.make_node("Any", [], ["y"], t=helper.make_tensor("t", TensorProto.STRING, [1], [b"x"]))
    with pytest.raises(UnsupportedError, match="attribute 't': element type string is not supported"):
        reader.read(resolve_references(node, None))


def reference(name, of):
    return AttributeProto(name=name, ref_attr_name=of, type=AttributeProto.FLOAT)


def test_references_take_the_value_of_the_call():
    node = helper.make_node("LeakyRelu", ["x"], ["y"])
    node.attribute.append(reference("alpha", "slope"))
    node.attribute.append(reference("beta", "absent"))
    given = {"slope": helper.make_attribute("slope", 0.25)}
    resolved = resolve_references(node, given)
    assert [(name, a.f) for name, a in resolved.items()] == [("alpha", 0.25)]
    assert len(node.attribute) == 2


def test_attributes_are_not_copied():
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5)
    assert resolve_references(node, None)["alpha"] is node.attribute[0]


def test_references_outside_of_functions_are_refused():
    node = helper.make_node("LeakyRelu", ["x"], ["y"])
    node.attribute.append(reference("alpha", "slope"))
    with pytest.raises(ImportModelError, match="the node is in no function"):
        resolve_references(node, None)
