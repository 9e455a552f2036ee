"""Which products take in slices of their columns, and that such groups compute the same."""

from __future__ import annotations

import pytest

from mlc.ir.graph import Graph, Value
from mlc.rewrite.fuse import fuse
from mlc.rewrite.gates import fuse_gates
from mlc.rewrite.group import body_of, is_group
from tests.unit.rewrite.helpers import Net, assert_same


def gates(graph: Graph) -> list[str]:
    """The operators of each group with gates; checks that results stay the same, further fusion included."""
    after = fuse_gates(graph)
    assert_same(graph, after, rtol=1e-5, atol=1e-6)
    assert_same(graph, fuse(after), rtol=1e-5, atol=1e-6)
    return ["+".join(m.op.name for m in body_of(n).nodes) for n in after.nodes if is_group(n)]


def columns(n: Net, x: Value, begin: int, end: int) -> Value:
    return n.slice(x, begin=(0, begin), end=(x.type.shape[0], end), step=(1, 1))


def lstm_step(n: Net, x: Value, h: Value, c: Value, units: int = 3) -> tuple[Value, Value]:
    y = n.add(n.matmul(h, n.w(units, 4 * units)), x)
    i, o, f, g = (columns(n, y, k * units, (k + 1) * units) for k in range(4))
    c = n.add(n.mul(n.sigmoid(f), c), n.mul(n.sigmoid(i), n.tanh(g)))
    return n.mul(n.sigmoid(o), n.tanh(c)), c


def test_a_step_of_an_lstm_is_one_group_with_two_results() -> None:
    n = Net()
    h, c = lstm_step(n, n.x(2, 12), n.x(2, 3, name="h"), n.x(2, 3, name="c"))
    graph = n(h, c)
    (text,) = gates(graph)
    assert text.count("slice") == 4
    assert [v.name for v in fuse_gates(graph).nodes[-1].outputs] == [c.name, h.name]


def test_steps_are_groups_of_their_own() -> None:
    n = Net()
    h, c = n.x(1, 3, name="h"), n.x(1, 3, name="c")
    for _ in range(3):
        h, c = lstm_step(n, n.x(1, 12, name="x") if h.name == "h" else n.w(1, 12), h, c)
    assert len(gates(n(h))) == 3


def test_a_gated_linear_unit_is_one_group() -> None:
    n = Net()
    y = n.matmul(n.x(5, 4), n.w(4, 6))
    graph = n(n.mul(columns(n, y, 0, 3), n.sigmoid(columns(n, y, 3, 6))))
    assert gates(graph) == ["matmul+slice+slice+sigmoid+mul"]


def test_a_gate_that_resets_the_state_belongs_to_its_product() -> None:
    n = Net()
    h = n.x(2, 3, name="h")
    both = n.sigmoid(n.add(n.matmul(h, n.w(3, 6)), n.x(2, 6, name="from_input")))
    z, r = columns(n, both, 0, 3), columns(n, both, 3, 6)
    candidate = n.tanh(n.add(n.matmul(n.mul(r, h), n.w(3, 3)), n.x(2, 3, name="rest")))
    graph = n(n.add(n.mul(n.sub(n.c(1.0), z), candidate), n.mul(z, h)))
    assert gates(graph) == ["matmul+add+sigmoid+slice+slice+mul"]
    assert len(fuse(fuse_gates(graph)).nodes) == 2


def test_gates_may_be_cut_twice() -> None:
    n = Net()
    y = n.matmul(n.x(2, 4), n.w(4, 9))
    both = n.sigmoid(columns(n, y, 0, 6))
    z, r = columns(n, both, 0, 3), columns(n, both, 3, 6)
    graph = n(n.add(n.mul(z, n.x(2, 3, name="h")), n.mul(r, columns(n, y, 6, 9))))
    assert len(gates(graph)) == 1


@pytest.mark.parametrize(
    "build",
    [
        # as many results as gates: queries, keys and values
        lambda n, y: [n.relu(columns(n, y, 0, 4)), columns(n, y, 4, 8)],
        # pieces of different widths
        lambda n, y: [n.mul(columns(n, y, 0, 3), n.x(2, 3, name="z")), n.relu(columns(n, y, 3, 8))],
        # one more than the tile has sums for
        lambda n, y: [
            n.add(n.add(n.add(columns(n, y, 0, 1), columns(n, y, 1, 2)), columns(n, y, 2, 3)), columns(n, y, 6, 7))
        ],
        # the product itself is wanted
        lambda n, y: [y, n.mul(columns(n, y, 0, 4), columns(n, y, 4, 8))],
        # rows are cut as well
        lambda n, y: [n.slice(y, begin=(0, 0), end=(1, 4), step=(1, 1))],
        # what combines the gates waits for something that comes later
        lambda n, y: [
            n.mul(columns(n, y, 0, 4), n.slice(n.transpose(y, perm=(1, 0)), begin=(0, 0), end=(2, 1), step=(1, 1))),
            n.relu(columns(n, y, 4, 8)),
        ],
        lambda n, y: [n.relu(y)],
    ],
)  # fmt: skip
def test_other_products_are_left_alone(build) -> None:
    n = Net()
    assert gates(n(*build(n, n.matmul(n.x(2, 5), n.w(5, 8))))) == []


def test_weights_that_are_no_constants_are_left_alone() -> None:
    n = Net()
    y = n.matmul(n.x(5, 4), n.x(4, 6, name="w"))
    assert gates(n(n.mul(columns(n, y, 0, 3), columns(n, y, 3, 6)))) == []
