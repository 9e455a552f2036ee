"""Conversations with workers: each a generator that yields requests and is sent replies, and all of them at once.

A worker that crashes, hangs or talks nonsense is ended and replaced; its conversation is told how it was lost.
"""

from __future__ import annotations

import re
import selectors
import signal
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlc.records.measurement import Failure
from mlc.tuning.measure.frames import FrameError, Message
from mlc.tuning.measure.zygote import Worker, Zygote

_GRACE = 2.0  # seconds for a process whose connection is closed to be gone
_SEND = 10.0  # seconds for a worker that waits for a request to read it
_STOPPED = 1.0  # seconds by which nobody is late who is not stopped, with the whole machine or alone
_MEMORY = re.compile(r"out of memory|bad_alloc|MemoryError|[Cc]annot allocate", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """What a worker shall do.

    Args:
        header: of the message.
        body: bytes that go with it.
        timeout: seconds until it must have answered.
        late: what it means if it has not.
    """

    header: dict[str, Any]
    body: bytes
    timeout: float
    late: Failure


class LostError(Exception):
    """A worker is no more, or cannot be trusted any more.

    Args:
        failure: what that says about the request that it was working on.
        message: in words.
    """

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message


Conversation = Generator[Request, Message, None]


@dataclass(eq=False)
class Lane:
    """A place for one worker at a time.

    Args:
        role: what its workers do.
        cores: that they use.
        crash: what it means if one dies.
        timed: whether these are the cores on which times are taken.
        limited: whether what they take of memory is. Not that of workers which open a device: its driver claims
            addresses for all memory that there is, its own and the host's.
    """

    role: str
    cores: tuple[int, ...]
    crash: Failure
    timed: bool
    limited: bool = True
    worker: Worker | None = None
    talk: Conversation | None = None
    request: Request | None = None
    deadline: float = 0.0
    number: int = field(default=0)

    @property
    def busy(self) -> bool:
        return self.talk is not None


class Lanes:
    """Workers of a zygote, and the conversations with them.

    Args:
        zygote: starts and ends the workers.
        memory: bytes that each may take.
    """

    def __init__(self, zygote: Zygote, memory: int) -> None:
        self._zygote = zygote
        self._memory = memory
        self._selector = selectors.DefaultSelector()
        self._busy: set[Lane] = set()
        self._workers: set[Lane] = set()
        self._progress = True

    def begin(self, lane: Lane, talk: Conversation, args: Mapping[str, Any]) -> None:
        """Starts a conversation, and a worker if there is none."""
        assert not lane.busy
        self._progress = True
        if lane.worker is None:
            memory = self._memory if lane.limited else None
            lane.worker = self._zygote.spawn(lane.role, args, cores=lane.cores, memory=memory)
            self._selector.register(lane.worker.channel, selectors.EVENT_READ, lane)
            self._workers.add(lane)
        lane.talk = talk
        self._busy.add(lane)
        self._go_on(lane, lambda: next(talk))

    def wait(self) -> None:
        """Waits until something happens in some conversation, and lets it go on."""
        if not self._busy:
            assert self._progress, "nobody works, and nobody has work"
            self._progress = False
            return
        self._progress = True
        first = min(lane.deadline for lane in self._busy)
        begin = time.monotonic()
        events = self._selector.select(max(0.0, first - begin))
        now = time.monotonic()
        if now - max(begin, first) > _STOPPED:  # and who knows who else was
            for waiting in self._busy:
                assert waiting.request is not None
                waiting.deadline = now + waiting.request.timeout
        for key, _ in events:
            lane: Lane = key.data
            try:
                self._hear(lane)
            except EOFError:
                self._lose(lane, None)
            except FrameError as error:
                self._lose(lane, LostError(Failure.BAD_REPLY, str(error)))
        now = time.monotonic()
        for lane in [lane for lane in self._busy if lane.deadline <= now]:
            assert lane.request is not None
            taken = f"no answer after {lane.request.timeout:g} s"
            self._lose(lane, LostError(lane.request.late, taken))

    def end(self, lane: Lane) -> None:
        """Ends the lane's worker, whatever it is doing; its conversation is closed."""
        if lane.talk is not None:
            lane.talk.close()
        self._forget(lane)
        self._retire(lane, 0.0)

    def end_all(self, busy_only: bool = False) -> None:
        for lane in list(self._busy if busy_only else self._workers):
            self.end(lane)

    def _hear(self, lane: Lane) -> None:
        assert lane.worker is not None
        message = lane.worker.channel.poll()
        if message is None:
            return
        if lane.talk is None or message.header.get("id") != lane.number:
            raise FrameError("an answer to nothing that was asked")
        talk = lane.talk
        self._go_on(lane, lambda: talk.send(message))

    def _go_on(self, lane: Lane, step: Callable[[], Request]) -> None:
        """Lets a conversation take a step, and sends what it asks next."""
        try:
            request = step()
        except StopIteration:
            self._forget(lane)
            return
        except LostError as error:
            # the conversation found the answer to be nonsense; it ends by itself, and so does the worker
            self._lose(lane, error)
            return
        assert lane.worker is not None
        lane.number += 1
        lane.request = request
        lane.deadline = time.monotonic() + request.timeout
        try:
            lane.worker.channel.send({**request.header, "id": lane.number}, request.body, timeout=_SEND)
        except OSError:
            self._lose(lane, None)

    def _lose(self, lane: Lane, why: LostError | None) -> None:
        """Ends a worker; its conversation is told why, or what its death says if nothing else is known."""
        talk = lane.talk
        self._forget(lane)
        worker = lane.worker
        assert worker is not None
        halfway = worker.channel.halfway
        status, complaint = self._retire(lane, _GRACE if why is None else 0.0)
        if why is None:
            why = post_mortem(lane.crash, status, complaint, halfway)
        if talk is not None:
            try:
                talk.throw(why)
            except (StopIteration, LostError):
                return
            raise AssertionError("a conversation goes on without its worker")

    def _forget(self, lane: Lane) -> None:
        lane.talk = lane.request = None
        self._busy.discard(lane)

    def _retire(self, lane: Lane, grace: float) -> tuple[int, str]:
        worker = lane.worker
        if worker is None:
            return 0, ""
        lane.worker = None
        self._workers.discard(lane)
        self._selector.unregister(worker.channel)
        status = self._zygote.end(worker, grace)
        complaint = worker.complaint()
        worker.close()
        return status, complaint

    def close(self) -> None:
        self.end_all()
        self._selector.close()


def post_mortem(crash: Failure, status: int, complaint: str, halfway: bool) -> LostError:
    """What a worker's end says about what it was doing."""
    lines = complaint.strip().splitlines()
    said = f": {lines[0][:200]}" if lines else ""
    build = crash is Failure.BUILD_ERROR
    if build and (_MEMORY.search(complaint) or status == -signal.SIGKILL):
        return LostError(Failure.BUILD_MEMORY, f"the compiler ran out of memory{said}")
    who = "the compiler" if build else "the kernel"
    if status < 0:
        return LostError(crash, f"{who} died of {signal.Signals(-status).name}{said}")
    if halfway:
        return LostError(Failure.BAD_REPLY, "its answer broke off")
    return LostError(crash, f"{who} ended its process with code {status}{said}")
