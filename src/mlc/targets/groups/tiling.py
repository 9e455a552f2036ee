"""The layout space of complex operators: templates of ALT §5.1, with split factors as knobs.

A convolution's result becomes ``N H/h W/w O/o h w o``, its input ``N H/h W/w I/i (h) (w) i`` with ``(h)`` and ``(w)``
unfolded tiles, as large as the windows of ``h`` rows reach, and its weights ``O/o I/i taps… i o``; one, two and three
spatial axes, groups, dilations and depthwise ones by the same scheme. So are transposed ones, whose tiles hold whole
strides of rows: ``h`` rows of results read ``h / stride`` rows of the input and as many more as taps reach, and the
taps of a phase lie together in weights, ``O/o phases… I/i taps… i o``. A matrix product's are ``M/m N/n m n``,
``M/m K/k m k`` and ``K/k N/n k n``. With two levels the tiles of results and inputs are tiled once more.

The space depends on the operator alone and on no target. A configuration that names ``layout``, how many levels there
are, has its layouts from here; all others have what the target's own templates want.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import Var, as_index
from mlc.ir.layout import Layout, Reorder, Split, Unpad
from mlc.ir.site import Site
from mlc.ir.types import f32
from mlc.lower.knobs import Config, Knobs, divisors
from mlc.lower.stage import Stage
from mlc.lower.symbolic import assumed
from mlc.targets.base import LEVELS, LayoutChoice
from mlc.targets.groups.borders import without_border
from mlc.targets.groups.group import (
    Group,
    best_divisor,
    border_of,
    ends_in_anchor,
    inner_layouts,
    is_single,
    with_copy,
)
from mlc.targets.groups.layouts import margins_of
from mlc.targets.groups.roles import Contraction, Convolution, PhasedConvolution, Window
from mlc.targets.groups.template import constant_at

MOST_LEVELS = 2
AXES = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
USUAL_BLOCK = 16  # channels of a block that nothing is said about
MOST_STEPS = 16  # terms of a sum that are unrolled


@dataclass(frozen=True)
class Tiling:
    """How the tensors of a complex operator lie.

    Args:
        levels: of tiles; the result's axes are ``lead``, then for each level and once more those of ``names``.
        lead: axes before (images, or matrices).
        names: of the axes that are tiled: those of space or rows, then channels or columns.
        output: of the result, and of all of its shape that follows the anchor.
        data: of what windows slide over, with its border, or of the left operand; ``None`` if it is read as it lies.
        weights: of the weights, or the right operand, where they are constant; ``None`` if they stay as they are.
        depth: input channels, or terms, that lie together in weights.
        reaches: along each axis of space or rows, how many elements of the input a result reads, and how far apart
            neighbours begin.
        strides: phases along each spatial axis of a transposed convolution; empty for everything else.
        sums: of the anchor, where its shape is not the result's: that of a transposed convolution, whose axes are
            those of the result, but before those of the innermost tiles, the phases.
    """

    levels: int
    lead: int
    names: tuple[str, ...]
    output: Layout
    data: Layout | None
    weights: Layout | None
    depth: int
    reaches: tuple[tuple[int, int], ...]
    strides: tuple[int, ...] = ()
    sums: Layout | None = None


def is_tiled(knobs: Knobs) -> bool:
    """Whether a configuration has its layouts from the layout space."""
    return LEVELS in knobs.config


def may_be_tiled(g: Group) -> bool:
    """Whether a group has a layout space: a sum of products in floats, and what follows it element by element."""
    role = g.role
    if not is_single(g) or g.anchor is None or not (ends_in_anchor(g) or _ends_in_phases(g)):
        return False
    operands: tuple[te.Tensor | None, ...]
    if isinstance(role, PhasedConvolution):
        operands, fits = (role.data, role.weights), role.data is not role.weights
    elif isinstance(role, Convolution) or (isinstance(role, Window) and role.weights is not None):
        operands = (role.data, role.weights)
        fits = not isinstance(role, Window) or role.weights is None or role.weights.shape[0] == role.data.shape[1]
    elif isinstance(role, Contraction):
        operands, fits = (role.left, role.right), role.left is not role.right and len(role.right.shape) == 2
    else:
        return False
    if operands[0] is not None and operands[0].op is not None and not operands[0].op.inputs:
        return False  # nothing but border is read
    bits = getattr(role, "bits", None)
    return fits and bits is None and all(t is not None and t.dtype is f32 for t in operands)


def _ends_in_phases(g: Group) -> bool:
    """Whether the one reduction gives the phases of a transposed convolution, and the result has all their places."""
    if not isinstance(g.role, PhasedConvolution) or g.anchor is None or g.reductions != [g.anchor]:
        return False
    rank, shape = len(g.role.strides), g.outputs[0].shape
    whole = [q * s for q, s in zip(g.anchor.shape[2 + rank :], g.role.strides, strict=True)]
    return (
        len(shape) == 2 + rank
        and shape[:2] == g.anchor.shape[:2]
        and all(0 <= n - m < s for n, m, s in zip(whole, shape[2:], g.role.strides, strict=True))
    )


def tiling_of(g: Group) -> Tiling:
    """The layouts that the knobs say.

    Args:
        g: one that :func:`may_be_tiled`, logical; its knobs are asked.
    Raises:
        ScheduleError: the configuration is refused.
    """
    levels = g.knobs.discrete(LEVELS, range(1, MOST_LEVELS + 1), default=1)
    if isinstance(g.role, Contraction):
        return _product(g, levels)
    return _transposed(g, levels) if isinstance(g.role, PhasedConvolution) else _convolution(g, levels)


def blocks_of_filters(g: Group, block: int) -> Tiling:
    """Blocks of so many filters over whole images, and the input as it lies: what a target may want untuned.

    Args:
        g: a convolution that :func:`may_be_tiled`, logical.
        block: filters of a block, a divisor of those of a group.
    """
    role = g.role
    assert isinstance(role, Convolution)
    assert g.anchor is not None
    filters = g.anchor.shape[1]
    config: Config = {
        f"{LEVELS}.o": (filters // role.groups // block, block), f"{LEVELS}.weights.o": (filters // block, block),
        f"{LEVELS}.input": "as it is",
    }  # fmt: skip
    return tiling_of(replace(g, knobs=Knobs(config)))


def layouts_of(g: Group, site: Site) -> LayoutChoice:
    """What a group with a tiling wants: its result tiled, weights packed, and its input tiled, too.

    That is asked of whoever makes it, where it may be, and holds no element twice; otherwise the group converts it.
    """
    tiling = tiling_of(g)
    k = constant_at(g, site, operands_of(g)[1])
    packed = {k: tiling.weights} if k is not None and tiling.weights is not None else {}
    margins = margins_of(g, site.constant) if tiling.data is None else {}
    data = operands_of(g)[0]
    read = data if data.op is None else data.op.inputs[0]  # a border is put around it on the way
    inside = {g.inputs.index(read): tiling.data} if tiling.data is not None and read in g.inputs else {}
    if data is read and not inside.keys() - site.askable and all(_is_whole(layout) for layout in inside.values()):
        return LayoutChoice((tiling.output,), packed, margins, asked=inside)
    return LayoutChoice((tiling.output,), packed, margins, inside)


def _is_whole(layout: Layout) -> bool:
    """Whether a layout has all elements in one place each, and so may be that of what others read, too (ALT §4.2)."""
    return not layout.expands and not any(type(p) is Unpad for p in layout.primitives)


def arranged(
    g: Group, tiling: Tiling, *, passes_rows: bool = False, passes_columns: bool = False
) -> tuple[Group, dict[te.Tensor, Layout], te.Tensor | None]:
    """A group whose layouts are decided, with those of the tensors inside it.

    Args:
        g: a group that :func:`may_be_tiled`, logical.
        tiling: its layouts.
        passes_rows: whether rows of windows that lie in the border are passed over, where the input is read as it lies.
        passes_columns: whether columns are, besides.

    Returns:
        the group, which may have got a copy of its input: the conversion while the operator runs (ALT, figure 5a), or
        the border, which converts on the way (figure 5b); layouts of inner tensors; what is copied, if anything is.
    """
    data = operands_of(g)[0]
    own = g.layouts.get(data)
    if tiling.data is None:
        if passes_rows:
            g = without_border(g, columns=passes_columns)
            assert g.anchor is not None
            data = g.anchor.inputs[0]
        if border_of(data) is None:  # what margins hold is read from there, too
            return g, _inner(g, tiling), None
        return g, {**_inner(g, tiling), **_around(g, data)}, data
    if data.op is None and own is not None and own.core == tiling.data:
        return g, _inner(g, tiling), None
    if data.op is None:
        g = with_copy(g)
        data = operands_of(g)[0]
    return g, {**_inner(g, tiling), data: tiling.data}, data


def levels_of(axes: Sequence[Var], tiling: Tiling) -> tuple[list[Var], list[list[Var]]]:
    """The axes of a result that is laid out: those before, and for each level, from outside to inside, one a name."""
    count, rest = len(tiling.names), axes[tiling.lead :]
    return list(axes[: tiling.lead]), [list(rest[k : k + count]) for k in range(0, len(rest), count)]


def terms_of(op: te.Compute, tiling: Tiling) -> tuple[list[Var], list[Var]]:
    """The reduction axes over channels (or the depth of a product), none or one, and those over taps."""
    axes = list(op.reduce_axes)
    rank = 0 if tiling.names[0] == "m" else len(tiling.names) - 1
    return axes[: len(axes) - rank], axes[len(axes) - rank :]


def ask_terms(
    knobs: Knobs, local: Stage, tiling: Tiling, sums: int, most: int, *, ordered: bool = False
) -> tuple[list[Var], Var | None]:
    """The order of the terms of a tile's sums, some of which are unrolled.

    Args:
        knobs: are asked.
        local: sums up.
        tiling: its layouts.
        sums: of the tile.
        most: products that may be written out.
        ordered: whether it is asked, too, if columns of taps are outside of rows.
    Returns:
        the loops over terms, from outside to inside, and which of them is over blocks of weights, if any is.
    Raises:
        ScheduleError: too much is unrolled.
    """
    n, block = 1, None
    depth, taps = terms_of(local.op, tiling)
    if ordered and all(a.hi > 0 for a in taps[-2:]) and len(taps) > 1:
        *outer, rows, columns = taps
        if assumed(knobs.category("columns_first", (False, True), default=False)):
            taps = [*outer, columns, rows]
    order = knobs.permutation("terms", ("channels", "taps")) if depth and taps else ("channels", "taps")
    above: dict[str, Sequence[Var]] = {"channels": [], "taps": taps}
    steps: list[Var] = []
    if depth:
        block, term = local.split(depth[0], tiling.depth)
        usual = best_divisor(tiling.depth, 4)
        n = knobs.discrete("steps", [k for k in divisors(tiling.depth) if k <= MOST_STEPS], default=usual)
        term, step = local.split(term, n)
        above["channels"], steps = [block], [term, step]
        local.unroll(step)
    around = [a for name in order for a in above[name]]
    flat = taps if taps and knobs.category("taps", ("loop", "all"), default="loop") == "all" else []
    knobs.require(sums * n * prod(a.hi + 1 for a in flat) <= most, "too much is unrolled")
    for a in flat:
        local.unroll(a)
    return [*around, *steps], block


def _inner(g: Group, tiling: Tiling) -> dict[te.Tensor, Layout]:
    """The layouts of what a group computes on the way to its result."""
    assert g.anchor is not None
    sums = {} if tiling.sums is None else {g.anchor.outputs[0]: tiling.sums}
    return {**dict.fromkeys(inner_layouts(g), tiling.output), **sums}


def _around(g: Group, border: te.Tensor) -> dict[te.Tensor, Layout]:
    """The layout of an input with its border, where the input lies in blocks of channels: the same."""
    assert border.op is not None
    inside = g.layouts.get(border.op.inputs[0])
    if inside is None or not all(
        type(p) is Reorder or (type(p) is Split and p.dim == 1) for p in inside.core.primitives
    ):
        return {}
    return {border: Layout(border.shape, inside.core.primitives)}


def operands_of(g: Group) -> tuple[te.Tensor, te.Tensor]:
    """What windows slide over, with its border, and the weights; or the factors of a product."""
    role = g.role
    if isinstance(role, Contraction):
        return role.left, role.right
    assert isinstance(role, (Convolution, PhasedConvolution, Window))
    assert role.weights is not None
    return role.data, role.weights


def _convolution(g: Group, levels: int) -> Tiling:
    role, anchor, knobs = g.role, g.anchor, g.knobs
    assert isinstance(role, (Convolution, Window))
    assert anchor is not None
    assert role.weights is not None
    rank = len(anchor.shape) - 2
    names = AXES[rank]
    space = [_factors(knobs, f"{LEVELS}.{a}", n, levels) for a, n in zip(names, anchor.shape[2:], strict=True)]
    groups = role.groups if isinstance(role, Convolution) else 1
    filters = anchor.shape[1]
    channels = _factors(knobs, f"{LEVELS}.o", filters, levels, _block(filters // groups), of=filters // groups)
    own = isinstance(role, Window)  # every channel has its own sums
    per_group = role.weights.shape[1]
    _, i = (0, 1) if own else _factors(knobs, f"{LEVELS}.i", per_group, 1, _block(per_group))
    _, wo = _factors(knobs, f"{LEVELS}.weights.o", filters, 1, prod(channels[1:]))
    _, wi = (1, 1) if own else _factors(knobs, f"{LEVELS}.weights.i", per_group, 1, _block(per_group))
    cuts: dict[int, list[_Cut]] = {1: _splits(channels), **{2 + d: _splits(f) for d, f in enumerate(space)}}
    inner = [[(2 + d, level) for d in range(rank)] + [(1, level)] for level in range(levels + 1)]
    output = _arranged(Layout(anchor.shape), cuts, [(0, 0), *(part for level in inner for part in level)])
    reaches = [
        (factors, (taps - 1) * step + 1, stride)
        for factors, taps, stride, step in zip(space, role.taps, role.strides, role.dilations, strict=True)
    ]
    return Tiling(
        levels, 1, (*names, "o"), output,
        _windows(g, role.data.shape, reaches, channels if own else (role.data.shape[1] // i, i), levels),
        _arranged(
            Layout(role.weights.shape), {0: [(wo, wo)], 1: [(wi, wi)]},
            [(0, 0), (1, 0), *((2 + d, 0) for d in range(rank)), (1, 1), (0, 1)],
        ),
        wi, tuple((reach, stride) for _, reach, stride in reaches),
    )  # fmt: skip


def _transposed(g: Group, levels: int) -> Tiling:
    role, anchor, knobs = g.role, g.anchor, g.knobs
    assert isinstance(role, PhasedConvolution)
    assert anchor is not None
    rank = len(role.strides)
    names, strides = AXES[rank], role.strides
    _, filters, *places = anchor.shape[:2] + anchor.shape[2 + rank :]
    space = [_factors(knobs, f"{LEVELS}.{a}", n, levels) for a, n in zip(names, places, strict=True)]
    per_group, terms = role.weights.shape[1], anchor.reduce_axes[0].hi + 1
    own = role.groups > 1 and per_group == terms == 1  # every channel has its own sums
    blocks = filters if own else per_group
    channels = _factors(knobs, f"{LEVELS}.o", filters, levels, _block(blocks), of=blocks)
    _, i = (0, 1) if own else _factors(knobs, f"{LEVELS}.i", terms, 1, _block(terms))
    _, wo = _factors(knobs, f"{LEVELS}.weights.o", blocks, 1, prod(channels[1:]))
    _, wi = (1, 1) if own else _factors(knobs, f"{LEVELS}.weights.i", terms, 1, _block(terms))
    spatial = range(rank)
    inner = [[(2 + d, level) for d in spatial] + [(1, level)] for level in range(levels + 1)]
    order = [part for level in inner for part in level]
    stored = Layout(g.outputs[0].shape)
    for d in spatial:  # whole strides, so that a tile begins with the first phase
        stored = stored.pad(2 + d, 0, places[d] * strides[d] - stored.logical_shape[2 + d])
    rows = [(*f[:-1], f[-1] * s) for f, s in zip(space, strides, strict=True)]
    output = _arranged(
        stored, {1: _splits(channels), **{2 + d: _splits(f) for d, f in enumerate(rows)}}, [(0, 0), *order]
    )
    cuts: dict[int, list[_Cut]] = {1: _splits(channels), **{2 + rank + d: _splits(f) for d, f in enumerate(space)}}
    order = [(d + rank if d > 1 else d, part) for d, part in order]
    phases = [(2 + d, 0) for d in spatial]
    sums = _arranged(Layout(anchor.shape), cuts, [(0, 0), *order[: -rank - 1], *phases, *order[-rank - 1 :]])
    data, _ = loads(anchor.bodies[0])
    # where a phase begins, and its taps, beyond the place in the phase itself
    beyond = [at.without(q).bounds()[1] for at, q in zip(data.indices[2:], anchor.axes[2 + rank :], strict=True)]
    reaches = [(factors, hi + 1, 1) for factors, hi in zip(space, beyond, strict=True)]
    weights = Layout(role.weights.shape)
    for d, step in enumerate(role.steps):
        weights = weights.pad(2 + d, 0, -role.weights.shape[2 + d] % step)
    taps = {2 + d: [(step, step)] for d, step in enumerate(role.steps)}
    last = [(0, 1)] if own else [(0, 1), (1, 1)]
    return Tiling(
        levels, 1, (*names, "o"), output,
        _windows(g, role.data.shape, reaches, channels if own else (role.data.shape[1] // i, i), levels),
        _arranged(
            weights, {**({0: [(wo, wo)]} if own else {0: [(wi, wi)], 1: [(wo, wo)]}), **taps},
            [(1, 0), *((2 + d, 1) for d in spatial), (0, 0), *((2 + d, 0) for d in spatial), *last],
        ),
        wi, tuple((reach, stride) for _, reach, stride in reaches), strides, sums,
    )  # fmt: skip


def _windows(
    g: Group,
    shape: Sequence[int],
    reaches: Sequence[tuple[Sequence[int], int, int]],
    channels: Sequence[int],
    levels: int,
) -> Layout | None:
    """The input in tiles that hold all that the tiles of results read, if the knobs want it tiled.

    Args:
        g: its knobs are asked.
        shape: of the input, with its border.
        reaches: for each spatial axis the factors of the places of windows, how far one reaches, and how far apart
            they are.
        channels: the factors of these.
        levels: of tiles.
    """
    if g.knobs.category(f"{LEVELS}.input", ("tiled", "as it is"), default="tiled") != "tiled":
        return None
    layout = Layout(tuple(shape))
    cuts: dict[int, list[_Cut]] = {1: _splits(channels)}
    for d, (factors, extent, stride) in enumerate(reaches, 2):
        reach = max(extent, stride)
        missing = (prod(factors) - 1) * stride + reach - layout.logical_shape[d]
        layout = layout.pad(d, 0, missing) if missing > 0 else layout.unpad(d, 0, -missing)
        inside = [prod(factors[k:]) for k in range(1, levels + 1)]
        cuts[d] = [((n - 1) * stride + reach, n * stride) for n in inside]
        whole = (prod(factors) - 1) * stride + reach
        for k, (tile, _) in enumerate(cuts[d]):  # a single tile is no overlap
            if tile == (whole if k == 0 else cuts[d][k - 1][0]):
                cuts[d][k] = tile, tile
    rank, last = len(reaches), len(cuts[1])
    order = [(0, 0), *((2 + d, 0) for d in range(rank)), (1, 0)]
    for level in range(1, levels + 1):
        order += [(2 + d, level) for d in range(rank)]
        order += [(1, level)] if last == levels else []
    order += [(1, last)] if last < levels else []
    return _arranged(layout, cuts, order)


def _product(g: Group, levels: int) -> Tiling:
    role, anchor, knobs = g.role, g.anchor, g.knobs
    assert isinstance(role, Contraction)
    assert anchor is not None
    *batch, m, n = anchor.shape
    lead, k = len(batch), anchor.reduce_axes[0].hi + 1
    rows = _factors(knobs, f"{LEVELS}.m", m, levels)
    columns = _factors(knobs, f"{LEVELS}.n", n, levels, _block(n))
    depth = _factors(knobs, f"{LEVELS}.k", k, 1, _block(k))
    as_it_is = knobs.category(f"{LEVELS}.input", ("tiled", "as it is"), default="tiled") != "tiled"
    first = [(d, 0) for d in range(lead)]
    both = [(lead + d, level) for level in range(levels + 1) for d in (0, 1)]
    output = _arranged(Layout(anchor.shape), {lead: _splits(rows), lead + 1: _splits(columns)}, [*first, *both])
    left = role.left.shape
    ahead = len(left) - 2
    upright = loads(anchor.bodies[0])[0].indices[-1] == as_index(anchor.reduce_axes[0])
    at_m, at_k = (ahead, ahead + 1) if upright else (ahead + 1, ahead)
    order = [*((d, 0) for d in range(ahead)), (at_m, 0), (at_k, 0)]
    order += [(at_m, level) for level in range(1, levels + 1)] + [(at_k, 1)]
    data = _arranged(Layout(left), {at_m: _splits(rows), at_k: _splits(depth)}, order)
    at_n, at_k = (0, 1) if role.transposed else (1, 0)
    inside = prod(columns[1:])
    weights = _arranged(
        Layout(role.right.shape), {at_n: [(inside, inside)], at_k: _splits(depth)},
        [(at_k, 0), (at_n, 0), (at_k, 1), (at_n, 1)],
    )  # fmt: skip
    return Tiling(levels, lead, ("m", "n"), output, None if as_it_is else data, weights, depth[1], ((1, 1),))


_Cut = tuple[int, int]  # a tile, and how far apart they begin


def _splits(factors: Sequence[int]) -> list[_Cut]:
    """The cuts of a dimension into blocks of blocks."""
    return [(n, n) for n in (prod(factors[k:]) for k in range(1, len(factors)))]


def _arranged(layout: Layout, cuts: Mapping[int, Sequence[_Cut]], order: Sequence[tuple[int, int]]) -> Layout:
    """Dimensions cut, from outside to inside, and their parts put in order.

    Args:
        layout: of the whole dimensions.
        cuts: of some of these.
        order: a dimension and which part of it, one a physical dimension.
    """
    rank = len(layout.physical_shape)
    counts = [1 + len(cuts.get(d, ())) for d in range(rank)]
    for d in reversed(range(rank)):
        for k, (tile, stride) in enumerate(cuts.get(d, ())):
            layout = layout.split(d + k, tile) if tile == stride else layout.unfold(d + k, tile, stride)
    first = [0, *accumulate(counts)]
    perm = [first[d] + part for d, part in order]
    return layout if perm == sorted(perm) else layout.reorder(*perm)


def _block(extent: int) -> int:
    return max(n for n in divisors(max(extent, 1)) if n <= USUAL_BLOCK)


def _factors(
    knobs: Knobs, name: str, extent: int, levels: int, inner: int | None = None, *, of: int | None = None
) -> tuple[int, ...]:
    """The split factors of a dimension: how many tiles there are, and for each level how many tiles one of them has.

    Args:
        knobs: are asked.
        name: of the knob.
        extent: of the dimension.
        levels: of tiles.
        inner: the innermost factor where nothing is said; as large as the dimension unless given.
        of: extent whose divisors tiles are; the dimension's own unless given.
    """
    whole = extent if of is None else of
    inner = whole if inner is None else inner
    default = (whole // inner, *[1] * (levels - 1), inner)
    found = knobs.factors(name, whole, levels + 1, default=default)
    return (found[0] * (extent // whole), *found[1:])
