"""Building a candidate as a job for a worker of the pool: a task's text and a configuration, and the process there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlc.errors import MlcError
from mlc.fields import Fields, as_flag, as_number, as_whole
from mlc.pool.jobs import Sent, Told, key_of, require_same
from mlc.pool.offers import Kind
from mlc.pool.parcel import Parcel
from mlc.pool.processes import received
from mlc.pool.session import Place
from mlc.settings import MAX_OPT_LEVEL, CompileOptions
from mlc.tuning.measure.builder import Builder
from mlc.tuning.measure.building import answer_builds
from mlc.tuning.measure.frames import Channel, Message
from mlc.tuning.measure.guard import Answer
from mlc.tuning.measure.zygote import Shared
from mlc.tuning.task import Task

_SECONDS = 600.0  # that building may take, whatever a client wants


@dataclass(frozen=True)
class BuildJob:
    """A candidate to build.

    Args:
        told: the task.
        candidate: what to build.
        opt_level, fast_math: of the compilation, see :class:`~mlc.settings.CompileOptions`.
        timeout: seconds that it may take.
    """

    told: Told
    candidate: Sent
    opt_level: int
    fast_math: bool
    timeout: float

    def parcel(self) -> Parcel:
        header = {**vars(self), "told": self.told.to_json(), "candidate": self.candidate.to_json()}
        return Parcel(Kind.BUILD, header)

    @property
    def key(self) -> str:
        """Tells it from candidates of other tasks, clients and compilations."""
        return key_of({"told": self.told.to_json(), "how": [self.opt_level, self.fast_math]})

    @classmethod
    def of(cls, parcel: Parcel) -> BuildJob:
        """The job in a parcel.

        Raises:
            DocumentError: there is none.
        """
        get = Fields(parcel.header, "")
        made = cls(
            get.take("told", Told.from_json),
            get.take("candidate", Sent.from_json),
            get.take("opt_level", as_whole(0, MAX_OPT_LEVEL)),
            get.take("fast_math", as_flag),
            min(_SECONDS, get.take("timeout", as_number)),
        )
        get.end()
        return made


@dataclass(frozen=True)
class Shop:
    """What processes that build have in memory.

    Args:
        places: targets, by number.
    """

    places: Sequence[Place]

    def build(self, channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
        """Builds candidates of one task: ``{header, sizes}`` in, ``{scratch}`` and a program out, or a refusal."""
        target = self.places[args["place"]].target
        known: tuple[Task, Builder] | None = None

        def work(message: Message) -> Answer:
            nonlocal known
            try:
                job = BuildJob.of(received(message))
                if known is None:
                    options = CompileOptions("pool", "", "", opt_level=job.opt_level, fast_math=job.fast_math)
                    known = job.told.task(target), Builder(target, options)
                task, builder = known
                require_same(task, target, job.candidate, "candidate")
            except MlcError as error:
                return {"refused": error.message}, b""
            program = builder.build(task, job.candidate.config)
            return {"scratch": program.scratch}, program.data

        answer_builds(channel, work)
