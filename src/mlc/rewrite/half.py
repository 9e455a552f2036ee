"""Half precision: operators of a model in f32 compute in f16, with casts at the borders.

In: a graph in f32. Out: the same, in which operators named in :data:`HALVES` read and write f16, whose sums are kept in
f32 (:func:`mlc.ops.common.accumulator`). All else stays in f32: what sums up or spreads exponentials (softmax, norms,
means), what only the host knows, and what was asked to stay. Inputs and results of the model keep their types::

    softmax(matmul(x, w)) → softmax(f32(matmul(f16(x), f16(w))))

Where that is asked for as well, sums are f16, too (:func:`sum_in_half`): ``matmul_half`` and ``conv_half`` take the
places of the two in which nearly all products are.

In the rounds of a recurrence only products are taken in it (:func:`use_half_in_rounds`). Steps are short, so what
counts there is that a product and its gates are one kernel, without casts between; what is carried stays precise.

Constants are rounded here. An operator with one that f16 cannot hold (beyond its range, or so small that nothing is
left of it) stays in f32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from math import prod

import numpy as np

from mlc.errors import UsageError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import f16, f32
from mlc.ops import get
from mlc.rewrite.recurrence import graphs
from mlc.rewrite.rewriter import Rewriter, replay

_PRODUCTS = ("matmul", "conv", "conv_transpose", "einsum")
_ELEMENTWISE = """
abs add batch_norm clip div elu gelu hard_sigmoid hard_swish leaky_relu max min mish mul neg prelu relu selu sigmoid sub
swish tanh where
"""
_MOVES = """
avg_pool broadcast_to channel_shuffle concat gather identity max_pool pad reshape resize_nearest slice tile transpose
"""
HALVES = frozenset((*_PRODUCTS, *_ELEMENTWISE.split(), *_MOVES.split()))
"""Operators that compute in f16."""
FEW = 16
"""Rows from which on a product is worth two operands in f16: those of a tile of Tensor Cores."""


def use_half(graph: Graph, keep: Collection[str] = ()) -> Graph:
    """Compute in f16.

    Args:
        graph: operators, not groups.
        keep: names of operators, or of nodes of the model, that stay in f32 besides those that do anyway.
    Raises:
        UsageError: the graph has nothing of such a name.
    """
    known = {name for g, _ in graphs(graph) for n in g.nodes for name in (n.op.name, *n.sources)}
    for name in keep:
        if name not in known:
            near = get_close_matches(name, sorted(known), n=3)
            raise UsageError(
                f"there is neither an operator nor a node {name!r} to keep in float32",
                hint=f"did you mean {', '.join(near)}?" if near else "mlc inspect --graph shows the names",
            )
    return replay(graph, _Half(frozenset(keep), HALVES).visit)


def use_half_in_rounds(body: Graph, keep: Collection[str] = ()) -> Graph:
    """Take products of a recurrence's rounds in f16, and leave all else, and what is carried, in f32.

    Products of few rows by constants, which reading the weights takes the time of, get these in f16 and widen them as
    they read them; others get both operands in f16.

    Args:
        body: what a round does; operators, not groups.
        keep: as of :func:`use_half`, which has checked it.
    """
    half = _Half(frozenset(keep), frozenset(_PRODUCTS))

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        return half.by_small_weights(rw, node) or half.visit(rw, node)

    return replay(body, visit)


_IN_HALF = {"matmul": "matmul_half", "conv": "conv_half"}


def sum_in_half(graph: Graph) -> Graph:
    """Keep the sums of products of f16 in f16."""

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op.name not in _IN_HALF or any(v.type.dtype is not f16 for v in node.inputs):
            return None
        return [rw.emit(get(_IN_HALF[node.op.name]), node.inputs, node.attrs)]

    return replay(graph, visit)


class _Half:
    def __init__(self, keep: frozenset[str], operators: frozenset[str]) -> None:
        self.keep = keep
        self.operators = operators
        self.constants: dict[Value, Value | None] = {}

    def visit(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        if node.op.name not in self.operators or self.keep & {node.op.name, *node.sources} or len(node.outputs) != 1:
            return None
        (out,) = node.outputs
        if out.type.dtype is not f32 or not any(v.type.dtype is f32 for v in node.inputs):
            return None
        inputs = []
        for v in node.inputs:
            small = self._small(rw, v) if v.type.dtype is f32 else v
            if small is None:
                return None
            inputs.append(small)
        return [rw.emit(get("cast"), [rw.emit(node.op, inputs, node.attrs)], {"to": "f32"})]

    def by_small_weights(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        """A product of few rows in f32 by weights in f16; ``None`` for all else."""
        if node.op is not get("matmul") or self.keep & {node.op.name, *node.sources}:
            return None
        x, w = node.inputs
        few = w.type.rank == 2 and prod(node.outputs[0].type.shape[:-1]) < FEW
        if not few or x.type.dtype is not f32 or w.type.dtype is not f32 or rw.constant(w) is None:
            return None
        small = self._small(rw, w)
        return None if small is None else [rw.emit(node.op, [x, small], node.attrs)]

    def _small(self, rw: Rewriter, v: Value) -> Value | None:
        """A value in f16; ``None`` for a constant that is none there."""
        maker = rw.maker(v)
        if maker is not None and maker.op is get("cast") and maker.inputs[0].type.dtype is f16:
            return maker.inputs[0]
        array = rw.constant(v)
        if array is None:
            return rw.emit(get("cast"), [v], {"to": "f16"})
        if v not in self.constants:
            self.constants[v] = rw.new_constant(array.astype(np.float16), f"{v.name}.f16") if fits(array) else None
        return self.constants[v]


def fits(array: np.ndarray) -> bool:
    """Whether numbers stay in f16 what they are: none becomes infinite, and of the greatest all bits are left.

    >>> fits(np.float32([1e-9, 1.0])), fits(np.float32([1e-9])), fits(np.float32([1e5]))
    (True, False, False)
    """
    finite = np.abs(array[np.isfinite(array)])
    greatest = finite.max(initial=0)
    return bool(greatest == 0 or float(np.finfo(np.float16).tiny) <= greatest <= float(np.finfo(np.float16).max))
