"""Whether Linux gives this process AMX's registers: a processor's features do not say that."""

from __future__ import annotations

import ctypes
from functools import cache

_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18  # ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA of asm/prctl.h


@cache
def has_matrices() -> bool:
    """Asks for them, on x86-64; a process asks once and for all its threads."""
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0)
