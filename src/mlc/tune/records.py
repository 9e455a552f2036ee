"""Records: one line a trial, with a checksum, readable after any accident.

A line is ``{"crc":"…","body":{…}}``; the checksum is that of the body's bytes.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mlc import __version__
from mlc.errors import UsageError, WorkloadError
from mlc.lower.knobs import Config, Value, frozen
from mlc.runtime.atomic import atomic_write
from mlc.targets.base import Target
from mlc.tune.base import Failure, Measurement
from mlc.tune.beside import NOTHING, Beside
from mlc.tune.places import SUFFIX
from mlc.tune.task import Task

VERSION = 1
DECIDED = "decided"  # explorer of a record that settles a task, whatever single trials said
MAX_LINE = 1 << 20
MAX_FILE = 1 << 30
START = b'{"crc":"'  # of every line

# instruction sets that schedules follow; others change instructions, and not what is a good tile
_SHAPING = frozenset({"avx", "avx2", "avx512f", "avx512vl", "fma"})

_LINE = re.compile(rb'\{"crc":"([0-9a-f]{8})","body":(\{.*\})\}', re.DOTALL)


def _now() -> float:
    return round(time.time(), 3)


class RecordError(Exception):
    """A line that holds no record."""


@dataclass(frozen=True)
class Fingerprint:
    """The processor that times belong to.

    Args:
        cpu: LLVM's name.
        features: instruction sets that the code uses, sorted.
        lanes: f32 lanes of a vector.
    """

    cpu: str
    features: tuple[str, ...]
    lanes: int

    @classmethod
    def of(cls, target: Target) -> Self:
        facts = target.describe()
        features = facts.get("features", ())
        names = tuple(sorted(map(str, features))) if isinstance(features, (list, tuple)) else ()
        return cls(str(facts.get("cpu", "")), names, int(str(facts.get("vector_bits", 0))) // 32)

    def is_family_of(self, other: Fingerprint) -> bool:
        """Whether schedules for one make sense on the other: vectors as wide, as many registers, fused sums."""
        return (self.lanes, _SHAPING & {*self.features}) == (other.lanes, _SHAPING & {*other.features})


@dataclass(frozen=True)
class Record:
    """One trial.

    Args:
        fingerprint: where it was measured.
        threads: that ran the kernel.
        workload: the task's key.
        text: the workload, readable.
        task: the task's name.
        flops: operations of a call.
        config: what was measured.
        result: what became of it.
        time: when, in seconds since 1970.
        version: of this program.
        explorer: who proposed it.
        seed: of the run.
        trial: number within the run, from 0.
        beside: what the text leaves open; nothing in records of early versions.
        flushed: whether caches were emptied before every timed call; nothing is compared with times of the other kind.
    """

    fingerprint: Fingerprint
    threads: int
    workload: str
    text: str
    task: str
    flops: int
    config: Config
    result: Measurement
    time: float
    version: str
    explorer: str
    seed: int
    trial: int
    beside: Beside = NOTHING
    flushed: bool = False

    @classmethod
    def of(
        cls,
        task: Task,
        config: Config,
        result: Measurement,
        *,
        fingerprint: Fingerprint,
        threads: int,
        explorer: str,
        seed: int,
        trial: int,
        flushed: bool = False,
    ) -> Self:
        """The record of a trial that has just ended."""
        return cls(
            fingerprint,
            threads,
            task.key,
            task.text,
            task.name,
            task.flops,
            {k: frozen(v) for k, v in config.items()},
            result,
            _now(),
            __version__,
            explorer,
            seed,
            trial,
            task.beside,
            flushed,
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """What two records share exactly when they are the same trial."""
        return self.workload, tuple(sorted(self.config.items(), key=lambda kv: kv[0])), self.time, self.trial

    @property
    def setting(self) -> tuple[object, ...]:
        """What records share whose times can be compared."""
        return self.workload, self.fingerprint, self.threads, self.flushed

    def to_json(self) -> dict[str, Any]:
        r, f = self.result, self.fingerprint
        return {
            "kind": "trial",
            "v": VERSION,
            "target": {"cpu": f.cpu, "features": list(f.features), "lanes": f.lanes},
            "threads": self.threads,
            "workload": self.workload,
            "text": self.text,
            **self.beside.to_json(),
            "task": self.task,
            "flops": self.flops,
            "config": dict(self.config),
            "seconds": r.seconds,
            "spread": r.spread,
            "failure": r.failure,
            "message": r.message,
            "noisy": r.noisy,
            "build_seconds": r.build_seconds,
            "run_seconds": r.run_seconds,
            "time": self.time,
            "version": self.version,
            "explorer": self.explorer,
            "seed": self.seed,
            "trial": self.trial,
            "flushed": self.flushed,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`.

        Raises:
            RecordError: something is missing, or of the wrong type, or out of range.
        """
        get = _Fields(body)
        target = _Fields(get.object("target"))
        failure = body.get("failure")
        if failure is not None and (type(failure) is not str or failure not in set(Failure)):
            raise RecordError(f"unknown failure {failure!r}")
        seconds = None if body.get("seconds") is None else get.number("seconds", above=0.0)
        if (seconds is None) != (failure is not None):
            raise RecordError("a trial has either a time or a failure")
        try:
            beside = Beside.from_json(body)
        except WorkloadError as error:
            raise RecordError(error.message) from error
        return cls(
            Fingerprint(target.text("cpu"), tuple(target.texts("features")), target.integer("lanes")),
            get.integer("threads", 1),
            get.text("workload"),
            get.text("text"),
            get.text("task"),
            get.integer("flops"),
            {name: _value(value) for name, value in get.object("config").items()},
            Measurement(
                seconds,
                get.number("spread"),
                None if failure is None else Failure(failure),
                get.text("message"),
                get.boolean("noisy"),
                get.number("build_seconds"),
                get.number("run_seconds"),
            ),
            get.number("time"),
            get.text("version"),
            get.text("explorer"),
            get.integer("seed"),
            get.integer("trial"),
            beside,
            "flushed" in body and get.boolean("flushed"),  # older records do not say
        )


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood.

    Args:
        trials: number of the next trial.
        seconds: time used up so far.
        run: tells the run's tasks, processor and threads from others.
        time: when, in seconds since 1970; now unless given.

    What a run draws at random follows from its seed and the trials that are there, so no generator is kept.
    """

    trials: int
    seconds: float
    run: str = ""
    time: float = field(default_factory=_now)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "checkpoint",
            "v": VERSION,
            "trials": self.trials,
            "seconds": self.seconds,
            "notes": {"run": self.run},
            "time": self.time,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        get = _Fields(body)
        return cls(
            get.integer("trials"),
            get.number("seconds"),
            _Fields(get.object("notes")).text("run"),
            get.number("time"),
        )


Entry = Record | Checkpoint


# -- lines ------------------------------------------------------------------------------------------------------------
def encode(entry: Entry) -> bytes:
    """The line of an entry, its end included."""
    body = json.dumps(entry.to_json(), separators=(",", ":"), allow_nan=False).encode()
    return b'{"crc":"%08x","body":%s}\n' % (zlib.crc32(body), body)


def decode(line: bytes) -> Entry | None:
    """The entry of a line, without its end; nothing for one that a later version wrote.

    Raises:
        RecordError: the line is damaged.
    """
    if len(line) > MAX_LINE:
        raise RecordError(f"a line of {len(line)} bytes")
    match = _LINE.fullmatch(line)
    if match is None:
        raise RecordError("not a record")
    if zlib.crc32(match[2]) != int(match[1], 16):
        raise RecordError("the checksum does not fit")
    try:
        body = json.loads(match[2], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError("no JSON") from error
    version = body.get("v")
    if type(version) is not int:
        raise RecordError("no version")
    if version > VERSION:
        return None
    match body.get("kind"):
        case "trial":
            return Record.from_json(body)
        case "checkpoint":
            return Checkpoint.from_json(body)
    raise RecordError("an entry of no known kind")


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def _value(value: Any, depth: int = 8) -> Value:
    """A knob's value from JSON."""
    if isinstance(value, list) and depth:
        return tuple(_value(v, depth - 1) for v in value)
    if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise RecordError("a configuration with a value of no known type")


