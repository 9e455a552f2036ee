"""A board: it does one piece of work at a time, in processes that may crash, and only what it was started for."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mlc import __version__
from mlc.errors import DeviceError, DocumentError, MlcError, UsageError
from mlc.pool.jobs import MEASURE, MeasureJob, Results
from mlc.pool.offers import MEMORY, BoardInfo, Offer, mebibytes, resource_of
from mlc.pool.parcel import Parcel, refusal, split
from mlc.pool.remote import RUN, RunJob, run
from mlc.pool.session import Place, Sessions
from mlc.records.measurement import Failure, Measurement
from mlc.targets.base import Emulated, get_target
from mlc.tuning.measure.frames import Channel, FrameError, Message
from mlc.tuning.measure.lanes import post_mortem
from mlc.tuning.measure.turns import Turns
from mlc.tuning.measure.zygote import Role, Shared, Worker, Zygote

KINDS = (MEASURE, RUN)
DRAIN = "drain"
LEASE = 60.0  # seconds after which a process that nobody gives work is ended, with all the memory that it holds
_MOST_SESSIONS = 4
_CASE = 180.0  # seconds in which a process has begun: inputs, reference, untuned candidate
_EACH = 8  # times what checking or timing takes: both, warming up, and timing again while the machine is restless
_RUN_TIMEOUT = 600.0
_SEND = 30.0
_SWEEPS = 50


@dataclass
class _Session:
    worker: Worker
    used: float


class Board:
    """What a worker of the pool has behind it. A context manager; make it before there are threads.

    Args:
        name: unique in the pool.
        targets: string forms of what it is there for.
        kinds: of work that it does.
        cores: on which times are taken; all that are available unless given.
        memory: bytes that running a candidate or a module may take.
        emulated: whether qemu has the processor's place.
    Raises:
        UsageError: a target cannot be understood.
        DeviceError: this machine cannot run its code.
    """

    def __init__(
        self,
        name: str,
        targets: Sequence[str],
        *,
        kinds: Sequence[str] = KINDS,
        cores: tuple[int, ...],
        memory: int,
        emulated: bool = False,
    ) -> None:
        places = [Place(text, get_target(text), emulated) for text in targets]
        for place in places:
            if place.target.accelerator is not None:
                raise UsageError(
                    f"{place.text}: only processors can be had through a pool yet",
                    hint="tune for an accelerator on the machine that has it",
                )
            if emulated and not isinstance(place.target, Emulated):
                raise UsageError(f"{place.text}: is not emulated", hint="leave --emulate out")
            place.bench().require()
        self._places = {resource_of(p.target): k for k, p in enumerate(places)}
        self._exact = [p.bench().exact for p in places]
        self._families = {p.target.name: p.emulated for p in places}
        offers = tuple(Offer(resource_of(p.target), p.text, p.emulated) for p in places)
        self.info = BoardInfo(name, offers, tuple(kinds), len(cores), memory)
        self._cores, self._memory = cores, memory
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._sessions: dict[str, _Session] = {}
        self._done, self._busy, self.draining = 0, "", False
        self.leave: Callable[[], None] = lambda: None  # is called before the last answer, to get no more work
        self._turns = [Turns(f"core{c}") for c in cores]
        # what processes leave behind that are killed goes with the board
        self._folder = tempfile.TemporaryDirectory(prefix="mlc-board-")
        self._alive = _sweep_after(self._folder.name)
        roles = {MEASURE: Sessions(places, cores, memory).measure, RUN: run}
        self._zygote = Zygote({name: _within(self._folder.name, role) for name, role in roles.items()})

    @property
    def folder(self) -> Path:
        """For temporary files; it goes with the board, however that ends."""
        return Path(self._folder.name)

    @property
    def resources(self) -> dict[str, int]:
        """What it has: one of each target and family, and memory."""
        return {**dict.fromkeys((*self._places, *self._families), 1), MEMORY: mebibytes(self.info.memory)}

    def facts(self) -> dict[str, Any]:
        """What it tells of itself, as it is now."""
        told = {
            **self.info.to_json(),
            "done": self._done,
            "busy": self._busy,
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
            if parcel.kind not in self.info.kinds:
                return self._refuse(f"it was not started to {parcel.kind}")
            work: Mapping[str, Callable[[Parcel], Parcel]] = {MEASURE: self._measure, RUN: self._run}
            return work[parcel.kind](parcel).to_bytes()
        except MlcError as error:
            return self._refuse(error.message)
        finally:
            self._busy = ""
            self._done += 1

    def tidy(self, lease: float = LEASE) -> None:
        """Ends processes that nobody has given work for a while: whoever they were for is done, or is gone."""
        if self._lock.acquire(blocking=False):  # else it is at work, and nobody waits for that
            try:
                late = time.monotonic() - lease
                for key in [k for k, s in self._sessions.items() if s.used <= late]:
                    self._end(key)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends all processes; twice is fine."""
        self._sessions.clear()
        self._zygote.close()
        self._folder.cleanup()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- work ---------------------------------------------------------------------------------------------------------
    def _measure(self, parcel: Parcel) -> Parcel:
        job = MeasureJob.of(parcel)
        bench = job.bench
        place = self._places.get(bench.resource)
        if place is None:
            raise DocumentError(f"it was not started for {bench.resource}")
        if bench.threads > self.info.threads:
            raise DocumentError(f"it has {self.info.threads} threads, and not {bench.threads}")
        self._busy = bench.client
        count = len(job.candidates) - 1
        patience = _CASE + _EACH * (count + 1) * max(1.0, bench.run_timeout)
        key = bench.key
        with self._lock, contextlib.ExitStack() as stack:  # who tidies up must wait: what is at work is no leftover
            for turns in () if self._exact[place] else self._turns:  # boards may have been given the same cores
                stack.enter_context(turns.mine())
            session = self._sessions.get(key) or self._begin(key, place)
            answer, _ = self._ask(session.worker, parcel, patience)
            if isinstance(answer, Measurement):
                self._end(key)
                return Parcel(MEASURE, Results((answer,) * count).to_json())
            session.used = time.monotonic()
            if "refused" in answer:
                self._end(key)
                return refusal(f"{self.info.name}: {answer['refused']}")
            return Parcel(MEASURE, answer)

    def _run(self, parcel: Parcel) -> Parcel:
        job = RunJob.of(parcel)
        if job.family not in self._families:
            raise DocumentError(f"it was not started for {job.family}")
        self._busy = job.client
        args = {"threads": self.info.threads, "emulated": self._families[job.family]}
        with self._lock:
            worker = self._zygote.spawn(RUN, args, cores=self._cores, memory=self._memory)
            answer, body = self._ask(worker, parcel, _RUN_TIMEOUT)
            self._finish(worker)
        if isinstance(answer, Measurement):
            raise DeviceError(f"the module failed: {answer.message}")
        if "refused" in answer:
            raise DeviceError(str(answer["refused"]))
        return Parcel(RUN, {"outputs": answer["outputs"]}, tuple(split(body, answer["sizes"])))

    def _begin(self, key: str, place: int) -> _Session:
        while len(self._sessions) >= _MOST_SESSIONS:
            self._end(min(self._sessions, key=lambda k: self._sessions[k].used))
        # it forks processes of its own, which each may take that much
        memory = 2 * self._memory + (1 << 30)
        worker = self._zygote.spawn(MEASURE, {"place": place}, cores=self._cores, memory=memory)
        self._sessions[key] = _Session(worker, time.monotonic())
        return self._sessions[key]

    def _ask(self, worker: Worker, parcel: Parcel, patience: float) -> tuple[dict[str, Any] | Measurement, bytes]:
        """What a process answers; or what became of it."""
        body = b"".join(parcel.parts)
        try:
            header = {"header": dict(parcel.header), "sizes": [len(p) for p in parcel.parts]}
            worker.channel.send(header, body, timeout=_SEND)
            found = _awaited(worker, patience)
        except (EOFError, OSError):
            status = self._zygote.end(worker, 1.0)
            lost = post_mortem(Failure.RUN_CRASH, status, worker.complaint(), worker.channel.halfway)
            return Measurement(None, failure=lost.failure, message=lost.message), b""
        except FrameError as error:
            return Measurement(None, failure=Failure.BAD_REPLY, message=str(error)), b""
        if found is None:
            return Measurement(None, failure=Failure.RUN_TIMEOUT, message=f"no answer after {patience:g} s"), b""
        return found.header, found.body

    def _end(self, key: str) -> None:
        self._finish(self._sessions.pop(key).worker)

    def _finish(self, worker: Worker) -> None:
        self._zygote.end(worker)
        worker.close()

    def _refuse(self, reason: str) -> bytes:
        return refusal(f"{self.info.name}: {reason}").to_bytes()


def _awaited(worker: Worker, patience: float) -> Message | None:
    """The next message of a process; nothing if there is none for so many seconds.

    Raises:
        EOFError, FrameError: as for :meth:`~mlc.tuning.measure.frames.Channel.poll`.
    """
    until = time.monotonic() + patience
    while (left := until - time.monotonic()) > 0:
        if select.select([worker.channel], [], [], left)[0]:
            found = worker.channel.poll()
            if found is not None:
                return found
    return None


def _within(folder: str, role: Role) -> Role:
    """The role, with temporary files in a folder of the board's."""

    def play(channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
        tempfile.tempdir = folder
        role(channel, shared, args)

    return play


def _sweep_after(folder: str) -> int:
    """Lets a process wait that removes a folder once this one is gone, however it ended: killed, too.

    Returns:
        a file that this process holds open as long as it needs the folder.
    """
    ended, alive = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.close(alive)
            os.read(ended, 1)
            for _ in range(_SWEEPS):  # processes of the board may write there to their last moment
                shutil.rmtree(folder, ignore_errors=True)
                if not os.path.exists(folder):
                    break
                time.sleep(0.1)
        finally:
            os._exit(0)
    os.close(ended)
    return alive
