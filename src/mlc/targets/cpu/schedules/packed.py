"""The master template as it is asked for by name: for any reduction, whether a template is made for its like or not.

A group's expression decides all of it. A constant factor of a sum of products is packed in the order in which its tiles
are used, where it alone has the axis of the vectors. Zeros around an input are written once, or tested for at every
access. All else is as in :mod:`mlc.targets.cpu.schedules.master`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product

from mlc.ir import te
from mlc.ir.expr import Load, index_vars, loads
from mlc.ir.index import Linear, Var
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.lower.knobs import divisors
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.master import MIN_WORK, Tiled, heaviest, shares_loops
from mlc.targets.groups.group import Group, apart_from_output, size_of
from mlc.targets.groups.roles import factors_of, is_border
from mlc.targets.groups.template import Template

SHORT = 9  # terms of a sum that are unrolled untuned: a window of 3 x 3
MOST_ROWS = 7  # of a tile of two whole vectors each
MOST_SUMS = 8  # vectors of sums of a tile whose rows are no whole vectors
WIDEST = 64  # elements of a tile along one axis


def _fits(g: Group, target: Cpu) -> bool:
    op = heaviest(g)
    if op is None or len(g.outputs) != 1 or len(op.outputs) != 1 or not op.shape or not shares_loops(g, op):
        return False
    return size_of(op.shape) * size_of([a.hi + 1 for a in op.reduce_axes]) >= MIN_WORK


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    """Everything as the model has it, but for the constant factor."""
    op = heaviest(g)
    assert op is not None
    constants = [t for t, fixed in zip(g.inputs, site.constant, strict=True) if fixed]
    weights = packable(op, constants)
    if weights is None:
        return LayoutChoice((None,))
    tiled = _tiled(g, op, target, constants)
    axis = op.axes[tiled.vector]
    if axis not in index_vars(weights):
        return LayoutChoice((None,))
    width = tiled.tiles[tiled.vector][-1] if tiled.vector in tiled.tiles else axis.hi + 1
    return LayoutChoice((None,), {g.inputs.index(weights.source): packed_layout(weights, axis, width, op.reduce_axes)})


def _schedule(g: Group, target: Cpu) -> Schedule:
    op = heaviest(g)
    assert op is not None
    packed = [t for t in g.inputs if t in g.layouts and not g.layouts[t].is_plain]
    fast = _fast(op, packed, target)
    tiled = _tiled(g, op, target, packed)
    p, new = _padded(g, op, tiled.vector, tiled.lanes) if tiled.padded else g.applied({})
    anchor = new[op.outputs[0]].op
    assert anchor is not None
    borders = [new[s.outputs[0]] for s in g.computes if is_border(s)]
    usual = "tested" if tiled.whole else "copied"  # masks of some vectors cost less than a copy that few terms read
    copied = borders and g.knobs.category("border", ("copied", "tested"), default=usual) == "copied"
    copies = borders if copied else ()
    return Tiled(p, anchor, target, fast, short=SHORT, whole=tiled.whole, copies=copies).schedule()


def _tiled(g: Group, op: te.Compute, target: Cpu, constants: Collection[te.Tensor]) -> Tiled:
    """What the knobs say that decide layouts."""
    fast = _fast(op, constants, target)
    whole = _whole(op, next(iter(fast)), constants, target.lanes_of(op.outputs[0].dtype))
    return Tiled(g, op, target, fast, short=SHORT, whole=whole)


def _whole(op: te.Compute, d: int, constants: Collection[te.Tensor], lanes: int) -> bool:
    """Whether rows are padded to whole vectors: those that no packed weights have, and that are longer than one."""
    weights = packable(op, constants)
    n = op.axes[d].hi + 1
    return n > lanes and n % lanes > 0 and (weights is None or op.axes[d] not in index_vars(weights))


def _padded(g: Group, op: te.Compute, d: int, lanes: int) -> tuple[Group, Mapping[te.Tensor, te.Tensor]]:
    """The group with an axis of its reduction in whole vectors, and so are the borders that it reads.

    Gives:
        it, and the new tensor for every old one.
    """
    sums = op.outputs[0]
    g = apart_from_output(g, sums)
    excess = -sums.shape[d] % lanes
    extra = {sums: Layout(sums.shape).pad(d, 0, excess)}
    for ld in (ld for body in op.bodies for ld in loads(body)):
        if ld.source.op is not None and is_border(ld.source.op):
            for k, ix in enumerate(ld.indices):
                stride = ix.coefficient(op.axes[d]) or 0
                if stride > 0:
                    extra[ld.source] = Layout(ld.source.shape).pad(k, 0, excess * stride)
    return g.applied(extra)


def packable(op: te.Compute, constants: Collection[te.Tensor]) -> Load | None:
    """The constant factor of a sum of products that has a loop an axis, and so can lie in any order of them."""
    for factor in factors_of(op) or ():
        if factor.source in constants and all(len(ix.vars()) <= 1 and _bare(ix) for ix in factor.indices):
            return factor
    return None


def _bare(ix: Linear) -> bool:
    """Whether an index is a loop variable, or 0."""
    return ix.const == 0 and all(type(v) is Var and c == 1 for v, c in ix.terms.items())


def packed_layout(weights: Load, axis: Var, width: int, inner: Collection[Var]) -> Layout:
    """Weights by tiles of ``width`` along an axis, which lies innermost, behind those of the sum.

    >>> from mlc.ir.types import f32
    >>> o, c = Var("o", 0, 63), Var("c", 0, 255)
    >>> w = te.placeholder((64, 256), f32, "w")
    >>> packed_layout(w[o, c], o, 16, [c]).physical_shape
    (4, 256, 16)
    """
    owners = [next(iter(ix.vars()), None) for ix in weights.indices]
    at = owners.index(axis)
    layout = Layout(weights.source.shape).split(at, width)
    places = [k if k <= at else k + 1 for k in range(len(owners))]
    rest = [p for p, v in zip(places, owners, strict=True) if v not in inner and v is not axis]
    terms = [p for p, v in zip(places, owners, strict=True) if v in inner]
    return layout.reorder(*rest, at, *terms, at + 1)


def _fast(op: te.Compute, constants: Collection[te.Tensor], target: Cpu) -> dict[int, int]:
    """Elements of the register tile along two data axes, by their positions, the axis of the vectors first.

    Along the vectors, one factor lies or can be packed, and the other stays the same; along the other axis it is the
    other way round. Of all such tiles in whole vectors that fit the registers, the one with the most products for what
    it loads; a row where there is none.
    """
    found = _product(op, constants, target, last=True) or _product(op, constants, target, last=False)
    d = max((k for k, a in enumerate(op.axes) if a.hi > 0), default=0)
    return found or _row(op, d, target, whole=_whole(op, d, constants, target.lanes_of(op.outputs[0].dtype)))


def _product(op: te.Compute, constants: Collection[te.Tensor], target: Cpu, *, last: bool) -> dict[int, int] | None:
    """The tile of a product whose vectors lie along the last axis of the result, in whose order they are written.

    Or along any other, whose vectors are written number by number: less to do than numbers of the last axis that fill
    no whole vectors.
    """
    lanes = target.lanes_of(op.outputs[0].dtype)
    factors = factors_of(op)
    best: tuple[float, dict[int, int]] | None = None
    for vectors, other in (factors, factors[::-1]) if factors is not None else ():
        for d in _vector_axes(op, vectors, other, constants, lanes, last=last):
            for e, b in reversed(list(enumerate(op.axes))):  # neighbours in memory first
                if b.hi == 0 or b not in index_vars(other) or b in index_vars(vectors):
                    continue
                for v, m in product(divisors((op.axes[d].hi + 1) // lanes), divisors(b.hi + 1)):
                    fits = m * v + v + 1 <= target.registers and v * lanes <= WIDEST and m <= WIDEST
                    if fits and (best is None or m * v / (m + v) > best[0]):
                        best = m * v / (m + v), {d: v * lanes, e: m}
    return None if best is None else best[1]


def _vector_axes(
    op: te.Compute, vectors: Load, other: Load, constants: Collection[te.Tensor], lanes: int, *, last: bool
) -> Iterator[int]:
    """Axes that may run in vectors: the last one of the result, or else the others."""
    packs = packable(op, constants) is vectors
    end = max((d for d, a in enumerate(op.axes) if a.hi > 0), default=0)
    for d, a in enumerate(op.axes):
        if (d == end) != last:
            continue
        if a in index_vars(other) or a not in index_vars(vectors) or (a.hi + 1) % lanes:
            continue
        along = [ix.coefficient(a) for ix in vectors.indices]
        if packs or (along[-1] == 1 and not any(along[:-1])):
            yield d


def _row(op: te.Compute, d: int, target: Cpu, *, whole: bool) -> dict[int, int]:
    """A part of the result's rows, for some positions of an axis along which what they read stays the same.

    Rows in whole vectors are read by neighbours of a window: two vectors of as many rows as leave registers for what
    these read (see :func:`mlc.targets.cpu.schedules.window.schedule_window`).
    """
    lanes, extent = target.lanes_of(op.outputs[0].dtype), op.axes[d].hi + 1
    wide = [k for k, a in enumerate(op.axes) if a.hi > 0] or [0]
    if whole:
        width, most = lanes * (2 - -(-extent // lanes) % 2), 2 * min(MOST_ROWS, target.registers // 4)
    else:
        width, most = max(n for n in divisors(extent) if n <= WIDEST), MOST_SUMS
    reads = [index_vars(factor) for factor in factors_of(op) or ()]
    again = [e for e in wide[:-1] if any(op.axes[d] in r and op.axes[e] not in r for r in reads)] or wide[-2:-1]
    held = -(-width // lanes)
    return {d: width, **{e: max(n for n in divisors(op.axes[e].hi + 1) if n * held <= most) for e in again[-1:]}}


PACKED = Template("master", _fits, _layouts, _schedule)
