"""Sliding windows without a sum over channels: depthwise convolution and pooling, blocked or plain."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout, blocked
from mlc.lower.knobs import Knobs, divisors
from mlc.lower.schedule import Schedule, Stage
from mlc.targets.cpu.cost import Tile
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.groups.group import (
    WINDOWS,
    Group,
    accumulate_in_registers,
    apart_from_output,
    best_divisor,
    inner_layouts,
    padded_input,
    rows_of_vectors,
    size_of,
    with_copy,
)

UNROLL_TAPS = 9  # windows up to 3×3 are unrolled whole, their weights stay in registers
UNROLLED = 400  # multiply-adds that a tile may be unrolled to
COPIED = 16  # vectors that the copy of a row may be unrolled to
TASKS = 8  # parts of the work that a few threads can share evenly


def window_of(g: Group) -> te.Compute | None:
    """The stage that slides over its input, when the group has just one reduction and that is it."""
    found = [op for op in g.reductions if op.tag in (*WINDOWS, "depthwise")]
    return found[0] if len(found) == 1 and len(g.reductions) == 1 else None


def depthwise_layout(shape: tuple[int, ...], target: Cpu) -> Layout:
    """Weights ``[C / v][1][taps…][v]``."""
    return blocked(shape, 0, target.lanes)


def schedule_window(g: Group, target: Cpu) -> Schedule:
    """A register tile of outputs, a vector of channels (blocked) or of neighbours along the width (plain) each."""
    op = window_of(g)
    assert op is not None
    if g.outputs[0] in g.layouts:
        return _blocked(g, op, target)
    return _plain(g, op, target)


def _plain(g: Group, op: te.Compute, target: Cpu) -> Schedule:
    """Vectors along the width, a tile of some rows whose windows share what they read.

    The tile is computed in whole vectors and stored as far as the result reaches. A small window reads its input where
    it lies: where it hangs over the border, loops are cut, and only the vectors there are loaded under a mask. Others
    read a copy of a block of rows with its border, in which columns a stride apart are neighbours.
    """
    g = apart_from_output(g, op.outputs[0])
    g = Group(g.inputs, g.outputs, op, g.layouts, g.knobs)
    copies = _reads_a_copy(g, op)
    if copies and padded_input(op) is None:
        g = with_copy(g)
    assert g.anchor is not None
    op, whole = g.anchor, g.anchor.outputs[0]
    lanes = target.lanes_of(whole.dtype)
    last = len(whole.shape) - 1
    excess = -whole.shape[last] % lanes
    extra = {whole: Layout(whole.shape).pad(last, 0, excess)}
    pad = padded_input(op)
    stride = int(op.attrs["strides"][-1])
    if pad is not None:
        rows = Layout(pad.shape).pad(last, 0, excess * stride)
        extra[pad] = rows_of_vectors(pad.shape, excess, stride, lanes) if copies else rows
    tile = _chosen_tile(g.knobs, whole.shape, lanes, copies, target)
    unrolled = g.knobs.discrete("unrolled", (50, 100, 200, 400, 800), default=UNROLLED)
    room = g.knobs.discrete("room", [target.l1 // k for k in (1, 2, 4, 8)], default=target.l1 // 2) if copies else 0
    p = g.apply(extra)
    assert p.anchor is not None
    window = p.anchor.outputs[0]
    copied = padded_input(p.anchor) if copies else None
    s = Schedule(p.outputs)
    accumulate_in_registers(s, window, [copied] if copied is not None else [])
    block = _block(p.anchor, copied.shape, tile, room) if copied is not None else None
    at, tiles = _plain_loops(s[p.outputs[0]], lanes, tile, block)
    local = s[window]
    local.compute_at(s[p.outputs[0]], tiles)
    data, reduce = list(local.op.axes), list(local.op.reduce_axes)
    local.align(data[-1], lanes)
    lu, llane = local.split(data[-1], lanes)
    local.vectorize(llane)
    local.reorder(
        *_taps_by_sharing(local, op, reduce, unrolled // (tile.rows * tile.vectors), lanes), *data[:-1], lu, llane
    )
    for a in (*data[2:-1], lu):
        local.unroll(a)
    if copied is not None:
        s[copied].compute_at(s[p.outputs[0]], at)
        _copy_loops(s[copied], lanes, stride)
    return s


def _plain_loops(stage: Stage, lanes: int, tile: Tile, block: tuple[int, int] | None) -> tuple[Var, Var]:
    """Loops over the result: blocks, shared by threads, tiles inside, and a tile.

    Args:
        stage: of the result.
        lanes: of a vector.
        tile: its rows and vectors.
        block: channels and tiles of rows in a block; ``None`` for one row of tiles.
    Returns:
        the loop over blocks and that over tiles.
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
    if block is not None:
        outer[1], channel = stage.split(outer[1], block[0])
        inside.insert(0, channel)
    stage.reorder(*outer, *inside)
    at = stage.fuse(*outer)
    stage.parallel(at)
    return at, tiles


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


def _reads_a_copy(g: Group, op: te.Compute) -> bool:
    """Whether a plain window reads a copy with borders rather than the input itself.

    Rows of taps that lie apart hang over the border in more ways than loops should be cut into.
    """
    small = size_of([a.hi + 1 for a in op.reduce_axes]) <= UNROLL_TAPS
    pad = padded_input(op)
    data = pad.op.inputs if pad is not None and pad.op is not None else op.inputs[:1]
    apart = any(k > 1 for k in op.attrs["dilations"])
    return not small or apart or not all(_lies_in_rows(t, g) for t in data)


