"""The integer part of a quantised graph in numpy, written apart from the interpreter: what a device must compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlc.ir.graph import Graph, Node
from mlc.runtime import Module

Arrays = dict[str, np.ndarray]


def conv(x: np.ndarray, w: np.ndarray, attrs: Mapping[str, Any]) -> np.ndarray:
    """Rows of patches times columns of weights in doubles, which hold sums of 53 bits exactly; wrapped to 32 bits."""
    (top, left, bottom, right), (sy, sx), (dy, dx) = attrs["pads"], attrs["strides"], attrs["dilations"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    o, c, kh, kw = w.shape
    high = (padded.shape[2] - dy * (kh - 1) - 1) // sy + 1
    wide = (padded.shape[3] - dx * (kw - 1) - 1) // sx + 1
    taps = [
        padded[:, :, r * dy : r * dy + (high - 1) * sy + 1 : sy, s * dx : s * dx + (wide - 1) * sx + 1 : sx]
        for r in range(kh)
        for s in range(kw)
    ]
    patches = np.stack(taps, 2)
    # [n, g, c / g * kh * kw, pixels], [g, o / g, c / g * kh * kw]
    groups = attrs["groups"]
    by_group = patches.reshape(x.shape[0], groups, c * kh * kw, high * wide)
    sums = w.reshape(groups, o // groups, -1).astype(np.float64) @ by_group
    return sums.reshape(x.shape[0], o, high, wide).astype(np.int64).astype(np.int32)


def max_pool(x: np.ndarray, attrs: Mapping[str, Any]) -> np.ndarray:
    """The greatest of every window, int8; what lies outside is less than anything."""
    (top, left, bottom, right), (sy, sx), (dy, dx) = attrs["pads"], attrs["strides"], attrs["dilations"]
    kh, kw = attrs["kernel"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-128)
    high = (padded.shape[2] - dy * (kh - 1) - 1) // sy + 1
    wide = (padded.shape[3] - dx * (kw - 1) - 1) // sx + 1
    taps = [padded[:, :, r * dy :: sy, s * dx :: sx][:, :, :high, :wide] for r in range(kh) for s in range(kw)]
    return np.max(taps, axis=0)


def round_shift(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    wide, places = x.astype(np.int64), by.astype(np.int64)
    half = np.where(places > 0, np.int64(1) << np.maximum(places - 1, 0), 0)
    return ((wide + half) >> places).astype(x.dtype)


OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "conv": conv,
    "max_pool": max_pool,
    "add": lambda a, b, attrs: a + b,
    "shl": lambda a, b, attrs: a << b,
    "relu": lambda a, attrs: np.maximum(a, 0),
    "clip": lambda a, attrs: np.clip(a, attrs["lo"], attrs["hi"]),
    "cast": lambda a, attrs: a.astype({"i8": np.int8, "i32": np.int32}[attrs["to"]]),
    "round_shift": lambda a, b, attrs: round_shift(a, b),
    "matmul": lambda a, b, attrs: (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32),
}


def integers(graph: Graph, known: Arrays) -> Arrays:
    """All integer values that follow from those in ``known``, by name."""
    values = dict(known) | {v.name: a for v, a in graph.constants.items() if a.dtype.kind == "i"}
    for node in graph.nodes:
        (y,) = node.outputs
        if y.name in known or not _is_integer(node) or any(v.name not in values for v in node.inputs):
            continue
        values[y.name] = OPERATORS[node.op.name](*[values[v.name] for v in node.inputs], attrs=node.attrs)
        assert values[y.name].dtype == y.type.dtype.numpy
    return {name: a for name, a in values.items() if name not in known}


def _is_integer(node: Node) -> bool:
    return node.op.name in OPERATORS and all(v.type.dtype.kind == "i" for v in (*node.inputs, *node.outputs))


def check_against_integers(module: Module, graph: Graph, feeds: Arrays) -> int:
    """Traces a module, and compares every integer result that it leaves with numpy's, bit by bit.

    Returns:
        how many results the device made.
    """
    seen: Arrays = {}
    from_device = set()
    for step, results in module.trace(feeds):
        for name, array in results.items():
            plain = name.removesuffix(".packed")
            seen.setdefault(plain, array)
            if step.device is not None:
                from_device.add(plain)
    borders = [n.outputs[0].name for n in graph.nodes if n.op.name == "cast" and n.inputs[0].type.dtype.is_float]
    expected = integers(graph, {name: seen[name] for name in borders if name in seen})
    compared = [name for name in seen if name in expected]
    for name in compared:
        np.testing.assert_array_equal(seen[name], expected[name], err_msg=name)
    return len(from_device & set(compared))
