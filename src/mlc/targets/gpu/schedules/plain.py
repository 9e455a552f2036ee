"""Templates of all devices, over row-major tensors; and over others as memory has them."""

from __future__ import annotations

from mlc.lower.schedule import Schedule
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.attention import ATTENTION
from mlc.targets.gpu.schedules.gates import GATES
from mlc.targets.gpu.schedules.product import PRODUCT
from mlc.targets.gpu.schedules.reduction import REDUCTION
from mlc.targets.gpu.schedules.rows import ROWS
from mlc.targets.gpu.schedules.spread import ELEMENT_WISE
from mlc.targets.gpu.schedules.turn import TURN
from mlc.targets.gpu.schedules.window import WINDOW
from mlc.targets.gpu.schedules.winograd import WINOGRAD
from mlc.targets.groups.group import Group
from mlc.targets.groups.roles import Convolution, PhasedConvolution
from mlc.targets.groups.template import Template, template_for

# the first that fits is taken, so what is special comes first
TEMPLATES: tuple[Template[Gpu], ...] = (
    ATTENTION,
    WINOGRAD,
    PRODUCT,
    GATES,
    WINDOW,
    ROWS,
    REDUCTION,
    TURN,
    ELEMENT_WISE,
)


def schedule_plain(g: Group, target: Gpu) -> Schedule:
    """The schedule of a group by the first of these templates that fits it.

    Raises:
        ScheduleError: the configuration is refused.
    """
    # as products, convolutions are laid out anew anyway
    as_it_is = isinstance(g.role, (Convolution, PhasedConvolution)) and PRODUCT.fits(g, target)
    physical = g if as_it_is or not g.layouts else g.apply({})
    return template_for(physical, TEMPLATES, target).schedule(physical, target)
