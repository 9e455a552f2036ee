"""Transposed convolutions compiled for vectors of several widths, against onnxruntime: every phase, odd sizes."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from onnx import helper

from tests.e2e.compiled import assert_same, compiled, network, reference

HAS_AVX2 = llvm.get_host_cpu_features().get("avx2", False)
TARGETS = ["x86", "x86 -mcpu=x86-64", *(["x86 -mcpu=haswell"] if HAS_AVX2 else [])]

# x, w, attributes: kernel no multiple of the stride, phases without taps, crops, dilation, groups, 1 to 3 axes
CASES = {
    "dcgan": ((1, 64, 4, 4), (64, 32, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "chunks of channels": ((1, 256, 9, 7), (256, 24, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "odd channels": ((2, 13, 5, 6), (13, 19, 3, 2), {"strides": [2, 3], "output_padding": [1, 2]}),
    "few outputs": ((1, 40, 9, 11), (40, 3, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "kernel smaller than stride": ((1, 8, 4, 3), (8, 9, 2, 1), {"strides": [4, 3], "output_padding": [3, 2]}),
    "phases without taps": ((1, 9, 5, 4), (9, 8, 3, 3), {"strides": [2, 4], "dilations": [2, 2]}),
    "dilation": ((1, 8, 6, 5), (8, 16, 3, 4), {"strides": [2, 3], "dilations": [3, 2], "pads": [2, 1, 0, 2]}),
    "crop": ((1, 16, 7, 7), (16, 8, 1, 2), {"strides": [1, 1], "pads": [1, 2, 1, 0]}),
    "groups": ((1, 12, 5, 9), (12, 5, 3, 3), {"group": 3, "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    "one axis": ((2, 48, 37), (48, 40, 5), {"strides": [3], "pads": [2, 1], "output_padding": [1]}),
    "long axis": ((1, 64, 301), (64, 16, 8), {"strides": [4], "pads": [2, 2]}),
    "three axes": ((1, 16, 3, 4, 5), (16, 24, 3, 2, 4), {"strides": [2, 1, 3], "pads": [1, 0, 1, 0, 1, 2]}),
    "no stride": ((1, 24, 6, 7), (24, 32, 3, 3), {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.sweep(10)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_conv_transpose_is_that_of_onnxruntime(case, target):
    x, w, attrs = CASES[case]
    rng = np.random.default_rng(0)
    weights = rng.normal(size=w).astype(np.float32)
    bias = rng.normal(size=w[1] * attrs.get("group", 1)).astype(np.float32)
    activation = "Tanh" if len(case) % 2 else "Relu"  # a long epilogue, which wants the tile in memory, or a short one
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attrs),
        helper.make_node(activation, ["y"], ["z"]),
    ]
    feeds = {"x": rng.normal(size=x).astype(np.float32)}
    model = network(nodes, feeds, ["z"], {"w": weights / np.float32(np.prod(w) / w[1]) ** 0.5, "b": bias})
    assert_same(compiled(model, feeds, target=target, threads=2), reference(model, feeds), tolerance=1e-5)


def test_weights_that_are_no_constants():
    rng = np.random.default_rng(1)
    shapes = {"x": (1, 16, 6, 7), "w": (16, 8, 3, 4)}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    model = network([node], feeds, ["y"])
    assert_same(compiled(model, feeds), reference(model, feeds), tolerance=1e-5)
