"""Floats to bytes in vectors: every value that is special to rounding, to limits or to conversions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.e2e.compiled import LEVELS, compiled, interpreted, network, reference

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e9, -3e9, 2.0**31, -(2.0**31), 1e38, -1e38]


@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell", "x86 -mcpu=x86-64"])
@pytest.mark.parametrize("zero", [0, 1, 128, 255])
def test_floats_to_bytes(zero: int, target: str) -> None:
    """Halves to even, and then the zero point, odd or not; beyond the limits, and at them."""
    near = [-zero, 255 - zero, 0, 1, 2, 3]
    ties = [n + d for n in near for d in (-1.5, -1, -0.5, -0.49, 0.0, 0.49, 0.5, 0.51, 1, 1.5)]
    x = np.resize(np.array([*SPECIAL, *ties], np.float32), (3, 37))
    feeds = {"x": x}
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])]
    model = network(nodes, feeds, ["y"], {"scale": np.float32(1), "zero": np.uint8(zero)})
    expected = interpreted(model, feeds)["y"]
    known = np.isfinite(x) & (np.abs(x) < 2**31)  # of others, what onnxruntime says depends on the machine
    np.testing.assert_array_equal(expected[known], reference(model, feeds)["y"][known])
    for options in LEVELS:
        np.testing.assert_array_equal(compiled(model, feeds, target=target, **options)["y"], expected)


@pytest.mark.parametrize("most", [1, 200])
def test_an_upper_limit_below_that_of_bytes(most: int) -> None:
    x = np.linspace(-3, 300, 333, dtype=np.float32)
    nodes = [
        helper.make_node("Clip", ["x", "lo", "hi"], ["inside"]),
        helper.make_node("QuantizeLinear", ["inside", "scale", "zero"], ["y"]),
    ]
    stored = {"lo": np.float32(0), "hi": np.float32(most), "scale": np.float32(1), "zero": np.uint8(0)}
    model = network(nodes, {"x": x}, ["y"], stored)
    np.testing.assert_array_equal(compiled(model, {"x": x})["y"], interpreted(model, {"x": x})["y"])
