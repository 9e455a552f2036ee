"""Which operands a result may be written over."""

from __future__ import annotations

import pytest

from mlc.define.expressions import add_expressions
from mlc.ir import te
from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.layout import blocked
from mlc.ir.types import TensorType, f32
from mlc.rewrite.group import make_group
from mlc.rewrite.inplace import InPlaceOperands
from tests.unit.rewrite.helpers import Net


def operands(graph: Graph, *, as_group: bool = True) -> set[str]:
    node = make_group(list(graph.nodes), graph.constants, 0) if as_group else graph.nodes[-1]
    return {node.inputs[k].name for k in InPlaceOperands()(node)}


def test_elementwise_groups_may_overwrite_what_has_the_results_shape() -> None:
    n = Net()
    y = n.relu(n.add(n.mul(n.x(2, 3), n.x(3, name="s")), n.x(2, 3, name="y")))
    assert operands(n(y)) == {"x", "y"}


@pytest.mark.parametrize("as_group", [True, False])
def test_operators_by_themselves_are_asked_for_their_expression(as_group: bool) -> None:
    n = Net()
    assert operands(n(n.relu(n.x(3))), as_group=as_group) == {"x"}
    n = Net()
    assert operands(n(n.softmax(n.x(3))), as_group=as_group) == set()
    n = Net()
    assert operands(n(n.transpose(n.x(3, 3), perm=(1, 0))), as_group=as_group) == set()


def test_a_batch_norm_reads_its_own_index_though_it_is_not_elementwise() -> None:
    n = Net()
    x, params = n.x(2, 3), [n.x(3, name=f"p{k}") for k in range(4)]
    assert operands(n(n.batch_norm(x, *params))) == {"x"}


def test_an_element_read_elsewhere_too_forbids_it() -> None:
    n = Net()
    x = n.x(3, 3)
    assert operands(n(n.add(x, n.transpose(x, perm=(1, 0))))) == set()


def test_a_moved_intermediate_forbids_it() -> None:
    n = Net()
    y = n.transpose(n.neg(n.x(3, 3)), perm=(1, 0))
    assert operands(n(n.add(y, n.x(3, 3, name="y")))) == {"y"}


def test_the_residual_of_a_convolution_may_be_overwritten_but_not_its_input() -> None:
    n = Net()
    y = n.conv(n.x(1, 2, 4), n.w(2, 2, 3), strides=(1,), pads=(1, 1), dilations=(1,))
    assert operands(n(n.relu(n.add(y, n.x(1, 2, 4, name="r"))))) == {"r"}


def test_the_element_size_must_be_equal() -> None:
    n = Net()
    assert operands(n(n.cast(n.x(3), to="i32"))) == {"x"}
    n = Net()
    assert operands(n(n.cast(n.x(3), to="f16"))) == set()


def test_the_layout_must_be_equal() -> None:
    n = Net()
    graph = n(n.relu(n.x(1, 16, 2)))
    node = make_group(list(graph.nodes), {}, 0)
    packed = Value("x", graph.inputs[0].type.with_layout(blocked((1, 16, 2), 1, 8)))
    assert InPlaceOperands()(node) == {0}
    assert not InPlaceOperands()(Node(node.op, (packed,), node.attrs, node.outputs))


def test_nodes_with_several_results_and_routines_are_left_alone() -> None:
    from mlc.ops import get

    n = Net()
    n.builder.add(get("top_k"), [n.x(3)], {"k": 3, "axis": 0})
    assert not InPlaceOperands()(n.builder.nodes[0])
    n = Net()
    y = n.cumsum(n.x(3), axis=0)
    assert operands(n(y), as_group=False) == set()


@pytest.mark.parametrize("as_group", [True, False])
def test_of_several_results_none_may_be_written_over_what_a_later_one_reads(as_group: bool) -> None:
    p, d, m = (te.placeholder((4, 3), f32, name) for name in "pdm")
    results = te.compute_many(
        (4, 3), lambda i, j: (p[i, j] - m[i, j] - d[0, j], m[i, j] + d[i, j], d[i, j] * p[i, j]), "step"
    )
    g = Builder()
    values = [g.input(t.name, TensorType(t.shape, t.dtype)) for t in (p, d, m)]
    graph = g.finish(add_expressions(g, results, dict(zip(map(id, (p, d, m)), values, strict=True))), list("abc"))
    node = make_group(list(graph.nodes), {}, 0) if as_group else graph.nodes[-1]
    found = [{node.inputs[k].name for k in InPlaceOperands()(node, r)} for r in range(3)]
    assert found == [set(), {"m"}, {"p", "m"}]  # d is read by another row, too
