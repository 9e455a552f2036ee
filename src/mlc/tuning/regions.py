"""Regions of an accelerator, whole: which configurations of their groups are fastest together.

A group that was faster alone may be slower between others: its program begins while the one before still ends, and
loads for the one behind. So the fastest trials of every group, and what else is expected to be fast, are tried in the
region, one group after the other, and what makes the region faster stays. Results are those of the untuned region, bit
by bit where they are integers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.errors import MlcError
from mlc.harness.feeds import Fill, make_feeds
from mlc.ir.graph import Graph, Node
from mlc.ir.site import Site
from mlc.lower.knobs import Config
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.graph import Kernels, compile_graph, compiled_region
from mlc.pipeline.layouts import Part, lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.rewrite.group import configured, is_group
from mlc.rewrite.workload import workload_document, workload_key
from mlc.runtime.tensor_spec import TensorSpec
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Accelerator, CompiledRegion, Target, Tunable
from mlc.targets.bench import Program, Stand
from mlc.tuning.joint import Neighbours

FASTEST, LIKELY = 4, 20  # configurations of each group that are tried: fastest alone, expected to be fast
LONGEST = 600.0  # seconds that the search may take
_GAIN = 1e-9  # of the time, below which a region is not faster

Chosen = Mapping[str, Config]  # configurations by workload; groups without one take their defaults
_Key = tuple[tuple[str, tuple[tuple[str, object], ...]], ...]


@dataclass(frozen=True)
class Found:
    """What was found.

    Args:
        untuned, tuned: seconds of one run of all regions.
        error: greatest difference of their results, over the greatest magnitude.
        chosen: what is fastest together.
    """

    untuned: float
    tuned: float
    error: float
    chosen: Chosen


class _Configurations:
    """Gives groups what was chosen, and notes which there are."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self.workloads: set[str] = set()
        self.refused = False

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        return None  # regions are divided off with the target's own choice

    def configure(self, node: Node, site: Site) -> Node:
        if not is_group(node):
            return node
        key = workload_key(workload_document(node, site))
        self.workloads.add(key)
        return configured(node, self._chosen[key]) if key in self._chosen else node

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        self.refused = True


class _Region:
    """One region on the accelerator's bench."""

    def __init__(self, part: Part, accelerator: Accelerator, stand: Stand, options: CompileOptions) -> None:
        self._part, self._accelerator, self._stand, self._options = part, accelerator, stand, options
        self._kernels = Kernels()
        self._known: dict[_Key, float | None] = {}
        self._measurements: dict[_Key, tuple[float, list[np.ndarray]]] = {}
        seen = _Configurations({})
        lay_out(part, options, Observer(), seen)
        self.workloads = seen.workloads

    def seconds(self, chosen: Chosen) -> float | None:
        """Seconds of one run; ``None`` where the configurations are refused together."""
        key = self._key(chosen)
        if key not in self._known:
            try:
                compiled = self._compiled(chosen)
                told = None
                if compiled is not None and isinstance(self._accelerator, Tunable):
                    told = self._accelerator.region_seconds(compiled)
                self._known[key] = self.run(chosen)[0] if compiled is not None and told is None else told
            except MlcError:
                if not key:
                    raise
                self._known[key] = None
        return self._known[key]

    def run(self, chosen: Chosen) -> tuple[float, list[np.ndarray]]:
        """Seconds and results of one run; the configurations are not refused."""
        key = self._key(chosen)
        if key not in self._measurements:
            compiled = self._compiled(chosen)
            assert compiled is not None
            self._measurements[key] = self._measured(compiled)
        return self._measurements[key]

    def _key(self, chosen: Chosen) -> _Key:
        return tuple(sorted((k, tuple(sorted(chosen[k].items()))) for k in self.workloads & set(chosen)))

    def _compiled(self, chosen: Chosen) -> CompiledRegion | None:
        configurations = _Configurations(chosen)
        graph = lay_out(self._part, self._options, Observer(), configurations)
        if configurations.refused:
            return None
        return compiled_region(compile_graph(graph, self._part.machine, Observer(), table=self._kernels))

    def _measured(self, compiled: CompiledRegion) -> tuple[float, list[np.ndarray]]:
        assert self._part.region is not None
        graph = compiled.graph
        program = self._accelerator.codegen(compiled, self._part.region.attrs["name"])
        node = Node(self._part.region.op, graph.inputs, self._part.region.attrs, graph.outputs, ())
        loaded = self._stand.load(Program(program.data), node, [False] * len(graph.inputs))
        try:
            specs = [TensorSpec(f"{k}", v.type.dtype.name, v.type.shape) for k, v in enumerate(graph.inputs)]
            feeds = make_feeds(specs, Fill.RANDOM, 0)
            inputs = [
                feeds[f"{k}"] if v.type.layout is None else v.type.layout.pack(feeds[f"{k}"])
                for k, v in enumerate(graph.inputs)
            ]
            seconds = loaded.run(inputs, 0)
            results = [
                array.copy() if v.type.layout is None else v.type.layout.unpack(array)
                for v, array in zip(graph.outputs, loaded.results(), strict=True)
            ]
        finally:
            loaded.close()
        return seconds, results


