"""Convolutions run on the simulator, and the same in plain numpy integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.vdla_sim import Convolution, stream
from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.program import Program

FULL = PROFILES["full"]
TINY = Convolution("tiny", 8, 32, 32, 3, 1, 4, 2)
STRIDED = Convolution("strided", 8, 16, 64, 3, 2, 2, 4)
POINTWISE = Convolution("pointwise", 6, 48, 32, 1, 1, 3, 1)


@dataclass
class Case:
    """A convolution's program, arrays for its buffers, and the right output."""

    layer: Convolution
    program: Program
    x: np.ndarray
    w: np.ndarray
    expected: np.ndarray


def case(layer: Convolution, config: VdlaConfig = FULL, seed: int = 0, shift: int = 7) -> Case:
    """A convolution of random int8 with weights of random int8."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-128, 128, (layer.inputs // 16, layer.size, layer.size, 16), np.int8)
    taps = (layer.kernel, layer.kernel)
    w = rng.integers(-128, 128, (layer.outputs // 16, layer.inputs // 16, *taps, 16, 16), np.int8)
    return Case(layer, stream(layer, config, shift), x, w, convolved(layer, x, w, shift))


def convolved(layer: Convolution, x: np.ndarray, w: np.ndarray, shift: int) -> np.ndarray:
    """int8[outputs/16, out, out, 16]: sums in int64, shifted with halves rounded up, saturated."""
    padded = np.pad(x.astype(np.int64), ((0, 0), (layer.pad,) * 2, (layer.pad,) * 2, (0, 0)))
    sums = np.zeros((layer.outputs // 16, layer.out, layer.out, 16), np.int64)
    reach = (layer.out - 1) * layer.stride + 1
    for i, j in np.ndindex(layer.kernel, layer.kernel):
        window = padded[:, i : i + reach : layer.stride, j : j + reach : layer.stride]
        sums += np.einsum("chwi,ocxi->ohwx", window, w[:, :, i, j].astype(np.int64))
    return np.clip((sums + (1 << (shift - 1))) >> shift, -128, 127).astype(np.int8)
