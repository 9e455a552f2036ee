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
    """A register tile of neighbouring outputs along the width, all channels (or pixels) of a vector at once."""
    op = window_of(g)
    assert op is not None
    extra = inner_layouts(g)
    out_layout = g.layouts.get(g.outputs[0])
    pad = padded_input(op)
    if out_layout is not None and pad is not None:
        extra[pad] = blocked(pad.shape, 1, target.lanes)
    p = Group(g.inputs, g.outputs, op, g.layouts).apply(extra)
    assert p.anchor is not None
    window = p.anchor.outputs[0]
    pad = padded_input(p.anchor)
    s = Schedule(p.outputs)
    window = accumulate_in_registers(s, window, [pad] if pad is not None else [])
    out = p.outputs[0]
    stage = s[out]
    taps = size_of([a.hi + 1 for a in p.anchor.reduce_axes])
    if out_layout is not None:
        *outer, width, lane = stage.op.axes
        wo, wi = stage.split(width, best_divisor(width.hi + 1, 8, 4))
        stage.unroll(wi)
    else:
        *outer, width = stage.op.axes
        wo, lane = stage.split(width, lanes_of(out, target))
    at = stage.fuse(*outer)
    stage.parallel(at)
    stage.vectorize(lane)
    local = s[window]
    local.compute_at(stage, wo)
    data, reduce = list(local.op.axes), list(local.op.reduce_axes)
    if out_layout is not None:
        local.reorder(*reduce, *data)
        local.vectorize(data[-1])
        local.unroll(data[-2])
        if taps <= UNROLL_TAPS:
            for a in reduce:
                local.unroll(a)
    else:
        local.reorder(*data[:-1], *reduce, data[-1])
        local.vectorize(data[-1])
    if pad is not None:
        spread(s[pad], target)
    return s
