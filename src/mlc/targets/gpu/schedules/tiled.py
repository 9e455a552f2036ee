"""Complex operators over tiled layouts: threads that follow whatever layout the layout space gives (ALT §4.3, §5.2).

Of every axis of the result there are the place within a tile of the innermost level and the tile itself, and both are
cut into blocks, threads, and what a thread holds in registers. Threads of a block are numbered as memory lies, so that
neighbours store next to each other; a thread sums up channels and pixels of its own, and what its neighbours read, too,
comes from the caches. The input is read where it lies; where it has to be put there first, that is a launch of its own.
The loop space is another one for each layout, and its knobs are asked anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.cost import OVERHEAD
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.spread import spread
from mlc.targets.groups.group import Group, best_divisor, inline_rest
from mlc.targets.groups.template import Site, Template
from mlc.targets.groups.tiling import (
    Tiling,
    arranged,
    ask_terms,
    is_tiled,
    layouts_of,
    levels_of,
    may_be_tiled,
    tiling_of,
)

HELD, BESIDE = 8, 64  # of one axis: elements that a thread holds at most, and threads of a block
USUAL_THREADS = 128
USUAL_CHANNELS, USUAL_PIXELS = 4, 4  # that a thread holds
MOST_UNROLLED = 256  # multiplications that are written out

Cut = tuple[int, int, int]  # blocks, threads and registers of an axis


def schedule_tiled(g: Group, target: Gpu) -> Schedule:
    """A sum of products, and what follows it, over the layouts that its configuration says.

    Raises:
        ScheduleError: the configuration is refused.
    """
    knobs, tiling = g.knobs, tiling_of(g)
    g, inner, copied = arranged(g, tiling)
    p, new = g.applied({**inner, g.outputs[0]: tiling.output})
    assert p.anchor is not None
    s = Schedule(p.outputs)
    out, sums = p.outputs[0], p.anchor.outputs[0]
    # a border around what lies as it is costs a condition where it is read, or a launch and a copy
    apart = copied is not None
    if copied is not None and tiling.data is None:
        apart = knobs.category("border", ("inline", "apart"), default="inline") == "apart"
    copies = [new[copied]] if copied is not None and apart else []
    sums = s.cache_write(sums, "local") if sums in s.outputs else sums
    s[sums].set_scope("local")
    inline_rest(s, copies)
    thread, held = _bind(s, out, tiling, knobs, target)
    local = s[sums]
    local.compute_at(s[out], thread)
    loops = ask_terms(knobs, local, tiling, held, MOST_UNROLLED)
    local.reorder(*loops, *local.op.axes)
    for a in local.op.axes:
        local.unroll(a)
    for t in copies:
        spread(s[t], target, knobs, "copy")
    return s


def _bind(s: Schedule, out: te.Tensor, tiling: Tiling, knobs: Knobs, target: Gpu) -> tuple[Var, int]:
    """The loops of the result.

    Returns:
        the innermost one that counts threads, and how many elements a thread holds.
    Raises:
        ScheduleError: a block cannot run.
    """
    stage = s[out]
    lead, levels = levels_of(stage.op.axes, tiling)
    *outside, tiles, places = levels
    phases: list[Var] = []
    for k, stride in enumerate(tiling.strides):
        if stride > 1:
            places[k], phase = stage.split(places[k], stride)
            phases.append(phase)
    together = phases[-1:] if tiling.strides and tiling.strides[-1] > 1 else []
    usual = "row" if together and together[0].hi < USUAL_PIXELS else "none"
    if together and knobs.category("phases.held", ("none", "row"), default=usual) == "none":
        together = []
    alone = phases[: len(phases) - len(together)]
    names = tiling.names
    axes = {
        **{f"tiles.{n}": a for n, a in zip(names, tiles, strict=True)},
        **{f"places.{n}": a for n, a in zip(names, places, strict=True)},
    }
    pixels = max(1, USUAL_PIXELS // prod(a.hi + 1 for a in together))
    cuts = _ask_cuts(knobs, {name: int(a.hi) + 1 for name, a in axes.items()}, names, pixels)
    threads = prod(c[1] for c in cuts.values())
    held = prod(c[2] for c in cuts.values()) * prod(a.hi + 1 for a in together)
    knobs.require(threads <= target.max_threads, f"{threads} threads of a block, {target.max_threads} are the most")
    wanted = held + _reads(cuts, names) + OVERHEAD
    most = target.registers
    knobs.require(wanted <= most, f"about {wanted} registers of a thread, there are {most}")
    blocks: dict[str, Var] = {}
    beside: dict[str, Var] = {}
    own: dict[str, Var] = {}
    for name, a in axes.items():
        _, t, r = cuts[name]
        a, own[name] = stage.split(a, r)
        blocks[name], beside[name] = stage.split(a, t)
    by_space = knobs.category("order", ("space", "channels"), default="space") == "space"
    order = list(names) if by_space else [names[-1], *names[:-1]]
    grid = [*lead, *alone, *(level[names.index(n)] for level in outside for n in order)]
    grid += [blocks[f"{what}.{n}"] for what in ("tiles", "places") for n in order]
    *rows, lane = own.values()
    stage.reorder(*grid, *beside.values(), *together, *rows, lane)
    stage.bind(stage.fuse(*grid), "blockIdx.x")
    thread = stage.fuse(*beside.values())
    stage.bind(thread, "threadIdx.x")
    for a in (*together, *rows):
        stage.unroll(a)
    if cuts[f"places.{names[-1]}"][2] in (2, 4, 8):
        stage.vectorize(lane)
    else:
        stage.unroll(lane)
    return thread, held


def _reads(cuts: Mapping[str, Cut], names: Sequence[str]) -> int:
    """Elements that a thread multiplies at a time: of weights, a channel each, and of the input, a pixel each."""
    channels = cuts[f"tiles.{names[-1]}"][2] * cuts[f"places.{names[-1]}"][2]
    pixels = prod(cuts[f"{what}.{n}"][2] for what in ("tiles", "places") for n in names[:-1])
    return channels + pixels


def _ask_cuts(knobs: Knobs, extents: Mapping[str, int], names: Sequence[str], pixels: int) -> dict[str, Cut]:
    """How every axis is cut, as the knobs say.

    Args:
        knobs: are asked ``tiles.<name>`` and ``places.<name>`` for blocks, threads and registers.
        extents: of the axes, from outside to inside.
        names: of the axes of the result, channels last.
        pixels: that a thread holds where nothing is said.
    """
    usual = _usual(extents, names, pixels)
    found: dict[str, Cut] = {}
    for name, extent in extents.items():
        blocks, threads, held = knobs.factors(name, extent, 3, default=usual[name], most={1: BESIDE, 2: HELD})
        found[name] = blocks, threads, held
    return found


def _usual(extents: Mapping[str, int], names: Sequence[str], pixels: int) -> dict[str, Cut]:
    """Some channels and pixels a thread, and as many threads as lie side by side in memory."""
    inside = [f"{what}.{n}" for what in ("places", "tiles") for n in reversed(names)]
    held = dict.fromkeys(extents, 1)
    for some, most in (([names[-1]], USUAL_CHANNELS), (list(names[:-1]), pixels)):
        for name in inside:
            if name.split(".")[1] in some:
                held[name] = best_divisor(extents[name], most)
                most //= held[name]
    left, found = USUAL_THREADS, {}
    for name in inside:
        whole = extents[name] // held[name]
        threads = best_divisor(whole, min(left, BESIDE))
        left //= threads
        found[name] = whole // threads, threads, held[name]
    return found


def _fits(g: Group, target: Gpu) -> bool:
    return is_tiled(g.knobs) and may_be_tiled(g)


def _layouts(g: Group, site: Site, target: Gpu) -> LayoutChoice:
    found = layouts_of(g, site)
    return LayoutChoice(found.outputs, found.packed, {}, found.inside)  # a border is a condition here


TILED: Template[Gpu] = Template("tiled layouts", _fits, _layouts, schedule_tiled)
