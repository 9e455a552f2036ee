"""Sums of products over many terms, strip by strip: gradients of convolutions by their weights.

A register tile of results that takes all of its terms at once reads them from memory, and the next tile does so again:
what all tiles read of the images of a batch is larger than the caches. Here the terms are cut into strips, an image or
a row of one each, and all tiles add up a strip's terms while these are in the cache; the sums of a share of the results
lie in the second-level cache meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from mlc.ir import te
from mlc.ir.expr import Load
from mlc.ir.index import Var
from mlc.lower.knobs import divisors
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.cpu.record import Cpu

LEAST = 24  # terms of a strip, for which the sums of a tile are read and written once
SHARE = 0.5  # of the second-level cache: for the terms of a strip, and for the sums of a share


def strips_of(op: te.Compute, factors: tuple[Load, Load], target: Cpu) -> int:
    """How many of the outermost axes of a sum are walked strip by strip: as many as it takes for the cache, or 0."""
    extents = [a.hi + 1 for a in op.reduce_axes]
    terms = sum(f.source.size * f.source.dtype.itemsize for f in factors)
    found = 0
    for k, n in enumerate(extents[:-1], 1):
        if terms <= SHARE * target.l2 or prod(extents[k:]) < LEAST:
            break
        terms //= n
        if n > 1:
            found = k
    return found


def sum_in_strips(
    s: Schedule, op: te.Compute, out: te.Tensor, tile: Mapping[int, int], strips: int, target: Cpu
) -> None:
    """Loops of a sum of products, and of what follows it element by element.

    Args:
        s: the schedule; what is before and after the sum has its loops.
        op: the sum.
        out: the tensor that is written: the sum's, or of its shape.
        tile: elements of a register tile along two data axes, by their positions, that of the vectors first.
        strips: outermost axes of the sum that are walked.
        target: the processor.
    """
    vector, other = tile
    lanes = target.lanes_of(out.dtype)
    sums = op.outputs[0]
    if sums is out:
        sums = s.cache_write(out, "local")
    count = op.axes[other].hi + 1
    of_one = sums.size * sums.dtype.itemsize // count
    most = max(tile[other], SHARE * target.l2 // of_one)
    tiles = count // tile[other]
    shares = next(
        (k for k in divisors(tiles) if k >= min(target.cores, tiles) and count // k <= most), tiles
    )  # threads have one each at least
    stage = s[out]
    share = _share(stage, other, count // shares, vector, lanes)
    if share.hi > 0:
        stage.parallel(share)
    s[sums].set_scope("local")
    s[sums].compute_at(stage, share)
    levels = [sums]
    skipped = 0
    for _ in range(strips):
        axis = s[levels[-1]].op.reduce_axes[skipped]
        if axis.hi > 0:
            levels.append(s.rfactor(levels[-1], axis))
        else:
            skipped += 1
    *totals, partial = levels
    for k, total in enumerate(totals):
        last = k + 1 == len(totals)
        size = (tile[vector], tile[other]) if last else (lanes, 1)
        inner = _add_up(s[total], {k + vector: size[0], k + other: size[1]}, lanes)
        local = s[levels[k + 1]]
        local.set_scope("register" if last else "local")
        local.compute_at(s[total], inner if last else s[total].op.reduce_axes[0])
    _multiply(s[partial], len(totals), vector, lanes)


def _share(stage: Stage, other: int, block: int, vector: int, lanes: int) -> Var:
    """The loops of the result over shares, then over the elements of one; gives the first."""
    axes = list(stage.op.axes)
    share, axes[other] = stage.split(axes[other], block)
    outer, lane = stage.split(axes[vector], lanes)
    axes[vector] = outer
    stage.reorder(share, *axes, lane)
    stage.vectorize(lane)
    return share


def _add_up(stage: Stage, tile: Mapping[int, int], lanes: int) -> Var:
    """The loops of sums over strips, in each over tiles, and over the elements of one; gives the last over tiles."""
    vector, other = tile
    axes = list(stage.op.axes)
    wide, inner = stage.split(axes[vector], tile[vector])
    high, row = stage.split(axes[other], tile[other])
    column, lane = stage.split(inner, lanes)
    rest = [a for k, a in enumerate(axes) if k not in tile]
    stage.reorder(*stage.op.reduce_axes, wide, *rest, high, row, column, lane)
    stage.vectorize(lane)
    stage.unroll(row)
    stage.unroll(column)
    return high


def _multiply(local: Stage, strips: int, vector: int, lanes: int) -> None:
    """The loops of a register tile's sums over the terms of a strip."""
    axes = list(local.op.axes)
    column, lane = local.split(axes[strips + vector], lanes)
    axes[strips + vector] = column
    local.reorder(*local.op.reduce_axes, *axes, lane)
    local.vectorize(lane)
    for a in axes:
        local.unroll(a)
