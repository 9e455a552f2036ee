"""A convolution as the cost model knows it: its product, what of it lies in a border, whether pixels are one axis."""

from __future__ import annotations

from mlc.ir import te
from mlc.targets.cpu.cost import Product
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_runs import may_run, runs_pay, terms_of_run
from mlc.targets.cpu.schedules.conv_tile import BYTES, Border, conv_cycles, conv_product, conv_tile
from mlc.targets.groups.borders import columns_inside, share_inside
from mlc.targets.groups.group import Group, border_of, size_of
from mlc.targets.groups.layouts import MIN_BLOCKED
from mlc.targets.groups.pixels import skips_pixels
from mlc.targets.groups.roles import Convolution

WORTH_FLAT = 0.9  # part of the cycles that tiles over short rows may take at most


def dot_of_conv(g: Group, target: Cpu) -> Dot | None:
    """How the processor sums up the products of a convolution, where it does several at once."""
    role = g.role
    assert isinstance(role, Convolution)
    assert g.anchor is not None
    dot = target.dot_of(role.data.dtype, role.weights.dtype, role.bits)
    blocks = target.block_dot_of(role.data.dtype, role.weights.dtype)
    if target.rows > 1:  # chosen already
        return blocks
    if blocks is None or g.anchor.shape[-1] % blocks.rows or role.weights.shape[1] % blocks.terms:
        return dot
    return min((d for d in (blocks, dot) if d is not None), key=lambda d: _cycles_by(g, d, target))


def _cycles_by(g: Group, dot: Dot, target: Cpu) -> float:
    """Cycles of a convolution by an instruction, beside those by another one."""
    role, machine = g.role, target.adding(dot)
    assert isinstance(role, Convolution)
    assert g.anchor is not None
    shapes = shapes_of(role, g.anchor, dot.terms)
    product = conv_product(*shapes, role.taps, role.single_pixels, machine, whole=role.groups == 1, terms=dot.terms)
    return product.cycles(conv_tile(product, machine), machine) * dot.operations


def terms_of(g: Group, target: Cpu) -> int:
    """Input channels that one instruction sums up. The cost model counts so many as one, which takes as long."""
    dot = dot_of_conv(g, target)
    return 1 if dot is None else dot.terms


