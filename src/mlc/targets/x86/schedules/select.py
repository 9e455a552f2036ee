"""Which schedule and which layouts a group gets."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.graph import FusionKind, Node
from mlc.ir.layout import Layout, blocked
from mlc.ir.types import TensorType
from mlc.lower.knobs import Knobs
from mlc.lower.relayout import padded_load
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice, Margins
from mlc.targets.x86.cost import bandwidth
from mlc.targets.x86.record import X86
from mlc.targets.x86.schedules.attention import schedule_attention
from mlc.targets.x86.schedules.conv import (
    MIN_BLOCKED,
    conv_blocked,
    conv_product,
    conv_tile,
    may_be_blocked,
    plan_conv,
    weight_layout,
)
from mlc.targets.x86.schedules.conv_plain import conv_plain, plain_product, plain_tile, plain_weight_layout
from mlc.targets.x86.schedules.conv_transpose import transposed_blocked, transposed_plain, transposed_weight_layout
from mlc.targets.x86.schedules.gates import gates_layout, gates_of, schedule_gates
from mlc.targets.x86.schedules.group import Group, group_of, knobs_of, size_of
from mlc.targets.x86.schedules.injective import schedule_injective
from mlc.targets.x86.schedules.master import has_master, schedule_master
from mlc.targets.x86.schedules.matmul import operands_of, panel_layout, schedule_matmul
from mlc.targets.x86.schedules.pixels import is_single_pixel
from mlc.targets.x86.schedules.reduction import rows_in_memory, schedule_reduction
from mlc.targets.x86.schedules.window import depthwise_layout, schedule_window, window_of
from mlc.targets.x86.schedules.winograd import schedule_winograd, weights_of, winograd_fits, winograd_weights

WORTH_BLOCKS = 0.95  # part of the cycles that blocks may take at most, conversions included


def schedule_group(node: Node, target: X86, knobs: Knobs) -> tuple[Schedule, list[te.Tensor]]:
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
        p = rows_in_memory(g)
        s = schedule_reduction(p, target) if p.reductions else schedule_injective(p, target)
    return s, _params(g, s)


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


def _params(g: Group, s: Schedule) -> list[te.Tensor]:
    """Parameters of the kernel: the schedule's tensors that stand for the group's inputs, then its outputs."""
    found: dict[str, te.Tensor] = {}
    for stage in s.stages:
        for t in stage.op.inputs:
            if t.op is None:
                found[t.name] = t
    inputs = []
    for t in g.inputs:
        layout = g.layouts.get(t)
        plain = te.Tensor(t.name, layout.physical_shape if layout is not None else t.shape, t.dtype)
        inputs.append(found.get(t.name, plain))
    return [*inputs, *s.outputs]


def choose_layouts(
    node: Node, inputs: Sequence[TensorType], constant: Sequence[bool], row_major: bool, target: X86
) -> LayoutChoice:
    """Layouts that a group prefers.

    Convolutions and windows over channels choose for themselves; element-wise groups take over the layout of an operand
    of the same shape (ALT §4.2); everything else is row-major. So are windows over row-major tensors, and convolutions
    of single pixels between two of them (``row_major``: whether all readers want that), since blocks would cost a
    conversion each way.
    """
    plain = LayoutChoice(tuple(None for _ in node.outputs))
    nothing_to_inherit = node.op.kind is FusionKind.INJECTIVE and all(t.layout is None for t in inputs)
    if node.op.routine is not None or nothing_to_inherit:
        return plain
    g = group_of(node, knobs_of(node))
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
            behind_blocks = any(t.layout is not None for t in inputs) and _keeps_channels(g, inputs)
            if behind_blocks and k is not None and constant[k] and op.attrs["groups"] == out.shape[1]:
                chosen = blocked(out.shape, 1, v)
                constants[k] = depthwise_layout(op.inputs[1].shape, target)
        elif any(t.layout is not None and t.rank == len(out.shape) for t in inputs):
            chosen = blocked(out.shape, 1, v)
    elif not g.reductions and len(out.shape) >= 3:
        chosen = _inherited(g, inputs, node, v)
    elif g.reductions and len(out.shape) >= 3 and out.shape[1] >= MIN_BLOCKED:
        by_channel = any(t.layout is not None and t.shape[:2] == out.shape[:2] for t in inputs)
        if by_channel and _keeps_channels(g, inputs):
            chosen = blocked(out.shape, 1, v)
    if chosen is not None:
        constants |= _channel_constants(g, inputs, constant, constants, v)
    return LayoutChoice((chosen,), constants, _margins(g, constant) if chosen is not None else {})


def _worth_blocks(anchor: te.Compute, target: X86) -> bool:
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


def _margins(g: Group, constant: Sequence[bool]) -> dict[int, Margins]:
    """The zeros around inputs that windows slide over."""
    found: dict[int, Margins] = {}
    for op in g.computes:
        if op.tag != "pad" or len(op.bodies) != 1 or len(op.inputs) != 1 or op.inputs[0] not in g.inputs:
            continue
        (source,), ld = op.inputs, padded_load(op.bodies[0])
        if ld is None:
            continue
        reach = [ix.bounds() for ix in ld.indices]
        k = g.inputs.index(source)
        if not constant[k] and all(ix.terms == {a: 1} for ix, a in zip(ld.indices, op.axes, strict=True) if a.hi > 0):
            found[k] = tuple((max(0, -lo), max(0, hi - n + 1)) for (lo, hi), n in zip(reach, source.shape, strict=True))
    return found


def _inherited(g: Group, inputs: Sequence[TensorType], node: Node, block: int) -> Layout | None:
    """The layout of a blocked operand, where all channels are the output's own or move in whole blocks."""
    out = g.outputs[0]
    for t in inputs:
        if t.layout is not None and t.shape == out.shape and _keeps_channels(g, inputs):
            return t.layout.core
    same_rank = [t for t in inputs if t.rank == len(out.shape)]
    if any(t.layout is not None for t in same_rank):
        if _keeps_channels(g, inputs) and all(t.shape[1] == out.shape[1] for t in same_rank if t.layout is not None):
            return blocked(out.shape, 1, block)
        whole = all(t.layout is not None and t.shape[1] % block == 0 for t in inputs)
        if whole and out.op is not None and out.op.tag == "concat" and out.op.attrs.get("axis") == 1:
            return blocked(out.shape, 1, block)
    return None


