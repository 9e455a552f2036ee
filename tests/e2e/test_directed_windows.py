"""Windows and convolutions between row-major tensors and behind blocked ones, on every kind of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from tests.e2e.compiled import assert_same, compiled, load, network, reference

CPUS = ["x86", "x86 -mcpu=x86-64", "x86 -mcpu=haswell"]

WINDOWS = [
    # kind, channels, space, window
    ("Conv", 5, (14, 14), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("Conv", 9, (13, 17), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("Conv", 8, (7, 7), {"kernel_shape": [3, 3], "pads": [2, 0, 0, 2], "strides": [1, 3]}),
    ("Conv", 16, (9, 25), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2], "strides": [1, 2]}),
    ("Conv", 3, (11, 1), {"kernel_shape": [3, 1]}),
    ("Conv", 8, (12, 23), {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    ("MaxPool", 9, (13, 17), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("MaxPool", 8, (14, 14), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", 17, (8, 31), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", 8, (7, 7), {"kernel_shape": [7, 7]}),
    ("Conv", 24, (14, 14), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
    ("Conv", 9, (27, 29), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2], "strides": [2, 2]}),
    ("Conv", 40, (7, 7), {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3]}),
    ("Conv", 1, (300, 70), {"kernel_shape": [5, 5], "strides": [2, 1]}),
    ("Conv", 8, (23, 33), {"kernel_shape": [3, 3], "pads": [6, 6, 6, 6], "dilations": [6, 6]}),
    ("Conv", 9, (301,), {"kernel_shape": [31], "pads": [15, 15]}),
    ("Conv", 8, (160,), {"kernel_shape": [10], "strides": [5]}),
    ("Conv", 9, (5, 6, 11), {"kernel_shape": [3, 3, 3], "pads": [1, 1, 1, 1, 1, 1]}),
    ("MaxPool", 8, (9, 8, 13), {"kernel_shape": [3, 3, 3], "pads": [1, 1, 1, 1, 1, 1], "strides": [2, 2, 2]}),
    ("AveragePool", 17, (17, 17), {"kernel_shape": [5, 5], "strides": [3, 3]}),
    ("AveragePool", 16, (1, 1), {"kernel_shape": [5, 3], "pads": [2, 1, 2, 1]}),
]


@pytest.mark.sweep(28)
@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("kind, channels, space, window", WINDOWS)
@pytest.mark.parametrize("behind", [False, True], ids=["plain", "blocked"])
def test_windows(
    target: str, kind: str, channels: int, space: tuple[int, ...], window: dict[str, Any], behind: bool
) -> None:
    rng = np.random.default_rng(3)
    batch = 3 if channels % 2 else 1
    feeds = {"x": rng.standard_normal((batch, channels, *space)).astype(np.float32)}
    stored = {"w": rng.standard_normal((channels, channels, *[1] * len(space))).astype(np.float32)} if behind else {}
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"])] if behind else []
    inputs = ["a" if behind else "x"]
    if kind == "Conv":
        stored["k"] = rng.standard_normal((channels, 1, *window["kernel_shape"])).astype(np.float32)
        inputs.append("k")
        window = {**window, "group": channels}
    nodes += [helper.make_node(kind, inputs, ["b"], **window), helper.make_node("Relu", ["b"], ["y"])]
    model = network(nodes, feeds, ["y"], stored)
    assert_same(compiled(model, feeds, target=target), reference(model, feeds), tolerance=1e-5)


CONVOLUTIONS = [
    # channels, filters, groups, space, window
    (16, 12, 1, (7, 7), {"kernel_shape": [1, 1]}),
    (24, 20, 1, (14, 14), {"kernel_shape": [1, 1], "strides": [2, 2]}),
    (9, 13, 1, (9, 5), {"kernel_shape": [1, 1], "strides": [1, 3]}),
    (48, 60, 3, (14, 14), {"kernel_shape": [1, 1]}),
    (60, 12, 3, (7, 7), {"kernel_shape": [1, 1]}),
    (10, 14, 2, (13, 11), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    (8, 8, 4, (9, 9), {"kernel_shape": [3, 3], "strides": [2, 2]}),
]


@pytest.mark.sweep(10)
@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("channels, filters, groups, space, window", CONVOLUTIONS)
@pytest.mark.parametrize("behind", [False, True], ids=["plain", "blocked"])
def test_convolutions(
    target: str,
    channels: int,
    filters: int,
    groups: int,
    space: tuple[int, int],
    window: dict[str, Any],
    behind: bool,
) -> None:
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((1, channels, *space)).astype(np.float32)}
    stored = {"w": rng.standard_normal((channels, channels, 1, 1)).astype(np.float32)} if behind else {}
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"])] if behind else []
    stored["k"] = rng.standard_normal((filters, channels // groups, *window["kernel_shape"])).astype(np.float32)
    nodes += [
        helper.make_node("Conv", ["a" if behind else "x", "k"], ["b"], group=groups, **window),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    model = network(nodes, feeds, ["y"], stored)
    assert_same(compiled(model, feeds, target=target), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("shape", [(2, 17, 7, 7), (1, 9, 13, 1), (3, 5, 2, 3, 11), (1, 64, 8, 8)])
def test_reductions_of_whole_images(target: str, shape: tuple[int, ...]) -> None:
    """Rows in memory, and with them whatever is computed before and after, and a second reduction beside the first."""
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
    rank = len(shape)
    stored = {"space": np.arange(2, rank), "all": np.arange(1, rank), "two": np.float32(2)}
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("GlobalMaxPool", ["r"], ["greatest"]),
        helper.make_node("ReduceSum", ["r", "all"], ["total"], keepdims=0),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Pow", ["centred", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square", "space"], ["variance"], keepdims=1),
        helper.make_node("Div", ["centred", "variance"], ["scaled"]),
    ]
    model = network(nodes, feeds, ["mean", "greatest", "total", "scaled"], stored)
    assert_same(compiled(model, feeds, target=target), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "op, shape, attrs",
    [
        ("MaxPool", (1, 1, 900, 700), {"kernel_shape": [900, 700], "pads": [1, 1, 1, 1]}),
        ("AveragePool", (1, 2, 511, 544), {"kernel_shape": [511, 3], "pads": [150, 1, 150, 1], "strides": [30, 20]}),
        ("LpPool", (1, 1, 4000, 80), {"kernel_shape": [3999, 5], "pads": [1, 1, 1, 1], "strides": [1, 9]}),
    ],
)
def test_padded_copies_that_no_stack_could_hold(
    op: str, shape: tuple[int, ...], attrs: dict[str, Any], threads: int
) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    model = network([helper.make_node(op, ["x"], ["y"], **attrs)], feeds, ["y"])
    assert_same(compiled(model, feeds, threads=threads), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("channels", [17 * 16, 13 * 8, 11 * 16 - 5])
@pytest.mark.parametrize("taps", [1, 3])
def test_channels_that_tiles_cannot_share_evenly(kind: str, channels: int, taps: int) -> None:
    rng = np.random.default_rng(4)
    feeds = {"x": rng.standard_normal((1, 32, 7, 5)).astype(np.float32)}
    shape = (channels, 32, taps, taps) if kind == "Conv" else (32, channels, taps, taps)
    stored = {"k": rng.standard_normal(shape).astype(np.float32)}
    nodes = [helper.make_node(kind, ["x", "k"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = network(nodes, feeds, ["y"], stored)
    for target in CPUS:
        assert_same(compiled(model, feeds, target=target), reference(model, feeds), tolerance=1e-5)


READERS: dict[str, list[onnx.NodeProto]] = {
    "conv": [helper.make_node("Conv", ["p", "v"], ["y"])],
    "pool": [helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
    "mean": [helper.make_node("GlobalAveragePool", ["p"], ["y"])],
    "softmax": [helper.make_node("Softmax", ["p"], ["y"], axis=1)],
    "greatest": [helper.make_node("ReduceMax", ["p", "channels"], ["y"], keepdims=0)],
    "norm": [helper.make_node("ReduceL2", ["p", "channels"], ["y"])],
    "index": [helper.make_node("ArgMax", ["p"], ["y"], axis=1)],
    "concat": [helper.make_node("Concat", ["p", "a", "p"], ["y"], axis=1)],
    "product": [
        helper.make_node("Transpose", ["p"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["t", "m"], ["y"]),
    ],
    "divided": [helper.make_node("Div", ["a", "p"], ["y"])],
}


@pytest.mark.sweep(8)
@pytest.mark.parametrize("channels", [9, 24, 40])
@pytest.mark.parametrize("reader", READERS)
def test_lanes_beyond_the_channels_of_a_pool_concern_nobody(reader: str, channels: int) -> None:
    """All is negative, so lanes with anything else would be the greatest; and what lay there before is no number."""
    rng = np.random.default_rng(3)
    feeds = {"x": rng.random((2, 16, 9, 10)).astype(np.float32)}
    stored = {
        "w": -rng.random((channels, 16, 3, 3)).astype(np.float32),
        "v": rng.standard_normal((channels, channels, 3, 3)).astype(np.float32),
        "m": rng.standard_normal((channels, 7)).astype(np.float32),
        "channels": np.array([1]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["a"], ["p"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        *READERS[reader],
    ]
    read = {name for node in nodes for name in node.input}
    model = network(nodes, feeds, ["y"], {name: array for name, array in stored.items() if name in read})
    with mlc.compile(load(model)).load(1) as module:
        module._workspace.fill(0xFF)
        assert_same(module.run(feeds), reference(model, feeds), tolerance=1e-4)
