"""Group and instance norms that are spelt out, or have scale and bias behind them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc.ir.graph import Graph, Value
from mlc.rewrite.rules import norms
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in norms.RULES}


def grouped(n: Net, x: Value, groups: int, shape: tuple[int, ...]) -> Value:
    rows = n.reshape(x, shape=(x.type.shape[0], groups, -(-x.type.size // x.type.shape[0] // groups)))
    norm = n.instance_norm(rows, n.w(groups, seed=1), n.w(groups, seed=2), epsilon=1e-3)
    return n.reshape(norm, shape=shape)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_instance_norm_of_groups_is_a_group_norm(groups: int) -> None:
    n = Net()
    before = n(grouped(n, n.x(2, 6, 3, 5), groups, (2, 6, 3, 5)))
    after = apply_rule(RULES["group_norm"], before)
    assert op_names(after) == ["group_norm"]
    assert_same(before, after, rtol=1e-5, atol=1e-5)


def test_other_shapes_behind_it_stay() -> None:
    n = Net()
    before = n(grouped(n, n.x(2, 6, 3, 5), 2, (2, 6, 5, 3)))
    assert apply_rule(RULES["group_norm"], before) is before


def plain(n: Net, *, one: float = 1.0) -> Value:
    return n.group_norm(n.x(2, 6, 3, 5), n.c([one] * 6), n.c([0.0] * 6), groups=2, epsilon=1e-3)


BY_CHANNEL: list[Callable[[Net], Value]] = [
    lambda n: n.w(6, 1, 1, seed=3),
    lambda n: n.w(1, 6, 1, 1, seed=3),
    lambda n: n.w(1, seed=4),
]


@pytest.mark.parametrize("factor", BY_CHANNEL)
def test_scale_and_bias_behind_it_are_taken_in(factor: Callable[[Net], Value]) -> None:
    n = Net()
    before = n(n.add(n.mul(plain(n), factor(n)), n.w(6, 1, 1, seed=5)))
    after = apply_rule(RULES["channel_norm_bias"], apply_rule(RULES["channel_norm_scale"], before))
    assert op_names(after) == ["group_norm"]
    assert_same(before, after, rtol=1e-5, atol=1e-5)


KEPT: list[Callable[[Net], Graph]] = [
    lambda n: n(n.mul(plain(n), n.w(3, 5))),
    lambda n: n(n.mul(plain(n), n.w(1, 5))),
    lambda n: n(n.mul(plain(n, one=2.0), n.w(6, 1, 1))),
]


@pytest.mark.parametrize("build", KEPT)
def test_other_factors_stay_behind(build: Callable[[Net], Graph]) -> None:
    before = build(Net())
    assert apply_rule(RULES["channel_norm_scale"], before) is before
