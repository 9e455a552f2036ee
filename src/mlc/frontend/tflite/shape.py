"""Operators that move elements, and that say how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.axes import normal_axes
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import concat, normal_axis, reshape, slice_axis, split, transpose
from mlc.frontend.tflite.quant import dequantised, quantised, scale_of, zero_of
from mlc.frontend.tflite.registry import Operator, converter, known_ints
from mlc.ir.graph import Value

_KNOWN = "shapes, axes and the like known at compile time"


@converter("RESHAPE", limits=_KNOWN)
def convert_reshape(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    shape = op.optional(1)
    if shape is not None:
        target = known_ints(ctx, op, 1, "the new shape")
    else:
        target = tuple(int(n) for n in op.option("new_shape", ()))
        # some old files write a scalar's shape so
        target = () if target == (0,) and x.type.size == 1 else target
    if target.count(-1) > 1 or min(target, default=0) < -1:
        raise ImportModelError(f"to the shape {list(target)}")
    known = prod(n for n in target if n != -1)
    if (-1 in target and (known == 0 or x.type.size % known)) or (-1 not in target and known != x.type.size):
        raise ImportModelError(f"{x.type} to the shape {list(target)}")
    return [reshape(ctx, x, target)]


@converter("SQUEEZE")
def squeeze(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    axes = normal_axes((int(a) for a in op.option("squeeze_dims", ())), x.type.rank)
    gone = axes or tuple(d for d, n in enumerate(x.type.shape) if n == 1)
    if any(x.type.shape[d] != 1 for d in gone):
        raise ImportModelError(f"axes {list(gone)} of {x.type} are not all of extent 1")
    return [reshape(ctx, x, [n for d, n in enumerate(x.type.shape) if d not in gone])]


@converter("EXPAND_DIMS", limits=_KNOWN)
def expand_dims(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    (axis,) = known_ints(ctx, op, 1, "the axis")
    at = normal_axis(axis, x.type.rank + 1)
    return [reshape(ctx, x, (*x.type.shape[:at], 1, *x.type.shape[at:]))]


@converter("TRANSPOSE", limits=_KNOWN)
def convert_transpose(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    return [transpose(ctx, x, normal_axes(known_ints(ctx, op, 1, "the order of axes"), x.type.rank))]


@converter("CONCATENATION")
def concatenation(ctx: Context, op: Operator) -> list[Value]:
    """Parts of 8 bits are brought to the scale of the result where it is another; those of 16 kernels just copy."""
    parts = [op.input(k) for k in range(len(op.inputs))]
    if not parts or op.choice("fused_activation_function", "ActivationFunctionType") != "NONE":
        raise UnsupportedError("without operands, or with a fused activation")
    if op.quantised() and op.dtype().bits == 8:
        parts = [_to_result(ctx, op, x, k) for k, x in enumerate(parts)]
    return [concat(ctx, parts, normal_axis(op.option("axis"), parts[0].type.rank))]


def _to_result(ctx: Context, op: Operator, x: Value, k: int) -> Value:
    q, out = op.scale_of(k), op.result_scale()
    if (scale_of(q), zero_of(q)) == (scale_of(out), zero_of(out)):
        return x
    return quantised(ctx, dequantised(ctx, x, q), out, op.dtype())


@converter("PACK")
def pack(ctx: Context, op: Operator) -> list[Value]:
    parts = [op.input(k) for k in range(len(op.inputs))]
    if not parts:
        raise ImportModelError("no operands")
    shape = parts[0].type.shape
    at = normal_axis(op.option("axis"), len(shape) + 1)
    return [concat(ctx, [reshape(ctx, x, (*shape[:at], 1, *shape[at:])) for x in parts], at)]


@converter("UNPACK")
def unpack(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    at = normal_axis(op.option("axis"), x.type.rank)
    if not op.option("num") == x.type.shape[at] == len(op.results):
        raise ImportModelError(f"{op.option('num')} parts of an axis of extent {x.type.shape[at]}")
    rest = [n for d, n in enumerate(x.type.shape) if d != at]
    return [reshape(ctx, part, rest) for part in split(ctx, x, at, [1] * x.type.shape[at])]


@converter("SPLIT", limits=_KNOWN)
def convert_split(ctx: Context, op: Operator) -> list[Value]:
    x, parts = op.input(1), op.option("num_splits")
    (axis,) = known_ints(ctx, op, 0, "the axis")
    at = normal_axis(axis, x.type.rank)
    if parts < 1 or parts != len(op.results) or x.type.shape[at] % parts:
        raise ImportModelError(f"{parts} parts of an axis of extent {x.type.shape[at]}, {len(op.results)} outputs")
    return split(ctx, x, at, [x.type.shape[at] // parts] * parts)


@converter("SPLIT_V", limits=_KNOWN)
def split_v(ctx: Context, op: Operator) -> list[Value]:
    x, sizes = op.input(0), list(known_ints(ctx, op, 1, "the sizes"))
    (axis,) = known_ints(ctx, op, 2, "the axis")
    at = normal_axis(axis, x.type.rank)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.type.shape[at] - sum(sizes) - 1
    if min(sizes, default=0) < 0 or sum(sizes) != x.type.shape[at]:
        raise ImportModelError(f"parts {sizes} of an axis of extent {x.type.shape[at]}")
    return split(ctx, x, at, sizes)


@converter("SLICE", limits=_KNOWN)
def convert_slice(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    begins, sizes = known_ints(ctx, op, 1, "the begins"), known_ints(ctx, op, 2, "the sizes")
    for d, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        end = x.type.shape[d] if size == -1 else begin + size
        if not 0 <= begin <= end <= x.type.shape[d]:
            raise ImportModelError(f"{size} elements from {begin} of axis {d}, which has {x.type.shape[d]}")
        x = slice_axis(ctx, x, d, begin, end)
    return [x]


@converter("STRIDED_SLICE", limits=_KNOWN)
def strided_slice(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    specs = [known_ints(ctx, op, k, what) for k, what in ((1, "the begins"), (2, "the ends"), (3, "the strides"))]
    cuts, shape = _strided(op, x.type.shape, *specs)
    begin, end, step = zip(*((c.start, c.stop, c.step) for c in cuts), strict=True) if cuts else ((), (), ())
    if any(c != range(n) for c, n in zip(cuts, x.type.shape, strict=True)):
        array = ctx.const(x)
        if array is not None:
            slices = tuple(slice(c.start, c.stop if c.stop >= 0 else None, c.step) for c in cuts)
            x = ctx.constant(np.ascontiguousarray(array[slices]))
        else:
            x = ctx.add("slice", [x], begin=begin, end=end, step=step)
    return [reshape(ctx, x, shape)]


def _strided(
    op: Operator, extents: Sequence[int], begins: Sequence[int], ends: Sequence[int], strides: Sequence[int]
) -> tuple[list[range], list[int]]:
    """What is taken of every axis, and the shape of the result, by Python's rules and TensorFlow's five masks."""
    masks = {name: op.option(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    count = len(begins)
    if len(ends) != count or len(strides) != count:
        raise ImportModelError(f"{count} begins, {len(ends)} ends and {len(strides)} strides")

    def flag(name: str, k: int) -> bool:
        return bool(masks[name] >> k & 1)

    ellipses = [k for k in range(count) if flag("ellipsis", k)]
    if len(ellipses) > 1:
        raise ImportModelError("two ellipses")
    named = sum(not flag("new_axis", k) for k in range(count) if k not in ellipses)
    rest = len(extents) - named
    if rest < 0:
        raise ImportModelError(f"{named} axes of a tensor of rank {len(extents)}")
    cuts: list[range] = []
    shape: list[int] = []
    for k in range(count):
        if flag("ellipsis", k):
            for n in extents[len(cuts) : len(cuts) + rest]:
                cuts.append(range(n))
                shape.append(n)
            continue
        if flag("new_axis", k):
            shape.append(1)
            continue
        n = extents[len(cuts)]
        if strides[k] == 0:
            raise ImportModelError("a stride of 0")
        if flag("shrink_axis", k):
            at = begins[k] + n if begins[k] < 0 else begins[k]
            if not 0 <= at < n:
                raise ImportModelError(f"position {begins[k]} of an axis of extent {n}")
            cuts.append(range(at, at + 1))
            continue
        begin = None if flag("begin", k) else begins[k]
        # counted from the begin, where files were written so
        offset = begins[k] if op.option("offset", False) else 0
        end = None if flag("end", k) else ends[k] + offset
        cuts.append(range(n)[slice(begin, end, strides[k])])
        shape.append(len(cuts[-1]))
    for n in extents[len(cuts) :]:
        cuts.append(range(n))
        shape.append(n)
    return [c if len(c) else range(0) for c in cuts], shape


@converter("PAD", "PADV2", limits=_KNOWN)
def pad(ctx: Context, op: Operator) -> list[Value]:
    """Padded with zero, which for quantised numbers is the zero point, or with a given value."""
    x = op.input(0)
    pairs = _pairs(ctx, op, x)
    value: float | int = 0
    if op.name == "PADV2" and op.optional(2) is not None:
        value = ctx.require_const(op.optional(2), "the padding value").reshape(-1)[0].item()
    elif op.quantised():
        value = zero_of(op.result_scale())
    if not any(map(any, pairs)):
        return [x]
    pads = tuple(p[0] for p in pairs) + tuple(p[1] for p in pairs)
    return [ctx.add("pad", [x], pads=pads, value=value)]


@converter("MIRROR_PAD", limits=_KNOWN)
def mirror_pad(ctx: Context, op: Operator) -> list[Value]:
    """Mirrored at the edge's element (REFLECT) or at the edge itself (SYMMETRIC)."""
    x = op.input(0)
    pairs = _pairs(ctx, op, x)
    symmetric = op.choice("mode", "MirrorPadMode") == "SYMMETRIC"
    for d, (before, after) in enumerate(pairs):
        n = x.type.shape[d]
        if max(before, after) > n - (not symmetric):
            raise ImportModelError(f"pads {before} and {after} of an axis of extent {n}")
        if before or after:
            ctx.check_constant((n + before + after,), 8)
            inner = np.pad(np.arange(n), (before, after), "symmetric" if symmetric else "reflect")
            x = ctx.add("gather", [x, ctx.constant(inner, np.int32)], axis=d)
    return [x]


