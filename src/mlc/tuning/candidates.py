"""Candidates that are built on one machine and measured on another one: a file of programs.

A line each, with a checksum as records have: what they are for, their workloads, and the programs, compressed. Lines
are appended as soon as there is something to say, so whoever is killed has lost nothing, and goes on. Programs are
native code: measure only those that you trust.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mlc.errors import DocumentError, OutputError, UsageError, WorkloadError
from mlc.fields import Fields, as_integer, as_number, as_object, as_text, as_whole
from mlc.lower.knobs import Config
from mlc.records.margins import Margins, margins_from_json
from mlc.records.record import config_value
from mlc.rewrite.workload import Document, workload_key
from mlc.targets.base import Target
from mlc.tuning.measure.building import Built
from mlc.tuning.task import Task, task_of

VERSION = 1
KIND = "candidates"
MAX_FILE = 4 << 30
MAX_PROGRAM = 256 << 20  # bytes, unpacked
_LINE = re.compile(rb'\{"crc":"([0-9a-f]{8})","body":(\{.*\})\}', re.DOTALL)


@dataclass(frozen=True)
class Purpose:
    """What all candidates of a file are for.

    Args:
        target: its string form.
        threads: that run a kernel.
        model: name of the model, for people.
    """

    target: str
    threads: int
    model: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "v": VERSION, "target": self.target, "threads": self.threads, "model": self.model}


@dataclass(frozen=True)
class _Work:
    """A task as a file tells it."""

    document: Document
    margins: tuple[Margins, ...]


class Candidates:
    """A file of candidates, open. A context manager; only one process writes to a file at a time.

    Args:
        path: of the file.
        purpose: of candidates to come; the file is made unless it is there. Without one it is only read.
    Raises:
        UsageError: it holds no candidates, or such for something else; or another process writes to it.
        OutputError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], purpose: Purpose | None = None) -> None:
        self.path = Path(path)
        self._works: dict[str, _Work] = {}
        self._built: dict[str, dict[Hashable, Built]] = {}
        self._file = -1
        flags = os.O_RDONLY if purpose is None else os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            self._file = os.open(self.path, flags | os.O_CLOEXEC, 0o666)
            if os.fstat(self._file).st_size > MAX_FILE:
                raise UsageError(f"{self.path}: more than {MAX_FILE >> 30} GiB are too much for candidates")
            if purpose is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = self.path.read_bytes()
        except BlockingIOError:
            self.close()
            raise UsageError(f"{self.path}: is being written by another process", hint="wait for it") from None
        except OSError as error:
            self.close()
            raise self._failed(error, purpose is not None) from None
        try:
            self.purpose = self._read(data, purpose)
        except BaseException:
            self.close()
            raise

    def tasks(self, target: Target) -> list[Task]:
        """The tasks of all candidates.

        Raises:
            UsageError: one cannot be understood, or makes no sense on the target.
        """
        found = []
        for key, work in self._works.items():
            if not self._built.get(key):
                continue
            try:
                if workload_key(work.document) != key:
                    raise WorkloadError("a document that is not that of its workload")
                found.append(task_of(work.document, work.margins, target))
            except WorkloadError as error:
                raise UsageError(f"{self.path}: {error.message}", hint="build the candidates again") from None
        return found

    def of(self, task: Task) -> Mapping[Hashable, Built]:
        """The candidates of a task, by configuration (:func:`key_of`), in order."""
        return self._built.get(task.key, {})

    def add(self, task: Task, built: Built) -> None:
        """Appends a candidate.

        Raises:
            OutputError: the disk is full, or the like.
        """
        if task.key not in self._works:
            work = _Work(task.document, task.margins)
            margins = [[list(pair) for pair in value] for value in work.margins]
            self._write({"kind": "task", "workload": task.key, "document": work.document, "margins": margins})
            self._works[task.key] = work
        program = base64.b64encode(zlib.compress(built.obj, 6)).decode()
        self._write(
            {
                "kind": "program", "workload": task.key, "config": dict(built.config), "scratch": built.scratch,
                "seconds": built.seconds, "bytes": len(built.obj), "program": program,
            }
        )  # fmt: skip
        self._built.setdefault(task.key, {})[key_of(built.config)] = built

    def close(self) -> None:
        """Lets go of the file; twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return sum(map(len, self._built.values()))

    # -- lines --------------------------------------------------------------------------------------------------------
    def _read(self, data: bytes, purpose: Purpose | None) -> Purpose:
        """What the file holds; a line that a killed process has left half written is cut off."""
        whole, _, torn = data.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        if not lines:
            if purpose is None or (torn and not b'{"crc":"'.startswith(torn[:8])):
                raise self._foreign()
            os.ftruncate(self._file, 0)
            self._write(purpose.to_json())
            return purpose
        found = self._purpose(lines[0])
        if purpose is not None and purpose != found:
            raise UsageError(
                f"{self.path}: is for {found.target!r} on {found.threads} threads, {found.model}",
                hint="name another file, or one to be created",
            )
        if torn and purpose is not None:
            os.ftruncate(self._file, len(data) - len(torn))
        for line in lines[1:]:
            with contextlib.suppress(DocumentError):  # one that is damaged is one candidate less
                self._take(Fields(self._body(line), ""))
        return found

    def _take(self, get: Fields) -> None:
        kind, key = get.take("kind", as_text), get.take("workload", as_text)
        if kind == "task":
            document = get.take("document", lambda value, where: value)
            self._works[key] = _Work(document, get.take("margins", margins_from_json))
        else:
            config = get.take("config", lambda value, where: as_object(value, where, config_value))
            scratch, seconds = get.take("scratch", as_integer), get.take("seconds", as_number)
            size, text = get.take("bytes", as_whole(0, MAX_PROGRAM)), get.take("program", as_text)
            try:
                program = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
            except (ValueError, zlib.error):
                raise DocumentError("program: cannot be unpacked") from None
            if len(program) != size:
                raise DocumentError("program: is of another size")
            some = self._built.setdefault(key, {})
            some[key_of(config)] = Built(len(some), config, scratch, program, seconds)
        get.end()

    def _purpose(self, line: bytes) -> Purpose:
        try:
            get = Fields(self._body(line), "")
            if get.take("kind", as_text) != KIND or get.take("v", as_integer) != VERSION:
                raise self._foreign()
            found = Purpose(get.take("target", as_text), get.take("threads", as_whole(1)), get.take("model", as_text))
            get.end()
        except DocumentError:
            raise self._foreign() from None
        return found

    @staticmethod
    def _body(line: bytes) -> Mapping[str, Any]:
        """What a line says.

        Raises:
            DocumentError: it is damaged.
        """
        match = _LINE.fullmatch(line)
        if match is None or zlib.crc32(match[2]) != int(match[1], 16):
            raise DocumentError("a damaged line")
        try:
            return dict(json.loads(match[2]))
        except (ValueError, RecursionError):
            raise DocumentError("no JSON") from None

    def _write(self, body: Mapping[str, Any]) -> None:
        text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        line = b'{"crc":"%08x","body":%s}\n' % (zlib.crc32(text), text)
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(28, os.strerror(28))
        except OSError as error:
            raise self._failed(error, True) from None

    def _foreign(self) -> UsageError:
        return UsageError(f"{self.path}: holds no candidates", hint="name a file that mlc tune --build-only wrote")

    def _failed(self, error: OSError, writing: bool) -> UsageError | OutputError:
        reason = error.strerror or str(error)
        if writing:
            return OutputError(f"{self.path}: cannot be written: {reason}", hint="check the folder and the free space")
        return UsageError(f"{self.path}: cannot be read: {reason}", hint="check the path")


def key_of(config: Config) -> Hashable:
    """The same for equal configurations, in whatever order their knobs come."""
    return tuple(sorted(config.items()))
