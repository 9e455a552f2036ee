"""Rules on matrix products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir.graph import Graph
from mlc.rewrite.rules import products
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in products.RULES}
ABSORB, UPRIGHT, COLLAPSE = RULES
Build = Callable[[Net], Graph]


def turned(n: Net, x: object, *perm: int):
    return n.transpose(x, perm=perm)


FIRES: list[tuple[str, Build, list[str], dict[str, bool]]] = [
    (ABSORB, lambda n: n(n.matmul(turned(n, n.x(4, 3), 1, 0), n.x(4, 5))), ["matmul"], {"transpose_a": True}),
    (ABSORB, lambda n: n(n.matmul(n.x(3, 4), turned(n, n.x(5, 4), 1, 0))), ["matmul"], {"transpose_b": True}),
    (ABSORB, lambda n: n(n.matmul(n.x(3, 4), turned(n, n.x(4, 5), 1, 0), transpose_b=True)), ["matmul"], {}),
    # a head's keys: what is left of the transpose keeps rows together
    (
        ABSORB,
        lambda n: n(n.matmul(n.x(2, 3, 5, 4), turned(n, n.x(2, 6, 3, 4), 0, 2, 3, 1))),
        ["transpose", "matmul"],
        {"transpose_b": True},
    ),
    (UPRIGHT, lambda n: n(n.matmul(n.x(3, 4), n.w(5, 4), transpose_b=True)), ["matmul"], {}),
    (UPRIGHT, lambda n: n(n.matmul(n.w(2, 4, 3), n.x(2, 4, 5), transpose_a=True)), ["matmul"], {}),
    (COLLAPSE, lambda n: n(n.matmul(n.x(2, 3, 4), n.w(4, 5))), ["reshape", "matmul", "reshape"], {}),
    (COLLAPSE, lambda n: n(n.matmul(n.x(2, 2, 3, 4), n.x(4, 5))), ["reshape", "matmul", "reshape"], {}),
    (COLLAPSE, lambda n: n(n.matmul(n.x(2, 3, 4), n.w(1, 4, 5))), ["reshape", "matmul", "reshape"], {}),
    (
        COLLAPSE,
        lambda n: n(n.matmul(n.x(2, 3, 4), n.x(5, 4), transpose_b=True)),
        ["reshape", "matmul", "reshape"],
        {"transpose_b": True},
    ),
]


@pytest.mark.parametrize("name, build, expected, flags", FIRES, ids=[f"{k}-{case[0]}" for k, case in enumerate(FIRES)])
def test_rule_fires(name: str, build: Build, expected: list[str], flags: dict[str, bool]) -> None:
    before = build(Net())
    after = apply_rule(RULES[name], before)
    assert op_names(after) == expected
    (product,) = [node for node in after.nodes if node.op.name == "matmul"]
    assert product.attrs == {"transpose_a": False, "transpose_b": False, **flags}
    assert_same(before, after, rtol=1e-6)


KEEPS_OFF: list[tuple[str, Build]] = [
    (ABSORB, lambda n: n(n.matmul(turned(n, n.x(2, 3, 4), 1, 0, 2), n.x(3, 4, 5)))),
    (UPRIGHT, lambda n: n(n.matmul(n.x(3, 4), n.x(5, 4), transpose_b=True))),
    (COLLAPSE, lambda n: n(n.matmul(n.x(3, 4), n.w(4, 5)))),
    (COLLAPSE, lambda n: n(n.matmul(n.x(2, 3, 4), n.w(2, 4, 5)))),
    (COLLAPSE, lambda n: n(n.matmul(n.x(2, 4, 3), n.w(4, 5), transpose_a=True))),
    (COLLAPSE, lambda n: n(n.matmul(n.x(3, 4), n.w(1, 4, 5)))),
]


@pytest.mark.parametrize("name, build", KEEPS_OFF, ids=[f"{k}-{case[0]}" for k, case in enumerate(KEEPS_OFF)])
def test_rule_keeps_off(name: str, build: Build) -> None:
    before = build(Net())
    assert apply_rule(RULES[name], before) is before


def test_every_rule_has_a_case() -> None:
    assert {name for name, *_ in FIRES} == set(RULES)


def test_a_great_constant_is_transposed_as_a_view() -> None:
    n = Net()
    w = n.c(np.broadcast_to(np.float32(1), (1 << 15, 1 << 12)))
    after = apply_rule(RULES[UPRIGHT], n(n.matmul(n.x(1, 1 << 12), w, transpose_b=True)))
    (array,) = after.constants.values()
    assert array.shape == (1 << 12, 1 << 15)
