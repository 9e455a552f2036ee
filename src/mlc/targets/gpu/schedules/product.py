"""Matrix products and convolutions: a block makes a tile, its threads fetch what it reads into shared memory together.

A convolution is the product of its weights ``[o, k]`` and of ``column[k, p]``, where ``k`` counts channels and taps and
``p`` pixels (Chellapilla, Puri and Simard, 2006). The columns are never written down: a block computes its part of them
while it fetches. Where a device's shared memory is no faster than its caches, threads read their operands directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads, substitute_vars
from mlc.ir.index import IndexLike, Linear, Var, as_index, substitute
from mlc.ir.layout import Layout
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.cost import DEPTHS, ROWS, THREADS, Product, Tile, best_tile, fitted, refusal
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.tensor import is_large, mma_of, schedule_tensor
from mlc.targets.groups.group import Group, ends_in_anchor, inline_rest, is_single, replace_anchor
from mlc.targets.groups.roles import Contraction, Convolution, factors_of
from mlc.targets.groups.template import Template, row_major

UNROLLED = 64  # multiplications of a step that are written out


@dataclass(frozen=True)
class Operands:
    """A product as the schedule sees it: ``out[batch…, i, j] = sum(left[…, i, k] * right[…, k, j])``.

    Args:
        group: the product and what follows it element by element.
        made: operands that are computed, and can be computed where they are fetched.
    """

    group: Group
    made: tuple[te.Tensor, ...]


def schedule_product(g: Group, target: Gpu) -> Schedule:
    """A tiled product.

    Raises:
        ScheduleError: the configuration is refused.
    """
    operands = _columns(g) if isinstance(g.role, Convolution) else Operands(g, ())
    p = operands.group
    assert p.anchor is not None
    *batch, i, j = p.anchor.axes
    (k,) = p.anchor.reduce_axes
    size = max(t.dtype.itemsize for t in (*p.anchor.inputs, *p.anchor.outputs))
    mma = mma_of(p, target)
    fits = mma is not None and is_large((i.hi + 1, j.hi + 1, k.hi + 1), mma)
    if mma is not None and fits and g.knobs.category("tensor", (True, False), default=True):
        return schedule_tensor(p, target, mma)
    product = Product(prod(a.hi + 1 for a in batch), i.hi + 1, j.hi + 1, k.hi + 1, size)
    pair = factors_of(p.anchor)
    assert pair is not None
    left, right = (ld.source for ld in pair)
    # of a tensor times itself, one copy would have to hold the rows of both tiles and all between
    shared = target.shared_bytes > 0 and left is not right
    best = best_tile(product, target, shared=shared)
    if shared:
        shared = g.knobs.category("shared", (True, False), default=True)
    tile = ask_tile(g.knobs, product, target, best, shared=shared)
    s = Schedule(p.outputs)
    sums = p.anchor.outputs[0]
    sums = s.cache_write(sums, "local") if sums in s.outputs else sums
    s[sums].set_scope("local")
    fetched: list[te.Tensor] = []
    for t in (left, right) if shared else ():
        fetched.append(t if t in operands.made else s.cache_read(t, "shared", [sums]))
        s[fetched[-1]].set_scope("shared")
    inline_rest(s, fetched)
    _bind(s, p.outputs[0], s[sums], tile, fetched)
    return s


def ask_tile(knobs: Knobs, p: Product, target: Gpu, best: Tile, *, shared: bool) -> Tile:
    """The tile that the knobs say; what the cost model thinks best where they say nothing.

    Raises:
        ScheduleError: a block cannot run.
    """

    def ask(name: str, values: tuple[int, ...], default: int) -> int:
        return knobs.discrete(name, sorted({*values, default}), default=default)

    tile = Tile(
        ask("rows", ROWS, best.rows),
        ask("columns", ROWS, best.columns),
        ask("ty", THREADS, best.ty),
        ask("tx", THREADS, best.tx),
        ask("depth", DEPTHS, best.depth),
    )
    tile = fitted(tile, p)
    why = refusal(tile, p, target, shared=shared)
    knobs.require(not why, why)
    return tile


def _bind(s: Schedule, out: te.Tensor, acc: Stage, tile: Tile, fetched: list[te.Tensor]) -> None:
    stage = s[out]
    *batch, i, j = stage.op.axes
    by, i = stage.split(i, tile.high)
    bx, j = stage.split(j, tile.wide)
    ty, i = stage.split(i, tile.rows)
    tx, j = stage.split(j, tile.columns)
    stage.reorder(*batch, by, bx, ty, tx, i, j)
    if batch:
        stage.bind(stage.fuse(*batch), "blockIdx.z")
    for axis, name in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        stage.bind(axis, name)
    stage.unroll(i)
    if tile.columns in (2, 4, 8):
        stage.vectorize(j)
    else:
        stage.unroll(j)
    acc.compute_at(stage, tx)
    (k,) = acc.op.reduce_axes
    ko, ki = acc.split(k, tile.depth)
    acc.reorder(ko, ki, *acc.op.axes)
    for a in acc.op.axes:
        acc.unroll(a)
    if tile.rows * tile.columns * (ki.hi + 1) <= UNROLLED:
        acc.unroll(ki)
    for t in fetched:
        part = s[t]
        part.compute_at(acc, ko)
        _, thread = part.split(part.fuse(*part.op.axes), tile.ty * tile.tx)
        for a, name in zip(part.split(thread, tile.tx), ("threadIdx.y", "threadIdx.x"), strict=True):
            part.bind(a, name)


def _columns(g: Group) -> Operands:
    """A convolution as a product of weights and columns, over pixels in one axis."""
    role = g.role
    assert isinstance(role, Convolution)
    assert g.anchor is not None
    shape = g.anchor.shape
    layout = Layout(shape)
    if role.groups > 1:
        layout = layout.split(1, shape[1] // role.groups)
    first = 2 if role.groups == 1 else 3
    if len(layout.physical_shape) - first > 1:
        layout = layout.fuse(first, len(layout.physical_shape) - first)
    operands = te.topological(g.anchor.inputs)
    before = {*g.anchor.inputs, *(t for op in operands for t in (*op.inputs, *op.outputs))}
    alike = [t for t in (*g.inputs, *(t for op in g.computes for t in op.outputs)) if t not in before]
    p = g.apply({t: layout for t in alike if t.shape == shape})
    anchor = p.anchor
    assert anchor is not None
    pair = factors_of(anchor)
    assert pair is not None
    data, weights = pair
    *batch, o, pixel = anchor.axes
    taps = anchor.reduce_axes
    terms = prod(a.hi + 1 for a in taps)

    def of_terms(k: Linear) -> dict[Var, IndexLike]:
        env: dict[Var, IndexLike] = {}
        for a in reversed(taps):
            env[a], k = k % (a.hi + 1), k // (a.hi + 1)
        return env

    def column(*at: Linear) -> Expr:
        *b, k, q = at
        env = {**of_terms(k), **dict(zip(batch, b, strict=True)), o: 0, pixel: q}
        return Load(data.source, tuple(substitute(ix, env) for ix in data.indices))

    def weight(*at: Linear) -> Expr:
        *b, k = at
        env = {**of_terms(k), **dict(zip((*batch[1:], o), b, strict=True)), batch[0]: 0}
        return Load(weights.source, tuple(substitute(ix, env) for ix in weights.indices))

    extents = [a.hi + 1 for a in batch]
    columns = te.compute((*extents, terms, pixel.hi + 1), column, "column")
    matrix = te.compute((*extents[1:], o.hi + 1, terms), weight, "weight")
    k = te.reduce_axis(terms, "k")
    at = {
        id(data): Load(columns, (*map(as_index, batch), as_index(k), as_index(pixel))),
        id(weights): Load(matrix, (*map(as_index, batch[1:]), as_index(o), as_index(k))),
    }
    body = replace_loads(anchor.bodies[0], lambda ld: at[id(ld)])
    axes = {a: Var(a.name, 0, a.hi) for a in anchor.axes}
    fresh = te.Compute(
        anchor.name,
        tuple(axes.values()),
        (k,),
        (substitute_vars(body, axes),),
        anchor.combiner,
        anchor.tag,
        anchor.attrs,
    )
    return Operands(replace_anchor(p, fresh), (columns, matrix))


def _fits(g: Group, target: Gpu) -> bool:
    if not is_single(g) or not ends_in_anchor(g) or not isinstance(g.role, (Contraction, Convolution)):
        return False
    assert g.anchor is not None
    return all(a.hi >= 0 for a in g.anchor.reduce_axes)


PRODUCT = Template("product", _fits, row_major, schedule_product)
