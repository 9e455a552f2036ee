"""Attention as one kernel: the scores of a block of query rows stay in the first-level cache until they are used.

For each matrix (a head of a sequence) and block of rows: a product of queries and keys into a block of scores, the
exponentials of softmax over it row by row, a product of these with the values, and the division in that one's epilogue.
Keys are copied transposed, values as they are, both in panels of as many columns as a register tile has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import plain
from mlc.ops.algorithms import Algorithm
from mlc.targets.cpu.cost import USABLE, Tile, balance
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.matmul import EVEN, PARALLEL_FROM, chosen_tile, tile_of
from mlc.targets.cpu.schedules.reduction import fold_rows
from mlc.targets.cpu.schedules.tile import ask_tile, finish_tile, steps_of
from mlc.targets.groups.attention import stages_of
from mlc.targets.groups.group import (
    Group,
    best_divisor,
    inline_rest,
    is_single,
    replace_compute,
    size_of,
)
from mlc.targets.groups.roles import Contraction, role_of
from mlc.targets.groups.template import Template, row_major

COPIED_FROM = 32  # query rows from which a copy of the values in panels pays (measured: it loses at 16, wins at 128)


def attention_algorithms(queries: Sequence[int], values: Sequence[int], target: Cpu) -> tuple[Algorithm, ...]:
    """Fused where the scores of one register tile of query rows stay near: half of the second-level cache holds them.

    Measured on Zen 3, fused against apart: 0.73 to 0.77 ms for 12 matrices of 128 queries and keys, 11.0 to 15.6 ms for
    512, 35 to 68 ms for 8 of 1024; no shape was faster apart.

    Args:
        queries: shape, ``[…, m, e]``.
        values: shape, ``[…, n, d]``.
        target: has the cache.
    Returns:
        all that there are, the expected fastest first.
    """
    rows, keys = queries[-2], values[-2]
    near = _bytes_of_scores(tile_of(rows, values[-1], keys, target).rows, keys)
    if not near:
        return (Algorithm.APART,)
    both = (Algorithm.FUSED, Algorithm.APART)
    return both if near <= target.l2 // 2 else both[::-1]


def block_rows(rows: int, keys: int, tile: Tile, target: Cpu) -> int:
    """Query rows whose scores are kept: whole register tiles that fit the first-level cache, at least one."""
    most = max(1, int(target.l1 * USABLE) // max(1, _bytes_of_scores(tile.rows, keys)))
    tiles = -(-rows // tile.rows)
    return tile.rows * (best_divisor(tiles, most) if rows % tile.rows == 0 else min(tiles, most))


def _bytes_of_scores(rows: int, keys: int) -> int:
    """Scores and their exponentials lie side by side."""
    return 2 * 4 * rows * keys


def schedule_attention(g: Group, target: Cpu) -> Schedule:
    """Both products and the softmax between them, block by block of query rows.

    Raises:
        ScheduleError: the configuration is refused.
    """
    g, copied = _with_copies(g)
    stages = stages_of(g)
    assert stages is not None
    *batch_shape, m, n = stages.masked.shape
    depth, width = stages.scores.op.reduce_axes[0].hi + 1 if stages.scores.op is not None else 0, g.outputs[0].shape[-1]
    tile = chosen_tile(g.knobs, m, width, n, target)
    tiles = g.knobs.discrete("tiles", (1, 2, 4, 8, 16, 32), default=block_rows(m, n, tile, target) // tile.rows)
    block = min(tiles * tile.rows, m)
    inner = _inner_tile(g.knobs, block, m, n, depth, target)
    walk, score_walk = (g.knobs.permutation(name, ("columns", "rows")) for name in ("walk", "score_walk"))
    panels = dict(zip(copied, (t.vectors * target.lanes for t in (inner, tile)), strict=False))
    p, new = g.applied({t: _panels(t.shape, columns) for t, columns in panels.items()})
    s = Schedule(p.outputs)
    scores, masked, greatest, powers, total, sums = (new[t] for t in stages)
    copies = [new[op.outputs[0]] for op in g.computes if op.outputs[0] in panels]
    s[scores].set_scope("register")
    s[sums].set_scope("register")
    inline_rest(s, [masked, powers, *copies])

    (out,) = p.outputs
    stage = s[out]
    *batch, i, d = stage.op.axes
    io, ir = stage.split(i, block)
    matrices = size_of(batch_shape)
    # the copies of one matrix stay in the second-level cache while its rows pass by
    each = bool(batch) and balance(matrices, target.cores) < EVEN and n * (depth + width) * 4 <= target.l2
    heads = stage.fuse(*batch) if batch else io
    at = io
    if not each and batch and m % block == 0:
        at = heads = stage.fuse(heads, io)
    shared = heads
    _, grain = g.knobs.factors("grain", matrices, 2, default=(matrices, 1))
    if grain > 1:
        shared, each_of = stage.split(heads, grain)
        at, heads = (each_of if at is heads else at), each_of
    if size_of((matrices, m, n, depth)) >= PARALLEL_FROM:
        stage.parallel(shared)
    _tiles(s, out, sums, at, (ir, d), tile, target, walk)

    s[masked].compute_at(stage, at)
    _tiles(s, masked, scores, None, s[masked].op.axes[-2:], inner, target, score_walk)

    s[powers].compute_at(stage, at)
    *_, row, column = s[powers].op.axes
    s[powers].vectorize(s[powers].split(column, target.lanes)[1])
    for part in fold_rows(s, greatest, target):
        part.compute_at(s[powers], row)
    *parts, last = fold_rows(s, total, target)
    last.compute_at(stage, at)
    for part in parts:
        part.compute_at(last, last.op.axes[-1])

    for t in copies:
        if each:
            s[t].compute_at(stage, heads)
        spread(s[t], target, parallel=not each)
    return s


def _inner_tile(knobs: Knobs, block: int, m: int, n: int, depth: int, target: Cpu) -> Tile:
    """The register tile of the scores of ``block`` of ``m`` query rows, a product's where the knobs say nothing."""
    # a tile that ends within a vector is computed number by number: only what is less than one may be left over
    default = tile_of(plain(block), n, depth, target, shared=n // target.lanes if n % target.lanes else 0)
    wide = range(1, min(-(-n // target.lanes), target.registers // 2) + 1)
    high = range(1, min(m, target.registers - 2) + 1)
    tile = ask_tile(knobs, default, high, wide, target, prefix="score_")
    knobs.require(tile.rows <= block, "a tile of scores has more rows than the block")
    return tile


def _tiles(
    s: Schedule,
    t: te.Tensor,
    product: te.Tensor,
    at: Var | None,
    loops: Sequence[Var],
    tile: Tile,
    target: Cpu,
    walk: tuple[str, ...],
) -> None:
    """Register tiles of a product, and what follows it in ``t``.

    Args:
        s: the schedule.
        t: the tensor that reads the product.
        product: the sums.
        at: the loop of ``t`` outside of its tiles, if there is one.
        loops: over rows and over columns of ``t``.
        tile: their sizes.
        target: the processor.
        walk: the loops over tiles, from outside; a panel of the right operand stays in the first-level cache while rows
            pass by inside of columns.
    """
    stage, (i, j) = s[t], loops
    io, ii = stage.split(i, tile.rows)
    jo, ji = stage.split(j, tile.vectors * target.lanes)
    ju, lane = stage.split(ji, target.lanes)
    outer, inside = (jo, io) if walk.index("columns") < walk.index("rows") else (io, jo)
    stage.reorder(*([at] if at is not None else []), outer, inside, ii, ju, lane)
    stage.vectorize(lane)
    local = s[product]
    local.compute_at(stage, inside)
    finish_tile(s, t, product, inside, (ii, ju))
    *lead, li, lj = local.op.axes
    lo, lane = local.split(lj, target.lanes)
    ko, ki = local.split(local.op.reduce_axes[0], steps_of(tile, target))
    local.reorder(ko, ki, *lead, li, lo, lane)
    local.vectorize(lane)
    for a in (ki, lo, li):
        local.unroll(a)


def _panels(shape: Sequence[int], columns: int) -> Layout:
    """``[…, N / columns, K, columns]`` of a right operand ``[…, K, N]``."""
    rank = len(shape)
    layout = Layout(tuple(shape)).pad(rank - 1, 0, -shape[-1] % columns).split(rank - 1, columns)
    return layout.reorder(*range(rank - 2), rank - 1, rank - 2, rank)


def _with_copies(g: Group) -> tuple[Group, list[te.Tensor]]:
    """Give keys a transposed copy, and values one that lies in panels where that pays; gives the copies, too."""
    stages = stages_of(g)
    assert stages is not None
    scores, sums = stages.scores.op, stages.sums.op
    assert scores is not None
    assert sums is not None
    k, v = scores.inputs[1], sums.inputs[1]
    turned = te.compute(
        (*k.shape[:-2], k.shape[-1], k.shape[-2]), lambda *at: k[(*at[:-2], at[-1], at[-2])], "turned", tag="turn"
    )
    g = _reading(g, scores, k, lambda ld: Load(turned, (*ld.indices[:-2], ld.indices[-1], ld.indices[-2])))
    if v.op is None and v not in g.layouts and scores.shape[-2] < COPIED_FROM:
        return g, [turned]
    panels = te.compute(v.shape, lambda *at: v[at], "panels", tag="panels")
    assert g.anchor is not None
    return _reading(g, g.anchor, v, lambda ld: Load(panels, ld.indices)), [turned, panels]


def _reading(g: Group, op: te.Compute, source: te.Tensor, instead: Callable[[Load], Expr]) -> Group:
    """The group with other loads in place of those that a compute makes of a tensor."""
    bodies = [replace_loads(b, lambda ld: instead(ld) if ld.source is source else ld) for b in op.bodies]
    return replace_compute(
        g, op, te.Compute(op.name, op.axes, op.reduce_axes, tuple(bodies), op.combiner, op.tag, op.attrs)
    )


def _fits(g: Group, target: Cpu) -> bool:
    stages = stages_of(g) if is_single(g) else None
    if stages is None or stages.scores.op is None or g.outputs[0].shape != stages.sums.shape:
        return False
    product = role_of(stages.scores.op)
    return isinstance(product, Contraction) and product.transposed


ATTENTION = Template("attention", _fits, row_major, schedule_attention)
