"""Files of records, readable after any accident."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mlc.errors import UsageError
from mlc.records.places import SUFFIX
from mlc.records.record import START, Checkpoint, Fingerprint, Record, RecordError, decode, encode
from mlc.runtime.atomic import atomic_write

MAX_FILE = 1 << 30


@dataclass
class Log:
    """What some files hold.

    Args:
        records: trials in the order of the files, each once.
        checkpoint: the last one.
        bad: lines that are damaged.
        others: lines of another version.
        repeated: trials that were there already.
    """

    records: list[Record] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    bad: int = 0
    others: int = 0
    repeated: int = 0

    def add(self, data: bytes) -> None:
        """Reads the contents of a file; the last line may lack its end."""
        seen = {r.identity for r in self.records}
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                entry = decode(line)
            except RecordError:
                self.bad += 1
                continue
            if entry is None:
                self.others += 1
            elif isinstance(entry, Checkpoint):
                self.checkpoint = entry
            elif entry.identity in seen:
                self.repeated += 1
            else:
                seen.add(entry.identity)
                self.records.append(entry)

    @property
    def next_trial(self) -> int:
        """A number that no trial has."""
        last = max((r.trial for r in self.records), default=-1)
        return max(last + 1, self.checkpoint.trials if self.checkpoint is not None else 0)

    @property
    def seconds(self) -> float:
        """Time used up: that of the last checkpoint, and of the trials after it."""
        point = self.checkpoint
        if point is None:
            return sum(r.result.build_seconds + r.result.run_seconds for r in self.records)
        later = [r for r in self.records if r.trial >= point.trials]
        return point.seconds + sum(r.result.build_seconds + r.result.run_seconds for r in later)

    def complaints(self, fingerprint: Fingerprint) -> list[str]:
        """What of the files is of no use on a processor, in words; nothing where all of it is."""
        found = []
        for count, what in ((self.bad, "damaged"), (self.others, "written by another version")):
            if count:
                found.append(f"{count} {'line' if count == 1 else 'lines'} of records left out: {what}")
        foreign = [r.fingerprint for r in self.records if not r.fingerprint.is_family_of(fingerprint)]
        if foreign:
            names = ", ".join(sorted({f"{f.cpu} with {f.lanes} lanes" for f in foreign}))
            found.append(
                f"{len(foreign)} of {len(self.records)} records are of other processors: {names}, "
                f"not {fingerprint.cpu} with {fingerprint.lanes}"
            )
        if not self.records:
            found.append("there are no records in what was named")
        return found

    def measured(self, workload: str, fingerprint: Fingerprint, threads: int, flushed: bool = False) -> list[Record]:
        """The trials of a task on a processor, in one way of timing."""
        wanted = workload, fingerprint, threads, flushed
        return [r for r in self.records if r.setting == wanted]


def read_bytes(file: Path) -> bytes:
    """The contents of a record file.

    Raises:
        UsageError: it cannot be read, or is too large.
    """
    try:
        if file.stat().st_size > MAX_FILE:
            raise UsageError(f"{file}: more than {MAX_FILE >> 20} MiB are too much for a record file")
        return file.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{file}: cannot be read: {reason}", hint="name a file of records, or a folder") from None


def read_records(paths: Iterable[str | os.PathLike[str]]) -> Log:
    """Reads record files, and all ``*.jsonl`` of folders, in order of their names.

    Raises:
        UsageError: a path does not exist, cannot be read, or is no file of records.
    """
    log = Log()
    for path in paths:
        given = Path(path)
        files = sorted(given.glob(f"*{SUFFIX}")) if given.is_dir() else [given]
        for file in files:
            data = read_bytes(file)
            require_records(file, data)
            log.add(data)
    return log


def require_records(path: Path, data: bytes, hint: str = "name a file that mlc tune wrote") -> None:
    """Refuses a file of another kind; an empty one passes, and so does one that begins as records do.

    Raises:
        UsageError: no line of it is a record.
    """
    if not data.strip() or START.startswith(data[: len(START)]):
        return
    log = Log()
    log.add(data)
    if not (log.records or log.checkpoint or log.others):
        raise UsageError(f"{path}: holds no records", hint=hint)


def write_records(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Writes a file of its own, whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    with atomic_write(path) as file:
        for record in records:
            file.write(encode(record))
