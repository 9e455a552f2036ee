"""Layers as examples write them: parameters that are drawn, and operators on them.

Weights begin as PyTorch's do unless said otherwise: uniform in ``±1 / sqrt(fan in)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np

from mlc.define.network import Network, Tensor


def uniform(net: Network, name: str, shape: Sequence[int], fan_in: int) -> Tensor:
    """A parameter, uniform in ``±1 / sqrt(fan_in)``."""
    bound = 1.0 / sqrt(fan_in)
    return net.parameter(name, net.random.uniform(-bound, bound, shape).astype(np.float32))


def linear(x: Tensor, features: int, name: str, *, bias: bool = True) -> Tensor:
    """``x @ w + b`` over the last axis of ``x``."""
    net, inner = x.network, x.shape[-1]
    y = x @ uniform(net, f"{name}.weight", (inner, features), inner)
    return y + uniform(net, f"{name}.bias", (features,), inner) if bias else y


def conv2d(
    x: Tensor,
    channels: int,
    kernel: int,
    name: str,
    *,
    stride: int = 1,
    pad: int = 0,
    groups: int = 1,
    bias: bool = True,
) -> Tensor:
    """A convolution of ``[n, c, h, w]`` with square windows."""
    net, inner = x.network, x.shape[1] // groups
    fan_in = inner * kernel * kernel
    w = uniform(net, f"{name}.weight", (channels, inner, kernel, kernel), fan_in)
    y = x.apply("conv", w, strides=(stride,) * 2, pads=(pad,) * 4, dilations=(1, 1), groups=groups)
    return y + uniform(net, f"{name}.bias", (channels, 1, 1), fan_in) if bias else y


def batch_norm(x: Tensor, name: str) -> Tensor:
    """Normalisation of the channels of ``[n, c, …]``: by those of a batch in training, by followed ones afterwards."""
    net, c = x.network, x.shape[1]
    gamma, beta = net.parameter(f"{name}.weight", np.ones(c)), net.parameter(f"{name}.bias", np.zeros(c))
    mean, variance = net.parameter(f"{name}.mean", np.zeros(c)), net.parameter(f"{name}.variance", np.ones(c))
    return x.apply("batch_norm", gamma, beta, mean, variance)


def layer_norm(x: Tensor, name: str) -> Tensor:
    """Normalisation along the last axis."""
    net, n = x.network, x.shape[-1]
    gamma, beta = net.parameter(f"{name}.weight", np.ones(n)), net.parameter(f"{name}.bias", np.zeros(n))
    return x.apply("layer_norm", gamma, beta)


def max_pool(x: Tensor, kernel: int, stride: int = 0, pad: int = 0) -> Tensor:
    """The greatest of each window of ``[n, c, h, w]``."""
    window = (kernel,) * 2
    return x.apply("max_pool", kernel=window, strides=(stride or kernel,) * 2, pads=(pad,) * 4, dilations=(1, 1))


def avg_pool(x: Tensor, kernel: int, stride: int = 0, pad: int = 0) -> Tensor:
    """The mean of each window of ``[n, c, h, w]``; padding is not counted."""
    window = (kernel,) * 2
    return x.apply("avg_pool", kernel=window, strides=(stride or kernel,) * 2, pads=(pad,) * 4, dilations=(1, 1))


def flatten(x: Tensor) -> Tensor:
    """``[n, …]`` as ``[n, all others]``."""
    return x.reshape(x.shape[0], prod(x.shape[1:]))


def zeros(net: Network, name: str, shape: Sequence[int]) -> Tensor:
    """Zeros, which nothing learns: what a recurrence begins with."""
    return net.constant(name, np.zeros(tuple(shape), np.float32))


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return x.apply("relu")


def gelu(x: Tensor) -> Tensor:
    """``x`` times the share of a normal distribution below it."""
    return x.apply("gelu")


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return x.apply("sigmoid")


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return x.apply("tanh")


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Exponentials along an axis, divided by their sum."""
    return x.apply("softmax", axis=axis)


__all__ = [
    "avg_pool", "batch_norm", "conv2d", "flatten", "gelu", "layer_norm", "linear", "max_pool", "relu", "sigmoid",
    "softmax", "tanh", "uniform", "zeros",
]  # fmt: skip
