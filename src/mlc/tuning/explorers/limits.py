"""What numbers the options of explorers may be, which users name on the command line."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from mlc.errors import UsageError

MOST = 1_000_000  # of anything that is counted


def whole(least: int, **given: float | None) -> None:
    """Complains of options that are no whole numbers of at least so much; ``None`` stands for one that is not given.

    Raises:
        UsageError: one is not.
    """
    _require(
        f"a whole number from {least} to {MOST}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= MOST,
        given,
    )


def share(**given: float) -> None:
    """Complains of options that do not lie between 0 and 1, both of which are possible.

    Raises:
        UsageError: one does not.
    """
    _require("a number from 0 to 1", lambda v: 0 <= v <= 1, given)


def positive(**given: float) -> None:
    """Complains of options that are not above 0.

    Raises:
        UsageError: one is not.
    """
    _require("a number above 0", lambda v: 0 < v < inf, given)


def at_least(least: float, **given: float) -> None:
    """Complains of options that are less.

    Raises:
        UsageError: one is.
    """
    _require(f"a number of at least {least:g}", lambda v: least <= v < inf, given)


def _require(what: str, holds: Callable[[float], bool], given: dict[str, float] | dict[str, float | None]) -> None:
    for name, value in given.items():
        if value is not None and not holds(value):
            raise UsageError(f"option {name} is {value}; it must be {what}")
