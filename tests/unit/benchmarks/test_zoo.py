"""The model zoo builds valid, repeatable models of the published sizes, whose activations stay in a sensible range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from benchmarks.zoo import MODELS, build, parameter_count, sample_inputs
from benchmarks.zoo.__main__ import main

NETWORKS = [name for name, spec in MODELS.items() if spec.kind == "network"]

# Trainable parameters: torchvision's and Hugging Face's models, and the sums of the layers given in the papers.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet3d18": 33_371_472,
    "squeezenet": 1_235_496,
    "mobilenet_v1": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "vww96": 213_586,
    "resnet8": 78_042,
    "shufflenet_v1": 1_865_728,
    "dqn": 1_693_362,
    "dcgan": 12_674_819,
    # With both of each layer's biases, which ONNX and PyTorch keep apart.
    "lstm_lm": 19_780_400,
    "bert_tiny": 4_385_920,
    "bert_base": 109_482_240,
    "C2": 36_864,
    "D9": 9_216,
    "MM2": 4_194_304,
    "BMM1": 0,
}
LARGE = {"resnet50", "resnet3d18", "bert_base"}


def run(model: onnx.ModelProto, seed: int = 0) -> list[np.ndarray]:
    """The outputs of onnxruntime for the sample inputs of a seed."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, sample_inputs(model, seed))


def sized(names: list[str]) -> list[object]:
    """Parameters of a test, those that build a large model marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in names]


@pytest.mark.parametrize("name", MODELS)
def test_small_models_are_valid_and_run(name: str) -> None:
    model = build(name, small=True)
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    assert {value.name for value in inferred.value_info} >= {
        output for node in inferred.node for output in node.output
    } - {output.name for output in inferred.output}
    assert parameter_count(model) < 20_000
    for declared, array in zip(model.graph.output, run(model), strict=True):
        assert [dim.dim_value for dim in declared.type.tensor_type.shape.dim] == list(array.shape)
        assert np.isfinite(array).all()
        assert array.std() > 0.01


@pytest.mark.parametrize("name", MODELS)
def test_batch_reaches_inputs_and_outputs(name: str) -> None:
    one, three = build(name, batch=1, small=True), build(name, batch=3, small=True)
    for a, b in zip(run(one), run(three), strict=True):
        assert b.size == 3 * a.size


@pytest.mark.parametrize("name", sized(list(PARAMETERS)))
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert parameter_count(build(name)) == PARAMETERS[name]


def test_every_network_has_a_known_parameter_count() -> None:
    assert set(NETWORKS) <= set(PARAMETERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_full_networks_keep_their_activations_alive(name: str) -> None:
    model = build(name)
    for first, second in zip(run(model, seed=0), run(model, seed=1), strict=True):
        assert np.isfinite(first).all()
        assert 0.1 < first.std() < 20
        # The result depends on the input, not on the biases alone.
        assert np.abs(first - second).mean() > 0.05 * first.std()


def test_builds_are_repeatable() -> None:
    assert build("mobilenet_v2", small=True) == build("mobilenet_v2", small=True)


def test_names_of_nodes_and_tensors_say_where_they_belong() -> None:
    model = build("resnet18", small=True)
    nodes = {node.name: node for node in model.graph.node}
    assert len(nodes) == len(model.graph.node)
    assert nodes["layer1.0.conv1"].op_type == "Conv"
    assert list(nodes["layer2.0.downsample.1"].input[1:3]) == [
        "layer2.0.downsample.1.weight",
        "layer2.0.downsample.1.bias",
    ]


def test_sample_inputs_stay_below_the_size_of_their_table() -> None:
    inputs = sample_inputs(build("bert_tiny", batch=4, small=True), seed=3)
    assert {name: int(array.max()) for name, array in inputs.items() if name != "input_ids"} == {
        "token_type_ids": 1,
        "attention_mask": 1,
    }
    assert 1 < inputs["input_ids"].max() < 31
    assert all(array.dtype == np.int64 for array in inputs.values())


def test_batch_matmuls_transpose_what_the_paper_transposes() -> None:
    model = build("BMM2", small=True)
    inputs = sample_inputs(model)
    expected = np.einsum("bkn,bkm->bnm", inputs["x"], inputs["y"])
    np.testing.assert_allclose(run(model)[0], expected, rtol=1e-4, atol=1e-4)
    model = build("BMM3", small=True)
    inputs = sample_inputs(model)
    expected = np.einsum("bnk,bmk->bnm", inputs["x"], inputs["y"])
    np.testing.assert_allclose(run(model)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name, batch, message", [("resnet19", 1, "no model is called"), ("C1", 0, "batch size")])
def test_build_refuses_what_it_cannot_build(name: str, batch: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, batch=batch)


def test_command_line_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "folder" / "model.onnx"
    main(["squeezenet", "--small", "--batch", "2", "-o", str(file)])
    assert onnx.load(file) == build("squeezenet", batch=2, small=True)
    assert "SqueezeNet" in capsys.readouterr().out


def test_command_line_lists_and_writes_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(MODELS)
    main(["--all", "--small", "-o", str(tmp_path)])
    assert {file.stem for file in tmp_path.glob("*.onnx")} == set(MODELS)


@pytest.mark.parametrize("arguments", [[], ["C1", "--all"], ["--all"], ["C1", "--batch", "0"], ["nonsense"]])
def test_command_line_refuses_contradictions(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_networks_in_8_bits_are_the_same_every_time() -> None:
    first, second = (build("resnet8.int8", small=True) for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()
    onnx.checker.check_model(first, full_check=True)
    kinds = {node.op_type for node in first.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= kinds
    assert "BatchNormalization" not in kinds
    scales = [t for t in first.graph.initializer if t.name.endswith("weight_scale") and len(t.dims) == 1]
    assert any(t.dims[0] > 1 for t in scales)  # by channel


def test_networks_whose_weights_use_7_bits() -> None:
    greatest = []
    for name in ("resnet8.int8", "resnet8.int7"):
        weights = [numpy_helper.to_array(t) for t in build(name, small=True).graph.initializer]
        greatest.append(max(int(np.abs(w.astype(int)).max()) for w in weights if w.dtype == np.int8 and w.ndim == 4))
    assert greatest == [127, 64]


def test_transformers_in_8_bits_keep_their_inputs_and_softmax() -> None:
    before, after = build("bert_tiny", small=True), build("bert_tiny.int8", small=True)
    assert {k: v.tolist() for k, v in sample_inputs(before).items()} == {
        k: v.tolist() for k, v in sample_inputs(after).items()
    }
    made = {name: node.op_type for node in after.graph.node for name in node.output}
    softmax = [node for node in after.graph.node if node.op_type == "Softmax"]
    assert softmax
    assert all(made[node.input[0]] != "DequantizeLinear" for node in softmax)


@pytest.mark.parametrize("name", ["C2.int8", "nothing.int8", ".int8"])
def test_only_networks_are_there_in_8_bits(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no model is called"):
        build(name)
    with pytest.raises(SystemExit):
        main([name, "-o", str(tmp_path / "a.onnx")])
    assert "see --list" in capsys.readouterr().err
