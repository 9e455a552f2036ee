"""Records of many models, of which a compilation wants a few."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from mlc.errors import OutputError, UsageError
from mlc.records.best import Best, Found, best_of, compacted
from mlc.records.files import Log, read_bytes, write_records
from mlc.records.places import kept
from mlc.records.record import Fingerprint, Record
from mlc.rewrite.workload import Document

_WORKLOAD = re.compile(rb'"workload":"([0-9a-f]{16})"')
_LOGGER = logging.getLogger("mlc")


def keep(cache: Path, journal: Path, records: list[Record]) -> Path:
    """Puts the best of a run where compilations look; the file.

    Raises:
        OutputError: it cannot be written.
    """
    path = kept(cache) / journal.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path.parent}: cannot be made: {error.strerror}") from None
    write_records(path, compacted(records))
    return path


class Shelf:
    """Record files of which only what is asked for is decoded.

    A kernel that runs on one thread has other needs than one that shares its work, so records of the one never serve
    the other.

    Args:
        files: to look into; one that cannot be read is told in the log and left out.
        fingerprint: of the processor.
        threads: that will run the kernels.
    """

    def __init__(self, files: Iterable[Path], fingerprint: Fingerprint, threads: int) -> None:
        self._fingerprint, self._threads = fingerprint, threads
        self._lines: dict[str, list[bytes]] = {}
        for file in files:
            try:
                data = read_bytes(file)
            except UsageError as error:
                _LOGGER.warning(error.message)
                continue
            for line in data.split(b"\n"):
                match = _WORKLOAD.search(line)
                if match is not None:
                    self._lines.setdefault(match[1].decode(), []).append(line)

    def find(self, workload: str, document: Document) -> tuple[Found, Record | None]:
        """The best record of a workload; never one of a similar workload."""
        log = Log()
        log.add(b"\n".join(self._lines.get(workload, ())))
        fitting = [r for r in log.records if (r.threads == 1) == (self._threads == 1)]
        best: Best = best_of(fitting, self._fingerprint, self._threads)
        found = best.hits.get(workload)
        return (Found.MISS, None) if found is None else (Found.HIT, found)
