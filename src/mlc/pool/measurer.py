"""Measuring on the boards of a pool: candidates are built by workers on this machine or of the pool, and sent there."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from mlc.errors import DeviceError, DocumentError, ScheduleError, UnsupportedError, WorkloadError
from mlc.lower.knobs import Config
from mlc.pool.building import BuildJob
from mlc.pool.client import LostWork, Pool, Ticket
from mlc.pool.jobs import Bench, MeasureJob, Results, Sent, Told, types_of
from mlc.pool.offers import building_for, require_tunable, resource_of
from mlc.pool.whole import PooledTurns
from mlc.pool.wish import Wish
from mlc.records.measurement import Failure, Measurement
from mlc.rewrite.workload import read_workload
from mlc.settings import CompileOptions
from mlc.targets.base import Target
from mlc.tuning.base import Done
from mlc.tuning.measure import MeasureOptions
from mlc.tuning.measure.building import Builders, BuildShop, Built, building
from mlc.tuning.measure.cases import case_bytes
from mlc.tuning.measure.frames import Message
from mlc.tuning.measure.lanes import Conversation, LostError
from mlc.tuning.measure.local import SETS
from mlc.tuning.task import Task, task_of

_LOGGER = logging.getLogger("mlc")


class PoolMeasurer:
    """Measures configurations of tasks in a pool. A context manager; make it before there are threads.

    Args:
        wish: how to reach the pool, and who builds.
        tasks: told by their positions.
        target: to compile for.
        threads: that run a kernel; as many as every fitting board has unless given.
        compile_options: optimisation level and exactness of the code.
        options: how to measure.
        rng: draws the seed of the inputs.

    Attributes:
        whole: compares whole models on a board; nothing where the boards are emulated, whose times say nothing.
    Raises:
        UnsupportedError: a task of the target's cannot be told in text.
        UsageError: there is no certificate for the pool.
        DeviceError: the pool cannot be reached, or has no board for the target, or nobody who builds for it.
    """

    def __init__(
        self,
        wish: Wish,
        tasks: Sequence[Task],
        target: Target,
        *,
        threads: int | None,
        compile_options: CompileOptions,
        options: MeasureOptions | None,
        rng: np.random.Generator,
    ) -> None:
        require_tunable(target)
        self.tasks = tuple(_as_told(task, target) for task in tasks)
        self.options = options or MeasureOptions()
        self.flushed = self.options.rule.flush
        self.peak = 0.0
        self._target, self._compiling = target, compile_options
        self._resource = resource_of(target)
        self._seed = int(rng.integers(0, 1 << 31))
        self._untuned: dict[int, Built] = {}
        with contextlib.ExitStack() as stack:
            self._here = None
            if not wish.builds:
                shop = BuildShop(self.tasks, target, compile_options)
                self._here = stack.enter_context(Builders(shop, self.options.builders, self.options.memory))
            self._pool = stack.enter_context(Pool(wish))
            emulated = resource_of(target, emulated=True)
            most = max(case_bytes(t, SETS) for t in tasks)
            boards = self._pool.wait_for(self._resource, most, otherwise=emulated)
            if not any(b.has(self._resource) for b in boards):
                self._resource = emulated
                _LOGGER.warning("%s: its boards are emulated, and their times say nothing", self._pool.url)
            if wish.builds:
                self._pool.wait_for(building_for(self._resource))
            self.threads = threads or min(b.threads for b in boards)
            if all(b.threads < self.threads for b in boards):
                most = max(b.threads for b in boards)
                raise DeviceError(f"{self._pool.url}: no board has {self.threads} threads", hint=f"{most} at most")
            self.whole = PooledTurns(self._pool, self._resource, self.threads) if self._resource != emulated else None
            self._stack = stack.pop_all()

    def measure(self, task: int, configs: Sequence[Config], done: Done | None = None) -> list[Measurement]:
        """Builds and measures configurations; see :class:`~mlc.tuning.base.Measurer`.

        Raises:
            DeviceError: the pool is gone, has no board any more, or refuses the work.
        """
        round_ = _Round(self, task, configs, done or (lambda _i, _m: None))
        return round_.run(together=False)

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        """Measures a few configurations in turns on one board, a sample each."""
        return _Round(self, task, configs, lambda _i, _m: None).run(together=True)

    def close(self) -> None:
        """Ends all processes and leaves the pool; twice is fine."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Round:
    """One call of ``measure`` or ``compare``."""

    def __init__(self, owner: PoolMeasurer, number: int, configs: Sequence[Config], done: Done) -> None:
        self._owner, self._number, self._configs, self._done = owner, number, configs, done
        self._results: dict[int, Measurement] = {}
        self._built: deque[Built] = deque()
        self._open: dict[Ticket, Callable[[Ticket], None]] = {}  # work on its way, and who takes what comes of it
        self._building = 0  # pieces of it that build

    def run(self, *, together: bool) -> list[Measurement]:
        """Builds all, sends each as soon as it is there, or all at once if they are to be compared."""
        owner = self._owner
        try:
            self._build_untuned()
            if len(self._results) < len(self._configs):
                self._build([self._talk(k, config) for k, config in enumerate(self._configs)], send=not together)
                if together and self._built:
                    self._send(list(self._built), together=True)
                while self._open:
                    self._take(self._next())
        except BaseException:
            if owner._here is not None:
                owner._here.stop()
            owner._pool.cancel(list(self._open))
            raise
        return [self._results[k] for k in range(len(self._configs))]

    def _build_untuned(self) -> None:
        """The candidate that all others of the task are compared with; where there is none nothing can be measured."""
        owner = self._owner
        if self._number in owner._untuned:
            return
        built: list[Built] = []
        failed: list[Measurement] = []
        config = dict(owner.tasks[self._number].space.default)
        self._build([self._talk(0, config, built.append, lambda _i, m: failed.append(m))], send=False)
        if built:
            owner._untuned[self._number] = built[0]
            return
        message = f"the untuned configuration cannot be built: {failed[0].message}"
        for index in range(len(self._configs)):
            self._finish(index, Measurement(None, failure=failed[0].failure, message=message))

    def _talk(
        self, index: int, config: Config, built: Callable[[Built], None] | None = None, failed: Done | None = None
    ) -> Conversation:
        timeout = self._owner.options.build_timeout
        return building(self._number, index, config, timeout, built or self._built.append, failed or self._finish)

    def _build(self, talks: Sequence[Conversation], *, send: bool) -> None:
        """Has candidates built, and sends each to a board as soon as it is there if that is wanted."""
        waiting, here = deque(talks), self._owner._here
        while waiting or self._building or (here is not None and here.busy):
            if here is None:
                while waiting:
                    self._order(waiting.popleft())
                if self._building:
                    self._take(self._next())
            else:
                while waiting and here.idle:
                    here.begin(waiting.popleft())
                here.wait()
                while (ticket := self._owner._pool.ready()) is not None:
                    self._take(ticket)
            while send and self._built:
                self._send([self._built.popleft()], together=False)

    def _order(self, talk: Conversation) -> None:
        """Asks a worker of the pool for what a conversation begins with."""
        owner = self._owner
        request = next(talk)
        config = request.header["config"]
        try:
            sent = Sent(config, 0, types_of(owner.tasks[self._number], owner._target, config))
        except ScheduleError as error:
            _lost(talk, LostError(Failure.REFUSED, error.message.splitlines()[0][:300]))
            return
        compiling = owner._compiling
        job = BuildJob(self._told, sent, compiling.opt_level, compiling.fast_math, request.timeout)
        ticket = owner._pool.send(job.parcel(), building_for(owner._resource))
        self._open[ticket] = partial(self._take_built, talk)
        self._building += 1

    def _take_built(self, talk: Conversation, ticket: Ticket) -> None:
        self._building -= 1
        try:
            answer = self._owner._pool.answer(ticket)
        except LostWork as error:
            _lost(talk, LostError(Failure.BUILD_ERROR, str(error)))
        except DocumentError as error:
            _lost(talk, LostError(Failure.BAD_REPLY, error.message[:300]))
        else:
            with contextlib.suppress(StopIteration, LostError):  # nonsense it has told by itself
                talk.send(Message(dict(answer.header), b"".join(answer.parts)))

    @property
    def _told(self) -> Told:
        owner = self._owner
        task = owner.tasks[self._number]
        return Told(owner._resource, task.document, task.margins, owner._pool.me)

    def _send(self, some: list[Built], *, together: bool) -> None:
        owner = self._owner
        task, options = owner.tasks[self._number], owner.options
        everything = [owner._untuned[self._number], *some]
        bench = Bench(self._told, owner.threads, options.rule, options.run_timeout, options.retries, owner._seed)
        sent = [Sent(b.config, b.scratch, types_of(task, owner._target, b.config)) for b in everything]
        job = MeasureJob(bench, tuple(sent), tuple(b.obj for b in everything), together)
        memory = case_bytes(task, SETS) + max(b.scratch for b in everything)
        ticket = owner._pool.send(job.parcel(), owner._resource, memory=memory)
        self._open[ticket] = partial(self._take_measured, some)

    def _take_measured(self, some: list[Built], ticket: Ticket) -> None:
        try:
            results = Results.of(self._owner._pool.answer(ticket).header, len(some))
        except LostWork as error:
            found = [Measurement(None, failure=Failure.RUN_CRASH, message=str(error))] * len(some)
        except DocumentError as error:
            found = [Measurement(None, failure=Failure.BAD_REPLY, message=error.message[:300])] * len(some)
        else:
            found = list(results.found)
            self._owner.peak = max(self._owner.peak, results.peak)
        for built, m in zip(some, found, strict=True):
            self._finish(built.index, replace(m, build_seconds=built.seconds))

    def _next(self) -> Ticket:
        return self._owner._pool.next(*{ticket.resource for ticket in self._open})

    def _take(self, ticket: Ticket) -> None:
        """What came of a piece of work; of one that an earlier round gave up, nothing."""
        take = self._open.pop(ticket, None)
        if take is not None:
            take(ticket)

    def _finish(self, index: int, measurement: Measurement) -> None:
        self._results[index] = measurement
        self._done(index, measurement)


def _lost(talk: Conversation, why: LostError) -> None:
    """Tells a conversation that nothing came of what it asked."""
    with contextlib.suppress(StopIteration, LostError):
        talk.throw(why)


def _as_told(task: Task, target: Target) -> Task:
    """The task as a board will have it from its text, without the model; its configurations are the same.

    Raises:
        UnsupportedError: it has none, or not all of it is in there.
    """
    try:
        read_workload(task.document)
        return task if task.constants is None else task_of(task.document, task.margins, target)
    except WorkloadError as error:
        raise UnsupportedError(
            f"{task.name}: cannot be measured in a pool: {error.message}",
            hint="tune it on a machine that has the device, without --pool",
        ) from None
