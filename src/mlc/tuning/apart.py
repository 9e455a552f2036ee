"""Work in a process of its own, which takes along what it has opened: drivers of devices do not survive a fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from mlc.errors import DeviceError, MlcError

Found = TypeVar("Found")


def apart(work: Callable[[], Found], what: str) -> Found:
    """What some work gives, which is sent from the process that did it.

    Args:
        work: may open devices, and may crash.
        what: it is, for messages.
    Raises:
        DeviceError: it fails, or its process ends by itself.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(work, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        error, found = ours.recv()
    except EOFError:
        raise DeviceError(
            f"{what}: the process that did it crashed", hint="the device's driver may be faulty"
        ) from None
    finally:
        child.join()
    if error:
        message, hint = error
        raise DeviceError(message, hint=hint)
    result: Found = found
    return result


def _tell(work: Callable[[], Any], pipe: Connection) -> None:
    """Sends an error's message and hint, or the result."""
    try:
        pipe.send(((), work()))
    except MlcError as error:
        pipe.send(((error.message, error.hint), None))
