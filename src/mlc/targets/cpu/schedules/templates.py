"""The table of templates of a processor, and what a group gets from it: layouts, and a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from mlc.ir import te
from mlc.ir.graph import FusionKind, Node
from mlc.ir.site import Site
from mlc.ir.types import f16
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.attention import ATTENTION
from mlc.targets.cpu.schedules.conv import CONVOLUTION
from mlc.targets.cpu.schedules.conv_transpose import TRANSPOSED_CONVOLUTION
from mlc.targets.cpu.schedules.gates import GATES
from mlc.targets.cpu.schedules.halves import follows_halves, has_halves
from mlc.targets.cpu.schedules.injective import ELEMENT_WISE
from mlc.targets.cpu.schedules.master import MASTER
from mlc.targets.cpu.schedules.matmul import MATRIX_PRODUCT
from mlc.targets.cpu.schedules.pack_bits import PACKED_BITS
from mlc.targets.cpu.schedules.packed import PACKED
from mlc.targets.cpu.schedules.reduction import REDUCTION
from mlc.targets.cpu.schedules.tiled import TILED
from mlc.targets.cpu.schedules.window import WINDOW
from mlc.targets.cpu.schedules.winograd import WINOGRAD
from mlc.targets.groups.group import Group, group_of, params_of
from mlc.targets.groups.template import Template, template_for

# the first that fits is taken, so what is special comes first
TEMPLATES: tuple[Template[Cpu], ...] = (
    TILED,
    GATES,
    ATTENTION,
    CONVOLUTION,
    WINOGRAD,
    TRANSPOSED_CONVOLUTION,
    MATRIX_PRODUCT,
    PACKED_BITS,
    WINDOW,
    MASTER,
    REDUCTION,
    ELEMENT_WISE,
)

_GROUP = "mlc.templates"


@cache
def named_templates() -> Mapping[str, Template[Cpu]]:
    """The templates that may be asked for: the master template, and those that are installed (``mlc.templates``)."""
    return {"master": PACKED, **{e.name: e.load() for e in entry_points(group=_GROUP)}}


def choose_layouts(node: Node, site: Site, target: Cpu, knobs: Knobs) -> LayoutChoice:
    """Layouts that a group prefers.

    Args:
        node: the group.
        site: where it stands.
        target: the processor.
        knobs: what the group's template asks.
    Raises:
        ScheduleError: the configuration is refused.
    """
    nothing_to_inherit = node.op.kind is FusionKind.INJECTIVE and all(t.layout is None for t in site.inputs)
    if node.op.routine is not None or nothing_to_inherit:
        return LayoutChoice(tuple(None for _ in node.outputs))
    g = group_of(node, knobs)
    machine = target.in_half_vectors() if follows_halves(g, site, target) else _filled(g, target)
    return template_for(g, TEMPLATES, machine, named_templates).layouts(g, site, machine)


def schedule_group(node: Node, target: Cpu, knobs: Knobs) -> tuple[Schedule, list[te.Tensor]]:
    """The schedule of a group, and the tensors of its parameters in physical shapes.

    Args:
        node: the group, with layouts.
        target: the processor.
        knobs: what the group's template asks.

    Raises:
        ScheduleError: the configuration is refused.
    """
    g = group_of(node, knobs)
    machine = _machine(g, target)
    s = template_for(g, TEMPLATES, machine, named_templates).schedule(g, machine)
    return s, params_of(g, s)


def _machine(g: Group, target: Cpu) -> Cpu:
    """The processor as a group with layouts knows it: with half vectors where its result lies in blocks of these."""
    return target.in_half_vectors() if has_halves(g, target) else _filled(g, target)


def _filled(g: Group, target: Cpu) -> Cpu:
    """The processor as a group knows it: what computes in f16 fills its vectors with them, where sums may be f16."""
    made = [t.dtype for op in ([g.anchor] if g.anchor is not None else g.reductions) for t in op.outputs]
    if not target.half_sums or f16 not in (*made, g.outputs[0].dtype):
        return target
    return target.in_halves(max((*made, f16), key=lambda dtype: dtype.itemsize))
