"""Shuffled channels between convolutions, grouped or not, for vectors of several widths, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import mlc
from mlc.errors import DeviceError
from tests.e2e.compiled import assert_same, compiled, load, network, reference
from tests.e2e.test_recurrent import TARGETS

# channels, groups of the convolution before, of the shuffle, of the convolution behind, kernel and stride of the
# depthwise one between
CASES = {
    "three groups": (30, 3, 3, 3, 3, 1),
    "three groups, strided": (60, 3, 3, 3, 3, 2),
    "five groups": (35, 5, 5, 5, 5, 1),
    "into the weights before": (24, 1, 3, 3, 3, 2),
    "into the weights behind": (33, 3, 11, 1, 3, 1),
    "whole blocks": (64, 2, 8, 2, 3, 1),
    "blocks are read": (48, 0, 3, 3, 5, 1),
}


@pytest.mark.sweep(7)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_shuffled_channels(name, target):
    channels, before, groups, behind, kernel, stride = CASES[name]
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(1, channels, 11, 9)).astype(np.float32)}
    stored = {
        "a": rng.normal(size=(channels, channels // max(before, 1), 1, 1)).astype(np.float32),
        "d": rng.normal(size=(channels, 1, kernel, kernel)).astype(np.float32),
        "b": rng.normal(size=(2 * channels, channels // behind, 1, 1)).astype(np.float32),
        "bias": rng.normal(size=channels).astype(np.float32),
        "cut": np.array([1, groups, channels // groups, 11, 9], np.int64),
        "whole": np.array([1, channels, 11, 9], np.int64),
    }
    if before:
        nodes = [helper.make_node("Conv", ["x", "a", "bias"], ["c"], group=before)]
    else:  # a blocked tensor that two read, so no weights take the shuffle in
        nodes = [helper.make_node("Conv", ["x", "a", "bias"], ["c"])]
    nodes += [
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Reshape", ["r", "cut"], ["s"]),
        helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["t", "whole"], ["u"]),
        helper.make_node("Conv", ["u", "d"], ["v"], group=channels, strides=[stride] * 2, pads=[kernel // 2] * 4),
        helper.make_node("Conv", ["v", "b"], ["y"], group=behind),
    ]
    outputs = ["y"] if before else ["y", "z"]
    if not before:
        nodes.append(helper.make_node("MaxPool", ["r"], ["z"], kernel_shape=[2, 2]))
    model = network(nodes, feeds, outputs, stored)
    assert_same(compiled(model, feeds, target=target, threads=2), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "znver4"])
def test_quantised_channels_move_in_blocks(cpu):
    """The unit of ShuffleNet in QDQ form: 40 channels of each group become three blocks of 16, to the same numbers."""
    channels, groups = 120, 3
    rng = np.random.default_rng(3)
    feeds = {"x": rng.normal(size=(1, 60, 9, 7)).astype(np.float32)}
    stored, nodes = {"z": np.uint8(100), "i": np.int8(0)}, []

    def quantised(name, scale):
        stored[f"{name}_s"] = np.float32(scale)
        nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}_s", "z"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", "z"], [f"{name}_d"]))
        return f"{name}_d"

    def conv(x, y, shape, **attrs):
        stored[f"{y}_w"] = rng.integers(-60, 61, shape).astype(np.int8)
        stored[f"{y}_ws"] = np.float32(0.01)
        nodes.append(helper.make_node("DequantizeLinear", [f"{y}_w", f"{y}_ws", "i"], [f"{y}_f"]))
        nodes.append(helper.make_node("Conv", [x, f"{y}_f"], [y], **attrs))

    conv(quantised("x", 0.03), "a", (channels, 20, 1, 1), group=groups)
    before = quantised("a", 0.1)
    stored["cut"] = np.array([1, groups, channels // groups, 9, 7], np.int64)
    stored["whole"] = np.array([1, channels, 9, 7], np.int64)
    nodes += [
        helper.make_node("Reshape", [before, "cut"], ["s"]),
        helper.make_node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["t", "whole"], ["u"]),
    ]
    conv("u", "b", (channels, 1, 3, 3), group=channels, pads=[1] * 4)
    conv(quantised("b", 0.1), "c", (48, 40, 1, 1), group=groups)
    model = network(nodes, feeds, [quantised("c", 0.2)], stored)
    packages = [
        mlc.compile(load(model), f"x86 -mcpu={cpu}", disabled_passes=disabled) for disabled in ((), ("shuffles",))
    ]
    assert [b"block=16" in p.members["graph.txt"] for p in packages] == [True, False]
    try:
        got, want = (next(iter(p.load(1).run(feeds).values())) for p in packages)
    except DeviceError as error:
        pytest.skip(error.message)
    np.testing.assert_array_equal(got, want)
    (known,) = reference(model, feeds).values()
    assert np.abs(got - known).max() <= 0.2001  # one step, as ties may be broken otherwise
