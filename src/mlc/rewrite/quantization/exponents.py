"""Scales that are powers of two: a number ``x`` becomes ``round(x * 2**e)`` in 8 bits, and ``e`` is its *exponent*.

The greatest magnitude gives a first exponent, at which nothing saturates; by least squares, of it and its neighbours
the one of least mean squared error counts, since outliers may be worth losing for a finer grid.
"""

from __future__ import annotations

import numpy as np

from mlc.rewrite.quantization.ranges import Calibration, Distribution, Method

I8_MIN, I8_MAX = -128, 127
WEIGHT_MAX = 127  # symmetric: products with -128 would need a bit more
SPREAD = 2  # exponents tried on either side of the one that saturates nothing
EXPONENTS = (-30, 30)  # all further ones stand for numbers that no network holds
CHANNEL_SPREAD = 12  # of the weights' exponents in one tensor: what is smaller adds nothing to a result in 8 bits


def exponent_of(greatest: float | np.ndarray) -> np.ndarray:
    """The greatest exponent at which magnitudes up to ``greatest`` fit 8 bits; 0 where there is nothing but zeros."""
    greatest = np.asarray(greatest, np.float64)
    known = np.maximum(greatest, np.exp2(-100.0))  # far below the least that matters, and far from overflow
    found = np.floor(np.log2(I8_MAX / known))
    return np.clip(np.where(greatest > 0, found, 0), *EXPONENTS).astype(np.int64)


def squared_errors(x: np.ndarray, exponents: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Sums of squared rounding errors at ``exponents + d`` for each neighbour ``d`` from ``-SPREAD`` to ``SPREAD``.

    Args:
        x: numbers.
        exponents: one, or one for each index of ``axis``.
        axis: the axis with an exponent of its own at every index.
    Returns:
        ``[2 * SPREAD + 1, *exponents.shape]``.
    """
    rows = x.astype(np.float32, copy=False).reshape(1, -1) if axis is None else _rows(x, axis)
    first = np.atleast_1d(exponents)
    sums = []
    for d in range(-SPREAD, SPREAD + 1):
        scale = np.exp2((first + d).astype(np.float32))[:, None]
        off = np.clip(np.rint(rows * scale), -I8_MAX, I8_MAX) / scale - rows
        sums.append(np.einsum("ij,ij->i", off, off, dtype=np.float64))
    return np.asarray(sums).reshape(2 * SPREAD + 1, *exponents.shape)


def best_exponents(exponents: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Of each exponent and its neighbours the one of least error; the coarser one where two are equally good."""
    return np.clip(exponents + errors.argmin(axis=0) - SPREAD, *EXPONENTS)


def exponent_for(numbers: Distribution, how: Calibration) -> int:
    """The exponent of a tensor of activations, whose numbers are distributed like this."""
    if how.method is not Method.MSE:
        lo, hi = numbers.range(how)
        return int(exponent_of(max(-lo, hi)))
    first = exponent_of(max(-numbers.least, numbers.most))
    scales = np.exp2(-(first + np.arange(-SPREAD, SPREAD + 1)).astype(np.float64))
    errors = numbers.squared_errors(scales, np.zeros_like(scales), -I8_MAX, I8_MAX)
    return int(best_exponents(first, errors))


def weight_exponents(weights: np.ndarray, axis: int | None) -> np.ndarray:
    """The exponent of a tensor of weights, or one for each index of ``axis``.

    Channels that are nearly dead, their weights ``2**-CHANNEL_SPREAD`` of another channel's, get no finer exponent than
    that: the sums are to be added to, and narrowed, with those of the other channels. Zeros are exact at any exponent;
    theirs is the finest of the others.
    """
    greatest = np.abs(weights).max(initial=0.0) if axis is None else np.abs(_rows(weights, axis)).max(1, initial=0.0)
    some = np.asarray(greatest) > 0
    if not some.any():
        return np.broadcast_to(exponent_of(1.0), some.shape)
    first = exponent_of(greatest)
    found = best_exponents(first, squared_errors(weights, first, axis))
    found = np.minimum(found, found.min(where=some, initial=EXPONENTS[1]) + CHANNEL_SPREAD)
    return np.where(some, found, found.max(where=some, initial=EXPONENTS[0]))


def quantised(x: np.ndarray, exponents: np.ndarray, axis: int | None = None) -> np.ndarray:
    """``x`` as i8 with the exponents of :func:`weight_exponents`."""
    if axis is not None:
        shape = [1] * x.ndim
        shape[axis] = -1
        exponents = exponents.reshape(shape)
    scaled = np.rint(x.astype(np.float64) * np.exp2(exponents.astype(np.float64)))
    return np.clip(scaled, -WEIGHT_MAX, WEIGHT_MAX).astype(np.int8)


def _rows(x: np.ndarray, axis: int) -> np.ndarray:
    """``[x.shape[axis], everything else]`` in f32."""
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1).astype(np.float32, copy=False)
