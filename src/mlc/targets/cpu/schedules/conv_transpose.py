"""Transposed convolution: every phase of the output is an ordinary convolution, stored to its interleaved places.

A loop over phases stands outside the loops over positions, so register tiles are those of a convolution with stride 1,
and the output is written once, in its own layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout, blocked
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.prefetch import LINE
from mlc.lower.schedule import Schedule, Stage
from mlc.targets.cpu.cost import Product, Tile, fits_registers, unrolled_steps
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv import conv_tile
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.groups.group import (
    Group,
    accumulate_in_registers,
    best_divisor,
    finish_tile,
    inner_layouts,
    padded_input,
    size_of,
)

ENOUGH_PARTS = 8  # parallel iterations that several threads can share evenly


def _tile(anchor: te.Compute, target: Cpu) -> Tile:
    """The register tile of a sum over channels and taps, positions of one phase × vectors of output channels.

    Args:
        anchor: the sum, over logical shapes.
        target: the processor.
    """
    rank = len(anchor.attrs["strides"])
    columns = -(-anchor.shape[1] // target.lanes)
    *rows, width = anchor.shape[2 + rank :]
    depth = size_of([a.hi + 1 for a in anchor.reduce_axes])
    product = Product(width, columns, depth, repeats=size_of(rows))
    return conv_tile(product, target)


def _chosen_tile(knobs: Knobs, anchor: te.Compute, target: Cpu) -> Tile:
    """The register tile that the knobs say; :func:`_tile` where they say nothing."""
    default = _tile(anchor, target)
    columns = -(-anchor.shape[1] // target.lanes)
    few = [k for k in divisors(columns) if k <= target.registers // 2]
    vectors = knobs.discrete("vectors", few, default=default.vectors)
    most = min(anchor.shape[-1], target.registers - 2)
    rows = knobs.discrete("rows", range(1, most + 1), default=default.rows)
    knobs.require(fits_registers(rows, vectors, target), "the sums of a tile do not fit the registers")
    return Tile(rows, vectors)


def transposed_weight_layout(anchor: te.Compute, shape: Sequence[int], target: Cpu, knobs: Knobs) -> Layout:
    """Weights in the order of use: ``[O / tile][phases…][C / chunk][taps of a phase…][chunk of C][tile of O]``.

    Args:
        anchor: the sum over channels and taps, over logical shapes.
        shape: logical shape, ``[c, o, taps…]``.
        target: the processor.
        knobs: what the template asks.
    """
    rank = len(shape) - 2
    tile = _chosen_tile(knobs, anchor, target)
    columns = tile.vectors * target.lanes
    layout = Layout(tuple(shape)).pad(1, 0, -shape[1] % columns)
    for d, (stride, dilation) in enumerate(zip(anchor.attrs["strides"], anchor.attrs["dilations"], strict=True)):
        step = stride // gcd(stride, dilation)
        layout = layout.pad(2 + 2 * d, 0, -shape[2 + d] % step).split(2 + 2 * d, step)
    layout = layout.split(1, columns).split(0, _chunk(knobs, anchor, tile, target))
    c, o, taps = 0, 2, range(4, 4 + 2 * rank, 2)
    return layout.reorder(o, *(t + 1 for t in taps), c, *taps, c + 1, o + 1)


def transposed_blocked(g: Group, target: Cpu) -> Schedule:
    """Transposed convolution whose output is blocked by channels."""
    assert g.anchor is not None
    tile = _chosen_tile(g.knobs, g.anchor, target)
    extra = inner_layouts(g)
    extra[g.anchor.outputs[0]] = blocked(g.anchor.shape, 1, target.lanes)
    pad = padded_input(g.anchor)
    if pad is not None and pad.shape[1] % target.lanes == 0:
        extra[pad] = blocked(pad.shape, 1, target.lanes)
    p = g.apply(extra)
    assert p.anchor is not None
    s = Schedule(p.outputs)
    pad = padded_input(p.anchor)
    phases = accumulate_in_registers(s, p.anchor.outputs[0], [pad] if pad is not None else [])
    out = p.outputs[0]
    stage = s[out]
    n, o, *space, oi = stage.op.axes
    oo, ov = stage.split(o, tile.vectors)
    of_phase, places = _phase_loops(stage, space, p.anchor.attrs["strides"])
    wo, wi = stage.split(places[-1], tile.rows)
    stage.vectorize(oi)
    channels = p.anchor.reduce_axes[0]
    chunks: Var | None = None
    chunk = _chunk(g.knobs, p.anchor, tile, target)
    tiles = size_of([a.hi + 1 for a in (*places[:-1], wo)])
    if chunk > channels.hi or tiles == 1:
        stage.reorder(n, oo, *of_phase, *places[:-1], wo, ov, wi, oi)
        _share(stage, [n, oo], [*of_phase, *places[:-1]])
        local = s[phases]
        local.compute_at(stage, wo)
        finish_tile(s, out, phases, wo, (wi, ov))
    else:
        # as many rows at a time as keep their sums in the first-level cache, beside the weights of a chunk
        *planes, row = places[:-1] or [wo]
        row_bytes = size_of([a.hi + 1 for a in {wo, wi, ov, oi} - {row}]) * 4
        block, row = stage.split(row, max(1, target.l1 // 4 // row_bytes))
        inner = (row, wo) if len(places) > 1 else (row,)
        stage.reorder(n, oo, *of_phase, *planes, block, *inner, ov, wi, oi)
        at = _share(stage, [n, oo], [*of_phase, *planes, block])
        if block in stage.leaves:
            at = block
        co, _ = s[phases].split(channels, chunk)
        local, chunks = _chunked(s, phases, co, stage, at, tile)
    rank = len(places)
    *data, lane = local.op.axes
    o = data.pop(-2 * rank - 1)
    c, *taps = local.op.reduce_axes
    co, ci = local.split(c, target.lanes)
    # a broadcast serves all vectors at once, and then its register is free again
    local.reorder(*taps, co, ci, *data, o, lane)
    steps = g.knobs.discrete("steps", (1, 2, 4, 8), default=best_divisor(ci.hi + 1, unrolled_steps(tile, target)))
    g.knobs.require((ci.hi + 1) % steps == 0, "a ragged end of the unrolled channels")
    if steps > 1:
        local.unroll(local.split(ci, steps)[1])
    weights = p.anchor.inputs[1]
    if chunks is not None and weights.size * weights.dtype.itemsize > target.l2:
        _prefetch_next_chunk(local, weights, chunks, (*taps, co))
    local.vectorize(lane)
    for a in (o, data[-1]):
        local.unroll(a)
    if pad is not None:
        spread(s[pad], target)
    return s


def _chunk(knobs: Knobs, anchor: te.Compute, tile: Tile, target: Cpu) -> int:
    """Input channels at a time; untuned, their weights of a phase and tile take half of the first-level cache."""
    c, *taps = anchor.reduce_axes
    bytes_each = size_of([t.hi + 1 for t in taps]) * tile.vectors * target.lanes * 4
    blocks, extra = divmod(c.hi + 1, target.lanes)
    most = max(1, target.l1 // 2 // bytes_each // target.lanes)
    if extra:
        return c.hi + 1
    return target.lanes * knobs.discrete("chunk", divisors(blocks), default=best_divisor(blocks, most))


def _chunked(s: Schedule, phases: te.Tensor, chunks: Var, stage: Stage, at: Var, tile: Tile) -> tuple[Stage, Var]:
    """Sum chunk after chunk of the input channels over all positions of a phase.

    Gives the stage of one chunk's sums, and the loop over chunks around it.

    The weights of a chunk stay in the first-level cache for all positions; sums between chunks are in memory.
    """
    partial = s.rfactor(phases, chunks)
    total, local = s[phases], s[partial]
    total.set_scope("local")
    total.compute_at(stage, at)
    _, o, *inner, lane = total.op.axes
    of_phase, places = inner[: len(inner) // 2], inner[len(inner) // 2 :]
    wo, wi = total.split(places[-1], tile.rows)
    total.reorder(*of_phase, *total.op.reduce_axes, *places[:-1], wo, o, wi, lane)
    total.vectorize(lane)
    total.unroll(o)
    total.unroll(wi)
    local.set_scope("register")
    local.compute_at(total, wo)
    return local, total.op.reduce_axes[0]


def _prefetch_next_chunk(local: Stage, weights: te.Tensor, chunks: Var, loops: Sequence[Var]) -> None:
    """While all positions pass by the weights of one chunk, bring those of the next one into the second-level cache.

    Args:
        local: the sums of a tile over a chunk, computed inside ``chunks``.
        weights: what is fetched.
        chunks: the loop over chunks.
        loops: those of ``local`` over taps and blocks of channels; a line or some are fetched in each iteration of the
            innermost one for which there are enough.
    """
    rank = len(loops) - 1
    lines = size_of(weights.shape[-2 - rank :]) * weights.dtype.itemsize // LINE
    shared = [size_of([a.hi + 1 for _, a in local.loops_between(chunks, at) or ()]) for at in loops]
    fitting = [at for at, parts in zip(loops, shared, strict=True) if parts <= lines]
    if fitting:
        local.prefetch(weights, chunks, fitting[-1], level=2)


def transposed_plain(g: Group, target: Cpu) -> Schedule:
    """Transposed convolution in row-major layout: vectors along a row of one phase, a tile of channels × phases × such
    vectors."""
    assert g.anchor is not None
    p = g.apply({})
    assert p.anchor is not None
    s = Schedule(p.outputs)
    pad = padded_input(p.anchor)
    phases = accumulate_in_registers(s, p.anchor.outputs[0], [pad] if pad is not None else [])
    out = p.outputs[0]
    stage = s[out]
    n, o, *space = stage.op.axes
    strides = p.anchor.attrs["strides"]
    of_phase, places = _phase_loops(stage, space, strides)
    room = 24 if target.registers >= 32 else 12
    per_group = (o.hi + 1) // int(p.anchor.attrs["groups"])
    most = -(-(places[-1].hi + 1) // target.lanes)
    vectors = g.knobs.discrete("vectors", range(1, min(most, target.registers // 2) + 1), default=min(2, most))
    inside = strides[-1] if 1 < strides[-1] <= 4 else 1  # phases along the row that share a tile
    few = [k for k in divisors(per_group) if k < target.registers]
    channels = g.knobs.discrete("rows", few, default=best_divisor(per_group, max(1, room // (vectors * inside))))
    fits = channels * vectors * inside + 2 <= target.registers
    g.knobs.require(fits, "the sums of a tile do not fit the registers")
    oo, oc = stage.split(o, channels)
    wo, wv = stage.split(places[-1], vectors * target.lanes)
    wu, wi = stage.split(wv, target.lanes)
    outer, fw = (of_phase[:-1], of_phase[-1:]) if inside > 1 else (of_phase, [])
    stage.reorder(n, oo, *outer, *places[:-1], wo, oc, *fw, wu, wi)
    _share(stage, [n, oo], [*outer, *places[:-1]])
    stage.vectorize(wi)
    local = s[phases]
    local.compute_at(stage, wo)
    finish_tile(s, out, phases, wo, (oc, *fw, wu))
    *data, row = local.op.axes
    ro, ri = local.split(row, target.lanes)
    local.reorder(*local.op.reduce_axes, *data, ro, ri)
    local.vectorize(ri)
    for a in (ro, data[1], data[1 + len(space)]):
        local.unroll(a)
    if pad is not None:
        spread(s[pad], target)
    return s


def _phase_loops(stage: Stage, space: Sequence[Var], strides: Sequence[int]) -> tuple[list[Var], list[Var]]:
    """Split every spatial axis into positions of a phase and phases; gives the loops over phases (those that there are)
    and the loops over positions."""
    phases, places = [], []
    for a, stride in zip(space, strides, strict=True):
        q = a
        if stride > 1:
            q, f = stage.split(a, stride)
            phases.append(f)
        places.append(q)
    return phases, places


def _share(stage: Stage, outer: Sequence[Var], more: Sequence[Var]) -> Var:
    """Share the outer loops among threads, with as many of the loops behind them as it takes to have enough parts."""
    shared = list(outer)
    for a in more:
        if size_of([b.hi + 1 for b in shared]) >= ENOUGH_PARTS:
            break
        shared.append(a)
    fused = stage.fuse(*shared)
    stage.parallel(fused)
    return fused
