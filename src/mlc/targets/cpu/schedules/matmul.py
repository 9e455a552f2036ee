"""Matrix products: a register tile of rows × column vectors, constant right operands packed in column panels."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, replace_loads
from mlc.ir.index import Var
from mlc.ir.layout import Layout
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.cpu.cost import Product, Tile, all_tiles, balance, best_tile, fits_registers, unrolled_steps
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.groups.group import Group, accumulate_in_registers, finish_tile, size_of

PARALLEL_FROM = 1 << 15  # multiplications below which a second thread costs more than it gives
PAGE = 4096  # bytes of a way of the first-level cache: addresses this far apart share one set
EVEN = 1.15  # threads may wait this much longer than their share for the slowest


def tile_of(m: int, n: int, k: int, target: Cpu) -> Tile:
    """Rows and column vectors of the register tile of an ``m × n`` product over ``k``.

    Rows whose distance is a multiple of a page share the sets of the first-level cache, so no more are taken than one
    set has ways.
    """
    product = Product(max(m, 1), max(-(-n // target.lanes), 1), max(k, 1))
    most = target.l1 // PAGE if k * 4 % PAGE == 0 else target.registers
    return best_tile(product, target, [t for t in all_tiles(product, target) if t.rows <= most])


def steps_of(tile: Tile, target: Cpu) -> int:
    """Reduction steps that one iteration of the innermost loop takes.

    Loop counters take a tenth of the instructions of a small tile, and processors whose core is shared with another
    thread are bound by them (measured on Zen 3: 71 % of peak with one step, 78 % with four).
    """
    return next(n for n in (4, 2, 1) if n <= unrolled_steps(tile, target))


def chosen_tile(knobs: Knobs, m: int, n: int, k: int, target: Cpu) -> Tile:
    """The register tile that the knobs say; :func:`tile_of` where they say nothing."""
    default = tile_of(m, n, k, target)
    columns = max(-(-n // target.lanes), 1)
    vectors = knobs.discrete("vectors", range(1, min(columns, target.registers // 2) + 1), default=default.vectors)
    rows = knobs.discrete("rows", range(1, min(max(m, 1), target.registers - 2) + 1), default=default.rows)
    knobs.require(fits_registers(rows, vectors, target), "the sums of a tile do not fit the registers")
    return Tile(rows, vectors)


def panel_layout(shape: tuple[int, ...], transposed: bool, m: int, target: Cpu, knobs: Knobs) -> Layout:
    """Column panels ``[N / NB][K][NB]`` of a constant right operand of rank 2."""
    n_dim, k_dim = (0, 1) if transposed else (1, 0)
    _, vectors = chosen_tile(knobs, m, shape[n_dim], shape[k_dim], target)
    block = vectors * target.lanes
    layout = Layout(shape).pad(n_dim, 0, -shape[n_dim] % block).split(n_dim, block)
    return layout.reorder(0, 2, 1) if transposed else layout.reorder(1, 0, 2)


def operands_of(product: te.Compute) -> tuple[te.Tensor, te.Tensor] | None:
    """Left and right operand, one tensor twice for a product with itself; none where one became a literal."""
    found = [ld.source for ld in loads(product.bodies[0])]
    return (found[0], found[1]) if len(found) == 2 else None


def schedule_matmul(g: Group, target: Cpu) -> Schedule:
    """A matrix product with what follows it element by element."""
    assert g.anchor is not None
    both = operands_of(g.anchor)
    assert both is not None
    if g.anchor.attrs.get("transpose_b") and both[1] not in g.layouts:
        g = _transposed_copy(g)
    p = g.apply({})
    assert p.anchor is not None
    anchor = p.anchor
    product = anchor.outputs[0]
    s = Schedule(p.outputs)
    turned = next((t for t in anchor.inputs if t.op is not None and t.op.tag == "turn"), None)
    product = accumulate_in_registers(s, product, [turned] if turned is not None else [])
    out = p.outputs[0]
    stage = s[out]
    *batch, i, j = stage.op.axes
    m, n, k = i.hi + 1, j.hi + 1, anchor.reduce_axes[0].hi + 1
    knobs = g.knobs
    rows, vectors = chosen_tile(knobs, m, n, k, target)
    both = operands_of(anchor)
    assert both is not None
    right = both[1]
    packed = len(right.shape) == 3 and right.op is None and len(batch) == 0
    jo, ji = stage.split(j, vectors * target.lanes)
    io, ii = stage.split(i, rows)
    # a panel of columns stays in the second-level cache while all rows pass by
    stage.reorder(*batch, jo, io, ii, ji)
    ju, jv = stage.split(ji, target.lanes)
    even_j, even_i = n % (vectors * target.lanes) == 0, m % rows == 0
    matrices = size_of([b.hi + 1 for b in batch])
    # a ragged axis stays a loop of its own, so that its tail can be cut off
    inner: Var | None = io
    streamed = packed and right.size * 4 > target.l2 and io.hi >= 3 and balance(jo.hi + 1, target.cores) < EVEN
    # the transposed copy of one matrix stays in the second-level cache until it has been used
    each = turned is not None and turned.size == matrices * n * k and n * k * 8 <= target.l2
    each = each and matrices > 1 and balance(matrices, target.cores) < EVEN
    if each:
        order = "matrices"
    elif matrices > 1:
        order = "tiles" if even_j and even_i else "columns" if even_j else "matrices"
    elif even_j and even_i and not streamed:
        order = "tiles"
    elif not streamed and io.hi > jo.hi and balance(io.hi + 1, target.cores) < balance(jo.hi + 1, target.cores):
        order = "rows"
    else:
        order = "columns"
    # what threads share: whole matrices, panels of columns, rows of tiles, or every tile for itself
    order = knobs.category("order", ("matrices", "columns", "rows", "tiles"), default=order)
    knobs.require(not each or order == "matrices", "a transposed copy belongs to one matrix")
    knobs.require(order != "tiles" or (even_i and even_j), "tiles that all threads share have to be whole")
    lead = [*batch] if matrices > 1 else []
    if order == "matrices":
        shared = lead
        knobs.require(matrices > 1, "there is one matrix only")
    elif order == "columns":
        shared = [*lead, jo]
        knobs.require(even_j or not lead, "a ragged panel stays a loop of its own")
    elif order == "rows":
        stage.reorder(io, jo)
        shared, inner = [*lead, io], jo
        knobs.require(even_i or not lead, "a ragged row of tiles stays a loop of its own")
    else:
        shared, inner = [*batch, jo, io], None
    at = stage.fuse(*shared)
    if size_of((m, n, k)) * matrices >= PARALLEL_FROM:
        stage.parallel(at)
    stage.vectorize(jv)
    local = s[product]
    inside = inner if inner is not None else at
    local.compute_at(stage, inside)
    finish_tile(s, out, product, inside, (ii, ju))
    *lb, li, lj = local.op.axes
    ljo, lji = local.split(lj, target.lanes)
    steps = knobs.discrete("steps", (1, 2, 4, 8), default=steps_of(Tile(rows, vectors), target))
    ko, ki = local.split(local.op.reduce_axes[0], steps)
    local.reorder(ko, ki, *lb, li, ljo, lji)
    local.unroll(ki)
    fetch = packed and knobs.category("prefetch", (False, True), default=streamed)
    if fetch and order == "columns" and io.hi > 0:
        # While rows pass by one panel, the next one comes from further away, a line every few steps: more at once would
        # hold up the loads of the tile itself (measured with weights in memory: nothing gained by bursts, 5 % by this).
        local.prefetch(right, jo, ko, level=2)
    local.vectorize(lji)
    local.unroll(ljo)
    local.unroll(li)
    if turned is not None:
        if each:
            s[turned].compute_at(stage, at)
        spread(s[turned], target, parallel=not each)
    return s


def _transposed_copy(g: Group) -> Group:
    """Give a product whose right operand is transposed a copy with columns next to each other, made once."""
    assert g.anchor is not None
    old = g.anchor
    right = loads(old.bodies[0])[1]
    b = right.source
    shape = (*b.shape[:-2], b.shape[-1], b.shape[-2])
    turned = te.compute(shape, lambda *ix: b[(*ix[:-2], ix[-1], ix[-2])], "turned", tag="turn")

    def swap(ld: Load) -> Expr:
        return Load(turned, (*ld.indices[:-2], ld.indices[-1], ld.indices[-2])) if ld is right else ld

    bodies = tuple(replace_loads(body, swap) for body in old.bodies)
    attrs = {**old.attrs, "transpose_b": False}
    fresh = te.Compute(old.name, old.axes, old.reduce_axes, bodies, old.combiner, old.tag, attrs)
    (product,) = te.finish(fresh)
    outputs = _replace(g.outputs, old.outputs[0], product)
    return Group(g.inputs, tuple(outputs), fresh, _moved(g, outputs), g.knobs)


def _moved(g: Group, outputs: list[te.Tensor]) -> dict[te.Tensor, Layout]:
    """Layouts of a group whose outputs were rebuilt."""
    names = dict(zip(g.outputs, outputs, strict=True))
    return {names.get(t, t): layout for t, layout in g.layouts.items()}


def _replace(outputs: tuple[te.Tensor, ...], old: te.Tensor, new: te.Tensor) -> list[te.Tensor]:
    """Rebuild everything that reads ``old`` to read ``new``."""
    env: dict[te.Tensor, te.Tensor] = {old: new}

    def swap(ld: Load) -> Expr:
        return Load(env[ld.source], ld.indices) if ld.source in env else ld

    for op in te.topological(outputs):
        if op.outputs[0] is old or not any(t in env for t in op.inputs):
            continue
        fresh = te.Compute(
            op.name,
            op.axes,
            op.reduce_axes,
            tuple(replace_loads(b, swap) for b in op.bodies),
            op.combiner,
            op.tag,
            op.attrs,
        )
        env.update(zip(op.outputs, te.finish(fresh), strict=True))
    return [env.get(t, t) for t in outputs]
