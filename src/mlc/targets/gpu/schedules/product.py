"""Matrix products and convolutions: a block makes a tile, its threads fetch what it reads into shared memory together.

A convolution is the product of its weights ``[o, k]`` and of ``column[k, p]``, where ``k`` counts channels and taps and
``p`` pixels (Chellapilla, Puri and Simard, 2006). The columns are never written down: a block computes its part of them
while it fetches. Where a device's shared memory is no faster than its caches, threads read their operands directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from mlc.ir import te
from mlc.ir.expr import Binary, Expr, Load, Select, index_vars, loads, replace_loads, select, substitute_vars, within
from mlc.ir.index import IndexLike, Linear, Var, as_index, substitute, weighted
from mlc.ir.layout import Layout
from mlc.ir.loop import dense_strides
from mlc.ir.types import DType
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.cost import (
    BANKS,
    DEPTHS,
    ROWS,
    RUN,
    STRIPS,
    THREADS,
    Product,
    Tile,
    best_tile,
    fitted,
    offset,
    refusal,
    seconds,
)
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.fetch import ask_asynchronous, ask_versions, fetch_ahead
from mlc.targets.gpu.schedules.parts import add_up, ask_parts, in_parts
from mlc.targets.gpu.schedules.spread import spread, vector_of
from mlc.targets.gpu.schedules.tensor import is_large, mma_of, schedule_tensor
from mlc.targets.gpu.tensor_cores import MMAS, best_fragments
from mlc.targets.gpu.tensor_cores import seconds as fragment_seconds
from mlc.targets.groups.group import Group, ends_in_anchor, inline_rest, is_single, replace_anchor
from mlc.targets.groups.roles import Contraction, Convolution, PhasedConvolution, factors_of
from mlc.targets.groups.template import Template, row_major

UNROLLED = 64  # multiplications of a step that are written out


@dataclass(frozen=True)
class Operands:
    """A product as the schedule sees it: ``out[batch…, i, j] = sum(left[…, k, i] * right[…, k, j] for k)``.

    Args:
        group: the product and what follows it element by element.
        left, right: operands that are computed, and can be computed where they are fetched; a row a term, so that what
            a thread reads of a term lies side by side.
    """

    group: Group
    left: te.Tensor
    right: te.Tensor


@dataclass(frozen=True)
class Launch:
    """A product's loops within a schedule whose other stages have none yet.

    Args:
        schedule: it.
        group: the group that it is of.
        kept: stages of the launch, which must not be inlined; the product's tensor is the last one.
    """

    schedule: Schedule
    group: Group
    kept: tuple[te.Tensor, ...]


def schedule_product(g: Group, target: Gpu) -> Schedule:
    """A tiled product.

    Raises:
        ScheduleError: the configuration is refused.
    """
    flat = g if isinstance(g.role, Contraction) else _flat(g)
    p = product_of(flat)
    assert flat.anchor is not None
    left, right = (ld.source.dtype for ld in factors_of(flat.anchor) or ())
    channels = flat.anchor.reduce_axes[0].hi + 1
    parts = ask_parts(flat.knobs, channels, p, target, lambda product: product_seconds(product, left, right, target))
    launch = launch_product(flat if parts == 1 else in_parts(flat, parts), target)
    s, made = launch.schedule, launch.kept[-1]
    if parts > 1:
        (total,) = (op.outputs[0] for op in launch.group.reductions if made in op.inputs)
        inline_rest(s, (*launch.kept, total))
        add_up(s, total, g.knobs, target, phased=isinstance(g.role, PhasedConvolution))
        return s
    inline_rest(s, launch.kept)
    if made not in s.outputs:  # phases, which are put next to each other afterwards
        spread(s[s.outputs[0]], target, g.knobs, "out")
    return s


def launch_product(g: Group, target: Gpu) -> Launch:
    """The loops of a group's product, and of what follows it with its shape.

    Args:
        g: a group whose anchor is ``out[batch…, i, j]``, a sum of products, one of which has ``i`` and the other ``j``.
        target: the device.
    Raises:
        ScheduleError: the configuration is refused.
    """
    product = product_of(g)
    assert g.anchor is not None
    matrices = len(g.anchor.reduce_axes) == 1 and type(g.anchor.bodies[0]) is Binary
    plain = g if matrices else _operands(g, terms_first=False).group
    mma = mma_of(plain, target)
    if mma is not None and is_large(product, mma):
        return Launch(*schedule_tensor(plain, target, mma))
    possible = target.shared_bytes > 0
    best = best_tile(product, target, shared=possible)
    shared = possible and g.knobs.category("shared", (True, False), default=True)
    tile = ask_tile(g.knobs, product, target, best, shared=shared)
    # with zeros behind the last term, no step asks which of its terms there are
    deep = ceil(product.k / tile.depth) * tile.depth if shared and product.k % tile.depth else product.k
    operands = _operands(g, terms_first=True, terms=deep)
    p = operands.group
    assert p.anchor is not None
    s = Schedule(p.outputs)
    parts = ((operands.left, tile.high), (operands.right, tile.wide)) if possible else ()
    fetches = [
        (t, extent, ask_vector(g.knobs, f"{name}.vector", s[t], extent, target))
        for name, (t, extent) in zip(("left", "right"), parts, strict=False)
    ]
    sums = p.anchor.outputs[0]
    out = p.outputs[0] if ends_in_anchor(p) else sums
    if sums is out:
        sums = s.cache_write(sums, "local")
    s[sums].set_scope("local")
    asynchronous = possible and ask_asynchronous(g.knobs, target)
    fetches = fetches if shared else []
    for t, *_ in fetches:
        s[t].set_scope("shared")
    _bind(s, out, s[sums], tile)
    ahead = [(s[t], _fetch(s[t], s[sums], tile, extent, vector)) for t, extent, vector in fetches]
    fetch_ahead(ahead, tile.versions, asynchronous=asynchronous)
    return Launch(s, p, (*(t for t, *_ in fetches), sums, out))


def product_of(g: Group) -> Product:
    """What the cost model knows of a product over pixels in one axis."""
    assert g.anchor is not None
    pair = factors_of(g.anchor)
    assert pair is not None
    *batch, m, n = g.anchor.shape
    size = max(t.dtype.itemsize for t in (pair[0].source, pair[1].source, *g.anchor.outputs))
    return Product(prod(batch), m, n, prod(a.hi + 1 for a in g.anchor.reduce_axes), size)


def product_seconds(p: Product, left: DType, right: DType, target: Gpu) -> float:
    """What a product of operands of some types is expected to take, as it is made untuned."""
    mma = MMAS.get((left.name, right.name))
    if mma is not None and mma.name in target.tensor and is_large(p, mma):
        shape = (p.batch, p.m, p.n, p.k)
        return fragment_seconds(best_fragments(shape, target, mma), shape, target, mma)
    shared = target.shared_bytes > 0
    return float(seconds(best_tile(p, target, shared=shared), p, target, shared=shared))


def ask_tile(knobs: Knobs, p: Product, target: Gpu, best: Tile, *, shared: bool) -> Tile:
    """The tile that the knobs say; what the cost model thinks best where they say nothing.

    Raises:
        ScheduleError: a block cannot run.
    """

    def ask(name: str, values: tuple[int, ...], default: int) -> int:
        return knobs.discrete(name, sorted({*values, default}), default=default)

    # asked for whatever `shared` says: in a space of configurations, no value makes another knob go away
    strips = (ask("vy", STRIPS, best.vy), ask("vx", STRIPS, best.vx)) if target.shared_bytes else ()
    tile = Tile(
        ask("rows", ROWS, best.rows),
        ask("columns", ROWS, best.columns),
        ask("ty", THREADS, best.ty),
        ask("tx", THREADS, best.tx),
        ask("depth", DEPTHS, best.depth),
        ask_versions(knobs, best.versions) if target.shared_bytes and target.ahead else 1,
        *(strips if shared else ()),
    )
    tile = fitted(tile, p)
    why = refusal(tile, p, target, shared=shared)
    knobs.require(not why, why)
    return tile


def _bind(s: Schedule, out: te.Tensor, acc: Stage, tile: Tile) -> None:
    stage = s[out]
    *batch, i, j = stage.op.axes
    by, i = stage.split(i, tile.high)
    bx, j = stage.split(j, tile.wide)
    vy, i = stage.split(i, tile.high // tile.vy)
    vx, j = stage.split(j, tile.wide // tile.vx)
    ty, i = stage.split(i, tile.rows // tile.vy)
    tx, j = stage.split(j, tile.columns // tile.vx)
    stage.reorder(*batch, by, bx, vy, vx, ty, tx, i, j)
    if batch:
        stage.bind(stage.fuse(*batch), "blockIdx.z")
    for axis, name in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, "threadIdx.y"), (tx, "threadIdx.x")):
        stage.bind(axis, name)
    for axis, strips in ((vy, tile.vy), (vx, tile.vx)):
        if strips > 1:
            stage.vthread(axis)
    stage.unroll(i)
    if tile.columns // tile.vx in (2, 4, 8):
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


def ask_vector(knobs: Knobs, name: str, part: Stage, extent: int, target: Gpu) -> int:
    """How many elements of an operand ``[…, k, i]`` a thread fetches at once; by default as many as memory has.

    Args:
        knobs: are asked.
        name: of the question.
        part: fetches the operand.
        extent: of ``i``, in a block.
        target: the device.
    """
    widths = [w for w in (1, 2, 4, 8) if w <= vector_of(part, target) and extent % w == 0]
    return knobs.discrete(name, (1, 2, 4, 8), default=widths[-1])


def _fetch(part: Stage, acc: Stage, tile: Tile, extent: int, vector: int) -> int:
    """All threads of a block fetch an operand's part ``[…, k, i]``, neighbours what lies side by side in memory.

    It has room for ``extent`` rows or columns, even where there are fewer: threads then need not ask whether what they
    multiply is there.

    Returns:
        how many elements a thread fetches at once.
    """
    part.compute_at(acc, acc.leaves[0])
    *batch, k, i = part.op.axes
    part.align(i, extent)
    if walks(part.op, k) and not walks(part.op, i):
        # terms are side by side in memory: neighbouring threads' stores then must not meet in a bank
        part.storage_align(k, BANKS, offset(tile.depth))
        if tile.depth > RUN and tile.depth % RUN == 0:
            runs, k = part.split(k, RUN)
            part.reorder(*batch, runs, i, k)
        else:
            part.reorder(*batch, i, k)
        vector = 1
    flat = part.fuse(*part.leaves)
    if vector > 1:
        flat, lanes = part.split(flat, vector)
        part.vectorize(lanes)
    _, thread = part.split(flat, tile.ty * tile.tx)
    for a, axis in zip(part.split(thread, tile.tx), ("threadIdx.y", "threadIdx.x"), strict=True):
        part.bind(a, axis)
    return vector


def walks(op: te.Compute, axis: Var) -> bool:
    """Whether steps along an axis are steps to the next element in memory."""
    return all(
        weighted(ld.indices, dense_strides(ld.source.shape)).coefficient(axis) == 1
        for body in op.bodies
        for ld in loads(body)
    )


def _operands(p: Group, *, terms_first: bool, terms: int | None = None) -> Operands:
    """A group as a product of matrices, both of which are computed where they are read.

    Args:
        p: the group, with pixels in one axis.
        terms_first: whether both operands have a row a term; else only the right one has, and the left one (a
            convolution's weights) lies as memory has it.
        terms: how many to take; of those that there are not, both operands are zero.
    """
    anchor = p.anchor
    assert anchor is not None
    pair = factors_of(anchor)
    assert pair is not None
    (body,) = anchor.bodies
    exists, body = (body.cond, body.a) if type(body) is Select else (None, body)
    *batch, i, j = anchor.axes
    taps = anchor.reduce_axes
    count = prod(a.hi + 1 for a in taps)
    k = te.reduce_axis(count if terms is None else terms, "k")

    def of_terms(k: Linear) -> dict[Var, IndexLike]:
        env: dict[Var, IndexLike] = {}
        for a in reversed(taps[1:]):
            env[a], k = k % (a.hi + 1), k // (a.hi + 1)
        return {**env, taps[0]: k}

    def operand(ld: Load, last: Var) -> tuple[te.Tensor, Load]:
        used = {v for ix in ld.indices for v in ix.vars()} | (index_vars(exists) if exists is not None else set())
        own = [a for a in batch if a in used]
        turned = not terms_first and last is i

        def element(*at: Linear) -> Expr:
            *b, term, q = (*at[:-2], at[-1], at[-2]) if turned else at
            env = {**of_terms(term), **dict(zip(own, b, strict=True)), last: q}
            read: Expr = Load(ld.source, tuple(substitute(ix, env) for ix in ld.indices))
            read = read if exists is None else select(substitute_vars(exists, env), read, 0)
            return select(within(term, 0, count), read, 0)

        order = (*own, last, k) if turned else (*own, k, last)
        t = te.compute([a.hi + 1 for a in order], element, f"{ld.source.name}_{'left' if last is i else 'right'}")
        return t, Load(t, tuple(map(as_index, order)))

    a, b = pair
    if any(v is j for ix in a.indices for v in ix.vars()) or any(v is i for ix in b.indices for v in ix.vars()):
        a, b = b, a
    (left, at_left), (right, at_right) = operand(a, i), operand(b, j)
    at = {id(a): at_left, id(b): at_right}
    axes = {v: Var(v.name, 0, v.hi) for v in anchor.axes}
    fresh = te.Compute(
        anchor.name,
        tuple(axes.values()),
        (k,),
        (substitute_vars(replace_loads(body, lambda ld: at[id(ld)]), axes),),
        anchor.combiner,
        anchor.tag,
        anchor.attrs,
    )
    return Operands(replace_anchor(p, fresh), left, right)


def _flat(g: Group) -> Group:
    """A convolution's group with groups of channels apart, and pixels in one axis, behind the channels."""
    role = g.role
    assert isinstance(role, (Convolution, PhasedConvolution))
    assert g.anchor is not None
    shape = g.anchor.shape
    layout = Layout(shape)
    first = 2
    if role.groups > 1:
        layout, first = layout.split(1, shape[1] // role.groups), 3
    space = len(layout.physical_shape) - first
    if isinstance(role, PhasedConvolution):
        space //= 2
        # every phase is a product of its own: [n, groups, phases, channels, pixels]
        rest = range(first + space, first + 2 * space)
        layout = layout.reorder(*range(first - 1), *range(first, first + space), first - 1, *rest)
        first += space
        alike = [g.anchor.outputs[0]]
    else:
        operands = te.topological(g.anchor.inputs)
        before = {*g.anchor.inputs, *(t for op in operands for t in (*op.inputs, *op.outputs))}
        tensors = (*g.inputs, *(t for op in g.computes for t in op.outputs))
        alike = [t for t in tensors if t not in before and t.shape == shape]
    if space > 1:
        layout = layout.fuse(first, space)
    return g.apply({t: layout for t in alike})


def _fits(g: Group, target: Gpu) -> bool:
    if not is_single(g) or g.anchor is None or factors_of(g.anchor) is None:
        return False
    if any(a.hi < 0 for a in g.anchor.reduce_axes):
        return False
    if isinstance(g.role, PhasedConvolution):
        return len(g.outputs) == 1
    return ends_in_anchor(g) and isinstance(g.role, (Contraction, Convolution))


PRODUCT = Template("product", _fits, row_major, schedule_product)
