"""Element-wise groups that read a tensor across its rows (transposes): by square tiles in shared memory.

A warp that writes neighbours would read elements that lie a row apart, each from a line of its own. Here the threads of
a block fetch a tile along the rows of what is read, and write it along the rows of the result; the tile's pitch is odd,
so that its columns lie in different banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mlc.ir import te
from mlc.ir.expr import Load, loads
from mlc.ir.index import Linear, Var, as_index, weighted
from mlc.ir.layout import Layout
from mlc.ir.loop import dense_strides
from mlc.lower.inline import inline
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.stream_cost import (
    ACCESS,
    INDEXING,
    Launch,
    by_sectors,
    fastest,
    in_turns,
    instructions_of,
    meeting,
    waits,
)
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.template import Template, row_major

TILES, HIGH = (8, 16, 32), (1, 2, 4, 8, 16)
LEAST = 8  # elements along either side of a tile for it to pay
BANKS = 32  # of shared memory, a word wide


@dataclass(frozen=True)
class Turn:
    """A result whose last axis walks across the rows of what is read.

    Args:
        schedule: in which everything else is inlined into the result.
        source: what is read.
        row: axis of the result that walks along the rows of the source.
    """

    schedule: Schedule
    source: te.Tensor
    row: Var


def schedule_turn(g: Group, target: Gpu) -> Schedule:
    """Tiles through shared memory.

    Raises:
        ScheduleError: the configuration is refused.
    """
    found = _turn(_merged(g))
    assert found is not None
    s, source, row = found.schedule, found.source, found.row
    (out,) = s.outputs
    stage = s[out]
    last = stage.op.axes[-1]
    tiles = {(t, h): _launch(found, t, h, target) for t in TILES for h in HIGH if not _refusal(found, t, h, target)}
    best = fastest(tiles.items(), target)
    tile = g.knobs.discrete("tile", TILES, default=best[0])
    high = g.knobs.discrete("high", HIGH, default=best[1])
    reason = _refusal(found, tile, high, target)
    g.knobs.require(not reason, reason)
    held = s.cache_read(source, "shared", [out])
    others = [a for a in stage.op.axes[:-1] if a is not row]
    by, ri = stage.split(row, tile)
    bx, tx = stage.split(last, tile)
    step, ty = stage.split(ri, high)
    stage.reorder(*others, by, bx, step, ty, tx)
    if others:
        stage.bind(stage.fuse(*others), "blockIdx.z")
    for axis, name in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        stage.bind(axis, name)
    part = s[held]
    part.compute_at(stage, bx)
    part.storage_align(part.op.axes[-2], BANKS, 1)
    _, thread = part.split(part.fuse(*part.op.axes), min(high, row.hi + 1) * min(tile, last.hi + 1))
    for a, name in zip(part.split(thread, min(tile, last.hi + 1)), ("threadIdx.y", "threadIdx.x"), strict=True):
        part.bind(a, name)
    return s


def _refusal(turn: Turn, tile: int, high: int, target: Gpu) -> str:
    """Why a block cannot run, in a few words; empty where it can."""
    wanted = tile * (tile + BANKS) * turn.source.dtype.itemsize
    if wanted > target.shared_bytes:
        return f"{wanted} bytes of shared memory, there are {target.shared_bytes}"
    threads = tile * high
    return f"{threads} threads of a block, {target.max_threads} are the most" if threads > target.max_threads else ""


def _launch(turn: Turn, tile: int, high: int, target: Gpu) -> Launch:
    """What a launch comes to in tiles of so many rows and columns, of which a thread makes every so manieth row."""
    (out,) = turn.schedule.outputs
    op = turn.schedule[out].op
    sides = turn.row.hi + 1, op.axes[-1].hi + 1
    blocks = ceil(sides[0] / tile) * ceil(sides[1] / tile) * size_of(op.shape) // (sides[0] * sides[1])
    high = min(high, sides[0])
    steps, threads = ceil(min(tile, sides[0]) / high), min(tile, sides[1]) * high
    size = turn.source.dtype.itemsize
    tensors = {out, *op.inputs}
    nbytes = sum(min(t.size, size_of(op.shape)) * t.dtype.itemsize for t in tensors)
    operations = sum(map(instructions_of, op.bodies)) + ACCESS * len(tensors) * in_turns(tile * size) + 2 * ACCESS
    instructions = INDEXING + steps * operations + meeting(threads, target)
    shared = tile * (tile + BANKS) * size
    return Launch(blocks, threads, nbytes * by_sectors(tile * size), waits(steps), instructions, shared=shared)


def _turn(g: Group) -> Turn | None:
    if len(g.outputs) != 1 or g.outputs[0].op is None or g.outputs[0].home is not None:
        return None
    s = Schedule(g.outputs)
    inline_rest(s, ())
    inline(s)
    op = s[g.outputs[0]].op
    if not op.axes:
        return None
    last = op.axes[-1]
    for body in op.bodies:
        for ld in loads(body):
            offset = weighted(ld.indices, dense_strides(ld.source.shape))
            if offset.coefficient(last) in (0, 1) or ld.source not in g.inputs:
                continue
            row = next((a for a in op.axes if a is not last and offset.coefficient(a) == 1 and a.hi > 0), None)
            alike = [x.indices for b in op.bodies for x in loads(b) if x.source is ld.source]
            if row is not None and _is_plain(ld, row, last) and all(ix == ld.indices for ix in alike):
                return Turn(s, ld.source, row)
    return None


def _is_plain(ld: Load, row: Var, last: Var) -> bool:
    """Whether two axes move along one dimension each, and nothing else does there."""

    def own(a: Var) -> bool:
        moved = [ix for ix in ld.indices if a in ix.vars()]
        return len(moved) == 1 and moved[0].terms == {a: 1}

    return own(row) and own(last)


def _merged(g: Group) -> Group:
    """A transpose with axes that stay next to each other as one."""
    if len(g.computes) != 1 or len(g.outputs) != 1:
        return g
    (op,) = g.computes
    (body,) = op.bodies
    if not isinstance(body, Load) or body.source not in g.inputs or len(body.indices) != len(op.axes):
        return g
    moves: list[Linear] = [as_index(a) for a in op.axes]
    if any(a.hi == 0 for a in op.axes) or any(ix not in moves for ix in body.indices):
        return g
    perm = [body.indices.index(ix) for ix in moves]  # of the source's dimensions, in order of the result's
    for d in reversed(range(len(perm) - 1)):
        if perm[d + 1] == perm[d] + 1:
            source, out = body.source, g.outputs[0]
            layouts = {source: Layout(source.shape).fuse(perm[d], 2), out: Layout(out.shape).fuse(d, 2)}
            return _merged(g.apply(layouts))
    return g


def _fits(g: Group, target: Gpu) -> bool:
    if g.reductions or not target.shared_bytes or any(0 in t.shape for t in g.outputs):
        return False
    found = _turn(_merged(g))
    if found is None:
        return False
    op = found.schedule[found.schedule.outputs[0]].op
    sides = (found.row.hi + 1, op.axes[-1].hi + 1)
    blocks = ceil(sides[0] / TILES[0]) * ceil(sides[1] / TILES[0])
    return min(sides) >= LEAST and blocks > 1


TURN = Template("transpose", _fits, row_major, schedule_turn)
