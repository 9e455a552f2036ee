"""Operators of very many operands, and chains of very many operators: nothing depends on Python's recursion limit."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.e2e.compiled import assert_same, check, compiled, load, network, reference

node = helper.make_node


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shapes", [[(2, 3)] * 20, [(5, 2), (0, 2), (1, 2)] * 10, [(64, 7)] * 70], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_many_operands_in_one_tensor(shapes: list[tuple[int, int]], axis: int) -> None:
    """Inputs, constants, results of operators, and one of them twice."""
    parts = [normal(*(s if axis == 0 else s[::-1]), seed=k) for k, s in enumerate(shapes)]
    feeds = {f"x{k}": a for k, a in enumerate(parts) if k % 3 == 0}
    stored = {f"x{k}": a for k, a in enumerate(parts) if k % 3 == 1}
    nodes = [node("Neg", [f"n{k}"], [f"x{k}"]) for k in range(len(parts)) if k % 3 == 2]
    feeds.update({f"n{k}": -a for k, a in enumerate(parts) if k % 3 == 2})
    names = [*(f"x{k}" for k in range(len(parts))), "x0"]
    nodes.append(node("Concat", names, ["y"], axis=axis))
    nodes.append(node("Abs", ["y"], ["z"]))
    want = np.concatenate([*parts, parts[0]], axis)
    check(network(nodes, feeds, ["y", "z"], stored), feeds, {"y": want, "z": np.abs(want)})


def test_parts_that_are_made_where_they_belong() -> None:
    """A join of whole cache lines copies nothing but what is no step's result."""
    nodes = [node("Mul", ["x", f"c{k}"], [f"y{k}"]) for k in range(70)]
    nodes += [node("Concat", [f"y{k}" for k in range(70)], ["y"], axis=0), node("ReduceSum", ["y"], ["z"], keepdims=0)]
    feeds, stored = {"x": normal(1, 64)}, {f"c{k}": normal(64, seed=k) for k in range(70)}
    model = network(nodes, feeds, ["z"], stored)
    assert_same(compiled(model, feeds), reference(model, feeds), tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_twenty_thousand_operands(axis: int) -> None:
    x = normal(2, 3)
    model = network([node("Concat", ["x"] * 20_000, ["y"], axis=axis)], {"x": x}, ["y"])
    assert_same(compiled(model, {"x": x}), {"y": np.concatenate([x] * 20_000, axis)})


def test_a_wide_concat_of_constants_is_one() -> None:
    stored = {f"c{k}": normal(2, 3, seed=k) for k in range(100)}
    model = network([node("Concat", list(stored), ["y"], axis=1)], {}, ["y"], stored)
    assert not load(model).graph.nodes
    assert_same(compiled(model, {}), {"y": np.concatenate(list(stored.values()), 1)})
