"""Convolutions and products by Tensor Cores over operands whose neighbouring terms lie side by side in memory.

Channels lie in blocks of 16 bytes, and so do those of weights; so threads copy whole blocks, asynchronously where the
device can, whatever a window's taps and borders are. A launch of its own packs data that lie in rows. The terms of a
sum go through the channels of a block first, then through taps, then through blocks. Rows of the product are pixels and
its columns filters, eight of which are a tile's and lie in a block of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

from mlc.ir import te
from mlc.ir.expr import TRUE, Expr, Load, Select, cast, const, replace_loads, select, substitute_vars, within
from mlc.ir.index import IndexLike, Linear, Var, as_index
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.cost import Product
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.blocks.common import block_of, in_blocks_of, source_of
from mlc.targets.gpu.schedules.fetch import seen_through
from mlc.targets.gpu.schedules.parts import add_up, ask_parts
from mlc.targets.gpu.schedules.plain import schedule_plain
from mlc.targets.gpu.schedules.product import product_seconds
from mlc.targets.gpu.schedules.spread import spread
from mlc.targets.gpu.schedules.tensor import is_large, schedule_tensor
from mlc.targets.gpu.tensor_cores import COLUMNS, MMAS, Mma
from mlc.targets.groups.group import Group, ends_in_anchor, inline_rest, is_single, replace_anchor
from mlc.targets.groups.roles import Contraction, Convolution, PhasedConvolution, factors_of
from mlc.targets.groups.template import Template, constant_at, row_major

LEAST = 3  # channels from which a block of eight is worth its zeros
PACKING = 128  # threads of a block that packs
SIZE = 2  # bytes of an element: a block of eight is what a thread copies at once


def weight_layout(shape: tuple[int, ...], channel: int = 1) -> Layout:
    """Weights ``[O][C / 8][taps…][8]``, as the terms of data in blocks go.

    Args:
        shape: of the weights, ``[o, c, taps…]`` or ``[c, o, taps…]``.
        channel: which axis has the input channels.

    >>> weight_layout((16, 30, 3, 3)).physical_shape
    (16, 4, 3, 3, 8)
    """
    layout = Layout(shape).pad(channel, 0, -shape[channel] % COLUMNS).split(channel, COLUMNS)
    filters = 2 if channel == 0 else 0
    return layout.reorder(filters, channel, *range(3, len(shape) + 1), channel + 1)


def schedule_convolution(g: Group, target: Gpu) -> Schedule:
    """A convolution whose result lies in blocks of channels; of a transposed one, a product a phase.

    Raises:
        ScheduleError: the configuration is refused.
    """
    if block_of(g.layouts.get(g.outputs[0])) is None:
        return schedule_plain(g, target)
    role = _role(g)
    mma = _mma(role.data, role.weights, target)
    assert mma is not None
    source = source_of(role.data)
    lies = g.layouts.get(role.weights)
    in_blocks = lies is not None and len(lies.physical_shape) > len(role.weights.shape)
    packed = None if not in_blocks or block_of(g.layouts.get(source)) == COLUMNS else _packed(source)
    memory = () if packed is None else (packed,)
    p = _over_pixels(g, role)
    anchor = p.anchor
    assert anchor is not None
    *lead, block, pixel, lane = anchor.axes
    channel, *taps = anchor.reduce_axes
    pair = factors_of(anchor)
    assert pair is not None
    data, weights = pair if pixel in {v for ix in pair[0].indices for v in ix.vars()} else pair[::-1]
    read = data if packed is None else _out_of(packed, source, data)
    (body,) = anchor.bodies
    exists = body.cond if type(body) is Select else TRUE  # whether a phase has a tap
    phases = lead[1:]
    width = COLUMNS if in_blocks else 1
    channels = ceil((channel.hi + 1) / width) * width
    filters, terms = (block.hi + 1) * (lane.hi + 1), channels * prod(a.hi + 1 for a in taps)
    work = Product(prod(a.hi + 1 for a in lead), pixel.hi + 1, filters, terms, SIZE)
    parts = ask_parts(
        p.knobs, channels // width, work, target,
        lambda w: product_seconds(w, data.source.dtype, weights.source.dtype, target),
    )  # fmt: skip

    def of_terms(k: Linear) -> dict[Var, IndexLike]:
        env: dict[Var, IndexLike] = {}
        k, inner = (k // width, k % width) if width > 1 else (k, as_index(0))
        for a in reversed(taps):
            env[a], k = k % (a.hi + 1), k // (a.hi + 1)
        return {**env, channel: k * width + inner}

    def left(*at: Linear) -> Expr:
        *first, row, k = at
        return substitute_vars(read, {**of_terms(k), **dict(zip(lead, first, strict=True)), pixel: row})

    def right(*at: Linear) -> Expr:
        *first, column, k = at
        env = {**of_terms(k), **dict(zip(phases, first, strict=True))}
        env |= {block: column // COLUMNS, lane: column % COLUMNS}
        value = substitute_vars(weights, env)
        return value if exists is TRUE else select(substitute_vars(exists, env), value, const(0, value.dtype))

    a = te.compute((*(v.hi + 1 for v in lead), pixel.hi + 1, terms), left, f"{data.source.name}_left")
    b = te.compute((*(v.hi + 1 for v in phases), filters, terms), right, f"{weights.source.name}_right")
    *outer, ob, row, ol = (Var(v.name, 0, v.hi) for v in anchor.axes)
    size = terms // parts
    k = te.reduce_axis(size, "k")
    if parts == 1:
        product = _product(
            anchor.name, (*outer, ob, row, ol), k, a[(*outer, row, k)],
            b[(*outer[1:], as_index(ob) * COLUMNS + ol, k)], mma,
        )  # fmt: skip
        s, made, kept = schedule_tensor(replace_anchor(p, product), target, mma, blocks=True, memory=memory)
        _pack(s, memory, target)
        inline_rest(s, kept)
        if kept[-1] not in s.outputs:  # phases, which are put next to each other afterwards
            spread(s[s.outputs[0]], target, g.knobs, "out")
        return s
    part, column = Var("part", 0, parts - 1), Var("j", 0, filters - 1)
    term = as_index(part) * size + k
    product = _product(
        f"{anchor.name}_parts", (*outer, part, row, column), k, a[(*outer, row, term)],
        b[(*outer[1:], column, term)], mma,
    )  # fmt: skip
    (found,) = te.finish(product)
    each = te.reduce_axis(parts, "part")
    *outer, ob, row, ol = (Var(v.name, 0, v.hi) for v in anchor.axes)
    element = Load(found, (*map(as_index, outer), as_index(each), as_index(row), as_index(ob) * COLUMNS + ol))
    total = te.Compute(anchor.name, (*outer, ob, row, ol), (each,), (element,), anchor.combiner)
    whole = replace(replace_anchor(p, total), anchor=product)
    s, made, kept = schedule_tensor(whole, target, mma, memory=memory)
    _pack(s, memory, target)
    (sums,) = (op.outputs[0] for op in made.reductions if kept[-1] in op.inputs)
    inline_rest(s, (*kept, sums))
    add_up(s, sums, g.knobs, target, phased=isinstance(role, PhasedConvolution))
    return s


def _packed(source: te.Tensor) -> te.Tensor:
    """Data ``[n, c, …]`` in blocks of channels ``[n, c / 8, …, 8]``, the last one filled up by zeros."""
    n, channels, *space = source.shape

    def element(*at: Linear) -> Expr:
        image, block, *pixel, lane = at
        c = block * COLUMNS + lane
        value = source[(image, c, *pixel)]
        return value if channels % COLUMNS == 0 else select(within(c, 0, channels), value, const(0, source.dtype))

    return te.compute((n, ceil(channels / COLUMNS), *space, COLUMNS), element, f"{source.name}_blocks")


def _out_of(packed: te.Tensor, source: te.Tensor, e: Expr) -> Expr:
    """An expression over data that reads their blocks instead."""

    def block(ld: Load) -> Expr:
        if ld.source is not source:
            return ld
        image, c, *pixel = ld.indices
        return packed[(image, c // COLUMNS, *pixel, c % COLUMNS)]

    return replace_loads(seen_through(e), block)


def _pack(s: Schedule, memory: Sequence[te.Tensor], target: Gpu) -> None:
    """Loops of what packs: a thread a block of a pixel, so that neighbours read neighbours of a channel."""
    for t in memory:
        stage = s[t]
        *loops, lane = stage.op.axes
        bx, tx = stage.split(stage.fuse(*loops), min(PACKING, target.max_threads))
        stage.bind(bx, "blockIdx.x")
        stage.bind(tx, "threadIdx.x")
        stage.vectorize(lane)


def _product(name: str, axes: tuple[Var, ...], k: Var, left: Expr, right: Expr, mma: Mma) -> te.Compute:
    return te.Compute(name, axes, (k,), (cast(left, mma.sums) * cast(right, mma.sums),), te.SUM)


def _over_pixels(g: Group, role: Convolution | PhasedConvolution) -> Group:
    """The group with results in blocks ``[n, phases…, block, pixel, lane]``, pixels of its sums in one axis."""
    rank, shape = g.outputs[0].rank - 2, g.outputs[0].shape
    assert g.anchor is not None
    operands = te.topological(g.anchor.inputs)
    before = {*g.anchor.inputs, *(t for op in operands for t in (*op.inputs, *op.outputs))}
    phased = isinstance(role, PhasedConvolution)
    found = {}
    for t in (*g.inputs, *(t for op in g.computes for t in op.outputs)):
        if t.shape != shape or t in before or (phased and t in g.inputs):
            continue
        lies = g.layouts.get(t) if t in g.inputs else blocked(shape, 1, COLUMNS)
        lies = (lies or Layout(shape)).core
        if not phased:
            lies = lies.fuse(len(lies.physical_shape) - rank - 1, rank) if block_of(lies) else lies.fuse(2, rank)
        found[t] = lies
    if phased:
        sums = g.anchor.outputs[0]
        axes = Layout(sums.shape).split(1, COLUMNS)  # [n, block, lane, phases…, pixels…]
        axes = axes.reorder(0, *range(3, 3 + rank), 1, *range(3 + rank, 3 + 2 * rank), 2)
        found[sums] = axes.fuse(2 + rank, rank)
    return g.apply(found)


def _role(g: Group) -> Convolution | PhasedConvolution:
    assert isinstance(g.role, Convolution | PhasedConvolution)
    return g.role


def _mma(left: te.Tensor, right: te.Tensor, target: Gpu) -> Mma | None:
    """The instruction for operands of two bytes; none where the device has none."""
    found = MMAS.get((left.dtype.name, right.dtype.name))
    return found if found is not None and found.name in target.tensor and left.dtype.itemsize == SIZE else None


def _fits_convolution(g: Group, target: Gpu) -> bool:
    role = g.role
    if not is_single(g) or not isinstance(role, Convolution | PhasedConvolution) or len(g.outputs) != 1:
        return False
    if isinstance(role, Convolution) and (not ends_in_anchor(g) or role.bits is not None):
        return False
    out = g.outputs[0]
    mma = _mma(role.data, role.weights, target)
    if mma is None or role.groups > 1 or out.shape[1] % COLUMNS or g.anchor is None:
        return False
    terms = prod(a.hi + 1 for a in g.anchor.reduce_axes)
    pixels = prod(g.anchor.shape[2 - g.outputs[0].rank :])
    return is_large(Product(1, pixels, out.shape[1], terms, SIZE), mma)


def _layouts_of_convolution(g: Group, site: Site, target: Gpu) -> LayoutChoice:
    role = _role(g)
    k = constant_at(g, site, role.weights)
    if k is None:
        return row_major(g, site, target)
    source = source_of(role.data)
    lies = site.inputs[g.inputs.index(source)].layout if source in g.inputs else None
    # single elements are not copied asynchronously, nor eight at once
    channel = 0 if isinstance(role, PhasedConvolution) else 1
    shape = role.weights.shape
    packs = source in g.inputs and lies is None and shape[channel] >= LEAST
    in_blocks = packs or block_of(lies) == COLUMNS
    return in_blocks_of(g, site, COLUMNS, {k: weight_layout(shape, channel) if in_blocks else Layout(shape)})


TENSOR_CONVOLUTION: Template[Gpu] = Template(
    "convolution by Tensor Cores", _fits_convolution, _layouts_of_convolution, schedule_convolution
)


def _fits_product(g: Group, target: Gpu) -> bool:
    role = g.role
    if not is_single(g) or not isinstance(role, Contraction) or not ends_in_anchor(g) or role.bits is not None:
        return False
    return _mma(role.left, role.right, target) is not None


def _layouts_of_product(g: Group, site: Site, target: Gpu) -> LayoutChoice:
    """A constant right operand ``[k, n]`` turned, so that terms are side by side."""
    role = g.role
    assert isinstance(role, Contraction)
    k = constant_at(g, site, role.right)
    if k is None or role.transposed or len(role.right.shape) != 2:
        return row_major(g, site, target)
    return LayoutChoice((None,), {k: Layout(role.right.shape).reorder(1, 0)})


TENSOR_PRODUCT: Template[Gpu] = Template("product by Tensor Cores", _fits_product, _layouts_of_product, schedule_plain)
