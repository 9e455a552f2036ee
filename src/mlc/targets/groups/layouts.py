"""What of a group's layouts follows from its expressions alone: margins, and layouts taken over from operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import as_index
from mlc.ir.layout import Layout, Pad, Reorder, Split, blocked
from mlc.ir.site import Site
from mlc.ir.types import TensorType
from mlc.lower.relayout import padded_load
from mlc.targets.base import LayoutChoice, Margins
from mlc.targets.groups.group import Group

MIN_BLOCKED = 8  # channels from which blocks of them pay
PIECE = 4  # channels of bytes that are moved at once


def in_layout(
    g: Group, site: Site, layout: Layout | None, block: int, packed: Mapping[int, Layout] | None = None
) -> LayoutChoice:
    """The choice of a layout for the one result, with all that goes with it.

    Args:
        g: the group.
        site: where it stands.
        layout: of the result, blocked by channels; ``None`` for row-major.
        block: channels of a block.
        packed: layouts of constants that the template has found, by position.
    """
    constants = dict(packed or {})
    if layout is None:
        return LayoutChoice((None,), constants)
    if _by_channels(layout):
        constants |= channel_constants(g, site, constants, block)
    return LayoutChoice((layout,), constants, margins_of(g, site.constant))


def in_blocks(g: Group, site: Site, block: int, packed: Mapping[int, Layout] | None = None) -> LayoutChoice:
    """The choice of blocks of channels."""
    return in_layout(g, site, blocked(g.outputs[0].shape, 1, block), block, packed)


def margins_of(g: Group, constant: Sequence[bool]) -> dict[int, Margins]:
    """The zeros around inputs that windows slide over."""
    found: dict[int, Margins] = {}
    for op in g.computes:
        if len(op.bodies) != 1 or len(op.inputs) != 1 or op.inputs[0] not in g.inputs:
            continue
        (source,), ld = op.inputs, padded_load(op.bodies[0])
        if ld is None:
            continue
        reach = [ix.bounds() for ix in ld.indices]
        k = g.inputs.index(source)
        if not constant[k] and all(ix.terms == {a: 1} for ix, a in zip(ld.indices, op.axes, strict=True) if a.hi > 0):
            found[k] = tuple((max(0, -lo), max(0, hi - n + 1)) for (lo, hi), n in zip(reach, source.shape, strict=True))
    return found


def inherited_layout(g: Group, inputs: Sequence[TensorType], block: int) -> Layout | None:
    """The layout that propagates to the result of a group without sums (ALT §4.2), if any does.

    The first operand wins that has a layout, the shape of the result, and is read element by element on the way to it;
    the others are converted as they are read. Blocks of channels are kept where channels are the output's own or move
    in whole blocks, too. What expands data is never propagated: who reads it converts it.
    """
    out = g.outputs[0]
    if (found := followed_layout(g, inputs)) is not None:
        return found
    if len(out.shape) < 3:  # what has no space has no blocks of its own
        return None
    same_rank = [t for t in inputs if t.rank == len(out.shape)]
    if any(t.layout is not None for t in same_rank):
        if keeps_channels(g, inputs) and all(t.shape[1] == out.shape[1] for t in same_rank if t.layout is not None):
            return blocked(out.shape, 1, block)
        # a constant of its own for each channel is blocked like what it goes with
        whole = all(
            t.layout is not None and _may_join(out, t.shape[1], block) for t in same_rank if t.size != out.shape[1]
        )
        if whole and moves_blocks(g, block):
            return blocked(out.shape, 1, block)
    return None


def followed_layout(g: Group, inputs: Sequence[TensorType]) -> Layout | None:
    """The layout of an operand that the result of a group without sums takes over as it is, if there is such."""
    out = g.outputs[0]
    for t, ty in zip(g.inputs, inputs, strict=True):
        if ty.layout is None or ty.shape != out.shape or ty.layout.core.expands:
            continue
        if _element_by_element(g, t) or (_by_channels(ty.layout.core) and keeps_channels(g, inputs)):
            return ty.layout.core
    return None


def _by_channels(layout: Layout) -> bool:
    """Whether nothing but channels is in blocks."""
    return all(
        type(p) is Reorder or (type(p) in (Pad, Split) and getattr(p, "dim", None) == 1) for p in layout.core.primitives
    )


def _element_by_element(g: Group, t: te.Tensor) -> bool:
    """Whether all that depends on a tensor is computed from its element of the same place."""
    follows = {t}
    for op in g.computes:
        read = [ld for body in op.bodies for ld in loads(body) if ld.source in follows]
        if any(list(ld.indices) != [as_index(a) for a in op.axes] for ld in read):
            return False
        if read:
            follows.update(op.outputs)
    return g.outputs[0] in follows


def moves_blocks(g: Group, block: int) -> bool:
    """Whether the output is put together of operands whose channels are all there, in whole blocks (a concat).

    What is done with the whole behind it is done at the output's own channel.
    """
    joins = [op for op in g.computes if _joins_blocks(op, block)]
    return len(joins) == 1 and all(op is joins[0] or _at_own_channel(op) for op in g.computes)


def _joins_blocks(op: te.Compute, block: int) -> bool:
    """Whether a stage is a concat of operands of whole blocks along the channels."""
    if op.combiner is not None or len(op.shape) < 2 or len(op.bodies) != 1:
        return False
    own = [as_index(a) for a in op.axes]
    found = loads(op.bodies[0])
    for ld in found:
        channel = ld.indices[1] - own[1] if len(ld.indices) == len(own) else None
        if channel is None or not channel.is_const or not _may_join(op.outputs[0], channel.const, block):
            return False
        if any(ix != a for d, (ix, a) in enumerate(zip(ld.indices, own, strict=True)) if d != 1):
            return False
    sources = {ld.source: ld.source.shape[1] for ld in found}
    return len(found) > 1 and sum(sources.values()) == op.shape[1]


def _may_join(t: te.Tensor, channels: int, block: int) -> bool:
    """Whether blocks are put together where so many channels end: between blocks, or within blocks of bytes.

    A vector of bytes is put together of two pieces; all that lies around it in memory would have to be turned around
    for a row-major result, byte by byte.
    """
    return channels % (block if t.dtype.itemsize > 1 else PIECE) == 0


def _at_own_channel(op: te.Compute) -> bool:
    """Whether a stage reads every tensor that has channels at its own, at every place."""
    if op.combiner is not None or len(op.shape) < 2 or len(op.bodies) != 1:
        return False
    for ld in loads(op.bodies[0]):
        at = 1 - (len(op.axes) - len(ld.source.shape))
        if at > 1 or (at >= 0 and ld.source.shape[at] > 1 and ld.indices[at] != as_index(op.axes[1])):
            return False
    return True


def keeps_channels(g: Group, inputs: Sequence[TensorType]) -> bool:
    """Whether every blocked operand is read at the output's own channel, and what has channels between them, too.

    Means and the like, which have no space, are there before the output is; what is one for all channels has no place
    among them.
    """
    layouts = {t: ty.layout for t, ty in zip(g.inputs, inputs, strict=True) if ty.layout is not None}
    good = {t for t in g.inputs if t in layouts}
    for op in g.computes:
        for body in op.bodies:
            for ld in loads(body):
                several = len(ld.source.shape) < 2 or ld.source.shape[1] > 1
                between = several and ld.source.op is not None
                between = between and (len(ld.source.shape) > 2 or len(g.outputs[0].shape) <= 2)
                if ld.source in good or between:
                    if len(ld.indices) < 2 or len(op.axes) < 2:
                        return False
                    terms = ld.indices[1]
                    if terms.const or terms.terms != {op.axes[1]: 1}:
                        return False
    return True


def channel_constants(g: Group, site: Site, taken: Mapping[int, Layout], block: int) -> dict[int, Layout]:
    """Per-channel constants, blocked like the channels they go with, so that padding never reads past their end."""
    out = g.outputs[0]
    found: dict[int, Layout] = {}
    for k, t in enumerate(site.inputs):
        if site.constant[k] and k not in taken and t.rank <= len(out.shape) and t.rank >= len(out.shape) - 1:
            dim = 1 - (len(out.shape) - t.rank)
            if 0 <= dim < t.rank and t.shape[dim] == out.shape[1] and t.size == out.shape[1]:
                found[k] = blocked(t.shape, dim, block)
    return found
