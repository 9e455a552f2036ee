"""The border to code of others: cost models, explorers and templates that come from libraries and entry points.

Such code may raise anything. What it raises costs the configurations that it was asked about, or a batch its guidance,
and never the run: it becomes a :class:`ForeignError` here, and nowhere else in this room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ForeignError(Exception):
    """Code of others has failed; the text is the class and the first line of what it raised."""


def ask(work: Callable[[], T], *, let: tuple[type[Exception], ...] = ()) -> T:
    """Runs code of others.

    Args:
        work: the code.
        let: errors that are answers, and pass.
    Raises:
        ForeignError: it raised anything else.
    """
    try:
        return work()
    except let:
        raise
    except Exception as error:  # the border: see above
        raise ForeignError(f"{type(error).__name__}: {error}".split("\n", 1)[0][:200]) from error
