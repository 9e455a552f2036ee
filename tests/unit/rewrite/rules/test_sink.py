"""Reshapes and transposes below what follows them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.graph import FusionKind, Graph, Operator
from mlc.ops import get
from mlc.rewrite.algebra import simplify_algebra
from mlc.rewrite.rules import sink
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in sink.RULES}
RESHAPE, NORM, TRANSPOSE = RULES
Build = Callable[[Net], Graph]


def rows(n: Net, x: object):
    return n.reshape(x, shape=(2, 3, 4))


def turned(n: Net, x: object):
    return n.transpose(x, perm=(0, 2, 1))


FIRES: list[tuple[str, Build, list[str]]] = [
    (RESHAPE, lambda n: n(n.relu(rows(n, n.x(6, 4)))), ["relu", "reshape"]),
    (RESHAPE, lambda n: n(n.add(rows(n, n.x(6, 4)), n.w(4))), ["add", "reshape"]),
    (RESHAPE, lambda n: n(n.add(rows(n, n.x(6, 4)), n.w(1, 1, 4))), ["add", "reshape"]),
    (RESHAPE, lambda n: n(n.sub(n.x(1, 1, name="y"), rows(n, n.x(6, 4)))), ["reshape", "sub", "reshape"]),
    (RESHAPE, lambda n: n(n.mul(rows(n, n.x(24)), n.c(3.0))), ["mul", "reshape"]),
    (RESHAPE, lambda n: n(n.mul(rows(n, n.x(24)), n.w(2, 3, 4))), ["mul", "reshape"]),
    (RESHAPE, lambda n: n(n.add(rows(n, n.x(6, 4)), rows(n, n.x(6, 4, name="y")))), ["add", "reshape"]),
    (
        RESHAPE,
        lambda n: n(n.add(n.x(2, 3, 4, name="y"), rows(n, n.matmul(n.x(6, 5), n.w(5, 4))))),
        ["matmul", "reshape", "add", "reshape"],
    ),
    (RESHAPE, lambda n: n(n.where(n.x(4, dtype="bool"), rows(n, n.x(6, 4)), n.c(0.0))), ["where", "reshape"]),
    (RESHAPE, lambda n: n(n.cast(rows(n, n.x(6, 4)), to="i32")), ["cast", "reshape"]),
    (RESHAPE, lambda n: n(n.prelu(rows(n, n.x(6, 4)), n.w(4))), ["prelu", "reshape"]),
    (NORM, lambda n: n(n.softmax(rows(n, n.x(6, 4)), axis=-1)), ["softmax", "reshape"]),
    (NORM, lambda n: n(n.layer_norm(rows(n, n.x(6, 4)), n.w(4), n.w(4), axis=2)), ["layer_norm", "reshape"]),
    (TRANSPOSE, lambda n: n(n.relu(turned(n, n.x(2, 3, 4)))), ["relu", "transpose"]),
    (TRANSPOSE, lambda n: n(n.mul(turned(n, n.x(2, 3, 4)), n.w(4, 3))), ["mul", "transpose"]),
    (TRANSPOSE, lambda n: n(n.mul(turned(n, n.x(2, 3, 4)), n.c([[2.0]]))), ["mul", "transpose"]),
    (TRANSPOSE, lambda n: n(n.sub(turned(n, n.x(2, 3, 4)), turned(n, n.x(2, 3, 4)))), ["sub", "transpose"]),
]


@pytest.mark.parametrize("name, build, expected", FIRES, ids=[f"{k}-{case[0]}" for k, case in enumerate(FIRES)])
def test_view_sinks(name: str, build: Build, expected: list[str]) -> None:
    before = build(Net())
    after = apply_rule(RULES[name], before)
    assert op_names(after) == expected
    assert_same(before, after, rtol=1e-6)


def read_twice(n: Net) -> Graph:
    t = turned(n, n.x(2, 3, 4))
    return n(n.relu(t), t)


KEEPS_OFF: list[tuple[str, Build]] = [
    (RESHAPE, lambda n: n(n.add(n.reshape(n.x(24), shape=(6, 4)), n.w(4)))),  # rows are not rows of x
    (RESHAPE, lambda n: n(n.add(rows(n, n.x(6, 4)), n.w(3, 1)))),
    (RESHAPE, lambda n: n(n.add(rows(n, n.x(6, 4)), n.w(5, 2, 3, 4)))),  # the result is greater
    (RESHAPE, lambda n: n(n.add(rows(n, n.x(6, 4)), n.x(2, 3, 4)))),  # a reshape more, nothing won
    (RESHAPE, lambda n: n(n.broadcast_to(rows(n, n.x(6, 4)), shape=(2, 3, 4)))),
    (RESHAPE, lambda n: n(n.prelu(n.x(2, 3, 4), rows(n, n.x(6, 4))))),
    (NORM, lambda n: n(n.softmax(rows(n, n.x(6, 4)), axis=1))),
    (NORM, lambda n: n(n.softmax(rows(n, n.x(24)), axis=2))),
    (NORM, lambda n: n(n.layer_norm(rows(n, n.x(6, 4)), n.w(3, 4), n.w(4)))),
    (TRANSPOSE, read_twice),
    (TRANSPOSE, lambda n: n(n.add(turned(n, n.x(2, 3, 4)), n.x(2, 4, 3)))),
]


@pytest.mark.parametrize("name, build", KEEPS_OFF, ids=[f"{k}-{case[0]}" for k, case in enumerate(KEEPS_OFF)])
def test_view_stays(name: str, build: Build) -> None:
    before = build(Net())
    assert apply_rule(RULES[name], before) is before


def test_every_rule_has_a_case() -> None:
    assert {name for name, *_ in FIRES} == set(RULES)


def test_two_strong_operands_do_not_pass_the_reshape_to_and_fro() -> None:
    n = Net()
    a = n.reshape(n.matmul(n.x(6, 5), n.w(5, 4)), shape=(24,))
    b = n.reshape(n.matmul(n.x(3, 5), n.w(5, 8)), shape=(24,))
    before = n(n.relu(n.add(a, b)))
    assert_same(before, simplify_algebra(before))


def test_a_users_own_elementwise_operator_is_left_alone() -> None:
    n = Net()
    own = Operator(
        "relu",
        FusionKind.INJECTIVE,
        get("relu").infer,
        lambda ts, _: [te.compute(ts[0].shape, lambda *i: ts[0][i] * 2)],
        elementwise=True,
    )
    (y,) = n.builder.add(own, [rows(n, n.x(6, 4))])
    (z,) = n.builder.add(own, [y])
    before = n(z)
    assert simplify_algebra(before) is before


def test_linear_layers_of_a_transformer_become_two_dimensional() -> None:
    n = Net()
    x = n.x(2, 3, 4)
    y = n.gelu(n.add(n.matmul(x, n.w(4, 8)), n.w(8)))
    y = n.add(n.add(n.matmul(y, n.w(8, 4)), n.w(4)), x)
    before = n(n.layer_norm(y, n.c(np.ones(4)), n.w(4)))
    after = simplify_algebra(before)
    assert op_names(after) == ["reshape", "matmul", "add", "gelu", "matmul", "add", "add", "layer_norm", "reshape"]
    assert all(v.type.rank == 2 for node in after.nodes[:-1] for v in node.outputs)
    assert_same(before, after, rtol=1e-5, atol=1e-6)
