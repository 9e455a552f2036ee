"""Turns on a device that there is one of: two runs of the tuner never measure on it at once.

A file in the system's folder for temporary ones is locked while a run measures. A process that ends, however it ends,
has no locks, so nothing is ever left to be cleaned up.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mlc.errors import DeviceError

_LOGGER = logging.getLogger("mlc")


class Turns:
    """Takes turns on a device with whoever else measures on it.

    Args:
        device: its name; nothing where there is none, and no turns to take.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._held = False
        self._told = False

    @contextlib.contextmanager
    def mine(self) -> Iterator[None]:
        """The device is this run's; waits while it is another one's. Inside of a turn it is no other turn.

        Raises:
            DeviceError: the file that says so cannot be had.
        """
        if not self._device or self._held:
            yield
            return
        path = lock_file(self._device)
        file = _opened(path)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not self._told:
                    self._told = True
                    _LOGGER.warning("another run measures on %s; taking turns with it", self._device)
                fcntl.flock(file, fcntl.LOCK_EX)
            self._held = True
            yield
        finally:
            self._held = False
            os.close(file)


def lock_file(device: str) -> Path:
    """The file that is locked while somebody measures on a device."""
    return Path(tempfile.gettempdir()) / f"mlc-{re.sub(r'[^A-Za-z0-9_.]', '-', device)}.lock"


def _opened(path: Path) -> int:
    """The file, which another user may have made: to lock it, it need not be written."""
    try:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DeviceError(
            f"{path}: cannot be opened, and without it runs would measure at once: {error.strerror}",
            hint="remove the file, or let TMPDIR name another folder",
        ) from None
