"""What the workers do: build candidates, make a task's inputs and reference, run candidates."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc.lower.knobs import Config, frozen
from mlc.settings import CompileOptions
from mlc.targets.base import Target
from mlc.targets.bench import Bench, Program, Stand
from mlc.tuning.measure.building import BuildShop
from mlc.tuning.measure.candidate import Candidate, CandidateError, Packed, difference, rounds_floats
from mlc.tuning.measure.cases import INTERPRETED, Case, Reference, cases_in, draw_inputs
from mlc.tuning.measure.frames import Channel, Message
from mlc.tuning.measure.guard import Answer, guarded
from mlc.tuning.measure.timing import FEWEST, Patience, Rule, Sample, Timing, take, take_in_turns
from mlc.tuning.measure.zygote import Role, Shared
from mlc.tuning.task import Task, candidate

_ANCHOR_AGE = 0.3  # seconds for which a reading of the anchor holds
_ANCHOR_SHARE = 8  # ... or times what a reading takes
_ANCHOR_RUNS = 4  # of which the fastest counts
_ANCHOR_COLD = 8  # ... where each is a single call with caches empty


@dataclass(frozen=True)
class Workshop:
    """What the zygote has in memory for its workers.

    Args:
        tasks: by number.
        target: to compile for.
        options: how to compile.
        rule: how to time.
        threads: of the pool.
        seeds: of the sets of inputs.
        bench: what candidates are run on.
    """

    tasks: Sequence[Task]
    target: Target
    options: CompileOptions
    rule: Rule
    threads: int
    seeds: tuple[int, ...]
    bench: Bench

    def roles(self) -> dict[str, Role]:
        build = BuildShop(self.tasks, self.target, self.options).build
        return {"build": build, "case": self.case, "run": self.run}

    def case(self, channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
        """Makes the inputs and results of a task in the shared memory ``case``.

        Results are the interpreter's where it is quick enough; else those of the untuned candidate, of which the
        interpreter computes some elements. ``{scratch}`` and the untuned candidate's program in, ``{how}`` out.
        """
        task = self.tasks[args["task"]]
        cases = cases_in(shared[f"case{args['task']}"], task, len(self.seeds))

        def make(message: Message) -> Answer:
            draw_inputs(task, cases, self.seeds)
            reference = Reference(task.node)
            if reference.seconds * len(cases) <= INTERPRETED:
                # where memory does not suffice for it, there is another way
                with contextlib.suppress(MemoryError):
                    for case in cases:
                        for place, result in zip(case.results, reference.results(case.inputs), strict=True):
                            place[...] = result
                    return {"how": "interpreter"}, b""
            node = candidate(task, self.target, task.space.default)
            program = Program(message.body, message.header["scratch"])
            untuned = Candidate(self.bench.open(1), program, node, task.held)
            packed, rng = Packed(cases), np.random.default_rng(self.seeds[0])
            for number, case in enumerate(cases):
                untuned.run(packed, number)
                for place, result in zip(case.results, untuned.results(), strict=True):
                    place[...] = result
                for v, (got, expected) in zip(task.node.outputs, reference.spot_check(case, rng), strict=False):
                    # the tolerance follows the largest element of all, not of those looked at
                    both, rounded = _with_largest(got, expected, case.results), rounds_floats(task.node)
                    difference(f"untuned {v.name}", *both, rounded=rounded)
            return {"how": "untuned"}, b""

        channel.send(*guarded(channel.receive(), make))

    def run(self, channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
        """Runs candidates of one task; see :class:`Runner` for what it understands."""
        gc.disable()
        task, memory = self.tasks[args["task"]], shared[f"case{args['task']}"]
        _protect(memory)
        kind = ExactRunner if self.bench.exact else Runner
        runner = kind(self, task, self.bench.open(self.threads), cases_in(memory, task, len(self.seeds)))
        while True:
            channel.send(*guarded(channel.receive(), runner.answer))


class Runner:
    """The candidates of a task in the process that runs them.

    It understands ``load`` (links and checks a candidate), ``time`` (one candidate), ``turns`` (several, a sample each
    in turn), ``drop``; ``anchor`` says which one is the anchor, and ``peak`` how fast a core multiplies and adds.
    """

    def __init__(self, shop: Workshop, task: Task, stand: Stand, cases: Sequence[Case]) -> None:
        self._shop, self._task, self._stand = shop, task, stand
        self._packed = Packed(cases)
        self._loaded: dict[int, Candidate] = {}
        self._anchor: tuple[Sample, int] | None = None
        self._patience = Patience()
        self._last = (0.0, 0.0, 0.0)  # the anchor's last time, when that was, and what it took

    def answer(self, message: Message) -> Answer:
        op, header = message.header["op"], message.header
        handlers: dict[str, Callable[[], dict[str, Any]]] = {
            "load": lambda: self._load(
                header["handle"], header["config"], header["scratch"], message.body, known=header["known"]
            ),
            "time": lambda: self._time(header["handle"], header["record"]),
            "turns": lambda: self._turns(header["handles"]),
            "anchor": lambda: self._set_anchor(header["handle"]),
            "peak": lambda: {"flops": self._stand.peak()},
            "drop": lambda: self._drop(header["handles"]),
        }
        return handlers[op](), b""

    def _load(
        self, handle: int, config: dict[str, Any], scratch: int, code: bytes, *, known: bool
    ) -> dict[str, Any]:  # fmt: skip
        """What was checked before, when it was loaded, is not until it has run again."""
        node = candidate(self._task, self._shop.target, _config(config))
        loaded = Candidate(self._stand, Program(code, scratch), node, self._task.held)
        try:
            if known:
                loaded.run(self._packed, len(self._packed.cases) - 1)
            for number, case in enumerate(self._packed.cases if not known else ()):
                loaded.run(self._packed, number)
                loaded.check_results(case)
        except CandidateError:
            loaded.close()
            raise
        self._loaded[handle] = loaded
        return {}

    def _time(self, handle: int, record: float) -> dict[str, Any]:
        loaded = self._loaded[handle]
        before = self._reading()
        timing = take(self._sample(loaded), self._shop.rule, record, loaded.seconds, self._patience.times)
        self._patience.learn(timing.noisy)
        after = self._reading(fresh=before[1])
        self._check_again(loaded)
        return {"samples": _samples(timing), "anchor": [before[0], after[0]]}

    def _turns(self, handles: Sequence[int]) -> dict[str, Any]:
        loaded = [self._loaded[h] for h in handles]
        before = self._reading()
        timings = take_in_turns([self._sample(c) for c in loaded], self._shop.rule)
        after = self._reading(fresh=before[1])
        for c in loaded:
            self._check_again(c)
        return {"samples": [_samples(t) for t in timings], "anchor": [before[0], after[0]]}

    def _sample(self, loaded: Candidate) -> Sample:
        return loaded.cold_sample if self._shop.rule.flush else loaded.sample

    def _check_again(self, loaded: Candidate) -> None:
        """After many runs: threads that get into each other's way do so only at times."""
        loaded.check_memory()
        loaded.check_results(self._packed.cases[-1])

    def _set_anchor(self, handle: int) -> dict[str, Any]:
        rule = self._shop.rule
        sample = self._sample(self._loaded[handle])
        timing = take(sample, Rule(rule.sample_seconds, rule.samples, rule.budget / 4, flush=rule.flush))
        # a call each time where it takes a millisecond, about as long where it takes less
        self._anchor = sample, 1 if rule.flush else max(1, round(1e6 / max(1.0, timing.seconds * 1e9)))
        return {"ns": min(self._reading(fresh=time.monotonic())[0], min(timing.ns) / timing.calls)}

    def _reading(self, fresh: float = 0.0) -> tuple[float, float]:
        """Nanoseconds of a call of the anchor, and when that was.

        Args:
            fresh: a reading at this time or before is too old.
        """
        assert self._anchor is not None, "no anchor"
        now = time.monotonic()
        value, when, cost = self._last
        if when > fresh and now - when < _ANCHOR_AGE:
            return value, when
        if fresh and when and now - fresh < _ANCHOR_SHARE * cost:
            return value, when
        sample, calls = self._anchor
        runs = _ANCHOR_COLD if self._shop.rule.flush else _ANCHOR_RUNS
        value = min(sample(calls) for _ in range(runs)) / calls
        self._last = (value, time.monotonic(), time.monotonic() - now)
        return self._last[:2]

    def _drop(self, handles: Sequence[int]) -> dict[str, Any]:
        for handle in handles:
            self._loaded.pop(handle).close()
        return {}


