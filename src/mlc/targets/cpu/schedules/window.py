"""Sliding windows without a sum over channels: depthwise convolution and pooling, blocked or plain."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import Load
from mlc.ir.index import Var
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.ir.types import i8, i32, u8
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import plain
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.cost import Tile
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.tile import ask_tile, rows_of_vectors
from mlc.targets.cpu.schedules.window_rows import blocked_row_loops, row_loops
from mlc.targets.groups.group import (
    Group,
    accumulate_in_registers,
    apart_from_output,
    best_divisor,
    border_of,
    inner_layouts,
    is_single,
    size_of,
    with_copy,
    with_margins,
)
from mlc.targets.groups.layouts import MIN_BLOCKED, in_blocks, keeps_channels
from mlc.targets.groups.roles import Window, keeps_rows, role_of
from mlc.targets.groups.template import Template, input_at, row_major
from mlc.targets.groups.terms import over_taps

UNROLL_TAPS = 9  # windows up to 3×3 are unrolled whole, their weights stay in registers
UNROLL_ROW = 16  # taps of a row, which are unrolled where not all rows are
MANY_REGISTERS = 32  # from which on the tile of such a window is twice as wide
UNROLLED = 400  # multiply-adds that a tile may be unrolled to
UNROLLED_COLUMN = 50  # those of one column of taps
COPIED = 16  # vectors that the copy of a row may be unrolled to
MOST_SUMS = 16  # of bytes that a tile has
MOST_ROWS, MOST_COLUMNS = 7, 4  # of such a tile, and rows of one of two vectors each
MOST_STRIDED = 4  # rows of the latter, where windows are a stride apart
MOST_WHOLE = 9  # rows that are one tile there, if the core loads one vector a cycle
MOST_TILES = 16  # of rows that are a task for a thread
TASKS = 8  # parts of the work that a few threads can share evenly
# Tasks ahead, whose rows come while these are computed. Rows of many tiles at once are more streams than processors
# follow by themselves (measured on Zen 5, data from the third-level cache: 0.86 to 0.97 of the time).
FETCH_AHEAD = 2
AHEAD = (1, 2, 4, 8)  # of these where there is one row only


def window_of(g: Group) -> te.Compute | None:
    """The stage that slides over its input, when the group has just one reduction and that is it."""
    found = g.reductions
    return found[0] if len(found) == 1 and isinstance(role_of(found[0]), Window) else None


def depthwise_layout(shape: tuple[int, ...], target: Cpu, dot: Dot | None = None) -> Layout:
    """Weights ``[C / v][1][taps…][v]``; where an instruction sums up several taps of a row, so many of them last."""
    layout = blocked(shape, 0, target.lanes)
    if dot is None:
        return layout
    last = len(shape) - 1
    layout = layout.pad(last, 0, -shape[last] % dot.terms).split(last, dot.terms)
    return layout.reorder(*range(last + 1), last + 2, last + 1)


def taps_dot(op: te.Compute, target: Cpu) -> Dot | None:
    """How the processor sums up neighbouring taps of a row, where it does several at once."""
    role = role_of(op)
    if not isinstance(role, Window) or role.weights is None or role.weights.shape[0] != role.data.shape[1]:
        return None
    bytes = (role.data.dtype, role.weights.dtype, op.outputs[0].dtype) == (u8, i8, i32)
    return target.taps_dot if bytes and role.taps[-1] > 1 and role.dilations[-1] == 1 else None


def schedule_window(g: Group, target: Cpu) -> Schedule:
    """A register tile of outputs, a vector of channels (blocked) or of neighbours along the width (plain) each.

    Raises:
        ScheduleError: the configuration is refused.
    """
    op = window_of(g)
    assert op is not None
    if g.outputs[0] in g.layouts:
        return _blocked(g, op, target)
    return _plain(g, op, target)


def _plain(g: Group, op: te.Compute, target: Cpu) -> Schedule:
    """Vectors along the width, a tile of some rows whose windows share what they read.

    The tile is computed in whole vectors and stored as far as the result reaches. Where a processor takes operands from
    memory, a small window reads its input where it lies: where it hangs over the border, loops are cut, and only the
    vectors there are loaded under a mask. Others read a copy of a block of rows with its border, in which columns a
    stride apart are neighbours.
    """
    g = apart_from_output(g, op.outputs[0])
    g = Group(g.inputs, g.outputs, op, g.layouts, g.knobs)
    role = _role(g)
    copies = _reads_a_copy(g, role, target)
    if copies and border_of(role.data) is None:
        g = with_copy(g)
        role = _role(g)
    assert g.anchor is not None
    whole = g.anchor.outputs[0]
    lanes = target.lanes_of(whole.dtype)
    last = len(whole.shape) - 1
    excess = -whole.shape[last] % lanes
    extra = {whole: Layout(whole.shape).pad(last, 0, excess)}
    stride = role.strides[-1]
    if copies or border_of(role.data) is not None:
        shape = role.data.shape
        rows = Layout(shape).pad(last, 0, excess * stride)
        extra[role.data] = rows_of_vectors(shape, excess, stride, lanes) if copies else rows
    tile = _chosen_tile(g.knobs, whole.shape, lanes, stride, copies, target)
    # where every operand takes a register, there are enough for a column of taps and what it reads
    most = UNROLLED if target.memory_operand or not copies else UNROLLED_COLUMN
    unrolled = g.knobs.discrete("unrolled", (UNROLLED_COLUMN, 100, 200, UNROLLED, 800), default=most)
    room = g.knobs.discrete("room", [target.l1 // k for k in (1, 2, 4, 8)], default=target.l1 // 2) if copies else 0
    grain = _ask_grain(g.knobs, whole.shape, tile, copies, _loads_one(target))
    p = g.apply(extra)
    assert p.anchor is not None
    window = p.anchor.outputs[0]
    copied = p.anchor.inputs[:1] if copies else []
    s = Schedule(p.outputs)
    accumulate_in_registers(s, window, copied)
    if copied:
        block: tuple[int, int] | None = _block(p.anchor, role, copied[0].shape, tile, room, grain)
    else:
        block = grain if grain[0] * grain[1] > 1 else None
    if len(whole.shape) > 3:
        by_rows = not copies and stride > 1 and _loads_one(target)
        usual = ("rows", "columns") if by_rows else ("columns", "rows")
        walk = g.knobs.permutation("walk", ("columns", "rows"), default=usual)
        at, tiles = _plain_loops(s[p.outputs[0]], lanes, tile, block, walk)
    else:
        at, tiles = row_loops(s[p.outputs[0]], lanes, tile, block, g.knobs)
    source = None if copies else _fetched(p.anchor)
    if source is not None:
        beyond = sum(t.size * t.dtype.itemsize for t in (source, p.outputs[0])) > target.l1
        fetch = g.knobs.category("prefetch", (False, True), default=beyond and _pays_to_fetch(stride, target))
        one_piece = grain[0] == 1 or grain[1] * tile.rows >= whole.shape[-2]
        g.knobs.require(one_piece or not fetch, "rows of several channels lie apart, and are not fetched")
        distance = FETCH_AHEAD
        if len(whole.shape) < 4:
            distance = plain(g.knobs.discrete("ahead", AHEAD, default=FETCH_AHEAD))
        if fetch:
            s[p.outputs[0]].prefetch(source, at, tiles, distance=distance, level=1)
    local = s[window]
    local.compute_at(s[p.outputs[0]], tiles)
    data, reduce = list(local.op.axes), list(local.op.reduce_axes)
    local.align(data[-1], lanes)
    lu, llane = local.split(data[-1], lanes)
    local.vectorize(llane)
    budget = unrolled // (tile.rows * tile.vectors)
    order = _ordered_taps(g.knobs, reduce)
    shared = (
        _taps_by_sharing(local, role, reduce, budget, lanes) if order == reduce else _unrolled(local, order, budget)
    )
    local.reorder(*shared, *data[:-1], lu, llane)
    for a in (*data[2:-1], lu):
        local.unroll(a)
    for t in copied:
        s[t].compute_at(s[p.outputs[0]], at)
        _copy_loops(s[t], lanes, stride)
    return s


def _role(g: Group) -> Window:
    assert isinstance(g.role, Window)
    return g.role


def _ask_grain(knobs: Knobs, shape: tuple[int, ...], tile: Tile, copies: bool, whole: bool) -> tuple[int, int]:
    """Channels, and tiles of rows, that are a task for a thread: one of each where the knobs say nothing.

    Where a copy is read, its size says more: one of a factor leaves that factor to it. Otherwise all tiles of a channel
    are one task where that is asked for with ``whole``, or where the last tile lacks two rows or more: a loop over them
    is cut before that one, while one over channels as well tests these rows in every tile (measured on Zen 5 in vectors
    of 8: 24 channels of 25, 31 and 37 rows take 0.5 to 0.6 of the time).
    """
    _, channels = knobs.factors("channels", shape[1], 2, default=(shape[1], 1))
    if len(shape) < 4:
        return channels, 1
    counts = {k for rows in range(1, shape[-2] + 1) for k in divisors(-(-shape[-2] // rows)) if k <= MOST_TILES}
    all_tiles = -(-shape[-2] // tile.rows)
    ragged = all_tiles * tile.rows - shape[-2] > 1
    together = (ragged or whole) and all_tiles <= MOST_TILES and shape[0] * shape[1] >= TASKS
    tiles = knobs.discrete("tiles", sorted(counts), default=all_tiles if together and not copies else 1)
    knobs.require(all_tiles % tiles == 0, "rows of tiles cannot be cut evenly into such blocks")
    return channels, tiles


def _plain_loops(
    stage: Stage, lanes: int, tile: Tile, block: tuple[int, int] | None, walk: tuple[str, ...]
) -> tuple[Var, Var]:
    """Loops over the result: blocks, shared by threads, tiles inside, and a tile.

    Args:
        stage: of the result.
        lanes: of a vector.
        tile: its rows and vectors.
        block: channels and tiles of rows in a block; ``None`` for one row of tiles.
        walk: the loops over tiles of a block, from outside: ``columns`` and ``rows``.
    Returns:
        the loop over blocks and the innermost one over tiles.
    """
    *outer, width = stage.op.axes
    wo, wv = stage.split(width, lanes * tile.vectors)
    wu, lane = stage.split(wv, lanes)
    stage.vectorize(lane)
    stage.unroll(wu)
    inside, tiles = [wo, wu, lane], wo
    if len(outer) > 2:
        ho, hi = stage.split(outer.pop(), tile.rows)
        stage.unroll(hi)
        # ragged ends of rows are cut off first: tiles in a row, one after the other without a loop, would share numbers
        # in more registers than there are
        blocks, tiles = stage.split(ho, 1 if block is None else block[1])
        outer.append(blocks)
        inside = [wo, tiles, hi, wu, lane]
        if block is not None and block[1] > 1 and walk.index("rows") < walk.index("columns"):
            inside[:2], tiles = [tiles, wo], wo
    if block is not None:
        outer[1], channel = stage.split(outer[1], block[0])
        inside.insert(0, channel)
    stage.reorder(*outer, *inside)
    at = stage.fuse(*outer)
    stage.parallel(at)
    return at, tiles


def _fetched(op: te.Compute) -> te.Tensor | None:
    """The input of a window over rows that lies in memory as it is read, but for a border; none over volumes."""
    data = op.inputs[0]
    source = data if data.op is None else data.op.inputs[0]
    return source if source.op is None and len(op.shape) < 5 else None


def _copy_loops(copy: Stage, lanes: int, stride: int) -> None:
    """Loops over the copy of an input: whole vectors along the width, those of a short row unrolled."""
    across = copy.op.axes[-1]
    copy.align(across, lanes)
    vector, lane = copy.split(across, lanes)
    copy.vectorize(lane)
    if stride > 1:  # what lies a stride apart is picked from the same vectors
        phase = copy.op.axes[-2]
        copy.reorder(vector, phase, lane)
        copy.unroll(phase)
    if (vector.hi + 1) * stride <= COPIED:
        copy.unroll(vector)


def _reads_a_copy(g: Group, role: Window, target: Cpu) -> bool:
    """Whether a plain window reads a copy with borders rather than the input itself.

    Rows of taps that lie apart hang over the border in more ways than loops should be cut into. Where every operand
    takes a register, masks and the ends of rows leave too few for the sums.
    """
    small = size_of(role.taps) <= UNROLL_TAPS
    border = border_of(role.data)
    data = border.inputs if border is not None else [role.data]
    apart = any(k > 1 for k in role.dilations)
    tight = border is not None and not target.memory_operand
    return not small or apart or tight or not all(_lies_in_rows(t, g) for t in data)


def _lies_in_rows(t: te.Tensor, g: Group) -> bool:
    """Whether the rows of a tensor are rows in memory: an input in row-major layout, or shuffled channels of one."""
    if t.op is None:
        return t not in g.layouts
    return keeps_rows(t.op) and all(_lies_in_rows(source, g) for source in t.op.inputs)


def _loads_one(target: Cpu) -> bool:
    """Whether a core with many registers loads one vector a cycle (Zen 4)."""
    return target.loads == 1 and target.memory_operand and target.registers >= MANY_REGISTERS


def _pays_to_fetch(stride: int, target: Cpu) -> bool:
    """Whether later tiles' rows are fetched ahead, where they may not be in the first-level cache.

    Not with a stride on cores of few registers (measured on Zen 3: 0.80 to 1.0 of the time without; in networks 0.95).
    """
    return not _loads_one(target) and (stride == 1 or target.registers >= MANY_REGISTERS)


def _plain_tile(shape: tuple[int, ...], lanes: int, stride: int, copies: bool, target: Cpu) -> Tile:
    """Rows and vectors of a register tile.

    As many rows as leave a register each for what they read; few, but two vectors, where rows of the input itself are
    long, since each is a stream to fetch (measured on Zen 3: 4 × 2 takes 4 to 7 % less than 4 × 1, and 7 × 1, where
    that divides the rows, 3 to 16 % less than 4 × 2, images of 28 pixels the most; on Zen 5: 7 × 2 takes 6 to 28 % less
    than 14 × 1, 3 to 10 % less than 8 × 2, and with a stride of 2, 4 × 2 takes 16 to 19 % less than more rows). A core
    that loads one vector a cycle has 4 × 2 of them, all tiles of a channel in one task, and fetches nothing ahead
    (measured on Zen 4: 0.87 to 0.95 of the time of 7 × 2, a tile a task, fetched ahead); with a stride, tiles beside
    each other first, 2 × 1, or 4 × 1 where a task has not that many tiles (convolutions 0.68 to 0.93 of the time of 4 ×
    2, pools 0.67 to 0.94), unless the rows are so few that all are one tile. Without rows, more
    vectors, unless a tile of them would often hang over the border.
    """
    most = target.registers // 2 - 1
    height = shape[-2] if len(shape) > 3 else 1
    if _loads_one(target) and stride > 1 and height > MOST_WHOLE and not copies:
        return Tile(2 if height <= 2 * MOST_TILES else min(MOST_STRIDED, height), 1)
    long = not copies and -(-shape[-1] // lanes) >= (2 if target.registers >= MANY_REGISTERS else 4)
    few = min(MOST_ROWS if stride == 1 and not _loads_one(target) else MOST_STRIDED, target.registers // 4)
    limit = few if long else most
    if long and target.registers < MANY_REGISTERS and stride == 1 and height % most == 0:
        return Tile(most, 1)
    rows = max(range(1, min(limit, height) + 1), key=lambda k: (height / (-(-height // k) * k) * min(k, 6), k))
    vectors = max(1, min(most // rows, -(-shape[-1] // lanes))) if copies else 2 if long else 1
    return Tile(rows, vectors)


def _chosen_tile(knobs: Knobs, shape: tuple[int, ...], lanes: int, stride: int, copies: bool, target: Cpu) -> Tile:
    """The register tile that the knobs say; :func:`_plain_tile` where they say nothing."""
    default = _plain_tile(shape, lanes, stride, copies, target)
    height = shape[-2] if len(shape) > 3 else 1
    wide = range(1, min(target.registers // 2, -(-shape[-1] // lanes)) + 1)

    def fits(rows: int, vectors: int, target: Cpu) -> bool:
        # beside the sums, one register for what is read and one for a weight
        return rows * vectors + 2 <= target.registers

    return ask_tile(knobs, default, range(1, min(target.registers - 2, height) + 1), wide, target, fits=fits)


def _block(
    op: te.Compute, role: Window, copy: tuple[int, ...], tile: Tile, room: int, grain: tuple[int, int]
) -> tuple[int, int]:
    """Channels and tiles of rows that share a copy of their input.

    What was written can only be read at other offsets once it has reached the cache, so a copy has to be longer than a
    tile takes. It fills its share of the first-level cache, unless too few blocks would be left for threads.

    Args:
        op: the window.
        role: what it does.
        copy: shape of the copied input, ``[n, c, (d,) (h,) (phase,) w]``.
        tile: of the result.
        room: bytes that a copy may take.
        grain: channels and tiles of rows that there are to be; 1 where that is left open.
    """
    images, channels, *space = op.shape
    rank = len(space)
    planes = op.reduce_axes[0].hi + 1 if rank == 3 else 1
    row = 4 * planes * size_of(copy[rank + 1 :])
    rows = copy[rank] if rank > 1 else 1
    tiles = -(-space[-2] // tile.rows) if rank > 1 else 1
    if rank == 1 or row * rows <= room:
        # output channels that read one input channel stay together: a block that splits them would, by the bounds of
        # a quotient, copy every channel there is
        read = copy[1]
        few = best_divisor(read, max(1, min(room // (row * rows), images * read // TASKS, read)))
        few = few * (channels // read)
        return (few if grain[0] == 1 else grain[0]), tiles
    fitting = room // (row * role.strides[-2] * tile.rows)
    some = best_divisor(tiles, max(1, min(fitting, images * channels * tiles // TASKS, tiles)))
    return 1, (some if grain[1] == 1 else grain[1])


def _taps_by_sharing(local: Stage, role: Window, reduce: list[Var], budget: int, lanes: int) -> list[Var]:
    """Loops over taps, ordered so that neighbours in time read the same vectors; unrolled up to a budget of taps.

    Taps of one column in turn read the same vectors for different rows, where they are a stride apart.
    """
    loops: list[Var] = []
    for k, a in enumerate(reversed(reduce)):
        stride, dilation = role.strides[-1 - k], role.dilations[-1 - k]
        step = stride if k else lanes
        if 1 < step <= a.hi and dilation == 1 and (k or stride == 1):
            o, i = local.split(a, step)
            loops += [i, o]
        else:
            loops.append(a)
    return _unrolled(local, loops, budget)


def _unrolled(local: Stage, loops: list[Var], budget: int) -> list[Var]:
    """Loops over taps, the innermost of them unrolled up to a budget of taps."""
    for a in reversed(loops):
        if a.hi + 1 <= budget:
            local.unroll(a)
        budget //= a.hi + 1
    return loops


def _ordered_taps(knobs: Knobs, reduce: list[Var]) -> list[Var]:
    """Loops over taps in the order that the knobs say: as the window has them where they say nothing."""
    taps = dict(zip(("slices", "rows", "columns")[-len(reduce) :], reduce, strict=True))
    order = knobs.permutation("terms", tuple(taps))
    return [taps[name] for name in sorted(taps, key=order.index)]


def _over_whole_taps(g: Group, dot: Dot) -> Group:
    """A window whose rows are summed up in whole instructions."""
    return over_taps(g, dot.padded(_role(g).taps[-1]))


def _blocked_taps(g: Group, dot: Dot, target: Cpu) -> Schedule:
    """A register tile of a few rows and columns, all channels of a vector at once; several taps at once.

    What an instruction reads is turned once for all rows of the tile whose windows meet there.
    """
    role = _role(g)
    g = with_margins(_over_whole_taps(g, dot))
    assert g.anchor is not None
    if g.anchor.inputs[0].op is None and not _lies_in_blocks(g.anchor.inputs[0], g):
        g = with_copy(g)
    assert g.anchor is not None
    extra, data = inner_layouts(g), g.anchor.inputs[0]
    copied = data.op is not None and not _lies_in_blocks(data, g)
    if data.op is not None:
        extra[data] = blocked(data.shape, 1, target.lanes)
    p = g.apply(extra)
    assert p.anchor is not None
    pads = p.anchor.inputs[:1] if copied else []
    s = Schedule(p.outputs)
    window = accumulate_in_registers(s, p.anchor.outputs[0], pads)
    stage = s[p.outputs[0]]
    at, _ = _blocked_loops(stage, g.knobs, target, MOST_COLUMNS, sums=MOST_SUMS)
    local = s[window]
    local.compute_at(stage, at)
    *data_axes, column, llane = local.op.axes
    rows = data_axes[2:]
    *above, last = local.op.reduce_axes
    instructions, terms = local.split(last, dot.terms)
    local.reorder(*data_axes[:2], column, *rows, *above, instructions, llane, terms)
    # of three taps in instructions of four, neighbours read the same; the layout of weights ends with zeros
    shared = dot.spare if role.taps[-1] < dot.terms and role.strides[-1] == 1 else None
    local.tensorize(llane, shared or dot.intrinsic)
    taps = [*above, instructions]
    few = len(taps) if size_of(role.taps) <= UNROLL_TAPS else 0
    unrolled = g.knobs.discrete("unrolled", range(len(taps) + 1), default=few)
    for a in (column, *rows, *(a for k, a in enumerate(reversed(taps)) if k < unrolled)):
        local.unroll(a)
    for t in pads:
        spread(s[t], target)
    return s


def _lies_in_blocks(t: te.Tensor, g: Group) -> bool:
    """Whether a tensor is an input in blocks of channels, seen from elsewhere at most."""
    if t.op is None:
        return t in g.layouts
    return type(t.op.bodies[0]) is Load and all(_lies_in_blocks(source, g) for source in t.op.inputs)


def _blocked(g: Group, op: te.Compute, target: Cpu) -> Schedule:
    """A register tile of neighbouring outputs along the width, all channels of a vector at once."""
    g = Group(g.inputs, g.outputs, op, g.layouts, g.knobs)
    dot = taps_dot(op, target)
    if dot is not None:
        return _blocked_taps(g, dot, target)
    role, extra = _role(g), inner_layouts(g)
    small = size_of(role.taps) <= UNROLL_TAPS
    border = border_of(role.data)
    copied = False
    if border is not None:
        extra[role.data] = blocked(role.data.shape, 1, target.lanes)
        copied = not small or any(t.op is not None or t not in g.layouts for t in border.inputs)
    elif role.data.op is not None and _lies_in_blocks(role.data, g):
        extra[role.data] = blocked(role.data.shape, 1, target.lanes)  # lanes beyond the channels are read as they are
    p = g.apply(extra)
    assert p.anchor is not None
    pads = p.anchor.inputs[:1] if copied else []
    s = Schedule(p.outputs)
    window = accumulate_in_registers(s, p.anchor.outputs[0], pads)
    stage = s[p.outputs[0]]
    # neighbours whose windows overlap read the same vectors for other taps of a row, where that is unrolled (measured
    # on Zen 5: 14 columns with unrolled rows of 5 to 9 taps are 1.07 to 1.74 times as fast as 7 with rolled ones)
    row = not small and role.taps[-1] <= UNROLL_ROW
    wide = row and role.strides[-1] == role.dilations[-1] == 1 and target.registers >= MANY_REGISTERS
    at, (*rows, _) = _blocked_loops(stage, g.knobs, target, 16 if wide else 8)
    local = s[window]
    local.compute_at(stage, at)
    data, reduce = list(local.op.axes), list(local.op.reduce_axes)
    most = len(reduce) if small else 1 if row else 0
    unrolled = g.knobs.discrete("unrolled", range(len(reduce) + 1), default=most)
    reduce = _ordered_taps(g.knobs, reduce)
    local.reorder(*reduce, *data)
    local.vectorize(data[-1])
    local.unroll(data[-2])
    if rows:
        local.unroll(data[-3])
    for k, a in enumerate(reversed(reduce)):
        if k < unrolled:
            local.unroll(a)
    for t in pads:
        spread(s[t], target)
    return s


def _blocked_loops(stage: Stage, knobs: Knobs, target: Cpu, most: int, *, sums: int = 0) -> tuple[Var, list[Var]]:
    """Loops over the result: register tiles of neighbours in rows and columns, and the loops around them.

    Args:
        stage: of the result.
        knobs: are asked.
        target: has the registers.
        most: columns of a tile where the knobs say nothing.
        sums: of a tile at most, where it has as many rows as these allow unless the knobs say otherwise; 0 for one row.
    Returns:
        the loop inside which a tile is computed, and those of the tile: over rows, if it has several, and columns.
    """
    *outer, width, lane = stage.op.axes
    least = max(k for k in divisors(width.hi + 1) if k <= most) if sums else best_divisor(width.hi + 1, most, 4)
    if len(outer) < 3:
        return blocked_row_loops(stage, knobs, target, least)
    few = [k for k in divisors(width.hi + 1) if k < target.registers]
    columns = knobs.discrete("columns", few, default=least)
    wo, wi = stage.split(width, columns)
    stage.unroll(wi)
    tile, loops = [wi], {"columns": wo}
    height = outer.pop()
    n = height.hi + 1
    usual = max(k for k in divisors(n) if k <= min(MOST_ROWS, max(1, sums // least)))
    _, inside, rows = knobs.factors("height", n, 3, default=(n // usual, 1, usual), most={-1: MOST_ROWS})
    knobs.require(rows * columns < target.registers - 1, "the sums of a tile do not fit the registers")
    if rows > 1:
        height, high = stage.split(height, rows)
        stage.unroll(high)
        tile.insert(0, high)
    if inside > 1:
        height, loops["rows"] = stage.split(height, inside)
    loops["blocks"] = height
    loops["channels"] = outer.pop()  # or the slices of a volume
    order = knobs.permutation("walk", ("channels", "blocks", "rows", "columns"))
    walk = [loops[name] for name in sorted(loops, key=order.index)]
    # how many of these loops threads share; untuned, all but those of a row
    shared = knobs.discrete("shared", (0, 1, 2), default=0)
    together = [a for k, a in enumerate(walk) if k < shared] if shared else walk[: walk.index(wo)]
    stage.reorder(*outer, *walk, *tile, lane)
    at = stage.fuse(*outer, *together)
    stage.parallel(at)
    stage.vectorize(lane)
    return walk[-1], tile


def _fits(g: Group, target: Cpu) -> bool:
    op = window_of(g) if is_single(g) else None
    return op is not None and g.outputs[0].shape == op.shape


def _layouts(g: Group, site: Site, target: Cpu) -> LayoutChoice:
    """Blocks of channels behind blocks; row-major behind row-major tensors, since vectors run along rows as well."""
    op, out = window_of(g), g.outputs[0]
    role = role_of(op) if op is not None else None
    assert isinstance(role, Window)
    plain = row_major(g, site, target)
    if out.shape[1] < MIN_BLOCKED:
        return plain
    if role.weights is None:
        behind_blocks = any(t.layout is not None and t.rank == len(out.shape) for t in site.inputs)
        return in_blocks(g, site, target.lanes) if behind_blocks else plain
    k = input_at(g, role.weights)  # a weight or some for each channel are packed in no time
    # channels read in another order are whole rows of a row-major tensor, but gathered from blocks
    behind_blocks = any(t.layout is not None for t in site.inputs) and keeps_channels(g, site.inputs)
    if not behind_blocks or k is None or role.data.shape[1] != out.shape[1]:
        return plain
    assert op is not None
    dot = taps_dot(op, target)
    if dot is not None:
        g = _over_whole_taps(Group(g.inputs, g.outputs, op, g.layouts, g.knobs), dot)
    return in_blocks(g, site, target.lanes, {k: depthwise_layout(role.weights.shape, target, dot)})


WINDOW = Template("window", _fits, _layouts, schedule_window)
