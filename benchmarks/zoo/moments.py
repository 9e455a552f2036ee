"""Means and variances of activations, carried through a network without running it.

A batch normalisation with made-up statistics would let activations die out or blow up after a few layers, and the
benchmark would then measure denormals or infinities. So the builder carries, per channel, the mean and variance that
standard normal input would give, and writes those into the normalisations. Values are taken as independent and Gaussian
before an activation, which holds well for seeded random weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Factors = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Mean and variance of each channel of one tensor, both of shape ``(channels,)``."""

    mean: Array
    var: Array

    @classmethod
    def standard(cls, channels: int) -> Moments:
        """Those of standard normal data."""
        return cls(np.zeros(channels), np.ones(channels))


def after_conv(x: Moments, weight: npt.NDArray[np.float32], groups: int) -> Moments:
    """Through a convolution with ``weight`` of shape ``(out, in / groups, *kernel)``; zero padding is neglected."""
    grouped = weight.reshape(groups, -1, *weight.shape[1:]).astype(np.float64)
    taps = tuple(range(3, grouped.ndim))
    return Moments(
        np.einsum("goi,gi->go", grouped.sum(axis=taps), x.mean.reshape(groups, -1)).ravel(),
        np.einsum("goi,gi->go", np.square(grouped).sum(axis=taps), x.var.reshape(groups, -1)).ravel(),
    )


def after_conv_transpose(x: Moments, weight: npt.NDArray[np.float32], stride: int) -> Moments:
    """Through a transposed convolution with ``weight`` of shape ``(in, out, *kernel)``.

    Each output meets one tap in ``stride`` along every axis.
    """
    taps = tuple(range(2, weight.ndim))
    share = stride ** len(taps)
    wide = weight.astype(np.float64)
    return Moments(x.mean @ wide.sum(axis=taps) / share, x.var @ np.square(wide).sum(axis=taps) / share)


def after_affine(x: Moments, scale: Factors, shift: Factors) -> Moments:
    """Through ``x * scale + shift``, one scale and shift a channel."""
    return Moments(x.mean * scale + shift, x.var * np.square(scale.astype(np.float64)))


def after_relu(x: Moments) -> Moments:
    """Through ``max(x, 0)``: the moments of a rectified Gaussian."""
    std = np.sqrt(x.var) + 1e-12
    ratio = x.mean / std
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + _erf(ratio / math.sqrt(2)))
    mean = x.mean * below + std * density
    square = (x.mean**2 + x.var) * below + x.mean * std * density
    return Moments(mean, np.maximum(square - mean**2, 1e-6))


def after_max_pool(x: Moments) -> Moments:
    """Through a 3x3 maximum: nine rectified Gaussian draws lie about 1.8 deviations higher and spread no less."""
    return Moments(x.mean + 1.8 * np.sqrt(x.var), x.var)


def after_mean(x: Moments, count: int) -> Moments:
    """Through the mean of ``count`` values of one channel."""
    return Moments(x.mean, x.var / count)


def after_add(x: Moments, y: Moments) -> Moments:
    """Through ``x + y``."""
    return Moments(x.mean + y.mean, x.var + y.var)


def after_concat(*parts: Moments) -> Moments:
    """Through a concatenation along the channels."""
    return Moments(np.concatenate([p.mean for p in parts]), np.concatenate([p.var for p in parts]))


def after_shuffle(x: Moments, groups: int) -> Moments:
    """Through ShuffleNet's transposition of ``groups`` and the channels within each."""
    return Moments(x.mean.reshape(groups, -1).T.ravel(), x.var.reshape(groups, -1).T.ravel())