def _pairs(ctx: Context, op: Operator, x: Value) -> list[tuple[int, int]]:
    flat = known_ints(ctx, op, 1, "the pads")
    if len(flat) != 2 * x.type.rank or min(flat, default=0) < 0:
        raise ImportModelError(f"pads {list(flat)} of a tensor of rank {x.type.rank}")
    return list(zip(flat[::2], flat[1::2], strict=True))


@converter("TILE", limits=_KNOWN)
def tile(ctx: Context, op: Operator) -> list[Value]:
    return [ctx.add("tile", [op.input(0)], repeats=known_ints(ctx, op, 1, "the repeats"))]


@converter("BROADCAST_TO", limits=_KNOWN)
def broadcast_to(ctx: Context, op: Operator) -> list[Value]:
    return [ctx.add("broadcast_to", [op.input(0)], shape=known_ints(ctx, op, 1, "the shape"))]


@converter("FILL", limits=_KNOWN)
def fill(ctx: Context, op: Operator) -> list[Value]:
    value = reshape(ctx, op.input(1, "value"), ())
    return [ctx.add("broadcast_to", [value], shape=known_ints(ctx, op, 0, "the shape"))]


@converter("SHAPE")
def shape_of(ctx: Context, op: Operator) -> list[Value]:
    return [ctx.constant(op.input(0).type.shape, op.dtype().numpy)]


