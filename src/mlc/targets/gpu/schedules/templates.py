"""The table of templates, and what a group gets from it."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.graph import Node
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.product import PRODUCT
from mlc.targets.gpu.schedules.reduction import REDUCTION
from mlc.targets.gpu.schedules.rows import ROWS
from mlc.targets.gpu.schedules.spread import ELEMENT_WISE
from mlc.targets.gpu.schedules.turn import TURN
from mlc.targets.gpu.schedules.window import WINDOW
from mlc.targets.gpu.schedules.winograd import WINOGRAD
from mlc.targets.groups.group import group_of, params_of
from mlc.targets.groups.template import Template, template_for

# the first that fits is taken, so what is special comes first
TEMPLATES: tuple[Template[Gpu], ...] = (WINOGRAD, PRODUCT, WINDOW, ROWS, REDUCTION, TURN, ELEMENT_WISE)


def schedule_group(node: Node, target: Gpu, knobs: Knobs) -> tuple[Schedule, list[te.Tensor]]:
    """The schedule of a group, and the tensors of its parameters.

    Args:
        node: the group, row-major.
        target: the device.
        knobs: what the group's template asks.
    Raises:
        ScheduleError: the configuration is refused.
    """
    g = group_of(node, knobs)
    s = template_for(g, TEMPLATES, target).schedule(g, target)
    return s, params_of(g, s)
