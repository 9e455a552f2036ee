"""The wiring of graphs: outputs of every origin, dead ends, duplicates; and rewrites that must not change a result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mlc
from tests.e2e.compiled import Arrays, assert_same, check, compiled, load, network

node = helper.make_node
F = np.float32


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


X = normal(3, 5)


def test_outputs_that_are_inputs_and_constants() -> None:
    nodes = [node("Relu", ["x"], ["y"])]
    c = normal(4, seed=1)
    check(network(nodes, {"x": X}, ["x", "c", "y"], {"c": c}), {"x": X}, {"x": X, "c": c, "y": np.maximum(X, 0)})


def test_a_model_without_nodes() -> None:
    check(network([], {"x": X}, ["x"]), {"x": X}, {"x": X})


def test_a_model_without_inputs() -> None:
    c = normal(4)
    check(network([node("Neg", ["c"], ["y"])], {}, ["y"], {"c": c}), {}, {"y": -c})


def test_input_that_nobody_reads() -> None:
    feeds = {"x": X, "unused": normal(2)}
    check(network([node("Neg", ["x"], ["y"])], feeds, ["y"]), feeds, {"y": -X})


def test_one_tensor_under_several_names() -> None:
    """Identities, and reshapes to the same shape, of an input, of a constant and of a result."""
    c = normal(2, seed=2)
    nodes = [
        node("Exp", ["x"], ["y"]),
        node("Identity", ["y"], ["y1"]),
        node("Identity", ["y1"], ["y2"]),
        node("Identity", ["x"], ["x1"]),
        node("Identity", ["c"], ["c1"]),
        node("Reshape", ["y", "flat"], ["z1"]),
        node("Reshape", ["y", "flat"], ["z2"]),
        node("Reshape", ["x", "flat"], ["x2"]),
    ]
    y = np.exp(X)
    want = {"y": y, "y1": y, "y2": y, "x1": X, "c1": c, "z1": y.ravel(), "z2": y.ravel(), "x2": X.ravel()}
    check(network(nodes, {"x": X}, list(want), {"c": c, "flat": np.array([-1], np.int64)}), {"x": X}, want)


def test_an_output_that_is_read_on() -> None:
    """Its buffer is the caller's; what comes after must not write over it, in place or otherwise."""
    nodes = [
        node("Add", ["x", "x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Mul", ["b", "a"], ["c"]),
        node("Reshape", ["b", "flat"], ["d"]),
        node("Neg", ["d"], ["e"]),
    ]
    a = X + X
    b = np.maximum(a, 0)
    want = {"a": a, "b": b, "c": a * b, "d": b.ravel(), "e": -b.ravel()}
    check(network(nodes, {"x": X}, list(want), {"flat": np.array([15], np.int64)}), {"x": X}, want)


def test_dead_nodes_and_dead_results() -> None:
    nodes = [
        node("Exp", ["x"], ["dead"]),
        node("Neg", ["dead"], ["deader"]),
        node("Split", ["x", "sizes"], ["p", "q", "r"], axis=1),
        node("TopK", ["x", "k"], ["", "places"], axis=1),
        node("Relu", ["q"], ["y"]),
    ]
    stored = {"sizes": np.array([1, 3, 1], np.int64), "k": np.array([1], np.int64)}
    want = {"y": np.maximum(X[:, 1:4], 0), "places": X.argmax(1, keepdims=True)}
    check(network(nodes, {"x": X}, list(want), stored), {"x": X}, want)


def test_one_result_wanted_of_many() -> None:
    nodes = [node("LSTM", ["s", "w", "r"], ["", "h", ""], hidden_size=4)]
    feeds = {"s": normal(3, 2, 5)}
    check(network(nodes, feeds, ["h"], {"w": normal(1, 16, 5), "r": normal(1, 16, 4)}), feeds)


def test_duplicate_constants_and_nodes() -> None:
    """Equal bytes under several names, of other types too, and the same node twice."""
    c = np.zeros(5, F)
    stored = {"c1": c, "c2": c.copy(), "i": np.zeros(5, np.int32), "minus": -c}
    nodes = [
        node("Add", ["x", "c1"], ["a"]),
        node("Add", ["x", "c2"], ["b"]),
        node("Add", ["k", "i"], ["j"]),
        node("Div", ["one", "c1"], ["up"]),
        node("Div", ["one", "minus"], ["down"]),
        node("Mul", ["a", "b"], ["y"]),
    ]
    feeds = {"x": X, "k": np.arange(5, dtype=np.int32), "one": np.ones(5, F)}
    up = np.full(5, np.inf, F)
    want = {"a": X, "b": X, "j": feeds["k"], "up": up, "down": -up, "y": X * X}
    check(network(nodes, feeds, list(want), stored), feeds, want)


def test_the_same_tensor_as_every_operand() -> None:
    c = X > 0
    nodes = [
        node("Add", ["x", "x"], ["add"]),
        node("Sub", ["x", "x"], ["sub"]),
        node("Where", ["c", "x", "x"], ["where"]),
        node("Concat", ["x", "x", "x"], ["concat"], axis=0),
        node("Sum", ["x", "x", "x", "x"], ["sum"]),
        node("Less", ["x", "x"], ["less"]),
        node("Gemm", ["s", "s", "s"], ["gemm"], transB=1),
        node("And", ["c", "c"], ["and"]),
    ]
    s = normal(4, 4, seed=3)
    want = {
        "add": X + X,
        "sub": X - X,
        "where": X,
        "concat": np.concatenate([X, X, X]),
        "sum": 4 * X,
        "less": np.zeros_like(c),
        "gemm": s @ s.T + s,
        "and": c,
    }
    feeds = {"x": X, "c": c, "s": s}
    check(network(nodes, feeds, list(want)), feeds, want)


def test_concat_of_one_and_split_to_one() -> None:
    nodes = [
        node("Concat", ["x"], ["a"], axis=0),
        node("Split", ["a", "all"], ["b"], axis=1),
        node("Neg", ["b"], ["y"]),
        node("Concat", ["x"], ["alone"], axis=1),
    ]
    stored = {"all": np.array([5], np.int64)}
    check(network(nodes, {"x": X}, ["a", "b", "y", "alone"], stored), {"x": X}, {"a": X, "b": X, "y": -X, "alone": X})


def test_in_place_chains_with_late_readers() -> None:
    """A long chain of elementwise steps, unfused, each tempted to write over its operand."""
    nodes, want, value = [], {}, X
    previous = "x"
    for k in range(12):
        operands = [previous, "x" if k % 3 else previous]
        nodes.append(node("Add" if k % 2 else "Mul", operands, [f"t{k}"]))
        other = X if k % 3 else value
        value = (value + other if k % 2 else value * other) * F(1)
        nodes.append(node("Tanh", [f"t{k}"], [f"u{k}"]))
        value = np.tanh(value)
        previous = f"u{k}"
        if k in (2, 7):
            want[previous] = value
    nodes.append(node("Sub", ["u11", "u2"], ["y"]))
    want["y"] = value - want["u2"]
    model = network(nodes, {"x": X}, list(want))
    for off in ((), ("fuse",)):
        assert_same(compiled(model, {"x": X}, disabled_passes=off), want, tolerance=1e-5)


def test_inputs_are_left_alone_and_runs_repeat() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["b"]), node("Add", ["b", "x"], ["y"])]
    x = X.copy()
    with mlc.compile(load(network(nodes, {"x": x}, ["y"])), disabled_passes=("fuse",)).load(2) as module:
        first = module.run({"x": x})
        again = module.run({"x": x})
        other = module.run({"x": x + 1})
        last = module.run({"x": x})
    np.testing.assert_array_equal(x, X)
    assert_same(again, first)
    assert_same(last, first)
    assert not np.array_equal(other["y"], first["y"])