@converter("RANK")
def rank_of(ctx: Context, op: Operator) -> list[Value]:
    return [ctx.constant(op.input(0).type.rank, np.int32)]


@converter("RANGE", limits=_KNOWN)
def convert_range(ctx: Context, op: Operator) -> list[Value]:
    start, limit, step = (ctx.require_const(op.input(k), "a bound").reshape(-1)[0] for k in range(3))
    if step == 0:
        raise ImportModelError("a step of 0")
    count = max(0, int(np.ceil((float(limit) - float(start)) / float(step))))
    ctx.check_constant((count,), start.itemsize)
    return [ctx.constant(start + step * np.arange(count), op.dtype().numpy)]


# -- blocks of pixels ---------------------------------------------------------------------------------------------
@converter("SPACE_TO_DEPTH")
def space_to_depth(ctx: Context, op: Operator) -> list[Value]:
    x, block = op.input(0), op.option("block_size")
    n, h, w, c = _image(x, block)
    if h % block or w % block:
        raise ImportModelError(f"blocks of {block} of {x.type}")
    y = reshape(ctx, x, (n, h // block, block, w // block, block, c))
    return [reshape(ctx, transpose(ctx, y, (0, 1, 3, 2, 4, 5)), (n, h // block, w // block, block * block * c))]


@converter("DEPTH_TO_SPACE")
def depth_to_space(ctx: Context, op: Operator) -> list[Value]:
    x, block = op.input(0), op.option("block_size")
    n, h, w, c = _image(x, block)
    if c % (block * block):
        raise ImportModelError(f"blocks of {block} of {x.type}")
    y = reshape(ctx, x, (n, h, w, block, block, c // (block * block)))
    return [reshape(ctx, transpose(ctx, y, (0, 1, 3, 2, 4, 5)), (n, h * block, w * block, c // (block * block)))]


def _image(x: Value, block: int) -> tuple[int, ...]:
    if x.type.rank != 4 or block < 1:
        raise ImportModelError(f"blocks of {block} of {x.type}")
    return x.type.shape


@converter("SPACE_TO_BATCH_ND", limits=_KNOWN)
def space_to_batch(ctx: Context, op: Operator) -> list[Value]:
    """Pixels of a block become images of their own, so that a convolution over them is a dilated one."""
    x = op.input(0)
    block, flat = known_ints(ctx, op, 1, "the block"), known_ints(ctx, op, 2, "the pads")
    rank = len(block)
    if len(flat) != 2 * rank or x.type.rank < rank + 1 or min(block, default=1) < 1 or min(flat, default=0) < 0:
        raise ImportModelError(f"blocks {list(block)} and pads {list(flat)} of {x.type}")
    if any(flat):
        rest = (0,) * (x.type.rank - 1 - rank)
        value = zero_of(op.result_scale()) if op.quantised() else 0
        x = ctx.add("pad", [x], pads=(0, *flat[::2], *rest, 0, *flat[1::2], *rest), value=value)
    n, space, rest = x.type.shape[0], x.type.shape[1 : 1 + rank], x.type.shape[1 + rank :]
    if any(m % b for m, b in zip(space, block, strict=True)):
        raise ImportModelError(f"blocks {list(block)} of {x.type}")
    cut = [k for m, b in zip(space, block, strict=True) for k in (m // b, b)]
    y = reshape(ctx, x, (n, *cut, *rest))
    inner, outer = [2 + 2 * d for d in range(rank)], [1 + 2 * d for d in range(rank)]
    y = transpose(ctx, y, (*inner, 0, *outer, *range(1 + 2 * rank, y.type.rank)))
    return [reshape(ctx, y, (n * prod(block), *(m // b for m, b in zip(space, block, strict=True)), *rest))]


@converter("BATCH_TO_SPACE_ND", limits=_KNOWN)
def batch_to_space(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    block, crops = known_ints(ctx, op, 1, "the block"), known_ints(ctx, op, 2, "the crops")
    rank = len(block)
    if len(crops) != 2 * rank or x.type.rank < rank + 1 or min(block, default=1) < 1 or min(crops, default=0) < 0:
        raise ImportModelError(f"blocks {list(block)} and crops {list(crops)} of {x.type}")
    n, space, rest = x.type.shape[0], x.type.shape[1 : 1 + rank], x.type.shape[1 + rank :]
    if n % prod(block):
        raise ImportModelError(f"blocks {list(block)} of {x.type}")
    y = reshape(ctx, x, (*block, n // prod(block), *space, *rest))
    order = [rank, *(k for d in range(rank) for k in (rank + 1 + d, d)), *range(2 * rank + 1, y.type.rank)]
    whole = [m * b for m, b in zip(space, block, strict=True)]
    y = reshape(ctx, transpose(ctx, y, order), (n // prod(block), *whole, *rest))
    for d, m in enumerate(whole):
        begin, end = crops[2 * d], m - crops[2 * d + 1]
        if begin > end:
            raise ImportModelError(f"crops {list(crops)} leave nothing of {m}")
        y = slice_axis(ctx, y, 1 + d, begin, end)
    return [y]
