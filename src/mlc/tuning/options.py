"""What a tuning run may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlc.tuning.joint import JOINT


@dataclass(frozen=True)
class TuneOptions:
    """What a run may do.

    Args:
        trials: for all tasks together; those of earlier runs in the same records count. No limit if ``None``.
        trials_per_task: most trials of one task; no limit unless given.
        time_budget: seconds that the search may take, those of earlier runs over the same tasks in the same records
            included; no limit unless given.
        explorer: who proposes configurations.
        explorer_options: keyword arguments of that explorer.
        cost_model: what such an explorer learns with; see :data:`mlc.tuning.models.choice.COST_MODELS`.
        batch: configurations that are proposed together.
        early_stopping: trials of a task without a gain after which it gets no more; no limit unless given.
        seed: of everything random.
        algorithms: whether to measure first by which of its algorithms each operator is fastest.
        template: whose configurations are searched, where it is not the one that fits.
        layouts: levels of tiles of the layouts that are searched together with loops; 0 leaves layouts as they are.
        joint: share of a task's trials in which they are; in the rest the fastest layout stays. None of them: what
            was decided earlier stays.
    """

    trials: int | None = 1000
    trials_per_task: int | None = None
    time_budget: float | None = None
    explorer: str = "guided"
    explorer_options: Mapping[str, Any] = field(default_factory=dict)
    cost_model: str = "rank"
    batch: int = 16
    early_stopping: int | None = None
    seed: int = 0
    algorithms: bool = False
    template: str | None = None
    layouts: int = 0
    joint: float = JOINT