def test_names_that_are_no_identifiers() -> None:
    """Quotes, newlines, spaces, dots, slashes, other alphabets, keywords, names of our own temporaries."""
    names = ["a b", 'q"uote', "line\nbreak", "dot.1", "/sl/ash:0", "größe", "for", "relu", "%x", "out0", "p0"]
    names.append("x" * 300)
    nodes = [node("Relu", [name], [f"{name} out"], name=f"{name} node") for name in names]
    feeds = {name: X + k for k, name in enumerate(names)}
    want = {f"{name} out": np.maximum(feeds[name], 0) for name in names}
    assert_same(compiled(network(nodes, feeds, list(want)), feeds), want)


def test_a_long_chain() -> None:
    """Two thousand steps: nothing recurses, and one kernel serves them all."""
    nodes = [node("Tanh", [f"t{k}" if k else "x"], [f"t{k + 1}"]) for k in range(2000)]
    value = X
    for _ in range(2000):
        value = np.tanh(value)
    package = mlc.compile(load(network(nodes, {"x": X}, ["t2000"])), disabled_passes=("fuse",))
    assert len({step.kernel for step in package.manifest.steps}) == 1
    with package.load(1) as module:
        assert_same(module.run({"x": X}), {"t2000": value}, tolerance=1e-3)


