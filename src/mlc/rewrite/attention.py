"""Attention found in its spelling, where it is chosen to be one kernel.

Stage in: a graph after algebraic clean-up. Stage out: the same with ``attention`` in place of two products with a
softmax between them, so that scores never leave a core.

Example: ``matmul(softmax(add(mul(matmul(q, k, transpose_b), 0.125), mask)), v)`` becomes ``attention(q, k, v, mask,
scale=0.125)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.ops.common import broadcastable_to
from mlc.rewrite.pattern import scalar_of
from mlc.rewrite.rewriter import Rewriter, replay
from mlc.rewrite.rules.views import transposed

Choose = Callable[[Node], Algorithm]


@dataclass(frozen=True)
class _Scores:
    """What softmax is taken of: ``product * scale + mask``."""

    product: Node
    scale: float
    mask: Value | None
    nodes: tuple[Node, ...]


def use_attention(graph: Graph, choose: Choose) -> Graph:
    """Replace products around a softmax.

    Args:
        graph: after algebraic clean-up.
        choose: the algorithm of an ``attention``, a node that stands in no graph.
    """

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op is not get("matmul") or node.attrs["transpose_a"]:
            return None
        softmax = _once(rw, node.inputs[0], "softmax")
        if softmax is None or softmax.attrs["axis"] % node.inputs[0].type.rank != node.inputs[0].type.rank - 1:
            return None
        scores = _scores(rw, softmax.inputs[0])
        if scores is None or scores.product.attrs["transpose_a"]:
            return None
        (q, k), v = scores.product.inputs, node.inputs[1]
        if not (q.type.shape[:-2] == k.type.shape[:-2] == v.type.shape[:-2]):
            return None
        if any(u.type.dtype is not f32 or rw.constant(u) is not None for u in (q, k, v)):
            return None
        k_upright, v_upright = scores.product.attrs["transpose_b"], not node.attrs["transpose_b"]
        types = [q.type, k.type if k_upright else _swapped(k.type), v.type if v_upright else _swapped(v.type)]
        types += [] if scores.mask is None else [scores.mask.type]
        if choose(_attention(types, scores.scale)) is not Algorithm.FUSED:
            return None
        before = rw.claim_sources([*scores.nodes, softmax])
        k, v = (u if upright else _turned(rw, u) for u, upright in ((k, k_upright), (v, v_upright)))
        operands = (q, k, v) if scores.mask is None else (q, k, v, scores.mask)
        y = rw.emit(get("attention"), operands, {"scale": scores.scale})
        rw.sources = before
        return [y]

    return replay(graph, visit)


def spelled_out(node: Node) -> Graph:
    """The inverse of :func:`use_attention`: an ``attention`` as the products and the softmax that it is found in.

    Args:
        node: an ``attention``; its inputs become those of the graph.
    """
    b = Builder("attention")
    q, k, v, *masks = (b.input(u.name, u.type) for u in node.inputs)
    (scores,) = b.add(get("matmul"), [q, k], {"transpose_b": True})
    if node.attrs["scale"] != 1:
        (scores,) = b.add(get("mul"), [scores, b.constant(np.array(node.attrs["scale"], np.float32), "scale")])
    for mask in masks:
        (scores,) = b.add(get("add"), [scores, mask])
    (weights,) = b.add(get("softmax"), [scores], {"axis": scores.type.rank - 1})
    return b.finish(b.add(get("matmul"), [weights, v]))


def _attention(types: Sequence[TensorType], scale: float) -> Node:
    op, attrs = get("attention"), {"scale": scale}
    inputs = tuple(Value(name, t) for name, t in zip(("q", "k", "v", "mask"), types, strict=False))
    return Node(op, inputs, attrs, (Value("y", op.infer(types, attrs)[0]),))


def _once(rw: Rewriter, value: Value, *names: str) -> Node | None:
    """The node that makes a value which is read once, if it is one of the named operators."""
    node = rw.maker(value)
    return node if node is not None and rw.uses(value) == 1 and any(node.op is get(n) for n in names) else None


def _scores(rw: Rewriter, value: Value) -> _Scores | None:
    """The parts of what softmax is taken of; ``None`` when it is something else."""
    shape, nodes, mask, scale = value.type.shape, [], None, 1.0
    outer = _once(rw, value, "add")
    if outer is not None:
        inner, mask = outer.inputs
        if _once(rw, inner, "matmul", "mul", "div") is None or mask.type.shape == shape != inner.type.shape:
            inner, mask = mask, inner
        if inner.type.shape != shape or not broadcastable_to(mask.type.shape, shape) or mask.type.layout is not None:
            return None
        nodes.append(outer)
        value = inner
    scaled = _once(rw, value, "mul", "div")
    if scaled is not None:
        factor = scalar_of(rw, scaled.inputs[1])
        if factor is None or scaled.inputs[0].type.shape != shape or (scaled.op is get("div") and factor == 0):
            return None
        scale = factor if scaled.op is get("mul") else 1 / factor
        nodes.append(scaled)
        value = scaled.inputs[0]
    product = _once(rw, value, "matmul")
    return None if product is None else _Scores(product, scale, mask, (product, *nodes))


def _swapped(t: TensorType) -> TensorType:
    return TensorType((*t.shape[:-2], t.shape[-1], t.shape[-2]), t.dtype)


def _turned(rw: Rewriter, value: Value) -> Value:
    rank = value.type.rank
    return transposed(rw, value, (*range(rank - 2), rank - 1, rank - 2), ())
