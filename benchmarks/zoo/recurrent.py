"""The LSTM language model."""

from __future__ import annotations

from functools import partial

import numpy as np
from onnx import ModelProto, helper

from benchmarks.zoo.builder import ModelSpec, Net


def _lstm(net: Net, x: str, features: int, hidden: int, name: str) -> str:
    """One unidirectional layer over ``(steps, batch, features)``, its direction axis squeezed away."""
    # A trained recurrence is stronger than the usual initialisation; this gain keeps the second layer's cells alive.
    gain = 1.5
    weight = net.constant(f"{name}.weight_ih", net.normal((1, 4 * hidden, features), gain / features**0.5))
    recurrence = net.constant(f"{name}.weight_hh", net.normal((1, 4 * hidden, hidden), gain / hidden**0.5))
    bias = net.constant(f"{name}.bias", net.normal((1, 8 * hidden), 0.1))
    steps = f"{name}.steps"
    # The optional final states are left out: the language model reads every step.
    net.nodes(helper.make_node("LSTM", [x, weight, recurrence, bias], [steps], name=name, hidden_size=hidden))
    return net.op("Squeeze", steps, "direction_axis", name=f"{name}.squeeze")


def _lstm_lm(name: str, steps: int, batch: int, small: bool) -> ModelProto:
    steps, hidden, layers, vocabulary = (min(steps, 4), 17, 2, 37) if small else (steps, 650, 2, 10_000)
    net = Net(name)
    tokens = net.index_input("tokens", (steps, batch), vocabulary)
    net.constant("direction_axis", np.array([1], np.int64))
    table = net.constant("encoder.weight", net.normal((vocabulary, hidden), 1.0))
    x = net.op("Gather", table, tokens, name="encoder", axis=0)
    for layer in range(layers):
        x = _lstm(net, x, hidden, hidden, f"rnn.{layer}")
    decoder = net.constant("decoder.weight", net.normal((hidden, vocabulary), 4 / hidden**0.5))
    x = net.op("MatMul", x, decoder, name="decoder.matmul")
    bias = net.constant("decoder.bias", net.normal((vocabulary,), 0.1))
    x = net.op("Add", x, bias, name="decoder.add", result="logits")
    net.output(x, (steps, batch, vocabulary))
    return net.model()


SPECS = [
    ModelSpec(
        "lstm_lm",
        "network",
        "Language model: 2 LSTM layers of 650, 35 steps, 10,000 words (Zaremba et al. 2014, medium)",
        partial(_lstm_lm, "lstm_lm", 35),
    ),
    ModelSpec("lstm_lm_word", "single", "The same language model on one word", partial(_lstm_lm, "lstm_lm_word", 1)),
]
