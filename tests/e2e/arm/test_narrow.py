"""Products of bytes, of bf16 and of half precision on ARM processors, under an emulator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from tests.e2e.compiled import assert_same, load, network, reference
from tests.emulated import emulated, needs_emulator

pytestmark = needs_emulator

RNG = np.random.default_rng(3)


def integers(
    rows: int = 5, depth: int = 19, channels: int = 7, width: int = 5, stride: int = 1
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A product and a convolution with odd extents, over the whole range of bytes."""
    feeds = {
        "a": RNG.integers(0, 256, (rows, depth), np.uint8),
        "x": RNG.integers(0, 256, (1, channels, 9, width), np.uint8),
    }
    stored = {
        "w": RNG.integers(-128, 128, (depth, 13), np.int8),
        "f": RNG.integers(-128, 128, (11, channels, 3, 3), np.int8),
        "z": np.array(200, np.uint8),
    }
    nodes = [
        helper.make_node("MatMulInteger", ["a", "w", "z"], ["p"]),
        helper.make_node("ConvInteger", ["x", "f", "z"], ["c"], pads=[1, 1, 1, 1], strides=[2, stride]),
    ]
    return network(nodes, feeds, ["p", "c"], stored), feeds


@pytest.mark.parametrize("cpu", ["cortex-a53", "neoverse-v1"])  # in pairs of 16 bits; usdot
def test_products_of_bytes_are_exact(cpu: str) -> None:
    model, feeds = integers()
    got = emulated(mlc.compile(load(model), f"arm -mcpu={cpu}"), feeds, threads=2)
    for name, want in reference(model, feeds).items():
        np.testing.assert_array_equal(got[name], want)


@pytest.mark.parametrize(
    "extents", [(6, 16, 16, 6, 1), pytest.param((34, 40, 24, 12, 2), marks=pytest.mark.slow)], ids=str
)  # pixels beside each other, and apart
def test_products_of_blocks_of_bytes_are_exact(extents: tuple[int, ...]) -> None:
    model, feeds = integers(*extents)
    package = mlc.compile(load(model), "arm -mcpu=neoverse-v1")
    assert package.members["src/kernels.txt"].decode().count("smmla(reset") >= 2
    got = emulated(package, feeds, threads=2)
    for name, want in reference(model, feeds).items():
        np.testing.assert_array_equal(got[name], want)


@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a76"])  # by way of single precision; half precision itself
def test_half_precision(cpu: str) -> None:
    feeds = {"x": RNG.standard_normal((3, 37)).astype(np.float16)}
    stored = {"w": RNG.standard_normal((37, 21)).astype(np.float16)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])]
    model = network(nodes, feeds, ["y"], stored)
    package = mlc.compile(load(model), f"arm -mcpu={cpu}")
    assert_same(emulated(package, feeds), reference(model, feeds), tolerance=1e-2)


@pytest.mark.parametrize(("rows", "depth", "by"), [(9, 37, "bfdot.4("), (10, 36, "bfmmla(")])
def test_products_of_bf16(rows: int, depth: int, by: str) -> None:
    feeds = {"x": RNG.standard_normal((rows, depth)).astype(np.float32)}
    stored = {"w": RNG.standard_normal((depth, 21)).astype(np.float32)}
    model = network([helper.make_node("MatMul", ["x", "w"], ["y"])], feeds, ["y"], stored)
    package = mlc.compile(load(model), "arm -mcpu=neoverse-v1", bf16=True)
    assert by in package.members["src/kernels.txt"].decode()
    assert_same(emulated(package, feeds), reference(model, feeds), tolerance=1e-2)


@pytest.mark.parametrize("count", [3, 7, 35])
def test_wide_integers_become_bytes(count: int) -> None:
    """LLVM aborts over a store of three bytes that were 64-bit integers."""
    feeds = {"x": RNG.integers(-128, 128, count)}
    model = network([helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT8)], feeds, ["y"])
    assert_same(emulated(mlc.compile(load(model), "arm -mcpu=cortex-a53"), feeds), reference(model, feeds))
