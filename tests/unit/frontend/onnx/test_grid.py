from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError
from tests.unit.frontend.onnx.single import compare, ours, output_of

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, padding, align):
    x = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
    grid = RNG.uniform(-1.4, 1.4, (2, 6, 7, 2)).astype(np.float32)
    compare("GridSample", [x, grid], opset=16, mode=mode, padding_mode=padding, align_corners=align)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(mode):
    x = RNG.normal(size=(1, 2, 3, 4, 5)).astype(np.float32)
    grid = RNG.uniform(-1.2, 1.2, (1, 2, 3, 4, 3)).astype(np.float32)
    compare("GridSample", [x, grid], opset=20, mode=mode)


def test_modes_of_samples_are_known():
    operands = [np.zeros((1, 3, 4, 5), np.float32), np.zeros((1, 1, 1, 2), np.float32)]
    with pytest.raises(ImportModelError, match="mode 'x', known"):
        ours("GridSample", operands, opset=18, mode="x")


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(1, 3, 4, 5), (2, 1, 5, 3), (1, 1, 2, 7), (1, 2, 3, 4, 5), (3, 1, 2, 2, 4)])
def test_affine_grid(size, align):
    rank = len(size) - 2
    theta = RNG.normal(size=(size[0], rank, rank + 1)).astype(np.float32)
    compare("AffineGrid", [theta, np.array(size)], opset=20, constants=[1], align_corners=align)


def test_affine_grid_of_single_pixels_and_of_doubles():
    theta = RNG.normal(size=(1, 2, 3))
    centre = output_of("AffineGrid", [theta, np.array([1, 1, 1, 1])], opset=20, constants=[1])
    assert centre.dtype == np.float64
    np.testing.assert_allclose(centre.reshape(2), theta[0, :, 2])
    corner = output_of("AffineGrid", [theta, np.array([1, 1, 1, 1])], opset=20, constants=[1], align_corners=1)
    np.testing.assert_allclose(corner.reshape(2), theta[0] @ [-1, -1, 1])


@pytest.mark.parametrize("size", [(2, 1, 4, 4), (1, 1, 4), (1, 1, 4, 4, 4)])
def test_affine_grid_needs_a_matrix_that_fits(size):
    with pytest.raises(ImportModelError, match=r"theta has shape \(1, 2, 3\) for images of shape"):
        ours("AffineGrid", [np.ones((1, 2, 3), np.float32), np.array(size)], opset=20, constants=[1])
