"""The zoo through the whole house: compiled = onnxruntime, at every level of optimisation and on one or two threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mlc
from benchmarks.zoo import MODELS, build, sample_inputs

TOLERANCE = 1e-4  # of the output's largest magnitude
NETWORKS = [name for name, spec in MODELS.items() if spec.kind == "network"]
OPERATORS = [name for name, spec in MODELS.items() if spec.kind == "operator"]


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What onnxruntime says."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def assert_close(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert list(got) == list(want)
    for name, expected in want.items():
        assert got[name].shape == expected.shape
        assert got[name].dtype == expected.dtype
        scale = np.abs(expected).max()
        assert np.abs(got[name] - expected).max() <= TOLERANCE * scale, name


def load(model: onnx.ModelProto, folder: Path) -> mlc.Model:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return mlc.load(path)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", NETWORKS)
def test_small_network_agrees_with_onnxruntime_on_any_path(name: str, tmp_path: Path) -> None:
    """Optimised and as it stands, one thread and two, with layouts and without."""
    model = build(name, small=True)
    inputs = sample_inputs(model, 1)
    want = reference(model, inputs)
    loaded = load(model, tmp_path)
    for options in ({}, {"disabled_passes": ("layout",)}, {"opt_level": 0}):
        package = mlc.compile(loaded, verify_passes=True, **options)
        for threads in (1, 2):
            with package.load(threads) as module:
                assert_close(module.run(inputs), want)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", NETWORKS)
def test_small_network_takes_a_batch_of_three(name: str, tmp_path: Path) -> None:
    model = build(name, batch=3, small=True)
    inputs = sample_inputs(model, 2)
    with mlc.compile(load(model, tmp_path)).load(2) as module:
        assert_close(module.run(inputs), reference(model, inputs))


@pytest.mark.sweep(5)
@pytest.mark.parametrize("cpu", ["haswell", "x86-64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_small_network_runs_as_compiled_for_older_processors(name: str, cpu: str, tmp_path: Path) -> None:
    model = build(name, small=True)
    inputs = sample_inputs(model, 3)
    with mlc.compile(load(model, tmp_path), f"x86 -mcpu={cpu}").load(1) as module:
        assert_close(module.run(inputs), reference(model, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", [*NETWORKS, *OPERATORS])
def test_full_model_agrees_with_onnxruntime(name: str, batch: int, tmp_path: Path) -> None:
    model = build(name, batch=batch)
    inputs = sample_inputs(model, 4)
    want = reference(model, inputs)
    package = mlc.compile(load(model, tmp_path))
    for threads in (1, 2):
        with package.load(threads) as module:
            assert_close(module.run(inputs), want)


LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("light_*.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_light_model_agrees_with_onnxruntime(path: Path, batch: int, tmp_path: Path) -> None:
    model = rebatched(onnx.load(path), batch)
    known = {t.name for t in model.graph.initializer}
    inputs = {name: array for name, array in sample_inputs(model, 5).items() if name not in known}
    want = reference(model, inputs)
    package = mlc.compile(load(model, tmp_path))
    for threads in (1, 2):
        with package.load(threads) as module:
            assert_close(module.run(inputs), want)


def rebatched(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """The model with another batch: its inputs, outputs, and the shapes it reshapes to."""
    known = {t.name for t in model.graph.initializer}
    for value in [v for v in (*model.graph.input, *model.graph.output) if v.name not in known]:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    targets = {n.input[1] for n in model.graph.node if n.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in targets:
            shape = onnx.numpy_helper.to_array(tensor).copy()
            if shape[0] == 1:
                shape[0] = batch
            tensor.CopyFrom(onnx.numpy_helper.from_array(shape, tensor.name))
    del model.graph.value_info[:]
    return model
