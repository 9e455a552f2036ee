"""Building candidates by workers, wherever they are measured then."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlc.lower.knobs import Config, frozen
from mlc.records.measurement import Failure, Measurement
from mlc.settings import CompileOptions
from mlc.targets.base import Target
from mlc.tuning.measure.builder import Builder
from mlc.tuning.measure.frames import Channel, Message
from mlc.tuning.measure.guard import Answer, guarded
from mlc.tuning.measure.lanes import Conversation, LostError, Request
from mlc.tuning.measure.replies import as_count, failure_in, seconds_in
from mlc.tuning.measure.zygote import Shared
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
        gc.disable()
        count = 0

        def work(message: Message) -> Answer:
            config = {name: frozen(value) for name, value in message.header["config"].items()}
            program = builder.build(self.tasks[message.header["task"]], config)
            return {"scratch": program.scratch}, program.data

        while True:
            channel.send(*guarded(channel.receive(), work))
            count += 1
            if count % _COLLECT == 0:
                gc.collect()


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
