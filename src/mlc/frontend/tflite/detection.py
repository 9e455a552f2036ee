"""Choosing boxes of detected objects: the best one of those that overlap, round after round."""

from __future__ import annotations

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.body import Body, Rows
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, reshape, scalar, take, zeros
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
