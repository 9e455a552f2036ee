"""A whole model, untuned and tuned, in turns: a tuned model is never the slower one beyond noise.

Kernels that were faster alone may be slower between others, whose data and weights fill the caches. So both models are
profiled in turns, kernels that lose go back to their untuned configuration, and the ends are timed again.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from mlc.build import build_package
from mlc.harness.feeds import Fill, make_feeds
from mlc.ir.graph import Graph
from mlc.pipeline.configurations import Configurations
from mlc.runtime import Module, load_module, write_package
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target

ROUNDS = 15
SECONDS = 4.0  # of runs in which two models are compared
PAIRS = 15  # comparisons at least
MOST, FEW = 30.0, 5  # seconds after which so many rounds or comparisons do: disturbances of a long run are its mean
REPEATS, SLOW = 3, 1.0  # profiles of a round, and seconds of these from which on there is one
LEAST = 0.005  # seconds that a time is taken over, of as many runs as it takes
LOSES = 1.02  # times as long as untuned from which a kernel goes back


@dataclass(frozen=True)
class Comparison:
    """Times of two versions of a model, from one measurement of both in turns.

    Args:
        untuned: seconds of a run.
        tuned: the same of the other.
        error: greatest difference of their results, over the greatest magnitude of the untuned ones.
    """

    untuned: float
    tuned: float
    error: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], error: float) -> Comparison:
        """What pairs of runs say, one run right after the other, so that what disturbs one disturbs both.

        The half of the pairs that took least together counts, since disturbances only ever take time. Times are
        geometric means: the ratio of the two is the mean ratio of the pairs.
        """
        calm = sorted(pairs, key=sum)[: (len(pairs) + 1) // 2]
        untuned, tuned = (math.exp(fmean(math.log(pair[k]) for pair in calm)) for k in (0, 1))
        return cls(untuned, tuned, error)

    @property
    def speedup(self) -> float:
        """How many times as fast the tuned one is."""
        return self.untuned / self.tuned


def build_file(
    graph: Graph, target: Target, options: CompileOptions, configurations: Configurations | None, path: Path
) -> Path:
    """Compiles a model into a package."""
    built = build_package(graph, target, options, Observer(), configurations)
    write_package(path, built.manifest, built.params, built.members)
    return path


def build_module(
    graph: Graph, target: Target, options: CompileOptions, threads: int, configurations: Configurations | None
) -> Module:
    """Compiles a model and loads it into this process."""
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        return load_module(build_file(graph, target, options, configurations, Path(folder) / "module.tar"), threads)


Share = Callable[[float], None]
"""Is told which share of some work is done."""


class Turns(Protocol):
    """Where two versions of a model, each a package, run in turns: this machine, or another one."""

    def losers(
        self, untuned: Path, tuned: Path, sources: Mapping[str, Collection[str]], goes_on: Share = lambda _: None
    ) -> set[str]:
        """Workloads whose kernels take longer in the tuned model; see :func:`losers`."""
        ...

    def compare(self, untuned: Path, tuned: Path, goes_on: Share = lambda _: None) -> Comparison:
        """Times of both, and how far their results differ; see :func:`compare`."""
        ...


class TurnsHere:
    """This machine. A context manager.

    Args:
        threads: that run a model.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._stack = ExitStack()
        self._modules: dict[Path, Module] = {}

    def losers(
        self, untuned: Path, tuned: Path, sources: Mapping[str, Collection[str]], goes_on: Share = lambda _: None
    ) -> set[str]:
        return losers(self._module(untuned), self._module(tuned), sources, goes_on=goes_on)

    def compare(self, untuned: Path, tuned: Path, goes_on: Share = lambda _: None) -> Comparison:
        return compare(self._module(untuned), self._module(tuned), goes_on=goes_on)

    def _module(self, path: Path) -> Module:
        if path not in self._modules:
            self._modules[path] = self._stack.enter_context(load_module(path, self._threads))
        return self._modules[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def compare(untuned: Module, tuned: Module, seed: int = 0, goes_on: Share = lambda _: None) -> Comparison:
    """Runs two versions of a model in turns, on the same random inputs."""
    feeds = make_feeds(untuned.inputs, Fill.RANDOM, seed)
    first, second = untuned.run(feeds, seed=seed), tuned.run(feeds, seed=seed)
    error = max((_difference(first[name], second[name]) for name in first), default=0.0)
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    spent = 0.0
    while len(pairs) < FEW or (spent < MOST and (len(pairs) < PAIRS or spent < SECONDS)):
        goes_on(min(len(pairs) / PAIRS, spent / SECONDS, 1.0))
        if len(pairs) % 2 == 0:
            before = seconds_of_run(untuned, feeds)
            pairs.append((before, seconds_of_run(tuned, feeds)))
        else:
            after = seconds_of_run(tuned, feeds)
            pairs.append((seconds_of_run(untuned, feeds), after))
        spent = time.perf_counter() - start
    return Comparison.of(pairs, error)


def losers(
    untuned: Module,
    tuned: Module,
    sources: Mapping[str, Collection[str]],
    seed: int = 0,
    goes_on: Share = lambda _: None,
) -> set[str]:
    """Workloads whose kernels take longer in the tuned model than in the untuned one.

    Args:
        untuned: has the same steps as ``tuned``.
        tuned: with configurations.
        sources: by workload, the first operators of its steps. Steps of one operator are not told apart: workloads
            that share it win or lose together.
        seed: of the inputs.
        goes_on: is told of every round.
    """
    feeds = make_feeds(untuned.inputs, Fill.RANDOM, seed)
    times: dict[str, tuple[list[float], list[float]]] = {key: ([], []) for key in sources}
    begun, repeats = time.perf_counter(), REPEATS
    for number in range(ROUNDS):
        if number >= FEW and time.perf_counter() > begun + MOST:
            break
        goes_on(number / ROUNDS)
        for which, module in enumerate((untuned, tuned)):
            spent: dict[str, float] = {}
            start = time.perf_counter()
            profiled = module.profile(feeds, repeats=repeats)
            if time.perf_counter() > start + SLOW:
                repeats = 1
            for step in profiled:
                for source in step.step.sources[:1]:
                    spent[source] = spent.get(source, 0.0) + step.median_ns
            for key, names in sources.items():
                times[key][which].append(sum(spent.get(name, 0.0) for name in set(names)))
    return {key for key, (before, after) in times.items() if _loses(before, after)}


def _loses(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether a kernel takes longer, at its best and in most rounds: what is disturbed now and then is only one."""
    return min(after) > LOSES * min(before) and median(b - LOSES * a for a, b in zip(before, after, strict=True)) > 0


def seconds_of_run(module: Module, feeds: Mapping[str, np.ndarray]) -> float:
    """Seconds of a run whose caches hold what the one before has left."""
    module.run(feeds)
    runs, start = 0, time.perf_counter()
    while not runs or time.perf_counter() - start < LEAST:
        module.run(feeds)
        runs += 1
    return (time.perf_counter() - start) / runs


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if not a.size or a.dtype.kind not in "fiu":
        return float(not np.array_equal(a, b))
    wide, other = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.isfinite(other[finite]).all() or not np.array_equal(wide[~finite], other[~finite], equal_nan=True):
        return float("inf")
    return float(
        np.abs(wide[finite] - other[finite]).max(initial=0.0) / max(np.abs(wide[finite]).max(initial=0.0), 1e-30)
    )
