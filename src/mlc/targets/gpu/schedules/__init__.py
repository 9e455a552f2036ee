"""Schedules of fused groups for machines that run grids of threads."""

from mlc.targets.gpu.schedules.templates import TEMPLATES, schedule_group

__all__ = ["TEMPLATES", "schedule_group"]
