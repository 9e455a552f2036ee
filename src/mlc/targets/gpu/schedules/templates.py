"""The table of templates, and what a group gets from it: layouts, and a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.graph import Node
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.blocks import BLOCKED, TENSOR
from mlc.targets.gpu.schedules.plain import schedule_plain
from mlc.targets.groups.group import group_of, params_of
from mlc.targets.groups.template import Site, Template, template_for


def choose_layouts(node: Node, site: Site, target: Gpu, knobs: Knobs) -> LayoutChoice:
    """Layouts that a group prefers: row-major ones, but for devices that compute with vectors, or by Tensor Cores.

    Args:
        node: the group.
        site: where it stands.
        target: the device.
        knobs: what the group's template asks.
    Raises:
        ScheduleError: the configuration is refused.
    """
    templates = _over_blocks(target)
    if not templates or node.op.express is None:
        return LayoutChoice(tuple(None for _ in node.outputs))
    g = group_of(node, knobs)
    return template_for(g, templates, target).layouts(g, site, target)


def _over_blocks(target: Gpu) -> Sequence[Template[Gpu]]:
    """Templates for blocks of channels, where the device has a use for them."""
    return BLOCKED if target.vectors else TENSOR if target.tensor else ()


def schedule_group(node: Node, target: Gpu, knobs: Knobs) -> tuple[Schedule, list[te.Tensor]]:
    """The schedule of a group, and the tensors of its parameters.

    Args:
        node: the group, with layouts.
        target: the device.
        knobs: what the group's template asks.
    Raises:
        ScheduleError: the configuration is refused.
    """
    g = group_of(node, knobs)
    templates = _over_blocks(target)
    s = template_for(g, templates, target).schedule(g, target) if templates else schedule_plain(g, target)
    return s, params_of(g, s)