def best_together(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    stand: Stand,
    near: Mapping[str, Neighbours],
    trials: Mapping[str, Sequence[Config]],
    *,
    longest: float = LONGEST,
    goes_on: Callable[[float], None] = lambda share: None,
) -> Found:
    """Choose configurations for the groups of all regions of a model.

    Args:
        graph: an imported model.
        target: with the accelerator.
        options: as for a compilation.
        stand: the accelerator's bench, open.
        near: what is next to configurations of every workload to choose for.
        trials: for each of them, configurations worth trying, the most promising one first.
        longest: seconds after which nothing more is tried.
        goes_on: is told which share of the work is done.
    """
    assert target.accelerator is not None
    fused = optimise(graph, target, options, Observer())
    parts = [part for part in parts_of(fused, target) if part.region is not None]
    search = _Search([_Region(part, target.accelerator, stand, options) for part in parts], longest, goes_on)
    search.together({workload: configs[0] for workload, configs in trials.items() if configs})
    for number, (workload, configs) in enumerate(trials.items()):
        search.one(workload, configs, number / len(trials) / 2)
    gained = True
    while gained:  # what is next to the best, and what may be better between others now, until nothing of it is
        gained = False
        for workload, neighbours in near.items():
            here = search.chosen.get(workload, neighbours.default)
            gained |= search.one(workload, [*neighbours.of(here), *trials.get(workload, ())], 0.5)
    return search.found()


class _Search:
    """The best configurations so far, and a clock."""

    def __init__(self, regions: Sequence[_Region], longest: float, goes_on: Callable[[float], None]) -> None:
        self.regions, self._longest, self._goes_on = regions, longest, goes_on
        self._start = time.monotonic()
        self.chosen: dict[str, Config] = {}
        untuned = self.seconds({}, regions)
        assert untuned is not None
        self.best = untuned

    def seconds(self, chosen: Chosen, some: Collection[_Region]) -> float | None:
        """Of one run of some regions; ``None`` where the configurations are refused together."""
        each = [region.seconds(chosen) for region in some]
        return None if None in each else sum(s for s in each if s is not None)

    def together(self, chosen: Chosen) -> None:
        """Try many at once."""
        took = self.seconds(chosen, self.regions)
        if took is not None and took < self.best:
            self.best, self.chosen = took, dict(chosen)

    def one(self, workload: str, configs: Sequence[Config], share: float) -> bool:
        """Try configurations of one workload; whether one of them is better."""
        some = [r for r in self.regions if workload in r.workloads]
        before, gained = self.seconds(self.chosen, some), False
        assert before is not None
        for config in configs:
            spent = time.monotonic() - self._start
            self._goes_on(min(1.0, max(share, spent / self._longest)))
            if spent > self._longest:
                break
            tried = {**self.chosen, workload: config}
            took = self.seconds(tried, some)
            if took is not None and took < before * (1 - _GAIN):
                self.best += took - before
                before, self.chosen, gained = took, tried, True
        return gained

    def found(self) -> Found:
        """What came of it; the untuned and the tuned regions are run, and their results compared."""
        untuned, tuned = ([region.run(chosen) for region in self.regions] for chosen in ({}, self.chosen))
        error = max((_difference(a, b) for a, b in zip(untuned, tuned, strict=True)), default=0.0)
        return Found(sum(s for s, _ in untuned), sum(s for s, _ in tuned), error, self.chosen)


def _difference(untuned: tuple[float, list[np.ndarray]], tuned: tuple[float, list[np.ndarray]]) -> float:
    found = 0.0
    for a, b in zip(untuned[1], tuned[1], strict=True):
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = float(np.abs(x).max(initial=0)) or 1.0
        found = max(found, float(np.abs(x - y).max(initial=0)) / scale)
    return found
