"""Opening files that may be hostile: nothing but regular files, nothing that blocks, nothing beyond a size."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mlc.errors import UsageError
from mlc.frontend.sniff import HEAD_BYTES


def open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file for reading; symbolic links on the way are the caller's own and are followed.

    Returns:
        file descriptor and size in bytes.
    Raises:
        UsageError: the file is absent, unreadable, or no regular file (folder, FIFO, device).
    """
    name = os.fspath(path)
    try:
        # O_NONBLOCK: opening a FIFO without a writer must not wait for one
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name}: cannot be opened: {reason}", hint="check the path") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UsageError(f"{name}: is {kind_of(status.st_mode)}, not a file", hint="name the model's file")
    return descriptor, status.st_size


def kind_of(mode: int) -> str:
    """What a file of this mode is, in words."""
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISREG, "a regular file"),
    )
    return next((what for test, what in kinds if test(mode)), "a device")


def read_exactly(descriptor: int, offset: int, length: int) -> bytes:
    """``length`` bytes at ``offset``, fewer only where the file ends before."""
    parts: list[bytes] = []
    while length > 0:
        part = os.pread(descriptor, min(length, 1 << 30), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_head(path: Path) -> bytes:
    """The first bytes of a file, for guessing its format.

    Raises:
        UsageError: see :func:`open_regular`.
    """
    descriptor, _ = open_regular(path)
    try:
        return read_exactly(descriptor, 0, HEAD_BYTES)
    finally:
        os.close(descriptor)
