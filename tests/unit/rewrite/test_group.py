"""Group nodes: expression, type rule, names, keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.graph import FusionKind, Graph, Node, Operator, Value, express, verify
from mlc.ir.layout import blocked
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.rewrite.fuse import fuse, group_each
from mlc.rewrite.group import body_of, group_key, group_name, is_alias, is_group, make_group
from tests.unit.rewrite.helpers import Net, assert_same


def grouped(graph: Graph) -> Node:
    """The whole graph as one group."""
    return make_group(list(graph.nodes), graph.constants, 0)


def simple(n: Net, bias: float = 2.0, name: str = "x") -> Graph:
    return n(n.relu(n.add(n.mul(n.x(3, name=name), n.w(3)), n.c([bias]))))


def test_constants_of_one_element_move_into_the_body() -> None:
    graph = simple(Net())
    node = grouped(graph)
    assert [v.name for v in node.inputs] == ["x", "const"]
    (array,) = body_of(node).constants.values()
    assert array == [2.0]


def test_a_group_means_what_its_members_mean() -> None:
    graph = simple(Net())
    node = grouped(graph)
    assert_same(graph, Graph("main", graph.inputs, graph.outputs, (node,), graph.constants, graph.output_names))


def test_literals_stand_in_the_expression() -> None:
    node = grouped(simple(Net()))
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    outputs = express(node, operands)
    te.verify(outputs)
    read = {ld.source for stage in te.topological(outputs) for b in stage.bodies for ld in loads(b)}
    assert {t.name for t in read if t.op is None} == {"x", "const"}
    assert any("+ 2.0" in repr(stage) for stage in te.topological(outputs))


def test_literals_reach_run_time_indices() -> None:
    n = Net()
    graph = n(n.neg(n.gather(n.x(4, 3), n.c(2, "int64"), axis=0)))
    node = grouped(graph)
    assert len(node.inputs) == 1
    assert_same(graph, Graph("main", graph.inputs, graph.outputs, (node,), {}, graph.output_names))


def test_the_anchor_decides_the_kind() -> None:
    n = Net()
    node = grouped(n(n.relu(n.matmul(n.x(2, 3), n.w(3, 4)))))
    assert node.op.kind is FusionKind.COMPLEX
    assert node.attrs["anchor"] == "matmul"
    n = Net()
    node = grouped(n(n.softmax(n.neg(n.x(2, 3)))))
    assert (node.op.kind, node.attrs["anchor"]) == (FusionKind.REDUCTION, "softmax")
    node = grouped(simple(Net()))
    assert (node.op.kind, node.attrs["anchor"]) == (FusionKind.INJECTIVE, "")


def test_sources_are_joined_in_order() -> None:
    n = Net()
    graph = n(n.relu(n.neg(n.x(2), sources=("a", "b")), sources=("b", "c")))
    assert grouped(graph).sources == ("a", "b", "c")


@pytest.mark.parametrize(
    "number, operators, name",
    [
        (0, ["conv", "add", "relu"], "g0_conv_add_relu"),
        (12, ["My Op/1", "größe"], "g12_my_op_1_gr__e"),
        (3, ["a" * 80], "g3_" + "a" * 61),
    ],
)
def test_names_are_fit_for_symbols(number: int, operators: list[str], name: str) -> None:
    assert group_name(number, operators) == name


def test_operands_of_the_wrong_type_are_refused() -> None:
    node = grouped(simple(Net()))
    with pytest.raises(VerifyError, match=r"group g0_mul_add_relu: takes \(f32\[3\], f32\[3\]\), given \(f32\[4\]"):
        node.op.infer([TensorType((4,), f32), TensorType((3,), f32)], node.attrs)


def test_a_broken_body_is_refused() -> None:
    node = grouped(simple(Net()))
    body = body_of(node)
    broken = replace(body, nodes=body.nodes[1:])
    with pytest.raises(VerifyError, match="used before it is made"):
        node.op.infer([v.type for v in node.inputs], {**node.attrs, "body": broken})


def test_the_body_of_what_is_no_group_is_refused() -> None:
    with pytest.raises(VerifyError, match="relu is no group"):
        body_of(simple(Net()).nodes[-1])


# -- aliases --------------------------------------------------------------------------------------------------------
def test_lone_reshapes_are_aliases() -> None:
    n = Net()
    graph = group_each(n(n.reshape(n.identity(n.x(6)), shape=(2, 3)), n.transpose(n.x(2, 3), perm=(1, 0))))
    assert [is_alias(node) for node in graph.nodes] == [True, True, False]


def test_a_reshape_of_a_tensor_in_a_layout_is_no_alias() -> None:
    n = Net()
    (node,) = group_each(n(n.reshape(n.x(1, 16, 2), shape=(16, 2)))).nodes
    (x,) = node.inputs
    packed = Value("x", x.type.with_layout(blocked(x.type.shape, 1, 8)))
    assert is_alias(node)
    assert not is_alias(Node(node.op, (packed,), node.attrs, node.outputs))


def test_a_reshape_fused_with_others_is_no_alias() -> None:
    n = Net()
    (node,) = fuse(n(n.relu(n.reshape(n.x(6), shape=(2, 3))))).nodes
    assert not is_alias(node)


def test_a_reshape_of_a_literal_is_no_alias() -> None:
    n = Net()
    (node,) = group_each(n(n.reshape(n.c(1.0), shape=(1,)))).nodes
    assert not is_alias(node)


# -- keys -----------------------------------------------------------------------------------------------------------
def test_equal_groups_of_other_names_share_a_key() -> None:
    assert group_key(grouped(simple(Net()))) == group_key(grouped(simple(Net(), name="other")))


def test_the_order_of_independent_members_does_not_matter() -> None:
    def build(first: str, second: str) -> Graph:
        n = Net()
        a, b = n.x(3, name="a"), n.x(3, name="b")
        made = {name: getattr(n, name)(a if name == "exp" else b) for name in (first, second)}
        return n(n.sub(made["exp"], made["neg"]))

    one, other = grouped(build("exp", "neg")), grouped(build("neg", "exp"))
    assert group_key(one) == group_key(other)
    assert [v.name for v in one.inputs] == [v.name for v in other.inputs] == ["a", "b"]


def test_whatever_changes_the_kernel_changes_the_key() -> None:
    def key(build) -> str:
        n = Net()
        return group_key(grouped(n(build(n))))

    keys = [
        key(lambda n: n.relu(n.x(3))),
        key(lambda n: n.relu(n.x(4))),
        key(lambda n: n.relu(n.x(3, dtype="f16"))),
        key(lambda n: n.abs(n.x(3))),
        key(lambda n: n.clip(n.x(3), lo=0.0)),
        key(lambda n: n.clip(n.x(3), lo=-0.0)),
        key(lambda n: n.add(n.x(3), n.x(3))),
        key(lambda n: (lambda x: n.add(x, x))(n.x(3))),
        key(lambda n: n.add(n.x(3), n.c(1.0))),
        key(lambda n: n.add(n.x(3), n.c(2.0))),
        key(lambda n: n.add(n.x(3), n.c([2.0]))),
        key(lambda n: n.add(n.x(3), n.x(1))),
        key(lambda n: (lambda x, y: n.sub(n.add(x, y), x))(n.x(3), n.x(3))),
        key(lambda n: (lambda x, y: n.sub(n.add(x, y), y))(n.x(3), n.x(3))),
    ]
    assert len(set(keys)) == len(keys)


def test_layouts_of_operands_are_part_of_the_key() -> None:
    n = Net()
    node = grouped(n(n.relu(n.x(1, 16, 2))))
    (x,), (y,) = node.inputs, node.outputs
    layout = blocked(x.type.shape, 1, 8)
    packed = Node(
        node.op, (Value("x", x.type.with_layout(layout)),), node.attrs, (Value("y", y.type.with_layout(layout)),)
    )
    assert group_key(packed) != group_key(node)


def test_routines_have_keys() -> None:
    def key(k: int) -> str:
        n = Net()
        n.builder.add(get("top_k"), [n.x(5)], {"k": k, "axis": 0})
        return group_key(n.builder.nodes[0])

    assert key(2) == key(2) != key(3)


def doubled(ts: list[te.Tensor], attrs: object) -> list[te.Tensor]:
    return [te.compute(ts[0].shape, lambda *i: ts[0][i] * 2)]


def tripled(ts: list[te.Tensor], attrs: object) -> list[te.Tensor]:
    return [te.compute(ts[0].shape, lambda *i: ts[0][i] * 3)]


def test_a_users_operators_are_told_by_their_expressions() -> None:
    def key(express) -> str:
        own = Operator("mine", FusionKind.INJECTIVE, get("relu").infer, express, elementwise=True)
        n = Net()
        (y,) = n.builder.add(own, [n.x(3)])
        return group_key(grouped(n(y)))

    assert key(doubled) == key(doubled) != key(tripled)


def test_a_users_routines_are_told_by_their_statements() -> None:
    own = replace(get("top_k"), name="mine")
    n = Net()
    n.builder.add(own, [n.x(5)], {"k": 2, "axis": 0})
    key = group_key(n.builder.nodes[0])
    assert key.count("mine<") == 1
    assert "for " in key


def test_grouped_graphs_print_their_bodies() -> None:
    text = repr(group_each(simple(Net())))
    assert "@graph g2_relu(" in text
    verify(group_each(simple(Net())))
    assert all(is_group(node) for node in group_each(simple(Net())).nodes)
