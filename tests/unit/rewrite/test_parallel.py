"""Parallel fusion: products of one tensor that a concat joins are one."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph, Value, verify
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.rewrite.parallel import merge_parallel

WINDOW = {"strides": (2, 2), "dilations": (1, 1), "pads": (1, 1, 1, 1)}


class Net(Builder):
    def __init__(self, shape: tuple[int, ...] = (2, 3, 8, 8)) -> None:
        super().__init__("net")
        self.x = self.input("x", TensorType(shape, f32))
        self.rng = np.random.default_rng(0)

    def weights(self, *shape: int, constant: bool = True) -> Value:
        if not constant:
            return self.input(self.unique("w"), TensorType(shape, f32))
        return self.constant(self.rng.standard_normal(shape).astype(np.float32), self.unique("w"))

    def conv(self, channels: int, size: int = 3, constant: bool = True, **changed: object) -> Value:
        w = self.weights(channels, 3, size, size, constant=constant)
        return self.add(get("conv"), [self.x, w], {**WINDOW, **changed})[0]

    def joined(self, values: list[Value], axis: int = 1) -> Graph:
        return self.finish(self.add(get("concat"), values, {"axis": axis}))


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def same_results(before: Graph, after: Graph) -> None:
    verify(after)
    rng = np.random.default_rng(1)
    feeds = {v.name: rng.standard_normal(v.type.shape).astype(np.float32) for v in before.inputs}
    (want,), (got,) = (run_graph(g, feeds).values() for g in (before, after))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_convolutions_of_one_tensor_become_one() -> None:
    g = Net()
    before = g.joined([g.conv(4), g.conv(5), g.conv(1)])
    after = merge_parallel(before)
    assert ops(after) == ["conv"]
    assert after.nodes[0].inputs[1].type.shape == (10, 3, 3, 3)
    same_results(before, after)
    assert merge_parallel(after) is after


def test_others_between_stay_where_they_are() -> None:
    g = Net()
    before = g.joined([g.conv(4), g.conv(5), g.conv(2, 1, pads=(0, 0, 0, 0)), g.conv(3)])
    after = merge_parallel(before)
    assert ops(after) == ["conv", "conv", "conv", "concat"]
    same_results(before, after)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_of_matrices(transpose_b: bool) -> None:
    g = Net((6, 8))
    shapes = [(8, 3), (8, 4)]
    made = [g.weights(*(s[::-1] if transpose_b else s)) for s in shapes]
    before = g.joined([g.add(get("matmul"), [g.x, w], {"transpose_b": transpose_b})[0] for w in made])
    after = merge_parallel(before)
    assert ops(after) == ["matmul"]
    same_results(before, after)


def test_weights_that_are_given_are_copied_where_that_is_less_than_the_data() -> None:
    g = Net((2, 3, 32, 32))
    before = g.joined([g.conv(2, constant=False), g.conv(2, constant=False)])
    after = merge_parallel(before)
    assert ops(after) == ["concat", "conv"]
    same_results(before, after)
    small = Net((1, 3, 4, 4))
    graph = small.joined([small.conv(8, constant=False), small.conv(8, constant=False)])
    assert merge_parallel(graph) is graph


def test_what_is_read_elsewhere_stays() -> None:
    g = Net()
    one, other = g.conv(4), g.conv(4)
    (joined,) = g.add(get("concat"), [one, other], {"axis": 1})
    graph = g.finish([joined, one])
    assert merge_parallel(graph) is graph


@pytest.mark.parametrize("case", ["axis", "groups", "strides", "twice"])
def test_other_products_stay(case: str) -> None:
    g = Net()
    one = g.conv(3)
    if case == "groups":
        w = g.weights(3, 1, 3, 3)
        values = [g.add(get("conv"), [g.x, w], {**WINDOW, "groups": 3})[0] for _ in range(2)]
    else:
        values = [one, {"axis": g.conv, "strides": g.conv, "twice": lambda _: one}[case](3)]
        if case == "strides":
            values[1] = g.conv(3, dilations=(2, 2), pads=(2, 2, 2, 2))
    graph = g.joined(values, 2 if case == "axis" else 1)
    assert merge_parallel(graph) is graph
