"""Matrix products: a register tile of rows × column vectors, constant right operands packed in column panels."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, replace_loads
from mlc.ir.layout import Layout
from mlc.lower.schedule import Schedule
from mlc.targets.x86.record import X86
from mlc.targets.x86.schedules.group import Group, accumulate_in_registers, finish_tile, size_of
from mlc.targets.x86.schedules.injective import spread

PARALLEL_FROM = 1 << 15  # multiplications below which a second thread costs more than it gives
PAGE = 4096  # rows this many bytes apart share one set of the first-level cache


def tile_of(m: int, n: int, k: int, target: X86) -> tuple[int, int]:
    """Rows and column vectors of the register tile: accumulators, a vector of B each and a broadcast fit the registers.

    Many rows stream B less often; rows whose distance is a multiple of a page evict one another from the first-level
    cache (8 ways), so few rows are taken then.
    """
    columns = -(-n // target.lanes)
    if target.registers >= 32:
        shapes = {1: 28, 2: 12, 3: 8, 4: 6}
        vectors = 4 if k * 4 % PAGE == 0 and m > 8 else 2
        if m <= 8:
            vectors = 4
    else:
        shapes = {1: 12, 2: 6}
        vectors = 2
    while vectors > 1 and columns % vectors and columns < 2 * vectors:
        vectors -= 1
    vectors = min(vectors, columns)
    return min(m, shapes[vectors]), vectors


def panel_layout(shape: tuple[int, ...], transposed: bool, m: int, target: X86) -> Layout:
    """Column panels ``[N / NB][K][NB]`` of a constant right operand of rank 2."""
    n_dim, k_dim = (0, 1) if transposed else (1, 0)
    _, vectors = tile_of(m, shape[n_dim], shape[k_dim], target)
    block = vectors * target.lanes
    layout = Layout(shape).pad(n_dim, 0, -shape[n_dim] % block).split(n_dim, block)
    return layout.reorder(0, 2, 1) if transposed else layout.reorder(1, 0, 2)


def operands_of(product: te.Compute) -> tuple[te.Tensor, te.Tensor] | None:
    """Left and right operand, one tensor twice for a product with itself; none where one became a literal."""
    found = [ld.source for ld in loads(product.bodies[0])]
    return (found[0], found[1]) if len(found) == 2 else None


def schedule_matmul(g: Group, target: X86) -> Schedule:
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
    rows, vectors = tile_of(m, n, k, target)
    both = operands_of(anchor)
    assert both is not None
    right = both[1]
    if len(right.shape) == 3 and right.op is None and len(batch) == 0:  # packed in panels
        vectors = right.shape[-1] // target.lanes
    jo, ji = stage.split(j, vectors * target.lanes)
    io, ii = stage.split(i, rows)
    stage.reorder(*batch, jo, io, ii, ji)
    ju, jv = stage.split(ji, target.lanes)
    even_j, even_i = n % (vectors * target.lanes) == 0, m % rows == 0
    matrices = size_of([b.hi + 1 for b in batch])
    # a ragged axis stays a loop of its own, so that its tail can be cut off
    if even_j and even_i:
        shared, inner = [*batch, jo, io], None
    elif matrices > 1:
        shared, inner = [*batch], io
    elif even_i and not even_j:
        stage.reorder(io, jo)
        shared, inner = [*batch, io], jo
    else:
        shared, inner = [*batch, jo], io
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
    local.reorder(*local.op.reduce_axes, *lb, li, ljo, lji)
    local.vectorize(lji)
    local.unroll(ljo)
    local.unroll(li)
    if turned is not None:
        spread(s[turned], target)
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
    return Group(g.inputs, tuple(outputs), fresh, _moved(g, outputs))


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
