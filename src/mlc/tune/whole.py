"""A whole model, untuned and tuned, in turns: a tuned model is never the slower one beyond noise.

Kernels that were faster alone may be slower between others, whose data and weights fill the caches. So both models are
profiled in turns, kernels that lose go back to their untuned configuration, and the ends are timed again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlc.build import build_package
from mlc.harness.feeds import Fill, make_feeds
from mlc.ir.graph import Graph
from mlc.rewrite.layout import Configure
from mlc.runtime import Module, load_module, write_package
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target

ROUNDS = 9
SECONDS = 0.2  # of runs of each model in a round
LOSES = 1.02  # times as long as untuned from which a kernel goes back


@dataclass(frozen=True)
class Comparison:
    """Times of two versions of a model.

    Args:
        untuned: median seconds of a run.
        tuned: the same of the other.
        error: greatest difference of their results, over the greatest magnitude of the untuned ones.
    """

    untuned: float
    tuned: float
    error: float

    @property
    def speedup(self) -> float:
        return self.untuned / self.tuned


def build_module(
    graph: Graph, target: Target, options: CompileOptions, threads: int, configure: Configure | None
) -> Module:
    """Compiles a model and loads it into this process."""
    built = build_package(graph, target, options, Observer(), configure)
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        path = Path(folder) / "module.tar"
        write_package(path, built.manifest, built.params, built.members)
        return load_module(path, threads)


def compare(untuned: Module, tuned: Module, seed: int = 0) -> Comparison:
    """Runs two versions of a model in turns, on the same random inputs."""
    feeds = make_feeds(untuned.inputs, Fill.RANDOM, seed)
    first, second = untuned.run(feeds), tuned.run(feeds)
    error = max((_difference(first[name], second[name]) for name in first), default=0.0)
    times: list[list[float]] = [[], []]
    for k in range(ROUNDS):
        order = (0, 1) if k % 2 == 0 else (1, 0)
        for which in order:
            times[which].append(_median_run((untuned, tuned)[which], feeds))
    return Comparison(float(np.median(times[0])), float(np.median(times[1])), error)


def losers(untuned: Module, tuned: Module, sources: Mapping[str, Collection[str]], seed: int = 0) -> set[str]:
    """Workloads whose kernels take longer in the tuned model than in the untuned one.

    Args:
        untuned: has the same steps as ``tuned``.
        tuned: with configurations.
        sources: by workload, the first operators of its steps. Steps of one operator are not told apart: workloads
            that share it win or lose together.
    """
    feeds = make_feeds(untuned.inputs, Fill.RANDOM, seed)
    best: list[dict[str, float]] = [{}, {}]
    for _ in range(ROUNDS):
        for which, module in enumerate((untuned, tuned)):
            spent: dict[str, float] = {}
            for step in module.profile(feeds, repeats=3):
                for source in step.step.sources[:1]:
                    spent[source] = spent.get(source, 0.0) + step.median_ns
            for key, names in sources.items():
                ns = sum(spent.get(name, 0.0) for name in set(names))
                best[which][key] = min(best[which].get(key, ns), ns)
    return {key for key, ns in best[1].items() if ns > LOSES * best[0][key]}


def _median_run(module: Module, feeds: Mapping[str, np.ndarray]) -> float:
    module.run(feeds)
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        module.run(feeds)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


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
