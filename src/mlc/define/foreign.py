"""The border to code of users: operators and networks. It may raise anything, which becomes one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mlc.errors import MlcError, UsageError

T = TypeVar("T")


def ask(work: Callable[[], T], where: Callable[[BaseException], str], hint: str = "") -> T:
    """Runs code of users.

    Args:
        work: the code.
        where: it is, given what it raised, for the message.
        hint: where the error has none of its own.
    Raises:
        UsageError: it raised something.
    """
    try:
        return work()
    except MlcError as error:
        raise UsageError(f"{where(error)}: {error.message}", hint=error.hint or hint) from error
    except Exception as error:  # the border: see above
        text = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        raise UsageError(f"{where(error)}: {text}", hint=hint) from error