def _lies_in_rows(t: te.Tensor, g: Group) -> bool:
    """Whether the rows of a tensor are rows in memory: an input in row-major layout, or shuffled channels of one."""
    if t.op is None:
        return t not in g.layouts
    return t.op.tag == "shuffle" and all(_lies_in_rows(source, g) for source in t.op.inputs)


def _plain_tile(shape: tuple[int, ...], lanes: int, copies: bool, target: Cpu) -> Tile:
    """Rows and vectors of a register tile.

    As many rows as leave a register each for what they read; few, but two vectors, where rows of the input itself are
    long, since each is a stream to fetch (measured on Zen 3: 4 × 2 takes 4 to 7 % less than 4 × 1). Without rows, more
    vectors, unless a tile of them would often hang over the border.
    """
    most = target.registers // 2 - 1
    height = shape[-2] if len(shape) > 3 else 1
    long = not copies and shape[-1] >= 4 * lanes
    limit = target.registers // 4 if long else most
    rows = max(range(1, min(limit, height) + 1), key=lambda k: (height / (-(-height // k) * k) * min(k, 6), k))
    vectors = max(1, min(most // rows, -(-shape[-1] // lanes))) if copies else 2 if long else 1
    return Tile(rows, vectors)


def _chosen_tile(knobs: Knobs, shape: tuple[int, ...], lanes: int, copies: bool, target: Cpu) -> Tile:
    """The register tile that the knobs say; :func:`_plain_tile` where they say nothing."""
    default = _plain_tile(shape, lanes, copies, target)
    height = shape[-2] if len(shape) > 3 else 1
    rows = knobs.discrete("rows", range(1, min(target.registers - 2, height) + 1), default=default.rows)
    most = min(target.registers // 2, -(-shape[-1] // lanes))
    vectors = knobs.discrete("vectors", range(1, most + 1), default=default.vectors)
    # beside the sums, one register for what is read and one for a weight
    knobs.require(rows * vectors + 2 <= target.registers, "the sums of a tile do not fit the registers")
    return Tile(rows, vectors)


def _block(op: te.Compute, copy: tuple[int, ...], tile: Tile, room: int) -> tuple[int, int]:
    """Channels and tiles of rows that share a copy of their input.

    What was written can only be read at other offsets once it has reached the cache, so a copy has to be longer than a
    tile takes. It fills its share of the first-level cache, unless too few blocks would be left for threads.

    Args:
        op: the window.
        copy: shape of the copied input, ``[n, c, (d,) (h,) (phase,) w]``.
        tile: of the result.
        room: bytes that a copy may take.
    """
    images, channels, *space = op.shape
    rank = len(space)
    planes = op.reduce_axes[0].hi + 1 if rank == 3 else 1
    row = 4 * planes * size_of(copy[rank + 1 :])
    rows = copy[rank] if rank > 1 else 1
    tiles = -(-space[-2] // tile.rows) if rank > 1 else 1
    if rank == 1 or row * rows <= room:
        return best_divisor(channels, max(1, min(room // (row * rows), images * channels // TASKS, channels))), tiles
    fitting = room // (row * int(op.attrs["strides"][-2]) * tile.rows)
    return 1, best_divisor(tiles, max(1, min(fitting, images * channels * tiles // TASKS, tiles)))


def _taps_by_sharing(local: Stage, op: te.Compute, reduce: list[Var], budget: int, lanes: int) -> list[Var]:
    """Loops over taps, ordered so that neighbours in time read the same vectors; unrolled up to a budget of taps.

    Taps of one column in turn read the same vectors for different rows, where they are a stride apart.
    """
    loops: list[Var] = []
    for k, a in enumerate(reversed(reduce)):
        stride, dilation = (int(op.attrs[name][-1 - k]) for name in ("strides", "dilations"))
        step = stride if k else lanes
        if 1 < step <= a.hi and dilation == 1 and (k or stride == 1):
            o, i = local.split(a, step)
            loops += [i, o]
        else:
            loops.append(a)
    for a in reversed(loops):
        if a.hi + 1 <= budget:
            local.unroll(a)
        budget //= a.hi + 1
    return loops


def _blocked(g: Group, op: te.Compute, target: Cpu) -> Schedule:
    """A register tile of neighbouring outputs along the width, all channels of a vector at once."""
    extra = inner_layouts(g)
    small = size_of([a.hi + 1 for a in op.reduce_axes]) <= UNROLL_TAPS
    pad = padded_input(op)
    copied = False
    if pad is not None and pad.op is not None:
        extra[pad] = blocked(pad.shape, 1, target.lanes)
        copied = not small or any(t.op is not None or t not in g.layouts for t in pad.op.inputs)
    p = Group(g.inputs, g.outputs, op, g.layouts, g.knobs).apply(extra)
    assert p.anchor is not None
    pads = [t for t in (padded_input(p.anchor),) if t is not None and copied]
    s = Schedule(p.outputs)
    window = accumulate_in_registers(s, p.anchor.outputs[0], pads)
    stage = s[p.outputs[0]]
    *outer, width, lane = stage.op.axes
    least = best_divisor(width.hi + 1, 8, 4)
    few = [k for k in divisors(width.hi + 1) if k < target.registers]
    wo, wi = stage.split(width, g.knobs.discrete("columns", few, default=least))
    stage.unroll(wi)
    stage.parallel(stage.fuse(*outer))
    stage.vectorize(lane)
    local = s[window]
    local.compute_at(stage, wo)
    data, reduce = list(local.op.axes), list(local.op.reduce_axes)
    local.reorder(*reduce, *data)
    local.vectorize(data[-1])
    local.unroll(data[-2])
    if small:
        for a in reduce:
            local.unroll(a)
    for t in pads:
        spread(s[t], target)
    return s
