"""Measuring on the boards of a pool: candidates are built by workers on this machine, and sent where they belong."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from mlc.errors import DeviceError, DocumentError, UnsupportedError, WorkloadError
from mlc.lower.knobs import Config
from mlc.pool.client import LostWork, Pool, Ticket
from mlc.pool.jobs import Bench, MeasureJob, Results, Sent, types_of
from mlc.pool.offers import resource_of
from mlc.pool.wish import Wish
from mlc.records.measurement import Failure, Measurement
from mlc.rewrite.workload import read_workload
from mlc.settings import CompileOptions
from mlc.targets.base import Target
from mlc.tuning.base import Done
from mlc.tuning.measure import MeasureOptions
from mlc.tuning.measure.building import BuildShop, Built, building
from mlc.tuning.measure.cases import case_bytes
from mlc.tuning.measure.lanes import Lane, Lanes
from mlc.tuning.measure.local import SETS
from mlc.tuning.measure.zygote import Zygote
from mlc.tuning.task import Task, candidate


class PoolMeasurer:
    """Measures configurations of tasks in a pool. A context manager; make it before there are threads.

    Args:
        wish: how to reach the pool.
        tasks: told by their positions.
        target: to compile for.
        threads: that run a kernel; as many as every fitting board has unless given.
        compile_options: optimisation level and exactness of the code.
        options: how to measure.
        rng: draws the seed of the inputs.
    Raises:
        UnsupportedError: a task cannot be told in text.
        UsageError: there is no certificate for the pool.
        DeviceError: the pool cannot be reached, or has no board for the target.
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
        self.tasks = tuple(tasks)
        self.options = options or MeasureOptions()
        self.flushed = self.options.rule.flush
        self.peak = 0.0
        self._target = target
        self._resource = resource_of(target)
        self._seed = int(rng.integers(0, 1 << 31))
        self._documents = [_document(task) for task in tasks]
        self._untuned: dict[int, Built] = {}
        zygote = Zygote({"build": BuildShop(self.tasks, target, compile_options).build})
        with contextlib.ExitStack() as stack:
            stack.callback(zygote.close)
            self._lanes = Lanes(zygote, self.options.memory)
            stack.callback(self._lanes.close)
            cores = sorted(os.sched_getaffinity(0))
            count = self.options.builders or len(cores)
            self._builders = [
                Lane("build", (cores[k % len(cores)],), Failure.BUILD_ERROR, timed=False) for k in range(count)
            ]
            self._pool = stack.enter_context(Pool(wish))
            boards = self._pool.wait_for(self._resource, max(case_bytes(t, SETS) for t in tasks))
            self.threads = threads or min(b.threads for b in boards)
            if all(b.threads < self.threads for b in boards):
                most = max(b.threads for b in boards)
                raise DeviceError(f"{self._pool.url}: no board has {self.threads} threads", hint=f"{most} at most")
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
        self._sent: dict[Ticket, list[Built]] = {}

    def run(self, *, together: bool) -> list[Measurement]:
        """Builds all, sends each as soon as it is there, or all at once if they are to be compared."""
        waiting = deque(range(len(self._configs)))
        try:
            self._build_untuned()
            if len(self._results) < len(self._configs):
                while waiting or self._busy:
                    for lane in [lane for lane in self._owner._builders if not lane.busy][: len(waiting)]:
                        self._begin(lane, waiting.popleft())
                    self._owner._lanes.wait()
                    if not together:
                        self._send_each()
                    self._take_ready()
                if together and self._built:
                    self._send(list(self._built), together=True)
                while self._sent:
                    self._take(self._owner._pool.next(self._owner._resource))
        except BaseException:
            self._owner._lanes.end_all(busy_only=True)
            self._owner._pool.cancel(list(self._sent))
            raise
        return [self._results[k] for k in range(len(self._configs))]

    @property
    def _busy(self) -> bool:
        return any(lane.busy for lane in self._owner._builders)

    def _begin(self, lane: Lane, index: int) -> None:
        timeout = self._owner.options.build_timeout
        talk = building(self._number, index, self._configs[index], timeout, self._built.append, self._finish)
        self._owner._lanes.begin(lane, talk, {})

    def _build_untuned(self) -> None:
        """The candidate that all others of the task are compared with; where there is none nothing can be measured."""
        owner = self._owner
        if self._number in owner._untuned:
            return
        built: list[Built] = []
        failed: list[Measurement] = []
        config = dict(owner.tasks[self._number].space.default)
        talk = building(
            self._number, 0, config, owner.options.build_timeout, built.append, lambda _i, m: failed.append(m)
        )
        lane = owner._builders[0]
        owner._lanes.begin(lane, talk, {})
        while lane.busy:
            owner._lanes.wait()
        if built:
            owner._untuned[self._number] = built[0]
            return
        message = f"the untuned configuration cannot be built: {failed[0].message}"
        for index in range(len(self._configs)):
            self._finish(index, Measurement(None, failure=failed[0].failure, message=message))

    def _send_each(self) -> None:
        while self._built:
            self._send([self._built.popleft()], together=False)

    def _send(self, some: list[Built], *, together: bool) -> None:
        owner = self._owner
        task, options = owner.tasks[self._number], owner.options
        everything = [owner._untuned[self._number], *some]
        bench = Bench(
            owner._resource, owner._documents[self._number], task.margins, owner.threads, options.rule,
            options.run_timeout, options.retries, owner._seed, owner._pool.me,
        )  # fmt: skip
        sent = [Sent(b.config, b.scratch, types_of(candidate(task, owner._target, b.config))) for b in everything]
        job = MeasureJob(bench, tuple(sent), tuple(b.obj for b in everything), together)
        memory = case_bytes(task, SETS) + max(b.scratch for b in everything)
        ticket = owner._pool.send(job.parcel(), owner._resource, memory=memory)
        self._sent[ticket] = some

    def _take_ready(self) -> None:
        while (ticket := self._owner._pool.ready()) is not None:
            self._take(ticket)

    def _take(self, ticket: Ticket) -> None:
        """What came of a piece of work; of one that an earlier round gave up, nothing."""
        some = self._sent.pop(ticket, None)
        if some is None:
            return
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

    def _finish(self, index: int, measurement: Measurement) -> None:
        self._results[index] = measurement
        self._done(index, measurement)


def _document(task: Task) -> Any:
    """The task's text, by which a board has it again.

    Raises:
        UnsupportedError: it has none.
    """
    try:
        read_workload(task.document)
    except WorkloadError as error:
        raise UnsupportedError(
            f"{task.name}: cannot be measured in a pool: {error.message}",
            hint="tune it on a machine that has the device, without --pool",
        ) from None
    return task.document
