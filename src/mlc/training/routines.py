"""Gradients of routines, which no expression states: by hand, as operators of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlc.errors import UnsupportedError
from mlc.ir.graph import Attrs, Builder, Node, Value
from mlc.ops import get

KEPT = ("none", "add")  # reductions of scatter by which single elements go on as they are


def _zeros(g: Builder, like: Value) -> Value:
    zero = g.constant(np.zeros((1,) * like.type.rank, like.type.dtype.numpy), "zero")
    return g.add(get("broadcast_to"), [zero], {"shape": like.type.shape})[0]


def _cumsum(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    """An element goes into all sums from its own on: their sum, from the other end."""
    (d,) = received
    assert d is not None
    attrs, name = {**node.attrs, "reverse": not node.attrs["reverse"]}, f"d{node.inputs[0].name}"
    return g.add(get("cumsum"), [d], attrs, names=[name], sources=node.sources)


def _top_k(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    """What was chosen receives, the rest nothing."""
    (x,), d, places = node.inputs, received[0], node.outputs[1]
    assert d is not None
    attrs = {"axis": node.attrs["axis"], "reduction": "none"}
    return g.add(get("scatter_elements"), [_zeros(g, x), places, d], attrs, names=[f"d{x.name}"], sources=node.sources)


def _scatter_elements(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    return _scattered(g, node, received, "gather_elements", {"axis": node.attrs["axis"]})


def _scatter_nd(g: Builder, node: Node, received: Sequence[Value | None]) -> Sequence[Value | None]:
    return _scattered(g, node, received, "gather_nd", {})


def _scattered(
    g: Builder, node: Node, received: Sequence[Value | None], gather: str, attrs: Attrs
) -> Sequence[Value | None]:
    """Updates receive what became of them: where several meet and none are added, the last one stands."""
    (d,), (_, places, updates) = received, node.inputs
    assert d is not None
    reduction = node.attrs["reduction"]
    if reduction not in KEPT:
        where = f" ({', '.join(node.sources)})" if node.sources else ""
        raise UnsupportedError(f"{node.op.name}{where} has no gradient where its reduction is {reduction!r}")
    sources = node.sources
    (found,) = g.add(get(gather), [d, places], attrs, sources=sources)
    if reduction == "add":
        return [d, None, found]
    (rest,) = g.add(node.op, [d, places, _zeros(g, updates)], node.attrs, sources=sources)
    numbers = g.constant(np.arange(updates.type.size).reshape(updates.type.shape), "numbers")
    nobody = g.constant(np.full((1,) * d.type.rank, -1), "nobody")
    (free,) = g.add(get("broadcast_to"), [nobody], {"shape": d.type.shape})
    (last,) = g.add(node.op, [free, places, numbers], node.attrs, sources=sources)
    (standing,) = g.add(get(gather), [last, places], attrs, sources=sources)
    (stands,) = g.add(get("eq"), [standing, numbers], sources=sources)
    return [rest, None, g.add(get("where"), [stands, found, _zeros(g, updates)], sources=sources)[0]]


# by what the operands receive, given what the results do
ROUTINES: Mapping[str, Callable[[Builder, Node, Sequence[Value | None]], Sequence[Value | None]]] = {
    "cumsum": _cumsum,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "top_k": _top_k,
}
