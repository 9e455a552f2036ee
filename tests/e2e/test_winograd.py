"""Winograd convolutions compiled: ragged tiles, batches, borders and what follows them, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper

from mlc.ops.algorithms import Algorithm
from mlc.targets.x86.target import X86Target
from tests.e2e.compiled import assert_same, compiled, network, reference


def two_layers(
    batch: int, channels: int, filters: int, space: tuple[int, int], pads: list[int]
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A convolution with bias and ReLU, then one whose result is added to that of the first."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:  # He et al.
        return (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=pads),
        helper.make_node("Relu", ["c1"], ["y1"]),
        helper.make_node("Conv", ["y1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "y1"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    feeds = {"x": rng.standard_normal((batch, channels, *space)).astype(np.float32)}
    stored = {
        "w1": weights(filters, channels, 3, 3),
        "b1": weights(filters, 1)[:, 0],
        "w2": weights(filters, filters, 3, 3),
    }
    return network(nodes, feeds, ["y"], stored), feeds


def force(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(X86Target, "algorithms", lambda *_: (Algorithm(f"winograd{tile}"),))


@pytest.mark.sweep(8)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tile", [2, 4, 6])
@pytest.mark.parametrize(
    "batch, channels, filters, space, pads",
    [
        (1, 16, 32, (8, 8), [1, 1, 1, 1]),
        (2, 16, 16, (7, 5), [1, 1, 1, 1]),
        (1, 48, 16, (3, 13), [0, 0, 0, 0]),
        (3, 16, 48, (6, 11), [2, 0, 1, 3]),
        (1, 64, 64, (28, 28), [1, 1, 1, 1]),
    ],
)
def test_tiles(monkeypatch, tile, threads, batch, channels, filters, space, pads):  # type: ignore[no-untyped-def]
    force(monkeypatch, tile)
    model, feeds = two_layers(batch, channels, filters, space, pads)
    got = compiled(model, feeds, threads=threads)
    assert_same(got, reference(model, feeds), tolerance=1e-4)


@pytest.mark.sweep(4)  # every space, by one thread or two
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "batch, channels, space", [(1, 16, (4, 8, 8)), (2, 16, (3, 7, 5)), (1, 32, (6, 13, 14)), (1, 64, (8, 28, 28))]
)
def test_three_dimensions(monkeypatch, threads, batch, channels, space):  # type: ignore[no-untyped-def]
    force(monkeypatch, 4)
    rng = np.random.default_rng(0)
    w = [(rng.standard_normal((32, c, 3, 3, 3)) / np.sqrt(27 * c)).astype(np.float32) for c in (channels, 32)]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], pads=[1] * 6),
        helper.make_node("Relu", ["c1"], ["y1"]),
        helper.make_node("Conv", ["y1", "w2"], ["y"], pads=[1, 0, 2, 0, 1, 1]),
    ]
    feeds = {"x": rng.standard_normal((batch, channels, *space)).astype(np.float32)}
    model = network(nodes, feeds, ["y"], {"w1": w[0], "w2": w[1]})
    assert_same(compiled(model, feeds, threads=threads), reference(model, feeds), tolerance=1e-4)


@pytest.mark.parametrize("target", ["x86 -mcpu=x86-64", "x86 -mcpu=haswell"])
def test_other_processors(monkeypatch, target):  # type: ignore[no-untyped-def]
    force(monkeypatch, 4)
    model, feeds = two_layers(1, 16, 32, (10, 9), [1, 1, 1, 1])
    assert_same(compiled(model, feeds, target=target), reference(model, feeds), tolerance=1e-4)


def test_channels_that_fill_no_vector(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    force(monkeypatch, 2)
    model, feeds = two_layers(1, 3, 5, (9, 8), [1, 1, 1, 1])
    assert_same(compiled(model, feeds), reference(model, feeds), tolerance=1e-4)


def test_fast_math_off_gives_what_direct_sums_give() -> None:
    model, feeds = two_layers(1, 32, 32, (28, 28), [1, 1, 1, 1])
    exact = compiled(model, feeds, fast_math=False)
    assert_same(exact, reference(model, feeds), tolerance=2e-6)
    assert_same(compiled(model, feeds, disabled_passes=["winograd"]), exact, tolerance=2e-6)


def test_passes_that_a_level_or_target_does_not_have_may_be_left_out() -> None:
    model, feeds = two_layers(1, 3, 5, (9, 8), [1, 1, 1, 1])
    exact = reference(model, feeds)
    for level in (0, 2):
        assert_same(compiled(model, feeds, opt_level=level, fast_math=False), exact, tolerance=1e-5)
    assert_same(compiled(model, feeds, opt_level=1, disabled_passes=["winograd", "offload"]), exact, tolerance=1e-5)
