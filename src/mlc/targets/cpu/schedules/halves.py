"""Half vectors, on processors that multiply a vector in two halves: channels that leave half of a vector empty.

Convolutions make blocks of half a vector where these leave fewer lanes empty and that pays. A search over layouts has
found that (ALT, figure 9, on a Zen 4: 24 channels 1.29 times as fast). So do groups of channels that are whole blocks
of halves, and of no whole vectors. What follows them element by element, or slides a window over their channels, is in
half vectors, too, so that no vector is put together of two blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from mlc.ir import te
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.ir.types import f32
from mlc.lower.knobs import TEMPLATE, USUAL
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_work import may_be_blocked
from mlc.targets.cpu.schedules.window import window_of
from mlc.targets.groups.group import Group, size_of
from mlc.targets.groups.roles import Convolution
from mlc.targets.groups.tiling import is_tiled

WORTH_HALVES = 0.94  # part of the cycles of whole vectors that halves may take at most


def halved(g: Group, target: Cpu) -> Cpu | None:
    """The processor as a sum of products in half vectors knows it; nothing where there are none."""
    return target.in_half_vectors() if _may_be_halved(g, target) and all(t.dtype is f32 for t in g.inputs) else None


def worth_halves(g: Group, target: Cpu, cycles: Callable[[Cpu], float]) -> bool:
    """Whether a convolution whose result may lie in blocks of whole vectors as well is faster in blocks of halves.

    Args:
        g: the convolution, logical, of one group of channels.
        target: the processor.
        cycles: that it is expected to take on a processor, in blocks of its vectors.
    """
    half, shape = halved(g, target), g.outputs[0].shape
    if half is None or not 0 < shape[1] % target.lanes <= half.lanes or size_of(shape) == 0:
        return False
    return cycles(half) < WORTH_HALVES * cycles(target)


def has_halves(g: Group, target: Cpu) -> bool:
    """Whether a group with layouts is computed in half vectors: its result is in blocks of them.

    Where all tensors lie alike, whatever the blocks are, neighbours fill whole vectors. Groups of channels that are
    read in rows, but have their results in blocks that are as long as half a vector, are tiles in whole ones.
    """
    out = g.outputs[0]
    layout = g.layouts.get(out)
    if layout is None or not _may_be_halved(g, target) or not _in_halves(out, layout, target):
        return False
    if isinstance(g.role, Convolution):
        return may_be_blocked(g, target.in_half_vectors())
    alike = (t.shape == out.shape and t in g.layouts and g.layouts[t].core == layout.core for t in g.inputs)
    return bool(g.reductions) or not all(alike)


def follows_halves(g: Group, site: Site, target: Cpu) -> bool:
    """Whether a group whose layouts are to be chosen gets blocks of half vectors, since its inputs have such.

    Args:
        g: the group, logical.
        site: where it stands.
        target: the processor.
    """
    if not _may_be_halved(g, target) or (g.reductions and window_of(g) is None):
        return False
    rank = len(g.outputs[0].shape)
    blocks = [(t, ty.layout) for t, ty in zip(g.inputs, site.inputs, strict=True) if ty.rank == rank and ty.layout]
    return bool(blocks) and all(_in_halves(t, layout, target) for t, layout in blocks)


def _may_be_halved(g: Group, target: Cpu) -> bool:
    """Whether half vectors are asked about: not where a configuration names layouts, or a template of its own."""
    out, named = g.outputs[0], g.knobs.config.get(TEMPLATE, USUAL) != USUAL
    return target.halves and out.dtype is f32 and len(out.shape) > 2 and not named and not is_tiled(g.knobs)


def _in_halves(t: te.Tensor, layout: Layout | None, target: Cpu) -> bool:
    return layout is not None and layout.core == blocked(t.shape, 1, target.lanes // 2)