def shapes_of(role: Convolution, anchor: te.Compute, terms: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of input and output as the cost model counts them.

    Every group of channels is an image of its own, and input channels that one instruction sums up are one.
    """
    shapes = (role.data.shape, anchor.shape)
    x, y = ((t[0] * role.groups, t[1] // role.groups, *t[2:]) for t in shapes)
    return (x[0], -(-x[1] // terms), *x[2:]), y


def work_of(g: Group, target: Cpu) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shapes of input and output as the cost model counts them, and taps: runs are channels of single pixels."""
    role = g.role
    assert isinstance(role, Convolution)
    assert g.anchor is not None
    terms, run = terms_of(g, target), ask_run(g, target)
    x, y = shapes_of(role, g.anchor, terms)
    return ((x[0], run // terms, *x[2:]), y, (1,) * len(role.taps)) if run else (x, y, role.taps)


def ask_run(g: Group, target: Cpu) -> int:
    """Terms of a window that is a run of neighbours, in whole instructions; 0 where windows are none."""
    role, anchor, dot = g.role, g.anchor, dot_of_conv(g, target)
    assert isinstance(role, Convolution)
    assert anchor is not None
    if dot is None or not may_run(role, dot, target):
        return 0
    runs = g.knobs.category("runs", (False, True), default=lambda: runs_pay(role, anchor, dot, target))
    return terms_of_run(role, dot) if runs else 0


def product_of(g: Group, flat: bool, target: Cpu) -> Product:
    """What a convolution computes, as the cost model knows it."""
    role = g.role
    assert isinstance(role, Convolution)
    assert g.anchor is not None
    return conv_product(*work_of(g, target), flat, target, whole=role.groups == 1, terms=terms_of(g, target))


def border_in(g: Group, flat: bool, target: Cpu) -> Border:
    """What of a convolution may be passed over; nothing where pixels are one axis."""
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    # Products in whole instructions leave no room for a test inside; nor do rows pay, whose tiles have a quarter of the
    # steps (measured on Zen 5: 512 channels of 7 × 7 pixels take 1.4 times as long as with tiles over all rows).
    # Of words, what is zero may count (``Weights.BIPOLAR``).
    passes = not flat and terms_of(g, target) == 1 and role.bits is None
    rows, width = share_inside(g, columns=False) if passes else 1.0, anchor.shape[-1]
    # terms in lanes of a vector are read for all pixels of a tile
    columns = columns_inside(g) if passes and target.terms == 1 else ((0, width),) * role.taps[-1]
    return Border(rows, width, columns, volume=len(role.taps) > 2)


def ask_flat(g: Group, target: Cpu, *, margins: bool = False) -> bool:
    """Whether pixels are one axis: what the knobs say, and :func:`is_flat` where they say nothing."""
    flat = is_flat(g, target, margins=margins)
    if not _may_be_flat(g, target):
        return flat
    return bool(g.knobs.category("flat", (False, True), default=flat))


def is_flat(g: Group, target: Cpu, *, margins: bool) -> bool:
    """Whether pixels are one axis.

    They are for a window of 1×1 over an input without margins, or a copy of those pixels that a stride leaves, where it
    costs nothing. They also are where rows are so short that register tiles which go on in the next row save more than
    finding every pixel costs; sums of bytes are over so soon that it costs them, where their results have margins, too
    (measured on Zen 5: 512 channels of 14 × 14 pixels take 0.965 times as long by rows).
    """
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    if skips_pixels(g):
        return True
    as_it_is = role.single_pixels and role.data.shape[2:] == anchor.shape[2:] and border_of(role.data) is None
    if as_it_is and not margins and not _scatters_bytes(g, target):
        return True
    if not _may_be_flat(g, target):
        return False
    target = target.adding(dot_of_conv(g, target))
    rows, pixels = (
        conv_cycles(product_of(g, flat, target), target, border_in(g, flat, target)) for flat in (False, True)
    )
    return pixels < WORTH_FLAT * rows


def _scatters_bytes(g: Group, target: Cpu) -> bool:
    """Whether products of bytes go to a result whose rows do not follow one another in memory."""
    y = g.outputs[0]
    return terms_of(g, target) >= BYTES and y in g.layouts and g.layouts[y].has_margins


def _may_be_flat(g: Group, target: Cpu) -> bool:
    """Whether pixels in rows can be one axis at all.

    Terms in lanes of a vector are read for all pixels of a tile, which then have to be neighbours; runs are of a row.
    """
    rows = g.anchor is not None and len(g.anchor.shape) == 4 and size_of(g.anchor.shape) > 0
    return rows and target.terms == 1 and not ask_run(g, target)


def cycles_in_blocks(g: Group, target: Cpu) -> float:
    """Cycles of a convolution in blocks of channels, over an input without margins."""
    flat = is_flat(g, target, margins=False)
    return conv_cycles(product_of(g, flat, target), target, border_in(g, flat, target))


def may_be_blocked(g: Group, target: Cpu) -> bool:
    """Whether a convolution can have outputs in blocks of channels: groups must consist of whole blocks."""
    role = g.role
    assert isinstance(role, Convolution)
    assert g.anchor is not None
    x, y = shapes_of(role, g.anchor)
    return may_have_blocks(role.groups, x[1], y[1], target, dot_of_conv(g, target))


def may_have_blocks(groups: int, channels: int, filters: int, target: Cpu, dot: Dot | None) -> bool:
    """The same for groups of so many input and output channels each."""
    return filters >= MIN_BLOCKED and (groups == 1 or whole_groups(channels, filters, target, dot))


def whole_groups(channels: int, filters: int, target: Cpu, dot: Dot | None) -> bool:
    """Whether groups of so many input and output channels are read in whole instructions, and are whole blocks."""
    return channels % (target.lanes if dot is None else dot.terms) == 0 and filters % target.lanes == 0
