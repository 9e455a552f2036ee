"""What is computed again for each of its readers: equation (4) of NeoFlow."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.cost import Peaks
from mlc.ir.graph import Builder, Graph, Node, Value, verify
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.rewrite.fuse import fuse
from mlc.rewrite.group import body_of
from mlc.rewrite.profile import Profiler
from mlc.rewrite.reward import repetition

BYTES = 64 * 32 * 4
MEMORY = Peaks(transfer=1.0, compute=1e9, launch=0.0)
ARITHMETIC = Peaks(transfer=1e9, compute=1.0, launch=0.0)
LAUNCHES = Peaks(transfer=1e9, compute=1e9, launch=1000.0)


def two_readers(op: str = "relu", second: bool = False) -> Graph:
    """A map of elements whose result two sums over different axes read."""
    g = Builder("two")
    x = g.input("x", TensorType((64, 32), f32))
    operands = [x, g.input("z", TensorType((64, 32), f32))] if second else [x]
    (y,) = g.add(get(op), operands, names=["y"])
    (rows,) = g.add(get("reduce_sum"), [y], {"axes": (1,), "keepdims": False}, names=["rows"])
    (columns,) = g.add(get("reduce_sum"), [y], {"axes": (0,), "keepdims": False}, names=["columns"])
    return g.finish([rows, columns])


def groups(graph: Graph) -> list[list[str]]:
    return [[n.op.name for n in body_of(node).nodes] for node in graph.nodes]


APART = [["relu"], ["reduce_sum"], ["reduce_sum"]]
AGAIN = [["relu", "reduce_sum"], ["relu", "reduce_sum"]]


def test_without_peaks_nothing_is_computed_twice() -> None:
    assert groups(fuse(two_readers())) == APART


@pytest.mark.parametrize(("peaks", "wanted"), [(MEMORY, AGAIN), (LAUNCHES, AGAIN), (ARITHMETIC, APART)])
def test_the_reward_decides(peaks: Peaks, wanted: list[list[str]]) -> None:
    graph = two_readers()
    found = fuse(graph, peaks=peaks)
    verify(found)
    assert groups(found) == wanted
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    before, after = (run_graph(g, {"x": x}) for g in (graph, found))
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_a_function_of_many_operations_stays() -> None:
    """At 4 bytes and 64 operations a cycle an exp is made again; at 4 bytes and 1 operation it is not."""
    graph = two_readers("exp")
    assert len(fuse(graph, peaks=Peaks(4, 64, 0)).nodes) == 2
    assert len(fuse(graph, peaks=Peaks(4, 1, 0)).nodes) == 3


def test_what_is_given_back_stays() -> None:
    graph = two_readers()
    (y,) = [v for n in graph.nodes for v in n.outputs if v.name == "y"]
    kept = Graph("kept", graph.inputs, (*graph.outputs, y), graph.nodes, graph.constants)
    assert groups(fuse(kept, peaks=MEMORY)) == APART


def test_a_convolution_reads_what_is_there() -> None:
    """Its first operand is read again for every output; the sum beside it would not save the transfer."""
    g = Builder("conv")
    x = g.input("x", TensorType((1, 8, 16, 16), f32))
    w = g.constant(np.ones((8, 8, 3, 3), np.float32), "w")
    (y,) = g.add(get("relu"), [x], names=["y"])
    (c,) = g.add(get("conv"), [y, w], {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}, names=["c"])
    (s,) = g.add(get("reduce_sum"), [y], {"axes": (2, 3), "keepdims": False}, names=["s"])
    assert ["relu"] in groups(fuse(g.finish([c, s]), peaks=MEMORY))


def test_windows_read_what_is_there() -> None:
    """They would compute each element as often as they reach it."""
    g = Builder("windows")
    x = g.input("x", TensorType((1, 8, 16, 16), f32))
    (y,) = g.add(get("relu"), [x], names=["y"])
    window = {"kernel": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    pools = [g.add(get("max_pool"), [y], {**window, "strides": (k, k)})[0] for k in (1, 2)]
    assert groups(fuse(g.finish(pools), peaks=MEMORY)) == [["relu"], ["max_pool"], ["max_pool"]]


def counted(graph: Graph) -> tuple[float, float]:
    first, *readers = graph.nodes
    result: Value = first.outputs[0]
    sharing: list[tuple[list[Node], float]] = [([n], 1.0) for n in readers]
    found = repetition([first], result, sharing, Profiler())
    assert found.launches == 1
    return found.transfer, found.compute


def test_figure_6_with_two_readers() -> None:
    """One: its operand is read once more, its result not written and not read twice. Many: each operand is."""
    assert counted(two_readers()) == ((1 + 3 - 2) * BYTES, -BYTES / 4)
    assert counted(two_readers("mul", second=True)) == ((2 + 3 - 4) * BYTES, -BYTES / 4)
