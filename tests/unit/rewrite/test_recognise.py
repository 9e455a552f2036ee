"""Operators that exporters spell out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir.graph import Graph, Value
from mlc.rewrite.cse import eliminate_common_subexpressions
from mlc.rewrite.recognise import RULES, recognise_operators
from tests.unit.rewrite.helpers import Net, assert_same, op_names

SQRT_2, SQRT_2_PI = np.sqrt(2), np.sqrt(2 / np.pi)


def erf_gate(n: Net, x: Value, *, product: bool = False) -> Value:
    inner = n.mul(n.c(1 / SQRT_2), x) if product else n.div(x, n.c(SQRT_2))
    return n.add(n.c(1.0), n.erf(inner))


def tanh_gate(n: Net, x: Value, form: int) -> Value:
    if form == 0:
        inner = n.mul(n.c(SQRT_2_PI), n.add(x, n.mul(n.c(0.044715), n.pow(x, n.c(3.0)))))
    elif form == 1:
        inner = n.mul(n.add(x, n.mul(n.mul(n.mul(x, x), x), n.c(0.044715))), n.c(SQRT_2_PI))
    elif form == 2:
        inner = n.mul(n.mul(x, n.c(SQRT_2_PI)), n.add(n.c(1.0), n.mul(n.mul(n.c(0.044715), x), x)))
    else:
        inner = n.mul(n.mul(x, n.c(SQRT_2_PI)), n.add(n.mul(n.mul(x, x), n.c(0.044715)), n.c(1.0)))
    return n.add(n.tanh(inner), n.c(1.0))


HALVES: list[Callable[[Net, Value, Value], Value]] = [
    lambda n, x, gate: n.mul(n.mul(x, gate), n.c(0.5)),
    lambda n, x, gate: n.mul(n.mul(n.c(0.5), x), gate),
    lambda n, x, gate: n.mul(n.mul(gate, n.c(0.5)), x),
    lambda n, x, gate: n.div(n.mul(gate, x), n.c(2.0)),
    lambda n, x, gate: n.mul(x, n.div(gate, n.c(2.0))),
    lambda n, x, gate: n.mul(gate, n.div(x, n.c(2.0))),
]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("product", [False, True])
def test_gelu_by_erf(half: Callable[[Net, Value, Value], Value], product: bool) -> None:
    n = Net()
    x = n.x(3, 5)
    before = n(half(n, x, erf_gate(n, x, product=product)))
    after = recognise_operators(before)
    assert op_names(after) == ["gelu"]
    assert after.nodes[0].attrs == {"approximate": "none"}
    assert_same(before, after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", HALVES[:3])
@pytest.mark.parametrize("form", range(4))
def test_gelu_by_tanh(half: Callable[[Net, Value, Value], Value], form: int) -> None:
    n = Net()
    x = n.x(3, 5)
    before = n(half(n, x, tanh_gate(n, x, form)))
    after = recognise_operators(before)
    assert op_names(after) == ["gelu"]
    assert after.nodes[0].attrs == {"approximate": "tanh"}
    assert_same(before, after, rtol=1e-4, atol=1e-6)


def relu6(n: Net, x: Value, hi: float = 6.0) -> Value:
    return n.clip(n.add(x, n.c(3.0)), lo=0.0, hi=hi)


@pytest.mark.parametrize(
    "name, build",
    [
        ("swish", lambda n, x: n.mul(x, n.sigmoid(x))),
        ("swish", lambda n, x: n.mul(n.sigmoid(x), x)),
        ("swish", lambda n, x: n.mul(x, n.sigmoid(n.mul(n.c(1.702), x)))),
        ("mish", lambda n, x: n.mul(x, n.tanh(n.softplus(x)))),
        ("hard_swish", lambda n, x: n.mul(x, n.hard_sigmoid(x, alpha=1 / 6, beta=0.5))),
        ("hard_swish", lambda n, x: n.div(n.mul(x, relu6(n, x)), n.c(6.0))),
        ("hard_swish", lambda n, x: n.mul(x, n.div(relu6(n, x), n.c(6.0)))),
        ("hard_swish", lambda n, x: n.mul(n.mul(n.c(1 / 6), relu6(n, x)), x)),
        ("hard_swish", lambda n, x: n.mul(n.mul(x, relu6(n, x)), n.c(1 / 6))),
    ],
)
def test_activation(name: str, build: Callable[[Net, Value], Value]) -> None:
    n = Net()
    x = n.x(3, 5)
    before = n(build(n, x))
    after = recognise_operators(before)
    assert op_names(after) == [name]
    assert_same(before, after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda n, x: n.mul(n.mul(x, n.c(0.6)), erf_gate(n, x)),
        lambda n, x: n.mul(n.mul(n.x(3, 5), n.c(0.5)), erf_gate(n, x)),
        lambda n, x: n.mul(n.mul(x, n.c(np.full((1, 1, 1), 0.5))), erf_gate(n, x)),  # raises the rank
        lambda n, x: n.mul(x, n.sigmoid(n.relu(x))),
        lambda n, x: n.mul(x, n.hard_sigmoid(x)),
        lambda n, x: n.div(n.mul(x, relu6(n, x, hi=5.0)), n.c(6.0)),
    ],
)
def test_what_only_looks_like_an_activation_stays(build: Callable[[Net, Value], Value]) -> None:
    n = Net()
    before = n(build(n, n.x(3, 5)))
    assert recognise_operators(before) is before


# -- norms ----------------------------------------------------------------------------------------------------------
def layer_norm(n: Net, x: Value, axes: tuple[int, ...], square: str, root: str) -> Value:
    d, e = (n.sub(x, n.reduce_mean(x, axes=axes)) for _ in range(2))
    v = n.reduce_mean(n.pow(e, n.c(2.0)) if square == "pow" else n.mul(e, e), axes=axes)
    return over_root(n, d, n.add(v, n.c(1e-3)), root)


def over_root(n: Net, x: Value, squared: Value, root: str) -> Value:
    if root == "rsqrt":
        return n.mul(n.rsqrt(squared), x)
    s = n.sqrt(squared)
    if root == "div":
        return n.div(x, s)
    return n.mul(x, n.reciprocal(s) if root == "reciprocal" else n.div(n.c(1.0), s))


ROOTS = ["div", "rsqrt", "reciprocal", "one_over"]


@pytest.mark.parametrize("square", ["pow", "mul"])
@pytest.mark.parametrize("root", ROOTS)
def test_layer_norm_with_the_difference_computed_twice(square: str, root: str) -> None:
    n = Net()
    y = layer_norm(n, n.x(2, 3, 8), (2,), square, root)
    before = n(n.add(n.mul(y, n.w(8)), n.w(8)))
    after = recognise_operators(eliminate_common_subexpressions(before))
    assert op_names(after) == ["layer_norm"]
    assert after.nodes[0].attrs["axis"] == 2
    assert_same(before, after, rtol=1e-4, atol=1e-5)


def test_layer_norm_over_two_axes_and_parameters_that_are_inputs() -> None:
    n = Net()
    y = layer_norm(n, n.x(2, 3, 8), (1, 2), "pow", "div")
    before = n(n.add(n.x(3, 8, name="b"), n.mul(n.x(8, name="g"), y)))
    after = recognise_operators(eliminate_common_subexpressions(before))
    assert op_names(after) == ["layer_norm"]
    assert_same(before, after, rtol=1e-4, atol=1e-5)


def test_a_scale_along_the_rows_stays_outside() -> None:
    n = Net()
    y = layer_norm(n, n.x(2, 3, 8), (2,), "pow", "div")
    before = n(n.mul(y, n.w(3, 1)))
    after = recognise_operators(eliminate_common_subexpressions(before))
    assert op_names(after) == ["layer_norm", "mul"]
    assert_same(before, after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [(0,), (0, 2)])
def test_statistics_over_other_axes_are_no_layer_norm(axes: tuple[int, ...]) -> None:
    n = Net()
    before = eliminate_common_subexpressions(n(layer_norm(n, n.x(2, 3, 8), axes, "pow", "div")))
    assert recognise_operators(before) is before


@pytest.mark.parametrize("root", ROOTS)
def test_rms_norm(root: str) -> None:
    n = Net()
    x = n.x(4, 8)
    y = over_root(n, x, n.add(n.reduce_mean(n.mul(x, x), axes=(1,)), n.c(1e-3)), root)
    before = n(n.mul(n.w(8), y))
    after = recognise_operators(before)
    assert op_names(after) == ["rms_norm"]
    assert_same(before, after, rtol=1e-4, atol=1e-5)


def softmax(n: Net, axes: tuple[int, int], keepdims: bool = True) -> Graph:
    x = n.x(2, 8, 8)
    e = n.exp(n.sub(x, n.reduce_max(x, axes=axes[:1], keepdims=keepdims)))
    return n(n.div(e, n.reduce_sum(e, axes=axes[1:], keepdims=keepdims)))


def test_softmax() -> None:
    before = softmax(Net(), (1, 1))
    after = recognise_operators(before)
    assert op_names(after) == ["softmax"]
    assert after.nodes[0].attrs == {"axis": 1}
    assert_same(before, after, rtol=1e-5, atol=1e-7)


def test_a_quotient_along_other_axes_is_no_softmax() -> None:
    before = softmax(Net(), (1, 2))
    assert recognise_operators(before) is before


def test_a_spelling_that_is_read_from_outside_stays_beside_the_operator() -> None:
    n = Net()
    x = n.x(3)
    s = n.sigmoid(x)
    before = n(n.mul(x, s), s)
    after = recognise_operators(before)
    assert sorted(op_names(after)) == ["sigmoid", "swish"]
    assert_same(before, after, rtol=1e-6)


def test_every_rule_prints_on_one_line() -> None:
    assert all(str(r).startswith(f"{r.name}: ") and r.doc and "\n" not in str(r) for r in RULES.rules)
