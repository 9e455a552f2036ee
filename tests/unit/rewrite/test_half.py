"""Half precision: what computes in it, what stays, and how much is lost."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.ir.graph import Builder, Graph, Value, verify
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, f16, f32
from mlc.ops import get
from mlc.rewrite.half import FEW, HALVES, use_half, use_half_in_rounds
from mlc.rewrite.pipeline import PASSES

RNG = np.random.default_rng(0)
FEEDS = {"x": RNG.standard_normal((3, 8)).astype(np.float32)}


def network(scale: float = 1.0) -> Graph:
    """Two products with a softmax between, and a sum."""
    b = Builder("net")

    def put(op: str, *inputs: Value, **attrs: object) -> Value:
        return b.add(get(op), inputs, attrs, sources=[op.upper()])[0]

    w = b.constant(RNG.standard_normal((8, 8)).astype(np.float32), "w")
    c = b.constant(np.float32([scale]), "c")
    x = b.input("x", TensorType((3, 8), f32))
    m = put("matmul", x, w)
    s = put("softmax", put("mul", m, c), axis=-1)
    return b.finish([put("add", put("matmul", s, w), m)])


def in_half(g: Graph) -> list[str]:
    return [n.op.name for n in g.nodes if n.op.name != "cast" and n.outputs[0].type.dtype is f16]


def test_products_and_sums_in_half_softmax_not() -> None:
    graph = network()
    small = use_half(graph)
    verify(small)
    assert in_half(small) == ["matmul", "mul", "matmul", "add"]
    assert [n.op.name for n in small.nodes].count("cast") == 4  # x, around the softmax, and the result
    (got,), (want,) = (run_graph(g, FEEDS).values() for g in (small, graph))
    assert got.dtype == np.float32
    assert 0 < np.abs(got - want).max() < 1e-2


@pytest.mark.parametrize("keep, left", [("add", ["matmul", "mul", "matmul"]), ("MATMUL", ["mul", "add"])])
def test_operators_and_nodes_stay_on_demand(keep: str, left: list[str]) -> None:
    assert in_half(use_half(network(), [keep])) == left


@pytest.mark.parametrize("scale", [1e5, 1e-9])
def test_constants_that_do_not_fit_stay(scale: float) -> None:
    assert in_half(use_half(network(scale))) == ["matmul", "matmul", "add"]


def test_a_graph_without_floats_stays_itself() -> None:
    b = Builder("none")
    graph = b.finish([b.add(get("neg"), [b.input("x", TensorType((3,), f16))], {})[0]])
    assert use_half(graph) is graph


@pytest.mark.parametrize("rows", [1, FEW])
def test_rounds_take_only_products_in_half(rows: int) -> None:
    b = Builder("round")
    w = b.constant(RNG.standard_normal((8, 8)).astype(np.float32), "w")
    m = b.add(get("matmul"), [b.input("x", TensorType((rows, 8), f32)), w], {})[0]
    graph = b.finish([b.add(get("tanh"), [m], {})[0]])
    small = use_half_in_rounds(graph)
    verify(small)
    casts = [] if rows == 1 else ["cast"]  # of few rows the product widens its weights, whose sums are f32 then
    assert [n.op.name for n in small.nodes] == [*casts, "matmul", *casts, "tanh"]
    assert [v.type.dtype for v in small.constants] == [f16]
    feeds = {"x": RNG.standard_normal((rows, 8)).astype(np.float32)}
    (got,), (want,) = (run_graph(g, feeds).values() for g in (small, graph))
    assert 0 < np.abs(got - want).max() < 1e-2
    assert use_half_in_rounds(graph, ["matmul"]) is graph


def test_operators_are_operators() -> None:
    assert all(get(name).name == name for name in HALVES)
    assert "half" not in {p.name for p in PASSES}  # it is asked for


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="neither an operator nor a node 'matmull' to keep in float32") as caught:
        use_half(network(), ["matmull"])
    assert caught.value.hint == "did you mean matmul, mul?"
