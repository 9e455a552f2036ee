"""Which schedule and which layouts a group gets."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.graph import FusionKind, Node
from mlc.ir.layout import Layout, blocked
from mlc.ir.types import TensorType
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.cost import bandwidth
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.attention import schedule_attention
from mlc.targets.cpu.schedules.conv import (
    MIN_BLOCKED,
    conv_blocked,
    conv_product,
    conv_tile,
    may_be_blocked,
    plan_conv,
    weight_layout,
)
from mlc.targets.cpu.schedules.conv_plain import conv_plain, plain_product, plain_tile, plain_weight_layout
from mlc.targets.cpu.schedules.conv_transpose import transposed_blocked, transposed_plain, transposed_weight_layout
from mlc.targets.cpu.schedules.gates import gates_layout, gates_of, schedule_gates
from mlc.targets.cpu.schedules.injective import schedule_injective
from mlc.targets.cpu.schedules.master import has_master, schedule_master
from mlc.targets.cpu.schedules.matmul import operands_of, panel_layout, schedule_matmul
from mlc.targets.cpu.schedules.reduction import rows_in_memory, schedule_reduction
from mlc.targets.cpu.schedules.window import depthwise_layout, schedule_window, window_of
from mlc.targets.cpu.schedules.winograd import schedule_winograd, weights_of, winograd_fits, winograd_weights
from mlc.targets.groups.channels import sums_by_channel
from mlc.targets.groups.group import Group, group_of, params_of, size_of
from mlc.targets.groups.layouts import channel_constants, inherited_layout, keeps_channels, margins_of
from mlc.targets.groups.pixels import is_single_pixel

WORTH_BLOCKS = 0.95  # part of the cycles that blocks may take at most, conversions included


def schedule_group(node: Node, target: Cpu, knobs: Knobs) -> tuple[Schedule, list[te.Tensor]]:
    """The schedule of a group, and the tensors of its parameters in physical shapes.

    Args:
        node: the group, with layouts.
        target: the processor.
        knobs: what the group's template asks.

    Raises:
        ScheduleError: no schedule fits (a bug: the plain one fits everything).
    """
    g = group_of(node, knobs)
    # what has no elements needs no tiles, and has none
    single = len(g.outputs) == 1 and g.outputs[0].size > 0
    tag = g.anchor.tag if g.anchor is not None else ""
    if gates_of(g):
        s = schedule_gates(g, target)
    elif single and tag == "attention":
        s = schedule_attention(g, target)
    elif single and tag in ("conv", "group_conv") and g.outputs[0] in g.layouts:
        s = conv_blocked(g, target)
    elif single and tag == "winograd" and g.outputs[0] in g.layouts:
        s = schedule_winograd(g, target)
    elif single and tag in ("conv", "group_conv") and _shapes_agree(g):
        s = conv_plain(g, target)
    elif single and tag == "conv_transpose" and g.outputs[0] in g.layouts:
        s = transposed_blocked(g, target)
    elif single and tag == "conv_transpose":
        s = transposed_plain(g, target)
    elif single and _is_product(g):
        s = schedule_matmul(g, target)
    elif single and window_of(g) is not None and _window_shapes_agree(g):
        s = schedule_window(g, target)
    elif has_master(g):
        s = schedule_master(g, target)
    else:
        p = rows_in_memory(sums_by_channel(g, g.layouts))
        s = schedule_reduction(p, target) if p.reductions else schedule_injective(p, target)
    return s, params_of(g, s)


def _shapes_agree(g: Group) -> bool:
    """Whether the output has the shape of the anchor: loops can be shared."""
    return g.anchor is not None and g.outputs[0].shape == g.anchor.shape


def _is_product(g: Group) -> bool:
    """Whether a group is a matrix product of two tensors with what follows it."""
    tag = g.anchor.tag if g.anchor is not None else ""
    return tag == "matmul" and _shapes_agree(g) and g.anchor is not None and operands_of(g.anchor) is not None


def _window_shapes_agree(g: Group) -> bool:
    op = window_of(g)
    return op is not None and g.outputs[0].shape == op.shape and len(op.shape) >= 3


def choose_layouts(
    node: Node, inputs: Sequence[TensorType], constant: Sequence[bool], row_major: bool, target: Cpu, knobs: Knobs
) -> LayoutChoice:
    """Layouts that a group prefers.

    Convolutions and windows over channels choose for themselves; element-wise groups take over the layout of an operand
    of the same shape (ALT §4.2); everything else is row-major. So are windows over row-major tensors, and convolutions
    of single pixels between two of them (``row_major``: whether all readers want that), since blocks would cost a
    conversion each way. ``knobs`` are asked for tiles that packed constants follow.
    """
    plain = LayoutChoice(tuple(None for _ in node.outputs))
    nothing_to_inherit = node.op.kind is FusionKind.INJECTIVE and all(t.layout is None for t in inputs)
    if node.op.routine is not None or nothing_to_inherit:
        return plain
    g = group_of(node, knobs)
    if gates_of(g):
        assert g.anchor is not None
        at, weights = g.inputs.index(g.anchor.inputs[1]), g.anchor.inputs[1]
        layout = gates_layout(weights.shape, g.anchor.shape[0], gates_of(g), target, g.knobs)
        return LayoutChoice(plain.outputs, {at: layout} if constant[at] else {})
    if len(node.outputs) != 1:
        return plain
    out = g.outputs[0]
    v = target.lanes
    chosen: Layout | None = None
    constants: dict[int, Layout] = {}
    tag = g.anchor.tag if g.anchor is not None else ""
    position = {t: k for k, t in enumerate(g.inputs)}
    if tag == "conv_transpose" or (tag in ("conv", "group_conv") and _shapes_agree(g)):
        assert g.anchor is not None
        weights = g.anchor.inputs[-1]
        k = position.get(weights)
        if tag == "conv_transpose":
            fits = out.shape[1] >= MIN_BLOCKED and g.anchor.attrs.get("groups", 1) == 1
        else:
            fits = may_be_blocked(g.anchor, target)
        between_plain = row_major and all(t.layout is None for t in inputs) and is_single_pixel(g.anchor)
        if between_plain and tag == "conv" and k is not None and constant[k] and not _worth_blocks(g.anchor, target):
            constants[k] = plain_weight_layout(g, target)
        elif fits and k is not None and constant[k]:
            chosen = blocked(out.shape, 1, v)
            if tag == "conv_transpose":
                constants[k] = transposed_weight_layout(g.anchor, weights.shape, target, g.knobs)
            else:
                constants[k] = weight_layout(weights.shape, 0, 1, plan_conv(g, target).tile.vectors, target)
        elif tag == "group_conv" and k is not None and constant[k]:
            constants[k] = plain_weight_layout(g, target)
    elif tag == "winograd" and winograd_fits(g, target):
        k = position.get(weights_of(g))
        if k is not None and constant[k]:
            chosen = blocked(out.shape, 1, v)
            constants[k] = winograd_weights(g, target)
    elif _is_product(g):
        assert g.anchor is not None
        both = operands_of(g.anchor)
        assert both is not None
        a, b = both
        k = position.get(b)
        if a is not b and k is not None and constant[k] and len(b.shape) == 2 and len(out.shape) == 2:
            constants[k] = panel_layout(b.shape, bool(g.anchor.attrs.get("transpose_b")), out.shape[0], target, g.knobs)
        return LayoutChoice((None,), constants)
    elif _window_shapes_agree(g) and out.shape[1] >= MIN_BLOCKED:
        op = window_of(g)
        assert op is not None
        if op.tag == "depthwise":
            k = position.get(op.inputs[1])
            # channels read in another order are whole rows of a row-major tensor, but gathered from blocks
            behind_blocks = any(t.layout is not None for t in inputs) and keeps_channels(g, inputs)
            if behind_blocks and k is not None and constant[k] and op.attrs["groups"] == out.shape[1]:
                chosen = blocked(out.shape, 1, v)
                constants[k] = depthwise_layout(op.inputs[1].shape, target)
        elif any(t.layout is not None and t.rank == len(out.shape) for t in inputs):
            chosen = blocked(out.shape, 1, v)
    elif not g.reductions and len(out.shape) >= 3:
        chosen = inherited_layout(g, inputs, v)
    elif g.reductions and len(out.shape) >= 3 and out.shape[1] >= MIN_BLOCKED:
        g = sums_by_channel(g, [t for t, ty in zip(g.inputs, inputs, strict=True) if ty.layout is not None])
        by_channel = any(t.layout is not None and t.shape[:2] == out.shape[:2] for t in inputs)
        if by_channel and keeps_channels(g, inputs):
            chosen = blocked(out.shape, 1, v)
    if chosen is not None:
        constants |= channel_constants(g, inputs, constant, constants, v)
    return LayoutChoice((chosen,), constants, margins_of(g, constant) if chosen is not None else {})


def _worth_blocks(anchor: te.Compute, target: Cpu) -> bool:
    """Whether a convolution of single pixels is faster in blocks than row-major though both ends are converted.

    Vectors run along pixels in one and along channels in the other: one of them may have fewer ragged ends.
    """
    data, y = anchor.inputs[0], anchor.outputs[0]
    taps = [1] * (len(y.shape) - 2)
    plain, blocks = plain_product(anchor, target), conv_product(data.shape, y.shape, taps, True, target)
    pixels = 4 * size_of((*y.shape[:1], data.shape[1], *y.shape[2:]))
    moved = 2 * 4 * y.size + (2 * pixels if data.shape[2:] == y.shape[2:] else 0)  # strides are copied either way
    cycles = blocks.cycles(conv_tile(blocks, target), target) + moved / bandwidth(moved, target)
    return y.shape[1] >= MIN_BLOCKED and cycles < WORTH_BLOCKS * plain.cycles(plain_tile(anchor, target), target)
