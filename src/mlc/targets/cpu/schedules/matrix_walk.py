"""Loops around what a unit for matrices sums up at once, of convolutions and products alike."""

from __future__ import annotations

from typing import NamedTuple

from mlc.ir.index import Var
from mlc.lower.knobs import Knobs
from mlc.lower.stage import Stage
from mlc.lower.symbolic import pinned, several
from mlc.targets.cpu.matrix import Sums
from mlc.targets.cpu.schedules.matrix_tile import Work

PARTS = (1, 2, 3, 4, 6, 8, 12, 16)  # tiles, and panels, that a block may have
LOOPS = ("panels", "tiles")
MOST_STEPS = 4  # matrices for each sum that are written out


class Walk(NamedTuple):
    """How tiles follow one another.

    Args:
        panels: of columns in a block.
        tiles: of rows, or pixels, in a block.
        order: of the loops over blocks, from outside.
        inside: of the loops within a block.
        shared: how many of all these threads share; as many as pay if 0.
        steps: products for each sum that are written out.
    """

    panels: int
    tiles: int
    order: tuple[str, ...]
    inside: tuple[str, ...]
    shared: int
    steps: int


def ask_walk(knobs: Knobs, work: Work, sums: Sums, blocks: int) -> Walk:
    """What the knobs say; untuned, panel after panel.

    Args:
        knobs: are asked.
        work: what is computed.
        sums: at once.
        blocks: of terms, of which some may be written out.
    Raises:
        ScheduleError: blocks or steps would not be whole.
    """
    panels = knobs.discrete("panels", [k for k in PARTS if k <= work.columns], default=1)
    tiles = knobs.discrete("tiles", [k for k in PARTS if k <= work.bands], default=1)
    even = -(-work.columns // sums.vectors) % panels == 0
    knobs.require(even, "panels cannot be cut evenly into such blocks")
    even = -(-work.bands // sums.bands) % tiles == 0
    knobs.require(even, "tiles cannot be cut evenly into such blocks")
    order = knobs.permutation("order", LOOPS)
    inside = knobs.permutation("inside", LOOPS)
    shared = knobs.discrete("shared", (0, 1, 2, 3), default=0)
    _, steps = knobs.factors("depth", blocks, 2, default=(blocks, 1), most={1: MOST_STEPS})
    return Walk(panels, tiles, order, inside, pinned(shared), steps)


def cut_loops(stage: Stage, panels: Var, tiles: Var, walk: Walk) -> list[Var]:
    """The loops over panels and tiles in the order that is asked for, from outside; the inner ones may have one
    iteration.
    """
    outer_panels, inner_panels = stage.split(panels, walk.panels)
    outer_tiles, inner_tiles = stage.split(tiles, walk.tiles)
    outer = {"panels": outer_panels, "tiles": outer_tiles}
    inner = {"panels": inner_panels, "tiles": inner_tiles}
    return [*(outer[name] for name in walk.order), *(inner[name] for name in walk.inside)]


def write_out(local: Stage, blocks: Var, walk: Walk) -> tuple[Var, list[Var]]:
    """The loop over blocks of terms, and the one inside whose steps are written out, if there are several."""
    if not several(walk.steps):
        return blocks, []
    blocks, step = local.split(blocks, walk.steps)
    local.unroll(step)
    return blocks, [step]
