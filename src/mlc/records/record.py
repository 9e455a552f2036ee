"""Records: one line a trial, with a checksum, readable after any accident.

A line is ``{"crc":"…","body":{…}}``; the checksum is that of the body's bytes.
"""

from __future__ import annotations

import json
import math
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from mlc import __version__
from mlc.errors import DocumentError
from mlc.fields import (
    Fields,
    as_flag,
    as_integer,
    as_list,
    as_number,
    as_object,
    as_text,
    as_whole,
    wrong,
)
from mlc.lower.knobs import Config, Value, frozen
from mlc.records.margins import Margins, margins_from_json
from mlc.records.measurement import Failure, Measurement
from mlc.rewrite.workload import Document
from mlc.targets.base import Target, Whole

VERSION = 2
DECIDED = "decided"  # explorer of a record that settles a task, whatever single trials said
ALGORITHM = "algorithm"  # the one knob of a record that is of an operator's algorithms, not of a group's schedule
MAX_LINE = 1 << 20
MAX_DEPTH = 16  # of a document; attributes are 8 deep at most, and stand 4 deep
START = b'{"crc":"'  # of every line

# instruction sets that schedules follow; others change instructions, and not what is a good tile
_SHAPING = frozenset({"avx", "avx2", "avx512f", "avx512vl", "fma"})

_LINE = re.compile(rb'\{"crc":"([0-9a-f]{8})","body":(\{.*\})\}', re.DOTALL)


def _now() -> float:
    return round(time.time(), 3)


class Workload(Protocol):
    """What a record is of: a group with something to choose."""

    @property
    def key(self) -> str: ...

    @property
    def document(self) -> Document: ...

    @property
    def name(self) -> str: ...

    @property
    def flops(self) -> int: ...

    @property
    def margins(self) -> tuple[Margins, ...]: ...


class RecordError(Exception):
    """A line that holds no record."""


@dataclass(frozen=True)
class Fingerprint:
    """The processor that times belong to.

    Args:
        cpu: LLVM's name; of a device that takes whole models, its own.
        features: instruction sets that the code uses, sorted; none of a device.
        lanes: f32 lanes of a vector; 0 of a device.
    """

    cpu: str
    features: tuple[str, ...]
    lanes: int

    @classmethod
    def of(cls, target: Target) -> Self:
        if isinstance(target.accelerator, Whole):  # what stays on the host hardly counts
            return cls(target.accelerator.processor, (), 0)
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
        document: the workload, see :mod:`mlc.rewrite.workload`.
        task: the task's name.
        flops: operations of a call.
        config: what was measured.
        result: what became of it.
        time: when, in seconds since 1970.
        version: of this program.
        explorer: who proposed it.
        seed: of the run.
        trial: number within the run, from 0.
        margins: of the group's values, see :func:`~mlc.records.margins.margins_of`.
        flushed: whether caches were emptied before every timed call; nothing is compared with times of the other kind.
        layouts: primitives of a searched layout by what has them (``result``, ``operand 0`` …), for people: the
            configuration says the same.
    """

    fingerprint: Fingerprint
    threads: int
    workload: str
    document: Document
    task: str
    flops: int
    config: Config
    result: Measurement
    time: float
    version: str
    explorer: str
    seed: int
    trial: int
    margins: tuple[Margins, ...] = ()
    flushed: bool = False
    layouts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        task: Workload,
        config: Config,
        result: Measurement,
        *,
        fingerprint: Fingerprint,
        threads: int,
        explorer: str,
        seed: int,
        trial: int,
        flushed: bool = False,
        layouts: Mapping[str, str] | None = None,
    ) -> Self:
        """The record of a trial that has just ended."""
        return cls(
            fingerprint,
            threads,
            task.key,
            task.document,
            task.name,
            task.flops,
            {k: frozen(v) for k, v in config.items()},
            result,
            _now(),
            __version__,
            explorer,
            seed,
            trial,
            task.margins,
            flushed,
            dict(layouts or {}),
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
            "document": self.document,
            **({"margins": [[list(pair) for pair in value] for value in self.margins]} if self.margins else {}),
            "task": self.task,
            "flops": self.flops,
            "config": dict(self.config),
            **({"layouts": dict(self.layouts)} if self.layouts else {}),
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
            DocumentError: a field is missing, wrong or unknown.
        """
        get = Fields(body, "")
        get.take("kind", as_text)
        get.take("v", as_integer)
        fingerprint = get.take("target", _fingerprint)
        threads = get.take("threads", as_whole(1))
        failure = get.maybe("failure", _failure)
        seconds = get.maybe("seconds", as_number)
        if (seconds is None) != (failure is not None) or seconds == 0:
            raise DocumentError("seconds: a trial has either a time or a failure")
        made = cls(
            fingerprint,
            threads,
            get.take("workload", as_text),
            get.take("document", _shallow),
            get.take("task", as_text),
            get.take("flops", as_integer),
            get.take("config", lambda value, where: as_object(value, where, config_value)),
            Measurement(
                seconds,
                get.take("spread", as_number),
                failure,
                get.take("message", as_text),
                get.take("noisy", as_flag),
                get.take("build_seconds", as_number),
                get.take("run_seconds", as_number),
            ),
            get.take("time", as_number),
            get.take("version", as_text),
            get.take("explorer", as_text),
            get.take("seed", as_whole(0, 1 << 128)),
            get.take("trial", as_integer),
            get.maybe("margins", margins_from_json) or (),
            get.take("flushed", as_flag),
            get.maybe("layouts", lambda value, where: as_object(value, where, as_text)) or {},
        )
        get.end()
        return made


