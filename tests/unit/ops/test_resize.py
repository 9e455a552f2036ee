from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.types import f32
from mlc.ops import get
from tests.unit.ops.oracle import evaluate


def test_nearest_of_whole_scales_is_index_arithmetic():
    x = te.placeholder((1, 2, 3, 4), f32)
    (out,) = get("resize_nearest").express([x], {"shape": (1, 2, 6, 12)})
    assert "k//2, l//3" in repr(out.op)
    (out,) = get("resize_nearest").express([x], {"shape": (1, 2, 3, 2)})
    assert "k, 2*l" in repr(out.op)


@pytest.mark.parametrize("shape", [(2, 6), (2, 4), (2, 7), (2, 1), (2, 0), (5, 4)])
def test_nearest(rng, shape):
    x = rng.normal(size=(2, 4)).astype(np.float32)
    rows = np.arange(shape[0]) * 2 // shape[0]
    columns = np.arange(shape[1]) * 4 // shape[1] if shape[1] else np.zeros(0, int)
    np.testing.assert_array_equal(evaluate("resize_nearest", x, shape=shape), x[rows][:, columns])


def test_resample_sums_weighted_taps(rng):
    x = rng.normal(size=(2, 5, 3)).astype(np.float32)
    index = rng.integers(0, 5, (4, 7)).astype(np.int32)
    weight = rng.normal(size=(4, 7)).astype(np.float32)
    wanted = np.einsum("to,atob->aob", weight, x[:, index])
    np.testing.assert_allclose(evaluate("resample", x, index, weight, axis=1), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_grid_sample_at_the_elements_gives_them(rng, spatial, align):
    shape = (4, 3, 5)[:spatial]
    x = rng.normal(size=(2, 3, *shape)).astype(np.float32)
    lines = [np.linspace(-1, 1, n) if align else (2 * np.arange(n) + 1) / n - 1 for n in shape]
    grid = np.stack(np.meshgrid(*lines, indexing="ij")[::-1], -1)
    grid = np.broadcast_to(grid, (2, *grid.shape)).astype(np.float32)
    for mode in ("linear", "nearest", "cubic"):
        out = evaluate("grid_sample", x, grid, mode=mode, align_corners=align)
        np.testing.assert_allclose(out, x, rtol=1e-4, atol=1e-5)


def test_grid_sample_outside():
    x = np.array([[[1, 2, 3]]], np.float32)
    grid = np.array([[[-3], [3], [np.nan], [1e30]]], np.float32)
    np.testing.assert_array_equal(evaluate("grid_sample", x, grid, mode="nearest"), [[[0, 0, 0, 0]]])
    border = evaluate("grid_sample", x, grid, mode="nearest", padding_mode="border")
    np.testing.assert_array_equal(border[0, 0, [0, 1, 3]], [1, 3, 3])
    mirrored = evaluate("grid_sample", x, grid[:, :2], mode="nearest", padding_mode="reflection")
    np.testing.assert_array_equal(mirrored, [[[3, 1]]])
    folded = evaluate("grid_sample", x[..., :1], grid[:, :2], padding_mode="reflection", align_corners=True)
    np.testing.assert_array_equal(folded, [[[1, 1]]])


X = np.zeros((2, 3, 4), np.float32)
I, W = np.zeros((2, 5), np.int32), np.zeros((2, 5), np.float32)


@pytest.mark.parametrize(
    "name, arrays, attrs, message",
    [
        ("resize_nearest", [X], {"shape": (2, 3)}, "resize_nearest: f32.2,3,4. to"),
        ("resize_nearest", [X[:0]], {"shape": (2, 3, 4)}, "resize_nearest: f32.0,3,4. to"),
        ("resample", [I, I, I], {"axis": 0}, "resample: x is i32, a float type is needed"),
        ("resample", [X, I, W[:1]], {"axis": 0}, "resample: index .* and weight .* must be .taps, positions."),
        ("resample", [X, W, W], {"axis": 0}, "resample: index is f32"),
        ("resample", [X, np.tile(I, (5, 1)), np.tile(W, (5, 1))], {"axis": 0}, "resample: 10 taps, at most 8"),
        ("resample", [X[:0], I, W], {"axis": 0}, "resample: axis 0 of .* is empty"),
        ("grid_sample", [X, X], {}, "grid_sample: grid .* for"),
        ("grid_sample", [X, X], {"mode": "spline"}, "grid_sample: mode 'spline'"),
        ("grid_sample", [X, X], {"padding_mode": "wrap"}, "grid_sample: padding_mode 'wrap'"),
        ("grid_sample", [X[..., :0], X[..., :1]], {}, "grid_sample: nothing to sample"),
    ],
)
def test_mistyped_calls_are_refused(name, arrays, attrs, message):
    with pytest.raises(VerifyError, match=message):
        evaluate(name, *arrays, **attrs)
