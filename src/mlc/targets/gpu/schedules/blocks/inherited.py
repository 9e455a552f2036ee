"""Element-wise groups behind what lies in blocks, of channels or of a searched layout: their results lie so, too; and
all that has no schedule over blocks, which sees what lies in them as arrays of more dimensions."""

from __future__ import annotations

from mlc.ir.site import Site
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.blocks.common import block_of
from mlc.targets.gpu.schedules.plain import schedule_plain
from mlc.targets.gpu.schedules.spread import schedule_injective
from mlc.targets.groups.group import Group, inner_layouts
from mlc.targets.groups.layouts import followed_layout, in_layout, inherited_layout
from mlc.targets.groups.template import Template, row_major


def _schedule(g: Group, target: Gpu) -> Schedule:
    if g.reductions:
        return schedule_plain(g, target)
    if all(t not in g.layouts for t in g.outputs):
        return schedule_plain(g, target)
    return schedule_injective(g.apply(inner_layouts(g)), target)


def _layouts(g: Group, site: Site, target: Gpu) -> LayoutChoice:
    """What an operand has (ALT §4.2)."""
    if g.reductions or len(g.outputs) != 1:
        return row_major(g, site, target)
    blocks = [b for t in site.inputs if (b := block_of(t.layout)) is not None]
    if not blocks or len(g.outputs[0].shape) < 3:
        return LayoutChoice((followed_layout(g, site.inputs),))
    choice = in_layout(g, site, inherited_layout(g, site.inputs, blocks[0]), blocks[0])
    return LayoutChoice(choice.outputs, choice.packed)  # a border is a condition here


def _fits(g: Group, target: Gpu) -> bool:
    return True


FOLLOWING: Template[Gpu] = Template("elements in blocks", _fits, _layouts, _schedule)
