"""Winograd convolution against onnxruntime's direct one; its matrices, derived exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import VerifyError
from mlc.ir.types import TensorType, f16, f32
from mlc.ops import get
from mlc.ops.winograd import TILES, matrices, transform_weights
from tests.fuzz import examples
from tests.unit.ops.oracle import evaluate, onnxruntime_output

tiles = pytest.mark.parametrize("tile", TILES)


@tiles
def test_transforms_give_exactly_the_sums_of_the_window(tile: int) -> None:
    inputs, weights, outputs = matrices(tile)
    data = [Fraction(k * k - 7, 3) for k in range(tile + 2)]
    taps = [Fraction(2), Fraction(-5, 7), Fraction(11)]

    def times(matrix, values):  # type: ignore[no-untyped-def]
        return [sum(a * b for a, b in zip(row, values, strict=True)) for row in matrix]

    products = [a * b for a, b in zip(times(weights, taps), times(inputs, data), strict=True)]
    assert times(outputs, products) == [sum(data[i + k] * taps[k] for k in range(3)) for i in range(tile)]


@examples(40)
@given(
    tile=st.sampled_from(TILES),
    batch=st.integers(1, 2),
    channels=st.integers(1, 3),
    filters=st.integers(1, 3),
    space=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
)
def test_it_is_a_convolution(tile, batch, channels, filters, space, pads):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, channels, *space)).astype(np.float32)
    w = rng.standard_normal((filters, channels, 3, 3)).astype(np.float32)
    expected = onnxruntime_output("Conv", x, w, pads=list(pads))
    got = evaluate("conv_winograd", x, transform_weights(w, tile), pads=pads, tile=tile)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@examples(15)
@given(
    tile=st.sampled_from((2, 4)),
    batch=st.integers(1, 2),
    depth=st.integers(3, 5),
    taps=st.integers(1, 3),
    space=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    pads=st.tuples(*[st.integers(0, 1)] * 6),
)
def test_it_is_a_convolution_in_three_dimensions(tile, batch, depth, taps, space, pads):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 2, depth, *space)).astype(np.float32)
    w = rng.standard_normal((3, 2, taps, 3, 3)).astype(np.float32)
    expected = onnxruntime_output("Conv", x, w, pads=list(pads))
    got = evaluate("conv_winograd", x, transform_weights(w, tile), pads=pads, tile=tile)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("tile, bound", [(2, 2e-6), (4, 2e-5), (6, 4e-5)])
def test_the_error_stays_within_its_bound(tile: int, bound: float) -> None:
    """Of the output's largest magnitude, for weights and inputs as in a network (He et al.)."""
    rng = np.random.default_rng(1)
    channels = 64
    x = np.maximum(rng.standard_normal((1, channels, 12, 12)), 0).astype(np.float32)
    w = (rng.standard_normal((8, channels, 3, 3)) * np.sqrt(2 / (9 * channels))).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x[0].astype(np.float64), (3, 3), axis=(1, 2))
    exact = np.einsum("chwrs,ocrs->ohw", windows, w.astype(np.float64))
    got = evaluate("conv_winograd", x, transform_weights(w, tile), pads=(0,) * 4, tile=tile)[0]
    assert np.abs(got - exact).max() <= bound * np.abs(exact).max()


@pytest.mark.parametrize(
    "x, u, attrs, message",
    [
        (TensorType((1, 2, 8, 8), f32), TensorType((5, 5, 2, 3), f32), {"tile": 3}, "tiles of 3, there are 2, 4, 6"),
        (TensorType((2, 8, 8), f32), TensorType((4, 4, 2, 3), f32), {"tile": 2}, "x has rank 3"),
        (TensorType((1, 2, 8, 8), f16), TensorType((4, 4, 2, 3), f16), {"tile": 2}, "takes f32"),
        (TensorType((1, 2, 8, 8), f32), TensorType((6, 6, 2, 3), f32), {"tile": 2}, "have 4 by 4 points"),
        (TensorType((1, 2, 8, 8), f32), TensorType((4, 4, 5, 3), f32), {"tile": 2}, "x has 2 channels, u takes 5"),
        (TensorType((1, 2, 2, 8), f32), TensorType((4, 4, 2, 3), f32), {"tile": 2}, "more than the padded input"),
    ],
)
def test_what_does_not_fit_is_refused(x, u, attrs, message):  # type: ignore[no-untyped-def]
    with pytest.raises(VerifyError, match=message):
        get("conv_winograd").infer([x, u], {"pads": (0,) * 4, **attrs})
