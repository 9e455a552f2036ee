"""Operators that only move elements: reshape, transpose, slice, concat, join, pad, tile, broadcast_to,
trilu, channel_shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Expr, IndexValue, all_of, binary, const, select, within
from mlc.ir.graph import Attrs, FusionKind, Operator
from mlc.ir.index import IndexLike, Linear, as_index, dynamic
from mlc.ir.types import TensorType, i32, i64
from mlc.ops._broadcast import check_axes, check_count
from mlc.ops.common import broadcast_load, broadcastable_to, check, check_same_dtype
from mlc.ops.registry import operator, register

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _blocks(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Least runs of axes of equal extent on both sides; axes of extent 1 belong to none."""
    left = [d for d, n in enumerate(source) if n != 1]
    right = [d for d, n in enumerate(target) if n != 1]
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        m, n = source[a[0]], target[b[0]]
        while m != n:
            if m < n:
                a.append(left.pop(0))
                m *= source[a[-1]]
            else:
                b.append(right.pop(0))
                n *= target[b[-1]]
        yield a, b


def reshape_indices(indices: Sequence[IndexLike], source: Sequence[int], target: Sequence[int]) -> list[Linear]:
    """Where in a tensor of shape ``source`` the element at ``indices`` of its reshape to ``target`` lies.

    Only the runs of axes that really change are linearised, so a reshape that splits or joins one axis leaves the
    indices of the others alone.
    """
    out = [as_index(0)] * len(source)
    if prod(source) == 0:
        return out
    for olds, news in _blocks(source, target):
        flat = as_index(0)
        for d in news:
            flat = flat * target[d] + as_index(indices[d])
        for d in reversed(olds):
            # the outermost digit is in range already, which the index form knows
            out[d] = flat % source[d]
            flat = flat // source[d]
    return out


