"""Constant folding and its limits."""

from __future__ import annotations

import numpy as np

from mlc.ops import get
from mlc.rewrite.evaluate import FoldLimits, evaluate
from mlc.rewrite.fold import fold_constants
from tests.unit.rewrite.helpers import Net, assert_same, op_names


def test_what_depends_on_constants_alone_is_computed() -> None:
    n = Net()
    c = n.add(n.exp(n.w(3)), n.w(2, 3))
    before = n(n.mul(n.x(3), c), n.neg(c))
    after = fold_constants(before)
    assert op_names(after) == ["mul"]
    assert after.outputs[1] in after.constants
    assert len(after.constants) == 2
    assert_same(before, after)


def test_a_graph_without_such_nodes_is_the_same_object() -> None:
    n = Net()
    before = n(n.add(n.x(3), n.w(3)))
    assert fold_constants(before) is before


def test_values_keep_their_names() -> None:
    n = Net()
    y = n.neg(n.w(3))
    after = fold_constants(n(n.add(n.x(3), y), y))
    assert [v.name for v in after.constants] == [y.name]


def test_integers_are_folded_exactly() -> None:
    n = Net()
    big, least = n.c([2**53 + 1], "int64"), n.c([-(2**63)], "int64")
    zero, minus = n.c([0], "int64"), n.c([-1], "int64")
    before = n(n.add(big, zero), n.div(least, minus), n.div(big, zero), n.shl(big, n.c([64], "int64")))
    after = fold_constants(before)
    arrays = [after.constants[v].item() for v in after.outputs]
    assert arrays == [2**53 + 1, -(2**63), 0, 0]


def test_all_results_of_a_node_are_folded() -> None:
    n = Net()
    values, indices = n.builder.add(get("top_k"), [n.c([1.0, 5.0, 3.0])], {"k": 2, "axis": 0})
    after = fold_constants(n(n.neg(n.x(1)), values, indices))
    assert op_names(after) == ["neg"]
    np.testing.assert_array_equal(after.constants[after.outputs[2]], [1, 2])


def test_a_scalar_is_not_spread_out() -> None:
    n = Net()
    before = n(n.broadcast_to(n.c(1.0), shape=(1 << 10, 1 << 10)))
    assert fold_constants(before) is before


def test_a_small_spread_is_folded() -> None:
    n = Net()
    assert not fold_constants(n(n.broadcast_to(n.c(1.0), shape=(8, 8)))).nodes


def test_limits_on_one_constant_and_on_all() -> None:
    n = Net()
    w = n.w(8)
    before = n(n.neg(w), n.abs(w), n.exp(w))
    assert fold_constants(before, FoldLimits(constant_bytes=31)) is before
    assert len(fold_constants(before, FoldLimits(total_bytes=64)).nodes) == 1
    assert len(fold_constants(before, FoldLimits(total_bytes=63)).nodes) == 2


def test_limit_on_work() -> None:
    n = Net()
    before = n(n.matmul(n.w(4, 5), n.w(5, 6)))
    assert fold_constants(before, FoldLimits(work=4 * 5 * 6 - 1)) is before
    assert not fold_constants(before, FoldLimits(work=4 * 5 * 6)).nodes


def test_limit_on_interpreted_routines() -> None:
    n = Net()
    values, _ = n.builder.add(get("top_k"), [n.w(8)], {"k": 2, "axis": 0})
    before = n(values)
    assert fold_constants(before, FoldLimits(routine_elements=11)) is before
    assert not fold_constants(before, FoldLimits(routine_elements=12)).nodes


def test_reshapes_and_transposes_are_views_whatever_their_size() -> None:
    n = Net()
    w = n.w(6, 4)
    for node in n(n.reshape(w, shape=(3, 8)), n.transpose(w, perm=(1, 0))).nodes:
        array = n.builder.constants[w]
        (view,) = evaluate(node, [array], FoldLimits(constant_bytes=0))
        assert np.shares_memory(view, array)
        assert view.shape == node.outputs[0].type.shape


def test_empty_constants_are_folded() -> None:
    n = Net()
    after = fold_constants(n(n.neg(n.c(np.zeros((0, 3))))))
    assert not after.nodes
    assert after.constants[after.outputs[0]].shape == (0, 3)
