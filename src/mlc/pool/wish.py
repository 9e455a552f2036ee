"""Which pool somebody wants, before anybody talks to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlc.pool.secure import Address

PATIENCE = 60.0  # seconds without a board after which a client gives up; dask itself would wait for ever
MAX_PRIORITY = 1000


@dataclass(frozen=True)
class Wish:
    """How to reach a pool, before anybody does.

    Args:
        address: of the pool.
        certificates: the folder of the user's certificate; nothing in clear.
        priority: of the user's work; what has more comes first, whoever asked before.
        patience: seconds without a fitting board after which to give up.
        builds: whether candidates are built by workers of the pool, too, and not here.
    """

    address: Address
    certificates: Path | None
    priority: int = 0
    patience: float = PATIENCE
    builds: bool = False
