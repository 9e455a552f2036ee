"""Whoever is told how a training run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """A version of a step that was tried beside the one in use.

    Args:
        step: in which it was decided on.
        before, after: seconds of a step by either, if they were timed.
        difference: of their results, as a share of the largest element, if that was too much.
        taken: whether it is the one in use now.
        made: kernels that were compiled for it.
        found: its other kernels: those that the function cache held.
    """

    step: int
    before: float | None
    after: float | None
    difference: float | None
    taken: bool
    made: int = 0
    found: int = 0


class Watcher:
    """Is told how a run goes on; does nothing."""

    def stepped(self, epoch: int, batch: int, batches: int, loss: float, rate: float) -> None:
        """A step is over; ``rate`` is examples a second of this epoch so far."""

    def finished(self, epoch: int, told: Mapping[str, Any]) -> None:
        """An epoch is over, with losses, accuracies, seconds and examples a second."""

    def exchanged(self, exchange: Exchange) -> None:
        """Other kernels were tried between two steps."""
