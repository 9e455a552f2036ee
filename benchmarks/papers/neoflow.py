"""What the figures of the NeoFlow paper about single operators share: a capsule convolution, and timing.

Zheng et al., "NeoFlow: A Flexible Framework for Enabling Efficient Compilation for High Performance DNN Training".
The paper's capsule convolution has 64 channels in, 256 out, images of 28 by 28, and 8 capsules. Here these are matrices
of 8 by 8: 8 kinds of them in and 32 out, by windows of 3 by 3 that move by 2. PyTorch has the rows of all matrices of a
row's number as an image of 64 channels, so one such operator is eight convolutions with the same weights.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import mlc
from benchmarks.stats import largest_error
from mlc.define.files import run_file
from mlc.define.network import Network, Tensor
from mlc.runtime.module import Module

ROUNDS, SECONDS = 12, 0.08
ROWS, KINDS_IN, KINDS_OUT, SIZE, STRIDE = 8, 8, 32, 28, 2
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Side:
    """One way to compute something.

    Args:
        result: what it computes.
        block: milliseconds of calls for so many seconds.
    """

    result: np.ndarray
    block: Callable[[float], list[float]]


def compiled(net: Network, disabled: Collection[str] = ()) -> Module:
    """A network for one thread, untuned."""
    return mlc.compile(mlc.load(net), threads=1, disabled_passes=tuple(disabled), records=[]).load(1)


def ours(module: Module, feeds: Arrays) -> Side:
    """A module: the native call alone is timed."""

    def block(seconds: float) -> list[float]:
        return [ns / 1e6 for ns in module.benchmark(feeds, warmup=2, min_seconds=seconds, max_runs=1_000_000)]

    (result,) = module.run(feeds).values()
    return Side(result, block)


def theirs(call: Callable[[], torch.Tensor]) -> Side:
    """PyTorch, on one thread."""

    def block(seconds: float) -> list[float]:
        found, end = [], time.perf_counter() + seconds
        with torch.no_grad():
            call()
            while not found or time.perf_counter() < end:
                begin = time.perf_counter()
                call()
                found.append(1e3 * (time.perf_counter() - begin))
        return found

    with torch.no_grad():
        return Side(call().numpy(), block)


def timed(sides: Mapping[str, Side]) -> dict[str, float]:
    """Median milliseconds of all sides, in turns.

    Raises:
        ValueError: they do not compute the same.
    """
    reference = next(iter(sides.values())).result
    for name, side in sides.items():
        error = largest_error({"y": side.result}, {"y": reference})
        if error > 1e-4:
            raise ValueError(f"{name} is {error:.1e} away")
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(ROUNDS):
        for name in list(sides) if index % 2 == 0 else list(reversed(sides)):
            taken[name] += sides[name].block(SECONDS)
    return {name: statistics.median(found) for name, found in taken.items()}


def capsules() -> tuple[np.ndarray, np.ndarray]:
    """Matrices ``[1, kinds in, size, size, rows, rows]`` and weights ``[kinds out, kinds in, 3, 3, rows, rows]``."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, KINDS_IN, SIZE, SIZE, ROWS, ROWS)).astype(np.float32)
    w = rng.standard_normal((KINDS_OUT, KINDS_IN, 3, 3, ROWS, ROWS)).astype(np.float32)
    return x, w / np.float32(KINDS_IN * 9 * ROWS) ** 0.5


def as_images(w: np.ndarray) -> np.ndarray:
    """Weights of capsules as those of the convolution that a row meets: ``[kinds out * j, kinds in * k, 3, 3]``."""
    return np.ascontiguousarray(w.transpose(0, 5, 1, 4, 2, 3).reshape(KINDS_OUT * ROWS, KINDS_IN * ROWS, 3, 3))


def one_expression(x: np.ndarray, w: np.ndarray) -> Network:
    """The operator as its formula says."""
    from benchmarks.training.networks import EXAMPLES

    capsule_conv: Any = run_file(EXAMPLES / "capsule_net.py").capsule_conv
    net = mlc.graph("one_expression")
    net.output("y", capsule_conv(net.input("x", x.shape), net.constant("w", w), stride=STRIDE))
    return net


def separate(x: np.ndarray, w: np.ndarray) -> Network:
    """A convolution a row, and their results side by side."""
    net = mlc.graph("eight_convolutions")
    given, weights = net.input("x", x.shape), net.constant("w", as_images(w))
    parts = []
    for row in range(ROWS):
        image = given[:, :, :, :, row].transpose(0, 1, 4, 2, 3).reshape(1, KINDS_IN * ROWS, SIZE, SIZE)
        parts.append(_matrices(_convolved(image, weights)))
    (y,) = net.apply("concat", *parts, axis=4)
    net.output("y", y)
    return net


def joined(x: np.ndarray, w: np.ndarray) -> Network:
    """The same, the images of all rows being one batch of one convolution."""
    net = mlc.graph("one_convolution")
    given, weights = net.input("x", x.shape), net.constant("w", as_images(w))
    images = given.transpose(4, 0, 1, 5, 2, 3).reshape(ROWS, KINDS_IN * ROWS, SIZE, SIZE)
    y = _convolved(images, weights)
    edge = y.shape[2]
    y = y.reshape(ROWS, KINDS_OUT, ROWS, edge, edge).transpose(1, 3, 4, 0, 2)
    net.output("y", y.reshape(1, KINDS_OUT, edge, edge, ROWS, ROWS))
    return net


def _convolved(image: Tensor, weights: Tensor) -> Tensor:
    return image.apply("conv", weights, strides=(STRIDE,) * 2, pads=(0,) * 4, dilations=(1, 1), groups=1)


def _matrices(y: Tensor) -> Tensor:
    """A row's results as ``[1, kinds out, p, q, 1, j]``."""
    edge = y.shape[2]
    return y.reshape(1, KINDS_OUT, ROWS, edge, edge).transpose(0, 1, 3, 4, 2).reshape(1, KINDS_OUT, edge, edge, 1, ROWS)


def torch_separate(x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """A convolution a row in PyTorch, and their results side by side."""
    parts = []
    for row in range(ROWS):
        image = x[:, :, :, :, row].permute(0, 1, 4, 2, 3).reshape(1, KINDS_IN * ROWS, SIZE, SIZE)
        y = F.conv2d(image, images, stride=STRIDE)
        parts.append(y.reshape(1, KINDS_OUT, ROWS, *y.shape[2:]).permute(0, 1, 3, 4, 2))
    return torch.stack(parts, 4)
