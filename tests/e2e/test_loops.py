"""Loop and Scan of many rounds, which become loops, and of few or of rounds that differ, which are unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.ops.scan import SCAN
from tests.e2e.compiled import assert_same, check, compiled, load, network, reference

node = helper.make_node
F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


def body(
    nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any], stored: dict[str, Any] | None = None
) -> onnx.GraphProto:
    """A subgraph; inputs and outputs by name with (type, shape)."""
    ins, outs = ([helper.make_tensor_value_info(k, t, s) for k, (t, s) in side.items()] for side in (inputs, outputs))
    constants = [numpy_helper.from_array(np.asarray(a), k) for k, a in (stored or {}).items()]
    return helper.make_graph(nodes, "body", ins, outs, constants)


def loop(nodes: list[onnx.NodeProto], outputs: list[str], *carried: str, **stored: Any) -> onnx.NodeProto:
    """A Loop of ``m`` rounds over ``h`` of 4 numbers, which becomes ``g``; every ``row`` of 4 is gathered."""
    inputs = {"i": (I, []), "go": (B, []), "h": (F, [4])}
    results = {"on": (B, []), "g": (F, [4]), "row": (F, [4])}
    inner = body([node("Identity", ["go"], ["on"]), *nodes], inputs, results, stored)
    return node("Loop", ["m", "", "h0"], outputs, body=inner)


def scans(model: onnx.ModelProto) -> int:
    return sum(n.op is SCAN for n in load(model).graph.nodes)


@pytest.mark.parametrize("rounds, found", [(3, 0), (16, 0), (17, 1), (700, 1)])
def test_rounds_of_a_loop(rounds: int, found: int) -> None:
    """With a value and a weight from outside, the number of the round, and a product that is the same in all."""
    nodes = [
        node("MatMul", ["w", "w"], ["ww"]),
        node("MatMul", ["h", "ww"], ["p"]),
        node("Gather", ["x", "i"], ["xi"]),
        node("Add", ["p", "xi"], ["s"]),
        node("Cast", ["i"], ["f"], to=F),
        node("Mul", ["f", "tiny"], ["t"]),
        node("Add", ["s", "t"], ["s2"]),
        node("Tanh", ["s2"], ["g"]),
        node("Abs", ["s2"], ["row"]),
    ]
    feeds = {"h0": normal(4), "x": normal(rounds, 4, seed=1)}
    stored = {"m": np.int64(rounds), "w": normal(4, 4, seed=2)}
    model = network([loop(nodes, ["last", "all"], tiny=np.float32(1e-3))], feeds, ["last", "all"], stored)
    assert scans(model) == found
    check(model, feeds, tolerance=1e-5)


def test_rounds_that_differ_are_unrolled() -> None:
    """A slice needs numbers that are known, and where it ends depends on the round."""
    nodes = [
        node("Mod", ["i", "two"], ["odd"]),
        node("Add", ["odd", "two"], ["end"]),
        node("Slice", ["h", "zero", "ends"], ["part"]),
        node("Reshape", ["end", "one"], ["ends"]),
        node("ReduceSum", ["part"], ["total"], keepdims=0),
        node("Mul", ["h", "half"], ["g0"]),
        node("Add", ["g0", "total"], ["g"]),
        node("Identity", ["g"], ["row"]),
    ]
    nodes[2], nodes[3] = nodes[3], nodes[2]
    stored = {"two": np.int64(2), "zero": np.int64([0]), "one": np.int64([1]), "half": np.float32(0.1)}
    feeds = {"h0": normal(4) / 8}
    model = network([loop(nodes, ["last", "all"], **stored)], feeds, ["last", "all"], {"m": np.int64(20)})
    assert scans(model) == 0
    assert_same(compiled(model, feeds), reference(model, feeds), tolerance=1e-5)


def test_a_loop_that_ends_by_a_known_condition() -> None:
    inner = body(
        [
            node("Less", ["i", "last"], ["on"]),
            node("Sin", ["h"], ["g"]),
        ],
        {"i": (I, []), "go": (B, []), "h": (F, [4])},
        {"on": (B, []), "g": (F, [4])},
        {"last": np.int64(20)},
    )
    feeds = {"h0": normal(4)}
    model = network([node("Loop", ["m", "", "h0"], ["y"], body=inner)], feeds, ["y"], {"m": np.int64(50)})
    assert scans(model) == 0
    assert_same(compiled(model, feeds), reference(model, feeds), tolerance=1e-5)


def test_what_constants_decide_is_known_afterwards() -> None:
    """A shape that a loop counts."""
    inner = body(
        [node("Identity", ["go"], ["on"]), node("Add", ["n", "one"], ["n1"])],
        {"i": (I, []), "go": (B, []), "n": (I, [1])},
        {"on": (B, []), "n1": (I, [1])},
        {"one": np.int64([1])},
    )
    nodes = [node("Loop", ["m", "", "n0"], ["n"], body=inner), node("Expand", ["x", "n"], ["y"])]
    model = network(nodes, {"x": normal(1)}, ["y"], {"m": np.int64(30), "n0": np.int64([0])})
    check(model, {"x": normal(1)})


@pytest.mark.parametrize("rounds", [5, 40, 500])
@pytest.mark.parametrize("backward", [0, 1])
def test_rounds_of_a_scan(rounds: int, backward: int) -> None:
    """Two tensors scanned along different axes, two states that change places, rows gathered along the last axis."""
    inner = body(
        [
            node("Add", ["a", "x"], ["s"]),
            node("Mul", ["s", "z"], ["p"]),
            node("Sigmoid", ["p"], ["b2"]),
            node("Identity", ["b"], ["a2"]),
            node("Sub", ["b", "w"], ["row"]),
        ],
        {"a": (F, [3]), "b": (F, [3]), "x": (F, [3]), "z": (F, [3])},
        {"a2": (F, [3]), "b2": (F, [3]), "row": (F, [3]), "p": (F, [3])},
    )
    attrs = {
        "num_scan_inputs": 2,
        "scan_input_axes": [0, 1],
        "scan_input_directions": [0, backward],
        "scan_output_axes": [1, 0],
        "scan_output_directions": [backward, 0],
    }
    outputs = ["last_a", "last_b", "rows", "ps"]
    scan = node("Scan", ["a0", "b0", "xs", "zs"], outputs, body=inner, **attrs)
    feeds = {"a0": normal(3), "b0": normal(3, seed=1), "xs": normal(rounds, 3, seed=2), "zs": normal(3, rounds, seed=3)}
    model = network([scan], {**feeds, "w": normal(3, seed=4)}, outputs)
    check(model, {**feeds, "w": normal(3, seed=4)}, tolerance=1e-5)
    assert scans(model) == (rounds > 16)


def test_a_loop_in_a_loop() -> None:
    """The inner one captures what the outer one carries; both are loops of the code."""
    inner = body(
        [node("Identity", ["go2"], ["on2"]), node("Mul", ["k", "h"], ["kh"]), node("Sin", ["kh"], ["k2"])],
        {"j": (I, []), "go2": (B, []), "k": (F, [4])},
        {"on2": (B, []), "k2": (F, [4])},
    )
    nodes = [
        node("Loop", ["m", "", "h"], ["deep"], body=inner),
        node("Add", ["deep", "x"], ["sum"]),
        node("Tanh", ["sum"], ["g"]),
        node("Neg", ["g"], ["row"]),
    ]
    feeds = {"h0": normal(4), "x": normal(4, seed=1)}
    model = network([loop(nodes, ["last", "all"])], feeds, ["last", "all"], {"m": np.int64(25)})
    (outer,) = load(model).graph.nodes
    assert [n.op is SCAN for n in outer.attrs["body"].nodes] == [True, False, False, False]
    check(model, feeds, tolerance=1e-5)


def test_an_lstm_in_a_loop() -> None:
    """Weights of a recurrence in a recurrence are packed, and each round starts from the last one's state."""
    nodes = [
        node("Reshape", ["h", "state"], ["first"]),
        node("LSTM", ["x", "w", "r", "", "", "first"], ["", "y_h", ""], hidden_size=4),
        node("Reshape", ["y_h", "flat"], ["g"]),
        node("Identity", ["g"], ["row"]),
    ]
    feeds = {"h0": normal(4), "x": normal(30, 1, 3)}
    stored = {"m": np.int64(18), "w": normal(1, 16, 3), "r": normal(1, 16, 4)}
    shapes = {"state": np.int64([1, 1, 4]), "flat": np.int64([4])}
    model = network([loop(nodes, ["last", "all"], **shapes)], feeds, ["last", "all"], stored)
    check(model, feeds, tolerance=1e-5)
