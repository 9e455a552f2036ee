"""Operators that only move elements: reshape and its kin, slices, pads, tiles, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import ints, normal_axes, one_int
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import concat, need_rank, normal_axis, reshape, slice_axis, split, transpose
from mlc.frontend.onnx.axes import ints_of
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value


@converter("Reshape", since=5)
def reshape_to(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, wanted = inputs[0], ints(ctx, inputs[1], "the shape")
    copied = [] if node.attr("allowzero", 0) else [d for d, n in enumerate(wanted) if n == 0]
    if copied and copied[-1] >= x.type.rank:
        raise ImportModelError(f"{list(wanted)} copies an extent that {x.type} does not have")
    if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
        raise ImportModelError(f"{list(wanted)} is no shape")
    # extents that are copied cancel out, so that one of them may be zero
    left = prod(n for d, n in enumerate(x.type.shape) if d not in copied)
    known = prod(n for d, n in enumerate(wanted) if d not in copied and n != -1)
    inferred = left // known if known else -1
    shape = [x.type.shape[d] if d in copied else inferred if n == -1 else n for d, n in enumerate(wanted)]
    if -1 in shape or known * (inferred if -1 in wanted else 1) != left:
        raise ImportModelError(f"{x.type} has {x.type.size} elements, they do not fit {list(wanted)}")
    return [reshape(ctx, x, shape)]


@converter("Flatten")
def flatten(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    axis = node.attr("axis", 1)
    if not -x.type.rank <= axis <= x.type.rank:
        raise ImportModelError(f"axis {axis} of a tensor of rank {x.type.rank}")
    if axis < 0:
        axis += x.type.rank
    return [reshape(ctx, x, (prod(x.type.shape[:axis]), prod(x.type.shape[axis:])))]


@converter("Transpose")
def transpose_axes(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    return [transpose(ctx, x, node.attr("perm") or tuple(reversed(range(x.type.rank))))]


@converter("Squeeze")
def squeeze(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    shape = x.type.shape
    given = ints_of(ctx, node, inputs, "axes", 1)
    axes = tuple(d for d, n in enumerate(shape) if n == 1) if given is None else normal_axes(given, len(shape))
    for a in axes:
        if shape[a] != 1:
            raise ImportModelError(f"axis {a} of {x.type} is not of extent 1")
    return [reshape(ctx, x, [n for d, n in enumerate(shape) if d not in axes])]


@converter("Unsqueeze")
def unsqueeze(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    given = ints_of(ctx, node, inputs, "axes", 1) or ()
    rank = x.type.rank + len(given)
    axes = normal_axes(given, rank)
    rest = iter(x.type.shape)
    return [reshape(ctx, x, [1 if d in axes else next(rest) for d in range(rank)])]


@converter("Concat", since=4)
def concat_operands(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [concat(ctx, inputs, normal_axis(node.attr("axis"), inputs[0].type.rank))]


@converter("Split", since=2)
def split_axis(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    axis = normal_axis(node.attr("axis", 0), x.type.rank)
    extent, count = x.type.shape[axis], node.attr("num_outputs", len(node.outputs))
    sizes = ints_of(ctx, node, inputs, "split", 1)
    if sizes is None:
        if count != len(node.outputs):
            raise ImportModelError(f"num_outputs is {count}, the node has {len(node.outputs)} outputs")
        if count < 1 or (node.opset < 18 and extent % count):
            raise ImportModelError(f"an axis of extent {extent} does not split into {count} equal parts")
        part = -(-extent // count)
        sizes = tuple(max(0, min(part, extent - k * part)) for k in range(count))
    if sum(sizes) != extent or len(sizes) != len(node.outputs) or min(sizes) < 0:
        raise ImportModelError(f"an axis of extent {extent} does not split into {list(sizes)}")
    return split(ctx, x, axis, sizes)


def _slice_range(start: int, end: int, step: int, extent: int) -> tuple[int, int]:
    """Begin and end of a slice with everything clamped as ONNX says; the last step never leaves the axis."""
    if step == 0:
        raise ImportModelError("a slice of step 0")
    start += extent if start < 0 else 0
    end += extent if end < 0 else 0
    if step > 0:
        return min(max(start, 0), extent), min(max(end, 0), extent)
    return min(max(start, 0), extent - 1), min(max(end, -1), extent - 1)


@converter("Slice")
def slice_axes(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    starts, ends = (ints_of(ctx, node, inputs, name, k) or () for k, name in ((1, "starts"), (2, "ends")))
    axes = ints_of(ctx, node, inputs, "axes", 3)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = ints_of(ctx, node, inputs, "steps", 4) or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ImportModelError(
            f"starts, ends, axes, steps have {len(starts)}, {len(ends)}, {len(axes)}, {len(steps)} values"
        )
    begin, end, step = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
    for a, first, last, stride in zip(normal_axes(axes, x.type.rank), starts, ends, steps, strict=True):
        begin[a], end[a] = _slice_range(first, last, stride, x.type.shape[a])
        step[a] = stride
    if not any(begin) and end == list(x.type.shape) and all(s == 1 for s in step):
        return [x]
    return [ctx.add("slice", [x], begin=tuple(begin), end=tuple(end), step=tuple(step))]


def _padded(ctx: Context, x: Value, pads: Sequence[int], mode: str, value: float | int | bool) -> Value:
    return ctx.add("pad", [x], pads=tuple(pads), mode=mode, value=value) if any(pads) else x


@converter("Pad", since=2)
def pad(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    pads = ints_of(ctx, node, inputs, "pads", 1) or ()
    value: float | int | bool = node.attr("value", 0.0)
    if node.opset >= 11 and inputs[2] is not None:
        fill = ctx.require_const(inputs[2], "constant_value")
        if fill.size != 1:
            raise ImportModelError(f"constant_value has {fill.size} elements, one is needed")
        value = fill.reshape(-1)[0].item()
    rank = x.type.rank
    axes = normal_axes(ints(ctx, inputs[3], "axes"), rank) if len(inputs) > 3 and inputs[3] else tuple(range(rank))
    if len(pads) != 2 * len(axes):
        raise ImportModelError(f"{len(pads)} pads for {len(axes)} axes")
    full = [0] * (2 * rank)
    for k, a in enumerate(axes):
        full[a], full[rank + a] = pads[k], pads[len(axes) + k]
    return [_padded(ctx, x, full, node.attr("mode", "constant"), value)]


@converter("CenterCropPad", since=18)
def center_crop_pad(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, wanted = inputs[0], ints(ctx, inputs[1], "the shape")
    axes = normal_axes(node.attr("axes", range(x.type.rank)), x.type.rank)
    if len(wanted) != len(axes) or min(wanted, default=0) < 0:
        raise ImportModelError(f"the shape {list(wanted)} for {len(axes)} axes")
    pads = [0] * (2 * x.type.rank)
    for a, target in zip(axes, wanted, strict=True):
        extent = x.type.shape[a]
        before = abs(extent - target) // 2
        if extent > target:
            x = slice_axis(ctx, x, a, before, before + target)
        else:
            pads[a], pads[len(pads) // 2 + a] = before, target - extent - before
    return [_padded(ctx, x, pads, "constant", 0)]


@converter("Expand", since=8)
def expand(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, wanted = inputs[0], ints(ctx, inputs[1], "the shape")
    rank = max(len(wanted), x.type.rank)
    own, other = ((1,) * (rank - len(s)) + tuple(s) for s in (x.type.shape, wanted))
    if min(other, default=0) < 0 or any(m != n and 1 not in (m, n) for m, n in zip(own, other, strict=True)):
        raise ImportModelError(f"{x.type} does not broadcast to {list(wanted)}")
    shape = tuple(n if m == 1 else m for m, n in zip(own, other, strict=True))
    return [x if shape == x.type.shape else ctx.add("broadcast_to", [x], shape=shape)]


@converter("Tile", since=6)
def tile(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, repeats = inputs[0], ints(ctx, inputs[1], "repeats")
    return [x if repeats == (1,) * x.type.rank else ctx.add("tile", [x], repeats=repeats)]


# order of the axes [n, c, block row, block column, h, w] that the depth is made of, outermost first
_DEPTH_ORDERS = {"DCR": ("r", "s", "c"), "CRD": ("c", "r", "s")}


def _depth_order(node: OnnxNode) -> tuple[str, ...]:
    mode = node.attr("mode", "DCR")
    if mode not in _DEPTH_ORDERS:
        raise ImportModelError(f"mode {mode!r}, DCR or CRD is needed")
    return _DEPTH_ORDERS[mode]


@converter("DepthToSpace", "SpaceToDepth")
def depth_space(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    b, order = node.attr("blocksize"), _depth_order(node)
    need_rank(x, "the input", 4, 4)
    n, c, h, w = x.type.shape
    to_space = node.op_type == "DepthToSpace"
    if b < 1 or (c % (b * b) if to_space else h % b or w % b):
        raise ImportModelError(f"{x.type} does not divide into blocks of {b}")
    if not to_space:
        extents = {"c": c, "r": b, "s": b}
        inside = reshape(ctx, x, (n, c, h // b, b, w // b, b))
        where = {"n": 0, "c": 1, "h": 2, "r": 3, "w": 4, "s": 5}
        moved = transpose(ctx, inside, [where[a] for a in ("n", *order, "h", "w")])
        return [reshape(ctx, moved, (n, prod(extents.values()), h // b, w // b))]
    extents = {"c": c // (b * b), "r": b, "s": b}
    inside = reshape(ctx, x, (n, *(extents[a] for a in order), h, w))
    where = {a: d for d, a in enumerate(("n", *order, "h", "w"))}
    moved = transpose(ctx, inside, [where[a] for a in ("n", "c", "h", "r", "w", "s")])
    return [reshape(ctx, moved, (n, extents["c"], h * b, w * b))]


@converter("Trilu", since=14)
def trilu(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    k = 0 if inputs[1] is None else one_int(ctx, inputs[1], "k")
    return [ctx.add("trilu", inputs[:1], upper=bool(node.attr("upper", 1)), k=k)]
