"""Choosing boxes of detected objects: the best one of those that overlap, round after round."""

from __future__ import annotations

import struct

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.body import Body, Rows
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, reshape, scalar, slice_axis, take, zeros
from mlc.frontend.tflite.quant import dequantised
from mlc.frontend.tflite.registry import Operator, converter, known_ints
from mlc.ir.graph import Value
from mlc.ir.types import f32, i32


def _known_number(ctx: Context, op: Operator, k: int, what: str) -> float:
    return float(ctx.require_const(op.input(k, what), what).reshape(-1)[0])


def best_boxes(
    ctx: Context, boxes: Value, scores: Value, count: int, overlap: float, least: float, sigma: float = 0.0
) -> tuple[Value, Value, Value]:
    """Indices of boxes that overlap little, best scores first.

    Args:
        ctx: whose graph grows.
        boxes: ``[n, 4]``, two corners each: y, x, y, x.
        scores: ``[n]``.
        count: how many boxes at most.
        overlap: intersection over union beyond which a box is left out beside a better one.
        least: scores from which on boxes are left out.
        sigma: where it is not 0, overlapping boxes lose some of their scores (soft suppression).
    Returns:
        indices and scores ``[count]``, 0 behind the last, in i32 and f32; and how many there are, a scalar i32.
    """
    n = boxes.type.shape[0]
    if count == 0 or n == 0:
        return zeros(ctx, (count,), i32), zeros(ctx, (count,), f32), zeros(ctx, (), i32)
    sides = [take(ctx, boxes, 1, k) for k in range(4)]
    low = [ctx.add("min", [sides[d], sides[d + 2]]) for d in (0, 1)]
    high = [ctx.add("max", [sides[d], sides[d + 2]]) for d in (0, 1)]
    area = ctx.add("mul", [ctx.add("sub", [high[d], low[d]]) for d in (0, 1)])
    ctx.check_constant((n,), 8)
    places = ctx.constant(np.arange(n), np.int64)
    candidates = ctx.add("where", [arith(ctx, "gt", scores, least), scores, scalar(ctx, -np.inf, f32)])
    body = Body(ctx, [candidates], [])
    (left,) = body.state
    best = ctx.add("argmax", [left], axis=0, keepdims=True)
    score = ctx.add("gather", [left, best], axis=0)
    extents = []
    for d in (0, 1):
        ends = ctx.add("min", [high[d], ctx.add("gather", [high[d], best], axis=0)])
        begins = ctx.add("max", [low[d], ctx.add("gather", [low[d], best], axis=0)])
        extents.append(arith(ctx, "max", ctx.add("sub", [ends, begins]), 0.0))
    common = ctx.add("mul", extents)
    own = ctx.add("gather", [area, best], axis=0)
    union = ctx.add("sub", [ctx.add("add", [area, own]), common])
    sound = ctx.add("and", [arith(ctx, "gt", area, 0.0), arith(ctx, "gt", own, 0.0)])
    share = ctx.add("where", [sound, ctx.add("div", [common, union]), scalar(ctx, 0.0, f32)])
    kept = left
    if sigma > 0:
        weight = ctx.add("exp", [arith(ctx, "mul", ctx.add("mul", [share, share]), -0.5 / sigma)])
        lowered = ctx.add("mul", [left, weight])
        kept = ctx.add("where", [arith(ctx, "gt", lowered, least), lowered, scalar(ctx, -np.inf, f32)])
    gone = ctx.add("or", [arith(ctx, "gt", share, overlap), ctx.add("eq", [places, best])])
    after = ctx.add("where", [gone, scalar(ctx, -np.inf, f32), kept])
    found = arith(ctx, "gt", score, -np.inf)
    index = ctx.add("where", [found, cast(ctx, best, i32), scalar(ctx, 0, i32)])
    score = ctx.add("where", [found, score, scalar(ctx, 0.0, f32)])
    # scores that are all gone stay so
    after = ctx.add("where", [found, after, left])
    rows = [Rows(index), Rows(score), Rows(cast(ctx, found, i32))]
    _, indices, chosen, valid = body.close(count, [after], rows)
    total = ctx.add("reduce_sum", [valid], axes=(0, 1), keepdims=False)
    return reshape(ctx, indices, (count,)), reshape(ctx, chosen, (count,)), total


def _custom_options(op: Operator) -> dict[str, float]:
    """The numbers among a custom operator's options, which are a map in another format.

    Raises:
        ImportModelError: they are none, or damaged.
    """
    from flatbuffers import flexbuffers

    raw = bytes(op.option("raw", b""))
    try:
        found = flexbuffers.GetRoot(raw).AsMap
        if len(found) > len(raw):
            raise ValueError(f"{len(found)} options in {len(raw)} bytes")
        names = [found.Keys[k].AsKey for k in range(len(found))]
        values = [found.Values[k] for k in range(len(found))]
        numbers = [(n, v) for n, v in zip(names, values, strict=True) if v.IsNumeric or v.IsBool]
        return {n: float(v.AsFloat if v.IsFloat else v.AsInt) for n, v in numbers}
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError, struct.error) as error:
        raise ImportModelError("its options are damaged") from error


_POSTPROCESS = "TFLite_Detection_PostProcess"


