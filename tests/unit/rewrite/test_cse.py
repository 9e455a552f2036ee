"""Common subexpressions, and the keys that say what is common."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import verify
from mlc.ops import get
from mlc.ops.registry import is_core
from mlc.rewrite.cse import eliminate_common_subexpressions, merge_constants
from mlc.rewrite.keys import attr_key, attrs_key, content_digest
from tests.unit.rewrite.helpers import Net, assert_same, op_names


def test_equal_nodes_are_computed_once() -> None:
    n = Net()
    x = n.x(3)
    a, b = n.relu(x, sources=("a",)), n.relu(x, sources=("b",))
    before = n(n.add(n.neg(a), n.neg(b)), b)
    after = eliminate_common_subexpressions(before)
    assert op_names(after) == ["relu", "neg", "add"]
    assert after.nodes[0].sources == ("a", "b")
    assert after.outputs[1] is a
    assert_same(before, after)


def test_other_attributes_or_operands_are_other_nodes() -> None:
    n = Net()
    x, y = n.x(3), n.x(3, name="y")
    before = n(n.clip(x, lo=0.0), n.clip(x, lo=-0.0), n.clip(x, lo=0), n.clip(y, lo=0.0), n.sub(x, y), n.sub(y, x))
    assert eliminate_common_subexpressions(before) is before


def test_equal_constants_become_one() -> None:
    n = Net()
    x = n.x(3)
    a, b, c = n.c([1, 2, 3]), n.c([1, 2, 3]), n.c([1, 2, 4])
    before = n(n.add(n.add(n.add(x, a), b), c), b)
    after = merge_constants(before)
    verify(after)
    assert list(after.constants) == [a, c]
    assert after.outputs[1] is a
    assert_same(before, after)


def test_constants_that_only_seem_equal_stay() -> None:
    n = Net()
    constants = [n.c([0.0]), n.c([-0.0]), n.c([0], "int32"), n.c(0.0), n.c([[0.0]]), n.c([np.nan])]
    before = n(*constants)
    assert eliminate_common_subexpressions(before) is before


def test_great_constants_that_differ_where_nobody_looks_stay() -> None:
    n = Net()
    a = np.zeros(1000)
    b = a.copy()
    b[1] = 1
    before = n(n.c(a), n.c(b))
    assert merge_constants(before) is before


def test_nodes_over_merged_constants_are_merged_too() -> None:
    n = Net()
    x = n.x(3)
    before = n(n.mul(x, n.c(2.0)), n.mul(x, n.c(2.0)))
    after = eliminate_common_subexpressions(before)
    assert op_names(after) == ["mul"]
    assert after.outputs[0] is after.outputs[1]
    assert after.output_names == ("out0", "out1")


def test_all_outputs_of_equal_nodes_are_merged() -> None:
    n = Net()
    x = n.x(5)
    first, second = (n.builder.add(get("top_k"), [x], {"k": 2, "axis": 0}) for _ in range(2))
    after = eliminate_common_subexpressions(n(first[0], second[1], second[0]))
    assert op_names(after) == ["top_k"]
    assert after.outputs == (first[0], first[1], first[0])


def test_a_long_chain_of_twins_is_joined() -> None:
    n = Net()
    a = b = n.x(2)
    for _ in range(5_000):
        a, b = n.neg(a), n.neg(b)
    assert len(eliminate_common_subexpressions(n(n.add(a, b))).nodes) == 5_001


@pytest.mark.parametrize(
    "a, b, equal",
    [
        (1, 1, True), (1, True, False), (1, 1.0, False), (0.0, -0.0, False), (float("nan"), float("nan"), True),
        ((1, 2), [1, 2], True), ((1, (2,)), (1, 2), False), ("f32", "f32", True), (None, 0, False),
        (np.array([1, 2]), np.array([1, 2]), True), (np.array([1, 2]), np.array([[1, 2]]), False),
        (np.array([1.0]), np.array([1]), False), ({"k": 1}, {"k": 1}, False),
    ],
)  # fmt: skip
def test_attribute_keys(a: object, b: object, equal: bool) -> None:
    assert (attr_key(a) == attr_key(b)) is equal


def test_keys_look_at_contents_not_at_strides() -> None:
    a = np.arange(12.0).reshape(3, 4)
    assert content_digest(a.T) == content_digest(np.ascontiguousarray(a.T)) != content_digest(a)
    assert content_digest(np.zeros(())) != content_digest(np.zeros(0))
    assert attrs_key({"a": 1, "b": 2}) == attrs_key({"b": 2, "a": 1})


def test_a_namesake_is_no_core_operator() -> None:
    from dataclasses import replace

    assert is_core(get("relu"))
    assert not is_core(replace(get("relu")))
    assert not is_core(replace(get("relu"), name="nobody_knows_me"))
