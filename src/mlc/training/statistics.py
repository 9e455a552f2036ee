"""Means and variances of batch normalisation: of each batch while a model learns, and followed for when it has.

Ioffe and Szegedy, "Batch Normalization", 2015, algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlc.define.expressions import add_expressions
from mlc.ir import te
from mlc.ir.expr import Expr
from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.index import Linear, as_index
from mlc.ir.types import DType
from mlc.ops import get
from mlc.ops.registry import is_core

MEAN, VARIANCE = 3, 4  # which operands of a batch norm
SHARE = 0.1  # of a batch in what is followed


def measured(graph: Graph, dtype: DType) -> dict[Value, np.ndarray]:
    """Constants of a type that are means or variances of batch norms, which are measured and not learned."""
    places = [v for node in graph.nodes if is_batch_norm(node) for v in node.inputs[MEAN:]]
    return {v: graph.constants[v] for v in dict.fromkeys(places) if v in graph.constants and v.type.dtype is dtype}


def is_batch_norm(node: Node) -> bool:
    """Whether a node normalises by given means and variances."""
    return node.op.name == "batch_norm" and is_core(node.op)


@dataclass(frozen=True)
class Statistics:
    """Of each channel of ``[n, c, …]``, over a batch.

    Args:
        mean, variance: what they are.
        centre: the mean once more, from which the variance is taken. What it receives back from there is a multiple of
            the sum of all distances from the mean, which is nothing, so gradients need not go through it.
    """

    mean: Value
    variance: Value
    centre: Value


def add_statistics(g: Builder, data: Value, sources: tuple[str, ...]) -> Statistics:
    """Appends the mean and the variance of each channel of ``[n, c, …]``, over a batch."""
    x = te.placeholder(data.type.shape, data.type.dtype, "x")
    over = tuple(te.reduce_axis(n, f"r{k}") for k, n in enumerate((x.shape[0], *x.shape[2:])))
    share = 1.0 / _count(data)

    def element(c: Linear) -> Expr:
        return x[(over[0], c, *map(as_index, over[1:]))]

    channels = x.shape[1:2]
    total = te.compute(channels, lambda c: te.sum_of(element(c), over), "total", tag="sum")
    (mean,) = add_expressions(g, [te.compute(channels, lambda c: total[c] * share, "mean")], {id(x): data}, sources)
    (centre,) = g.add(get("identity"), [mean], names=["centre"], sources=sources)
    m = te.placeholder(channels, x.dtype, "centre")
    squares = te.compute(
        channels, lambda c: te.sum_of((element(c) - m[c]) * (element(c) - m[c]), over), "squares", tag="sum"
    )
    variance = te.compute(channels, lambda c: squares[c] * share, "variance")
    (spread,) = add_expressions(g, [variance], {id(x): data, id(m): centre}, sources)
    return Statistics(mean, spread, centre)


def add_followed(g: Builder, kept: Mapping[int, Value], found: Mapping[int, Value], data: Value) -> dict[int, Value]:
    """Appends what is kept of means and variances (by their places as operands) after a batch.

    Variances are followed as those of what the batch is a sample of.
    """
    count = _count(data)
    result = {}
    for place, old in kept.items():
        was, now = (te.placeholder(old.type.shape, old.type.dtype, name) for name in ("was", "now"))
        factor = SHARE * (count / max(1, count - 1) if place == VARIANCE else 1.0)
        followed = te.compute(
            was.shape, lambda c, was=was, now=now, k=factor: was[c] * (1.0 - SHARE) + now[c] * k, "kept"
        )
        (result[place],) = add_expressions(g, [followed], {id(was): old, id(now): found[place]})
    return result


def _count(data: Value) -> int:
    return data.type.size // data.type.shape[1]
