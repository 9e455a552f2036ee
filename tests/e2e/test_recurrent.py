"""Recurrent layers and gated units compiled for vectors of several widths, against onnxruntime."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from onnx import helper

from tests.e2e.compiled import assert_same, compiled, network, reference

HAS_AVX2 = llvm.get_host_cpu_features().get("avx2", False)
TARGETS = ["x86", "x86 -mcpu=x86-64", *(["x86 -mcpu=haswell"] if HAS_AVX2 else [])]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}

# operator, steps, batch, inputs, hidden units, attributes, optional inputs
LAYERS = {
    "lstm": ("LSTM", 4, 1, 7, 37, {}, ""),
    "lstm, whole vectors": ("LSTM", 3, 1, 16, 64, {}, "h"),
    "lstm, one unit": ("LSTM", 3, 2, 3, 1, {}, ""),
    "lstm, batch": ("LSTM", 3, 5, 6, 19, {"direction": "bidirectional"}, "lhc"),
    "lstm, peepholes": ("LSTM", 3, 2, 6, 13, {"direction": "reverse"}, "hcp"),
    "lstm, coupled and clipped": ("LSTM", 3, 1, 6, 13, {"input_forget": 1, "clip": 0.5}, ""),
    "lstm, other functions": ("LSTM", 2, 3, 4, 9, {"activations": ["HardSigmoid", "Relu", "Softsign"]}, ""),
    "gru": ("GRU", 4, 1, 7, 21, {}, "h"),
    "gru, reset after": ("GRU", 4, 3, 7, 21, {"linear_before_reset": 1, "direction": "bidirectional"}, "lh"),
    "rnn": ("RNN", 4, 2, 7, 21, {"direction": "bidirectional"}, "lh"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_onnxruntime(name, target):
    op, steps, batch, size, hidden, attrs, optional = LAYERS[name]
    rng = np.random.default_rng(0)
    directions, gates = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op]

    def array(*shape):
        return rng.normal(size=shape).astype(np.float32) / 2

    stored = {
        "w": array(directions, gates * hidden, size),
        "r": array(directions, gates * hidden, hidden) / np.float32(hidden**0.5),
        "b": array(directions, 2 * gates * hidden),
    }
    feeds = {"x": array(steps, batch, size)}
    names = ["x", "w", "r", "b", "", "", "", ""]
    for k, letter in enumerate("lhcp"):
        if letter in optional:
            names[4 + k] = letter
    if "l" in optional:
        feeds["l"] = rng.integers(1, steps + 1, batch).astype(np.int32)
    for letter in set("hc") & set(optional):
        feeds[letter] = array(directions, batch, hidden)
    if "p" in optional:
        stored["p"] = array(directions, 3 * hidden)
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names[: 8 if op == "LSTM" else 6], outputs, hidden_size=hidden, **attrs)
    model = network([node], feeds, outputs, stored)
    assert_same(compiled(model, feeds, target=target, threads=2), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("rows, units", [(1, 40), (7, 24), (33, 50)])
def test_gated_linear_units(rows, units):
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=(rows, 30)).astype(np.float32)}
    stored = {"w": rng.normal(size=(30, 2 * units)).astype(np.float32), "n": np.array([units, units], np.int64)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Split", ["y", "n"], ["a", "b"], axis=1),
        helper.make_node("Sigmoid", ["b"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["z"]),
    ]
    model = network(nodes, feeds, ["z"], stored)
    assert_same(compiled(model, feeds), reference(model, feeds), tolerance=1e-5)
