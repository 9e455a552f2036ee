"""Whoever is told how a training run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Watcher:
    """Is told how a run goes on; does nothing."""

    def stepped(self, epoch: int, batch: int, batches: int, loss: float, rate: float) -> None:
        """A step is over; ``rate`` is examples a second of this epoch so far."""

    def finished(self, epoch: int, told: Mapping[str, Any]) -> None:
        """An epoch is over, with losses, accuracies, seconds and examples a second."""
