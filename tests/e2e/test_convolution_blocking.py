"""Convolutions whose channels and pixels are cut for the caches, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.e2e.compiled import assert_same, compiled, network, reference


@pytest.mark.sweep(8)
@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=x86-64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "batch, channels, filters, space, taps, stride",
    [
        (1, 512, 64, (7, 7), 3, 1),
        (2, 512, 48, (7, 7), 3, 2),
        (1, 1024, 32, (14, 14), 1, 1),
        (1, 1040, 24, (13, 5), 1, 1),
        (1, 768, 72, (28, 28), 1, 2),
        (1, 256, 16, (56, 56), 1, 1),
    ],
)
def test_large_weights(batch, channels, filters, space, taps, stride, threads, target):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[taps // 2] * 4, strides=[stride] * 2),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    feeds = {"x": rng.standard_normal((batch, channels, *space)).astype(np.float32)}
    weights = rng.standard_normal((filters, channels, taps, taps)) / np.sqrt(channels * taps * taps)
    stored = {"w": weights.astype(np.float32), "b": rng.standard_normal(filters).astype(np.float32)}
    model = network(nodes, feeds, ["y"], stored)
    got = compiled(model, feeds, threads=threads, target=target, disabled_passes=["winograd"])
    assert_same(got, reference(model, feeds), tolerance=1e-5)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=x86-64"])
@pytest.mark.parametrize(
    "channels, filters, groups, space, taps, stride",
    [
        (64, 64, 8, (14, 14), 3, 1),
        (64, 128, 2, (15, 13), 3, 2),
        (48, 96, 3, (7, 7), 5, 1),
        (1024, 64, 2, (7, 7), 3, 1),
        (64, 64, 4, (14, 14), 1, 1),
        (64, 32, 4, (13, 9), 1, 2),
        (24, 40, 4, (9, 9), 3, 1),
    ],
)
def test_groups_of_whole_blocks(channels, filters, groups, space, taps, stride, target):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[taps // 2] * 4, strides=[stride] * 2, group=groups),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    feeds = {"x": rng.standard_normal((2, channels, *space)).astype(np.float32)}
    weights = rng.standard_normal((filters, channels // groups, taps, taps)) / np.sqrt(channels * taps * taps / groups)
    stored = {"w": weights.astype(np.float32), "b": rng.standard_normal(filters).astype(np.float32)}
    model = network(nodes, feeds, ["y"], stored)
    assert_same(compiled(model, feeds, threads=1, target=target), reference(model, feeds), tolerance=1e-5)


@pytest.mark.sweep(9)
@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell"])
@pytest.mark.parametrize("behind", [False, True], ids=["plain", "blocked"])
@pytest.mark.parametrize(
    "channels, filters, groups, space, taps, dilation, stride",
    [
        (32, 48, 1, (14, 14), 3, 12, 1),
        (32, 16, 1, (7, 9), 3, 24, 1),
        (16, 32, 1, (1, 1), 3, 2, 1),
        (32, 16, 1, (1, 21), 3, 1, 1),
        (24, 40, 1, (17, 33), 5, 3, 2),
        (512, 16, 1, (14, 14), 3, 6, 1),
        (64, 64, 2, (14, 14), 3, 6, 1),
        (16, 16, 1, (13,), 3, 6, 1),
        (16, 24, 1, (5, 6, 7), 3, 3, 1),
    ],
)
def test_terms_in_wide_borders(channels, filters, groups, space, taps, dilation, stride, behind, target):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(2)
    rank = len(space)
    weights = rng.standard_normal((filters, channels // groups, *[taps] * rank)) / np.sqrt(channels * taps**rank)
    stored = {"k": weights.astype(np.float32)}
    nodes = []
    if behind:
        stored["w"] = (rng.standard_normal((channels, channels, *[1] * rank)) / np.sqrt(channels)).astype(np.float32)
        nodes.append(helper.make_node("Conv", ["x", "w"], ["a"]))
    attributes = {
        "pads": [dilation * (taps // 2)] * 2 * rank,
        "dilations": [dilation] * rank,
        "strides": [stride] * rank,
    }
    nodes.append(helper.make_node("Conv", ["a" if behind else "x", "k"], ["c"], group=groups, **attributes))
    nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    feeds = {"x": rng.standard_normal((1, channels, *space)).astype(np.float32)}
    model = network(nodes, feeds, ["y"], stored)
    assert_same(compiled(model, feeds, target=target), reference(model, feeds), tolerance=1e-5)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell"])
@pytest.mark.parametrize("filters", [208, 104, 41])
@pytest.mark.parametrize("channels, space, taps", [(32, (7, 7), 1), (24, (9, 15), 3), (640, (5, 7), 1)])
def test_channels_that_no_wide_tile_divides(channels, space, taps, filters, target):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[taps // 2] * 4),
        helper.make_node("Add", ["c", "r"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["g"]),
        helper.make_node("Mul", ["s", "g"], ["y"]),
    ]
    feeds = {
        "x": rng.standard_normal((1, channels, *space)).astype(np.float32),
        "r": rng.standard_normal((1, filters, *space)).astype(np.float32),
    }
    weights = rng.standard_normal((filters, channels, taps, taps)) / np.sqrt(channels * taps * taps)
    stored = {"w": weights.astype(np.float32), "b": rng.standard_normal(filters).astype(np.float32)}
    model = network(nodes, feeds, ["y"], stored)
    got = compiled(model, feeds, threads=2, target=target, disabled_passes=["winograd"])
    assert_same(got, reference(model, feeds), tolerance=1e-5)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell"])
@pytest.mark.parametrize("channels, filters, space, taps, stride", [
    (96, 48, (9, 40, 40), (3, 1, 1), 1),
    (64, 40, (12, 37, 41), (3, 1, 1), 2),
    (64, 16, (12, 40, 40), (3, 3, 3), 1),
])  # fmt: skip
def test_volumes_that_no_cache_holds(channels, filters, space, taps, stride, target):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(4)
    pads = [k // 2 for k in taps]
    first = helper.make_node("Conv", ["x", "v"], ["a"])
    attributes = {"pads": [*pads, *pads], "strides": [stride, 1, 1]}
    nodes = [first, helper.make_node("Conv", ["a", "w"], ["c"], **attributes), helper.make_node("Relu", ["c"], ["y"])]
    feeds = {"x": rng.standard_normal((1, 8, *space)).astype(np.float32)}
    stored = {
        "v": (rng.standard_normal((channels, 8, 1, 1, 1)) / 3).astype(np.float32),
        "w": (rng.standard_normal((filters, channels, *taps)) / np.sqrt(channels * np.prod(taps))).astype(np.float32),
    }
    model = network(nodes, feeds, ["y"], stored)
    got = compiled(model, feeds, threads=2, target=target, disabled_passes=["winograd"])
    assert_same(got, reference(model, feeds), tolerance=1e-5)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell"])
@pytest.mark.parametrize("channels, filters, groups, space, taps, stride", [
    (24, 40, 1, (14, 14), 3, 1),
    (48, 17, 1, (7, 9), 3, 2),
    (17, 33, 1, (7, 7), 5, 1),
    (35, 70, 1, (14, 14), 1, 2),
    (40, 40, 40, (9, 9), 3, 1),
])  # fmt: skip
def test_weights_that_are_not_constant(channels, filters, groups, space, taps, stride, target):  # type: ignore[no-untyped-def]
    """They are packed while the model runs, for both convolutions; what lies in padding meanwhile does not count."""
    rng = np.random.default_rng(5)
    attributes = {"pads": [taps // 2] * 4, "strides": [stride] * 2}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["a", "w"], ["c"], group=groups, **attributes),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    shapes = {"x": (3, 16, *space), "v": (channels, 16, 3, 3), "w": (filters, channels // groups, taps, taps)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model = network(nodes, feeds, ["y"])
    assert_same(compiled(model, feeds, threads=2, target=target), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("target", ["x86", "x86 -mcpu=haswell"])
@pytest.mark.parametrize("rows, terms, columns, turned", [
    (130, 1030, 70, "w"),
    (97, 1024, 64, ""),
    (96, 1024, 200, "x"),
    (40, 9000, 32, "x"),
])  # fmt: skip
def test_products_of_operands_that_are_not_constant(rows, terms, columns, turned, target):  # type: ignore[no-untyped-def]
    """The right one is packed while the model runs; deep products are summed chunk by chunk."""
    rng = np.random.default_rng(6)
    shapes = {"x": (rows, terms), "w": (terms, columns)}
    shapes |= {name: shapes[name][::-1] for name in turned}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) / 30 for name, shape in shapes.items()}
    nodes = [helper.make_node("Transpose", [name], [f"{name}t"], perm=[1, 0]) for name in turned]
    operands = [f"{name}t" if name in turned else name for name in "xw"]
    nodes.append(helper.make_node("MatMul", operands, ["y"]))
    model = network(nodes, feeds, ["y"])
    assert_same(compiled(model, feeds, threads=2, target=target), reference(model, feeds), tolerance=1e-5)
