"""Recurrent layers and gated units compiled for vectors of several widths, against onnxruntime."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from onnx import helper

import mlc
from mlc.harness import listing
from tests.e2e.compiled import assert_same, compiled, load, network, reference

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
    "gru, batch": ("GRU", 4, 11, 7, 40, {"direction": "bidirectional"}, "lh"),
    "gru, one unit": ("GRU", 3, 2, 3, 1, {}, ""),
    "gru, other functions": ("GRU", 3, 1, 6, 13, {"activations": ["HardSigmoid", "Relu"], "clip": 0.5}, ""),
    "gru, reset after": ("GRU", 4, 3, 7, 21, {"linear_before_reset": 1, "direction": "bidirectional"}, "lh"),
    "rnn": ("RNN", 4, 2, 7, 21, {"direction": "bidirectional"}, "lh"),
}


@pytest.mark.sweep(10)
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


@pytest.mark.parametrize("reset_after, kernels", [(0, 2), (1, 1)])
def test_steps_of_a_gru_take_few_kernels(reset_after, kernels):
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 8, 5)).astype(np.float32), "h": np.ones((1, 8, 24), np.float32)}
    stored = {
        name: rng.normal(size=(1, *shape)).astype(np.float32)
        for name, shape in {"w": (72, 5), "r": (72, 24), "b": (144,)}.items()
    }
    attrs = {"hidden_size": 24, "linear_before_reset": reset_after}
    node = helper.make_node("GRU", ["x", "w", "r", "b", "", "h"], ["y"], **attrs)
    package = mlc.compile(load(network([node], feeds, ["y"], stored)))
    # two products with the input go before the recurrence
    assert [s.kernel.partition("_")[2] for s in package.manifest.steps] == ["matmul_add", "matmul_add", ""]
    assert package.manifest.steps[2].kernel == "scan"
    made = listing.kernels({"kernels.txt": package.members["src/kernels.txt"].decode()})
    inside = set(made) - {s.kernel for s in package.manifest.steps}
    assert len(inside) == kernels
    assert all("matmul" in kernel for kernel in inside)


# operator, steps, batch, layers, direction, lengths of sequences, initial states
LONG = [
    ("LSTM", 1, 3, 1, "bidirectional", True, True),
    ("LSTM", 2, 1, 2, "forward", False, False),
    ("LSTM", 331, 3, 2, "bidirectional", True, True),
    ("GRU", 2, 3, 1, "reverse", True, True),
    ("GRU", 331, 1, 2, "bidirectional", False, True),
    ("RNN", 331, 2, 1, "bidirectional", True, False),
    ("LSTM", 2000, 2, 1, "reverse", True, False),
    ("RNN", 2000, 1, 1, "forward", False, True),
]


@pytest.mark.parametrize("op, steps, batch, layers, direction, lengths, initial", LONG)
def test_recurrences_of_any_length(op, steps, batch, layers, direction, lengths, initial):
    model, feeds = recurrent(op, steps, batch, layers, direction, lengths, initial)
    for options in ({}, {"opt_level": 0}):
        assert_same(compiled(model, feeds, threads=2, **options), reference(model, feeds), tolerance=2e-5)


@pytest.mark.parametrize("op", GATES)
def test_a_sequence_without_steps_keeps_its_state(op):
    """The definition is silent; onnxruntime's last state of such a sequence is zero, that of all others is ours."""
    model, feeds = recurrent(op, 5, 3, 1, "forward", True, True)
    feeds["lengths"][:] = [0, 2, 5]
    got, want = compiled(model, feeds), reference(model, feeds)
    for letter in "hc"[: 2 if op == "LSTM" else 1]:
        want[f"last_{letter}0"][:, 0] = feeds[f"{letter}0"][:, 0]
    assert_same(got, want, tolerance=1e-5)


def recurrent(op, steps, batch, layers, direction, lengths, initial, hidden=9):
    """Layers one after the other, all of whose results are outputs, and what to feed."""
    rng = np.random.default_rng(steps)
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[op]

    def array(*shape):
        return rng.normal(size=shape).astype(np.float32) / 2

    feeds, stored, nodes, outputs = {"x": array(steps, batch, 5)}, {"flat": np.array([0, 0, -1])}, [], []
    if lengths:
        feeds["lengths"] = rng.integers(1, steps + 1, batch).astype(np.int32)
    source = "x"
    for k in range(layers):
        size = 5 if k == 0 else directions * hidden
        stored[f"w{k}"] = array(directions, gates * hidden, size)
        stored[f"r{k}"] = array(directions, gates * hidden, hidden) / np.float32(hidden**0.5)
        stored[f"b{k}"] = array(directions, 2 * gates * hidden)
        letters = "hc"[: 2 if op == "LSTM" else 1]
        if initial:
            feeds.update({f"{a}{k}": array(directions, batch, hidden) for a in letters})
        names = [source, f"w{k}", f"r{k}", f"b{k}", "lengths" if lengths else ""]
        results = [f"y{k}", *(f"last_{a}{k}" for a in letters)]
        inputs = [*names, *(f"{a}{k}" if initial else "" for a in letters)]
        nodes.append(helper.make_node(op, inputs, results, hidden_size=hidden, direction=direction))
        nodes.append(helper.make_node("Transpose", [f"y{k}"], [f"t{k}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{k}", "flat"], [f"z{k}"]))
        outputs += results
        source = f"z{k}"
    return network(nodes, feeds, outputs, stored), feeds


def test_compiling_takes_no_longer_for_more_steps():
    """There are as many functions that call kernels."""

    def count(steps):
        model, _ = recurrent("LSTM", steps, 2, 1, "bidirectional", True, True)
        text = mlc.compile(load(model)).members["src/model.ll"]
        return text.count(b"define internal void @mlc.step")

    assert count(5000) == count(50)


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


def test_a_profile_has_every_kernel_of_a_round():
    rng = np.random.default_rng(0)
    stored = {"w": rng.normal(size=(1, 64, 7)), "r": rng.normal(size=(1, 64, 16))}
    stored = {name: array.astype(np.float32) for name, array in stored.items()}
    feeds = {"x": rng.normal(size=(6, 2, 7)).astype(np.float32)}
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=16)]
    package = mlc.compile(load(network(nodes, feeds, ["y"], stored)))
    (loop,) = [step for step in package.manifest.steps if step.parts]
    assert loop.flops == sum(part.flops for part in loop.parts) > 0
    with package.load(1) as module:
        times = module.profile(feeds, repeats=3)
        want = module.run(feeds)
    shown = [part for step in package.manifest.steps for part in (step.parts or (step,))]
    assert [t.step for t in times] == shown
    assert all(len(t.ns) == 3 and t.min_ns >= 0 for t in times)
    assert sum(t.median_ns for t in times if t.step in loop.parts) > 0
    assert np.isfinite(want["y"]).all()