# -- rewrites that change nothing ------------------------------------------------------------------------------------
WEIGHTS = {"w": normal(16, 3, 3, 3, seed=4), "v": normal(16, 16, 1, 1, seed=5), "m": normal(16, 7, seed=6)}
IMAGE = normal(1, 3, 9, 9, seed=7)
Rewrite = Callable[[str, str], list[onnx.NodeProto]]
CONSTANTS = {
    "zero": np.array(0, F),
    "one": np.array(1, F),
    "ones": np.ones((1, 1, 1), F),
    "back": np.array([0, 1, 2, 3], np.int64),
    "first": np.array([0], np.int64),
    "half": np.array([5], np.int64),
    "far": np.array([2**31 - 1], np.int64),
    "least": np.array([-(2**31)], np.int64),
    "last": np.array([-1], np.int64),
    "axis3": np.array([3], np.int64),
    "step": np.array([-1], np.int64),
    "keep": np.array([0, 0, 0, -1], np.int64),
    "pads": np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64),
    "crop": np.array([0, 0, -1, 0, 0, 0, 0, -2], np.int64),
    "axis0": np.array([0], np.int64),
    "yes": np.array(True),
}
REWRITES: dict[str, Rewrite] = {
    "x + 0": lambda x, y: [node("Add", [x, "zero"], [y])],
    "0 + x": lambda x, y: [node("Add", ["zero", x], [y])],
    "x · 1": lambda x, y: [node("Mul", [x, "ones"], [y])],
    "x / 1": lambda x, y: [node("Div", [x, "one"], [y])],
    "- - x": lambda x, y: [node("Neg", [x], [f"{y}_"]), node("Neg", [f"{y}_"], [y])],
    "transposed twice": lambda x, y: [
        node("Transpose", [x], [f"{y}_"], perm=[0, 2, 3, 1]),
        node("Transpose", [f"{y}_"], [y], perm=[0, 3, 1, 2]),
    ],
    "reshaped there and back": lambda x, y: [
        node("Flatten", [x], [f"{y}_"], axis=2),
        node("Shape", [x], [f"{y}_shape"]),
        node("Reshape", [f"{y}_", f"{y}_shape"], [y]),
    ],
    "split and joined": lambda x, y: [
        node("Slice", [x, "first", "half", "axis3"], [f"{y}_1"]),
        node("Slice", [x, "half", "far", "axis3"], [f"{y}_2"]),
        node("Concat", [f"{y}_1", f"{y}_2"], [y], axis=3),
    ],
    "reversed twice": lambda x, y: [
        node("Slice", [x, "last", "least", "axis3", "step"], [f"{y}_"]),
        node("Slice", [f"{y}_", "last", "least", "axis3", "step"], [y]),
    ],
    "padded and cropped": lambda x, y: [node("Pad", [x, "pads"], [f"{y}_"]), node("Pad", [f"{y}_", "crop"], [y])],
    "one more axis": lambda x, y: [
        node("Unsqueeze", [x, "axis0"], [f"{y}_"]),
        node("Squeeze", [f"{y}_", "axis0"], [y]),
    ],
    "to double and back": lambda x, y: [
        node("Cast", [x], [f"{y}_"], to=TensorProto.DOUBLE),
        node("Cast", [f"{y}_"], [y], to=TensorProto.FLOAT),
    ],
    "the greater of x and x": lambda x, y: [node("Max", [x, x], [y])],
    "chosen from x and x": lambda x, y: [node("Where", ["yes", x, x], [y])],
    "gathered in order": lambda x, y: [node("Gather", [x, "axis0"], [y], axis=0)],
    "mean of x": lambda x, y: [node("Mean", [x], [y])],
}  # fmt: skip


def rewritten(rewrite: Rewrite) -> onnx.ModelProto:
    """A small network with a rewrite after each of its layers."""
    nodes: list[onnx.NodeProto] = []

    def layer(op: str, operands: list[str], result: str, **attrs: object) -> None:
        nodes.append(node(op, operands, [f"{result}."], **attrs))
        nodes.extend(rewrite(f"{result}.", result))

    layer("Conv", ["x", "w"], "a", pads=[1, 1, 1, 1])
    layer("Relu", ["a"], "b")
    layer("MaxPool", ["b"], "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    layer("Conv", ["c", "v"], "d")
    layer("Add", ["d", "b"], "e")
    layer("Softmax", ["e"], "f", axis=1)
    layer("Transpose", ["f"], "g", perm=[0, 2, 3, 1])
    layer("MatMul", ["g", "m"], "h")
    layer("ReduceMean", ["h", "axis3"], "y")
    return network(nodes, {"x": IMAGE}, ["e", "y"], {**WEIGHTS, **CONSTANTS})


@pytest.fixture(scope="module")
def plain() -> Arrays:
    """Outputs of the network as it is."""
    return compiled(rewritten(lambda x, y: [node("Identity", [x], [y])]), {"x": IMAGE})


@pytest.mark.parametrize("name", REWRITES)
def test_rewrite_changes_nothing(name: str, plain: Arrays) -> None:
    assert_same(compiled(rewritten(REWRITES[name]), {"x": IMAGE}), plain, tolerance=1e-6)
