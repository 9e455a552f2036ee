"""Graphs with sums in half precision, in numpy: a product is added to its sum with one rounding, as by ``fmla``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp.graph import run_node
from mlc.settings import Observer

Arrays = Mapping[str, np.ndarray]


class SumsInHalf(Observer):
    """Keeps the graph of a compilation as it is after the pass that gives sums of products to half precision."""

    graph: Graph

    def passed(self, name: str, program: object, seconds: float) -> None:
        if name == "sums":
            assert isinstance(program, Graph)
            self.graph = program

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Outputs by name. Terms are added in the order of channels and then of taps; kernels have others."""
        env: dict[Value, np.ndarray] = dict(self.graph.constants)
        env |= {v: inputs[v.name] for v in self.graph.inputs}
        for node in self.graph.nodes:
            found = {"conv_half": _conv, "matmul_half": _matmul}.get(node.op.name, run_node)(
                node, [env[v] for v in node.inputs]
            )
            env.update(zip(node.outputs, found, strict=True))
        return {name: env[v] for name, v in zip(self.graph.output_names, self.graph.outputs, strict=True)}


def _fma(sums: Any, a: Any, b: Any) -> Any:
    """A product of halves is exact in f64, and so is nearly every sum of one and a half."""
    return (sums.astype(np.float64) + a.astype(np.float64) * b.astype(np.float64)).astype(np.float16)


def _matmul(node: Node, operands: list[np.ndarray]) -> list[np.ndarray]:
    a, b = operands
    a = np.swapaxes(a, -1, -2) if node.attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if node.attrs["transpose_b"] else b
    sums = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float16)
    for k in range(a.shape[-1]):
        sums = _fma(sums, a[..., :, k, None], b[..., None, k, :])
    return [sums]


def _conv(node: Node, operands: list[np.ndarray]) -> list[np.ndarray]:
    x, w = operands
    groups, rank = node.attrs["groups"], w.ndim - 2
    strides, pads, dilations = (node.attrs[name] for name in ("strides", "pads", "dilations"))
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    space = node.outputs[0].type.shape[2:]
    x = x.reshape(x.shape[0], groups, w.shape[1], *x.shape[2:])
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    sums = np.zeros((x.shape[0], groups, w.shape[1], *space), np.float16)
    for c, *taps in product(range(w.shape[2]), *map(range, w.shape[3:])):
        window = [
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(taps, dilations, space, strides, strict=True)
        ]
        factor = w[(slice(None), slice(None), c, *taps)].reshape(1, groups, -1, *[1] * rank)
        sums = _fma(sums, x[(slice(None), slice(None), c, *window)][:, :, None], factor)
    return [sums.reshape(node.outputs[0].type.shape)]
