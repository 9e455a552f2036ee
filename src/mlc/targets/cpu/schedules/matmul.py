"""Matrix products: a register tile of rows × column vectors, constant right operands packed in column panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, replace_loads
from mlc.ir.index import Var, as_index
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.prefetch import LINE
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import assumed, plain
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.cost import USABLE, Product, Tile, all_tiles, balance, best_tile, fetches_ahead
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.matmul_matrix import matrix_layouts, product_by_matrices, work_of_matrices
from mlc.targets.cpu.schedules.matrix_tile import WORTH_MATRICES, Work, ask_rows, least_cycles
from mlc.targets.cpu.schedules.tile import ask_tile, cut_depth, finish_tile, hold_terms, multiply_lanes, steps_of
from mlc.targets.groups.group import (
    Group,
    accumulate_in_registers,
    apart_from_output,
    ends_in_anchor,
    is_single,
    replace_anchor,
    size_of,
    with_copy,
)
from mlc.targets.groups.layouts import in_layout
from mlc.targets.groups.roles import Contraction
from mlc.targets.groups.template import Template, input_at, row_major
from mlc.targets.groups.terms import over_depth

PARALLEL_FROM = 1 << 15  # multiplications below which a second thread costs more than it gives
PAGE = 4096  # bytes of a way of the first-level cache: addresses this far apart share one set
MANY_TERMS = 16  # of a sum, from which on a few of them in one iteration pay
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)  # register tiles that a block may have along rows, or along columns
WALK = ("columns", "rows", "depth")
FEW = 3  # rows up to which what is right of them is read as often as it is used
# Iterations over terms of such rows, after which what is fetched now is read, and tiles of rows.
AHEAD, AHEAD_TILES = (0, 1, 2, 4, 8, 16, 32), (0, 1, 2, 4, 8)
SHORTEST = 32  # terms of a chunk, after which the sums of a tile are read and written
ENOUGH_TILES = 8  # of rows that read a packed panel
EVEN = 1.15  # threads may wait this much longer than their share for the slowest


def tile_of(m: int, n: int, k: int, target: Cpu, *, shared: int = 0, far: bool = False) -> Tile:
    """Rows and column vectors of the register tile of an ``m × n`` product over ``k``.

    Tiles share so many vectors evenly, if any are ``shared``. Where the left operand is ``far``, in memory, tiles that
    have all columns are taken if there are any: they read it once, as few rows at a time (960 products of 128 × 128 by
    128 × 64 on Zen 4: 26 ms instead of 29, and 20 instead of 25 of transposed ones).

    Rows whose distance is a multiple of a page share the sets of the first-level cache, so no more are taken than one
    set has ways.
    """
    product = Product(max(m, 1), max(-(-n // target.lanes), 1), max(k, 1))
    most = target.l1 // PAGE if k * target.lane_bytes % PAGE == 0 else target.registers
    tiles = [t for t in all_tiles(product, target) if t.rows <= most]
    tiles = [t for t in tiles if shared % t.vectors == 0]
    whole = [t for t in tiles if t.vectors >= product.columns and t.rows > 1] if far else []
    return best_tile(product, target, whole or tiles)


def chosen_tile(
    knobs: Knobs,
    m: int,
    n: int,
    k: int,
    target: Cpu,
    *,
    whole: bool = False,
    far: bool = False,
    default: Tile | None = None,
) -> Tile:
    """The register tile that the knobs say; where they say nothing ``default``, or :func:`tile_of`, which leaves no
    rest if ``whole``.

    Raises:
        ScheduleError: the configuration is refused.
    """
    wide = range(1, min(max(-(-n // target.lanes), 1), target.registers // 2) + 1)
    high = range(target.rows, min(max(m, 1), target.registers - 2) + 1, target.rows)
    if default is None:
        default = tile_of(m, n, k, target, shared=-(-n // target.lanes) if whole else 0, far=far)
    return ask_tile(knobs, default, high, wide, target)


def panel_layout(
    shape: tuple[int, ...],
    transposed: bool,
    m: int,
    target: Cpu,
    knobs: Knobs,
    dot: Dot | None = None,
    tile: Tile | None = None,
) -> Layout:
    """Column panels ``[N / NB][K][NB]`` of a right operand of rank 2, terms of K as ``dot`` has them.

    Raises:
        ScheduleError: the configuration is refused.
    """
    n_dim, k_dim = (0, 1) if transposed else (1, 0)
    terms = 1 if dot is None else dot.terms
    n, k = shape[n_dim], -(-shape[k_dim] // terms)
    _, vectors = chosen_tile(knobs, m, n, k, target, whole=terms > 1, default=tile)
    block = vectors * target.lanes
    layout = Layout(shape).pad(n_dim, 0, -shape[n_dim] % block).pad(k_dim, 0, -shape[k_dim] % terms)
    layout = layout.split(n_dim, block)
    layout = layout.reorder(0, 2, 1) if transposed else layout.reorder(1, 0, 2)
    return layout if dot is None else dot.packed(layout, target.lanes)


def schedule_matmul(g: Group, target: Cpu) -> Schedule:
    """A matrix product with what follows it element by element.

    Raises:
        ScheduleError: the configuration is refused.
    """
    role = _role(g)
    packed = role.right in g.layouts and len(role.right.shape) == 2 and role.right.op is None
    dot = _dot_of_product(g, target) if packed else None
    if dot is not None and (work := _by_matrices(g, dot, target)) is not None:
        return product_by_matrices(g, target, work)
    whole = None if dot is None else _in_whole_instructions(g, target, dot)
    if whole is not None:
        g = whole.group
    turns = role.transposed and role.right not in g.layouts
    if turns:
        g = _transposed_copy(g, role)
    p, new = g.applied({} if whole is None else whole.layouts)
    assert p.anchor is not None
    anchor = p.anchor
    product = anchor.outputs[0]
    left, right = (ld.source for ld in loads(anchor.bodies[0])[:2])
    turned = right if turns else None
    copies = [turned] if turned is not None else []
    copies += [new[whole.copy]] if whole is not None and whole.copy is not None else []
    s = Schedule(p.outputs)
    product = accumulate_in_registers(s, product, copies)
    out = p.outputs[0]
    stage = s[out]
    *batch, i, j = stage.op.axes
    m, n, k = i.hi + 1, j.hi + 1, (anchor.reduce_axes[0].hi + 1) // (1 if dot is None else dot.terms)
    knobs = g.knobs
    # sums of bytes have to be registers, so their last vector is cut in none but the last tile
    matrices = size_of([b.hi + 1 for b in batch])
    far = matrices > 1 and matrices * m * k * role.left.dtype.itemsize > target.l3
    deep = None if dot is not None else _deep(g, target)
    if deep is None:
        rows, vectors = chosen_tile(knobs, m, n, k, target.adding(dot), whole=dot is not None, far=far)
    else:
        rows, vectors = chosen_tile(knobs, m, n, k, target, default=deep[0])
    packed = packed and not batch
    width = vectors * target.lanes
    even_j, even_i = n % width == 0, m % rows == 0
    default = _Blocks(1, 1, 0, WALK) if deep is None else deep[1]
    blocks = _ask_blocks(knobs, (m, n, k), Tile(-(-m // rows), -(-n // width)), target, default)
    knobs.require(not blocks.chunk or (dot is None and even_j), "chunks of a sum need whole panels")
    jo, ji = stage.split(j, width)
    io, ii = stage.split(i, rows)
    walked: dict[str, Var] = {}
    if blocks.panels > 1:
        jo, walked["columns"] = stage.split(jo, blocks.panels)
    if blocks.tiles > 1:
        io, walked["rows"] = stage.split(io, blocks.tiles)
    walk = sorted(walked, key=blocks.walk.index)
    # a panel of columns stays in the second-level cache while all rows pass by
    stage.reorder(*batch, jo, io, *(walked[name] for name in walk), ii, ji)
    ju, jv = stage.split(ji, target.lanes)
    # a ragged axis stays a loop of its own, so that its tail can be cut off
    inner: Var | None = io

    def streamed() -> bool:
        large = packed and right.size * right.dtype.itemsize > target.l2
        return large and io.hi >= 2 and balance(jo.hi + 1, target.cores) < EVEN

    # the transposed copy of one matrix stays in the second-level cache until it has been used
    each = turned is not None and turned.size == matrices * n * k and n * k * 8 <= target.l2
    each = each and matrices > 1 and balance(matrices, target.cores) < EVEN

    def usual_order() -> str:
        if each:
            return "matrices"
        if matrices > 1:
            return "tiles" if even_j and even_i else "columns" if even_j else "matrices"
        if streamed():
            return "columns"
        if even_j and even_i:
            return "tiles"
        rows_pay = io.hi > jo.hi and balance(io.hi + 1, target.cores) < balance(jo.hi + 1, target.cores)
        return "rows" if rows_pay else "columns"

    # what threads share: whole matrices, panels of columns, rows of tiles, or every tile for itself
    order = knobs.category("order", ("matrices", "columns", "rows", "tiles"), default=usual_order)
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
    inside = inner if inner is not None else at
    if blocks.chunk:
        before = [name for name in walk if blocks.walk.index(name) < blocks.walk.index("depth")]
        local = _chunk_by_chunk(s, product, blocks, walk[len(before) :], Tile(rows, vectors), target)
        s[product].compute_at(stage, walked[before[-1]] if before else inside)
        stage.unroll(ju)
    else:
        local = s[product]
        inside = walked[walk[-1]] if walk else inside
        local.compute_at(stage, inside)
        finish_tile(s, out, product, inside, (ii, ju))
    # Rows of a matrix that is not packed lie as far apart as it is wide, and finding the next one takes instructions,
    # which several steps share (measured on Zen 5: full tiles of 49 to 197 ragged columns are 1.05 to 1.49 times as
    # fast with four steps as with one, those of whole vectors no slower).
    few = packed or dot is not None or k < MANY_TERMS or steps_of(Tile(rows, vectors), target) > 1
    flat, thin = m <= FEW, n <= 2 * target.lanes  # which have few tiles to choose from
    cut = cut_depth(
        local, knobs, width, Tile(rows, vectors), dot, target, least=1 if few else 4, most=16 if flat or thin else 8
    )
    local.unroll(cut.steps)
    step = vectors * target.lanes * right.dtype.itemsize * (1 if dot is None else dot.terms)
    # rows of a part of the only panel are no neighbours
    ahead = fetches_ahead(k * step, target) if even_j or n > width else 0
    fetch = packed and knobs.category("prefetch", (False, True), default=lambda: ahead > 0 or streamed())
    if ahead:
        if assumed(fetch):
            ahead = -(-ahead // (step * (cut.steps.hi + 1)))
            local.prefetch(right, cut.iterations, cut.iterations, distance=ahead, level=1)
    elif order == "columns" and not blocks.chunk and io.hi > 0 and assumed(fetch):
        # While rows pass by one panel, the next one comes from further away, a line every few steps: more at once would
        # hold up the loads of the tile itself (measured with weights in memory: nothing gained by bursts, 5 % by this).
        local.prefetch(right, jo, cut.iterations, level=2)
    if flat and right.op is None:
        distance = plain(knobs.discrete("ahead", AHEAD, default=0))
        if distance:  # no loop depends on it; rows of what is not packed lie apart
            piece = cut.iterations if packed and even_j else cut.steps
            local.prefetch(right, cut.iterations, piece, distance=distance, level=1, pieces=piece)
    elif thin and dot is None and left.op is None:
        distance = knobs.discrete("ahead", AHEAD_TILES, default=0)
        level = knobs.discrete("level", (1, 2), default=1)
        knobs.require(not blocks.chunk or distance == 0, "rows are read chunk by chunk")
        if plain(distance):  # no loop depends on it
            by_terms = loads(anchor.bodies[0])[0].indices[-1] == as_index(anchor.reduce_axes[0])
            pieces, piece = (None, cut.iterations) if by_terms else (cut.steps, cut.steps)
            over = walked.get("rows", io if io in stage.leaves else at)
            local.prefetch(left, over, piece, distance=plain(distance), level=plain(level), pieces=pieces)
    multiply_lanes(local, cut.instruction, dot)
    local.unroll(cut.vectors)
    local.unroll(cut.rows)
    if dot is None and k % (cut.steps.hi + 1) == 0:
        hold_terms(s, local, cut.iterations, 0, local.op.reduce_axes[0], cut.steps.hi + 1, target)
    for t in copies:
        if each:
            s[t].compute_at(stage, at)
        spread(s[t], target, parallel=not each)
    return s


class _Blocks(NamedTuple):
    """How register tiles are grouped.

    Args:
        panels: of columns in a block.
        tiles: of rows in a block.
        chunk: terms that are summed up for a block before the next ones are; 0 for all at once.
        walk: the loops over ``columns`` and ``rows`` of a block and over chunks of ``depth``, from outside.
    """

    panels: int
    tiles: int
    chunk: int
    walk: tuple[str, ...]


def _deep(g: Group, target: Cpu) -> tuple[Tile, _Blocks] | None:
    """Of a group, which may have several matrices and then has none."""
    assert g.anchor is not None
    *batch, m, n = g.anchor.shape
    k = g.anchor.reduce_axes[0].hi + 1
    return None if batch else deep_product(m, n, k, target, apart=not _left_by_terms(g))


def deep_product(m: int, n: int, k: int, target: Cpu, *, apart: bool) -> tuple[Tile, _Blocks] | None:
    """The tile and the blocks of a product whose operands leave the caches before the next tile reads them again.

    Those are panels of columns larger than the second-level cache, as in gradients by the weights of convolutions of
    single pixels, which sum over those of all examples; and a left operand whose rows lie apart, a term in each line.
    Chunk by chunk, a panel stays in the first-level cache, rows of the left operand and the sums in the second
    (measured on Zen 5: 128 × 512 sums of 12544 terms take 9.1 ms in place of 16.8, 64 × 256 of 50176 10.7 in place of
    20.2, 3072 × 768 of 2048 53.6 in place of 75.7).

    Args:
        m, n, k: rows, columns and terms.
        target: the processor.
        apart: whether terms of a row of the left operand lie apart.
    Returns:
        nothing where operands stay in the caches, the tile leaves rests, or chunks would be too short.
    """
    size, lanes, l2 = target.lane_bytes, target.lanes, target.l2
    if m < 1 or n < 1 or n % lanes:
        return None
    usual = tile_of(m, n, k, target)
    apart = apart and k * LINE > target.l1 and m >= ENOUGH_TILES * usual.rows
    if not apart and k * usual.vectors * lanes * size <= USABLE * l2:
        return None
    tiles = all_tiles(Product(m, n // lanes, k), target)
    even = [t for t in tiles if m % t.rows == 0 and n // lanes % t.vectors == 0]
    if not even:
        return None
    tile = max(even, key=lambda t: (t.rows * t.vectors / (t.rows + t.vectors), t.rows))  # loads least for its products
    width = tile.vectors * lanes
    chunk = max(c for c in divisors(k) if c * width * size <= max(target.l1 // 2, width * size))
    if not SHORTEST <= chunk < k:
        return None
    room = l2 // 4 // size  # for the sums, and for rows of the left operand

    def fits(high: int, wide: int) -> bool:
        tasks = m // tile.rows // high * (n // width // wide)
        sums = tile.rows * high * width * wide
        return max(sums, tile.rows * high * chunk) <= room and (tasks >= target.cores or high == wide == 1)

    high = max((b for b in divisors(m // tile.rows) if fits(b, 1)), default=1)
    wide = max((b for b in divisors(n // width) if fits(high, b)), default=1)
    return (tile, _Blocks(wide, high, chunk, ("depth", "columns", "rows"))) if high * wide > 1 else None


def _ask_blocks(knobs: Knobs, extents: tuple[int, int, int], tiles: Tile, target: Cpu, default: _Blocks) -> _Blocks:
    """The blocks that the knobs say.

    Args:
        knobs: are asked.
        extents: rows, columns and depth of the product.
        tiles: how many register tiles there are along rows and along columns.
        target: has the vectors.
        default: where they say nothing.
    Raises:
        ScheduleError: tiles cannot be grouped so, or nothing of a block would be left for the next chunk.
    """
    m, n, depth = extents
    wide = knobs.discrete("panels", [b for b in BLOCKS if (b - 1) * target.lanes < n], default=default.panels)
    high = knobs.discrete("tiles", [b for b in BLOCKS if b <= m], default=default.tiles)
    parts = (depth // default.chunk, default.chunk) if default.chunk else (1, depth)
    chunks, chunk = knobs.factors("depth", depth, 2, default=parts)
    walk = knobs.permutation("walk", WALK, default=default.walk)
    knobs.require(
        tiles.vectors % wide == 0 and tiles.rows % high == 0, "register tiles cannot be cut evenly into such blocks"
    )
    if chunks == 1:
        return _Blocks(wide, high, 0, walk)
    inside = high if walk.index("depth") < walk.index("rows") else 1
    inside *= wide if walk.index("depth") < walk.index("columns") else 1
    knobs.require(inside > 1, "sums of a chunk belong to several tiles")
    return _Blocks(wide, high, chunk, walk)


def _chunk_by_chunk(
    s: Schedule, product: te.Tensor, blocks: _Blocks, walk: Sequence[str], tile: Tile, target: Cpu
) -> Stage:
    """Sum up chunk after chunk for all tiles of a block, whose sums stay in the cache meanwhile.

    Args:
        s: the schedule.
        product: the sums.
        blocks: tell the chunk.
        walk: the loops over tiles of a block inside of that over chunks, from outside.
        tile: the register tile.
        target: has the vectors.
    Returns:
        the stage that adds up a register tile's terms of a chunk.
    """
    chunks, _ = s[product].split(s[product].op.reduce_axes[0], blocks.chunk)
    partial = s.rfactor(product, chunks)
    sums, local = s[product], s[partial]
    local.set_scope("register")
    sums.set_scope("local")
    (chunks,) = sums.op.reduce_axes
    *batch, i, j = sums.op.axes
    io, ii = sums.split(i, tile.rows)
    jo, ji = sums.split(j, tile.vectors * target.lanes)
    ju, jv = sums.split(ji, target.lanes)
    loops = {"rows": io, "columns": jo}
    order = [*(a for name, a in loops.items() if name not in walk), chunks, *(loops[name] for name in walk)]
    sums.reorder(*batch, *order, ii, ju, jv)
    sums.unroll(ii)
    sums.unroll(ju)
    sums.vectorize(jv)
    local.compute_at(sums, order[-1])
    return local


@dataclass(frozen=True, eq=False)
class _Whole:
    """A product in whole instructions.

    Args:
        group: what is computed.
        layouts: of tensors inside, padded.
        copy: of the left operand, where its rows had to be.
    """

    group: Group
    layouts: dict[te.Tensor, Layout]
    copy: te.Tensor | None


def _dot_of_product(g: Group, target: Cpu) -> Dot | None:
    """How several products of one sum are taken at once: for rows of the left operand whose terms are neighbours."""
    role, anchor = _role(g), g.anchor
    assert anchor is not None
    rows = _left_by_terms(g) and role.left is not role.right
    plain = role.left not in g.layouts and len(anchor.shape) == len(role.right.shape) == 2 and anchor.shape[1] > 1
    if not rows or not plain:
        return None
    dot = target.dot_of(role.left.dtype, role.right.dtype, role.bits)
    if dot is not None and not dot.fits(anchor.reduce_axes[0].hi + 1):
        return None
    blocks = target.block_dot_of(role.left.dtype, role.right.dtype)
    return blocks if blocks is not None and _in_blocks(anchor, blocks) else dot


def _in_blocks(anchor: te.Compute, blocks: Dot) -> bool:
    """Whether a product has its rows and terms in whole blocks, which then take half the instructions."""
    rows, terms = anchor.shape[0], anchor.reduce_axes[0].hi + 1
    return rows > 0 and rows % blocks.rows == 0 and terms % blocks.terms == 0


def _by_matrices(g: Group, dot: Dot, target: Cpu) -> Work | None:
    """What a unit for matrices does for a product, where that takes less than an instruction on vectors."""
    work = work_of_matrices(g, target)
    if work is None:
        return None
    unit = target.matrices_of(_role(g).left.dtype, _role(g).right.dtype)
    assert unit is not None
    assert g.anchor is not None
    (m, n), depth = g.anchor.shape, g.anchor.reduce_axes[0].hi + 1
    machine = target.adding(dot)
    steps = -(-depth // dot.terms)
    product = Product(m, -(-n // target.lanes), steps)
    by_vectors = product.cycles(tile_of(m, n, steps, machine), machine) * dot.operations
    return ask_rows(g.knobs, work, unit) if least_cycles(work, unit, target) < WORTH_MATRICES * by_vectors else None


def _in_whole_instructions(g: Group, target: Cpu, dot: Dot) -> _Whole:
    """Rows in as many terms, and results in as many columns, as instructions and register tiles take."""
    anchor = g.anchor
    assert anchor is not None
    (m, n), depth = anchor.shape, anchor.reduce_axes[0].hi + 1
    _, vectors = chosen_tile(g.knobs, m, n, -(-depth // dot.terms), target.adding(dot), whole=True)
    layouts: dict[te.Tensor, Layout] = {}
    copy = None
    if dot.padded(depth) > depth:
        g = with_copy(g)
        copy = _role(g).left
        layouts[copy] = Layout(copy.shape).pad(1, 0, dot.padded(depth) - depth)
    g = over_depth(g, dot.padded(depth))
    assert g.anchor is not None
    y = g.anchor.outputs[0]
    beyond = -n % (vectors * target.lanes)
    if beyond:
        g = apart_from_output(g, y)
        layouts[y] = Layout(y.shape).pad(1, 0, beyond)
    return _Whole(g, layouts, copy)


def _transposed_copy(g: Group, role: Contraction) -> Group:
    """Give a product whose right operand is transposed a copy with columns next to each other, made once."""
    assert g.anchor is not None
    right, b = loads(g.anchor.bodies[0])[1], role.right
    shape = (*b.shape[:-2], b.shape[-1], b.shape[-2])
    turned = te.compute(shape, lambda *ix: b[(*ix[:-2], ix[-1], ix[-2])], "turned", tag="turn")

    def swap(ld: Load) -> Expr:
        return Load(turned, (*ld.indices[:-2], ld.indices[-1], ld.indices[-2])) if ld is right else ld

    return replace_anchor(g, te.with_bodies(g.anchor, [replace_loads(b, swap) for b in g.anchor.bodies]))


def _role(g: Group) -> Contraction:
    assert isinstance(g.role, Contraction)
    return g.role


def _fits(g: Group, target: Cpu) -> bool:
    return is_single(g) and isinstance(g.role, Contraction) and ends_in_anchor(g)


def _worth_panels(g: Group, target: Cpu) -> bool:
    """Whether a right operand that is known only when the model runs is worth being packed there.

    Rows of its columns lie as far apart as it is wide, in few sets of the caches and on a page each, so what is read
    for every tile of rows comes from further away than its size says (measured on Zen 5: products of 2048 × 3072 by
    3072 × 768 take 44.5 ms with packing, 94.6 without; 128 × 768 by 768 × 768 0.62 and 0.69; 64 × 2048 by 2048 × 512
    0.75 and 0.71). Where rows of the left operand lie so as well and are not read chunk by chunk, it has to be the
    smaller one (3072 × 768 sums of 2048 terms would take 103 ms in place of 82).
    """
    role, anchor = _role(g), g.anchor
    assert anchor is not None
    (m, n), depth = anchor.shape, anchor.reduce_axes[0].hi + 1
    tile = tile_of(m, n, depth, target)
    panel = depth * tile.vectors * target.lanes * role.right.dtype.itemsize
    kept = USABLE * target.l1 < panel <= USABLE * target.l2
    well = _left_by_terms(g) or m <= n or _deep(g, target) is not None
    return kept and m >= ENOUGH_TILES * tile.rows and well


def _left_by_terms(g: Group) -> bool:
    """Whether the terms of a row of the left operand are neighbours."""
    assert g.anchor is not None
    return loads(g.anchor.bodies[0])[0].indices[-1] == as_index(g.anchor.reduce_axes[0])


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    """Row-major, with the right operand in panels where it is constant, or worth being packed while the model runs."""
    role = _role(g)
    k = input_at(g, role.right)
    if k is None or role.left is role.right or not len(role.right.shape) == len(g.outputs[0].shape) == 2:
        return row_major(g, site, target)
    dot = _dot_of_product(g, target)
    if not site.constant[k] and (dot is not None or not _worth_panels(g, target)):
        return row_major(g, site, target)
    if dot is not None and (work := _by_matrices(g, dot, target)) is not None:
        return matrix_layouts(g, site, target, work, k)
    deep = _deep(g, target) if dot is None else None
    rows, tile = g.outputs[0].shape[0], None if deep is None else deep[0]
    panels = panel_layout(role.right.shape, role.transposed, rows, target.adding(dot), g.knobs, dot, tile)
    return in_layout(g, site, None, target.lanes, {k: panels})


MATRIX_PRODUCT = Template("matrix product", _fits, _layouts, schedule_matmul)
