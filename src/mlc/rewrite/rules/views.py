"""Rules on operators that only move elements: they are composed, cancelled, or turned into cheaper ones.

A ``reshape`` costs nothing once memory is planned, so whatever can be one becomes one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.ir.graph import Node, Value
from mlc.ops import get
from mlc.ops.shape import concat_or_join
from mlc.rewrite.pattern import Match, rule
from mlc.rewrite.rewriter import Rewriter


def reshaped(rw: Rewriter, x: Value, shape: Sequence[int], sources: tuple[str, ...] | None = None) -> Value:
    """``x`` in another shape; ``x`` itself where it has it."""
    if x.type.shape == tuple(shape):
        return x
    return rw.emit(get("reshape"), (x,), {"shape": tuple(shape)}, sources=sources)


def transposed(rw: Rewriter, x: Value, perm: Sequence[int], sources: tuple[str, ...] | None = None) -> Value:
    """``x`` with permuted axes; ``x`` itself where nothing moves."""
    perm = tuple(perm)
    if perm == tuple(range(len(perm))):
        return x
    return rw.emit(get("transpose"), (x,), {"perm": perm}, sources=sources)


def inverse_permutation(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes ``perm``."""
    return tuple(int(k) for k in np.argsort(perm))


# -- reshape, transpose ---------------------------------------------------------------------------------------------
@rule("reshape_nothing", "reshape(x)")
def reshape_nothing(rw: Rewriter, m: Match) -> Value | None:
    """A reshape to the same shape."""
    return m["x"] if m["x"].type.shape == m.root.outputs[0].type.shape else None


@rule("reshape_chain", "reshape(reshape(x))")
def reshape_chain(rw: Rewriter, m: Match) -> Value:
    """Of two reshapes the last counts."""
    return reshaped(rw, m["x"], m.root.attrs["shape"])


@rule("transpose_nothing", "transpose(x)")
def transpose_nothing(rw: Rewriter, m: Match) -> Value | None:
    """A transpose that leaves every axis in place."""
    return m["x"] if tuple(m.root.attrs["perm"]) == tuple(range(m["x"].type.rank)) else None


@rule("transpose_chain", "transpose(y=transpose(x))")
def transpose_chain(rw: Rewriter, m: Match) -> Value | None:
    """Two transposes are one, or none."""
    inner = rw.maker(m["y"])
    assert inner is not None
    return transposed(rw, m["x"], [inner.attrs["perm"][p] for p in m.root.attrs["perm"]])


@rule("transpose_is_reshape", "transpose(x)")
def transpose_is_reshape(rw: Rewriter, m: Match) -> Value | None:
    """Moving only axes of extent 1 moves no element."""
    shape = m["x"].type.shape
    moved = [p for p in m.root.attrs["perm"] if shape[p] != 1]
    return reshaped(rw, m["x"], m.root.outputs[0].type.shape) if moved == sorted(moved) else None


# -- slice, concat --------------------------------------------------------------------------------------------------
def slice_ranges(node: Node) -> list[range]:
    """The positions a ``slice`` node takes along every axis."""
    a = node.attrs
    return [range(b, e, s) for b, e, s in zip(a["begin"], a["end"], a["step"], strict=True)]


def emit_slice(rw: Rewriter, x: Value, ranges: Sequence[range]) -> Value:
    """``x`` at the given positions along every axis."""
    if all(r == range(n) for r, n in zip(ranges, x.type.shape, strict=True)):
        return x
    attrs = {
        "begin": tuple(r.start for r in ranges),
        "end": tuple(r.stop for r in ranges),
        "step": tuple(r.step for r in ranges),
    }
    return rw.emit(get("slice"), (x,), attrs)


@rule("slice_nothing", "slice(x)")
def slice_nothing(rw: Rewriter, m: Match) -> Value | None:
    """A slice that takes all of every axis."""
    whole = all(r == range(n) for r, n in zip(slice_ranges(m.root), m["x"].type.shape, strict=True))
    return m["x"] if whole else None


