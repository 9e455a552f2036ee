"""The joint space of layouts and loops: a layout space a task, and a loop space for each of its layouts (ALT §5).

Configurations of both name the knobs of the layout and those of the loops; one that names no layout has the layouts
that the target's own templates want, and its loops are those of the task's own space.
"""

from __future__ import annotations

from mlc.errors import LowerError, ScheduleError
from mlc.lower.knobs import Categorical, Config, Knobs, Space
from mlc.rewrite.group import configured
from mlc.targets.base import LEVELS, Target
from mlc.tuning.task import Task, candidate


def is_layout_knob(name: str) -> bool:
    """Whether a knob is one of the layout space."""
    return name == LEVELS or name.startswith(f"{LEVELS}.")


def layout_space(task: Task, target: Target, levels: int = 1) -> Space | None:
    """The layouts that a task may have; nothing where its operator is not complex or the target follows none.

    Args:
        task: whose layouts.
        target: that has to follow them.
        levels: of tiles.
    """
    if task.constants is not None:
        return None
    config: Config = {LEVELS: levels}
    knobs = Knobs(config)
    target.layouts(configured(task.node, config), task.types, task.constant, task.row_major, knobs)
    if LEVELS not in knobs.asked:
        return None
    own = [Categorical(LEVELS, (levels,)) if name == LEVELS else k for name, k in knobs.asked.items()]
    return Space(tuple(own), {**knobs.defaults, LEVELS: levels})


def loop_space(task: Task, target: Target, layouts: Config) -> Space | None:
    """The loops that a task may have under one of its layouts, rebuilt for it; nothing where none is possible.

    Args:
        task: whose loops.
        target: whose schedules.
        layouts: a configuration of the layout space. Its knobs are in the space, too, with one value each.
    """
    knobs = Knobs(layouts)
    try:
        target.schedule(candidate(task, target, layouts), knobs)
    except (ScheduleError, LowerError):
        return None
    fixed = [Categorical(name, (value,)) for name, value in layouts.items()]
    loops = [k for name, k in knobs.asked.items() if not is_layout_knob(name)]
    return Space((*fixed, *loops), {**knobs.defaults, **layouts})
