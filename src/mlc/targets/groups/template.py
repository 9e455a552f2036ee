"""What a template is: one way to compute groups, from its condition to its loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.site import Site
from mlc.lower.knobs import TEMPLATE, USUAL
from mlc.lower.schedule import Schedule
from mlc.targets.base import LayoutChoice
from mlc.targets.groups.group import Group

Machine = TypeVar("Machine")


def input_at(g: Group, t: te.Tensor) -> int | None:
    """Which input of a group a tensor is, if it is one."""
    return g.inputs.index(t) if t in g.inputs else None


def constant_at(g: Group, site: Site, t: te.Tensor) -> int | None:
    """Which input of a group a tensor is, if it is a constant."""
    k = input_at(g, t)
    return k if k is not None and site.constant[k] else None


@dataclass(frozen=True)
class Template(Generic[Machine]):
    """One way to compute groups; which one a group gets is decided by ``fits`` alone, unless its configuration says.

    Args:
        name: for messages.
        fits: whether the template is for a group, from what its expressions do. It is asked before layouts are chosen
            and again when they are, and answers alike.
        layouts: how such a group wants its tensors to lie; asks the knobs that decide it. Like ``schedule``, it raises
            ``ScheduleError`` where the configuration is refused.
        schedule: its loops over whatever layouts it has in the end; asks these knobs again, and all others.
    """

    name: str
    fits: Callable[[Group, Machine], bool]
    layouts: Callable[[Group, Site, Machine], LayoutChoice]
    schedule: Callable[[Group, Machine], Schedule]


def template_for(
    g: Group,
    templates: Sequence[Template[Machine]],
    machine: Machine,
    named: Callable[[], Mapping[str, Template[Machine]]] = dict,
) -> Template[Machine]:
    """The template that a group's configuration names, or else the first that fits it.

    Args:
        g: the group.
        templates: those that fit by themselves.
        machine: what for.
        named: those that a configuration may name.
    Raises:
        ScheduleError: there is none of the name, or it does not fit; or no template fits at all (a bug: the last ones
            fit everything).
    """
    name = g.knobs.config.get(TEMPLATE)
    if name is not None:
        chosen = named().get(str(name))
        g.knobs.require(name == USUAL or chosen is not None, f"there is no template {name}")
        g.knobs.category(TEMPLATE, (name,), default=name)
        if chosen is not None:
            g.knobs.require(chosen.fits(g, machine), f"the template {name} does not fit it")
            return chosen
    for template in templates:
        if template.fits(g, machine):
            return template
    raise ScheduleError(f"no template fits {', '.join(op.name for op in g.computes)}")


def row_major(g: Group, site: Site, machine: object) -> LayoutChoice:
    """Everything as the model has it."""
    return LayoutChoice(tuple(None for _ in g.outputs))
