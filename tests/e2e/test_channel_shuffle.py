"""Shuffled channels between convolutions, grouped or not, for vectors of several widths, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.e2e.compiled import assert_same, compiled, network, reference
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
