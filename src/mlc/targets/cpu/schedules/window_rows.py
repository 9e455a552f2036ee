"""Loops of windows along one axis: there are no rows to tile, so the row itself is cut into tasks."""

from __future__ import annotations

from mlc.ir.index import Var
from mlc.lower.knobs import Knobs
from mlc.lower.stage import Stage
from mlc.lower.symbolic import several
from mlc.targets.cpu.cost import Tile
from mlc.targets.cpu.record import Cpu

RUNS = (1, 2, 4, 8, 16)  # tiles of a row that are a task, or a block


def row_loops(stage: Stage, lanes: int, tile: Tile, block: tuple[int, int] | None, knobs: Knobs) -> tuple[Var, Var]:
    """Loops over a result of one row, of which a task has all tiles of a channel where the knobs say nothing.

    Args:
        stage: of the result.
        lanes: of a vector.
        tile: its vectors.
        block: channels of a task; ``None`` for one.
        knobs: are asked.
    Returns:
        the loop over tasks and the innermost one over tiles.
    Raises:
        ScheduleError: tiles cannot be cut evenly into such tasks.
    """
    *outer, width = stage.op.axes
    vectors = -(-(width.hi + 1) // lanes)
    wo, wv = stage.split(width, lanes * tile.vectors)
    wu, lane = stage.split(wv, lanes)
    stage.vectorize(lane)
    stage.unroll(wu)
    runs = knobs.discrete("runs", (0, *(k for k in RUNS if k < vectors)), default=0)  # 0: all
    knobs.require(runs == 0 or (wo.hi + 1) % runs == 0, "tiles of a row cannot be cut evenly into such tasks")
    walk = knobs.permutation("walk", ("channels", "columns"))
    loops = {"columns": wo}
    if block is not None:
        outer[1], loops["channels"] = stage.split(outer[1], block[0])
    if runs > 0:
        first, loops["columns"] = stage.split(wo, runs)
        outer.append(first)
    inner = [loops[name] for name in sorted(loops, key=walk.index)]
    stage.reorder(*outer, *inner, wu, lane)
    at = stage.fuse(*outer)
    stage.parallel(at)
    return at, inner[-1]


def blocked_row_loops(stage: Stage, knobs: Knobs, target: Cpu, usual: int) -> tuple[Var, list[Var]]:
    """Loops over a result of one row in blocks of channels, whose last tile may be a part of one.

    Args:
        stage: of the result.
        knobs: are asked.
        target: has the registers.
        usual: columns of a tile where the knobs say nothing.
    Returns:
        the loop inside which a tile is computed, and that over the columns of one.
    Raises:
        ScheduleError: channels or tiles cannot be cut evenly.
    """
    n, channels, width, lane = stage.op.axes
    count = channels.hi + 1
    columns = knobs.discrete("columns", range(1, min(width.hi + 1, target.registers - 2) + 1), default=usual)
    _, some = knobs.factors("channels", count, 2, default=(count, 1))
    runs = knobs.discrete("runs", [k for k in RUNS if k <= width.hi + 1], default=1)
    wo, wi = stage.split(width, columns)
    knobs.require((wo.hi + 1) % runs == 0, "tiles of a row cannot be cut evenly into such blocks")
    stage.unroll(wi)
    loops = {"channels": channels, "blocks": wo}
    if several(some):
        loops["channels"], loops["inner"] = stage.split(channels, some)
    if several(runs):
        loops["blocks"], loops["columns"] = stage.split(wo, runs)
    order = knobs.permutation("walk", ("channels", "blocks", "inner", "columns"))
    walk = [loops[name] for name in sorted(loops, key=order.index)]
    # how many of these loops threads share; untuned, all but those of a row
    shared = knobs.discrete("shared", (0, 1, 2), default=0)
    first = min(walk.index(loops[name]) for name in ("blocks", "columns") if name in loops)
    together = [a for k, a in enumerate(walk) if k < shared] if shared else walk[:first]
    stage.reorder(n, *walk, wi, lane)
    at = stage.fuse(n, *together)
    stage.parallel(at)
    stage.vectorize(lane)
    return walk[-1] if walk[-1] not in together else at, [wi]