def _fingerprint(value: object, where: str) -> Fingerprint:
    get = Fields(value, where)
    found = Fingerprint(
        get.take("cpu", as_text),
        get.take("features", lambda items, place: as_list(items, place, as_text)),
        get.take("lanes", as_integer),
    )
    get.end()
    return found


def _failure(value: object, where: str) -> Failure:
    if not isinstance(value, str) or value not in set(Failure):
        raise wrong(where, "one of " + ", ".join(Failure), value)
    return Failure(value)


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
        get = Fields(body, "")
        get.take("kind", as_text)
        get.take("v", as_integer)
        notes = Fields(get.take("notes", lambda value, where: value), "notes")
        made = cls(
            get.take("trials", as_integer),
            get.take("seconds", as_number),
            notes.take("run", as_text),
            get.take("time", as_number),
        )
        get.end()
        return made


Entry = Record | Checkpoint


# -- lines ------------------------------------------------------------------------------------------------------------
def encode(entry: Entry) -> bytes:
    """The line of an entry, its end included."""
    body = json.dumps(entry.to_json(), separators=(",", ":"), allow_nan=False).encode()
    return b'{"crc":"%08x","body":%s}\n' % (zlib.crc32(body), body)


def decode(line: bytes) -> Entry | None:
    """The entry of a line, without its end; nothing for one that another version wrote, whose form is another.

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
    if version != VERSION:
        return None
    try:
        match body.get("kind"):
            case "trial":
                return Record.from_json(body)
            case "checkpoint":
                return Checkpoint.from_json(body)
    except DocumentError as error:
        raise RecordError(error.message) from error
    raise RecordError("an entry of no known kind")


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def config_value(value: Any, where: str, depth: int = 8) -> Value:
    """A knob's value from JSON."""
    if isinstance(value, list) and depth:
        return tuple(config_value(v, where, depth - 1) for v in value)
    if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise wrong(where, "a number, text, truth value or list of them", value)


def _shallow(document: Any, where: str) -> Document:
    """An object no deeper than a document can be, since whoever looks into it goes down by recursion."""
    if not isinstance(document, dict):
        raise wrong(where, "an object", document)
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        level = [v for item in level for v in (item.values() if isinstance(item, dict) else item)]
        level = [v for v in level if isinstance(v, (dict, list))]
        if not level:
            return document
    raise DocumentError(f"{where}: is too deep")