def _keeps_channels(g: Group, inputs: Sequence[TensorType]) -> bool:
    """Whether every blocked operand is read at the output's own channel."""
    layouts = {t: ty.layout for t, ty in zip(g.inputs, inputs, strict=True) if ty.layout is not None}
    good = {t for t in g.inputs if t in layouts}
    for op in g.computes:
        if len(op.shape) < 2:
            return False
        for body in op.bodies:
            for ld in loads(body):
                if ld.source in good or ld.source.op is not None:
                    if len(ld.indices) < 2:
                        return False
                    terms = ld.indices[1]
                    if terms.const or terms.terms != {op.axes[1]: 1}:
                        return False
    return True


def _channel_constants(
    g: Group, inputs: Sequence[TensorType], constant: Sequence[bool], taken: dict[int, Layout], block: int
) -> dict[int, Layout]:
    """Per-channel constants, blocked like the channels they go with, so that padding never reads past their end."""
    out = g.outputs[0]
    found: dict[int, Layout] = {}
    for k, t in enumerate(inputs):
        if constant[k] and k not in taken and t.rank <= len(out.shape) and t.rank >= len(out.shape) - 1:
            dim = 1 - (len(out.shape) - t.rank)
            if 0 <= dim < t.rank and t.shape[dim] == out.shape[1] and t.size == out.shape[1]:
                found[k] = blocked(t.shape, dim, block)
    return found
