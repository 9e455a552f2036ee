"""The terms of a sum of a row-major convolution: their loops, and fetching weights ahead."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.knobs import Knobs
from mlc.lower.stage import Stage
from mlc.lower.symbolic import plain
from mlc.targets.cpu.cost import Tile

MOST_STEPS = 8  # input channels that are unrolled
MOST_WRITTEN = 1024  # multiply-adds of vectors that are written out where taps are unrolled
AHEAD = (0, 1, 2, 4, 8)  # iterations, after which what is fetched now is read


def terms_of_sum(local: Stage, knobs: Knobs, tile: Tile) -> list[Var]:
    """The loops over terms of a sum, from outside: input channels in blocks, all taps of a block, and some unrolled.

    Args:
        local: the stage that sums up.
        knobs: are asked.
        tile: the register tile.
    Raises:
        ScheduleError: too much is unrolled.
    """
    channels, *taps = local.op.reduce_axes
    n = channels.hi + 1
    _, block, steps = knobs.factors("depth", n, 3, default=(n, 1, 1), most={-1: MOST_STEPS})
    order = knobs.permutation("terms", ("blocks", "taps", "channels"))
    loops = {"blocks": [channels], "taps": taps}
    unrolled: list[Var] = []
    if steps > 1:
        channels, last = local.split(channels, steps)
        local.unroll(last)
        unrolled, loops["blocks"] = [last], [channels]
    if block > 1:
        channels, inner = local.split(channels, block)
        loops["blocks"], loops["channels"] = [channels], [inner]
    unroll_taps(knobs, local, taps, tile.rows * tile.vectors * steps)
    names = sorted((name for name, some in loops.items() if some), key=order.index)
    return [a for name in names for a in loops[name]] + unrolled


def unroll_taps(knobs: Knobs, local: Stage, taps: Sequence[Var], products: int) -> None:
    """Unroll the last of the loops over taps, as many as the knobs say; untuned none.

    Args:
        knobs: are asked, where there are several taps.
        local: the stage that sums up.
        taps: its loops over them.
        products: of vectors that are written out for each tap.
    Raises:
        ScheduleError: too much would be written out.
    """
    several = [a for a in taps if a.hi > 0]
    if not several:
        return
    count = knobs.discrete("unrolled", range(len(several) + 1), default=0)
    for k, a in enumerate(reversed(several)):
        if k < count:
            local.unroll(a)
            products *= a.hi + 1
    knobs.require(count == 0 or products <= MOST_WRITTEN, "too much is unrolled")


def fetch_weights(knobs: Knobs, local: Stage, conv: te.Compute, tiles: Var, at: Var, *, whole: bool = True) -> None:
    """Fetch the weights of a later tile of channels, as many tiles ahead as the knobs say; untuned none.

    Args:
        knobs: are asked, where weights are not computed themselves.
        local: the stage that sums up.
        conv: the convolution, of physical shapes.
        tiles: the loop over tiles of channels.
        at: the loop over terms whose iterations share what is fetched.
        whole: whether the weights of a tile lie together.
    Raises:
        ScheduleError: they do not.
    """
    weights = conv.inputs[-1]
    if weights.op is not None:
        return
    ahead = knobs.discrete("fetch_weights", AHEAD, default=0)
    knobs.require(whole or ahead == 0, "the weights of a tile do not lie together")
    if plain(ahead):  # no loop depends on it
        local.prefetch(weights, tiles, at, distance=plain(ahead), level=2)
