"""The processes in which a board works for its clients: they may crash, and are kept a while for what comes next."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlc.pool.parcel import Parcel, split
from mlc.records.measurement import Failure, Measurement
from mlc.tuning.measure.frames import Channel, FrameError, Message
from mlc.tuning.measure.lanes import post_mortem
from mlc.tuning.measure.zygote import Role, Shared, Worker, Zygote

LEASE = 60.0  # seconds after which a process that nobody gives work is ended, with all the memory that it holds
_SEND = 30.0
_SWEEPS = 50


@dataclass(eq=False)
class Process:
    """One of them.

    Args:
        key: whose it is, and for what.
        worker: the process.
        used: when it has last worked.
    """

    key: str
    worker: Worker
    used: float = 0.0


class Processes:
    """Starts processes, gives them work, ends them. Several threads may ask; make it before there are any.

    Args:
        roles: what they do, by name.
        most: that are kept while nobody needs them.
    """

    def __init__(self, roles: Mapping[str, Role], most: int) -> None:
        self._most = most
        self._idle: list[Process] = []  # who has worked last comes last
        self._lock = threading.Lock()
        # what processes leave behind that are killed goes with the board
        self._folder = tempfile.TemporaryDirectory(prefix="mlc-board-")
        self._alive = _sweep_after(self._folder.name)
        self._zygote = Zygote({name: _within(self._folder.name, role) for name, role in roles.items()})

    @property
    def folder(self) -> Path:
        """For temporary files; it goes with this process, however that ends."""
        return Path(self._folder.name)

    @property
    def idle(self) -> list[int]:
        """Those that wait for more work."""
        with self._lock:
            return [p.worker.pid for p in self._idle]

    def take(self, key: str, role: str, args: Mapping[str, Any], *, cores: Sequence[int], memory: int) -> Process:
        """The process that has worked for a key before, or a new one; the caller's until it is put back or ended.

        Args:
            key: whose it is, and for what.
            role: what a new one does, as ``args`` say.
            cores, memory: that a new one may use.
        Raises:
            DeviceError: none can be started.
        """
        with self._lock:
            known = next((p for p in self._idle if p.key == key), None)
            if known is not None:
                self._idle.remove(known)
                return known
            while len(self._idle) >= self._most:
                self._end(self._idle.pop(0))
            return Process(key, self._zygote.spawn(role, args, cores=cores, memory=memory))

    def put_back(self, process: Process) -> None:
        """Keeps a process for more work of the same."""
        process.used = time.monotonic()
        with self._lock:
            self._idle.append(process)

    def end(self, process: Process) -> None:
        """Ends a process with all that it has started."""
        with self._lock:
            self._end(process)

    def ask(
        self,
        process: Process,
        parcel: Parcel,
        patience: float,
        crash: Failure = Failure.RUN_CRASH,
        late: Failure = Failure.RUN_TIMEOUT,
    ) -> tuple[dict[str, Any] | Measurement, bytes]:
        """What a process answers to a parcel; or what became of it.

        Args:
            process: that was taken.
            parcel: the work.
            patience: seconds until it must have answered.
            crash, late: what it means if it dies, or does not answer.
        """
        worker = process.worker
        try:
            header = {"id": 0, "header": dict(parcel.header), "sizes": [len(p) for p in parcel.parts]}
            worker.channel.send(header, b"".join(parcel.parts), timeout=_SEND)
            found = _awaited(worker, patience)
        except (EOFError, OSError):
            with self._lock:
                status = self._zygote.end(worker, 1.0)
            lost = post_mortem(crash, status, worker.complaint(), worker.channel.halfway)
            return Measurement(None, failure=lost.failure, message=lost.message), b""
        except FrameError as error:
            return Measurement(None, failure=Failure.BAD_REPLY, message=str(error)), b""
        if found is None:
            return Measurement(None, failure=late, message=f"no answer after {patience:g} s"), b""
        return found.header, found.body

    def tidy(self, lease: float = LEASE) -> None:
        """Ends processes that nobody has given work for a while: whoever they were for is done, or is gone."""
        late = time.monotonic() - lease
        with self._lock:
            for process in [p for p in self._idle if p.used <= late]:
                self._idle.remove(process)
                self._end(process)

    def close(self) -> None:
        """Ends all; twice is fine."""
        self._idle.clear()
        self._zygote.close()
        self._folder.cleanup()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    def _end(self, process: Process) -> None:
        self._zygote.end(process.worker)
        process.worker.close()


def received(message: Message) -> Parcel:
    """In a process: the parcel that it was asked with."""
    return Parcel("", message.header["header"], tuple(split(message.body, message.header["sizes"])))


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
