"""Figures of papers: their workloads are right, and results become tables and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import mlc
from benchmarks.measure import Result
from benchmarks.papers import tvm_fig4
from benchmarks.peers import parse_engine
from benchmarks.peers.ours import keywords
from benchmarks.report import json_ready
from benchmarks.stats import Spread, largest_error
from benchmarks.zoo import sample_inputs


@pytest.mark.parametrize("name", tvm_fig4.WORKLOADS)
def test_workloads_are_valid_and_pairs_compute_the_same(name: str, tmp_path: Path) -> None:
    model = tvm_fig4.WORKLOADS[name]()
    onnx.checker.check_model(model, full_check=True)
    if "conv" in name:
        return  # the compiler's own tests have convolutions; the evaluator takes seconds for one
    onnx.save(model, tmp_path / "model.onnx")
    inputs = sample_inputs(model)
    names = [value.name for value in model.graph.output]
    expected = dict(zip(names, ReferenceEvaluator(model).run(None, inputs), strict=True))
    for label in dict.fromkeys(label for _, *labels in tvm_fig4.PAIRS for label in labels):
        options = keywords(parse_engine(label).options)
        with mlc.compile(mlc.load(tmp_path / "model.onnx"), **options).load(1) as module:
            assert largest_error(module.run(inputs), expected) < 1e-5


def test_lstm_cell_is_that_of_the_operator() -> None:
    model = tvm_fig4.lstm_cell(hidden=8)
    inputs = sample_inputs(model)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    gates = inputs["x"] @ weights["x.weight"] + inputs["h"] @ weights["h.weight"] + weights["bias"]
    i, f, o, c = np.split(gates, 4, axis=1)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    state = sigmoid(f) * inputs["c"] + sigmoid(i) * np.tanh(c)
    result, found = ReferenceEvaluator(model).run(None, inputs)
    assert np.allclose(found, state, atol=1e-5)
    assert np.allclose(result, sigmoid(o) * np.tanh(state), atol=1e-5)


def results() -> list[Result]:
    result = Result("rnn cell hidden:128", "operator", 1, reference="onnxruntime", error={"mlc": 1e-7})
    (_, fused, unfused), _ = tvm_fig4.PAIRS
    result.milliseconds = {fused: Spread(1.0, 0.1, 3), unfused: Spread(2.0, 0.1, 3)}
    result.failures = {"mlc": "mlc: lost"}
    return [result]


def test_table_has_the_speed_up_and_what_is_missing() -> None:
    text = tvm_fig4.markdown(results(), {"cpu": "some"}, "tvm_fig4.png")
    assert "| rnn cell hidden:128 | batch norm kept, as in the paper | 1 | 2.000 ±5.0% | 1.000 ±10.0% | 2.00 |" in text
    assert "| rnn cell hidden:128 | all other passes | 1 | - | - | - |" in text
    assert "- mlc: lost" in text
    document = json.loads(json.dumps(json_ready(tvm_fig4.as_json(results(), {})), allow_nan=False))
    assert document["rows"][0]["speedup"] == 2.0


def test_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra bench")
    tvm_fig4.draw(results(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
