"""Measuring as a job for a board: a task's text and candidates of it, all in JSON but the programs themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlc.errors import DocumentError
from mlc.fields import Fields, as_flag, as_list, as_number, as_object, as_text, as_whole, wrong
from mlc.lower.knobs import Config, frozen
from mlc.ops.document import type_to_json
from mlc.pool.offers import Kind
from mlc.pool.parcel import Parcel
from mlc.records.margins import Margins, margins_from_json
from mlc.records.measurement import Failure, Measurement
from mlc.rewrite.workload import Document
from mlc.targets.base import Target
from mlc.tuning.measure.timing import Rule
from mlc.tuning.task import Task, candidate, task_of

MOST = 64  # candidates of one job
_SECONDS = 600.0  # that a candidate may take, whatever a client wants
_MESSAGE = 300


@dataclass(frozen=True)
class Told:
    """A task as a client tells it.

    Args:
        resource: of the target that it is for.
        document, margins: the task's text.
        client: whose it is.
    """

    resource: str
    document: Document
    margins: tuple[Margins, ...]
    client: str

    def to_json(self) -> dict[str, Any]:
        margins = [[list(pair) for pair in value] for value in self.margins]
        return {**vars(self), "margins": margins}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Told:
        get = Fields(value, where)
        made = cls(
            get.take("resource", as_text),
            get.take("document", lambda item, _: item),
            get.take("margins", margins_from_json),
            get.take("client", as_text)[:100],
        )
        get.end()
        return made

    def task(self, target: Target) -> Task:
        """The task itself.

        Raises:
            WorkloadError: it makes no sense on the target.
        """
        return task_of(self.document, self.margins, target)


def key_of(document: Mapping[str, Any]) -> str:
    """Tells what a process has at hand for one piece of work from what it has for others."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Bench:
    """What all candidates of a task have in common: where the same is asked for again, a board has it at hand.

    Args:
        told: the task.
        threads: that run a kernel.
        rule: of timing.
        run_timeout: seconds that checking or timing a candidate may take.
        retries: how often a candidate is timed again because the machine changed its speed meanwhile.
        seed: of the inputs.
    """

    told: Told
    threads: int
    rule: Rule
    run_timeout: float
    retries: int
    seed: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "told": self.told.to_json(), "rule": asdict(self.rule)}

    @property
    def key(self) -> str:
        """Tells it from others."""
        return key_of(self.to_json())

    @classmethod
    def from_json(cls, value: Any, where: str) -> Bench:
        get = Fields(value, where)
        made = cls(
            get.take("told", Told.from_json),
            get.take("threads", as_whole(1, 1024)),
            get.take("rule", _rule),
            min(_SECONDS, get.take("run_timeout", as_number)),
            get.take("retries", as_whole(0, 16)),
            get.take("seed", as_whole(0)),
        )
        get.end()
        return made


@dataclass(frozen=True)
class Sent:
    """A candidate on its way.

    Args:
        config: its configuration.
        scratch: bytes of working memory that it wants; 0 while it is to be built.
        types: of its operands and results as they lie in memory, by which a board knows that it means the same.
    """

    config: Config
    scratch: int
    types: Sequence[Any]

    def to_json(self) -> dict[str, Any]:
        return {"config": dict(self.config), "scratch": self.scratch, "types": list(self.types)}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Sent:
        get = Fields(value, where)
        made = cls(
            get.take("config", lambda item, at: as_object(item, at, lambda v, _: frozen(v))),
            get.take("scratch", as_whole(0, 1 << 40)),
            get.take("types", lambda item, at: as_list(item, at, lambda v, _: v)),
        )
        get.end()
        return made


def types_of(task: Task, target: Target, config: Config) -> list[Any]:
    """The types of a candidate's operands and results, in JSON."""
    node = candidate(task, target, config)
    return [type_to_json(v.type) for v in (*node.inputs, *node.outputs)]


