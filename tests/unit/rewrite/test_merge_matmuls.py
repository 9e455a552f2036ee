"""Sibling products joined."""

from __future__ import annotations

import pytest

from mlc.ir.graph import Graph, Value
from mlc.rewrite.merge_matmuls import merge_matmuls
from tests.unit.rewrite.helpers import Net, assert_same, op_names

WIDTHS = (4, 4, 6)


def heads(n: Net, y: Value) -> Value:
    return n.transpose(n.reshape(y, shape=(3, 2, y.type.shape[-1] // 2)), perm=(1, 0, 2))


def attention(n: Net, *, bias: bool = True, **attrs: bool) -> Graph:
    x = n.relu(n.x(*((5, 3) if attrs.get("transpose_a") else (3, 5))))
    out = []
    for k, width in enumerate(WIDTHS):
        y = n.matmul(x, n.w(5, width, seed=k), sources=(f"mm{k}",), **attrs)
        out.append(heads(n, n.add(y, n.w(width, seed=9 + k), sources=(f"b{k}",)) if bias else y))
    return n(*out)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transpose_a", [True, False])
def test_queries_keys_and_values_become_one_product(bias: bool, transpose_a: bool) -> None:
    before = attention(Net(), bias=bias, transpose_a=transpose_a)
    after = merge_matmuls(before)
    names = op_names(after)
    assert names.count("matmul") == 1
    assert names.count("add") == (1 if bias else 0)
    assert names.count("slice") == 3
    (product,) = [node for node in after.nodes if node.op.name == "matmul"]
    assert product.outputs[0].type.shape == (3, sum(WIDTHS))
    assert set(product.sources) >= {"mm0", "mm1", "mm2"}
    assert_same(before, after, rtol=1e-6)


def test_merging_twice_changes_nothing() -> None:
    after = merge_matmuls(attention(Net()))
    assert merge_matmuls(after) is after


def test_products_whose_results_are_not_transposed_stay() -> None:
    n = Net()
    x = n.x(3, 5)
    before = n(n.relu(n.matmul(x, n.w(5, 4))), heads(n, n.matmul(x, n.w(5, 4))))
    assert merge_matmuls(before) is before


def test_products_read_twice_or_given_back_stay() -> None:
    n = Net()
    x = n.x(3, 5)
    a, b = n.matmul(x, n.w(5, 4)), n.matmul(x, n.w(5, 4))
    before = n(heads(n, a), a, heads(n, b), n.relu(b))
    assert merge_matmuls(before) is before


def test_products_of_other_operands_stay() -> None:
    n = Net()
    before = n(heads(n, n.matmul(n.x(3, 5), n.w(5, 4))), heads(n, n.matmul(n.x(3, 5), n.w(5, 4))))
    assert merge_matmuls(before) is before


def test_weights_that_are_inputs_stay() -> None:
    n = Net()
    x, w = n.x(3, 5), n.x(5, 4, name="w")
    before = n(heads(n, n.matmul(x, w)), heads(n, n.matmul(x, n.w(5, 4))))
    assert merge_matmuls(before) is before


def test_families_with_and_without_bias_are_kept_apart() -> None:
    n = Net()
    x = n.x(3, 5)
    plain = [heads(n, n.matmul(x, n.w(5, 4, seed=k))) for k in range(2)]
    biased = [heads(n, n.add(n.matmul(x, n.w(5, 4, seed=k)), n.w(4))) for k in range(2, 4)]
    before = n(*plain, *biased)
    after = merge_matmuls(before)
    assert op_names(after).count("matmul") == 2
    assert_same(before, after, rtol=1e-6)