class _Fields:
    """Reads typed fields of a JSON object."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def _get(self, name: str, *types: type) -> Any:
        value = self._body.get(name)
        if type(value) not in types:
            raise RecordError(f"{name} is missing or of a wrong type")
        return value

    def text(self, name: str) -> str:
        found: str = self._get(name, str)
        return found

    def texts(self, name: str) -> list[str]:
        found: list[str] = self._get(name, list)
        if not all(type(v) is str for v in found):
            raise RecordError(f"{name} is of a wrong type")
        return found

    def boolean(self, name: str) -> bool:
        found: bool = self._get(name, bool)
        return found

    def integer(self, name: str, least: int = 0) -> int:
        found: int = self._get(name, int)
        if found < least:
            raise RecordError(f"{name} is out of range")
        return found

    def number(self, name: str, above: float = -1.0) -> float:
        try:
            found = float(self._get(name, int, float))
        except OverflowError as error:
            raise RecordError(f"{name} is out of range") from error
        if not math.isfinite(found) or found <= above or found < 0:
            raise RecordError(f"{name} is out of range")
        return found

    def object(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._get(name, dict)
        return found


# -- files ------------------------------------------------------------------------------------------------------------
@dataclass
class Log:
    """What some files hold.

    Args:
        records: trials in the order of the files, each once.
        checkpoint: the last one.
        bad: lines that are damaged.
        newer: lines of a later version.
        repeated: trials that were there already.
    """

    records: list[Record] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    bad: int = 0
    newer: int = 0
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
                self.newer += 1
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
        for count, what in ((self.bad, "damaged"), (self.newer, "written by a later version")):
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
        UsageError: a path does not exist or cannot be read.
    """
    log = Log()
    for path in paths:
        given = Path(path)
        files = sorted(given.glob(f"*{SUFFIX}")) if given.is_dir() else [given]
        for file in files:
            log.add(read_bytes(file))
    return log


def write_records(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Writes a file of its own, whole or not at all.

    Raises:
        OutputError: it cannot be written.
    """
    with atomic_write(path) as file:
        for record in records:
            file.write(encode(record))