def require_same(task: Task, target: Target, sent: Sent, where: str) -> None:
    """Looks whether a candidate means the same here as where it comes from.

    Raises:
        DocumentError: it does not.
        MlcError: it makes no sense.
    """
    if json.dumps(types_of(task, target, sent.config)) != json.dumps(sent.types):
        raise DocumentError(f"{where}: its operands lie in memory otherwise than here")


@dataclass(frozen=True)
class MeasureJob:
    """Candidates of a task to be measured one after the other.

    Args:
        bench: what they have in common.
        candidates: the untuned one, with which others are compared, and those to measure.
        programs: what was built of each, in order.
        together: whether they are timed in turns.
    """

    bench: Bench
    candidates: tuple[Sent, ...]
    programs: tuple[bytes, ...]
    together: bool = False

    def parcel(self) -> Parcel:
        header = {
            "bench": self.bench.to_json(),
            "candidates": [c.to_json() for c in self.candidates],
            "together": self.together,
        }
        return Parcel(Kind.MEASURE, header, self.programs)

    @classmethod
    def of(cls, parcel: Parcel) -> MeasureJob:
        """The job in a parcel.

        Raises:
            DocumentError: there is none.
        """
        get = Fields(parcel.header, "")
        made = cls(
            get.take("bench", Bench.from_json),
            get.take("candidates", lambda items, where: as_list(items, where, Sent.from_json, MOST)),
            parcel.parts,
            get.take("together", as_flag),
        )
        get.end()
        if len(made.candidates) != len(made.programs) or len(made.candidates) < 2:
            raise DocumentError(f"{len(made.candidates)} candidates with {len(made.programs)} programs")
        return made


@dataclass(frozen=True)
class Results:
    """What became of a job.

    Args:
        found: of each candidate but the untuned one.
        peak: operations a second of one core, the most that the board saw; 0 where that is unknown.
    """

    found: tuple[Measurement, ...]
    peak: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"results": [_measurement_to_json(m) for m in self.found], "peak": self.peak}

    @classmethod
    def of(cls, header: Mapping[str, Any], count: int) -> Results:
        """What a board answers, which may be anything.

        Raises:
            DocumentError: it is nothing of the kind, or not of so many candidates.
        """
        get = Fields(header, "")
        found = get.take("results", lambda items, where: as_list(items, where, _measurement, MOST))
        made = cls(found, get.take("peak", as_number))
        get.end()
        if len(found) != count:
            raise DocumentError(f"{len(found)} results of {count} candidates")
        return made


def _measurement_to_json(m: Measurement) -> dict[str, Any]:
    return {
        "seconds": m.seconds,
        "spread": m.spread,
        "failure": m.failure,
        "message": m.message,
        "noisy": m.noisy,
        "run_seconds": m.run_seconds,
    }


def _measurement(value: Any, where: str) -> Measurement:
    get = Fields(value, where)
    seconds, spread = get.maybe("seconds", as_number), get.take("spread", as_number)
    failure = get.maybe("failure", as_text)
    if (seconds is None) != (failure is not None) or seconds == 0:
        raise DocumentError(f"{where}: either a time or a failure")
    if failure is not None and failure not in set(Failure):
        raise wrong(f"{where}.failure", "one of " + ", ".join(Failure), failure)
    made = Measurement(
        seconds,
        spread,
        None if failure is None else Failure(failure),
        get.take("message", as_text)[:_MESSAGE],
        get.take("noisy", as_flag),
        0.0,
        get.take("run_seconds", as_number),
    )
    get.end()
    return made


def _rule(value: Any, where: str) -> Rule:
    get = Fields(value, where)
    made = Rule(
        min(60.0, get.take("sample_seconds", as_number)),
        get.take("samples", as_whole(1, 1000)),
        min(_SECONDS, get.take("budget", as_number)),
        min(_SECONDS, get.take("limit", as_number)),
        get.take("calls", as_whole(1, 1 << 30)),
        get.take("flush", as_flag),
    )
    get.end()
    return made
