"""Batch norm in weights and as an affine map; equal up to rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir.graph import Graph, Value
from mlc.rewrite.pattern import RuleSet, apply_rules
from mlc.rewrite.rules import batch_norm
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in batch_norm.RULES}
*SPELLED, INTO, BIASED, AFFINE = RULES


def normed(n: Net, x: Value, *, shared: bool = False) -> Graph:
    channels = x.type.shape[1]
    var = n.c(np.abs(np.random.default_rng(5).standard_normal(channels)) + 0.5, x.type.dtype.numpy)
    params = [n.w(channels, seed=k, dtype=x.type.dtype.numpy) for k in range(3)]
    y = n.batch_norm(x, *params, var, epsilon=1e-3)
    return n(y, x) if shared else n(y)


def conv(n: Net, groups: int = 1, dtype: str = "f32") -> Value:
    x = n.x(2, 4, 5, 5, dtype=dtype)
    w = n.w(6, 4 // groups, 3, 3, dtype=x.type.dtype.numpy)
    return n.conv(x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=groups)


def conv_transpose(n: Net, groups: int) -> Value:
    attrs = {"strides": (2,), "pads": (0, 0), "dilations": (1,), "groups": groups}
    return n.conv_transpose(n.x(1, 4, 5), n.w(4, 6 // groups, 3), **attrs)


def matmul(n: Net, **attrs: bool) -> Value:
    w = n.w(6, 4) if attrs.get("transpose_b") else n.w(4, 6)
    return n.matmul(n.x(3, 4), w, **attrs)


PRODUCTS: list[Callable[[Net], Value]] = [
    conv,
    lambda n: conv(n, groups=2),
    lambda n: conv(n, dtype="f64"),
    lambda n: conv_transpose(n, 1),
    lambda n: conv_transpose(n, 2),
    matmul,
    lambda n: matmul(n, transpose_b=True),
]


@pytest.mark.parametrize("product", PRODUCTS)
def test_batch_norm_goes_into_weights(product: Callable[[Net], Value]) -> None:
    n = Net()
    before = normed(n, product(n))
    after = apply_rule(RULES[INTO], before)
    assert op_names(after) == [op_names(before)[0], "add"]
    assert_same(before, after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [(6, 1, 1), (1, 6, 1, 1), (1,), ()])
def test_a_constant_bias_between_joins_the_offset(bias: tuple[int, ...]) -> None:
    n = Net()
    before = normed(n, n.add(conv(n), n.w(*bias, seed=9)))
    after = apply_rule(RULES[BIASED], before)
    assert op_names(after) == ["conv", "add"]
    assert_same(before, after, rtol=1e-5, atol=1e-5)


def test_the_weights_of_a_result_that_is_read_twice_stay() -> None:
    n = Net()
    before = normed(n, conv(n), shared=True)
    assert apply_rule(RULES[INTO], before) is before


@pytest.mark.parametrize("shape", [(1, 6, 5, 1), (5,), (2, 6, 5, 5)])
def test_a_bias_of_another_shape_stays(shape: tuple[int, ...]) -> None:
    n = Net()
    before = normed(n, n.add(conv(n), n.w(*shape)))
    assert apply_rule(RULES[BIASED], before) is before


def test_a_product_whose_columns_are_not_axis_1_stays() -> None:
    n = Net()
    before = normed(n, n.matmul(n.x(2, 6, 4), n.w(4, 6)))
    assert apply_rule(RULES[INTO], before) is before


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 3), (1, 6, 2, 2, 2)])
def test_batch_norm_alone_is_a_product_and_a_sum(shape: tuple[int, ...]) -> None:
    n = Net()
    before = normed(n, n.x(*shape))
    after = apply_rule(RULES[AFFINE], before)
    assert op_names(after) == ["mul", "add"]
    assert_same(before, after, rtol=1e-5, atol=1e-5)


def test_parameters_from_outside_stay() -> None:
    n = Net()
    x, p = n.x(2, 3), [n.x(3, name=f"p{k}") for k in range(4)]
    before = n(n.batch_norm(x, *p))
    assert apply_rules(before, RuleSet(batch_norm.RULES)) is before


def test_the_sources_of_both_operators_are_kept() -> None:
    n = Net()
    x = n.x(1, 4, 5)
    y = n.conv(x, n.w(4, 4, 1), strides=(1,), pads=(0, 0), dilations=(1,), sources=("conv1",))
    z = n.batch_norm(y, *[n.c(np.ones(4)) for _ in range(4)], sources=("bn1",))
    after = apply_rule(RULES[INTO], n(z))
    assert [node.sources for node in after.nodes] == [("conv1", "bn1")] * 2
    assert after.outputs[0].name == z.name


def spelled(n: Net, x: Value, *shapes: tuple[int, ...]) -> Graph:
    mean, scale, bias = (n.w(*shape, seed=k, dtype=x.type.dtype.numpy) for k, shape in enumerate(shapes))
    return n(n.add(n.mul(n.sub(x, mean), scale), bias))


@pytest.mark.parametrize("shapes", [((6, 1, 1),) * 3, ((1, 6, 1, 1),) * 3, ((1,), (6, 1, 1), (1, 1, 1))])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_batch_norm_in_three_operators_goes_into_weights(
    shapes: tuple[tuple[int, ...], ...], dtype: str, biased: bool
) -> None:
    n = Net()
    y = conv(n, dtype=dtype)
    before = spelled(n, n.add(y, n.w(6, 1, 1, seed=9, dtype=y.type.dtype.numpy)) if biased else y, *shapes)
    after = apply_rules(before, RuleSet(batch_norm.RULES))
    assert op_names(after) == ["conv", "add"]
    tolerance = 2e-2 if dtype == "f16" else 1e-5
    assert_same(before, after, rtol=tolerance, atol=tolerance)


def test_a_batch_norm_in_three_operators_alone_is_a_product_and_a_sum() -> None:
    n = Net()
    before = spelled(n, n.x(2, 6, 5), (6, 1), (6, 1), (6, 1))
    after = apply_rules(before, RuleSet(batch_norm.RULES))
    assert op_names(after) == ["mul", "add"]
    assert_same(before, after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "shapes", [((6, 5, 1), (6, 1, 1), (6, 1, 1)), ((1,),) * 3, ((6, 1, 1), (5,), (6, 1, 1)), ((5,),) * 3]
)
def test_three_operators_along_other_axes_stay(shapes: tuple[tuple[int, ...], ...]) -> None:
    n = Net()
    before = spelled(n, conv(n), *shapes)
    assert apply_rules(before, RuleSet(batch_norm.RULES)) is before


def test_three_operators_on_rows_stay() -> None:
    n = Net()
    before = spelled(n, n.x(3, 6), (6,), (6,), (6,))
    assert apply_rules(before, RuleSet(batch_norm.RULES)) is before
