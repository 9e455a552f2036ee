"""Kernels that compute with vectors, on PoCL: those of blocks of channels, and each operator that vectors have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mlc.ir.graph import Builder, Value
from mlc.ir.loop import Function
from mlc.ir.types import DType, f16, f32
from mlc.rewrite.group import configured
from mlc.targets.gpu.kernel import kernel
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import program, run
from tests.unit.targets.gpu.blocks import NETWORKS, check, laid_out, network
from tests.unit.targets.gpu.groups import Case, assert_close, put, x

HALVES = ("conv", "conv_odd_channels", "depthwise", "residual", "dense", "dense_few")


def on(device: OpenClDevice) -> Callable[[Function, Sequence[np.ndarray]], list[np.ndarray]]:
    return lambda fn, inputs: run(device, fn, inputs)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_device_computes_what_networks_say(quick_pocl: OpenClDevice, name: str) -> None:
    graph = network(name)
    check(graph, laid_out(graph), on(quick_pocl))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", HALVES)
def test_device_computes_in_half_precision(quick_pocl: OpenClDevice, name: str) -> None:
    graph = network(name, f16)
    check(graph, laid_out(graph), on(quick_pocl))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["conv_strided", "pooled", "dense"])
def test_device_computes_the_same_under_any_configuration(quick_pocl: OpenClDevice, name: str, seed: int) -> None:
    graph = network(name)
    check(graph, laid_out(graph, np.random.default_rng(seed)), on(quick_pocl))


def several(b: Builder, t: DType) -> list[Value]:
    """What vectors have functions for; NaN and infinities among the operands."""
    a, c = x(b, 8, 16, dtype=t), x(b, 8, 16, name="c", dtype=t)
    largest, least = put(b, "max", [a, c]), put(b, "min", [a, c])
    y = put(b, "add", [put(b, "mul", [a, c]), put(b, "sub", [largest, least])])
    y = put(b, "add", [y, put(b, "sigmoid", [put(b, "tanh", [put(b, "neg", [a])])])])
    return [put(b, "add", [y, put(b, "exp", [put(b, "neg", [put(b, "abs", [a])])])])]


@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
def test_vectors_compute_what_numbers_do(pocl: OpenClDevice, dtype: DType) -> None:
    case = Case.made("k", lambda b: several(b, dtype))
    fn = kernel(configured(case.node, {"out0.vector": 4 if dtype is f32 else 8}), "k", DEVICES["mali"])
    assert "float4" in program([fn]).source or "float8" in program([fn]).source
    feeds = case.feeds()
    feeds["x"][0, :6] = np.nan, np.inf, -np.inf, 0.0, -0.0, 1e4
    want = case.expected(feeds)
    got = run(pocl, fn, case.arrays(feeds))
    if dtype is f16:
        np.testing.assert_allclose(got[0].reshape(want[0].shape), want[0], rtol=4e-3, atol=4e-3)
    else:
        assert_close(got, want)
