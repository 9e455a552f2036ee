"""Values that are made again where the arena is to be smaller."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph, verify
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.rewrite.fuse import group_each
from mlc.rewrite.memory import check_plan, plan_memory
from mlc.rewrite.recompute import recompute

ROWS, WIDTH = 64, 8
ONE = ROWS * WIDTH * 4  # bytes of a value


def chain(depth: int) -> Graph:
    """Forward through products and back again, as training does: the last made is read first."""
    g = Builder("steps")
    x = g.input("x", TensorType((ROWS, WIDTH), f32))
    rng = np.random.default_rng(0)
    kept, v = [], x
    for k in range(depth):
        w = g.constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32), f"w{k}")
        (v,) = g.add(get("matmul"), [v, w], names=[f"a{k}"])
        kept.append(v)
    for k, a in reversed(list(enumerate(kept))):
        w = g.constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32), f"u{k}")
        (v,) = g.add(get("matmul"), [v, w], names=[f"m{k}"])
        (v,) = g.add(get("mul"), [v, a], names=[f"b{k}"])
    return group_each(g.finish([v]))


def shrunk(graph: Graph, limit: int) -> tuple[Graph, int]:
    return recompute(graph, limit, lambda g, s: plan_memory(g, scratch=s), {}, lambda node: float(ROWS * WIDTH))


def test_within_the_limit_everything_stays() -> None:
    graph = chain(4)
    assert shrunk(graph, plan_memory(graph).workspace_bytes)[0] is graph


@pytest.mark.parametrize("share", [0.8, 0.6, 0.4])
def test_values_are_made_again_and_results_are_the_same(share: float) -> None:
    graph = chain(16)
    limit = int(plan_memory(graph).workspace_bytes * share)
    smaller, nbytes = shrunk(graph, limit)
    verify(smaller)
    plan = plan_memory(smaller)
    check_plan(smaller, plan)
    assert nbytes == plan.workspace_bytes <= limit
    assert len(smaller.nodes) > len(graph.nodes)
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    (name,) = graph.output_names
    np.testing.assert_array_equal(run_graph(smaller, {"x": x})[name], run_graph(graph, {"x": x})[name])


def test_a_chain_is_made_again_by_segments() -> None:
    """As many layers as are kept, and as many as lie between two of them: about twice the root of their number."""
    graph = chain(36)
    smaller, nbytes = shrunk(graph, 16 * ONE)
    assert nbytes <= 16 * ONE
    assert len(smaller.nodes) - len(graph.nodes) <= 36  # no layer is made again more than once


def test_the_smallest_arena_that_is_named_can_be_had() -> None:
    graph = chain(12)
    least = shrunk(graph, 0)[1]
    assert 0 < least < plan_memory(graph).workspace_bytes
    assert shrunk(graph, least)[1] <= least
    assert shrunk(graph, least + ONE)[1] <= least + ONE


def test_the_cheapest_is_made_again() -> None:
    """Of two values that are equally large, the one that takes less time."""
    g = Builder("two")
    x = g.input("x", TensorType((ROWS, WIDTH), f32))
    w = g.constant(np.ones((WIDTH, WIDTH), np.float32), "w")
    (dear,) = g.add(get("matmul"), [x, w], names=["dear"])
    (cheap,) = g.add(get("neg"), [x], names=["cheap"])
    (v,) = g.add(get("mul"), [dear, cheap], names=["product"])
    for k in range(3):
        (v,) = g.add(get("matmul"), [v, w], names=[f"v{k}"])
    (v,) = g.add(get("mul"), [v, cheap], names=["by_cheap"])
    (v,) = g.add(get("mul"), [v, dear], names=["by_dear"])
    graph = group_each(g.finish([v]))
    peak = plan_memory(graph).workspace_bytes
    times = {"dear": 9.0, "cheap": 1.0}
    smaller, _ = recompute(
        graph, peak - 1, lambda g, s: plan_memory(g, scratch=s), {}, lambda n: times.get(n.outputs[0].name, 5.0)
    )
    assert [n.outputs[0].name for n in smaller.nodes if ".again" in n.outputs[0].name] == ["cheap.again"]
