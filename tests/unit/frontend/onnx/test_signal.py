"""Fourier transforms, frames, mel filters and determinants, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError
from mlc.frontend.common.problems import UnsupportedModelError
from tests.unit.frontend.onnx.single import compare, ours, output_of

RNG = np.random.default_rng(13)


def signal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [5, 8, 12])
@pytest.mark.parametrize("inverse", [0, 1])
def test_dft_along_any_axis_cut_or_padded(axis, parts, length, inverse):
    x = signal(7, 8, 3, parts)
    operands = [x, np.array(length), np.array(axis)]
    compare("DFT", operands, opset=20, constants=[1, 2], inverse=inverse, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [None, 6, 9])
def test_one_side_of_a_dft_and_back(length):
    more = [] if length is None else [np.array(length)]
    compare("DFT", [signal(2, 9, 1), *more], opset=17, constants=[1][: len(more)], axis=1, onesided=1, atol=1e-5)
    x, points = signal(2, 5, 2), length or 8
    back = output_of("DFT", [x, *more], opset=20, constants=[1][: len(more)], inverse=1, onesided=1)
    np.testing.assert_allclose(back[..., 0], np.fft.irfft(x[..., 0] + 1j * x[..., 1], points, axis=1), atol=1e-5)


@pytest.mark.parametrize(
    "shape, attrs, message",
    [
        ((4, 3), {}, "the last axis must hold real, or real and imaginary parts"),
        ((4, 2), {"axis": -1}, "the axis is that of real and imaginary parts"),
        ((1, 4, 2), {"onesided": 1}, "this one is complex"),
    ],
)
def test_what_a_dft_refuses(shape, attrs, message):
    with pytest.raises(ImportModelError, match=message):
        ours("DFT", [signal(*shape)], opset=17, **attrs)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("with_window", [False, True])
def test_stft(onesided, with_window):
    window = [np.hanning(8).astype(np.float32)] if with_window else []
    operands = [signal(2, 37, 1), np.array(5), *(window or [None]), np.array(8)]
    compare("STFT", operands, opset=17, constants=[1, 3], onesided=onesided, atol=1e-4)


def test_frames_have_to_fit():
    with pytest.raises(ImportModelError, match="frames of 40 samples, every 5, of a signal of 37"):
        ours("STFT", [signal(1, 37, 1), np.array(5), None, np.array(40)], opset=17, constants=[1, 3])


@pytest.mark.parametrize("bins, length, rate, low, high", [(8, 16, 8192, 0.0, 4096.0), (5, 64, 16000, 80.0, 7600.0)])
def test_mel_weight_matrix(bins, length, rate, low, high):
    operands = [np.array(bins), np.array(length), np.array(rate), np.float32(low), np.float32(high)]
    compare("MelWeightMatrix", operands, opset=17, constants=range(5))


def test_all_unknown_operands_are_named_at_once():
    operands = [np.array(8), np.array(16), np.array(8192), np.float32(0), np.float32(4096)]
    with pytest.raises(UnsupportedModelError, match="the operands depend on the model's inputs") as caught:
        ours("MelWeightMatrix", operands, opset=17)
    assert len(caught.value.inputs_to_fix) == 5


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (4, 5, 5), (2, 3, 8, 8)])
def test_det(shape):
    x = signal(*shape)
    np.testing.assert_allclose(
        output_of("Det", [x], opset=22), np.linalg.det(x.astype(np.float64)), rtol=1e-3, atol=1e-4
    )


def test_large_matrices_are_refused():
    with pytest.raises(ImportModelError, match="matrices of 9 rows, at most 8 are supported"):
        ours("Det", [signal(9, 9)], opset=22)
