"""Which pool somebody wants, before anybody talks to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlc.pool.secure import Address

_PATIENCE = 60.0  # seconds without a board after which a client gives up; dask itself would wait for ever
_SETTLING = 5.0  # seconds in which boards of a scheduler that has just begun, or is back, are with it, too
MAX_PRIORITY = 1000


@dataclass(frozen=True)
class Wish:
    """How to reach a pool, before anybody does.

    Args:
        address: of the pool.
        certificates: the folder of the user's certificate; nothing in clear.
        priority: of the user's work; what has more comes first, whoever asked before.
        patience: seconds without a fitting board after which to give up; unless given, a minute, but no longer than it
            takes boards to gather where some are there before work begins, and none of them fits.
        builds: whether candidates are built by workers of the pool, too, and not here.
    """

    address: Address
    certificates: Path | None
    priority: int = 0
    patience: float | None = None
    builds: bool = False

    @property
    def lasting(self) -> float:
        """Seconds for which a pool may be without a fitting board."""
        return _PATIENCE if self.patience is None else self.patience

    @property
    def settling(self) -> float:
        """Seconds for which one may be without it at the beginning, while it has others."""
        return _SETTLING if self.patience is None else self.patience
