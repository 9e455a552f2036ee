"""Complex operators over tiled layouts: threads that follow whatever layout the layout space gives (ALT §4.3, §5.2).

Of every axis of the result there are the place within a tile of the innermost level and the tile itself, and both are
cut into blocks, threads, and what a thread holds in registers. Threads of a block are numbered as memory lies, so that
neighbours store next to each other. A thread sums up channels and pixels of its own; what its neighbours read, too, is
in the caches, or all fetch it together into shared memory, a block of the channels of weights at a time. The input is
read where it lies; where it has to be put there first, that is a launch of its own.
The loop space is another one for each layout, and its knobs are asked anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import least, opaque
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.cost import OVERHEAD
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.blocks.common import hold
from mlc.targets.gpu.schedules.fetch import ask_asynchronous, ask_versions, fetch_ahead
from mlc.targets.gpu.schedules.spread import spread
from mlc.targets.groups.group import Group, best_divisor, inline_rest
from mlc.targets.groups.template import Template
from mlc.targets.groups.tiling import (
    Tiling,
    arranged,
    ask_terms,
    is_tiled,
    layouts_of,
    levels_of,
    may_be_tiled,
    operands_of,
    terms_of,
    tiling_of,
)

HELD, BESIDE = 8, 64  # of one axis: elements that a thread holds at most, and threads of a block
USUAL_THREADS = 128
USUAL_CHANNELS, USUAL_PIXELS = 4, 4  # that a thread holds
MOST_UNROLLED = 256  # multiplications that are written out
AHEAD = 2  # versions of what is fetched ahead
WIDEST = 8  # elements of a vector

Cut = tuple[int, int, int]  # blocks, threads and registers of an axis


@dataclass(frozen=True)
class Tile:
    """What a block of threads makes of a result.

    Args:
        names: of the axes, channels last.
        places: extents of an innermost tile, by these names.
        cuts: of the axes ``tiles.<name>`` and ``places.<name>``, from outside to inside.
        phases: of a transposed convolution that a thread holds.
    """

    names: tuple[str, ...]
    places: Mapping[str, int]
    cuts: Mapping[str, Cut]
    phases: int

    @property
    def threads(self) -> int:
        return prod(c[1] for c in self.cuts.values())

    @property
    def sums(self) -> int:
        """That a thread holds."""
        return prod(c[2] for c in self.cuts.values()) * self.phases

    @property
    def run(self) -> int:
        """Channels next to each other that a thread holds."""
        return self.cuts[f"places.{self.names[-1]}"][2]

    @property
    def operands(self) -> int:
        """Elements that a thread multiplies at a time: of weights, a channel each, and of the input, a pixel each."""
        *space, channels = ((self.cuts[f"tiles.{n}"][2], self.cuts[f"places.{n}"][2]) for n in self.names)
        return prod(channels) + prod(map(prod, space))

    @property
    def beside(self) -> int:
        """Channels next to each other that a block makes."""
        _, threads, held = self.cuts[f"places.{self.names[-1]}"]
        return threads * held

    def elements(self, tiling: Tiling, taps: int) -> int:
        """Of the input and of weights, that a block reads of a block of channels of weights."""
        parts = [[c[1] * c[2] for c in (self.cuts[f"tiles.{n}"], self.cuts[f"places.{n}"])] for n in self.names]
        *space, channels = parts
        rows = 1
        for (tiles, held), (reach, stride), name in zip(space, tiling.reaches, self.names, strict=False):
            if tiling.data is None:  # what lies between the tiles, too
                rows = rows * (((tiles - 1) * self.places[name] + held - 1) * stride + reach)
            else:
                rows = rows * tiles * ((held - 1) * stride + reach)
        return (rows + prod(channels) * taps) * tiling.depth


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
    thread, tile, usual = _bind(s, out, tiling, knobs, target)
    operands = [new[t] for t in operands_of(g)]
    together, versions = _ask_shared(knobs, p.anchor, tiling, tile, usual, target)
    shared = [_fetched(s, sums, t, copies, "shared") for t in operands] if together else []
    there = (*copies, *shared)
    held = knobs.category("held", (True, False), default=True)
    kept = [_fetched(s, sums, t, there, "local") for t in shared or operands] if held else []
    inline_rest(s, [*there, *kept])
    local = s[sums]
    local.compute_at(s[out], thread)
    loops, chunk = ask_terms(knobs, local, tiling, tile.sums, MOST_UNROLLED)
    local.reorder(*loops, *local.op.axes)
    for a in local.op.axes:
        local.unroll(a)
    if chunk is not None and target.shared_bytes:
        widths = [w for w in (1, 2, 4) if 4 * w <= target.vector_bytes]
        most = knobs.discrete("vector", widths, default=widths[-1])
        runs = (_run(operands[0], tiling.data, tiling.depth), _run(operands[1], tiling.weights, tile.beside))
        parts = [(s[t], best_divisor(run, most)) for t, run in zip(shared, runs, strict=False)]
        for part, vector in parts:
            _share(part, local, chunk, tile.threads, vector)
        asynchronous = target.ahead and ask_asynchronous(knobs, target)
        # what the last round of an inner loop has under way would have to be waited for before the next one begins
        fetch_ahead(parts, versions, asynchronous=asynchronous and loops[0] is chunk, memory=copies)
    for t, whole in zip(kept, (False, tiling.weights is not None), strict=False):
        # in a block of weights, those of neighbouring channels are neighbours
        hold(s[t], local, loops[-1], vectors=whole and t.shape[-1] % tile.run == 0 and WIDEST % tile.run == 0)
    for t in copies:
        spread(s[t], target, knobs, "copy")
    return s


def _ask_shared(
    knobs: Knobs, anchor: te.Compute, tiling: Tiling, tile: Tile, usual: Tile, target: Gpu
) -> tuple[bool, int]:
    """Whether threads of a block fetch together what they read of a block of weights' channels, in how many versions.

    Untuned they do where they can fetch ahead, and two such blocks have room: else neighbours find what they read in
    the caches as well.

    Raises:
        ScheduleError: that is more than there is room for.
    """
    depth, taps = terms_of(anchor, tiling)
    if not depth or not target.shared_bytes:
        return False, 1
    count = prod(int(a.hi) + 1 for a in taps)
    room = 4 * AHEAD * usual.elements(tiling, count)
    ahead = target.ahead and 2 * room <= target.shared_of_unit and room <= target.shared_bytes
    shared: bool = knobs.category("shared", (True, False), default=ahead)
    versions = ask_versions(knobs, AHEAD if ahead else 1) if target.ahead else 1
    if shared:
        wanted, most = 4 * versions * tile.elements(tiling, count), target.shared_bytes
        knobs.require(wanted <= most, f"{wanted} bytes of shared memory, there are {most}")
    return shared, versions


def _fetched(s: Schedule, sums: te.Tensor, t: te.Tensor, there: Sequence[te.Tensor], scope: str) -> te.Tensor:
    """A copy of an operand in some memory; of one that is computed where it is read, the operand itself.

    Args:
        s: the schedule.
        sums: read the operand.
        t: it.
        there: what is computed that lies in memory.
        scope: the memory.
    """
    if t.op is None or t in there:
        return s.cache_read(t, scope, [sums])
    s[t].set_scope(scope)
    return t


def _run(t: te.Tensor, layout: Layout | None, many: int) -> int:
    """Of how many elements next to each other what a block reads is made: so many channels of an operand in blocks."""
    return 1 if layout is None else _common(t.shape[-1], many)


_common = opaque(gcd, np.gcd)


def _share(part: Stage, local: Stage, at: Var, threads: int, vector: int) -> None:
    """All threads of a block fetch what they read of an operand, neighbours what lies side by side there.

    Args:
        part: of the operand.
        local, at: the loop, once around which they fetch.
        threads: of the block.
        vector: elements that one fetches at once.
    """
    part.compute_at(local, at)
    flat, lanes = part.split(part.fuse(*part.leaves), vector)
    part.vectorize(lanes)
    _, thread = part.split(flat, threads)
    part.bind(thread, "threadIdx.x")


def _bind(s: Schedule, out: te.Tensor, tiling: Tiling, knobs: Knobs, target: Gpu) -> tuple[Var, Tile, Tile]:
    """The loops of the result.

    Returns:
        the innermost one that counts threads, what these make, and what they make untuned.
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
    few = bool(together) and together[0].hi < USUAL_PIXELS
    if together and knobs.category("phases.held", ("none", "row"), default="row" if few else "none") == "none":
        together = []
    alone = phases[: len(phases) - len(together)]
    names = tiling.names
    axes = {
        **{f"tiles.{n}": a for n, a in zip(names, tiles, strict=True)},
        **{f"places.{n}": a for n, a in zip(names, places, strict=True)},
    }
    pixels = max(1, USUAL_PIXELS // prod(a.hi + 1 for a in together))
    extents = {name: int(a.hi) + 1 for name, a in axes.items()}
    whole = {n: extents[f"places.{n}"] for n in names}
    usual = Tile(names, whole, _usual(extents, names, pixels), prod(a.hi + 1 for a in together))
    tile = replace(usual, cuts=_ask_cuts(knobs, extents, usual.cuts))
    most = target.max_threads
    knobs.require(tile.threads <= most, f"{tile.threads} threads of a block, {most} are the most")
    wanted, most = tile.sums + tile.operands + OVERHEAD, least(target.registers, target.register_file // tile.threads)
    knobs.require(wanted <= most, f"about {wanted} registers of a thread, there are {most}")
    blocks: dict[str, Var] = {}
    beside: dict[str, Var] = {}
    own: dict[str, Var] = {}
    for name, a in axes.items():
        _, t, r = tile.cuts[name]
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
    if WIDEST % tile.run == 0:
        stage.vectorize(lane)
    else:
        stage.unroll(lane)
    return thread, tile, usual


def _ask_cuts(knobs: Knobs, extents: Mapping[str, int], usual: Mapping[str, Cut]) -> dict[str, Cut]:
    """How axes of some extents, from outside to inside, are cut into blocks, threads and registers."""
    found: dict[str, Cut] = {}
    for name, extent in extents.items():
        blocks, threads, held = knobs.factors(name, extent, 3, default=usual[name], most={1: BESIDE, 2: HELD})
        found[name] = blocks, threads, held
    return found


def _usual(extents: Mapping[str, int], names: Sequence[str], pixels: int) -> dict[str, Cut]:
    """Some channels and pixels a thread, and as many threads as lie side by side in memory.

    Args:
        extents: of the axes ``tiles.<name>`` and ``places.<name>``, from outside to inside.
        names: of the axes of the result, channels last.
        pixels: that a thread holds, together with others that it has anyway.
    """
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
    return replace(found, margins={})  # a border is a condition here


TILED: Template[Gpu] = Template("tiled layouts", _fits, _layouts, schedule_tiled)
