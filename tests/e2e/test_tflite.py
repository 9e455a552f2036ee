"""TensorFlow Lite models through the whole house, against LiteRT: those of the shared folder, and a small one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.api.models import TensorInfo
from mlc.cli.main import run
from mlc.harness.litert import LitertReference
from tests.unit.frontend.tflite.writer import Op, T, const, litert, one, write

pytest.importorskip("ai_edge_litert", reason="LiteRT, the reference")

MODELS = Path(os.environ.get("MLC_SHARED_MODELS", Path(__file__).parents[3] / "shared" / "models"))
FILES = sorted(MODELS.glob("*.tflite"))


def made(spec: TensorInfo, rng: np.random.Generator) -> np.ndarray:
    if spec.dtype == "i8":
        return rng.integers(-128, 128, spec.shape).astype(np.int8)
    return rng.standard_normal(spec.shape).astype(np.float32)


@pytest.mark.skipif(not FILES, reason="the folder of shared models is not there")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("runs", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_trained_models(path: Path, runs: int) -> None:
    """Floats within 1e-4 of the largest magnitude; of integers 999 in 1,000 within a step, and always the same class.

    kws_f32 quantises floats as it runs, layer by layer: a last digit that differs becomes a step now and then. Between
    LiteRT's own two sets of kernels it does so for 8 inputs in 200; without fast math, see the next test.
    """
    model = mlc.load(path)
    (spec,) = model.inputs
    reference = LitertReference(path, threads=1)
    rng = np.random.default_rng(3)
    near, steps = [], []
    with mlc.compile(model).load(1) as module:
        for _ in range(runs):
            feeds = {spec.name: made(spec, rng)}
            (got,), (want,) = module.run(feeds).values(), reference.run(feeds).values()
            assert got.argmax() == want.argmax()
            if got.dtype == np.int8:
                steps.append(np.abs(got.astype(int) - want.astype(int)).reshape(-1))
            else:
                near.append(np.abs(got - want).max() / np.abs(want).max())
    if steps:
        assert (np.concatenate(steps) <= 1).mean() >= 0.999
    elif "kws" in path.name:
        assert np.mean(np.array(near) <= 1e-4) >= 0.9
        assert max(near) <= 0.02
    else:
        assert max(near) <= 1e-4


@pytest.mark.skipif(not FILES, reason="the folder of shared models is not there")
def test_floats_that_are_quantised_on_the_way_agree_without_fast_math() -> None:
    """Sums that are rounded as the reference rounds them fall on the same steps."""
    path = MODELS / "mlperf_tiny_kws_f32.tflite"
    model = mlc.load(path)
    (spec,) = model.inputs
    reference = LitertReference(path, threads=1)
    rng = np.random.default_rng(3)
    with mlc.compile(model, fast_math=False).load(1) as module:
        for _ in range(100):
            feeds = {spec.name: made(spec, rng)}
            (got,), (want,) = module.run(feeds).values(), reference.run(feeds).values()
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def small_network(rng: np.random.Generator) -> bytes:
    """8-bit: a convolution, a depthwise one, a sum with its input, a pool over everything, a dense layer, a softmax."""

    def stored(shape: tuple[int, ...], axis: int) -> T:
        return const(rng.integers(-127, 128, shape), np.int8, scale=rng.uniform(0.002, 0.004, shape[axis]), axis=axis)

    def bias(count: int) -> T:
        return const(rng.integers(-500, 500, count), np.int32, scale=1e-4)

    tensors = [
        T((1, 11, 9, 3), "int8", scale=0.02, zero=4, name="image"),
        stored((8, 3, 3, 3), 0), bias(8), T((1, 6, 5, 8), "int8", scale=0.03, zero=-128, name="first"),
        stored((1, 3, 3, 8), 3), bias(8), T((1, 6, 5, 8), "int8", scale=0.025, zero=3, name="second"),
        T((1, 6, 5, 8), "int8", scale=0.04, zero=-20, name="sum"),
        T((1, 1, 1, 8), "int8", scale=0.04, zero=-20, name="mean"),
        const([1, 8], np.int32), T((1, 8), "int8", scale=0.04, zero=-20, name="row"),
        const(rng.integers(-127, 128, (5, 8)), np.int8, scale=0.02), bias(5),
        T((1, 5), "int8", scale=0.05, name="logits"),
        T((1, 5), "int8", scale=1 / 256, zero=-128, name="classes"),
    ]  # fmt: skip
    window = {"DilationWFactor": 1, "DilationHFactor": 1}
    operators = [
        Op("CONV_2D", [0, 1, 2], [3], {"StrideW": 2, "StrideH": 2, "FusedActivationFunction": 1, **window},
           "Conv2DOptions", 3),
        Op("DEPTHWISE_CONV_2D", [3, 4, 5], [6], {"StrideW": 1, "StrideH": 1, "DepthMultiplier": 1, **window},
           "DepthwiseConv2DOptions", 3),
        Op("ADD", [3, 6], [7], {}, "AddOptions", 2),
        Op("AVERAGE_POOL_2D", [7], [8], {"Padding": 1, "StrideW": 5, "StrideH": 6, "FilterWidth": 5, "FilterHeight": 6},
           "Pool2DOptions", 2),
        Op("RESHAPE", [8, 9], [10], {}, "ReshapeOptions"),
        Op("FULLY_CONNECTED", [10, 11, 12], [13], {}, "FullyConnectedOptions", 4),
        Op("SOFTMAX", [13], [14], {"Beta": 1.0}, "SoftmaxOptions", 2),
    ]  # fmt: skip
    return write(tensors, operators, [0], [14])


@pytest.mark.parametrize("options", [{}, {"opt_level": 0}])
def test_a_small_network_of_8_bits_is_exact(tmp_path: Path, options: dict[str, int]) -> None:
    rng = np.random.default_rng(8)
    data = small_network(rng)
    (tmp_path / "m.tflite").write_bytes(data)
    with mlc.compile(mlc.load(tmp_path / "m.tflite"), verify_passes=True, **options).load(1) as module:
        for _ in range(20):
            feeds = {"image": rng.integers(-128, 128, (1, 11, 9, 3)).astype(np.int8)}
            np.testing.assert_array_equal(module.run(feeds)["classes"], litert(data, feeds)[0])


def test_recurrences_are_compiled(tmp_path: Path) -> None:
    """An LSTM, whose state begins at zero in every run, and rounds of choosing boxes."""
    rng = np.random.default_rng(2)

    def weights(*shape: int) -> T:
        return const(rng.standard_normal(shape).astype(np.float32))

    gates = [weights(6, 4) for _ in range(4)] + [weights(6, 6) for _ in range(4)]
    states = [T((2, 6), variable=True), T((2, 6), variable=True)]
    x = rng.standard_normal((2, 5, 4)).astype(np.float32)
    operands = [x, *gates, *[None] * 3, *(weights(6) for _ in range(4)), None, None, *states]
    options = {"FusedActivationFunction": 4}
    layer = one(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [T((2, 5, 6))], "UnidirectionalSequenceLSTMOptions", **options
    )
    boxes, scores = rng.uniform(0, 1, (30, 4)).astype(np.float32), rng.uniform(0, 1, 30).astype(np.float32)
    numbers = [const(np.int32(9)), const(np.float32(0.3)), const(np.float32(0.2)), const(np.float32(0.5))]
    results = [T((9,), "int32"), T((9,)), T((), "int32")]
    for data, feeds in (layer, one("NON_MAX_SUPPRESSION_V5", [boxes, scores, *numbers], results)):
        (tmp_path / "m.tflite").write_bytes(data)
        with mlc.compile(mlc.load(tmp_path / "m.tflite"), verify_passes=True).load(1) as module:
            for _ in range(2):
                for got, want in zip(module.run(feeds).values(), litert(data, feeds), strict=True):
                    np.testing.assert_allclose(got, want, atol=1e-5)


def test_inputs_in_another_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Channels first from the outside; the file's own interpreter is given what it takes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(8)
    data = small_network(rng)
    (tmp_path / "m.tflite").write_bytes(data)
    assert run(["compile", "m.tflite", "--input-layout", "image:NCHW", "-o", "m.tar"]) == 0
    image = rng.integers(-128, 128, (1, 11, 9, 3)).astype(np.int8)
    with mlc.load_module(tmp_path / "m.tar", threads=1) as module:
        assert [spec.shape for spec in module.inputs] == [(1, 3, 11, 9)]
        got = module.run({"image": image.transpose(0, 3, 1, 2)})["classes"]
    np.testing.assert_array_equal(got, litert(data, {"image": image})[0])
    assert run(["run", "m.tar", "--verify", "model", "--verify-layers"]) == 0
    assert run(["import", "m.tflite", "--input-layout", "image:NHWC->NCHW", "-o", "m.mlc"]) == 0
    assert "i8[1,3,11,9]" in capsys.readouterr().out
    assert run(["run", "m.mlc", "--verify", "tflite"]) == 0
    capsys.readouterr()
    for command, code, said in (
        (["compile", "m.mlc", "--input-layout", "image:NHWC"], 2, "was given the layout NHWC->NCHW"),
        (["import", "m.tflite", "--input-layout", "NCHW"], 2, "--input-layout NCHW: cannot be understood"),
        (["run", "m.tar", "--input-layout", "image:NCHW"], 2, "a module has fixed shapes"),
        (["inspect", "m.tar", "--input-layout", "image:NCHW"], 2, "are for models"),
    ):
        assert run(command) == code
        assert said in capsys.readouterr().err


def test_layers_of_bytes_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is stored with another sign than the file's is compared, too."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    tensors, operators = [T((3, 20), "int8", scale=0.05, zero=3, name="rows")], []
    for k in range(4):
        weights = const(rng.integers(-127, 128, (20, 20)), np.int8, scale=0.02)
        bias = const(rng.integers(-500, 500, 20), np.int32, scale=1e-3)
        tensors += [weights, bias, T((3, 20), "int8", scale=0.3, zero=-9, name=f"layer{k}")]
        at = len(tensors)
        operators.append(Op("FULLY_CONNECTED", [at - 4, at - 3, at - 2], [at - 1], {}, "FullyConnectedOptions", 4))
    (tmp_path / "m.tflite").write_bytes(write(tensors, operators, [0], [len(tensors) - 1]))
    assert run(["run", "m.tflite", "--verify", "tflite", "--verify-layers"]) == 0
    assert "5 tensors compared, 0 differ; 0 are not in" in capsys.readouterr().out


def test_a_comparison_says_which_kernels_it_is_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ELU", "NEG"):
        tensors = [T((1, 3), name="x"), T((1, 3), name="y")]
        Path("m.tflite").write_bytes(write(tensors, [Op(name, [0], [1])], [0], [1]))
        assert run(["run", "m.tflite", "--verify", "tflite", "--json", "m.json"]) == 0
        said = "LiteRT has no reference kernel for ELU; its usual kernels run the whole model"
        assert (said in capsys.readouterr().err) == (name == "ELU")
        assert ("reference_note" in json.loads(Path("m.json").read_text())) == (name == "ELU")


def test_a_module_is_compared_with_its_own_format_s_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.tflite").write_bytes(small_network(np.random.default_rng(8)))
    assert run(["compile", "m.tflite", "-o", "m.tar"]) == 0
    assert run(["run", "m.tar", "--verify", "model", "--verify-layers"]) == 0
    assert "against tflite" in capsys.readouterr().out
    assert run(["run", "m.tar", "--verify", "tflite"]) == 0
    assert run(["run", "m.tar", "--verify", "onnxruntime"]) == 2
    assert "onnxruntime does not run tflite models" in capsys.readouterr().err
    assert run(["import", "m.tflite", "-o", "m.mlc"]) == 0
    assert run(["run", "m.mlc", "--verify", "model"]) == 0
