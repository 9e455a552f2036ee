"""Default schedules: a sensible one for every group, without any tuning."""

from mlc.targets.cpu.schedules.templates import GENERAL, TEMPLATES, choose_layouts, schedule_group

__all__ = ["GENERAL", "TEMPLATES", "choose_layouts", "schedule_group"]
