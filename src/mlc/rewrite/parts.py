"""Values that are a part of another value's memory: what a concat joins, and what a slice takes out.

Where all dimensions outside of the one that is joined have one element, an operand of a concat is one contiguous part
of the result. Blocks of channels are no obstacle as long as they are whole. Then nothing has to be copied: whoever
makes the operand writes it into the result. A slice under the same condition is a part of its operand already.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Load, substitute_vars
from mlc.ir.graph import FusionKind, Graph, Node, Value, express
from mlc.ir.index import ZERO, Linear, Var, as_index
from mlc.ir.types import TensorType
from mlc.ops.registry import is_core
from mlc.rewrite.arena import ALIGNMENT
from mlc.rewrite.group import body_of, is_alias, is_group


def joined(graph: Graph) -> dict[Node, tuple[int, ...]]:
    """Concats that need not run, with the place (in bytes) of each operand in the result.

    Every operand is computed by a step, lies in no other such concat, and neither it nor the result is an input,
    constant or output of the model.
    """
    storage = _storage(graph)
    taken = {storage.get(v, v) for v in (*graph.inputs, *graph.constants, *graph.outputs)}
    taken.update(v for node in sliced(graph) for v in node.outputs)  # no step makes them
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


def sliced(graph: Graph) -> dict[Node, int]:
    """Slices that need not run, with the place (in bytes) of the result in the operand.

    Neither operand nor result is an input, constant or output of the model.
    """
    storage = _storage(graph)
    taken = {storage.get(v, v) for v in (*graph.inputs, *graph.constants, *graph.outputs)}
    found: dict[Node, int] = {}
    for node in graph.nodes:
        if is_alias(node) or not taken.isdisjoint(storage.get(v, v) for v in (*node.inputs, *node.outputs)):
            continue
        place = _slice_place(node)
        if place is not None:
            found[node] = place
    return found


def _storage(graph: Graph) -> dict[Value, Value]:
    """Of aliases: whose memory they are."""
    storage: dict[Value, Value] = {}
    for node in graph.nodes:
        if is_alias(node):
            storage[node.outputs[0]] = storage.get(node.inputs[0], node.inputs[0])
    return storage


def _slice_place(node: Node) -> int | None:
    """Where in its only operand a group's result lies, if that is so whatever it is made of; views count as slices."""
    if (
        not is_group(node)
        or node.op.kind is not FusionKind.INJECTIVE
        or (len(node.inputs), len(node.outputs)) != (1, 1)
    ):
        return None
    if not any(n.op.name == "slice" and is_core(n.op) for n in body_of(node).nodes):
        return None
    (x,), (y,) = node.inputs, node.outputs
    (result,) = express(node, [te.placeholder(x.type.shape, x.type.dtype, x.name)])
    own = [as_index(Var(f"i{d}", 0, n - 1)) for d, n in enumerate(y.type.shape)]
    element = result[tuple(own)]
    while (op := element.source.op) is not None:
        body = substitute_vars(op.bodies[element.source.which], dict(zip(op.axes, element.indices, strict=True)))
        if not isinstance(body, Load):
            return None
        element = body
    return _distance(x.type, element.indices, y.type, own, y.type.dtype.itemsize)


def _concat_axis(node: Node) -> int | None:
    """Along which axis a node puts its operands one after the other, if it does that and nothing else."""
    first = node
    if is_group(node):
        body = body_of(node)
        first = body.nodes[0]
        if len(body.nodes) > 1 or tuple(first.inputs) != tuple(body.inputs):
            return None
    if first.op.name not in ("concat", "join") or not is_core(first.op):
        return None
    axis: int = first.attrs["axis"]
    return axis


def _concat_places(node: Node) -> tuple[int, ...] | None:
    axis = _concat_axis(node)
    if axis is None:
        return None
    (result,) = node.outputs
    begin, end = 0, 0
    places = []
    for v in node.inputs:
        at = [as_index(Var(f"i{d}", 0, n - 1)) for d, n in enumerate(v.type.shape)]
        inside = [*at[:axis], at[axis] + begin, *at[axis + 1 :]]
        place = _distance(result.type, inside, v.type, at, ALIGNMENT)
        if place is None or place < end:  # what is padded must not reach into its neighbour
            return None
        begin, end = begin + v.type.shape[axis], place + v.type.nbytes
        places.append(place)
    return tuple(places) if end <= result.type.nbytes else None


def _distance(
    outer: TensorType, at: Sequence[Linear], inner: TensorType, own: Sequence[Linear], grid: int
) -> int | None:
    """Bytes from where ``outer`` begins to where ``inner`` does, when its elements ``own`` lie at ``at`` of ``outer``.

    ``None`` where they do not lie alike, or not at a multiple of ``grid``.
    """
    if inner.nbytes == 0:
        return None
    elements = _offset(outer, at) - _offset(inner, own)
    place = elements.const * outer.dtype.itemsize
    fits = not elements.terms and place >= 0 and place % grid == 0 and place + inner.nbytes <= outer.nbytes
    return place if fits else None


def _offset(t: TensorType, at: Sequence[Linear]) -> Linear:
    """Where an element lies in memory."""
    total = ZERO
    for ix, n in zip(t.layout.forward(at) if t.layout is not None else at, t.physical_shape, strict=True):
        total = total * n + ix
    return total
