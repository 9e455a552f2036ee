"""Values that are made as a part of another value's memory: what a concat joins.

Where all dimensions outside of the one that is joined have one element, an operand of a concat is one contiguous part
of the result. Blocks of channels are no obstacle as long as they are whole. Then nothing has to be copied: whoever
makes the operand writes it into the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.index import ZERO, Linear, Var, as_index
from mlc.ir.types import TensorType
from mlc.rewrite.arena import ALIGNMENT
from mlc.rewrite.group import body_of, is_alias, is_group
from mlc.rewrite.keys import is_core


def joined(graph: Graph) -> dict[Node, tuple[int, ...]]:
    """Concats that need not run, with the place (in bytes) of each operand in the result.

    Every operand is computed by a step, lies in no other such concat, and neither it nor the result is an input,
    constant or output of the model.
    """
    storage: dict[Value, Value] = {}  # of aliases: whose memory they are
    for node in graph.nodes:
        if is_alias(node):
            storage[node.outputs[0]] = storage.get(node.inputs[0], node.inputs[0])
    taken = {storage.get(v, v) for v in (*graph.inputs, *graph.constants, *graph.outputs)}
    found: dict[Node, tuple[int, ...]] = {}
    for node in graph.nodes:
        places = _concat_places(node)
        if places is None:
            continue
        own = [storage.get(v, v) for v in node.inputs]
        if node.outputs[0] in taken or len(set(own)) < len(own) or not taken.isdisjoint(own):
            continue
        taken.update(own)
        found[node] = places
    return found


def _concat_places(node: Node) -> tuple[int, ...] | None:
    if not is_group(node):
        return None
    body = body_of(node)
    first = body.nodes[0]
    if (
        len(body.nodes) > 1
        or first.op.name != "concat"
        or not is_core(first.op)
        or tuple(first.inputs) != tuple(body.inputs)
    ):
        return None
    (result,) = node.outputs
    axis, begin, end = first.attrs["axis"], 0, 0
    places = []
    for v in node.inputs:
        at = [as_index(Var(f"i{d}", 0, n - 1)) for d, n in enumerate(v.type.shape)]
        inside = [*at[:axis], at[axis] + begin, *at[axis + 1 :]]
        place = _distance(result.type, inside, v.type, at)
        if place is None or place < end:  # what is padded must not reach into its neighbour
            return None
        begin, end = begin + v.type.shape[axis], place + v.type.nbytes
        places.append(place)
    return tuple(places) if end <= result.type.nbytes else None


def _distance(outer: TensorType, at: Sequence[Linear], inner: TensorType, own: Sequence[Linear]) -> int | None:
    """Bytes from where ``outer`` begins to where ``inner`` does, when its elements ``own`` lie at ``at`` of ``outer``.

    ``None`` where they do not lie alike, or off the grid of alignment.
    """
    if inner.nbytes == 0:
        return None
    elements = _offset(outer, at) - _offset(inner, own)
    place = elements.const * outer.dtype.itemsize
    fits = not elements.terms and place >= 0 and place % ALIGNMENT == 0 and place + inner.nbytes <= outer.nbytes
    return place if fits else None


def _offset(t: TensorType, at: Sequence[Linear]) -> Linear:
    """Where an element lies in memory."""
    total = ZERO
    for ix, n in zip(t.layout.forward(at) if t.layout is not None else at, t.physical_shape, strict=True):
        total = total * n + ix
    return total
