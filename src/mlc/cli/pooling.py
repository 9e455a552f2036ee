"""Options that say which pool of devices is meant."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlc.cli import values
from mlc.errors import UsageError

if TYPE_CHECKING:
    from mlc.pool.wish import Wish

F = TypeVar("F", bound=Callable[..., Any])

_MAX_PRIORITY = 1000


def certificates_options(function: F) -> F:
    """Decorator: ``--certificates`` and ``--plain``."""
    for option in (
        click.option(
            "--plain", is_flag=True, help="Talk in clear, without certificates: only to tcp:// of this machine."
        ),
        click.option("--certificates", metavar="FOLDER", help="Your folder, as mlc devices ca has made it."),
    ):
        function = option(function)
    return function


def patience_option(function: F) -> F:
    """Decorator: ``--pool-patience``."""
    return click.option(
        "--pool-patience", type=values.Real(), metavar="S",
        help="Give up after so long without a fitting board.  [default: 60; 5 where only others are there]",
    )(function)  # fmt: skip


def pool_options(function: F) -> F:
    """Decorator: ``--pool`` and what belongs to it, given to the command as ``wish``, or ``None``."""

    @wraps(function)
    def gathered(
        *args: Any,
        pool: str | None,
        certificates: str | None,
        plain: bool,
        pool_priority: int | None,
        pool_patience: float | None,
        **kwargs: Any,
    ) -> Any:
        if pool is None and (certificates is not None or plain or pool_priority is not None):
            raise UsageError("--certificates, --plain and --pool-priority are for a pool", hint="name it with --pool")
        wish = None if pool is None else wish_of(pool, certificates, plain, pool_priority or 0, pool_patience)
        return function(*args, wish=wish, **kwargs)

    found: Any = gathered
    for option in reversed(
        (
            click.option(
                "--pool", metavar="tls://HOST:PORT", help="Use the boards of a pool in place of this machine."
            ),
            *_POOL,
        )
    ):
        found = option(found)
    return found


_POOL: tuple[Callable[[Any], Any], ...] = (
    certificates_options,
    click.option(
        "--pool-priority", type=values.Whole(-_MAX_PRIORITY, _MAX_PRIORITY), metavar="N",
        help="Before or after the work of others.  [default: 0]",
    ),
    patience_option,
)  # fmt: skip


def wish_of(pool: str, certificates: str | None, plain: bool, priority: int = 0, patience: float | None = None) -> Wish:
    """What the options say.

    Raises:
        UsageError: they contradict each other, or the address is none.
    """
    from mlc.pool.secure import Address
    from mlc.pool.wish import Wish

    address = Address.parse(pool, plain=plain)
    return Wish(address, folder_of(certificates), priority, patience)


def folder_of(certificates: str | None) -> Path | None:
    """The folder that somebody named."""
    return None if certificates is None else Path(os.path.expanduser(certificates))
