"""The journal of a run: its record file while it is being written.

An entry is written by one ``write`` to a file opened for appending, so it is there as a whole or torn at the end of the
file; the checksum tells which. Nobody else may write to a journal while it is open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from mlc.errors import OutputError, UsageError
from mlc.records.files import MAX_FILE, Log, require_records
from mlc.records.record import Entry, Record, RecordError, decode, encode

SYNC_SECONDS, SYNC_RECORDS = 1.0, 16


class Journal:
    """The record file of a run: read when it is opened, then written by nobody else. A context manager.

    A torn last line, which a killed run may leave, is moved to ``NAME.corrupt``.

    Args:
        path: the file; made if there is none.

    Attributes:
        log: what was there already.
    Raises:
        UsageError: another process writes to it, which is named; or it is a file of another kind.
        OutputError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.log = Log()
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._failed(error) from None
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OutputError(f"{self.path}: is not a regular file", hint="name a file to be created")
            self._lock()
            self._size = self._repair()
        except OSError as error:
            os.close(self._file)
            raise self._failed(error) from None
        except BaseException:
            os.close(self._file)
            raise
        self._open = True
        self._unsynced = 0
        self._synced = time.monotonic()
        self._best: dict[str, float] = {}
        for record in self.log.records:
            self._improves(record)

    def append(self, entry: Entry) -> None:
        """Writes an entry. What was written before is kept whatever happens.

        Raises:
            OutputError: the disk is full, or the like; nothing more can be written.
        """
        if not self._open:
            raise OutputError(f"{self.path}: is closed")
        line = encode(entry)
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += written
            self._unsynced += 1
            best = isinstance(entry, Record) and self._improves(entry)
            late = time.monotonic() - self._synced >= SYNC_SECONDS
            if best or late or self._unsynced >= SYNC_RECORDS:
                self.sync()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)  # half a line helps nobody
            self.close()
            raise self._failed(error) from None

    def sync(self) -> None:
        """Makes sure that everything is on the disk."""
        os.fsync(self._file)
        self._unsynced = 0
        self._synced = time.monotonic()

    def close(self) -> None:
        """Syncs and lets go of the file; twice is fine."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _improves(self, record: Record) -> bool:
        seconds = record.result.seconds
        if seconds is None or seconds >= self._best.get(record.workload, math.inf):
            return False
        self._best[record.workload] = seconds
        return True

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{self.path}: is being written by {_holder(self._file)}",
                hint="wait for it, or write to another file",
            ) from None

    def _repair(self) -> int:
        """Reads what is there and cuts a torn end off; the size."""
        size = os.fstat(self._file).st_size
        if size > MAX_FILE:
            raise OutputError(f"{self.path}: more than {MAX_FILE >> 20} MiB are too much for a record file")
        data = b""
        while len(data) < size and (more := os.pread(self._file, size - len(data), len(data))):
            data += more
        whole, _, torn = data.rpartition(b"\n")
        # appending to a file of another kind, or cutting its end off, would damage it
        require_records(self.path, data, "name another file, or one to be created")
        end = len(data) - len(torn)
        if torn:
            try:
                decode(torn)
            except RecordError:
                _keep_aside(self.path, torn)
                os.ftruncate(self._file, end)
                self.log.bad += 1
                self.log.add(whole)
                return end
            os.write(self._file, b"\n")  # all but its end is there
            end = len(data) + 1
        self.log.add(data)
        return end

    def _failed(self, error: OSError) -> OutputError:
        reason = error.strerror or str(error)
        return OutputError(f"{self.path}: cannot be written: {reason}", hint="check the folder and the free space")


def set_aside(path: Path) -> None:
    """Renames a record file to ``NAME.old``, or ``NAME.old2`` and so on where there is one already.

    Raises:
        UsageError: another process writes to it, or it holds no records.
        OutputError: it cannot be renamed.
    """
    with Journal(path):
        aside = path.with_name(path.name + ".old")
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f"{path.name}.old{number}")
        try:
            path.rename(aside)
        except OSError as error:
            raise OutputError(f"{path}: cannot be renamed to {aside.name}: {error.strerror}") from None


def _keep_aside(path: Path, torn: bytes) -> None:
    with open(path.with_name(path.name + ".corrupt"), "ab") as file:
        file.write(torn + b"\n")


def _holder(descriptor: int) -> str:
    """Who has locked a file, as the kernel tells it."""
    status = os.fstat(descriptor)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as file:
        for words in map(str.split, file):
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted:
                return f"the process {int(words[4])}"
    return "another process"
