"""Building candidates by workers, wherever they are measured then."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from mlc.lower.knobs import Config, frozen
from mlc.records.measurement import Failure, Measurement
from mlc.settings import CompileOptions
from mlc.targets.base import Target
from mlc.tuning.measure.builder import Builder
from mlc.tuning.measure.frames import Channel, Message
from mlc.tuning.measure.guard import Answer, guarded
from mlc.tuning.measure.lanes import Conversation, Lane, Lanes, LostError, Request
from mlc.tuning.measure.replies import as_count, failure_in, seconds_in
from mlc.tuning.measure.zygote import Shared, Zygote
from mlc.tuning.task import Task

_COLLECT = 25  # builds between two garbage collections, which otherwise take their time in the midst of one


@dataclass(frozen=True)
class Built:
    """A candidate that was built.

    Args:
        index: its position among those that are measured together.
        config: its configuration.
        scratch: bytes of working memory that it wants.
        obj: the program.
        seconds: that building took.
    """

    index: int
    config: Config
    scratch: int
    obj: bytes
    seconds: float


@dataclass(frozen=True)
class BuildShop:
    """What workers that build have in memory.

    Args:
        tasks: by number.
        target: to compile for.
        options: how to compile.
    """

    tasks: Sequence[Task]
    target: Target
    options: CompileOptions

    def build(self, channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
        """Builds one candidate a message: ``{task, config}`` in, ``{scratch}`` and a program out."""
        builder = Builder(self.target, self.options)

        def work(message: Message) -> Answer:
            config = {name: frozen(value) for name, value in message.header["config"].items()}
            program = builder.build(self.tasks[message.header["task"]], config)
            return {"scratch": program.scratch}, program.data

        answer_builds(channel, work)


def answer_builds(channel: Channel, work: Callable[[Message], Answer]) -> None:
    """Builds one candidate a message, for ever."""
    gc.disable()
    count = 0
    while True:
        channel.send(*guarded(channel.receive(), work))
        count += 1
        if count % _COLLECT == 0:
            gc.collect()


class Builders:
    """Workers on this machine that build, one candidate each at a time. A context manager; make it before threads.

    Args:
        shop: what they have in memory.
        count: how many there are; one a core where that is 0.
        memory: bytes that each may take.
    """

    def __init__(self, shop: BuildShop, count: int, memory: int) -> None:
        self._zygote = Zygote({"build": shop.build})
        self._lanes = Lanes(self._zygote, memory)
        cores = sorted(os.sched_getaffinity(0))
        self._all = [
            Lane("build", (cores[k % len(cores)],), Failure.BUILD_ERROR, timed=False)
            for k in range(count or len(cores))
        ]

    @property
    def idle(self) -> bool:
        """Whether one of them has nothing to do."""
        return not all(lane.busy for lane in self._all)

    @property
    def busy(self) -> bool:
        """Whether one of them has something to do."""
        return any(lane.busy for lane in self._all)

    def begin(self, talk: Conversation) -> None:
        """Gives one that is idle something to do."""
        self._lanes.begin(next(lane for lane in self._all if not lane.busy), talk, {})

    def wait(self) -> None:
        """Waits until something happens."""
        self._lanes.wait()

    def stop(self) -> None:
        """Ends those that are busy, and what they do."""
        self._lanes.end_all(busy_only=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lanes.close()
        self._zygote.close()


def building(
    task: int,
    index: int,
    config: Config,
    timeout: float,
    built: Callable[[Built], None],
    failed: Callable[[int, Measurement], None],
) -> Conversation:
    """Asks a worker for one candidate.

    Args:
        task: its number.
        index: the candidate's position among those that are measured together.
        config: its configuration.
        timeout: seconds that it may take.
        built: is given the candidate.
        failed: is told with its position what became of one that cannot be built.
    """
    try:
        reply = yield Request({"task": task, "config": dict(config)}, b"", timeout, Failure.BUILD_TIMEOUT)
        took = seconds_in(reply)
        failure = failure_in(reply)
        scratch = 0 if failure else as_count(reply.header.get("scratch"))
    except LostError as error:
        failed(index, Measurement(None, failure=error.failure, message=error.message))
        raise
    if failure is not None:
        failed(index, Measurement(None, failure=failure[0], message=failure[1], build_seconds=took))
    else:
        built(Built(index, config, scratch, reply.body, took))