def _infer_reshape(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("reshape", types, 1)
    (x,) = types
    shape = tuple(attrs["shape"])
    check(all(n >= 0 for n in shape) and prod(shape) == x.size, "reshape", f"{x} to {list(shape)}")
    return [TensorType(shape, x.dtype)]


@operator("reshape", FusionKind.INJECTIVE, _infer_reshape, shape=...)
def _reshape(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """The same elements in row-major order under another shape (all extents given)."""
    (x,) = inputs
    shape = tuple(attrs["shape"])
    return [te.compute(shape, lambda *i: x[tuple(reshape_indices(i, x.shape, shape))], "reshape", tag="reshape")]


def _infer_transpose(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("transpose", types, 1)
    (x,) = types
    perm = tuple(attrs["perm"])
    check(sorted(perm) == list(range(x.rank)), "transpose", f"perm {list(perm)} of a tensor of rank {x.rank}")
    return [TensorType(tuple(x.shape[p] for p in perm), x.dtype)]


@operator("transpose", FusionKind.INJECTIVE, _infer_transpose, perm=...)
def _transpose(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """Axis ``d`` of the result is axis ``perm[d]`` of the operand."""
    (x,) = inputs
    where = {p: d for d, p in enumerate(attrs["perm"])}
    shape = [x.shape[p] for p in attrs["perm"]]
    return [te.compute(shape, lambda *i: x[tuple(i[where[d]] for d in range(x.rank))], "transpose", tag="transpose")]


def _slice_shape(attrs: Attrs) -> tuple[int, ...]:
    return tuple(len(range(b, e, s)) for b, e, s in zip(attrs["begin"], attrs["end"], attrs["step"], strict=True))


def _infer_slice(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("slice", types, 1)
    (x,) = types
    for what in ("begin", "end", "step"):
        check(len(attrs[what]) == x.rank, "slice", f"{what} has {len(attrs[what])} values, the tensor {x.rank} axes")
    check(0 not in attrs["step"], "slice", "step 0")
    for n, b, e, s in zip(x.shape, attrs["begin"], attrs["end"], attrs["step"], strict=True):
        taken = range(b, e, s)
        inside = not taken or (0 <= taken[0] < n and 0 <= taken[-1] < n)
        check(inside, "slice", f"{b}:{e}:{s} leaves an axis of extent {n}")
    return [TensorType(_slice_shape(attrs), x.dtype)]


@operator("slice", FusionKind.INJECTIVE, _infer_slice, begin=..., end=..., step=...)
def _slice(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``x[begin:end:step]`` along every axis, as Python's ``range`` counts: nothing is negative from the end."""
    (x,) = inputs
    begin, step = attrs["begin"], attrs["step"]

    def element(*i: Linear) -> Expr:
        return x[tuple(b + s * k for b, s, k in zip(begin, step, i, strict=True))]

    return [te.compute(_slice_shape(attrs), element, "slice", tag="slice")]


def _infer_concat(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check(len(types) > 0, "concat", "no operands")
    check_same_dtype("concat", *types)
    axis, first = attrs["axis"], types[0]
    check_axes("concat", [axis], first.rank)
    for t in types:
        fits = t.rank == first.rank and all(
            m == n for d, (m, n) in enumerate(zip(t.shape, first.shape, strict=True)) if d != axis
        )
        check(fits, "concat", f"{first} and {t} along axis {axis}")
    total = sum(t.shape[axis] for t in types)
    return [TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)]


@operator("concat", FusionKind.INJECTIVE, _infer_concat, axis=...)
def _concat(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """The operands one after the other along ``axis``."""
    axis = attrs["axis"]
    parts: list[tuple[int, te.Tensor]] = []
    total = 0
    for t in inputs:
        if t.shape[axis]:
            parts.append((total, t))
        total += t.shape[axis]
    shape = (*inputs[0].shape[:axis], total, *inputs[0].shape[axis + 1 :])

    def element(*i: Linear) -> Expr:
        if not parts:
            return const(0, inputs[0].dtype)

        def part(begin: int, t: te.Tensor) -> Expr:
            return t[(*i[:axis], i[axis] - begin, *i[axis + 1 :])]

        value = part(*parts[-1])
        for begin, t in reversed(parts[:-1]):
            value = select(within(i[axis], begin, begin + t.shape[axis]), part(begin, t), value)
        return value

    return [te.compute(shape, element, "concat", tag="concat", attrs={"axis": axis})]


def _concatenate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    return [np.concatenate(inputs, axis=attrs["axis"])]


# The same as `concat`, but a plain copy of every operand to its place: for operands so many that choosing between them
# element by element, as the expression of `concat` does, would take too long to compile.
JOIN = register(Operator("join", FusionKind.OPAQUE, _infer_concat, evaluate=_concatenate, attrs={"axis": ...}))

_MOST_CHOICES = 64  # operands of a concat that may fuse with what is around it
_MOST_SMALL_CHOICES = 16  # the same, where they take less than a cache line each
_LINE = 64  # bytes


def concat_or_join(types: Sequence[TensorType], axis: int) -> str:
    """The operator that puts tensors one after the other along ``axis``: ``join`` where they are many."""
    most = _MOST_CHOICES
    row = sum(prod(t.shape[axis:]) * t.dtype.itemsize for t in types)
    if row < _LINE * len(types):
        most = _MOST_SMALL_CHOICES
    return "concat" if len(types) <= most else "join"


def _infer_pad(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("pad", types, 1)
    (x,) = types
    pads, mode = attrs["pads"], attrs["mode"]
    check(len(pads) == 2 * x.rank, "pad", f"{len(pads)} pads for a tensor of rank {x.rank}")
    check(mode in PAD_MODES, "pad", f"mode {mode!r}, known: {', '.join(PAD_MODES)}")
    shape = tuple(n + b + e for n, b, e in zip(x.shape, pads[: x.rank], pads[x.rank :], strict=True))
    check(all(n >= 0 for n in shape), "pad", f"pads {list(pads)} of {x} crop more than there is")
    empty = mode != "constant" and any(n == 0 < m for n, m in zip(x.shape, shape, strict=True))
    check(not empty, "pad", f"mode {mode!r} has nothing to repeat in {x}")
    return [TensorType(shape, x.dtype)]


def _mirrored(r: Linear, n: int, mode: str) -> Linear:
    """The position in ``range(n)`` that position ``r`` of the endless continuation shows."""
    lo, hi = r.bounds()
    if lo >= 0 and hi < n:
        return r
    if mode == "wrap":
        return r % n
    kind = i32 if lo >= -(2**31) and hi < 2**31 else i64
    if mode == "edge":
        return dynamic(binary("min", binary("max", IndexValue(r, kind), 0), n - 1), 0, n - 1)
    if n == 1:
        return as_index(0)
    # a triangle wave of this period: the nearer of the ways up and down
    period = 2 * (n - 1)
    up = r % period
    return dynamic(binary("min", IndexValue(up, kind), IndexValue(period - up, kind)), 0, n - 1)


@operator("pad", FusionKind.INJECTIVE, _infer_pad, pads=..., mode="constant", value=0.0)
def _pad(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """Grow every axis by ``pads`` (all begins, then all ends); a negative pad crops.

    ``constant`` fills with ``value``; ``reflect`` mirrors without repeating the edge; ``edge`` repeats it; ``wrap``
    continues periodically.
    """
    (x,) = inputs
    pads, mode = attrs["pads"], attrs["mode"]
    begins = pads[: x.rank]
    shape = [n + b + e for n, b, e in zip(x.shape, begins, pads[x.rank :], strict=True)]

    def element(*i: Linear) -> Expr:
        at = [k - b for k, b in zip(i, begins, strict=True)]
        if mode != "constant":
            return x[tuple(_mirrored(r, n, mode) for r, n in zip(at, x.shape, strict=True))]
        inside = all_of([within(r, 0, n) for r, n in zip(at, x.shape, strict=True)])
        return select(inside, x[tuple(at)], const(attrs["value"], x.dtype))

    return [te.compute(shape, element, "pad", tag="pad")]


def _infer_tile(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("tile", types, 1)
    (x,) = types
    repeats = attrs["repeats"]
    right = len(repeats) == x.rank and all(r >= 0 for r in repeats)
    check(right, "tile", f"repeats {list(repeats)} of a tensor of rank {x.rank}")
    return [TensorType(tuple(n * r for n, r in zip(x.shape, repeats, strict=True)), x.dtype)]


@operator("tile", FusionKind.INJECTIVE, _infer_tile, repeats=...)
def _tile(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """The whole tensor ``repeats[d]`` times along each axis ``d``."""
    (x,) = inputs
    shape = [n * r for n, r in zip(x.shape, attrs["repeats"], strict=True)]

    def element(*i: Linear) -> Expr:
        return x[tuple(k % n if n else k for k, n in zip(i, x.shape, strict=True))]

    return [te.compute(shape, element, "tile", tag="tile")]


def _infer_broadcast_to(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("broadcast_to", types, 1)
    (x,) = types
    shape = tuple(attrs["shape"])
    check(broadcastable_to(x.shape, shape), "broadcast_to", f"{x} does not broadcast to {list(shape)}")
    return [TensorType(shape, x.dtype)]


@operator("broadcast_to", FusionKind.INJECTIVE, _infer_broadcast_to, elementwise=True, shape=...)
def _broadcast_to(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """The operand repeated to ``shape``, numpy style."""
    (x,) = inputs
    return [te.compute(attrs["shape"], lambda *i: broadcast_load(x, i), "broadcast_to")]


def _infer_trilu(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("trilu", types, 1)
    check(types[0].rank >= 2, "trilu", f"x has rank {types[0].rank}, at least 2 is needed")
    return [types[0]]


@operator("trilu", FusionKind.INJECTIVE, _infer_trilu, upper=True, k=0)
def _trilu(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """The upper (or lower) triangle of the last two axes, from (up to) the ``k``-th diagonal; zero elsewhere."""
    (x,) = inputs
    rows, columns = x.shape[-2:]

    def element(*i: Any) -> Expr:
        diagonal = i[-1] - i[-2]
        kept = within(diagonal, attrs["k"], columns) if attrs["upper"] else within(diagonal, -rows, attrs["k"] + 1)
        return select(kept, x[i], 0)

    return [te.compute(x.shape, element, "trilu")]


def _infer_channel_shuffle(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("channel_shuffle", types, 1)
    (x,) = types
    groups, block = attrs["groups"], attrs["block"]
    fits = x.rank >= 2 and groups >= 1 and block >= 1 and x.shape[1] % (groups * block) == 0
    blocks = "" if block == 1 else f" in blocks of {block}"
    check(fits, "channel_shuffle", f"{groups} groups of the channels of {x}{blocks}")
    return [x]


@operator("channel_shuffle", FusionKind.INJECTIVE, _infer_channel_shuffle, groups=..., block=1)
def _channel_shuffle(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """Channels (axis 1), ``groups`` times ``m`` of them, in the order of ``m`` times ``groups``.

    ``out[n, c, …] = x[n, c % groups * m + c // groups, …]``, as ShuffleNet mixes what its grouped convolutions keep
    apart. With a ``block`` so many channels move together: ``c`` counts blocks.
    """
    (x,) = inputs
    groups, block = attrs["groups"], attrs["block"]
    each = x.shape[1] // (groups * block)

    def element(n: Linear, c: Linear, *at: Linear) -> Expr:
        b = c // block
        return x[(n, (b % groups * each + b // groups) * block + c % block, *at)]

    return [te.compute(x.shape, element, "shuffle", tag="shuffle")]


def name_before(name: str, perm: Sequence[int]) -> str:
    """What a tensor is called of which the transpose by ``perm`` is called ``name``: the order of axes is told by it.

    >>> name_before("relu", (0, 2, 3, 1))
    'relu.axes0312'
    """
    return f"{name}.axes{''.join(str(perm.index(k)) for k in range(len(perm)))}"
