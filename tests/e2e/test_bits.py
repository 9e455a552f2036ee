"""Products of one and two bits by compiled code, against the interpreters' arithmetic on the numbers themselves."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import mlc
from mlc.frontend.base import ModelSource
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, u8
from mlc.ops import get
from mlc.ops.bits import Weights, pack_constant
from tests.e2e.compiled import load, network, run_here
from tests.emulated import emulated, needs_emulator

# counts in lanes of 32 bits; in bytes, by tables of 16 entries, in vectors of three sizes
PROCESSORS = ("native", "skylake-avx512", "haswell", "x86-64-v2")
RNG = np.random.default_rng(11)
node = helper.make_node


TARGETS = (
    "x86 -mcpu=native",
    "x86 -mcpu=haswell",
    *(
        pytest.param(f"arm -mcpu={cpu}", marks=(needs_emulator, pytest.mark.slow))
        for cpu in ("cortex-a53", "cortex-a76", "neoverse-v1")
    ),
)


def model_of(graph: Graph) -> mlc.Model:
    return mlc.Model(graph, ModelSource("test", "", "bits", "", "0" * 64, (), ()), "test")


def words_of_both(
    x: tuple[int, ...], w: tuple[int, ...], of_x: int, of_w: int, kind: Weights, **attrs: Any
) -> tuple[Graph, dict[str, np.ndarray]]:
    """A model of packing and a product of bits, and an input."""
    b = Builder("bits")
    data = b.input("x", TensorType(x, u8))
    (words,) = b.add(get("pack_bits"), [data], {"axis": 1, "bits": tuple(range(of_x))})
    weights = b.constant(pack_constant(RNG.integers(0, 2**of_w, w), 1, of_w), "w")
    op = get("conv_bits" if len(x) > 2 else "matmul_bits")
    graph = b.finish(b.add(op, [words, weights], {**attrs, "weights": kind.value}))
    return graph, {"x": RNG.integers(0, 2**of_x, x).astype(np.uint8)}


def exact(graph: Graph, feeds: dict[str, np.ndarray], target: str, threads: int = 1) -> None:
    package = mlc.compile(model_of(graph), target)
    got = emulated(package, feeds, threads) if target.startswith("arm") else run_here(package, feeds, threads)
    for name, wanted in run_graph(graph, feeds).items():
        np.testing.assert_array_equal(got[name], wanted)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("cpu", PROCESSORS)
@pytest.mark.parametrize("kind", Weights)
@pytest.mark.parametrize(("of_x", "of_w"), [(1, 1), (2, 2)])
def test_every_kind_of_product(cpu: str, kind: Weights, of_x: int, of_w: int) -> None:
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    graph, feeds = words_of_both((1, 70, 5, 7), (19, 70, 3, 3), of_x, of_w, kind, **window)
    exact(graph, feeds, f"x86 -mcpu={cpu}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("x", "w", "strides", "pads", "dilations"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
        ((2, 33, 6, 5), (8, 33, 3, 2), (2, 1), (1, 0, 2, 1), (1, 2)),
        ((1, 640, 3, 3), (37, 640, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
        ((1, 64, 14, 14), (64, 64, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((1, 96, 13), (23, 96, 3), (1,), (1, 1), (1,)),
        ((1, 32, 3, 4, 5), (16, 32, 3, 1, 3), (1, 1, 1), (1, 0, 1, 1, 0, 1), (1, 1, 1)),
    ],
)
def test_odd_convolutions(target: str, x: tuple, w: tuple, strides: tuple, pads: tuple, dilations: tuple) -> None:
    window = {"strides": strides, "pads": pads, "dilations": dilations}
    graph, feeds = words_of_both(x, w, 2, 1, Weights.BIPOLAR, **window)
    exact(graph, feeds, target, threads=2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("of_x", "channels", "high", "wide", "floats"),
    [(2, 64, 7, 8, False), (1, 128, 5, 7, True), (2, 64, 4, 4, True), (2, 96, 4, 4, False), (1, 64, 13, 13, False)],
)
def test_packing_what_lies_in_blocks(target: str, of_x: int, channels: int, high: int, wide: int, floats: bool) -> None:
    """Bytes that a convolution made, in blocks of channels; or floats of it, which others read as well."""
    b = Builder("pack")
    shape = (1, channels, high, wide)
    x = b.input("x", TensorType(shape, u8))
    w = b.constant(RNG.integers(-4, 5, (channels, channels, 1, 1)).astype(np.int8), "w")
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    (y,) = b.add(get("conv"), [x, w], window)
    if floats:
        (y,) = b.add(get("cast"), [y], {"to": "f32"})
    (few,) = b.add(get("clip"), [y], {"lo": 0.0, "hi": float(2**of_x - 1)})
    (few,) = b.add(get("cast"), [few], {"to": "u8"})
    (words,) = b.add(get("pack_bits"), [few], {"axis": 1, "bits": tuple(range(of_x))})
    graph = b.finish([words, y] if floats else [words])
    exact(graph, {"x": RNG.integers(0, 9, shape).astype(np.uint8)}, target, threads=2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 1, 1), (1, 200, 17), (7, 64, 64), (13, 131, 40)])
def test_matrix_products(target: str, rows: int, depth: int, columns: int) -> None:
    exact(*words_of_both((rows, depth), (columns, depth), 2, 2, Weights.SIGNED), target)


def quantised(weights: np.ndarray, zero: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Two convolutions and a product in the form in which ONNX stores quantised models, data in two bits."""
    feeds = {"x": RNG.uniform(-1, 4, (1, 128, 9, 8)).astype(np.float32)}
    scales = RNG.uniform(0.01, 0.1, 128).astype(np.float32)
    stored = {
        "s": np.float32(0.75),
        "z": np.array(zero, ml_dtypes.uint2),
        "w": weights,
        "sw": scales,
        "zw": np.zeros(128, weights.dtype),
        "v": RNG.choice((-1, 1), (128, 48)).astype(np.int8),
        "sv": np.float32(0.25),
        "zv": np.int8(0),
        "shape": np.array([72, 128]),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["dw"], axis=0),
        node("Conv", ["d", "dw"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
        node("DequantizeLinear", ["rq", "s", "z"], ["rd"]),
        node("Conv", ["rd", "dw"], ["y"], pads=[0, 1, 0, 1], strides=[1, 2]),
        node("Transpose", ["rd"], ["turned"], perm=[0, 2, 3, 1]),
        node("Reshape", ["turned", "shape"], ["flat"]),
        node("DequantizeLinear", ["v", "sv", "zv"], ["dv"]),
        node("MatMul", ["flat", "dv"], ["m"]),
    ]
    model = network(nodes, feeds, ["y", "m"], stored, opset=25)
    model.ir_version = 13
    return model, feeds


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("levels", [(-1, 1), (-2, -1, 0, 1)], ids=("one bit", "two bits"))
def test_quantised_models_become_products_of_bits(zero: int, levels: tuple[int, ...]) -> None:
    model, feeds = quantised(RNG.choice(levels, (128, 128, 3, 3)).astype(ml_dtypes.int2), zero)
    loaded = load(model)
    # which counts bits faster than it multiplies bytes
    package = mlc.compile(loaded, "x86 -mcpu=znver4", verify_passes=True)
    text = package.members["graph.txt"].decode()
    assert text.count("conv_bits(") == 2
    assert text.count("matmul_bits(") == 1
    got, wanted = run_here(package, feeds), run_graph(loaded.graph, feeds)
    for name, array in wanted.items():
        # sums are whole numbers, times a scale; in floats they are rounded
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-4)


def test_without_the_pass_the_numbers_are_the_same() -> None:
    model, feeds = quantised(RNG.choice((-1, 1), (128, 128, 3, 3)).astype(ml_dtypes.int2), 1)
    loaded = load(model)
    bits, octets = (run_here(mlc.compile(loaded, disabled_passes=names), feeds) for names in ((), ("bits",)))
    for name, array in octets.items():
        np.testing.assert_array_equal(bits[name], array)


@needs_emulator
@pytest.mark.parametrize("kind", Weights)
@pytest.mark.parametrize("of_w", [1, 2])
def test_arm(kind: Weights, of_w: int) -> None:
    window = {"strides": (1, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    graph, feeds = words_of_both((1, 70, 5, 7), (19, 70, 3, 3), 2, of_w, kind, **window)
    (wanted,) = run_graph(graph, feeds).values()
    package = mlc.compile(model_of(graph), "arm -mcpu=cortex-a53")
    (got,) = emulated(package, feeds, threads=2).values()
    np.testing.assert_array_equal(got, wanted)
