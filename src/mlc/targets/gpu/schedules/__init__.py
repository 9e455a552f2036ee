"""Schedules of fused groups for machines that run grids of threads."""

from mlc.targets.gpu.schedules.plain import TEMPLATES
from mlc.targets.gpu.schedules.templates import choose_layouts, schedule_group

__all__ = ["TEMPLATES", "choose_layouts", "schedule_group"]