@rule("slice_chain", "slice(y=slice(x))")
def slice_chain(rw: Rewriter, m: Match) -> Value | None:
    """A slice of a slice is one slice."""
    inner = rw.maker(m["y"])
    assert inner is not None
    pairs = zip(slice_ranges(inner), slice_ranges(m.root), strict=True)
    # indexing a range by the positions of another composes them
    ranges = [a[b.start : b.stop if b.stop >= 0 else None : b.step] if b else range(0) for a, b in pairs]
    return emit_slice(rw, m["x"], ranges)


@rule("slice_of_concat", "slice(y=concat(…))")
def slice_of_concat(rw: Rewriter, m: Match) -> Value | None:
    """A slice that stays within one operand of a concatenation is a slice of that operand."""
    joined = rw.maker(m["y"])
    assert joined is not None
    axis, ranges = joined.attrs["axis"], slice_ranges(m.root)
    taken = ranges[axis]
    if not taken:
        return None
    lo, hi = min(taken[0], taken[-1]), max(taken[0], taken[-1])
    begin = 0
    for part in joined.inputs:
        end = begin + part.type.shape[axis]
        if begin <= lo and hi < end:
            ranges[axis] = range(taken.start - begin, taken.stop - begin, taken.step)
            return emit_slice(rw, part, ranges)
        begin = end
    return None


@rule("concat_of_one", "concat(x)")
def concat_of_one(rw: Rewriter, m: Match) -> Value:
    """A concatenation of one tensor."""
    return m["x"]


@rule("concat_of_empty", "concat(x, y, …)")
def concat_of_empty(rw: Rewriter, m: Match) -> Value | None:
    """Empty operands add nothing."""
    parts = [v for v in m.root.inputs if v.type.shape[m.root.attrs["axis"]]]
    if not parts or len(parts) == len(m.root.inputs):
        return None
    return parts[0] if len(parts) == 1 else rw.emit(m.root.op, parts, m.root.attrs)


@rule("concat_chain", "concat(x, y, …)")
def concat_chain(rw: Rewriter, m: Match) -> Value | None:
    """Concatenations of concatenations along one axis are one, where nothing else reads the inner ones."""
    axis = m.root.attrs["axis"]
    parts: list[Value] = []
    for v in m.root.inputs:
        node = rw.maker(v)
        inner = node is not None and node.op is m.root.op and node.attrs["axis"] == axis and rw.uses(v) == 1
        parts += node.inputs if inner and node is not None else (v,)
    if len(parts) == len(m.root.inputs) or concat_or_join([v.type for v in parts], axis) != m.root.op.name:
        return None
    return rw.emit(m.root.op, parts, m.root.attrs)


@rule("concat_of_slices", "concat(x, y, …)")
def concat_of_slices(rw: Rewriter, m: Match) -> Value | None:
    """Neighbouring slices of one tensor put together again are one slice of it, or all of it."""
    axis = m.root.attrs["axis"]
    makers = [rw.maker(v) for v in m.root.inputs]
    nodes = [n for n in makers if n is not None and n.op.name == "slice"]
    if len(nodes) < len(makers) or any(n.inputs[0] is not nodes[0].inputs[0] for n in nodes):
        return None
    ranges = slice_ranges(nodes[0])
    if ranges[axis].step != 1 or not ranges[axis]:
        return None
    end = ranges[axis].stop
    for n in nodes[1:]:
        other = slice_ranges(n)
        taken = other[axis]
        others_agree = other[:axis] + other[axis + 1 :] == ranges[:axis] + ranges[axis + 1 :]
        if not others_agree or taken.step != 1 or taken.start != end or not taken:
            return None
        end = taken.stop
    ranges[axis] = range(ranges[axis].start, end)
    return emit_slice(rw, nodes[0].inputs[0], ranges)


