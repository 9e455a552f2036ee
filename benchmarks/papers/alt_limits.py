"""What an operator of ALT's figure 9 takes at least on a core: to multiply and add, and to move its data.

Multiply-adds are those inside of borders, over the highest speed that a core was seen at in the same session; bytes are
those of input, weights and result, each once, over the speed at which the core streams as many through a rectifier,
whose input and result together are as large. So data that fit a cache are moved at the speed of that cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

import mlc
from mlc.api.training import wrapped
from mlc.ir.graph import Builder, Graph, Node
from mlc.ir.types import TensorType, f32
from mlc.ops import get


def multiply_adds(graph: Graph) -> int:
    """Those of a graph's convolutions, transposed ones and products; what reads zeros of a border does not count.

    Other operators are left out, so that those of a network may be counted.

    >>> from benchmarks.papers.alt import convolution
    >>> multiply_adds(convolution(2, 3, 5, 3, pad=1)), 2 * 3 * (5 * 3 - 2) ** 2
    (1014, 1014)
    """
    return sum(_multiply_adds(n) for n in graph.nodes if n.op in (get("conv"), get("conv_transpose"), get("matmul")))


def _multiply_adds(node: Node) -> int:
    x, w, y = (v.type.shape for v in (*node.inputs[:2], node.outputs[0]))
    if node.op is get("matmul"):
        return prod(y) * x[-1]
    half = len(x) - 2
    pads, strides, dilations = (node.attrs[name] for name in ("pads", "strides", "dilations"))
    if node.op is get("conv"):
        pairs = [
            _pairs(n, size, taps, stride, pad, step)
            for n, size, taps, stride, pad, step in zip(
                y[2:], x[2:], w[2:], strides, pads[:half], dilations, strict=True
            )
        ]
        return x[0] * y[1] * w[1] * prod(pairs)
    pairs = [  # the same windows, from the other side
        _pairs(size, n, taps, stride, pad, step)
        for n, size, taps, stride, pad, step in zip(y[2:], x[2:], w[2:], strides, pads[:half], dilations, strict=True)
    ]
    return x[0] * w[0] * w[1] * prod(pairs)


def _pairs(windows: int, size: int, taps: int, stride: int, pad: int, step: int) -> int:
    """Taps of all windows along an axis that lie inside of it."""
    return sum(0 <= k * stride - pad + t * step < size for k in range(windows) for t in range(taps))


def bytes_of(graph: Graph) -> int:
    """Bytes of inputs, constants and results."""
    return sum(v.type.nbytes for v in (*graph.inputs, *graph.constants, *graph.outputs))


def stream_seconds(nbytes: int, target: str) -> float:
    """What a core takes to read and write so many bytes together through a rectifier, without the call itself."""
    return max(_seconds(_stream(nbytes), target) - _seconds(_stream(64), target), 1e-9)


def _stream(nbytes: int) -> Graph:
    g = Builder("stream")
    (y,) = g.add(get("relu"), [g.input("x", TensorType((max(1, nbytes // 8),), f32))], names=["y"])
    return g.finish([y], ["y"])


def _seconds(graph: Graph, target: str) -> float:
    """The least time of a call, on one thread."""
    with mlc.compile(wrapped(graph), target, threads=1, records=()).load(1) as module:
        feeds = {s.name: np.ones(s.shape, np.float32) for s in module.inputs}
        return min(module.benchmark(feeds, min_seconds=0.1)) / 1e9


def shares(row: Mapping[str, Any], seconds: Sequence[float]) -> list[float]:
    """How much of its limit each time of a row reaches.

    Args:
        row: has ``multiply_adds``, ``peak`` (operations a second), and ``stream_seconds``.
        seconds: of a call.
    """
    return [max(limits(row)) / s for s in seconds]


def limits(row: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds that a row takes at least to compute, and to move its data."""
    return 2 * row["multiply_adds"] / row["peak"], row["stream_seconds"]
