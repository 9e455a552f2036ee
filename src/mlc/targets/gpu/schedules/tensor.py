"""Products by Tensor Cores: a warp makes tiles of 16 by 8, of which each thread holds rows and columns of its own.

Both operands are fetched into shared memory with neighbouring terms next to each other, whatever way they lie outside,
and padded by zeros up to whole steps. The sums of a tile are laid out as the threads hold them (see
:mod:`mlc.targets.gpu.tensor_cores`): row ``16 * tile + 8 * r + l // 4`` and column ``8 * tile + 2 * (l % 4) + c`` are
thread ``l``'s. So every thread's part is a box, and its loops are those that the intrinsic stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod

from mlc.ir import te
from mlc.ir.expr import Binary, Expr, Load, cast, const, select, substitute_vars, within
from mlc.ir.index import IndexLike, Linear, Var, as_index
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.cost import Product
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.fetch import ask_asynchronous, ask_versions, fetch_ahead, vector_along
from mlc.targets.gpu.tensor_cores import (
    COLUMNS,
    MMAS,
    ROWS,
    STEPS,
    TILES_HIGH,
    TILES_WIDE,
    WARP,
    WARPS,
    Fragments,
    Mma,
    Shape,
    Turned,
    best_fragments,
    refusal,
)
from mlc.targets.groups.group import Group, ends_in_anchor, replace_anchor
from mlc.targets.groups.roles import factors_of

VECTOR = 16  # bytes that a thread fetches at once


def mma_of(g: Group, target: Gpu) -> Mma | None:
    """The instruction for a group's product; ``None`` where the device has none, or the product is too small."""
    assert g.anchor is not None
    if factors_of(g.anchor) is None or type(g.anchor.bodies[0]) is not Binary:
        return None
    form = _Form.of(g.anchor)
    found = MMAS.get((form.left.source.dtype.name, form.right.source.dtype.name))
    if found is None or found.name not in target.tensor or g.anchor.bodies[0].dtype is not found.sums:
        return None
    return found


def is_large(p: Product, mma: Mma) -> bool:
    """Whether a product fills a tile."""
    return p.m >= ROWS and p.n >= COLUMNS and p.k >= mma.terms


