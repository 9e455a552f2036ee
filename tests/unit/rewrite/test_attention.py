"""Which products around a softmax become attention, and that values stay the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc.ir.graph import Graph, Node, Value
from mlc.ops.algorithms import Algorithm
from mlc.rewrite.attention import spelled_out, use_attention
from mlc.rewrite.fuse import fuse
from mlc.rewrite.group import body_of
from mlc.rewrite.workload import algorithm_document
from tests.unit.rewrite.helpers import Net, assert_same, op_names

Make = Callable[[Net, Value], Value]


def always(node: Node) -> Algorithm:
    return Algorithm.FUSED


def network(
    scaled: Make = lambda n, s: n.mul(s, n.c(0.25)),
    masked: Make = lambda n, s: n.add(s, n.x(2, 1, 1, 5, name="mask")),
    batch: tuple[int, ...] = (2, 3),
    axis: int = -1,
    *,
    keys_turned: bool = True,
    values_turned: bool = False,
) -> Graph:
    n = Net()
    q = n.x(*batch, 4, 6, name="q")
    k = n.x(*batch, *((5, 6) if keys_turned else (6, 5)), name="k")
    v = n.x(*batch, *((7, 5) if values_turned else (5, 7)), name="v")
    scores = masked(n, scaled(n, n.matmul(q, k, transpose_b=keys_turned)))
    return n(n.matmul(n.softmax(scores, axis=axis), v, transpose_b=values_turned))


def same(n: Net, s: Value) -> Value:
    return s


FOUND: dict[str, tuple[Callable[[], Graph], list[str]]] = {
    "mask and scale": (network, ["attention"]),
    "neither": (lambda: network(same, same), ["attention"]),
    "division": (lambda: network(lambda n, s: n.div(s, n.c(4.0)), same), ["attention"]),
    "mask first": (lambda: network(masked=lambda n, s: n.add(n.x(4, 5, name="mask"), s)), ["attention"]),
    "mask of every score": (lambda: network(masked=lambda n, s: n.add(n.x(2, 3, 4, 5, name="mask"), s)), ["attention"]),
    "constant mask": (lambda: network(masked=lambda n, s: n.add(s, n.w(4, 5))), ["attention"]),
    "no batch": (lambda: network(masked=same, batch=()), ["attention"]),
    "keys upright": (lambda: network(keys_turned=False), ["transpose", "attention"]),
    "values turned": (lambda: network(values_turned=True), ["transpose", "attention"]),
    "last axis by number": (lambda: network(axis=3), ["attention"]),
}


@pytest.mark.parametrize("name", FOUND)
def test_attention_is_found(name: str) -> None:
    build, operators = FOUND[name]
    before = build()
    after = use_attention(before, always)
    assert op_names(after) == operators
    assert_same(before, after, rtol=1e-5, atol=1e-5)


def read_elsewhere() -> Graph:
    n = Net()
    weights = n.softmax(n.matmul(n.x(4, 6, name="q"), n.x(5, 6, name="k"), transpose_b=True), axis=-1)
    return n(n.matmul(weights, n.x(5, 7, name="v")), weights)


def shared_keys() -> Graph:
    n = Net()
    scores = n.matmul(n.x(2, 4, 6, name="q"), n.x(5, 6, name="k"), transpose_b=True)
    return n(n.matmul(n.softmax(scores, axis=-1), n.x(2, 5, 7, name="v")))


KEPT: dict[str, Callable[[], Graph]] = {
    "softmax of columns": lambda: network(axis=2),
    "scale of every key": lambda: network(lambda n, s: n.mul(s, n.w(5))),
    "division by zero": lambda: network(lambda n, s: n.div(s, n.c(0.0))),
    "weights are read": read_elsewhere,
    "keys without batch axes": shared_keys,
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str) -> None:
    before = KEPT[name]()
    assert use_attention(before, always) is before


def test_the_target_decides() -> None:
    before = network()
    seen = []

    def never(node: Node) -> Algorithm:
        seen.append([v.type.shape for v in node.inputs[:3]])
        return Algorithm.APART

    assert use_attention(before, never) is before
    assert seen == [[(2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)]]


def test_attention_spelled_out_is_found_again() -> None:
    asked: list[Node] = []

    def noted(node: Node) -> Algorithm:
        asked.append(node)
        return Algorithm.FUSED

    use_attention(network(lambda n, s: n.mul(s, n.c(0.25))), noted)
    graph = spelled_out(asked[0])
    after = use_attention(graph, noted)
    assert op_names(after) == ["attention"]
    assert algorithm_document(asked[1]) == algorithm_document(asked[0])
    assert_same(graph, after, rtol=1e-5, atol=1e-5)


def test_attention_reads_through_what_moves_its_operands() -> None:
    n = Net()
    joined = n.x(4, 3 * 6)

    def head(k: int) -> Value:
        part = n.slice(joined, begin=(0, 6 * k), end=(4, 6 * k + 6), step=(1, 1))
        return n.transpose(n.reshape(part, shape=(4, 2, 3)), perm=(1, 0, 2))

    before = n(n.relu(n.attention(head(0), head(1), head(2))))
    after = fuse(before)
    assert_same(before, after, rtol=1e-6, atol=1e-6)
    (group,) = after.nodes
    assert [m.op.name for m in body_of(group).nodes].count("transpose") == 3


def test_arithmetic_on_its_operands_stays_apart() -> None:
    n = Net()
    q = n.relu(n.x(2, 4, 6, name="q"))
    after = fuse(n(n.attention(q, n.x(2, 5, 6, name="k"), n.x(2, 5, 3, name="v"))))
    assert len(after.nodes) == 2
