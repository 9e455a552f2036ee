"""Transposes sink below what can be computed either way round, until they meet others that undo them.

Models whose channels come last are imported with transposes around every operator that wants them first. This pass
moves each below the operators that follow it, whoever else reads the transposed tensor: between two convolutions of
such a model nothing is left of them, skip connections included. (The rule ``transpose_below_elementwise`` does so only
where nothing else reads it, since it looks at one operator at a time; here the whole graph is weighed.)

Stage in: any graph before fusion. Stage out: the same, if it moves fewer elements, else the graph itself.

Example: ``t = transpose(conv(x)); return conv(transpose(relu(t))), conv(transpose(add(t, …)))`` loses every transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlc.ir.graph import Attrs, Graph, Node, Value, fill_attrs
from mlc.ops import get
from mlc.ops.shape import name_before
from mlc.rewrite.rewriter import Rewriter, replay
from mlc.rewrite.rules.views import inverse_permutation, reshaped, transposed

Perm = tuple[int, ...]
_TRANSPOSE = get("transpose")


def sink_transposes(graph: Graph) -> Graph:
    """Move transposes down through the graph where that leaves less to be moved in memory."""
    before = _moved(graph)
    if not before:
        return graph
    after = replay(graph, _sink)
    return after if _moved(after) < before else graph


def _moved(graph: Graph) -> int:
    """Elements that transposes move, in all."""
    return sum(n.outputs[0].type.size for n in graph.nodes if n.op is _TRANSPOSE)


def _sink(rw: Rewriter, node: Node) -> Sequence[Value] | None:
    if node.op is _TRANSPOSE:
        inner = _view(rw, node.inputs[0])
        if inner is None:
            return None
        source, perm = inner
        return [transposed(rw, source, [perm[p] for p in node.attrs["perm"]])]
    if len(node.outputs) != 1 or not node.inputs:
        return None
    if node.op.name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"):
        return _reduction(rw, node)
    if node.op.elementwise and node.op.name != "broadcast_to":
        return _together(rw, node, lambda perm: node.attrs)
    if node.op.name in _AXES:
        return _together(rw, node, lambda perm: _AXES[node.op.name](node.attrs, inverse_permutation(perm)))
    return None


def _view(rw: Rewriter, value: Value) -> tuple[Value, Perm] | None:
    """The tensor that ``value`` is a transpose of, and how its axes lie."""
    maker = rw.maker(value)
    if maker is None or maker.op is not _TRANSPOSE:
        return None
    return maker.inputs[0], tuple(maker.attrs["perm"])


def _together(rw: Rewriter, node: Node, attrs_for: Callable[[Perm], Attrs]) -> Sequence[Value] | None:
    """An operator on the transposed tensors, computed before the transpose; its axes are told by ``attrs_for``."""
    rank = node.outputs[0].type.rank
    for candidate in dict.fromkeys(node.inputs):
        found = _view(rw, candidate)
        if found is None or candidate.type.rank != rank:
            continue
        if node.op.name == "prelu" and candidate is not node.inputs[0]:
            continue  # its slope may not be the greater operand
        perm = found[1]
        made = [_before(rw, v, perm) for v in node.inputs]
        if all(m is not None for m in made):
            inner = rw.emit(node.op, [m() for m in made if m is not None], attrs_for(perm))
            rw.call(inner, name_before(node.outputs[0].name, perm))
            maker = rw.maker(candidate)
            return [transposed(rw, inner, perm, maker.sources if maker is not None else None)]
    return None


def _before(rw: Rewriter, value: Value, perm: Perm) -> Callable[[], Value] | None:
    """``value`` as it is before a transpose by ``perm``, where that costs nothing; made only when it is called."""
    found = _view(rw, value)
    if found is not None and found[1] == perm:
        return lambda: found[0]
    if value.type.size == 1:
        return lambda: reshaped(rw, value, (1,) * len(perm) if value.type.rank else (), ())
    back = inverse_permutation(perm)
    shape = (1,) * (len(perm) - value.type.rank) + value.type.shape
    if rw.constant(value) is not None:
        return lambda: transposed(rw, reshaped(rw, value, shape, ()), back, ())
    moving = [p for p in back if shape[p] != 1]
    if moving == sorted(moving):
        return lambda: reshaped(rw, value, [shape[p] for p in back], ())
    if value.type.rank == len(perm):
        twin = rw.find(Node(_TRANSPOSE, (value,), fill_attrs(_TRANSPOSE, {"perm": back}), ()))
        if twin is not None:
            return lambda: twin.outputs[0]
    return None


def _reduction(rw: Rewriter, node: Node) -> Sequence[Value] | None:
    """A reduction of the tensor before the transpose; the axes that are left may lie right without one."""
    found = _view(rw, node.inputs[0])
    if found is None:
        return None
    source, perm = found
    if "axes" in node.attrs:
        gone = sorted(perm[a % len(perm)] for a in node.attrs["axes"])
        inner = rw.emit(node.op, [source], {**node.attrs, "axes": tuple(gone)})
    else:
        gone = [perm[node.attrs["axis"] % len(perm)]]
        inner = rw.emit(node.op, [source], {**node.attrs, "axis": gone[0]})
    left = list(perm) if node.attrs["keepdims"] else [p for p in perm if p not in gone]
    order = [sorted(left).index(p) for p in left]
    moving = [p for p in order if inner.type.shape[p] != 1]
    if moving == sorted(moving):
        return [reshaped(rw, inner, node.outputs[0].type.shape)]
    return [transposed(rw, inner, order)]


# -- attributes that speak of axes: axis ``s`` of the source is axis ``place[s]`` of its transpose ---------------------
def _by_axis(*names: str) -> Callable[[Attrs, Perm], Attrs]:
    """Attributes that hold a number an axis."""

    def moved(attrs: Attrs, place: Perm) -> dict[str, Any]:
        return {**attrs, **{name: tuple(attrs[name][p] for p in place) for name in names}}

    return moved


def _one_axis(attrs: Attrs, place: Perm) -> Attrs:
    return {**attrs, "axis": place.index(attrs["axis"] % len(place))}


def _pads(attrs: Attrs, place: Perm) -> Attrs:
    rank = len(place)
    return {**attrs, "pads": tuple(attrs["pads"][p + half] for half in (0, rank) for p in place)}


_AXES: dict[str, Callable[[Attrs, Perm], Attrs]] = {
    "concat": _one_axis,
    "pad": _pads,
    "resize_nearest": _by_axis("shape"),
    "slice": _by_axis("begin", "end", "step"),
    "tile": _by_axis("repeats"),
}
