"""What the explorers of one task know together, where it has several spaces: its layouts', and loops' under each."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.tuning.explorers.ppo import Agents
from mlc.tuning.explorers.surrogate import Lessons


@dataclass
class Memory:
    """Empty at first; whoever needs something of it and finds it missing puts it there.

    Args:
        lessons: the cost model of the loops, under whatever layout.
        agents: actors, and their critic.
        first: speed of the first configuration that was measured and did not fail.
    """

    lessons: Lessons | None = None
    agents: Agents | None = None
    first: float | None = None

    def leave(self) -> None:
        """Of the loops the cost model knows those of the first space alone from now on."""
        if self.lessons is not None:
            self.lessons.leave()
