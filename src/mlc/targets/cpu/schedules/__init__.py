"""Default schedules: a sensible one for every group, without any tuning."""

from mlc.targets.cpu.schedules.templates import TEMPLATES, choose_layouts, schedule_group

__all__ = ["TEMPLATES", "choose_layouts", "schedule_group"]
