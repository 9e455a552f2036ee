"""The table of templates, and what a group gets from it: layouts, and a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.graph import Node
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.blocks import BLOCKED, FOLLOWING, TENSOR
from mlc.targets.gpu.schedules.tiled import TILED
from mlc.targets.groups.group import group_of, params_of
from mlc.targets.groups.template import Template, template_for
from mlc.targets.groups.tiling import is_tiled


def choose_layouts(node: Node, site: Site, target: Gpu, knobs: Knobs) -> LayoutChoice:
    """Layouts that a group prefers: row-major ones, but for devices that compute with vectors, or by Tensor Cores.

    What a configuration says goes before that, and what follows element by element lies as its operand does.

    Args:
        node: the group.
        site: where it stands.
        target: the device.
        knobs: what the group's template asks.
    Raises:
        ScheduleError: the configuration is refused.
    """
    rows = not (target.vectors or target.tensor or is_tiled(knobs)) and all(t.layout is None for t in site.inputs)
    if rows or node.op.express is None:
        return LayoutChoice(tuple(None for _ in node.outputs))
    g = group_of(node, knobs)
    return template_for(g, templates_of(target), target).layouts(g, site, target)


def templates_of(target: Gpu) -> Sequence[Template[Gpu]]:
    """The templates that lay tensors out: for blocks of channels, where the device has a use for them."""
    return (TILED, *(BLOCKED if target.vectors else TENSOR if target.tensor else (FOLLOWING,)))


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
    s = template_for(g, templates_of(target), target).schedule(g, target)
    return s, params_of(g, s)