def schedule_tensor(
    g: Group, target: Gpu, mma: Mma, *, blocks: bool = False, memory: Collection[te.Tensor] = ()
) -> tuple[Schedule, Group, tuple[te.Tensor, ...]]:
    """A product by Tensor Cores.

    Args:
        g: ``out[batch…, i, j] = sum(left[…] * right[…] for k)``, and what follows it.
        target: the device.
        mma: its instruction.
        blocks: whether columns lie in blocks of a tile, ``out[batch…, block, i, lane]``.
        memory: tensors that launches before it leave there.
    Returns:
        a schedule with loops for the product and what follows it with its shape, the group that it is of, and the
        stages that must not be inlined, the last of which is the product's tensor.
    Raises:
        ScheduleError: the configuration is refused.
    """
    anchor = g.anchor
    assert anchor is not None
    form = _Form.of(anchor, blocks=blocks)
    batch, (k,) = form.batch, anchor.reduce_axes
    shape = (prod(a.hi + 1 for a in batch), form.row.hi + 1, form.column.hi + 1, k.hi + 1)
    sides = ((form.left, (*batch, form.row, k), "left"), (form.right, (*batch, form.column, k), "right"))
    first, second = (mma.turns and _lies_turned(factor, axes, memory) for factor, axes, _ in sides)
    tile = _ask(g.knobs, shape, target, mma, (first, second))
    high, wide, deep = (ceil(n / m) * m for n, m in zip(shape[1:], (tile.high, tile.wide, tile.depth), strict=True))
    left, right = (
        _Operand.padded(*side, (size, deep), turned=turned)
        for side, size, turned in zip(sides, (high, wide), (first, second), strict=True)
    )
    term = te.reduce_axis(deep, "k")

    def sums(*at: Linear) -> te.Reduction:
        *b, row, r, group, column, t, c = at
        lead = dict(zip(batch, b, strict=True))
        a = left.at(lead, row * ROWS + r * 8 + group, term)
        w = right.at(lead, column * COLUMNS + t * 2 + c, term)
        return te.sum_of(cast(a, mma.sums) * cast(w, mma.sums), term)

    extents = (*(a.hi + 1 for a in batch), high // ROWS, 2, 8, wide // COLUMNS, 4, 2)
    names = (*(a.name for a in batch), "row", "r", "g", "column", "t", "c")
    total = te.compute(extents, sums, "sums", axis_names=names)

    def element(*at: Linear) -> Expr:
        if form.blocks:
            *b, block, row, lane = at
        else:
            *b, row, column = at
            block, lane = column // COLUMNS, column % COLUMNS
        return total[(*b, row // ROWS, row // 8 % 2, row % 8, block, lane // 2, lane % 2)]

    seen = te.compute(anchor.shape, element, anchor.name, axis_names=[a.name for a in anchor.axes])
    assert seen.op is not None
    p = replace_anchor(g, seen.op)
    assert p.anchor is not None
    out = p.outputs[0] if ends_in_anchor(g) else p.anchor.outputs[0]
    s = Schedule(p.outputs)
    s[total].set_scope("local")
    for o, rows in ((left, tile.high), (right, tile.wide)):
        part, size = s[o.tensor], o.tensor.dtype.itemsize
        part.set_scope("shared")
        # rows of a block that nobody asks for are there, too: else a warp's threads would have to ask who may read
        part.align(part.op.axes[-1 if o.turned else -2], rows)
        part.storage_align(part.op.axes[-2], 32 // size, 16 // size)
    step = _bind(s[out], s[total], tile, mma, blocks=form.blocks)
    parts = [(s[o.tensor], _fetch(s[o.tensor], s[total], step, tile, memory)) for o in (left, right)]
    fetch_ahead(parts, tile.versions, asynchronous=ask_asynchronous(g.knobs, target), memory=memory)
    return s, p, (*memory, total, left.tensor, right.tensor, out)


@dataclass(frozen=True)
class _Form:
    """A product's axes and operands.

    Args:
        batch: axes that products go side by side along.
        row, column: of one.
        left, right: what has the rows, and the columns.
        blocks: whether the results' columns lie in blocks of a tile, before the rows.
    """

    batch: tuple[Var, ...]
    row: Var
    column: Var
    left: Load
    right: Load
    blocks: bool

    @classmethod
    def of(cls, anchor: te.Compute, *, blocks: bool = False) -> _Form:
        pair = factors_of(anchor)
        assert pair is not None
        row = anchor.axes[-2]
        left, right = pair if any(row in ix.vars() for ix in pair[0].indices) else pair[::-1]
        if not blocks:
            *batch, row, column = anchor.axes
            return cls(tuple(batch), row, column, left, right, blocks)
        *batch, block, row, lane = anchor.axes
        column, whole = Var("j", 0, (block.hi + 1) * COLUMNS - 1), as_index(block) * COLUMNS + lane
        at = tuple(as_index(column) if ix == whole else ix for ix in right.indices)
        return cls(tuple(batch), row, column, left, Load(right.source, at), blocks)


def _ask(knobs: Knobs, shape: Shape, target: Gpu, mma: Mma, turned: Turned) -> Fragments:
    """The tile that the knobs say; what the cost model thinks best where they say nothing.

    Raises:
        ScheduleError: a block cannot run.
    """
    best = best_fragments(shape, target, mma, turned)

    def ask(name: str, values: Sequence[int], default: int) -> int:
        return knobs.discrete(name, sorted({*values, default}), default=default)

    tile = Fragments(
        ask("tiles_high", TILES_HIGH, best.rows),
        ask("tiles_wide", TILES_WIDE, best.columns),
        ask("warps_high", WARPS, best.warps_high),
        ask("warps_wide", WARPS, best.warps_wide),
        ask("terms", [mma.terms * n for n in STEPS], best.depth),
        ask_versions(knobs, best.versions),
    ).fitted(shape, mma.terms)
    why = refusal(tile, target, mma, turned)
    knobs.require(not why, why)
    return tile


@dataclass(frozen=True)
class _Operand:
    """A part of what is multiplied.

    Args:
        tensor: over batch axes, rows and terms.
        batch: those axes of the product's that it has.
        turned: whether rows come after terms, so that it is rows that are neighbours.
    """

    tensor: te.Tensor
    batch: list[Var]
    turned: bool

    @classmethod
    def padded(
        cls, factor: Load, axes: Sequence[Var], name: str, extents: tuple[int, int], *, turned: bool
    ) -> _Operand:
        """With zeros beyond the ends of rows and terms.

        Args:
            factor: of the product.
            axes: batch axes, then of rows and terms.
            name: of the tensor.
            extents: of the last two, padded.
            turned: whether rows come after terms.
        """
        used = {v for ix in factor.indices for v in ix.vars()}
        *batch, row, term = axes
        # terms of a vector are there together, or none is
        unit = 1 if turned else gcd(term.hi + 1, VECTOR // factor.dtype.itemsize)
        own = [a for a in batch if a in used]

        def element(*at: Linear) -> Expr:
            *b, i, k = at
            i, k = (k, i) if turned else (i, k)
            i = i if extents[0] == row.hi + 1 else i % (row.hi + 1)  # of what is there no row of, nobody reads the sums
            value = substitute_vars(factor, dict(zip((*own, row, term), (*b, i, k), strict=True)))
            if extents[1] == term.hi + 1:
                return value
            return select(within(k // unit, 0, (term.hi + 1) // unit), value, const(0, factor.dtype))

        last, names = (extents[::-1], (term, row)) if turned else (extents, (row, term))
        shape = (*(a.hi + 1 for a in own), *last)
        return cls(te.compute(shape, element, name, axis_names=[a.name for a in (*own, *names)]), own, turned)

    def at(self, lead: Mapping[Var, Linear], row: Linear, term: IndexLike) -> Load:
        """An element."""
        return self.tensor[(*(lead[a] for a in self.batch), *((term, row) if self.turned else (row, term)))]


def _lies_turned(factor: Load, axes: Sequence[Var], memory: Collection[te.Tensor]) -> bool:
    """Whether a thread can fetch 16 bytes of neighbouring rows at once, and none of neighbouring terms."""
    row, term = axes[-2:]
    own = _Operand.padded(factor, axes, "part", (row.hi + 1, term.hi + 1), turned=False).tensor.op
    assert own is not None
    most = VECTOR // factor.dtype.itemsize
    along_terms, along_rows = (vector_along(own, a, VECTOR, memory) for a in own.axes[-2:][::-1])
    return along_terms < most == along_rows


def _bind(stage: Stage, sums: Stage, tile: Fragments, mma: Mma, *, blocks: bool) -> Var:
    """Blocks, warps and threads; every thread holds its part of all tiles of its warp. Gives the loop over steps."""
    if blocks:
        *batch, column, i, j = stage.op.axes
        bx, column = stage.split(column, tile.wide // COLUMNS)
        wx, column = stage.split(column, tile.columns)
    else:
        *batch, i, j = stage.op.axes
        bx, j = stage.split(j, tile.wide)
        wx, j = stage.split(j, COLUMNS * tile.columns)
        column, j = stage.split(j, COLUMNS)
    t, c = stage.split(j, 2)
    by, i = stage.split(i, tile.high)
    wy, i = stage.split(i, ROWS * tile.rows)
    row, i = stage.split(i, ROWS)
    r, group = stage.split(i, 8)
    stage.reorder(*batch, by, bx, wy, wx, group, t, row, r, column, c)
    if batch:
        stage.bind(stage.fuse(*batch), "blockIdx.z")
    stage.bind(by, "blockIdx.y")
    stage.bind(bx, "blockIdx.x")
    stage.bind(stage.fuse(wy, wx), "threadIdx.y")
    lane = stage.fuse(group, t)
    stage.bind(lane, "threadIdx.x")
    for a in (row, r, column):
        stage.unroll(a)
    stage.vectorize(c)
    sums.compute_at(stage, lane)
    *batch, row, r, group, column, t, c = sums.op.axes
    (k,) = sums.op.reduce_axes
    ko, k = sums.split(k, tile.depth)
    ks, k = sums.split(k, mma.terms)
    sums.reorder(*batch, group, t, ko, ks, row, r, column, c, k)
    sums.unroll(ks)
    sums.tensorize(row, mma.intrinsic(tile.rows, tile.columns))
    return ko


def _fetch(part: Stage, sums: Stage, step: Var, tile: Fragments, memory: Collection[te.Tensor]) -> int:
    """All threads of a block fetch an operand's part of a step together, some neighbours in global memory each.

    Returns:
        how many of them are neighbours in shared memory, too.
    """
    part.compute_at(sums, step)
    *batch, outer, inner = part.op.axes
    vector = vector_along(part.op, inner, VECTOR, memory)
    across = vector == 1 and (wide := vector_along(part.op, outer, VECTOR, memory)) > 1
    if across:
        vector = wide
    axes = (*batch, inner, outer) if across else (*batch, outer, inner)
    part.reorder(*axes)
    flat = part.fuse(*axes)
    if vector > 1:
        flat, lane = part.split(flat, vector)
        part.vectorize(lane)
    _, thread = part.split(flat, tile.warps * WARP)
    for a, name in zip(part.split(thread, WARP), ("threadIdx.y", "threadIdx.x"), strict=True):
        part.bind(a, name)
    return 1 if across else vector
