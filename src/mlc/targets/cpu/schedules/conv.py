"""Direct convolution in blocked layouts.

Outputs ``NCHW[v]c`` with ``v`` the vector width, a register tile of pixels × channel vectors, one broadcast of
the input and one fused multiply-add a vector; weights are packed in the order in which they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from mlc.ir import te
from mlc.ir.expr import Load
from mlc.ir.index import Var, as_index, substitute
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.lower.knobs import divisors
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import assumed, pinned
from mlc.ops.algorithms import Algorithm
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.cost import USABLE, Tile, bandwidth, fetches_ahead, unrolled_steps
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_blocking import CACHED, Blocking, chunks_of, come_from_far, cut_for_caches
from mlc.targets.cpu.schedules.conv_filters import block_of, in_filters, passes_over, worthy_block
from mlc.targets.cpu.schedules.conv_loops import ConvPlan, blocked_loops, chunked_loops
from mlc.targets.cpu.schedules.conv_matrix import (
    MatrixConv,
    ask_matrices,
    conv_by_matrices,
    lies_in_matrices,
    matrix_layouts,
)
from mlc.targets.cpu.schedules.conv_plain import conv_plain, plain_product, plain_tile, plain_weight_layout
from mlc.targets.cpu.schedules.conv_runs import run_weight_layout
from mlc.targets.cpu.schedules.conv_tile import (
    BYTES,
    WIDE_VECTOR,
    conv_cycles,
    conv_product,
    conv_tile,
    is_wide,
    streamed,
    widths,
)
from mlc.targets.cpu.schedules.conv_work import (
    ask_flat,
    ask_run,
    border_in,
    cycles_in_blocks,
    dot_of_conv,
    may_be_blocked,
    product_of,
    terms_of,
    whole_groups,
    work_of,
)
from mlc.targets.cpu.schedules.halves import halved, worth_halves
from mlc.targets.cpu.schedules.tile import ask_tile
from mlc.targets.cpu.schedules.tiled import tiled_loops
from mlc.targets.groups.borders import without_border
from mlc.targets.groups.group import (
    Group,
    best_divisor,
    border_of,
    ends_in_anchor,
    inner_layouts,
    is_single,
    size_of,
    with_copy,
)
from mlc.targets.groups.layouts import MIN_BLOCKED, in_blocks, in_layout
from mlc.targets.groups.pixels import copy_of_pixels, skips_pixels
from mlc.targets.groups.roles import Convolution
from mlc.targets.groups.template import Template, input_at, row_major
from mlc.targets.groups.terms import over_channels, over_runs
from mlc.targets.groups.tiling import blocks_of_filters

SINGLES = 4  # groups from which on sums over single channels are faster than zeros between them, where no VNNI is
WORTH_BLOCKS = 0.95  # part of the cycles that blocks may take at most, conversions included
WORTH_APART = 0.96  # part of the cycles that reading pixels where they lie may take at most of those with a copy
PICKED = 0.5  # cycles an element of that copy
PACKING = 4.0  # times that packing takes longer than to read what is packed
MOST_BLOCKS = 64  # that the pixels of a convolution are cut into
# Steps of an iteration of tiles whose code changes with every tap, where they read weights at more than so much of the
# second-level cache's bandwidth (measured on Zen 5: tiles of 3 to 5 pixels are 1 to 1.2 times as fast as with 1 to 4
# steps; with vectors of 32 bytes, whose tiles all are that low, 0.92 to 1.06 times).
STREAMED, STREAMED_STEPS = 0.5, 8
MOST_PANELS = 16  # register tiles of output channels that share a block of pixels


def weight_layout(
    shape: Sequence[int], vectors: int, target: Cpu, dot: Dot | None = None, *, block: int, taps_first: bool = False
) -> Layout:
    """Weights in the order of use: ``[O / tile][C / block][taps…][block of C][tile of O]``, terms of C as packed.

    Args:
        shape: logical shape ``[o, c, taps…]``.
        vectors: channel vectors of a register tile.
        target: gives the vector width.
        dot: sums up several input channels at once.
        block: input channels of a block.
        taps_first: whether all blocks of a tap follow one another, and not all taps of a block.
    """
    tile = vectors * target.lanes
    layout = Layout(tuple(shape)).pad(0, 0, -shape[0] % tile).pad(1, 0, -shape[1] % block)
    layout = layout.split(0, tile).split(2, block)
    taps = range(4, len(layout.physical_shape))
    layout = layout.reorder(0, *((*taps, 2) if taps_first else (2, *taps)), 3, 1)
    return layout if dot is None else dot.packed(layout, target.lanes)


def channels_of_block(channels: int, target: Cpu, terms: int = 1) -> int:
    """Input channels of a block of weights: a vector's lanes, or as many as there are in whole instructions.

    Instructions that sum up several channels are not spent on padding: where channels are no multiple of a vector's
    lanes, a block is a part of it (measured on Zen 4 with 24 channels: blocks of 8 take three quarters of the time).

    >>> machine = Cpu("generic", (), lanes=16, registers=32)
    >>> [channels_of_block(n, machine) for n in (3, 24, 64)], [channels_of_block(n, machine, 4) for n in (3, 24, 60)]
    ([3, 16, 16], [4, 8, 4])
    """
    whole = channels + -channels % terms
    if terms > target.lanes:
        return terms
    if terms == 1 or whole < target.lanes:
        return min(target.lanes, whole)
    return max(n for n in divisors(target.lanes) if n % terms == 0 and whole % n == 0)


def whole_channels(channels: int, target: Cpu, terms: int) -> int:
    """Input channels of whole blocks."""
    return channels + -channels % channels_of_block(channels, target, terms)


def conv_blocked(g: Group, target: Cpu) -> Schedule:
    """Convolution whose output is blocked by channels.

    Raises:
        ScheduleError: the configuration is refused.
    """
    assert isinstance(g.role, Convolution)
    in_rows = g.role.data.op is None and _takes_rows(g, g.layouts.get(g.role.data), target)
    apart = in_rows and _ask_apart(g, target)
    skips = skips_pixels(g) and not apart
    if skips:
        g = copy_of_pixels(g)
    role, plan = g.role, plan_conv(g, target, apart=apart)
    if skips and in_rows:
        assert g.anchor is not None
        plan = replace(plan, picked=g.anchor.shape[-1])
    assert isinstance(role, Convolution)
    dot = dot_of_conv(g, target)
    # a result in padded blocks tests every access, and a product in whole instructions has no room for that inside
    padded = dot is not None and g.layouts[g.outputs[0]].has_padding
    if plan.columns or (plan.rows and not padded):
        g = without_border(g, columns=plan.columns)
    anchor = g.anchor
    assert anchor is not None
    y, data = anchor.outputs[0], anchor.inputs[0]
    copied = skips or border_of(data) is not None
    block = target.lanes if dot is None else min(target.lanes, dot.padded(data.shape[1]))
    if plan.run:
        g, copied = over_runs(g, plan.run), True
    elif not copied and not _lies_well(g, data, plan, target, dot):
        g, copied = with_copy(g), True
    assert g.anchor is not None
    y, data = g.anchor.outputs[0], g.anchor.inputs[0]
    if dot is not None and not plan.run:
        whole = whole_channels(role.weights.shape[1], target, dot.terms)
        g = over_channels(g, data, role.weights, whole, copied=copied)
        assert g.anchor is not None
        y, data = g.anchor.outputs[0], g.anchor.inputs[0]
    extra = inner_layouts(g)
    in_lanes = target.terms > 1 and data.op is not None and dot is None  # which are those of a block
    own = plan.run or plan.picked  # copies with layouts of their own
    if (copied or in_lanes) and not own and (dot is not None or data.shape[1] % block == 0):
        blocks = blocked(data.shape, 1, block)
        # without a border, neighbours in the copy are neighbours in the image, across the ends of rows
        extra[data] = blocks.fuse(2, len(data.shape) - 2) if plan.columns else blocks
    if plan.picked:
        extra[data] = Layout(data.shape)
    if plan.flat:
        # for all without margins the memory is the same
        spatial = len(y.shape) - 2
        for t in (*g.inputs, *(op.outputs[0] for op in te.topological(g.outputs))):
            layout = extra.get(t) or g.layouts.get(t) or Layout(t.shape)
            if len(t.shape) == len(y.shape) and t.shape[2:] == y.shape[2:] and (t.op or not layout.has_margins):
                extra[t] = layout.core.fuse(2, spatial)
    p = g.apply(extra)
    loops = chunked_loops if plan.cut.chunk is not None else blocked_loops
    return loops(p, plan, target, dot, copied=copied)


def _lies_well(g: Group, data: te.Tensor, plan: ConvPlan, target: Cpu, dot: Dot | None) -> bool:
    """Whether what a convolution reads, without a border around it, needs no copy in blocks of channels."""
    if data.op is not None:
        return not plan.columns and _moves_blocks(data.op, target.lanes)
    if dot is not None:
        return _is_blocked(g, data, target)
    return not plan.columns or data in g.layouts or data.shape[1] % target.lanes != 0


def _moves_blocks(op: te.Compute, block: int) -> bool:
    """Whether a stage reads its channels in whole blocks of another tensor's, wherever these lie."""
    body = op.bodies[0]
    if type(body) is not Load or len(body.indices) < 2:
        return False
    channel, c = body.indices[1], op.axes[1]
    outer, inner = Var("outer", 0, c.hi // block), Var("inner", 0, block - 1)
    moved = substitute(channel, {c: as_index(outer) * block + inner})
    return channel == as_index(c) or moved % block == as_index(inner)


def _is_blocked(g: Group, t: te.Tensor, target: Cpu) -> bool:
    """Whether an input lies in blocks of channels."""
    return t in g.layouts and g.layouts[t].core == blocked(t.shape, 1, target.lanes)


def _takes_rows(g: Group, lies: Layout | None, target: Cpu) -> bool:
    """Whether pixels that a stride leaves are multiplied one number after another, of an input that is row-major.

    Args:
        g: the convolution.
        lies: the layout of its input, whose margins do not matter: they are granted later.
        target: may multiply by a lane of a vector, or sum up several numbers at once.
    """
    plain = lies is None or not lies.core.primitives
    return plain and skips_pixels(g) and target.terms == 1 and dot_of_conv(g, target) is None


def _ask_apart(g: Group, target: Cpu) -> bool:
    """Whether pixels that a stride leaves are read where they lie, row-major, and not copied next to each other first.

    A search over layouts has found that. Untuned, it is so where the copy takes a part of the whole that counts: tiles
    of pixels that lie apart touch twice the lines, in every panel of weights anew (measured on Zen 5 with 64 to 1024
    channels of 9 × 9 to 56 × 56 pixels: 1.1 to 1.3 times as fast for 64 filters, 1.0 to 1.1 for 256, 0.85 to 1.05 for
    1024). Tiles of few sums gain nothing.
    """
    role, anchor = g.role, g.anchor
    assert anchor is not None
    assert isinstance(role, Convolution)
    by_rows, by_pixels = (
        conv_cycles(product_of(g, flat, target), target, border_in(g, flat, target)) for flat in (False, True)
    )
    copied = size_of((*anchor.shape[:1], role.data.shape[1], *anchor.shape[2:]))
    tile = conv_tile(product_of(g, False, target), target)
    many = 5 * tile.rows * tile.vectors >= 2 * target.registers
    usual = many and by_rows <= WORTH_APART * (by_pixels + PICKED * copied)
    return bool(g.knobs.category("apart", (False, True), default=usual))


def plan_conv(g: Group, target: Cpu, *, apart: bool = False) -> ConvPlan:
    """What the knobs say, and the cost model where they say nothing.

    Args:
        g: a convolution, which may have got a copy of its pixels.
        target: gives registers and caches.
        apart: whether it reads pixels that do not follow one another.
    Raises:
        ScheduleError: the configuration is refused.
    """
    anchor, knobs, role = g.anchor, g.knobs, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    terms, run = terms_of(g, target), ask_run(g, target)
    machine, target = target, target.adding(dot_of_conv(g, target))
    data, y, taps = work_of(g, target)
    space, channels = y[2:], data[1]
    # Weights are packed before it is known whether the input gets margins, so their panels must not depend on it.
    packed_for = not apart and ask_flat(g, machine)
    vectors = conv_tile(product_of(g, packed_for, target), target, border=border_in(g, packed_for, target)).vectors
    margins = role.data in g.layouts and g.layouts[role.data].has_margins
    flat = not apart and ask_flat(g, machine, margins=margins)
    product, border = product_of(g, flat, target), border_in(g, flat, target)
    default = conv_tile(product, target, vectors, border)
    few = [v for v in widths(product) if v <= target.registers // 2]
    high = range(target.rows, min(size_of(space), target.registers - 2) + 1, target.rows)
    tile = ask_tile(knobs, default, high, few, target)
    cut = cut_for_caches(data, y, taps, flat, default, target, terms=terms)
    if run:  # they come from a copy of a row, which serves all channels
        cut = Blocking(space[0], False, None)

    axis = (
        pinned(knobs.discrete("axis", (0, 1), default=cut.axis))
        if len(space) > 2 and not flat and role.taps[0] > 1
        else 0
    )
    extent = size_of(space) if flat else space[axis]
    cuts = {k for n in (size_of(space), *space[:2]) for k in divisors(n) if k <= MOST_BLOCKS}
    blocks = knobs.discrete("blocks", sorted(cuts), default=extent // cut.block)
    even = extent % blocks == 0 and (not flat or extent // blocks % target.rows == 0)
    knobs.require(even, "pixels cannot be cut evenly into so many blocks")
    first = knobs.category("order", ("pixels", "channels"), default="pixels" if cut.pixels_first else "channels")
    if channels % target.lanes == 0:
        cuts_channels = role.weights.shape[1] % target.lanes == 0
    else:  # what the second-level cache holds gains nothing
        weights = size_of(taps) * channels * product.columns * target.rows * target.vector_bytes
        cuts_channels = terms == 1 and size_of(taps) > 1 and weights > CACHED * target.l2
    parts = chunks_of(channels, target) if cuts_channels else []
    # 0 sums all channels up at once
    chunk = knobs.discrete("chunk", (0, *parts), default=cut.chunk or 0)
    whole = (run or whole_channels(role.weights.shape[1], target, terms)) // terms
    most_inner = (run or channels_of_block(role.weights.shape[1], target, terms)) // terms
    _, inner = knobs.factors("depth", whole, 2, default=(whole // most_inner, most_inner), most={1: most_inner})
    terms_order = knobs.permutation("terms", ("channels", "taps")) if size_of(taps) > 1 else ("channels", "taps")
    dot = dot_of_conv(g, target)
    # a wide core loses nothing to the loop (measured on Zen 5: MobileNet-v1 in bytes takes 0.99 times as long)
    short = terms >= BYTES and is_wide(target)
    sums = Tile(int(tile.rows), int(tile.vectors))
    columns = border.passes_columns(sums, target)
    most = 1 if short else unrolled_steps(sums, target, dot)
    long = target.vector_bytes >= WIDE_VECTOR
    if columns and long and streamed(sums, target) > STREAMED * target.l2_bandwidth:
        most = STREAMED_STEPS
    steps = knobs.discrete("steps", divisors(most_inner), default=best_divisor(most_inner, most))
    knobs.require(inner % steps == 0, "a ragged end of the unrolled channels")
    groups = -(-product.columns * role.groups // tile.vectors)
    counts = {k for v in few for k in divisors(-(-product.columns * role.groups // v)) if k <= MOST_PANELS}
    panels = knobs.discrete("panels", sorted(counts), default=groups if run and groups <= MOST_PANELS else 1)
    knobs.require(groups % panels == 0, "register tiles of channels cannot be cut evenly into such blocks")
    walk = knobs.permutation("walk", ("rows", "panels", "tiles") if run else ("panels", "rows", "tiles"))
    shared = knobs.discrete("shared", (0, 1, 2, 3, 4), default=len(space) if run else 0)
    knobs.require(
        not columns or all(walk.index(name) < walk.index("tiles") for name in ("panels", "rows")),
        "tiles that pass over columns of the border are unrolled",
    )
    depth = size_of(role.weights.shape[1:]) * int(chunk or channels) // max(1, channels)
    ahead = fetches_ahead(depth * int(tile.vectors) * target.lanes * role.weights.dtype.itemsize, target)
    panel = size_of(taps) * (int(chunk) or channels) * sums.vectors * target.rows * target.vector_bytes
    # the next chunk of weights would push out this one, which is read for every tile, or be pushed out itself
    beside = not chunk or 2 * panel <= USABLE * target.l2
    fetch = knobs.category(
        "prefetch", (False, True), default=ahead > 0 or (beside and come_from_far(role.weights, target))
    )
    cut = Blocking(extent // blocks, blocks > 1 and first == "pixels", chunk or None, axis)
    taps_first = terms_order.index("taps") < terms_order.index("channels")
    next_tile, this = (False, ahead if assumed(fetch) else 0) if ahead else (fetch, 0)
    # arithmetic, so that all that are not refused go one way
    places = panels - 1 + terms_order.index("channels")
    knobs.require(next_tile * chunk * places == 0, "the weights of the next chunk lie in several places")
    return ConvPlan(
        flat, tile, cut, inner * terms, taps_first, steps, panels, walk, shared, next_tile, this,
        border.passes_rows, columns, run,
    )  # fmt: skip


def dense_algorithm(x: Sequence[int], w: Sequence[int], groups: int, target: Cpu) -> Algorithm:
    """How a convolution of integers is computed whose groups are no whole blocks.

    Sums over single channels take as many instructions as zeros between groups do, where there are as many groups as
    channels that an instruction sums up (measured on Zen 4 with 3 groups of 20 to 80 channels: 1.5 to 2 times as fast
    with zeros; as a Haswell, 3 groups of 20 channels by small weights: twice). Depthwise convolutions are windows.

    Args:
        x: shape of the input, ``[n, c, …]``.
        w: shape of the weights, ``[o, c / groups, …]``.
        groups: of channels.
        target: the processor.
    """
    whole = whole_groups(w[1], w[0] // groups, target, target.dot)
    most = target.bytes_gain if target.word_dot is None else SINGLES
    pays = 1 < groups < most and not whole and min(x[1], w[0]) >= MIN_BLOCKED and w[1] > 1
    return Algorithm.DENSE if pays else Algorithm.DIRECT


def _fits(g: Group, target: Cpu) -> bool:
    return is_single(g) and isinstance(g.role, Convolution) and ends_in_anchor(g)


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    """Blocks of channels, where these are enough and the weights can be packed.

    Convolutions of single pixels between two row-major tensors keep to these where blocks would not be worth a
    conversion each way; so do groups that are no whole blocks, of half vectors neither.
    """
    role = g.role
    assert isinstance(role, Convolution)
    k = input_at(g, role.weights)
    if k is None or not (site.constant[k] or _worth_packing(g, site, target)):
        return row_major(g, site, target)
    if site.constant[k] and (way := _by_matrices(g, target)) is not None:
        return matrix_layouts(g, site, target, way)
    terms = terms_of(g, target)
    between_plain = terms == 1 and site.row_major and all(t.layout is None for t in site.inputs) and role.single_pixels
    if between_plain and role.groups == 1 and not _worth_blocks(g, target):
        return in_layout(g, site, None, target.lanes, {k: plain_weight_layout(g, target)})
    if (machine := _machine_of_blocks(g, target)) is not None:
        target = machine
        at = input_at(g, role.data)
        in_rows = at is not None and _takes_rows(g, site.inputs[at].layout, target)
        plan = plan_conv(g, target, apart=in_rows and _ask_apart(g, target))
        packed = {k: _packed(role.weights.shape, plan, target, dot_of_conv(g, target))}
        chosen = in_blocks(g, site, target.lanes, packed)
        # what passes over the border needs no margins
        return replace(chosen, margins={}) if plan.columns else chosen
    if site.constant[k] and (block := worthy_block(g, site, target)):
        return in_filters(g, site, k, block)
    packed = {k: plain_weight_layout(g, target)} if role.groups > 1 else {}
    return in_layout(g, site, None, target.lanes, packed)


def _machine_of_blocks(g: Group, target: Cpu) -> Cpu | None:
    """The processor as blocks of channels know it, which may be of half vectors; nothing where there can be no blocks.

    Groups that are whole blocks of halves only are faster so than in rows or blocks of their filters (measured on Zen
    4, in chains with single pixels: 8 channels 1.12 times, 24 1.07 and 1.09, 40 1.05 and 1.09).
    """
    role = g.role
    assert isinstance(role, Convolution)
    if may_be_blocked(g, target):
        worth = role.groups == 1 and worth_halves(g, target, partial(cycles_in_blocks, g))
        return target.in_half_vectors() if worth else target
    half = halved(g, target)
    return half if half is not None and may_be_blocked(g, half) else None


def _packed(shape: Sequence[int], plan: ConvPlan, target: Cpu, dot: Dot | None) -> Layout:
    """Weights in the order in which a plan uses them."""
    vectors = plan.tile.vectors
    if plan.run and dot is not None:
        return run_weight_layout(shape, vectors, target, dot)
    return weight_layout(shape, vectors, target, dot, block=plan.block, taps_first=plan.taps_first)


def _worth_blocks(g: Group, target: Cpu) -> bool:
    """Whether a convolution of single pixels is faster in blocks than row-major though both ends are converted.

    Vectors run along pixels in one and along channels in the other: one of them may have fewer ragged ends.
    """
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    data, y = role.data, anchor.outputs[0]
    plain, blocks = plain_product(g, target), conv_product(data.shape, y.shape, role.taps, True, target)
    pixels = 4 * size_of((*y.shape[:1], data.shape[1], *y.shape[2:]))
    moved = 2 * 4 * y.size + (2 * pixels if data.shape[2:] == y.shape[2:] else 0)  # strides are copied either way
    cycles = blocks.cycles(conv_tile(blocks, target), target) + moved / bandwidth(moved, target)
    return y.shape[1] >= MIN_BLOCKED and cycles < WORTH_BLOCKS * plain.cycles(plain_tile(g, target), target)


def _worth_packing(g: Group, site: Site, target: Cpu) -> bool:
    """Whether weights that are known only when the model runs are worth being packed there, for blocks of channels.

    What is not there in blocks is converted as well. Windows of several pixels are in blocks even where they only are
    no slower so, since what follows is faster (measured on Zen 5: a pool behind 7 × 7 taps takes 0.24 ms for 0.73).
    """
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    if not may_be_blocked(g, target):
        return False
    k, y = input_at(g, role.data), anchor.outputs[0]
    converted = [role.weights, *([role.data] if k is not None and site.inputs[k].layout is None else [])]
    converted += [y] if site.row_major else []
    moved = sum(t.size * t.dtype.itemsize for t in converted)
    plain = plain_product(g, target)
    rows = size_of(anchor.shape[:1] if role.single_pixels else (anchor.shape[0], *anchor.shape[2:-1]))
    by_rows = rows * plain.cycles(plain_tile(g, target), target)
    worth = WORTH_BLOCKS if role.single_pixels else 1.0
    return cycles_in_blocks(g, target) + PACKING * moved / bandwidth(moved, target) < worth * by_rows


def _by_matrices(g: Group, target: Cpu) -> MatrixConv | None:
    """How a unit for matrices computes a convolution, if it does."""
    if not target.matrices or not may_be_blocked(g, target) or dot_of_conv(g, target) is None:
        return None
    return ask_matrices(g, target, _cycles_of_vectors(g, target))


def _cycles_of_vectors(g: Group, target: Cpu) -> float:
    dot = dot_of_conv(g, target)
    assert dot is not None
    machine = target.adding(dot)
    flat = ask_flat(g, machine)
    return conv_cycles(product_of(g, flat, machine), machine, border_in(g, flat, machine)) * dot.operations


def _schedule(g: Group, target: Cpu) -> Schedule:
    way = _by_matrices(g, target)
    if way is not None and lies_in_matrices(g, target, way):
        return conv_by_matrices(g, target, way)
    if not may_be_blocked(g, target) and (block := block_of(g)):
        tiling = blocks_of_filters(g, block)
        rows, columns = passes_over(g, block, target)
        return tiled_loops(g, tiling, target, passes_rows=rows, passes_columns=columns, in_bands=True)
    return conv_blocked(g, target) if g.outputs[0] in g.layouts else conv_plain(g, target)


CONVOLUTION = Template("convolution", _fits, _layouts, _schedule)
