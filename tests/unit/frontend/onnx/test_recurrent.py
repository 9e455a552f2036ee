"""Recurrent layers against onnxruntime, over random combinations of what they offer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from mlc.errors import ImportModelError
from mlc.ops.scan import SCAN
from tests.fuzz import examples
from tests.unit.frontend.onnx.single import compare, imported, normal, one_node_model, operators_of, ours

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}


def operands_of(op, directions, steps=3, batch=2, size=3, hidden=4, present=(True,) * 5):
    """X, W, R and, where present, B, sequence_lens, initial_h, initial_c, P."""
    gates = GATES[op]
    b, lengths, h, c, p = present
    rng = np.random.default_rng(3)
    state = (directions, batch, hidden)
    operands = [
        normal((steps, batch, size), 1),
        normal((directions, gates * hidden, size), 2),
        normal((directions, gates * hidden, hidden), 3),
        normal((directions, 2 * gates * hidden), 4) if b else None,
        rng.integers(1, steps + 1, batch).astype(np.int32) if lengths else None,
        normal(state, 5) if h else None,
    ]
    if op == "LSTM":
        operands += [normal(state, 6) if c else None, normal((directions, 3 * hidden), 7) if p else None]
    while operands[-1] is None:
        operands.pop()
    return operands


layers = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["RNN", "GRU", "LSTM"]),
        "direction": st.sampled_from(["forward", "reverse", "bidirectional"]),
        "present": st.tuples(*[st.booleans()] * 5),
        "shape": st.tuples(*[st.integers(1, 4)] * 4),
        "linear_before_reset": st.booleans(),
        "clip": st.sampled_from([None, 0.3]),
        "fixed_lengths": st.booleans(),
    }
)


@examples(40)
@given(layers)
def test_layers_are_those_of_onnxruntime(layer):
    op, direction = layer["op"], layer["direction"]
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, size, hidden = layer["shape"]
    operands = operands_of(op, directions, steps, batch, size, hidden, layer["present"])
    constants = [1, 2, *([4] if layer["fixed_lengths"] and len(operands) > 4 and operands[4] is not None else [])]
    extra = {"linear_before_reset": int(layer["linear_before_reset"])} if op == "GRU" else {}
    compare(
        op, operands, hidden_size=hidden, direction=direction, clip=layer["clip"], constants=constants,
        outputs=3 if op == "LSTM" else 2, **extra,
    )  # fmt: skip


@examples(30)
@given(
    st.sampled_from(["forward", "reverse", "bidirectional"]),
    st.tuples(*[st.integers(1, 4)] * 4),
    st.tuples(*[st.booleans()] * 5),
    st.sampled_from([np.int8, np.uint8]),
    st.booleans(),
)
def test_dynamically_quantised_lstm_is_that_of_onnxruntime(direction, shape, present, weights, per_column):
    """Sums are of integers, so what differs are last digits of floats, and by them a step of a state at most."""
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, size, hidden = shape
    x, _, _, *rest = operands_of("LSTM", directions, steps, batch, size, hidden, present)
    rng, limits = np.random.default_rng(5), np.iinfo(weights)
    w, r = (rng.integers(limits.min, limits.max + 1, (directions, n, 4 * hidden), weights) for n in (size, hidden))
    of_scales = (directions, 4 * hidden) if per_column else (directions,)
    scales = [rng.uniform(0.001, 0.01, of_scales).astype(np.float32) for _ in range(2)]
    zero = 0 if per_column else int(limits.max) - 120  # all that onnxruntime takes
    zeros = [np.full(of_scales, zero, weights) for _ in range(2)]
    operands = [x, w, r, *rest, *[None] * (5 - len(rest)), scales[0], zeros[0], scales[1], zeros[1]]
    compare(
        "DynamicQuantizeLSTM", operands, domain="com.microsoft", hidden_size=hidden, direction=direction,
        constants=[1, 2, 8, 9, 10, 11], outputs=3, atol=2e-2,
    )  # fmt: skip


def test_dynamically_quantised_lstm_of_zeros():
    """An input of zeros has no extent to divide by."""
    x = np.zeros((2, 1, 3), np.float32)
    w, r = (np.full((1, 3, 12), 7, np.int8) for _ in range(2))
    scale, zero = np.full(1, 0.5, np.float32), np.zeros(1, np.int8)
    operands = [x, w, r, *[None] * 5, scale, zero, scale, zero]
    (y,) = ours("DynamicQuantizeLSTM", operands, domain="com.microsoft", hidden_size=3)
    np.testing.assert_array_equal(y, 0)


ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu",
               "Softsign", "Softplus"]  # fmt: skip


@examples(15)
@given(st.sampled_from(["RNN", "GRU", "LSTM"]), st.data())
def test_activations_are_those_of_onnxruntime(op, data):
    names = [data.draw(st.sampled_from(ACTIVATIONS)) for _ in range(2 * FUNCTIONS[op])]
    taking = ("Affine", "ScaledTanh", "HardSigmoid")
    alphas = [0.1 * (k + 3) for k, n in enumerate(names) if n in (*taking, "LeakyRelu", "ThresholdedRelu", "Elu")]
    betas = [0.1 * (k + 1) for k, n in enumerate(names) if n in taking]
    # small numbers: onnxruntime's Softplus overflows
    operands = [np.float32(0.3) * a if a.dtype == np.float32 else a for a in operands_of(op, 2)]
    compare(
        op, operands, hidden_size=4, direction="bidirectional", activations=names,
        activation_alpha=alphas or None, activation_beta=betas or None, outputs=2, rtol=1e-3,
    )  # fmt: skip


def test_coupled_input_and_forget_gates():
    compare("LSTM", operands_of("LSTM", 1), hidden_size=4, input_forget=1, outputs=3)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_batch_first_is_onnx_layout_1(op):
    x, w, r, *_ = operands_of(op, 1, steps=3, batch=2)
    options = {"hidden_size": 4, "opset": 14, "outputs": 2}
    plain = ours(op, [x, w, r], **options)
    batch_first = ours(op, [x.transpose(1, 0, 2).copy(), w, r], layout=1, **options)
    np.testing.assert_allclose(batch_first[0], plain[0].transpose(2, 0, 1, 3), rtol=1e-6)
    np.testing.assert_allclose(batch_first[1], plain[1].transpose(1, 0, 2), rtol=1e-6)
    reference = ReferenceEvaluator(
        onnx.load_model_from_string(one_node_model(op, [x.transpose(1, 0, 2).copy(), w, r], layout=1, **options))
    )
    expected = reference.run(None, {"x0": x.transpose(1, 0, 2), "x1": w, "x2": r})
    np.testing.assert_allclose(batch_first[0], expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op, products", [("RNN", 1), ("GRU", 2), ("LSTM", 1)])
def test_the_input_products_are_one_matmul_a_part_and_the_steps_are_one_scan(op, products):
    operands = operands_of(op, 1, steps=5, present=(True, False, True, True, False))
    extra = {"linear_before_reset": 1} if op == "GRU" else {}
    graph = imported(op, operands, hidden_size=4, constants=(1, 2, 3), **extra)
    assert operators_of(graph).count("matmul") == products
    (scan,) = (n for n in graph.nodes if n.op is SCAN)
    assert scan.attrs["rounds"] == 5
    assert operators_of(scan.attrs["body"]).count("matmul") == 1


def test_the_history_is_left_out_where_nobody_wants_it():
    graph = imported("LSTM", operands_of("LSTM", 1), hidden_size=4, outputs=["", "y_h"], constants=(1, 2))
    (scan,) = (n for n in graph.nodes if n.op is SCAN)
    assert [v.type.shape for v in scan.outputs] == [(2, 4), (2, 4)]


def test_no_steps_give_the_initial_state():
    operands = operands_of("GRU", 1, steps=0, present=(True, False, True, True, True))
    y, y_h = ours("GRU", operands, hidden_size=4, outputs=2)
    assert y.shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(y_h, operands[5])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"direction": "sideways"}, "direction is 'sideways'"),
        ({"hidden_size": 5}, "hidden_size is 5, R has 4 columns"),
        ({"activations": ["Tanh"]}, "1 activations, 3 are needed"),
        ({"activations": ["Tanh", "Tanh", "Cosine"]}, "unknown activation 'Cosine'"),
        ({"operands": {0: (3, 2)}}, "X has rank 2"),
        ({"operands": {1: (1, 16, 9)}}, r"W has shape \(1, 16, 9\), \(1, 16, 3\) is needed"),
        ({"operands": {3: (1, 16)}}, r"B has shape"),
        ({"operands": {5: (1, 1, 4)}}, "initial_h has shape"),
        ({"operands": {6: (1, 1, 4)}}, "initial_c has shape"),
        ({"operands": {7: (1, 4)}}, "P has shape"),
    ],
)
def test_a_contradictory_layer_is_refused(change, message):
    operands = operands_of("LSTM", 1)
    for k, shape in change.pop("operands", {}).items():
        operands[k] = normal(shape)
    with pytest.raises(ImportModelError, match=message):
        imported("LSTM", operands, **{"hidden_size": 4, **change})
