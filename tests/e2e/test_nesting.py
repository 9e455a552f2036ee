"""How deep Python's stack gets over models that nest as deep as the limits let them: far from its own limit.

Graphs, expressions and sequences of statements may be of any size; they are walked in loops. Statements within
statements are walked by recursion, but their depth follows from a tensor's rank, the operators of one group and the
nesting of bodies, all of which are bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from mlc.frontend.limits import DEFAULT_LIMITS
from tests.e2e.compiled import load, network

FRAMES = 250  # of Python's usual 1,000
F = np.float32
X = {"x": np.ones((6, 5), F)}
node = helper.make_node


@pytest.fixture(autouse=True)
def _little_stack() -> Iterator[None]:
    """Python's limit, that many frames above where the test stands."""
    usual, frame, depth = sys.getrecursionlimit(), sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    sys.setrecursionlimit(depth + FRAMES)
    yield
    sys.setrecursionlimit(usual)


def repeated(count: int, step: Callable[[str, int], list[Any]], stored: dict[str, np.ndarray]) -> Any:
    """A chain: every step reads the result of the one before."""
    nodes, value = [], "x"
    for k in range(count):
        nodes += step(value, k)
        value = str(nodes[-1].output[0])
    return network(nodes, X, [value], stored)


def choices() -> Any:
    """Selections within selections."""

    def step(v: str, k: int) -> list[Any]:
        return [node("Greater", [v, "x"], [f"c{k}"]), node("Where", [f"c{k}", "x", v], [f"v{k}"])]

    return repeated(300, step, {})


def borders() -> Any:
    """Guards within guards."""

    def step(v: str, k: int) -> list[Any]:
        return [node("Pad", [v, "p"], [f"p{k}"]), node("Slice", [f"p{k}", "b", "e"], [f"v{k}"])]

    return repeated(100, step, {"p": np.array([1, 0, 0, 2]), "b": np.array([0, 0]), "e": np.array([6, 5])})


def doublings() -> Any:
    """Quotients of sums of quotients: rows are repeated, and all but the first of them kept."""

    def step(v: str, k: int) -> list[Any]:
        return [
            node("Slice", [v, "b", "e"], [f"s{k}"]),
            node("Unsqueeze", [f"s{k}", "b"], [f"u{k}"]),
            node("Expand", [f"u{k}", "twice"], [f"w{k}"]),
            node("Reshape", [f"w{k}", "flat"], [f"v{k}"]),
        ]

    flat = {"b": np.array([1]), "e": np.array([4]), "twice": np.array([3, 2, 5]), "flat": np.array([6, 5])}
    return repeated(60, step, flat)


def of_most_axes(op: str, *more: str, **attrs: Any) -> Callable[[], Any]:
    """Loops within loops."""
    rank = DEFAULT_LIMITS.rank
    shape = [2 if k % 4 == 0 else 1 for k in range(rank)]
    stored = {"one": np.array([1]), "axis": np.array(4), "i": np.zeros(shape, np.int64)}
    outputs = ["y", "z"] if op == "TopK" else ["y"]
    feeds = {"x": np.ones(shape, F)}
    used = {name: stored[name] for name in more if name != "x"}
    return lambda: network([node(op, ["x", *more], outputs, **attrs)], feeds, outputs, used)


def loops_in_loops() -> Any:
    """Recurrences within recurrences, as deep as ``nodes`` lets them be; in functions, as protobuf stops earlier."""
    info, functions, depth = helper.make_tensor_value_info, [], 8
    for f in range(2):
        inner = [node(f"F{f - 1}", ["v0"], ["w0"], domain="d") if f else node("Relu", ["v0"], ["w0"])]
        for k in range(depth):
            v, w, go = f"v{k}", f"w{k}", f"go{k}"
            body = helper.make_graph(
                [*inner, node("Identity", [go], [f"{go}_on"])],
                f"body{k}",
                [info(f"i{k}", 7, []), info(go, 9, []), info(v, 1, [3])],
                [info(f"{go}_on", 9, []), info(w, 1, [3])],
            )
            count = node("Constant", [], [f"m{k}"], value_int=40)
            inner = [count, node("Loop", [f"m{k}", "", f"v{k + 1}"], [f"w{k + 1}"], body=body)]
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
        functions.append(helper.make_function("d", f"F{f}", [f"v{depth}"], [f"w{depth}"], inner, imports))
    graph = helper.make_graph([node("F1", ["x"], ["y"], domain="d")], "g", [info("x", 1, [3])], [info("y", 1, [3])])
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


MODELS = {
    "choices": choices,
    "borders": borders,
    "doublings": doublings,
    "loops in loops": loops_in_loops,
    "top-k of 32 axes": of_most_axes("TopK", "one", axis=4),
    "scatter of 32 axes": of_most_axes("ScatterElements", "i", "x", axis=4),
    "sums along one of 32 axes": of_most_axes("CumSum", "axis"),
    "softmax of 32 axes": of_most_axes("Softmax", axis=0),
    "turning 32 axes": of_most_axes("Transpose"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_nest_deeply_take_little_stack(name: str, tmp_path: Path) -> None:
    """Imported, saved, loaded, optimised, checked, printed and compiled."""
    model = load(MODELS[name]())
    model.save(tmp_path / "m.mlc")
    package = mlc.compile(mlc.load(tmp_path / "m.mlc"), verify_passes=True)
    package.save(tmp_path / "m.tar")


def test_operations_beyond_counting_are_told_as_many(tmp_path: Path) -> None:
    """40^16 rounds."""
    onnx.save(loops_in_loops(), tmp_path / "m.onnx")
    manifest = mlc.compile(mlc.load(tmp_path / "m.onnx")).save(tmp_path / "m.tar")
    assert max(step.flops for step in manifest.steps) == (1 << 63) - 1
