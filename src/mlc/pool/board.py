"""A board: it works for one client at a time, in processes that may crash, and only at what it was started for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mlc import __version__
from mlc.errors import DeviceError, DocumentError, MlcError, UsageError
from mlc.pool.building import BuildJob, Shop
from mlc.pool.jobs import MeasureJob, Results
from mlc.pool.offers import MEMORY, BoardInfo, Kind, Offer, building_for, mebibytes, require_tunable, resource_of
from mlc.pool.parcel import Parcel, refusal, split
from mlc.pool.processes import Process, Processes
from mlc.pool.remote import RunJob, run
from mlc.pool.session import Place, Sessions
from mlc.pool.turns import TURNS, TurnsJob, take_turns
from mlc.records.measurement import Failure, Measurement
from mlc.targets.base import Emulated, Tooled, Whole, get_target
from mlc.tuning.measure.turns import Turns

KINDS = (Kind.MEASURE, Kind.RUN)
DRAIN = "drain"
_MOST_SESSIONS = 4
_CASE = 180.0  # seconds in which a process has begun: inputs, reference, untuned candidate
_EACH = 8  # times what checking or timing takes: both, warming up, and timing again while the machine is restless
_BEGIN = 30.0  # seconds in which a process has read a task that it shall build candidates of
_RUN_TIMEOUT = 600.0


class Board:
    """What a worker of the pool has behind it. A context manager; make it before there are threads.

    Args:
        name: unique in the pool.
        targets: string forms of what it is there for.
        kinds: of work that it does. What builds does nothing else: it would disturb what is measured.
        cores: on which times are taken, or of which each builds; all that are available unless given.
        memory: bytes that running a candidate or a module, or building, may take.
        emulated: whether qemu has the processor's place.
    Raises:
        UsageError: a target cannot be understood, or the kinds exclude each other.
        UnsupportedError: a target's operations cannot be told in text.
        DeviceError: this machine cannot run its code.
        MissingDependencyError: a tool is not installed that building for it takes.
    """

    def __init__(
        self,
        name: str,
        targets: Sequence[str],
        *,
        kinds: Sequence[Kind] = KINDS,
        cores: tuple[int, ...],
        memory: int,
        emulated: bool = False,
    ) -> None:
        self.builds = Kind.BUILD in kinds
        if self.builds and (set(kinds) != {Kind.BUILD} or emulated):
            raise UsageError(
                "a worker that builds measures and runs nothing, and emulates nothing",
                hint="start two, each with --only and on --cores of its own",
            )
        places = [Place(text, get_target(text), emulated) for text in targets]
        for place in places:
            _require(place, kinds)
        self._places = {resource_of(p.target, emulated=emulated): k for k, p in enumerate(places)}
        self._builders = {building_for(resource): k for resource, k in self._places.items()}
        self._exact = [False if self.builds else p.bench().exact for p in places]
        self._families = {p.target.name for p in places}
        offers = tuple(Offer(resource, places[k].text, emulated) for resource, k in self._places.items())
        self.info = BoardInfo(name, offers, tuple(kinds), len(cores), memory)
        self._cores, self._memory, self._emulated = cores, memory, emulated
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._clients: list[str] = []  # that it works for now
        self._done, self.draining = 0, False
        self.leave: Callable[[], None] = lambda: None  # is called before the last answer, to get no more work
        self._turns = [Turns(f"core{c}") for c in cores]
        self._processes = Processes(
            {
                Kind.MEASURE: Sessions(places, cores, memory).measure, Kind.RUN: run, TURNS: take_turns,
                Kind.BUILD: Shop(places).build,
            },
            most=max(_MOST_SESSIONS, 2 * len(cores) if self.builds else 0),
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """For temporary files; it goes with the board, however that ends."""
        return self._processes.folder

    @property
    def at_once(self) -> int:
        """Pieces of work that it does at a time."""
        return len(self._cores) if self.builds else 1

    @property
    def resources(self) -> dict[str, int]:
        """What it has: as much of each target and family, and of memory, as it does at once."""
        memory = mebibytes(self.info.memory) * self.at_once
        return {**dict.fromkeys(sorted(self.info.resources), self.at_once), MEMORY: memory}

    def facts(self) -> dict[str, Any]:
        """What it tells of itself, as it is now."""
        with self._lock:
            told = {
                **self.info.to_json(),
                "done": self._done,
                "busy": ", ".join(sorted(set(self._clients))),
                "draining": self.draining,
                "seconds": round(time.monotonic() - self._began, 3),
            }
        return told

    def work(self, data: object) -> bytes:
        """Does what a parcel says; the answer."""
        try:
            parcel = Parcel.from_bytes(data)
            if parcel.version != __version__:
                return self._refuse(f"it has mlc {__version__}, and the client {parcel.version}")
            if parcel.kind == DRAIN:
                self.draining = True
                self.leave()
                return Parcel(DRAIN, {}).to_bytes()
            if (Kind.MEASURE if parcel.kind == TURNS else parcel.kind) not in self.info.kinds:
                return self._refuse(f"it was not started to {parcel.kind}")
            work: Mapping[str, Callable[[Parcel], Parcel]] = {
                Kind.MEASURE: self._measure, Kind.RUN: self._run, TURNS: self._take_turns, Kind.BUILD: self._build,
            }  # fmt: skip
            return work[parcel.kind](parcel).to_bytes()
        except MlcError as error:
            return self._refuse(error.message)
        finally:
            with self._lock:
                self._done += 1

    def tidy(self) -> None:
        """Ends processes that nobody has given work for a while."""
        self._processes.tidy()

    def close(self) -> None:
        """Ends all processes; twice is fine."""
        self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- work ---------------------------------------------------------------------------------------------------------
    def _measure(self, parcel: Parcel) -> Parcel:
        job = MeasureJob.of(parcel)
        bench, count = job.bench, len(job.candidates) - 1
        place = self._place_of(bench.told.resource, bench.threads)
        patience = _CASE + _EACH * (count + 1) * max(1.0, bench.run_timeout)
        with self._working_for(bench.told.client), self._undisturbed(place):
            process = self._processes.take(
                bench.key, Kind.MEASURE, {"place": place}, cores=self._cores, memory=self._memory_of_children
            )
            answer, _ = self._answer(process, parcel, patience)
        if isinstance(answer, Measurement):
            return Parcel(Kind.MEASURE, Results((answer,) * count).to_json())
        return Parcel(Kind.MEASURE, answer)

    def _build(self, parcel: Parcel) -> Parcel:
        job = BuildJob.of(parcel)
        place = self._builders.get(building_for(job.told.resource))
        if place is None:
            raise DocumentError(f"it was not started for {job.told.resource}")
        patience = job.timeout + _BEGIN
        with self._working_for(job.told.client):
            process = self._processes.take(
                job.key, Kind.BUILD, {"place": place}, cores=self._cores, memory=self._memory
            )
            answer, program = self._answer(process, parcel, patience, Failure.BUILD_ERROR, Failure.BUILD_TIMEOUT)
        if isinstance(answer, Measurement):
            lost = {"failure": answer.failure, "message": answer.message, "took": 0.0}
            return Parcel(Kind.BUILD, lost, (b"",))
        return Parcel(Kind.BUILD, answer, (program,))

    def _take_turns(self, parcel: Parcel) -> Parcel:
        job = TurnsJob.of(parcel)
        place = self._place_of(job.resource, job.threads)
        if self._emulated:
            raise DocumentError("an emulator's times say nothing")
        with self._working_for(job.client), self._undisturbed(place):
            answer, _ = self._once(TURNS, {}, parcel)
        return Parcel(TURNS, answer)

    def _run(self, parcel: Parcel) -> Parcel:
        job = RunJob.of(parcel)
        if job.family not in self._families:
            raise DocumentError(f"it was not started for {job.family}")
        args = {"threads": self.info.threads, "emulated": self._emulated}
        with self._working_for(job.client):
            answer, body = self._once(Kind.RUN, args, parcel)
        return Parcel(Kind.RUN, {"outputs": answer["outputs"]}, tuple(split(body, answer["sizes"])))

    def _once(self, role: str, args: Mapping[str, Any], parcel: Parcel) -> tuple[dict[str, Any], bytes]:
        """What a process answers that runs modules, and nothing after that.

        Raises:
            DeviceError: it failed, or will not.
        """
        process = self._processes.take("", role, args, cores=self._cores, memory=self._memory)
        try:
            answer, body = self._processes.ask(process, parcel, _RUN_TIMEOUT)
        finally:
            self._processes.end(process)
        if isinstance(answer, Measurement):
            raise DeviceError(f"the module failed: {answer.message}")
        if "refused" in answer:
            raise DeviceError(str(answer["refused"]))
        return answer, body

    def _answer(
        self,
        process: Process,
        parcel: Parcel,
        patience: float,
        crash: Failure = Failure.RUN_CRASH,
        late: Failure = Failure.RUN_TIMEOUT,
    ) -> tuple[dict[str, Any] | Measurement, bytes]:
        """What a process answers, which is kept for more of the same; or what became of it.

        Raises:
            DeviceError: it will not.
        """
        answer, body = self._processes.ask(process, parcel, patience, crash, late)
        if isinstance(answer, Measurement) or "refused" in answer:
            self._processes.end(process)
        else:
            self._processes.put_back(process)
        if not isinstance(answer, Measurement) and "refused" in answer:
            raise DeviceError(str(answer["refused"]))
        return answer, body

    @contextlib.contextmanager
    def _working_for(self, client: str) -> Iterator[None]:
        with self._lock:
            self._clients.append(client)
        try:
            yield
        finally:
            with self._lock:
                self._clients.remove(client)

    @contextlib.contextmanager
    def _undisturbed(self, place: int) -> Iterator[None]:
        """The cores are this board's; others may have been given the same."""
        with contextlib.ExitStack() as stack:
            for turns in () if self._exact[place] else self._turns:
                stack.enter_context(turns.mine())
            yield

    @property
    def _memory_of_children(self) -> int:
        """Of a process that forks others, which each may take what a piece of work may."""
        return 2 * self._memory + (1 << 30)

    def _place_of(self, resource: str, threads: int) -> int:
        """Which of its targets a resource is.

        Raises:
            DocumentError: none, or it has not so many threads.
        """
        place = self._places.get(resource)
        if place is None:
            raise DocumentError(f"it was not started for {resource}")
        if threads > self.info.threads:
            raise DocumentError(f"it has {self.info.threads} threads, and not {threads}")
        return place

    def _refuse(self, reason: str) -> bytes:
        return refusal(f"{self.info.name}: {reason}").to_bytes()


def _require(place: Place, kinds: Sequence[Kind]) -> None:
    """Looks whether a target can be had through a pool for some kinds of work, and whether this machine can do that.

    Raises:
        UsageError, UnsupportedError, DeviceError, MissingDependencyError: as for :class:`Board`.
    """
    accelerator = place.target.accelerator
    if set(kinds) != {Kind.RUN}:
        require_tunable(place.target)
    if place.emulated and not isinstance(place.target, Emulated):
        raise UsageError(f"{place.text}: is not emulated", hint="leave --emulate out")
    if Kind.BUILD in kinds:
        if isinstance(accelerator, Tooled):
            accelerator.require_tools()
        return
    place.bench().require()
    if accelerator is not None and isinstance(accelerator, Whole):
        place.bench(device=True).require()
