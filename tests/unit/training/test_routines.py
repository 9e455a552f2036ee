"""Gradients of routines: against differences in float64, and PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import mlc
from mlc.api.training import wrapped
from mlc.errors import UnsupportedError
from mlc.ir.graph import Builder, Graph, verify
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f64
from mlc.ops import get
from mlc.training.backward import add_gradients
from mlc.training.listing import gradient_text
from tests.unit.training.operands import operands_of

ROWS = np.array([[0, 3, 3, -1], [2, 2, 2, 1]])  # several meet, and one counts from the end
PAIRS = np.array([[2, 1], [0, 0], [2, 1], [-1, -1]])
CASES: dict[str, tuple[str, Sequence[Any], Mapping[str, Any]]] = {
    "sum": ("cumsum", [(3, 5)], {"axis": 1}),
    "sum from the end": ("cumsum", [(2, 4, 3)], {"axis": 1, "reverse": True}),
    "sum of those before": ("cumsum", [(3, 5)], {"axis": 0, "exclusive": True}),
    "greatest": ("top_k", [(3, 7)], {"k": 3, "axis": 1}),
    "least": ("top_k", [(5, 2)], {"k": 2, "axis": 0, "largest": False}),
    "set": ("scatter_elements", [(2, 5), ROWS, (2, 4)], {"axis": 1}),
    "add": ("scatter_elements", [(2, 5), ROWS, (2, 4)], {"axis": 1, "reduction": "add"}),
    "set slices": ("scatter_nd", [(3, 2, 4), PAIRS, (4, 4)], {}),
    "add slices": ("scatter_nd", [(3, 2, 4), PAIRS, (4, 4)], {"reduction": "add"}),
}


def built(case: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """A routine's first result and the derivatives by its operands, with feeds."""
    name, shapes, attrs = CASES[case]
    rng = np.random.default_rng(7)
    g = Builder(name)
    operands, variables, feeds = operands_of(g, shapes, rng.standard_normal)
    result = g.add(get(name), operands, attrs)[0]
    seed = g.input("d", result.type)
    feeds["d"] = rng.standard_normal(result.type.shape)
    found = add_gradients(g, [(result, seed)], variables)
    graph = g.finish([result, *(v for v in found if v is not None)])
    assert len(graph.outputs) == 1 + len(variables)
    verify(graph)
    return graph, feeds


@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_differences(case: str) -> None:
    graph, feeds = built(case)
    _, *found = run_graph(graph, feeds).values()
    for (name, x), gradient in zip([(n, a) for n, a in feeds.items() if n != "d"], found, strict=True):
        want = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = x.copy()
                moved[at] += step
                ends.append(float((next(iter(run_graph(graph, feeds | {name: moved}).values())) * feeds["d"]).sum()))
            want[at] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradient, want, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", ["sum from the end", "greatest", "set"])
def test_compiled_ones_are_those_of_the_interpreter(case: str) -> None:
    graph, feeds = built(case)
    with mlc.compile(wrapped(graph), threads=1).load(1) as module:
        found = module.run(feeds)
    for name, want in run_graph(graph, feeds).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-12)


def test_they_are_printed_as_what_they_are() -> None:
    g = Builder("net")
    x = g.input("x", TensorType((3, 5), f64))
    (y,) = g.add(get("cumsum"), [x], {"axis": 1}, names=["y"])
    assert "dx = cumsum(dy, axis=1, exclusive=False, reverse=True)" in gradient_text(g.finish([y], ["y"]))


def test_reductions_without_one_are_refused_by_name() -> None:
    g = Builder()
    x, u = g.input("x", TensorType((2, 5), f64)), g.input("u", TensorType(ROWS.shape, f64))
    attrs = {"axis": 1, "reduction": "max"}
    (y,) = g.add(get("scatter_elements"), [x, g.constant(ROWS), u], attrs, sources=["most"])
    with pytest.raises(
        UnsupportedError, match=r"scatter_elements \(most\) has no gradient where its reduction is 'max'"
    ):
        add_gradients(g, [(y, g.input("dy", y.type))], [x])
