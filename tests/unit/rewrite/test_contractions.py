"""Sums of products of any axes as products and convolutions: the same numbers, and which operators they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mlc
from mlc import te
from mlc.define.network import Network
from mlc.ir.graph import Graph
from mlc.ir.interp.graph import run_graph
from mlc.rewrite.contractions import state_contractions


def graph_of(shapes: Sequence[tuple[int, ...]], express: Callable[..., Any]) -> Graph:
    net = Network("net")
    operands = [net.input(f"x{k}", shape) for k, shape in enumerate(shapes)]
    net.output("y", mlc.operator(express)(*operands))
    return net.graph()


def axes(*extents: int) -> list[Any]:
    return [te.reduce_axis(n, f"r{k}") for k, n in enumerate(extents)]


def capsules(x: Any, w: Any) -> Any:
    c, r, s, k = axes(3, 3, 2, 5)
    shape = (2, 6, 3, 6, 4, 7)
    return te.compute(
        shape, lambda b, o, p, q, i, j: te.sum(x[b, c, 2 * p + r, q + 2 * s, i, k] * w[o, c, r, s, k, j], (c, r, s, k))
    )


def grouped(w: Any, x: Any) -> Any:
    c, r = axes(3, 3)
    return te.compute((2, 4, 5, 6), lambda n, g, o, t: te.sum(w[g, o, c, r] * x[n, t + r, g, c], (c, r)))


def turned(a: Any, b: Any) -> Any:
    t, n = axes(5, 3)
    return te.compute((4, 6), lambda i, j: te.sum(a[t, n, i] * b[t, n, j], (t, n)))


def swapped(a: Any, b: Any) -> Any:
    k, m = axes(3, 2)
    return te.compute((4, 5, 6, 7), lambda g, j, i, h: te.sum(a[g, i, h, k, m] * b[m, j, k, g], (k, m)))


def outer(a: Any, b: Any) -> Any:
    (k,) = axes(1)
    return te.compute((4, 5, 6), lambda i, h, j: te.sum(a[i, h, k] * b[j, k], k))


def row(a: Any, b: Any) -> Any:
    (k,) = axes(5)
    return te.compute((4, 6, 7), lambda g, i, j: te.sum(a[g, k] * b[g, k, i, j], k))


def by_weights(x: Any, dy: Any) -> Any:
    n, p = axes(2, 6)
    return te.compute((3, 4, 3), lambda o, c, r: te.sum(x[n, c, r + p] * dy[n, o, p], (n, p)))


CASES: list[tuple[Any, list[tuple[int, ...]], str]] = [
    (capsules, [(2, 3, 7, 8, 4, 5), (6, 3, 3, 2, 5, 7)], "conv"),
    (grouped, [(4, 5, 3, 3), (2, 8, 4, 3)], "conv"),
    (turned, [(5, 3, 4), (5, 3, 6)], "matmul"),
    (swapped, [(4, 6, 7, 3, 2), (2, 5, 3, 4)], "matmul"),
    (outer, [(4, 5, 1), (6, 1)], ""),  # nothing is summed
    (row, [(4, 5), (4, 5, 6, 7)], ""),  # no rows to multiply
    (by_weights, [(2, 4, 8), (2, 3, 6)], ""),  # taps of the size of the image
]


@pytest.mark.parametrize(("express", "shapes", "becomes"), CASES)
def test_numbers_stay_and_operators_are_known(express: Any, shapes: list[tuple[int, ...]], becomes: str) -> None:
    graph = graph_of(shapes, express)
    after = state_contractions(graph)
    rng = np.random.default_rng(0)
    feeds = {f"x{k}": rng.standard_normal(shape).astype(np.float32) for k, shape in enumerate(shapes)}
    np.testing.assert_allclose(run_graph(after, feeds)["y"], run_graph(graph, feeds)["y"], rtol=1e-4, atol=1e-5)
    names = [node.op.name for node in after.nodes]
    if becomes:
        assert becomes in names
    else:
        assert after is graph


def test_no_transpose_where_a_product_needs_none() -> None:
    names = [node.op.name for node in state_contractions(graph_of([(5, 3, 4), (5, 3, 6)], turned)).nodes]
    assert names == ["reshape", "reshape", "matmul"]
