"""Measuring on this machine: candidates are built by workers and run, one at a time, by an isolated child.

Workers build on the cores on which no times are taken, while the runner runs what is ready. When nothing is ready, the
timed cores build as well; while they do, nothing runs. So times are never taken on a core that does something else.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from mlc.errors import DeviceError
from mlc.ir import te
from mlc.ir.cost import products
from mlc.ir.graph import express
from mlc.lower.knobs import Config
from mlc.records.measurement import Failure, Measurement
from mlc.settings import CompileOptions
from mlc.targets.base import Target
from mlc.targets.bench import Bench
from mlc.tuning.base import Done
from mlc.tuning.measure.building import Built, building
from mlc.tuning.measure.cases import case_bytes
from mlc.tuning.measure.cores import cores_for, siblings, timed_cores
from mlc.tuning.measure.frames import Message
from mlc.tuning.measure.kept import Kept, Key, key_of
from mlc.tuning.measure.lanes import Conversation, Lane, Lanes, LostError, Request
from mlc.tuning.measure.replies import as_items, as_positive, as_timing, failure_in, refusal_in, seconds_in
from mlc.tuning.measure.roles import Workshop
from mlc.tuning.measure.rounds import Round, State, faster, round_of
from mlc.tuning.measure.timing import BEHIND, Drift, Patience, Rule, Timing
from mlc.tuning.measure.turns import Turns
from mlc.tuning.measure.zygote import Zygote
from mlc.tuning.task import Task

SETS = 2  # of inputs that a candidate is checked on
GATHERED = 16  # candidates that the timed cores build before they run any: their last build is waited for once
_MARGIN = 1.02  # times as fast as the measured roof, from which a time is too good to be true
_DOUBTS = 3  # times that the roof is measured once more before a time is refused
_CASE_TIMEOUT = 120.0
_KEPT = 512 << 20  # bytes of inputs and results, of all tasks together
# who did that may have written over anything in its process, or has lost the device for all that the process holds
_DISTRUST = (Failure.WRONG_MEMORY, Failure.BAD_REPLY, Failure.RUN_CRASH)


@dataclass(frozen=True)
class MeasureOptions:
    """How to measure.

    Args:
        build_timeout: seconds that building one candidate may take.
        run_timeout: seconds that checking or timing one may take.
        memory: bytes that a worker may take beyond what it starts with, unless it opens a device.
        cores: on which times are taken; the last ones of those available unless given.
        builders: most workers that build at a time; one for each core unless given.
        rule: of timing.
        retries: how often a candidate is timed again because the machine changed its speed meanwhile.
    """

    build_timeout: float = 10.0
    run_timeout: float = 10.0
    memory: int = 4 << 30
    cores: tuple[int, ...] = ()
    builders: int = 0
    rule: Rule = field(default_factory=Rule)
    retries: int = 2


class LocalMeasurer:
    """Measures configurations of tasks on this machine. A context manager; make it before there are threads.

    Args:
        tasks: told by their positions.
        target: to compile for.
        bench: what candidates are run on; the target's own unless given.
        threads: that run a kernel.
        compile_options: optimisation level and exactness of the code.
        options: how to measure.
        rng: draws the seeds of the inputs.
    Raises:
        DeviceError: this machine cannot run the target's code.
        UsageError: there are fewer cores than ``threads``, or some of ``cores`` are not available.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        target: Target,
        bench: Bench | None = None,
        *,
        threads: int,
        compile_options: CompileOptions,
        options: MeasureOptions | None = None,
        rng: np.random.Generator,
    ) -> None:
        options = options or MeasureOptions()
        bench = target.bench(options.rule.flush) if bench is None else bench
        available = sorted(os.sched_getaffinity(0))
        # whatever else goes on, a computed time is the same
        timed = () if bench.exact else timed_cores(options.cores, threads, available)
        spare = cores_for(available, timed, siblings)
        self.tasks = tuple(tasks)
        self.threads = threads
        self.flushed = options.rule.flush
        self.turns = Turns(bench.device)
        self._bench = bench
        self._exact = bench.exact
        self._computed: dict[tuple[int, Key], Measurement] = {}
        self._kept = Kept()
        self.options = options
        self.peak = 0.0  # operations a second of one core, the most that was seen
        seeds = tuple(int(s) for s in rng.integers(0, 1 << 31, SETS))
        bench.require()
        shop = Workshop(self.tasks, target, compile_options, options.rule, threads, seeds, bench)
        self._zygote = Zygote(shop.roles())
        self._lanes = Lanes(self._zygote, options.memory)
        others = [c for c in available if c not in spare]
        build = [Lane("build", (c,), Failure.BUILD_ERROR, timed=False) for c in spare]
        build += [Lane("build", (c,), Failure.BUILD_ERROR, timed=True) for c in others]
        self._builders = build[: options.builders or len(build)]
        self._caser = Lane("case", spare or timed, Failure.RUN_CRASH, timed=not spare)
        self._runner = Lane("run", timed or spare, Failure.RUN_CRASH, timed=True, limited=not bench.device)
        self._runs_task = -1
        self._fresh = True  # whether the runner knows nothing yet
        self._cases: dict[int, int] = {}  # bytes of what is in shared memory, by task
        self._handles = 0
        self._patience = Patience(options.retries)
        self._states = [State() for _ in tasks]
        self._products = [_products(t) / target.most_products(t.terms) for t in tasks]
        self._end = weakref.finalize(self, _close, self._lanes, self._zygote, os.getpid())

    def measure(self, task: int, configs: Sequence[Config], done: Done | None = None) -> list[Measurement]:
        """Builds and measures configurations.

        Args:
            task: position of the task.
            configs: what to measure.
            done: told of each result as soon as it is known, with the position of its configuration.
        Returns:
            one result a configuration, in order; a failure of a configuration is a result.
        Raises:
            DeviceError: the device is gone; what it was busy with has no result.
        """
        with self.turns.mine():
            results = self._go(round_of(task, configs, done or (lambda _i, _m: None)))
        if self._exact:
            self._computed |= {(task, key_of(c)): m for c, m in zip(configs, results, strict=True) if m.seconds}
        return results

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        """Measures a few configurations in turns, a sample each, for a last decision between them.

        Three kinds of luck are shared out so. Disturbances of the machine meet all. Which memory a candidate gets and
        where its code lies make one of several equal ones up to a twelfth faster than another (depthwise convolutions
        of 1.5 MB, in a virtual machine), so all are loaded three times in other orders, and the fastest time of each
        counts. And what is in the caches when a sample begins is seen to by :func:`take_in_turns`.
        """
        known = [self._computed.get((task, key_of(c))) for c in configs]  # what was computed stays as it is
        found = [m for m in known if m is not None]
        if len(found) == len(configs):
            return found
        work = round_of(task, configs, lambda _i, _m: None, together=True)
        for index, config in enumerate(configs):
            if (built := self._built_before(task, config)) is not None:
                work.waiting.remove(index)
                work.ready.append(replace(built, index=index))
        with self.turns.mine():
            results = self._compare(work)
        for index, built in work.loaded.items():
            if (seconds := results[index].seconds) is not None:
                self._kept.add(task, seconds, built)
        return results

    def _built_before(self, task: int, config: Config) -> Built | None:
        untuned = self._states[task].untuned
        if untuned is not None and key_of(untuned.config) == key_of(config):
            return untuned
        return self._kept.find(task, config)

    def _compare(self, work: Round) -> list[Measurement]:
        """The fastest time of each candidate of a round in which they are measured in turns."""
        results = self._go(work)
        if self._exact:
            return results
        loaded = [b for k, b in sorted(work.loaded.items()) if results[k].seconds is not None]
        half = len(loaded) // 2
        for order in (loaded[::-1], loaded[half:] + loaded[:half]):
            again = Round(work.number, work.configs, lambda _i, _m: None, together=True, known=True)
            again.ready.extend(b for b in order if results[b.index].seconds is not None)
            again.results.update({k: m for k, m in enumerate(results) if m.seconds is None})
            results = [faster(a, b) for a, b in zip(results, self._go(again), strict=True)]
        return results

    def measure_built(
        self,
        task: int,
        untuned: Built,
        built: Sequence[Built],
        *,
        together: bool = False,
        done: Done | None = None,
    ) -> list[Measurement]:
        """Measures candidates that were built elsewhere.

        Args:
            task: position of the task.
            untuned: the candidate of its default configuration, which is the anchor.
            built: what to measure; their positions are counted from 0.
            together: in turns, as :meth:`compare` does it.
            done: as for :meth:`measure`.
        Returns, Raises:
            as for :meth:`measure`.
        """
        if self._states[task].untuned is None:
            self._states[task].untuned = untuned
        said: Done = done or (lambda _i, _m: None)
        work = Round(task, [b.config for b in built], (lambda _i, _m: None) if together else said, together)
        work.ready.extend(built)
        with self.turns.mine():
            if not together:
                return self._go(work)
            results = self._compare(work)
        for index, result in enumerate(results):
            said(index, result)
        return results

    def reference(self, task: int) -> str:
        """How the results were made that candidates are compared with: ``interpreter`` or ``untuned``; or nothing."""
        return self._states[task].case

    def close(self) -> None:
        """Ends all processes; twice is fine."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- who does what, when ------------------------------------------------------------------------------------------
    def _go(self, work: Round) -> list[Measurement]:
        self._states[work.number].broken = None  # it may have been the machine's fault
        try:
            while len(work.results) < len(work.configs):
                self._dispatch(work)
                self._lanes.wait()
        except BaseException:
            self._lanes.end_all(busy_only=True)
            raise
        return [work.results[k] for k in range(len(work.configs))]

    def _dispatch(self, work: Round) -> None:
        """Gives work to everyone who may have some."""
        state = self._states[work.number]
        if state.broken is not None:
            for index in [k for k in range(len(work.configs)) if k not in work.results]:
                work.finish(index, state.broken)
            self._lanes.end_all(busy_only=True)
            return
        if state.untuned is None:
            idle = next((b for b in self._builders if not b.busy), None)
            if idle is not None and not any(b.busy for b in self._builders):
                self._lanes.begin(idle, self._build_untuned(work, state), {})
        elif not state.case and not self._caser.busy:
            self._start_case(work, state)
        self._dispatch_run(work, state)
        for lane in self._builders:
            if not work.waiting:
                break
            blocked = lane.timed and (self._runner.busy or self._gathered(work) or self._timed_case())
            if not lane.busy and not blocked:
                self._lanes.begin(lane, self._build(work, work.waiting.popleft()), {})

    def _dispatch_run(self, work: Round, state: State) -> None:
        building = [b for b in self._builders if b.busy]
        wanted = self._gathered(work)
        free = not self._runner.busy and not any(b.timed for b in building) and not self._timed_case()
        if wanted and free and state.case:
            if self._runs_task != work.number:
                self._lanes.end(self._runner)
                self._runs_task = work.number
            self._fresh = self._runner.worker is None
            talk = self._together(work, state) if work.together else self._trial(work, state, work.ready.popleft())
            self._lanes.begin(self._runner, talk, {"task": work.number})

    def _gathered(self, work: Round) -> bool:
        """Whether it is time to run what is ready; the timed cores build nothing from then on until all of it has."""
        if work.together:
            return bool(work.ready) and not work.waiting and not any(b.busy for b in self._builders)
        if not work.ready:
            work.running &= self._runner.busy
            return False
        work.running |= len(work.ready) >= GATHERED or not work.waiting or not any(b.timed for b in self._builders)
        return work.running

    def _timed_case(self) -> bool:
        return self._caser.busy and self._caser.timed

    # -- conversations ------------------------------------------------------------------------------------------------
    def _build(self, work: Round, index: int) -> Conversation:
        timeout = self.options.build_timeout
        return building(work.number, index, work.configs[index], timeout, work.ready.append, work.finish)

    def _build_untuned(self, work: Round, state: State) -> Conversation:
        alone = Round(work.number, [dict(self.tasks[work.number].space.default)], lambda _i, _m: None)
        try:
            yield from self._build(alone, 0)
        finally:
            if alone.ready:
                state.untuned = alone.ready[0]
            elif alone.results:
                state.broken = _unmeasurable(alone.results[0])

    def _start_case(self, work: Round, state: State) -> None:
        needed = case_bytes(self.tasks[work.number], SETS)
        kept = self._cases
        kept.pop(work.number, None)
        while kept and sum(kept.values()) + needed > _KEPT:
            oldest = next(iter(kept))
            del kept[oldest]
            self._states[oldest].case = ""
            self._zygote.forget(f"case{oldest}")
        kept[work.number] = needed
        self._zygote.share(f"case{work.number}", needed)
        self._lanes.end(self._caser)
        self._lanes.begin(self._caser, self._make_case(state), {"task": work.number})

    def _make_case(self, state: State) -> Conversation:
        untuned = state.untuned
        assert untuned is not None
        header = {"scratch": untuned.scratch}
        try:
            reply = yield Request(header, untuned.obj, _CASE_TIMEOUT, Failure.RUN_TIMEOUT)
            self._require_taken(reply)
            failed = failure_in(reply)
        except LostError as error:
            failed = error.failure, error.message
        if failed is not None:
            state.broken = _unmeasurable(Measurement(None, failure=failed[0], message=failed[1]))
        else:
            state.case = str(reply.header.get("how"))

    def _trial(self, work: Round, state: State, built: Built) -> Conversation:
        """Loads a candidate, times it until the machine holds still, drops it."""
        took = 0.0
        begun = False
        lost: LostError | None = None
        result: Measurement | None = None
        try:
            yield from self._begin_runner(state)
            begun = True
            handle = self._next_handle()
            reply = yield self._load(handle, built)
            took += seconds_in(reply)
            failed = failure_in(reply)
            if failed is None:
                retries = self._patience.times
                for attempt in range(1 + retries):
                    reply = yield self._ask({"op": "time", "handle": handle, "record": state.aim})
                    took += seconds_in(reply)
                    failed = failure_in(reply)
                    if failed is None:
                        last = attempt == retries or took > self.options.rule.budget
                        yield from self._doubt(work.number, as_timing(reply.header.get("samples")).seconds)
                        result = self._judge(work.number, state, reply, last)
                    if failed is not None or result is not None:
                        break
                if failed is None or failed[0] not in _DISTRUST:
                    yield self._ask({"op": "drop", "handles": [handle]})
            if failed is not None and failed[0] in _DISTRUST:
                raise LostError(*failed)
        except LostError as error:
            lost = error
            if not begun:
                state.broken = _unmeasurable(Measurement(None, failure=error.failure, message=error.message))
            known = Measurement(None, failure=error.failure, message=error.message) if begun else state.broken
            assert known is not None
            failed = error.failure, known.message
        if failed is not None:
            if failed[0] is Failure.RUN_CRASH and self._bench.device:
                self._bench.require()  # where the device is gone, it is no candidate's fault, and nothing is left to do
            result = Measurement(None, failure=failed[0], message=failed[1])
        assert result is not None
        if work.kept and result.seconds is not None:
            self._kept.add(work.number, result.seconds, built)
        work.finish(built.index, _with_times(result, built.seconds, took))
        if lost is not None:
            raise lost

    def _together(self, work: Round, state: State) -> Conversation:
        """Loads all candidates, then times them in turns."""
        loaded: dict[int, Built] = {}
        current: Built | None = None
        try:
            yield from self._begin_runner(state)
        except LostError as error:
            state.broken = _unmeasurable(Measurement(None, failure=error.failure, message=error.message))
            raise
        try:
            while work.ready:
                current = work.ready.popleft()
                handle = self._next_handle()
                reply = yield self._load(handle, current, known=work.known)
                failed = failure_in(reply)
                if failed is None:
                    loaded[handle] = work.loaded[current.index] = current
                elif failed[0] in _DISTRUST:
                    raise LostError(*failed)
                else:
                    work.finish(current.index, Measurement(None, failure=failed[0], message=failed[1]))
            current = None
            if loaded:
                reply = yield self._ask({"op": "turns", "handles": list(loaded)}, times=2 * len(loaded))
                failed = failure_in(reply)
                if failed is not None:
                    raise LostError(*failed)
                timings = [as_timing(s) for s in as_items(reply.header.get("samples"), len(loaded))]
                yield from self._doubt(work.number, min(t.seconds for t in timings))
                _, scale = self._moved(state, reply)
                each = seconds_in(reply) / len(loaded)
                yield self._ask({"op": "drop", "handles": list(loaded)})
                for built, timing in zip(loaded.values(), timings, strict=True):
                    result = self.plausible(work.number, timing, scale, timing.noisy)
                    work.finish(built.index, _with_times(result, built.seconds, each))
        except LostError as error:
            guilty = [current] if current is not None else [b for b in loaded.values() if b.index not in work.results]
            for built in guilty:
                work.finish(built.index, Measurement(None, failure=error.failure, message=error.message))
            # the innocent have their turn again, without the guilty
            if current is not None:
                work.ready.extend(loaded.values())
            raise

    def _begin_runner(self, state: State) -> Conversation:
        """Makes a new runner ready: the machine's roof, and the untuned candidate as the anchor."""
        if not self._fresh:
            return
        self._fresh = False
        assert state.untuned is not None
        yield from self._measure_peak()
        handle = self._next_handle()
        reply = yield self._load(handle, state.untuned)
        self._require_taken(reply)
        failed = failure_in(reply)
        if failed is None:
            reply = yield self._ask({"op": "anchor", "handle": handle})
            failed = failure_in(reply)
        if failed is not None:
            raise LostError(*failed)
        base = as_positive(reply.header.get("ns"))
        if state.drift is None:
            state.drift = Drift(base)
            state.record = base / 1e9

    def _require_taken(self, reply: Message) -> None:
        """The device has taken the untuned candidate: where it has no memory for it, or cannot read its code, no other
        one is to blame for that, and nothing is left to do.
        """
        refused = refusal_in(reply)
        if refused is not None and self._bench.device:
            raise DeviceError(f"nothing can be measured on {self._bench.device}: {refused[0]}", hint=refused[1])

    def _doubt(self, number: int, seconds: float) -> Conversation:
        """Measures the roof again where a time is above it."""
        for _ in range(_DOUBTS):
            if seconds >= self.least_seconds(number):
                break
            yield from self._measure_peak()

    def _measure_peak(self) -> Conversation:
        """The roof, once more: it was too low if somebody else had the core meanwhile."""
        reply = yield self._ask({"op": "peak"})
        flops = reply.header.get("flops")
        self.peak = max(self.peak, as_positive(flops) if flops else 0.0)

    def _next_handle(self) -> int:
        self._handles += 1
        return self._handles

    def _load(self, handle: int, built: Built, *, known: bool = False) -> Request:
        header = {
            "op": "load", "handle": handle, "config": dict(built.config), "scratch": built.scratch, "known": known,
        }  # fmt: skip
        return Request(header, built.obj, self.options.run_timeout, Failure.RUN_TIMEOUT)

    def _ask(self, header: dict[str, Any], times: int = 1) -> Request:
        return Request(header, b"", self.options.run_timeout * times, Failure.RUN_TIMEOUT)

    # -- judgement ----------------------------------------------------------------------------------------------------
    def _judge(self, number: int, state: State, reply: Message, last: bool) -> Measurement | None:
        """A reply's measurement; nothing if the machine was restless and there is another chance."""
        timing = as_timing(reply.header.get("samples"))
        steady, scale = self._moved(state, reply)
        self._patience.learn(not steady)
        if not self._exact and sum(timing.ns) > 1.01e9 * seconds_in(reply):
            raise LostError(Failure.BAD_REPLY, "its samples take longer than all its work")
        if not steady and not last and timing.seconds * scale < BEHIND * state.record:
            return None
        found = self.plausible(number, timing, scale, timing.noisy or not steady)
        if found.seconds is not None and not found.noisy:
            state.record = min(state.record, found.seconds)
        return found

    def _moved(self, state: State, reply: Message) -> tuple[bool, float]:
        """What the anchor says; see :meth:`Drift.judge`."""
        before, after = (as_positive(v) for v in as_items(reply.header.get("anchor"), 2))
        assert state.drift is not None
        return state.drift.judge(before, after)

    def plausible(self, number: int, timing: Timing, scale: float, noisy: bool) -> Measurement:
        """A time on the scale of the fastest machine, as far as the roof allows.

        Args:
            number: of the task.
            timing: what was measured.
            scale: what times are to be multiplied by.
            noisy: whether the machine moved meanwhile, or the samples differ.
        """
        least = self.least_seconds(number)
        if timing.seconds < least:
            message = f"{timing.seconds:.3g} s a call; this machine takes {least:.3g} s at least"
            return Measurement(None, failure=Failure.IMPLAUSIBLE, message=message)
        if timing.seconds * scale < least:  # the anchor was disturbed, and not the candidate
            return Measurement(timing.seconds, timing.spread, noisy=True)
        return Measurement(timing.seconds * scale, timing.spread * scale, noisy=noisy)

    def least_seconds(self, number: int) -> float:
        """What a call of a task takes at least: all cores add up its products all the time, or store half of it.

        Nothing is known of a machine that does not say how fast that is.
        """
        if not self.peak:
            return 0.0
        task = self.tasks[number]
        written = sum(v.type.nbytes for v in task.node.outputs)
        return max(2 * self._products[number], written / 2) / (self.peak * self.threads * _MARGIN)


def _products(task: Task) -> float:
    """Products that a task's sums add up: what else it does has other ports of a core."""
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in task.node.inputs]
    return products(list(express(task.node, operands)))


def _close(lanes: Lanes, zygote: Zygote, owner: int) -> None:
    if os.getpid() == owner:  # a child that was forked for something else has a copy
        try:
            lanes.close()
        finally:
            zygote.close()


def _unmeasurable(measurement: Measurement) -> Measurement:
    message = f"the untuned configuration cannot be measured: {measurement.message}"
    return Measurement(None, failure=measurement.failure, message=message)


def _with_times(m: Measurement, build: float, run: float) -> Measurement:
    return Measurement(m.seconds, m.spread, m.failure, m.message, m.noisy, build, run)
