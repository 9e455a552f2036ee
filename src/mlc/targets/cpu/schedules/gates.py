"""Products whose columns are gates: a register tile holds the sums of the same units of every gate.

What combines the gates then finds all it needs in one tile, and a step of a recurrent layer is one pass over its
weights. They are packed in the order of use, ``[units / tile][k][gate][tile of units]``.
"""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import loads, substitute_vars
from mlc.ir.index import as_index
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import plain, several
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.cost import Product, Tile, best_tile, fits_registers
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.matmul import PARALLEL_FROM
from mlc.targets.cpu.schedules.tile import ask_tile, cut_depth, finish_tile, multiply_lanes
from mlc.targets.groups.gates import gates_of
from mlc.targets.groups.group import Group, accumulate_in_registers, replace_anchor, size_of, with_copy
from mlc.targets.groups.roles import Contraction
from mlc.targets.groups.template import Template, constant_at, row_major
from mlc.targets.groups.terms import over_depth

GRAINS = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 21)  # tiles of units that a thread takes in a row
AHEAD = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # iterations over terms, after which what is fetched now is used


def gates_tile(rows: int, gates: int, units: int, depth: int, target: Cpu) -> Tile:
    """Rows, and vectors of each gate, of the register tile of a product over ``depth``.

    At most two vectors a gate: of a ragged end, which units seldom lack, one is then whole or empty. One row reads its
    weights straight from memory.
    """
    most = min(2, -(-units // target.lanes))
    if rows == 1 and target.memory_operand:
        return Tile(1, max(1, min(most, (target.registers - 2) // gates)))
    product = Product(max(rows, 1), gates * -(-units // target.lanes), max(depth, 1))
    tiles = [
        Tile(r, v * gates)
        for v in range(1, most + 1)
        for r in range(1, min(rows, target.registers) + 1)
        if fits_registers(r, v * gates, target)
    ]
    tile = best_tile(product, target, tiles)
    return Tile(tile.rows, tile.vectors // gates)


def _chosen_tile(knobs: Knobs, rows: int, gates: int, units: int, depth: int, target: Cpu) -> Tile:
    """The register tile that the knobs say; :func:`gates_tile` where they say nothing."""

    def fits(some: int, vectors: int, target: Cpu) -> bool:
        return (rows == 1 and target.memory_operand) or fits_registers(some, vectors * gates, target)

    wide = range(1, min(-(-units // target.lanes), max(1, (target.registers - 2) // gates)) + 1)
    high = range(1, min(max(rows, 1), target.registers - 2) + 1)
    return ask_tile(knobs, gates_tile(rows, gates, units, depth, target), high, wide, target, fits=fits)


def gates_layout(shape: tuple[int, ...], rows: int, gates: int, target: Cpu, knobs: Knobs, terms: int = 1) -> Layout:
    """``[units / tile][k][gate][tile of units]`` of weights ``[k, gates * units]``, or ``terms`` or blocks of k.

    Raises:
        ScheduleError: the configuration is refused.
    """
    units = shape[1] // gates
    tile = _chosen_tile(knobs, rows, gates, units, -(-shape[0] // terms), target).vectors * target.lanes
    layout = Layout(shape).pad(0, 0, -shape[0] % terms)
    layout = layout.split(1, units).pad(2, 0, -units % tile).split(2, tile).reorder(2, 0, 1, 3)
    if terms > 1:
        return layout.split(1, terms).reorder(0, 1, 3, 4, 2)
    block = _ask_block(knobs, shape[0])
    return layout if block == 1 else layout.split(1, block).reorder(0, 1, 3, 2, 4)


def _ask_block(knobs: Knobs, depth: int) -> int:
    """Terms of a sum that a gate has in a row, before the next gate has its own: one where the knobs say nothing."""
    return knobs.factors("depth", depth, 2, default=(depth, 1))[1]


def _dot_of_gates(g: Group, target: Cpu) -> Dot | None:
    """How several products of one sum are taken at once: for rows of data whose terms are neighbours."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Contraction)
    assert anchor is not None
    dot = target.dot_of(role.left.dtype, role.right.dtype)
    packed = role.right in g.layouts or role.right.op is None
    rows = loads(anchor.bodies[0])[0].indices[-1] == as_index(anchor.reduce_axes[0]) and role.left not in g.layouts
    return dot if packed and rows and dot is not None and dot.fits(anchor.reduce_axes[0].hi + 1) else None


def _in_whole_instructions(g: Group, dot: Dot) -> tuple[Group, te.Tensor | None]:
    """Sums of as many terms as whole instructions take, over a copy of the data where these have fewer."""
    assert g.anchor is not None
    depth = g.anchor.reduce_axes[0].hi + 1
    if dot.padded(depth) == depth:
        return g, None
    g = with_copy(g)
    role = g.role
    assert isinstance(role, Contraction)
    return over_depth(g, dot.padded(depth)), role.left


def _over_units(p: Group, units: int) -> Group:
    """A product ``[rows, gates, units]`` over more units, which the padding of its weights has, and nobody reads."""
    assert p.anchor is not None
    op = p.anchor
    i, g, old = op.axes
    u = te.reduce_axis(units, old.name)
    bodies = tuple(substitute_vars(b, {old: u}) for b in op.bodies)
    return replace_anchor(p, te.Compute(op.name, (i, g, u), op.reduce_axes, bodies, op.combiner, op.tag, op.attrs))


def schedule_gates(g: Group, target: Cpu) -> Schedule:
    """A product with what combines its gates, all results in one loop nest.

    Raises:
        ScheduleError: the configuration is refused.
    """
    role, gates = g.role, gates_of(g)
    assert isinstance(role, Contraction)
    dot = _dot_of_gates(g, target) if role.right in g.layouts else None
    g, copy = (g, None) if dot is None else _in_whole_instructions(g, dot)
    assert g.anchor is not None
    anchor, results = g.anchor, g.outputs
    joined = te.compute_many(results[0].shape, lambda i, j: tuple(t[i, j] for t in results), "gates")
    (rows, columns), units = anchor.shape, results[0].shape[1]
    depth = (anchor.reduce_axes[0].hi + 1) // (1 if dot is None else dot.terms)
    tile = _chosen_tile(g.knobs, rows, gates, units, depth, target)
    whole = 0 if dot is None else -units % (tile.vectors * target.lanes)
    layouts = {anchor.outputs[0]: Layout((rows, columns)).split(1, units)}
    if copy is not None and dot is not None:
        layouts[copy] = Layout(copy.shape).pad(1, 0, dot.padded(copy.shape[1]) - copy.shape[1])
    p, new = Group(g.inputs, joined, anchor, g.layouts, g.knobs).applied(layouts)
    if whole:
        p = _over_units(p, units + whole)
    assert p.anchor is not None
    s = Schedule(p.outputs)
    copies = [] if copy is None else [new[copy]]
    product = accumulate_in_registers(s, p.anchor.outputs[0], copies)
    out = p.outputs[0]
    stage = s[out]
    i, j = stage.op.axes
    jo, ji = stage.split(j, tile.vectors * target.lanes)
    io, ii = stage.split(i, tile.rows)
    tiles = -(-units // (tile.vectors * target.lanes))
    most = -(-units // target.lanes)
    grain = g.knobs.discrete("grain", [n for n in GRAINS if n <= most], default=1)
    g.knobs.require(tiles % grain == 0, "tiles of units cannot be cut evenly into such groups")
    some = []
    if several(grain):
        jo, group = stage.split(jo, grain)
        some = [group]
    walk = g.knobs.permutation("walk", ("columns", "rows"))
    first = walk.index("columns") < walk.index("rows")
    outer, *between = (jo, *some, io) if first else (io, jo, *some)
    inside = between[-1]
    stage.reorder(outer, *between, ii, ji)
    ju, jv = stage.split(ji, target.lanes)
    if size_of((rows, columns, anchor.reduce_axes[0].hi + 1)) >= PARALLEL_FROM:
        stage.parallel(outer)
    stage.vectorize(jv)
    local = s[product]
    local.compute_at(stage, inside)
    finish_tile(s, out, product, inside, (ii, ju))
    sums = Tile(tile.rows, tile.vectors * gates)
    cut = cut_depth(local, g.knobs, tile.vectors * target.lanes, sums, dot, target)
    rows_of_data, block = local.op.axes[0], _ask_block(g.knobs, depth) if dot is None else 1
    iterations = cut.iterations
    if block > 1:
        g.knobs.require(block % (cut.steps.hi + 1) == 0, "a ragged end of the unrolled terms")
        blocks, terms = local.split(cut.iterations, block // (cut.steps.hi + 1))
        local.reorder(blocks, cut.rows, terms, cut.steps, rows_of_data, cut.vectors, cut.instruction)
        iterations = blocks
    if role.right in g.layouts:
        ahead, level = (
            plain(g.knobs.discrete(n, v, default=v[0])) for n, v in (("ahead", AHEAD), ("level", (1, 2, 3)))
        )
        if ahead:  # no loop depends on it
            local.prefetch(new[role.right], iterations, iterations, distance=ahead, level=level)
    multiply_lanes(local, cut.instruction, dot)
    for a in (cut.steps, cut.vectors, cut.rows, rows_of_data):
        local.unroll(a)
    for t in copies:
        spread(s[t], target)
    return s


def _fits(g: Group, target: Cpu) -> bool:
    return gates_of(g) > 0


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    """Row-major, with constant weights in the order of use."""
    role, plain = g.role, row_major(g, site, target)
    assert isinstance(role, Contraction)
    assert g.anchor is not None
    k = constant_at(g, site, role.right)
    if k is None:
        return plain
    dot = _dot_of_gates(g, target)
    terms = 1 if dot is None else dot.terms
    layout = gates_layout(role.right.shape, g.anchor.shape[0], gates_of(g), target, g.knobs, terms)
    return LayoutChoice(plain.outputs, {k: layout})


GATES = Template("product with gates", _fits, _layouts, schedule_gates)
