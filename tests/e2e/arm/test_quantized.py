"""Quantised models on ARM processors, under an emulator: integers as numpy or this machine compute them, exactly."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import mlc
from mlc.frontend.base import ModelSource, TensorInfo
from mlc.ir.graph import Builder
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, i32
from mlc.ops import get
from tests.e2e.compiled import interpreted, load, network
from tests.e2e.test_quantized import CASES, convolution
from tests.e2e.test_requantisation import SPECIAL
from tests.emulated import emulated, needs_emulator

pytestmark = needs_emulator

# smull and sadalp; sdot; the same, with everything else that there is
PROCESSORS = ("cortex-a53", "cortex-a76", "neoverse-v1")
QUICK = {("seventeen", "cortex-a53"), ("signed, zero point", "cortex-a76"), ("depthwise", "cortex-a53")}
MODELS = Path(os.environ.get("MLC_SHARED_MODELS", Path(__file__).parents[3] / "shared" / "models"))
FILES = sorted(MODELS.glob("*_int8.tflite"))


@pytest.mark.parametrize(
    ("name", "cpu"),
    [
        pytest.param(name, cpu, marks=() if (name, cpu) in QUICK else pytest.mark.slow)
        for name in CASES
        for cpu in PROCESSORS
    ],
)
def test_convolutions(name: str, cpu: str) -> None:
    model, x, expected = convolution(CASES[name])
    package = mlc.compile(load(model), f"arm -mcpu={cpu}", records=[], verify_passes=True)
    np.testing.assert_array_equal(emulated(package, {"x": x}, threads=2)["y"], expected)


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="the folder of shared models is not there")
@pytest.mark.parametrize("cpu", PROCESSORS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_trained_models(path: Path, cpu: str) -> None:
    """What they compute is defined bit by bit, so that every processor gives the same."""
    model = mlc.load(path)
    (spec,) = model.inputs
    x = np.random.default_rng(3).integers(-128, 128, spec.shape).astype(np.int8)
    with mlc.compile(model).load(1) as module:
        want = module.run({spec.name: x})
    got = emulated(mlc.compile(model, f"arm -mcpu={cpu}", records=[]), {spec.name: x}, threads=2)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_floats_to_bytes(dtype: type) -> None:
    """Every number that is special to rounding, to limits or to conversions; minima and maxima keep NaN there."""
    x = np.resize(np.array([*SPECIAL, *np.arange(-260, 260, 0.5)], np.float32), (11, 97))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"]),
        helper.make_node("Clip", ["x", "low", "high"], ["c"]),
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT16),
    ]
    stored = {"scale": np.float32(1), "zero": dtype(5), "low": np.float32(-7), "high": np.float32(9.5)}
    model = network(nodes, {"x": x}, ["y", "c", "i"], {k: np.asarray(v) for k, v in stored.items()})
    got = emulated(mlc.compile(load(model), "arm -mcpu=cortex-a53"), {"x": x})
    known = ~np.isnan(x) | (dtype is np.int8)  # bytes without a sign are made with one first, so that NaN becomes 128
    for name, want in interpreted(model, {"x": x}).items():
        np.testing.assert_array_equal(got[name][known], want[known])


@pytest.mark.parametrize("roundings", [1, 2])
def test_fixed_point(roundings: int) -> None:
    """Sums times factors, as TensorFlow Lite rounds them; twice rounded, the product is one instruction."""
    rng = np.random.default_rng(11)
    x = rng.integers(-(1 << 31), 1 << 31, (13, 27)).astype(np.int32)
    x[0, :8] = [0, 1, -1, 2**31 - 1, -(2**31), -(2**31) + 1, 1 << 30, -(1 << 30)]
    x[1:7] >>= rng.integers(1, 24, (6, 27)).astype(np.int32)
    b = Builder("fixed")
    scaled = b.add(
        get("fixed_scale"),
        [
            b.input("x", TensorType(x.shape, i32)),
            b.constant(rng.integers(1 << 30, 1 << 31, (1, 27)).astype(np.int32), "m"),
            b.constant(rng.integers(-12, 1, (1, 27)).astype(np.int32), "s"),
        ],
        {"roundings": roundings},
    )
    graph = b.finish(scaled, ["y"])
    info = TensorInfo("x", x.shape, "i32")
    model = mlc.Model(graph, ModelSource("test", "", "fixed", "", "0" * 64, (info,), ()), "test")
    package = mlc.compile(model, "arm -mcpu=cortex-a53")
    assert ("sqrdmulh" in package.members["src/model.ll"].decode()) == (roundings == 2)
    (want,) = run_graph(graph, {"x": x}).values()
    (got,) = emulated(package, {"x": x}).values()
    np.testing.assert_array_equal(got, want)
