"""One step of the optimisers of the preview domain for training, for several tensors at once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from mlc.errors import ImportModelError
from tests.unit.frontend.onnx.single import one_node_model, ours

DOMAIN = "ai.onnx.preview.training"
RNG = np.random.default_rng(19)
CASES = {
    "Momentum": (1, {"alpha": 0.9, "beta": 0.2, "mode": "standard", "norm_coefficient": 0.01}),
    "Nesterov": (1, {"alpha": 0.9, "beta": 0.2, "mode": "nesterov", "norm_coefficient": 0.01}),
    "Adagrad": (1, {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-4}),
    "Adam": (2, {"alpha": 0.9, "beta": 0.99, "norm_coefficient": 0.01, "norm_coefficient_post": 0.1}),
}


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_step(name, count):
    state, attrs = CASES[name]
    shapes = [(3, 4), (5,)]
    tensors = [RNG.uniform(0.1, 1, s).astype(np.float32) for _ in range(2 + state) for s in shapes]
    operands = [np.float32(0.1), np.array(count), *tensors]
    op = "Momentum" if name == "Nesterov" else name
    options = {"opset": 1, "domain": DOMAIN, "outputs": 2 * (1 + state), **attrs}
    session = ReferenceEvaluator(onnx.load_from_string(one_node_model(op, operands, **options)))
    expected = session.run(None, {f"x{k}": a for k, a in enumerate(operands)})
    for a, b in zip(ours(op, operands, **options), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_tensors_of_every_kind_are_needed():
    with pytest.raises(ImportModelError, match="2 tensors, 3 for each"):
        ours("Adagrad", [np.float32(0.1), np.array(0), np.zeros(2, "f"), np.zeros(2, "f")], opset=1, domain=DOMAIN)
