"""Dead code."""

from __future__ import annotations

from mlc.ops import get
from mlc.rewrite.dce import eliminate_dead_code
from tests.unit.rewrite.helpers import Net, assert_same, op_names


def test_nodes_and_constants_that_no_output_needs_go() -> None:
    n = Net()
    x = n.x(3)
    y = n.relu(x)
    n.add(n.exp(x), n.w(3))
    before = n(y)
    after = eliminate_dead_code(before)
    assert op_names(after) == ["relu"]
    assert not after.constants
    assert after.inputs == before.inputs
    assert_same(before, after)


def test_inputs_stay_though_nothing_reads_them() -> None:
    n = Net()
    n.x(2)
    y = n.x(3, name="y")
    assert len(eliminate_dead_code(n(n.relu(y))).inputs) == 2


def test_a_node_stays_for_one_of_its_outputs() -> None:
    n = Net()
    _, indices = n.builder.add(get("top_k"), [n.x(5)], {"k": 2, "axis": 0})
    before = n(indices)
    assert eliminate_dead_code(before) is before


def test_outputs_that_are_inputs_or_constants_stay() -> None:
    n = Net()
    x, w = n.x(3), n.w(3)
    before = n(x, w, x)
    assert eliminate_dead_code(before) is before


def test_a_long_dead_chain_goes() -> None:
    n = Net()
    x = n.x(1)
    v = x
    for _ in range(5_000):
        v = n.neg(v)
    assert not eliminate_dead_code(n(x)).nodes