class ExactRunner(Runner):
    """On a bench whose times are computed: that of the run whose results were compared says all."""

    _untuned = 1.0  # nanoseconds

    def _time(self, handle: int, record: float) -> dict[str, Any]:
        return {"samples": _samples(_computed(self._loaded[handle])), "anchor": [self._untuned] * 2}

    def _turns(self, handles: Sequence[int]) -> dict[str, Any]:
        found = [_samples(_computed(self._loaded[h])) for h in handles]
        return {"samples": found, "anchor": [self._untuned] * 2}

    def _set_anchor(self, handle: int) -> dict[str, Any]:
        self._untuned = _computed(self._loaded[handle]).seconds * 1e9
        return {"ns": self._untuned}


def _computed(loaded: Candidate) -> Timing:
    return Timing(1, (max(1, round(loaded.seconds * 1e9)),) * FEWEST)


def _samples(timing: Timing) -> dict[str, Any]:
    return {"calls": timing.calls, "ns": list(timing.ns)}


def _config(config: dict[str, Any]) -> Config:
    return {name: frozen(value) for name, value in config.items()}


def _with_largest(got: np.ndarray, expected: np.ndarray, results: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Both with one more element, equal, as large as the largest of all results of that type."""
    largest = max(
        (np.abs(r[np.isfinite(r)]).max(initial=0) for r in results if r.dtype == got.dtype and r.dtype.kind == "f"),
        default=0,
    )
    return tuple(np.append(a, np.asarray(largest, a.dtype)) for a in (got, expected))


def _protect(memory: mmap.mmap) -> None:
    """Makes shared memory read-only in this process: a kernel gone astray shall not spoil the reference."""
    view = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.mprotect(view.ctypes.data, len(view), 1)  # PROT_READ
