"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mlc.errors import OutputError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that takes its place at ``path`` only when the block ends well.

    The bytes go to a hidden file in the same folder, which is synced and then renamed over ``path``. After an error,
    an interrupt, or a full disk, nothing is left and an older ``path`` is untouched. A link is followed, not replaced.

    Args:
        path: where the file shall be; its folder must exist.
    Raises:
        OutputError: the file cannot be made or written; the message has the path and the system's reason.
    """
    final = Path(os.path.realpath(path))
    _refuse_special(path, final)
    # The name is cut so that a long one, which is legal by itself, stays legal.
    aside = final.with_name(f".{final.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        # 0o666 so that the user's umask decides, which tempfile would not let it.
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _failed(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, final)
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        # Writing to a descriptor names no file; an error that names one is about something the block was reading.
        if isinstance(error, OSError) and error.filename in (None, os.fspath(aside)):
            raise _failed(path, error) from error
        raise
    _sync_folder(final.parent)


def _refuse_special(path: str | os.PathLike[str], final: Path) -> None:
    """Refuses folders, and devices, which a rename would replace by a plain file."""
    try:
        mode = final.stat().st_mode
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise _failed(path, error) from error
        return
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise OutputError(f"{os.fspath(path)}: cannot be written: it is {kind}", hint="name a file to be created")


def _failed(path: str | os.PathLike[str], error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"{os.fspath(path)}: cannot be written: {reason}", hint="check the folder and the free space")


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable; not every file system can, and the file is in place anyway."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
