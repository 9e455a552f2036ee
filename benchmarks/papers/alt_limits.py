"""What an operator of ALT's figure 9 takes at least on a core: to multiply and add, and to move its data.

Multiply-adds are those inside of borders, over the highest speed that a core was seen at in the same session; bytes are
those of input, weights and result, each once, over the speed at which the core streams as many through a rectifier,
whose input and result together are as large. So data that fit a cache are moved at the speed of that cache.

Vectors are whole, though: where neither channels nor pixels fill them, or a border is not passed over, no kernel gets
to that limit. :func:`whole_vectors` counts the multiply-adds of the best that there can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import exp, log, prod
from typing import Any

import numpy as np

import mlc
from mlc.api.training import wrapped
from mlc.ir.graph import Builder, Graph, Node
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.ops.winograd import KERNEL, Matrix, matrices, tile_counts
from mlc.settings import Observer
from mlc.targets.cpu.record import Cpu

SHUFFLES = 4  # shuffles a vector that turn rows of pixels to vectors of channels


def multiply_adds(graph: Graph) -> int:
    """Those of a graph's convolutions, transposed ones and products; what reads zeros of a border does not count.

    Other operators are left out, so that those of a network may be counted.

    >>> from benchmarks.papers.alt import convolution
    >>> multiply_adds(convolution(2, 3, 5, 3, pad=1)), 2 * 3 * (5 * 3 - 2) ** 2
    (1014, 1014)
    """
    return sum(map(_multiply_adds, _counted(graph)))


def _counted(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op in (get("conv"), get("conv_transpose"), get("matmul"))]


def _multiply_adds(node: Node) -> int:
    x, w, y = (v.type.shape for v in (*node.inputs[:2], node.outputs[0]))
    if node.op is get("matmul"):
        return prod(y) * x[-1]
    half = len(x) - 2
    pads, strides, dilations = (node.attrs[name] for name in ("pads", "strides", "dilations"))
    if node.op is get("conv"):
        pairs = [
            taps_inside(n, size, taps, stride, pad, step)
            for n, size, taps, stride, pad, step in zip(
                y[2:], x[2:], w[2:], strides, pads[:half], dilations, strict=True
            )
        ]
        return x[0] * y[1] * w[1] * prod(pairs)
    pairs = [  # the same windows, from the other side
        taps_inside(size, n, taps, stride, pad, step)
        for n, size, taps, stride, pad, step in zip(y[2:], x[2:], w[2:], strides, pads[:half], dilations, strict=True)
    ]
    return x[0] * w[0] * w[1] * prod(pairs)


def taps_inside(windows: int, size: int, taps: int, stride: int, pad: int, step: int) -> int:
    """Taps of all windows along an axis that lie inside of it."""
    return sum(0 <= k * stride - pad + t * step < size for k in range(windows) for t in range(taps))


def multiplied_lanes(record: Cpu) -> int:
    """Lanes of the narrowest vector that a processor multiplies as fast, lane by lane, as its widest."""
    return record.lanes // 2 if record.halves else record.lanes


def whole_vectors(graph: Graph, lanes: int) -> dict[str, int]:
    """Multiply-adds of whole vectors that a graph's convolution or product needs, by what a vector holds.

    * ``channels``: those of a group's results; each tap of each pixel is computed where it lies inside of the border.
      Depthwise, what is read has to be turned from rows, in four shuffles a vector, each of which takes the place of a
      multiply-add (of 512 bits, on Zen 5: nine of these take 1.45 times as long with four shuffles beside them).
    * ``rows``: pixels of a row of a result (of a phase, where it is transposed), for each tap that any of them has.
    * ``pixels``: those of all images, which have to be copied for each tap, next to each other; a store takes as long
      as two multiply-adds. Windows of one tap are read where they lie.

    >>> from benchmarks.papers.alt import convolution
    >>> whole_vectors(convolution(2, 16, 14, 1), 16), whole_vectors(convolution(1, 3, 4, 3, pad=1), 16)["rows"]
    ({'channels': 6272, 'rows': 7168, 'pixels': 6656}, 1440)
    """
    (node,) = _counted(graph)
    x, w, y = (v.type.shape for v in (*node.inputs[:2], node.outputs[0]))
    if node.op is get("matmul"):
        return {"columns": prod(y[:-1]) * -(-y[-1] // lanes) * lanes * x[-1]}
    groups = node.attrs["groups"]
    terms, filters = x[1] // groups, y[1] // groups
    axes = [list(_phases(node, d)) for d in range(len(x) - 2)]
    inside = [sum(int(phase.sum()) for phase in axis) for axis in axes]
    # depthwise, the lanes are those of groups
    blocks = -(-y[1] // lanes) if terms == filters == 1 else groups * -(-filters // lanes)
    by_row = sum(int(p[i : i + lanes].any(axis=0).sum()) for p in axes[-1] for i in range(0, len(p), lanes))
    by_pixel, stores = 0, 0
    for phases in product(*axes):
        vectors = -(-x[0] * prod(len(p) for p in phases) // lanes) * prod(p.shape[1] for p in phases)
        by_pixel += vectors * terms * y[1]
        stores += vectors * x[1]
    turned = SHUFFLES * prod(x[2:]) if terms == filters == 1 and groups > 1 else 0
    return {
        "channels": x[0] * (terms * prod(inside) + turned) * blocks * lanes,
        "rows": x[0] * terms * y[1] * prod(inside[:-1]) * by_row * lanes,
        "pixels": (max(by_pixel, 2 * stores) if prod(w[2:]) > 1 else by_pixel) * lanes,
    }


def _phases(node: Node, d: int) -> Iterator[np.ndarray]:
    """Which taps of which positions lie inside, ``[position, tap]``, for each phase of an axis of the result."""
    x, w, y = (v.type.shape[2 + d] for v in (*node.inputs[:2], node.outputs[0]))
    stride, pad, step = (node.attrs[name][d] for name in ("strides", "pads", "dilations"))
    taps = np.arange(w) * step
    if node.op is get("conv"):
        at = np.arange(y)[:, None] * stride - pad + taps
        yield (at >= 0) & (at < x)
        return
    for phase in range(stride):
        at = np.arange(phase, y, stride)[:, None] + pad - taps[(phase + pad - taps) % stride == 0]
        yield (at >= 0) & (at < x * stride)


def bytes_of(graph: Graph) -> int:
    """Bytes of inputs, constants and results."""
    return sum(v.type.nbytes for v in (*graph.inputs, *graph.constants, *graph.outputs))


def stream_seconds(nbytes: int, target: str) -> float:
    """What a core takes to read and write so many bytes together through a rectifier, without the call itself."""
    return max(_seconds(_stream(nbytes), target) - _seconds(_stream(64), target), 1e-9)


def layer_seconds(graph: Graph, peak: float, target: str) -> float:
    """What a core takes for a network's convolutions and products if each is at its own limit.

    That is the longer of its multiply-adds, as they are written, and of a stream of its operands and its result.
    """
    work = [
        (2 * _multiply_adds(node), sum(v.type.nbytes for v in (*node.inputs[:2], node.outputs[0])))
        for node in _counted(graph)
    ]
    return _least_seconds(work, peak, target)


def kernel_seconds(package: mlc.Package, peak: float, target: str) -> float:
    """What a core takes for a compiled network if each of its kernels is at its own limit.

    That is the longer of the operations of the algorithm that it computes by (Winograd's needs fewer than those that
    are written; its transforms do not count, see :class:`Transforms`), and of a stream of what it reads and writes.
    """
    work = [
        (step.flops // times, step.bytes // times)  # which are those of all rounds of a loop
        for step, times in package.manifest.calls
        for _ in range(times)
    ]
    return _least_seconds(work, peak, target)


class Transforms(Observer):
    """Counts, as a network is compiled, the operations of Winograd's transforms; of integers none, which run faster.

    A sum of two numbers keeps the units as busy as a multiply-add, so both are two operations.
    """

    operations = 0

    def passed(self, name: str, program: object, seconds: float) -> None:
        if name == "winograd" and isinstance(program, Graph):
            self.operations = sum(map(_transforms, program.nodes))


def _transforms(node: Node) -> int:
    if node.op is not get("conv_winograd") or node.inputs[0].type.dtype is not f32:
        return 0
    m = node.attrs["tile"]
    points = m + KERNEL - 1
    inputs, _, outputs = matrices(m)
    (n, c, *before), (_, o, *after) = (v.type.shape for v in (node.inputs[0], node.outputs[0]))
    there, back = sums_along_axis(inputs), sums_along_axis([*zip(*outputs, strict=True)], turned=True)
    tiles = prod(tile_counts(after[-2:], m))
    slices, results = n * prod(before[:-2]), n * prod(after[:-2])
    return 2 * tiles * (slices * c * there * 2 * points + results * o * back * (points + m))


def sums_along_axis(rows: Matrix | Sequence[Sequence[Any]], *, turned: bool = False) -> int:
    """Sums and multiply-adds that a transform along one axis takes at least.

    The rows of opposite points, ``p`` and ``-p``, are the same but for the signs of every other number: what these
    multiply, and what the others do, is summed up once for both.

    Args:
        rows: of a matrix, as many of them for a point as it has.
        turned: whether results are sums of those rows, not each the product of one.

    >>> inputs, _, outputs = matrices(4)
    >>> sums_along_axis(inputs), sums_along_axis([*zip(*outputs)], turned=True)
    (12, 10)
    """
    pairs = [(a, b) for k, a in enumerate(rows) for b in rows[:k] if _opposite(a, b)]
    alone = [r for r in rows if not any(r in pair for pair in pairs)]
    if turned:  # a pair gives its sum and its difference, of which each result takes one
        results = range(len(rows[0]))
        terms = [sum(r[i] != 0 for r in alone) + sum(a[i] != 0 for a, _ in pairs) for i in results]
        return 2 * len(pairs) + sum(t - 1 for t in terms)
    whole = [sum(x != 0 for x in r) - 1 for r in alone]
    halves = [max(0, sum(x != 0 for x in a[k::2]) - 1) for a, _ in pairs for k in (0, 1)]
    return sum(whole) + sum(halves) + 2 * len(pairs)


def _opposite(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return any(all(x == s * y * (-1) ** k for k, (x, y) in enumerate(zip(a, b, strict=True))) for s in (1, -1))


def _least_seconds(work: Sequence[tuple[int, int]], peak: float, target: str) -> float:
    """Seconds of steps of so many operations and bytes each; bytes count to a twentieth of their number."""
    streams: dict[int, float] = {}
    total = 0.0
    for operations, moved in work:
        size = round(20 * log(max(1, moved)))  # a step is a twentieth
        if size not in streams:
            streams[size] = stream_seconds(round(exp(size / 20)), target)
        total += max(operations / peak, streams[size])
    return total


def _stream(nbytes: int) -> Graph:
    g = Builder("stream")
    (y,) = g.add(get("relu"), [g.input("x", TensorType((max(1, nbytes // 8),), f32))], names=["y"])
    return g.finish([y], ["y"])


def _seconds(graph: Graph, target: str) -> float:
    """The least time of a call, on one thread."""
    with mlc.compile(wrapped(graph), target, threads=1, records=()).load(1) as module:
        feeds = {s.name: np.ones(s.shape, np.float32) for s in module.inputs}
        return min(module.benchmark(feeds, min_seconds=0.1)) / 1e9


def shares(row: Mapping[str, Any], seconds: Sequence[float], *, whole: bool = False) -> list[float]:
    """How much of its limit each time of a row reaches.

    Args:
        row: has ``multiply_adds``, ``peak`` (operations a second), ``stream_seconds``, and ``whole`` (multiply-adds of
            whole vectors, by what these hold), unless the target has no vectors.
        seconds: of a call.
        whole: of the limit in whole vectors.
    """
    limit = whole_limit(row)[0] if whole else max(limits(row))
    return [limit / s for s in seconds]


def limits(row: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds that a row takes at least to compute, and to move its data."""
    return 2 * row["multiply_adds"] / row["peak"], row["stream_seconds"]


def whole_limit(row: Mapping[str, Any]) -> tuple[float, str]:
    """Seconds that a row takes at least in whole vectors, and what these hold; ``memory`` where that takes longer."""
    ways = row.get("whole") or {"numbers": row["multiply_adds"]}
    least = min(ways, key=lambda way: int(ways[way]))
    return max((2 * ways[least] / row["peak"], least), (row["stream_seconds"], "memory"))
