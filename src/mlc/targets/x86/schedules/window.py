"""Sliding windows without a sum over channels: depthwise convolution and pooling, blocked or plain."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.layout import Layout, blocked
from mlc.lower.schedule import Schedule
from mlc.targets.x86.record import X86
from mlc.targets.x86.schedules.group import (
    WINDOWS,
    Group,
    accumulate_in_registers,
    apart_from_output,
    best_divisor,
    inner_layouts,
    padded_input,
    size_of,
)
from mlc.targets.x86.schedules.injective import lanes_of, spread

UNROLL_TAPS = 9  # windows up to 3×3 are unrolled whole, their weights stay in registers


def window_of(g: Group) -> te.Compute | None:
    """The stage that slides over its input, when the group has just one reduction and that is it."""
    found = [op for op in g.reductions if op.tag in (*WINDOWS, "depthwise")]
    return found[0] if len(found) == 1 and len(g.reductions) == 1 else None


def depthwise_layout(shape: tuple[int, ...], target: X86) -> Layout:
    """Weights ``[C / v][1][taps…][v]``."""
    return blocked(shape, 0, target.lanes)


def schedule_window(g: Group, target: X86) -> Schedule:
    """A register tile of outputs, a vector of channels (blocked) or of neighbours along the width (plain) each."""
    op = window_of(g)
    assert op is not None
    if g.outputs[0] in g.layouts:
        return _blocked(g, op, target)
    return _plain(g, op, target)


def _plain(g: Group, op: te.Compute, target: X86) -> Schedule:
    """Vectors along the width, a tile of some rows whose windows share what they read.

    The tile is computed in whole vectors and stored as far as the result reaches. A small window reads its input where
    it lies: where it hangs over the border, loops are cut, and only the vectors there are loaded under a mask.
    """
    whole = op.outputs[0]
    g = apart_from_output(g, whole)
    lanes = lanes_of(whole, target)
    last = len(whole.shape) - 1
    excess = -whole.shape[last] % lanes
    extra = {whole: Layout(whole.shape).pad(last, 0, excess)}
    small = size_of([a.hi + 1 for a in op.reduce_axes]) <= UNROLL_TAPS
    pad = padded_input(op)
    copied: list[te.Tensor] = []
    if pad is not None and pad.op is not None:
        extra[pad] = Layout(pad.shape).pad(last, 0, excess * int(op.attrs["strides"][-1]))
        if not small or not all(_lies_in_rows(t, g) for t in pad.op.inputs):
            copied = [pad]
    p = Group(g.inputs, g.outputs, op, g.layouts, g.knobs).apply(extra)
    assert p.anchor is not None
    window = p.anchor.outputs[0]
    copied = [t for t in (padded_input(p.anchor),) if t is not None and copied]
    s = Schedule(p.outputs)
    accumulate_in_registers(s, window, copied)
    stage = s[p.outputs[0]]
    *outer, width = stage.op.axes
    wo, lane = stage.split(width, lanes)
    stage.vectorize(lane)
    if len(outer) > 2:
        height = outer.pop()
        ho, hi = stage.split(height, best_divisor(height.hi + 1, 4 if target.registers < 32 else 8, 2))
        stage.reorder(ho, wo, hi, lane)
        stage.unroll(hi)
    stage.parallel(stage.fuse(*outer))
    local = s[window]
    local.compute_at(stage, wo)
    data, reduce = list(local.op.axes), list(local.op.reduce_axes)
    local.align(data[-1], lanes)
    if small:
        # taps of one column in turn read the same vectors for different rows
        local.reorder(*reversed(reduce), *data)
        for a in reduce:
            local.unroll(a)
    else:
        local.reorder(*reduce, *data)
    local.vectorize(data[-1])
    for a in data[2:-1]:
        local.unroll(a)
    for t in copied:
        spread(s[t], target)
    return s


def _lies_in_rows(t: te.Tensor, g: Group) -> bool:
    """Whether the rows of a tensor are rows in memory: an input in row-major layout, or shuffled channels of one."""
    if t.op is None:
        return t not in g.layouts
    return t.op.tag == "shuffle" and all(_lies_in_rows(source, g) for source in t.op.inputs)


def _blocked(g: Group, op: te.Compute, target: X86) -> Schedule:
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
    wo, wi = stage.split(width, best_divisor(width.hi + 1, 8, 4))
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
