"""Which cores of this machine times are taken on, and which build meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mlc.errors import UsageError

FOLDER = Path("/sys/devices/system/cpu")


def timed_cores(wanted: Sequence[int], threads: int, available: Sequence[int]) -> tuple[int, ...]:
    """Cores to take times on: those that are wanted, or as many of the last ones as there are threads.

    Raises:
        UsageError: there are fewer than ``threads``, or some are not available.
    """
    if threads > len(available):
        raise UsageError(f"{threads} threads cannot be timed on {len(available)} cores", hint="use fewer threads")
    timed = tuple(wanted) or tuple(available[-threads:])
    if not set(timed) <= set(available):
        raise UsageError(f"cores {list(timed)} are not all available", hint=f"available: {list(available)}")
    if len(set(timed)) < threads:
        raise UsageError(
            f"{threads} threads cannot be timed on {len(set(timed))} cores", hint="give as many cores as threads"
        )
    return timed


def cores_for(available: Sequence[int], timed: Sequence[int], siblings: Callable[[int], set[int]]) -> tuple[int, ...]:
    """Cores on which may be built while others take times: neither these themselves nor their other halves."""
    taken = set(timed).union(*(siblings(c) for c in timed))
    return tuple(c for c in available if c not in taken)


def siblings(core: int) -> set[int]:
    """The hardware threads that share a core with this one, itself included."""
    try:
        text = (FOLDER / f"cpu{core}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
        found: set[int] = set()
        for part in text.split(","):
            low, _, high = part.partition("-")
            found |= set(range(int(low), int(high or low) + 1))
        return found
    except (OSError, ValueError):
        return {core}
