"""Winograd convolution: transforms in registers, a matrix product for each point, everything in blocked layouts.

Tiles are one axis over all images. They are taken in blocks whose transformed inputs and products stay in the
second-level cache, every thread with blocks of its own; or, where the weights are so many that reading them once a
block would cost more, all at once in three phases that threads share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.lower.knobs import divisors
from mlc.lower.prefetch import LINE
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import assumed, plain, several
from mlc.ops.algorithms import Algorithm
from mlc.ops.winograd import KERNEL, output_space, tile_counts
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.cost import HIDDEN, Product, Tile, balance, bandwidth, ragged_steps, unrolled_steps
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_blocking import come_from_far
from mlc.targets.cpu.schedules.conv_tile import conv_product, conv_tile
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.master import MASTER
from mlc.targets.cpu.schedules.reduction import REDUCTION
from mlc.targets.cpu.schedules.tile import ask_tile, multiply_lanes
from mlc.targets.groups.group import Group, best_divisor, border_of, inline_rest, inner_layouts, is_single
from mlc.targets.groups.layouts import in_blocks
from mlc.targets.groups.template import Template, constant_at, row_major
from mlc.targets.groups.winograd import only, stages_of, weights_of

MAX_BLOCK_BYTES = 960 << 10  # of what a thread keeps on its stack
PAGE = 4096  # bytes of a way of the first-level cache: addresses this far apart share one set
FEW_CHANNELS = 128  # up to which it was measured what it costs that blocks put points into one set
MAX_PAD = 3  # tiles that may be added to keep points out of each other's sets
WORTH_PAD = 1.1  # times the steps of the product that these may take at most
MOST_STEPS = 8  # input channels that are unrolled
WORTH_TRANSFORMS = 0.95  # part of the cycles of a direct convolution that Winograd's may take at most
MAX_BLOCK = 64  # tiles or slices of a block
GROUPS = (1, 2, 3, 4, 6, 8, 12, 16)  # register tiles of a group
FEW_PLANES = 4  # vectors of channels
FAR = 3  # times the second-level cache from which on an image lies far
PANELS = 8  # of weights that stream from memory, in the second-level cache
TRANSFORM = 2.5  # cycles that a transform takes for each point of a tile and vector of channels, loads included


@dataclass(frozen=True)
class Work:
    """A Winograd convolution as the cost model knows it.

    Args:
        tiles: of an image and, in three dimensions, of a slice; otherwise of all images.
        slices: of all images, 1 in two dimensions.
        window: slices that the taps span.
        channels: of the input.
        filters: channels of the output.
        points: along each axis of a tile.
    """

    tiles: int
    slices: int
    window: int
    channels: int
    filters: int
    points: int

    def cycles(self, block: int, slices: int, target: Cpu) -> tuple[float, Tile]:
        """Estimated cycles with blocks of some tiles of some slices, and the register tile of the product."""
        area = self.points * self.points
        count = (self.tiles // block) * (self.slices // slices)
        columns = -(-self.filters // target.lanes)
        product = Product(block, columns, self.channels * self.window, slices)
        tile = conv_tile(product, target)
        steps = ragged_steps(block, tile, target)
        compute = count * area * slices * product.depth * (columns // tile.vectors) * steps
        weights = 4 * area * self.window * self.channels * self.filters
        if count == 1 and weights / target.memory_bandwidth > compute:
            tile = _narrowed(tile, product, target)
        taken = slices + self.window - 1
        held = 4 * area * block * (taken * self.channels + slices * self.filters)
        images = 4 * (self.points - KERNEL + 1) ** 2 * self.tiles * self.slices * (self.channels + self.filters)
        # in phases all of it passes between a use and the next (measured on Zen 4: 23 MB of 30 did not stay in 32)
        near = bandwidth(held if count > 1 else weights + held + images, target)
        # Transformed inputs and products are written and read, half of it with the transforms, half with the product.
        # What does not stay in the second-level cache is also read to be written; in phases, other cores wrote it.
        times = 2.0 if count == 1 else 1.0 if near >= target.l2_bandwidth else 1.5
        moved = times * count * held / near
        # in a network the weights were last used a whole run ago, and many of its weights are not in any cache by then
        load = weights / target.memory_bandwidth + (count - 1) * weights / bandwidth(weights + held, target) + moved
        # neighbouring blocks of slices transform some inputs twice
        transforms = TRANSFORM * held / 4 / target.lanes * count
        if count > 1 and max(self.channels, self.filters) <= FEW_CHANNELS:  # all at once is padded
            inner = ((taken, self.channels), (slices, self.filters))
            transforms *= area / min(room(area, block, of, target) for of in inner)
        cycles = _together(transforms, moved) + _together(compute, load)
        return cycles * (1.0 if count == 1 else _shared(count, target)), tile


def _narrowed(tile: Tile, product: Product, target: Cpu) -> Tile:
    """The tile of a product that waits for its weights: panels small enough that the next one is fetched meanwhile.

    Measured on Zen 4, 512 x 2 x 7 x 7 by 3 x 3 x 3 taps: panels of 98 KB 1.14 to 1.25 times as fast as those of 393.
    """
    most = target.l2 // PANELS // (target.lane_bytes * target.lanes * product.depth)
    vectors = max((v for v in range(1, tile.vectors + 1) if product.columns % v == 0 and v <= most), default=1)
    return tile if vectors == tile.vectors else conv_tile(product, target, vectors)


def _shared(tasks: int, target: Cpu) -> float:
    """How much longer tasks take than an even share, on average over 1, 2, 4 … threads."""
    threads = [1 << k for k in range(target.cores.bit_length())]
    return sum(balance(tasks, t) for t in threads) / len(threads)


def _together(compute: float, load: float) -> float:
    """Cycles of computing while other data are loaded."""
    return max(compute, load) + (1 - HIDDEN) * min(compute, load)


@dataclass(frozen=True)
class Blocking:
    """How the work is cut: ``block`` tiles of ``slices`` slices at a time, and the register tile of the product."""

    block: int
    slices: int
    tile: Tile
    cycles: float


def block_choices(work: Work) -> list[tuple[int, int]]:
    """Ways to cut a convolution, as tiles and slices of a block; all at once means in phases."""
    choices = [(work.tiles, work.slices)]
    slice_bytes = 4 * work.points**2
    for slices in _divisors(work.slices):
        channels = (slices + work.window - 1) * work.channels + slices * work.filters
        choices += [
            (block, slices) for block in _divisors(work.tiles) if block * slice_bytes * channels <= MAX_BLOCK_BYTES
        ]
    return list(dict.fromkeys(choices))


def blocking(work: Work, target: Cpu) -> Blocking:
    """The fastest way to cut a convolution."""
    found = [(*work.cycles(block, slices, target), block, slices) for block, slices in block_choices(work)]
    cycles, tile, block, slices = min(found, key=lambda f: f[0])
    return Blocking(block, slices, tile, cycles)


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, min(n, MAX_BLOCK) + 1) if n % k == 0]


def winograd_algorithms(
    x: Sequence[int],
    weights: Sequence[int],
    pads: Sequence[int],
    target: Cpu,
    direct_dot: Dot | None = None,
    dot: Dot | None = None,
) -> tuple[Algorithm, ...]:
    """Algorithms of a convolution with 3×3 taps and stride 1, the estimated fastest first; arguments as below."""
    cycles = winograd_cycles(x, weights, pads, target, direct_dot, dot)
    return tuple(sorted(cycles, key=lambda a: cycles[a]))


def winograd_cycles(
    x: Sequence[int],
    weights: Sequence[int],
    pads: Sequence[int],
    target: Cpu,
    direct_dot: Dot | None = None,
    dot: Dot | None = None,
) -> dict[Algorithm, float]:
    """What the algorithms of a convolution with 3×3 taps and stride 1 take, beside one another.

    Tiles of six are not among them: they save little more, and their error is twice that of tiles of four.

    Args:
        x: shape of the input, ``[n, c, (d,) h, w]``.
        weights: shape, ``[o, c, (k,) 3, 3]``.
        pads: zeros around the input, all begins before all ends.
        target: the processor.
        direct_dot: adds up products of bytes, or words that they are widened to.
        dot: adds up products of words, in which bytes are computed exactly by tiles of two.
    """
    filters, channels, *taps = weights
    if channels % target.lanes or filters % target.lanes or not all(x):
        return {Algorithm.DIRECT: 1.0}
    space = output_space(x[2:], taps, pads)
    cycles = {Algorithm.DIRECT: WORTH_TRANSFORMS * _direct_cycles(x, (x[0], filters, *space), taps, target, direct_dot)}
    if dot is not None and direct_dot is not None:  # of which a step may take longer than one of words
        cycles[Algorithm.DIRECT] *= direct_dot.operations / dot.operations
    terms, target = 1 if dot is None else dot.terms, target.adding(dot)
    for algorithm in (Algorithm.WINOGRAD_2, Algorithm.WINOGRAD_4)[: 2 if dot is None else 1]:
        m = algorithm.tile
        high, wide = tile_counts(space, m)
        slices = x[0] * space[0] if len(space) == 3 else 1
        tiles = high * wide * (1 if len(space) == 3 else x[0])
        window = taps[0] if len(taps) == 3 else 1
        cycles[algorithm] = blocking(
            Work(tiles, slices, window, channels // terms, filters, m + KERNEL - 1), target
        ).cycles
    return cycles


def _direct_cycles(x: Sequence[int], y: Sequence[int], taps: Sequence[int], target: Cpu, dot: Dot | None) -> float:
    terms, target = 1 if dot is None else dot.terms, target.adding(dot)
    product = conv_product((x[0], x[1] // terms, *x[2:]), y, taps, False, target)
    return product.cycles(conv_tile(product, target), target)


def winograd_weights(g: Group, target: Cpu) -> Layout:
    """Weights in the order of use: ``[points²][O / block][k C][block]``, and last the terms of an instruction.

    Raises:
        ScheduleError: the configuration is refused.
    """
    shape = weights_of(g).shape
    block = _plan(g, target).tile.vectors * target.lanes
    layout = Layout(tuple(shape)).split(len(shape) - 1, block)
    layout = layout.reorder(1, 2, 4, 0, 3, 5) if len(shape) == 5 else layout.reorder(0, 1, 3, 2, 4)
    layout = layout.fuse(0, 2)
    terms, last = terms_of(g, target), len(layout.physical_shape) - 1
    return layout if terms == 1 else layout.split(last - 1, terms).reorder(*range(last), last + 1, last)


def dot_of(g: Group, target: Cpu) -> Dot | None:
    """How the processor sums up the products of points, where it does several at once."""
    assert g.anchor is not None
    points, weights = g.anchor.inputs
    return target.dot_of(points.dtype, weights.dtype)


def terms_of(g: Group, target: Cpu) -> int:
    dot = dot_of(g, target)
    return 1 if dot is None else dot.terms


@dataclass(frozen=True)
class WinogradPlan:
    """What a Winograd convolution chooses.

    Args:
        block: tiles that are taken together, all of them in phases.
        slices: that are taken together.
        tile: the register tile of the product.
        walk: the loops over register tiles, from outside: ``columns``, ``slices`` and ``rows`` of them.
        outside: how many of these are around the points, and not inside of each.
        group: register tiles of neighbouring rows that are one iteration of ``rows``.
        steps: instructions for each sum that one iteration of its innermost loop takes.
        inputs: groups of input channels, and vectors of each, that are transformed together, and
        inward: the loops over those, from outside: ``tiles`` and ``channels``.
        outputs: groups of output channels, and vectors of each, that are transformed together, and
        outward: the loops over those.
        prefetch: whether the next weights are fetched while these are used.
    """

    block: int
    slices: int
    tile: Tile
    walk: tuple[str, ...]
    outside: int
    group: int
    steps: int
    inputs: tuple[int, ...]
    inward: tuple[str, ...]
    outputs: tuple[int, ...]
    outward: tuple[str, ...]
    prefetch: bool


def _plan(g: Group, target: Cpu) -> WinogradPlan:
    """What the knobs say, and the cost model where they say nothing."""
    assert g.anchor is not None
    knobs = g.knobs
    points, _, *slices, tiles, filters = g.anchor.shape
    *window, channels = (a.hi + 1 for a in g.anchor.reduce_axes)
    dot = dot_of(g, target)
    channels //= terms_of(g, target)
    target = target.adding(dot)
    work = Work(tiles, prod(slices), prod(window), channels, filters, points)
    best = blocking(work, target)
    block, together = knobs.category("cut", block_choices(work), default=(best.block, best.slices))
    columns = -(-filters // target.lanes)
    widths = [v for v in divisors(columns) if v <= target.registers // 2]
    tile = ask_tile(knobs, best.tile, range(1, min(tiles, target.registers - 2) + 1), widths, target)
    far = come_from_far(weights_of(g), target)
    unrolled = unrolled_steps(best.tile, target, dot)
    if far and (best.slices, best.block) == (work.slices, work.tiles):  # weights are read once
        unrolled = min(unrolled, _steps_of_a_line(best, target))
    unrolled = best_divisor(channels, unrolled)
    steps = knobs.discrete("steps", [n for n in divisors(channels) if n <= MOST_STEPS], default=unrolled)
    walk = knobs.permutation("walk", ("columns", "slices", "rows") if slices else ("columns", "rows"))
    outside = knobs.discrete("outside", range(len(walk) + 1), default=0)
    group = knobs.discrete("group", [n for n in GROUPS if n <= tiles], default=1)
    among = tiles if (together, block) == (prod(slices), tiles) else block
    knobs.require(-(-among // tile.rows) % group == 0, "register tiles cannot be cut evenly into such groups")
    vectors = -(-(g.anchor.reduce_axes[-1].hi + 1) // target.lanes)
    inputs = knobs.factors("inputs", vectors, 2, default=(1, vectors))
    outputs = knobs.factors("outputs", columns, 2, default=(1, columns))
    inward, outward = (
        knobs.permutation(name, ("tiles", "channels"), default=_usual_order(work, count, dot, target))
        for name, count in (("inward", channels), ("outward", filters))
    )
    fetch = knobs.category("prefetch", (False, True), default=far)
    return WinogradPlan(block, together, tile, walk, outside, group, steps, inputs, inward, outputs, outward, fetch)


def _steps_of_a_line(cut: Blocking, target: Cpu) -> int:
    """How many steps of a register tile fetch one line of the next weights, of which all tiles of rows share a panel.

    Fetched one by one, lines do not wait for each other (measured on Zen 5 in ResNet-18: 512 x 7 x 7 take 545 us, by
    the four 640, 256 x 14 x 14 take 345 and 480; in ResNet-50, whose weights come from memory as well, as long).
    """
    step = cut.tile.vectors * target.vector_bytes
    return max(1, LINE * -(-cut.block // cut.tile.rows) // step)


def _usual_order(work: Work, channels: int, dot: Dot | None, target: Cpu) -> tuple[str, ...]:
    """The loops over what is transformed: all vectors of channels of a tile, one after the other, if it is near.

    Images that lie far are read and written plane by plane, where a vector is a part of a line (measured on Zen 3: 0.78
    to 0.99 of the time for images of 1.6 to 6.4 MB, those of 120 and 160 pixels by 32 channels the least; 1.05 times
    for images of up to 0.8 MB), or planes are few, so that a block has a long run of each (measured on Zen 4, whose
    vectors are lines: 0.86 to 0.98 for 32 and 64 channels and 3.2 to 26 MB; 0.97 to 1.04 for 128 and 256).
    """
    m = work.points - KERNEL + 1
    image = target.lane_bytes * work.tiles * work.slices * m * m * channels
    runs = target.vector_bytes < LINE or channels <= FEW_PLANES * target.lanes
    far = dot is None and image > FAR * target.l2 and runs
    return ("channels", "tiles") if far else ("tiles", "channels")


def _in_phases(g: Group, cut: WinogradPlan) -> bool:
    assert g.anchor is not None
    _, _, *slices, tiles, _ = g.anchor.shape
    return (cut.slices, cut.block) == (prod(slices), tiles)


def _loops_over_tiles(stored: Layout, m: int) -> Layout:
    """``[(slices)][tiles][O / v][m][m][v]`` for an output stored as ``[n][O / v][(d)][h][w][v]``."""
    core = stored.core
    *_, h, w, _ = core.physical_shape
    high, wide = tile_counts((h, w), m)
    at = len(core.physical_shape) - 3  # of the height
    tiled = core.pad(at, 0, high * m - h).split(at, m).pad(at + 2, 0, wide * m - w).split(at + 2, m)
    if at == 2:  # [n][O / v][high][m][wide][m][v]
        return tiled.reorder(0, 2, 4, 1, 3, 5, 6).fuse(0, 3)
    return tiled.reorder(0, 2, 3, 5, 1, 4, 6, 7).fuse(2, 2).fuse(0, 2)


def schedule_winograd(g: Group, target: Cpu) -> Schedule:
    """Input transform, product and output transform with what follows the convolution.

    Raises:
        ScheduleError: the configuration is refused.
    """
    (out,) = g.outputs
    cut, stages = _plan(g, target), stages_of(g)
    assert stages is not None
    loops = _loops_over_tiles(g.layouts[out], stages.tile)
    extra = {t: loops for t in (*inner_layouts(g), out)}
    data = only(stages.columns.op.inputs) if stages.columns.op is not None else None
    padded = data is not None and border_of(data) is not None
    if padded and data is not None:
        extra[data] = blocked(data.shape, 1, target.lanes)
    phases = _in_phases(g, cut)
    for t in (stages.points, stages.products) if phases else ():
        if more := padding(t.shape, Tile(*plain(tuple(cut.tile))), target):
            extra[t] = Layout(t.shape).pad(len(t.shape) - 2, 0, more)
    p, new = g.applied(extra)
    (out,) = p.outputs
    columns, points, products, rows = (new[t] for t in stages[:4])
    pad = new[data] if padded and data is not None else None
    s = Schedule(p.outputs)
    sums = s.cache_write(products, "register")
    held = [columns, points, rows, products, *([pad] if pad is not None else [])]
    inline_rest(s, held)
    if pad is not None:
        spread(s[pad], target)
    *where, filters, i, j, lane = out.op.axes if out.op is not None else ()
    _inputs(s[points], s[columns], cut, target, parallel=phases)
    _products(s[products], s[sums], weights_of(p), cut, dot_of(p, target), target, parallel=phases)
    stage = s[out]
    some: list[Var] = []
    if several(cut.outputs[0]):
        first, filters = stage.split(filters, cut.outputs[1])
        some = [first]
    if phases:
        walk = _transform_loops(cut.outward, where, filters)
        stage.reorder(*some, *walk, i, j, lane)
        at = stage.fuse(*some, *walk)
        stage.parallel(at)
    else:
        sizes = [cut.block] if len(where) == 1 else [cut.slices, cut.block]
        outer, inner = zip(*(stage.split(a, size) for a, size in zip(where, sizes, strict=True)), strict=True)
        walk = _transform_loops(cut.outward, inner, filters)
        stage.reorder(*outer, *some, *walk, i, j, lane)
        block = stage.fuse(*outer)
        stage.parallel(block)
        s[points].compute_at(stage, block)
        s[products].compute_at(stage, block)
        at = walk[-1]
    stage.unroll(i)
    stage.unroll(j)
    stage.vectorize(lane)
    _whole(s[rows])
    s[rows].compute_at(stage, at)
    return s


def padding(shape: Sequence[int], tile: Tile, target: Cpu) -> int:
    """Tiles to add to ``[points][points]…[tiles][channels]``, so that all points of a tile fit the first-level cache.

    A transform reads or writes every point of a tile at once. Their distance is often a multiple of a large power of
    two, and then they share a few sets of the cache (measured on Zen 3: up to 8 % of a convolution; on Zen 5, where
    blocks of 32 or 64 tiles of 16 channels were taken: a quarter to half of it).
    """
    points, inner = shape[0] * shape[1], (*shape[2:-2], shape[-1])
    steps = [ragged_steps(shape[-2] + pad, tile, target) for pad in range(MAX_PAD + 1)]
    pads = [pad for pad, n in enumerate(steps) if n <= WORTH_PAD * steps[0]]
    return max(pads, key=lambda pad: (room(points, shape[-2] + pad, inner, target), -pad))


def room(points: int, tiles: int, inner: Sequence[int], target: Cpu) -> int:
    """How many points of a tile the first-level cache holds at once, which is as many as there are where it can be.

    Args:
        points: of a tile.
        tiles: that lie between two points of one, each of ``inner`` numbers.
        inner: extents of what a tile has at each point.
        target: has the cache.
    """
    stride = 4 * tiles * prod(inner)
    return min(points, PAGE // gcd(stride, PAGE) * (target.l1 // PAGE))


def _whole(stage: Stage) -> None:
    """All points of one tile and one vector of channels, in registers."""
    a, b, *_, lane = stage.op.axes
    stage.set_scope("register")
    stage.unroll(a)
    stage.unroll(b)
    stage.vectorize(lane)


def _transform_loops(order: tuple[str, ...], tiles: Sequence[Var], channels: Var) -> list[Var]:
    """Loops of a transform over tiles and vectors of channels, in an order."""
    return [*tiles, channels] if order.index("tiles") < order.index("channels") else [channels, *tiles]


def _inputs(points: Stage, columns: Stage, plan: WinogradPlan, target: Cpu, *, parallel: bool) -> None:
    """Transform tile by tile, a vector of channels at once."""
    e, f, *where, channel = points.op.axes
    outer, lane = points.split(channel, target.lanes)
    first: list[Var] = []
    if several(plan.inputs[0]):
        some, outer = points.split(outer, plan.inputs[1])
        first = [some]
    walk = [*first, *_transform_loops(plan.inward, where, outer)]
    points.reorder(*walk, e, f, lane)
    points.unroll(e)
    points.unroll(f)
    points.vectorize(lane)
    at = walk[-1]
    if parallel:
        at = points.fuse(*walk)
        points.parallel(at)
    else:
        points.set_scope("local")
    _whole(columns)
    columns.compute_at(points, at)


def _around_points(walk: Sequence[Var], plan: WinogradPlan) -> tuple[list[Var], list[Var]]:
    """The loops over register tiles that are around the points, and those inside of each."""
    count = next(k for k in range(len(walk) + 1) if plan.outside == k)
    return list(walk[:count]), list(walk[count:])


def _products(
    products: Stage,
    sums: Stage,
    weights: te.Tensor,
    plan: WinogradPlan,
    dot: Dot | None,
    target: Cpu,
    *,
    parallel: bool,
) -> None:
    """A register tile of tiles × filters for each point."""
    tile = plan.tile
    e, f, *slices, row, column = products.op.axes
    rows, inner_row = products.split(row, tile.rows)
    columns, inner_column = products.split(column, tile.vectors * target.lanes)
    vector, lane = products.split(inner_column, target.lanes)
    group: list[Var] = []
    if several(plan.group):
        rows, some = products.split(rows, plan.group)
        group = [some]
    loops = {"columns": [columns], "slices": slices, "rows": [rows]}
    walk = [a for name in sorted(loops if slices else ("columns", "rows"), key=plan.walk.index) for a in loops[name]]
    around, within = _around_points(walk, plan)
    products.reorder(*around, e, f, *within, *group, inner_row, vector, lane)
    if parallel and not around and walk[0] is columns:
        columns = products.fuse(e, f, columns)
        products.parallel(columns)
        within[0] = columns
    else:
        points = products.fuse(e, f)
        if parallel:
            products.parallel(around[0] if around else points)
        else:
            products.set_scope("local")
        within = [points, *within]
        if columns in around:  # whose panels of all points are no neighbours
            columns = points
    products.unroll(inner_row)
    products.unroll(vector)
    products.vectorize(lane)
    sums.compute_at(products, [*within, *group][-1])
    *window, c = sums.op.reduce_axes
    *others, row, column = sums.op.axes
    vector, lane = sums.split(column, target.lanes)
    inner = [lane]
    if dot is not None:
        c, terms = sums.split(c, dot.terms)
        inner.append(terms)
    sums.reorder(*window, c, *others, row, vector, *inner)
    if several(plan.steps):
        c, some = sums.split(c, plan.steps)
        sums.unroll(some)
    if assumed(plan.prefetch):
        # panels follow one another in memory, those of the next point those of one point too
        sums.prefetch(weights, columns, c, level=2)
    sums.unroll(row)
    sums.unroll(vector)
    multiply_lanes(sums, lane, dot)


def _fits(g: Group, target: Cpu) -> bool:
    """Whether whole vectors hold the channels, and nothing follows that changes the shape."""
    stages = stages_of(g) if is_single(g) else None
    if stages is None:
        return False
    channels, filters = weights_of(g).shape[-2:]
    whole = channels % target.lanes == 0 and filters % target.lanes == 0
    return whole and g.outputs[0].shape == stages.tiles.shape


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    k = constant_at(g, site, weights_of(g))
    if k is None:
        return row_major(g, site, target)
    return in_blocks(g, site, target.lanes, {k: winograd_weights(g, target)})


def _schedule(g: Group, target: Cpu) -> Schedule:
    """As it is meant over blocks; stage by stage where layouts are not assigned, or weights are no constants."""
    if g.outputs[0] in g.layouts:
        return schedule_winograd(g, target)
    stages = MASTER if MASTER.fits(g, target) else REDUCTION
    return stages.schedule(g, target)


WINOGRAD = Template("Winograd convolution", _fits, _layouts, _schedule)
