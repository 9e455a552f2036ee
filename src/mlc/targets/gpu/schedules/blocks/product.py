"""Matrix products by vectors: a thread makes some rows of some vectors of columns, in registers.

Constant right operands are packed in the order in which they are used, a panel of columns after the other; others are
read as they lie, where whole vectors do. What is loaded of the left one is a vector of terms.
"""

from __future__ import annotations

from math import prod

from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.blocks.common import BLOCKS, FLOATS, bind_threads, block_for, hold, terms_of
from mlc.targets.gpu.schedules.plain import schedule_plain
from mlc.targets.gpu.vector_cost import FILTERS, PIXELS, Conv, best_tile, refusal
from mlc.targets.groups.group import Group, ends_in_anchor, inline_rest, is_single
from mlc.targets.groups.roles import Contraction
from mlc.targets.groups.template import Template, constant_at, row_major


def _panels(shape: tuple[int, ...], block: int, *, transposed: bool) -> Layout:
    """A right operand ``[K, N]``, or ``[N, K]``, as ``[N / block][K][block]``."""
    dim = 0 if transposed else 1
    layout = Layout(shape).pad(dim, 0, -shape[dim] % block).split(dim, block)
    return layout.reorder(0, 2, 1) if transposed else layout.reorder(1, 0, 2)


def schedule_product(g: Group, target: Gpu) -> Schedule:
    """A few rows and vectors of columns a thread.

    Raises:
        ScheduleError: the configuration is refused.
    """
    role = _role(g)
    packed = g.layouts.get(role.right)
    if packed is None and not _in_vectors(g):
        return schedule_plain(g, target)
    assert g.anchor is not None
    block = g.knobs.discrete("block", BLOCKS, default=BLOCKS[0]) if packed is None else packed.physical_shape[-1]
    *batch, m, n = g.anchor.shape
    (k,) = g.anchor.reduce_axes
    terms = terms_of(k.hi + 1, None)
    operands = (role.left, role.right, g.outputs[0])
    work = Conv(
        prod(batch), m, -(-n // block), block, terms, (k.hi + 1) // terms, 1, 1, 1, role.left.dtype.itemsize,
        target.vector_bytes, sum(t.size * t.dtype.itemsize for t in operands),
    )  # fmt: skip
    knobs, best = g.knobs, best_tile(work, target)
    rows = min(knobs.discrete("rows", PIXELS, default=best.pixels), m)
    columns = min(knobs.discrete("columns", FILTERS, default=best.filters), work.blocks)
    tile = type(best)(rows, columns, False)
    why = refusal(work, tile, target)
    knobs.require(not why, why)
    p = g.apply({})
    assert p.anchor is not None
    left, right = p.anchor.inputs if len(p.anchor.inputs) == 2 else (p.anchor.inputs[0],) * 2
    s = Schedule(p.outputs)
    sums, out = p.anchor.outputs[0], p.outputs[0]
    along = left.shape[-1] == k.hi + 1 and _walks_terms(p, left)
    sums = s.cache_write(sums, "local") if sums in s.outputs else sums
    s[sums].set_scope("local")
    right_part = s.cache_read(right, "local", [sums])
    left_part = s.cache_read(left, "local", [sums]) if left is not right else None
    inline_rest(s, [t for t in (left_part, right_part) if t is not None])
    stage, acc = s[out], s[sums]
    *lead, i, j = stage.op.axes
    jo, lane = stage.split(j, block)
    jo, jf = stage.split(jo, columns)
    io, ii = stage.split(i, rows)
    loops = [jo, io, *([stage.fuse(*lead)] if lead else [])]
    thread = bind_threads(stage, loops, knobs, target, (ii, jf, lane))
    stage.unroll(ii)
    stage.unroll(jf)
    stage.vectorize(lane)
    acc.compute_at(stage, thread)
    *lead, i, j = acc.op.axes
    acc.align(j, block)
    jo, lane = acc.split(j, block)
    ko, ki = acc.split(acc.op.reduce_axes[0], terms)
    acc.reorder(ko, ki, *lead, i, jo, lane)
    for a in (ki, i, jo):
        acc.unroll(a)
    acc.vectorize(lane)
    if left_part is not None:
        hold(s[left_part], acc, ko, vectors=along and terms > 1)
    part = s[right_part]
    if packed is None:
        part.set_scope("local")
        part.compute_at(acc, ki)
        *_, column = part.op.axes
        part.align(column, block)
        co, lane = part.split(column, block)
        part.unroll(co)
        part.vectorize(lane)
    else:
        hold(part, acc, ki, vectors=True)
    return s


def _role(g: Group) -> Contraction:
    assert isinstance(g.role, Contraction)
    return g.role


def _walks_terms(p: Group, left: object) -> bool:
    """Whether terms of the left operand lie next to each other."""
    from mlc.ir.expr import loads

    assert p.anchor is not None
    (k,) = p.anchor.reduce_axes
    return all(ld.indices[-1].coefficient(k) == 1 for ld in loads(p.anchor.bodies[0]) if ld.source is left)


def _in_vectors(g: Group) -> bool:
    """Whether whole vectors of columns of the right operand, as it lies, are next to each other."""
    role = _role(g)
    return not role.transposed and role.right.shape[-1] % max(BLOCKS) == 0 and role.right in g.inputs


def _fits(g: Group, target: Gpu) -> bool:
    role = g.role
    if not is_single(g) or not isinstance(role, Contraction) or not ends_in_anchor(g) or role.bits is not None:
        return False
    if any(a.hi < 0 for a in g.anchor.reduce_axes) if g.anchor is not None else True:
        return False
    inputs = role.left in g.inputs and role.right in g.inputs and role.left is not role.right
    return inputs and all(t.dtype in FLOATS for t in (role.left, role.right, *g.outputs))


def _layouts(g: Group, site: Site, target: Gpu) -> LayoutChoice:
    """Panels of columns of a constant right operand."""
    role = _role(g)
    k = constant_at(g, site, role.right)
    block = block_for(role.right, target)
    if k is None or block is None or len(role.right.shape) != 2 or g.outputs[0].shape[-1] < BLOCKS[0]:
        return row_major(g, site, target)
    return LayoutChoice((None,), {k: _panels(role.right.shape, block, transposed=role.transposed)})


BLOCKED_PRODUCT: Template[Gpu] = Template("product by vectors", _fits, _layouts, schedule_product)