@converter(_POSTPROCESS, custom=True, limits="suppression over all classes at once, not class by class")
def detection_postprocess(ctx: Context, op: Operator) -> list[Value]:
    """Boxes from their distances to anchors, those that overlap left out, with the best classes of each."""
    options = _custom_options(op)
    missing = {"max_detections", "max_classes_per_detection", "num_classes", *_SCALES} - set(options)
    if missing:
        raise ImportModelError(f"it lacks the options {', '.join(sorted(missing))}")
    if options.get("use_regular_nms", 0):
        raise UnsupportedError("suppression class by class (use_regular_nms)")
    offsets, scores, anchors = (_floats(ctx, op, k) for k in range(3))
    n, classes = anchors.type.shape[0], int(options["num_classes"])
    rows = scores.type.shape[-1] if scores.type.rank else 0
    fits = offsets.type.shape[:2] == (1, n) and scores.type.shape[:2] == (1, n) and anchors.type.shape[1:] == (4,)
    if not fits or offsets.type.rank != 3 or offsets.type.shape[2] < 4 or not 1 <= classes <= rows <= classes + 1:
        raise ImportModelError(f"boxes {offsets.type}, scores {scores.type}, anchors {anchors.type}, {classes} classes")
    boxes = _decoded(ctx, reshape(ctx, offsets, offsets.type.shape[1:]), anchors, [options[s] for s in _SCALES])
    # the first class may be the background
    per_class = slice_axis(ctx, reshape(ctx, scores, (n, rows)), 1, rows - classes, rows)
    each, count = min(int(options["max_classes_per_detection"]), classes), int(options["max_detections"])
    if each < 1 or count < 1:
        raise ImportModelError(f"{count} detections of {each} classes")
    ctx.check_constant((count, each), 4)
    best, kinds = ctx.add_many("top_k", [per_class], {"k": each, "axis": 1, "largest": True, "sorted": True})
    overlap, least = options.get("nms_iou_threshold", 0.0), options.get("nms_score_threshold", 0.0)
    # the kernel keeps boxes at the threshold, too
    below = float(np.nextafter(np.float32(least), np.float32(-np.inf)))
    chosen, _, total = best_boxes(ctx, boxes, take(ctx, best, 1, 0), count, overlap, below)
    there = arith(ctx, "lt", ctx.constant(np.arange(count, dtype=np.int32)), total)
    found = reshape(ctx, cast(ctx, there, f32), (count, 1, 1))

    def of_chosen(x: Value, shape: tuple[int, ...]) -> Value:
        """Rows of what is chosen, once a class, 0 behind the last."""
        picked = ctx.add("gather", [x, chosen], axis=0)
        picked = reshape(ctx, picked, (count, 1, 4) if len(shape) == 3 else (count, each, 1))
        wide = ctx.add("broadcast_to", [picked], shape=(count, each, picked.type.shape[2]))
        return reshape(ctx, ctx.add("mul", [wide, found]), shape)

    results = [
        of_chosen(boxes, (1, count * each, 4)),
        of_chosen(cast(ctx, kinds, f32), (1, count * each)),
        of_chosen(best, (1, count * each)),
        reshape(ctx, cast(ctx, total, f32), (1,)),
    ]
    return results[: len(op.results)]


_SCALES = ("y_scale", "x_scale", "h_scale", "w_scale")


def _floats(ctx: Context, op: Operator, k: int) -> Value:
    x = op.input(k)
    return x if x.type.dtype is f32 else dequantised(ctx, x, op.scale_of(k))


def _decoded(ctx: Context, offsets: Value, anchors: Value, scales: list[float]) -> Value:
    """Corners ``[n, 4]`` of boxes given by centre and size, in parts of their anchors' sizes."""
    if 0 in scales:
        raise ImportModelError(f"scales {scales}")
    parts = [arith(ctx, "div", take(ctx, offsets, 1, k), scales[k]) for k in range(4)]
    anchor = [take(ctx, anchors, 1, k) for k in range(4)]
    low, high = [], []
    for d in (0, 1):
        centre = ctx.add("add", [ctx.add("mul", [parts[d], anchor[2 + d]]), anchor[d]])
        half = arith(ctx, "mul", ctx.add("mul", [ctx.add("exp", [parts[2 + d]]), anchor[2 + d]]), 0.5)
        low.append(ctx.add("sub", [centre, half]))
        high.append(ctx.add("add", [centre, half]))
    n = anchors.type.shape[0]
    return concat(ctx, [reshape(ctx, v, (n, 1)) for v in (*low, *high)], 1)


@converter("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", limits="thresholds and the count known at compile time")
def non_max_suppression(ctx: Context, op: Operator) -> list[Value]:
    boxes, scores = op.input(0, "boxes"), op.input(1, "scores")
    if boxes.type.shape != (scores.type.size, 4) or scores.type.rank != 1 or boxes.type.dtype is not f32:
        raise ImportModelError(f"boxes {boxes.type} with scores {scores.type}")
    (count,) = known_ints(ctx, op, 2, "the number of boxes")
    ctx.check_constant((max(count, 0),), 4)
    if count < 0:
        raise ImportModelError(f"{count} boxes")
    overlap, least = (_known_number(ctx, op, k, "a threshold") for k in (3, 4))
    soft = op.name == "NON_MAX_SUPPRESSION_V5"
    sigma = _known_number(ctx, op, 5, "sigma") if soft else 0.0
    indices, chosen, valid = best_boxes(ctx, boxes, scores, count, overlap, least, sigma)
    return [indices, chosen, valid] if soft else [indices, valid]