@rule("gather_is_slice", "gather(x, #i)")
def gather_is_slice(rw: Rewriter, m: Match) -> Value | None:
    """Rows at known, evenly spaced positions are a slice."""
    indices, shape, axis = rw.constant(m["i"]), m["x"].type.shape, m.root.attrs["axis"]
    if indices is None or m["i"] is not m.root.inputs[1] or not 1 <= indices.size <= 1 << 16:
        return None
    axis %= len(shape)
    n = shape[axis]
    flat = indices.reshape(-1).astype(np.int64)
    at = np.where(flat < 0, flat + n, flat)
    if at.min() < 0 or at.max() >= n:
        return None
    step = int(at[1] - at[0]) if at.size > 1 else 1
    if step == 0 or np.any(np.diff(at) != step):
        return None
    ranges = [range(extent) for extent in shape]
    ranges[axis] = range(int(at[0]), int(at[-1]) + (1 if step > 0 else -1), step)
    return reshaped(rw, emit_slice(rw, m["x"], ranges), m.root.outputs[0].type.shape)


# -- pad, tile, broadcast_to ----------------------------------------------------------------------------------------
@rule("pad_nothing", "pad(x)")
def pad_nothing(rw: Rewriter, m: Match) -> Value | None:
    """A pad by nothing."""
    return None if any(m.root.attrs["pads"]) else m["x"]


@rule("pad_chain", "pad(y=pad!(x))")
def pad_chain(rw: Rewriter, m: Match) -> Value | None:
    """Two constant pads with the same value that only grow are one."""
    inner = rw.maker(m["y"])
    assert inner is not None
    a, b = inner.attrs, m.root.attrs
    constant = a["mode"] == b["mode"] == "constant" and a["value"] == b["value"]
    if not constant or min(*a["pads"], *b["pads"]) < 0:
        return None
    pads = tuple(p + q for p, q in zip(a["pads"], b["pads"], strict=True))
    return rw.emit(m.root.op, (m["x"],), {**b, "pads": pads})


@rule("transpose_before_pad", "transpose(y=pad!(x))")
def transpose_before_pad(rw: Rewriter, m: Match) -> Value:
    """A padded tensor is transposed before it grows; the window that follows can then take the padding in."""
    inner = rw.maker(m["y"])
    assert inner is not None
    perm, rank = m.root.attrs["perm"], len(m.root.attrs["perm"])
    pads = tuple(inner.attrs["pads"][p + half] for half in (0, rank) for p in perm)
    return rw.emit(inner.op, (transposed(rw, m["x"], perm),), {**inner.attrs, "pads": pads}, sources=inner.sources)


@rule("tile_is_broadcast", "tile(x)")
def tile_is_broadcast(rw: Rewriter, m: Match) -> Value | None:
    """Repeating axes of extent 1 only is broadcasting."""
    x, out = m["x"], m.root.outputs[0]
    if any(r != 1 != n for r, n in zip(m.root.attrs["repeats"], x.type.shape, strict=True)):
        return None
    return x if x.type.shape == out.type.shape else rw.emit(get("broadcast_to"), (x,), {"shape": out.type.shape})


@rule("broadcast_nothing", "broadcast_to(x)")
def broadcast_nothing(rw: Rewriter, m: Match) -> Value | None:
    """Broadcasting to the same shape."""
    return m["x"] if m["x"].type.shape == m.root.outputs[0].type.shape else None


@rule("broadcast_chain", "broadcast_to(broadcast_to(x))")
def broadcast_chain(rw: Rewriter, m: Match) -> Value:
    """Of two broadcasts the last counts."""
    return rw.emit(m.root.op, (m["x"],), m.root.attrs)


@rule("reduce_nothing", "reduce_sum|reduce_mean|reduce_max|reduce_min|reduce_prod(x)")
def reduce_nothing(rw: Rewriter, m: Match) -> Value | None:
    """A reduction over axes of extent 1 only."""
    if any(m["x"].type.shape[a] != 1 for a in m.root.attrs["axes"]):
        return None
    return reshaped(rw, m["x"], m.root.outputs[0].type.shape)


RULES = (
    reshape_nothing, reshape_chain, transpose_nothing, transpose_chain, transpose_is_reshape, slice_nothing,
    slice_chain, slice_of_concat, concat_of_one, concat_of_empty, concat_chain, concat_of_slices, gather_is_slice,
    pad_nothing, pad_chain, transpose_before_pad, tile_is_broadcast, broadcast_nothing, broadcast_chain, reduce_nothing,
)  # fmt: skip
