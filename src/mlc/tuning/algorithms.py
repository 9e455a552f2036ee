"""Which algorithm computes an operator fastest: measured, before schedules are searched for the one that wins.

Every algorithm of an operator is compiled as a model of that operator alone, with the schedules that records know, and
these models run in turns. What wins is recorded like a configuration, under the operator's own key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from mlc.errors import MlcError
from mlc.harness.feeds import Fill, make_feeds
from mlc.ir import te
from mlc.ir.cost import operations
from mlc.ir.graph import Builder, Graph, Node, express
from mlc.ir.site import Site
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.passes import optimise
from mlc.records.best import best_of
from mlc.records.lookup import Tuned
from mlc.records.margins import Margins
from mlc.records.measurement import Measurement
from mlc.records.record import ALGORITHM, DECIDED, Fingerprint, Record
from mlc.rewrite.attention import spelled_out
from mlc.rewrite.bits import is_of_few_bits, with_few_bits
from mlc.rewrite.workload import Document, algorithm_document, workload_key
from mlc.runtime import Module
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target
from mlc.tuning.whole import build_module, seconds_of_run

_LOGGER = logging.getLogger("mlc")
ROUNDS = 9  # in which all algorithms of an operator take turns
WORTH = 0.97  # of the time of the target's own choice, from which another algorithm is taken
TOLERANCE = 1e-3  # of the largest result, between two algorithms


@dataclass(frozen=True, eq=False)
class Choice:
    """An operator that can be computed by several algorithms.

    Args:
        node: the operator.
        known: algorithms; the target's own choice comes first.
    """

    node: Node
    known: tuple[Algorithm, ...]

    @property
    def document(self) -> Document:
        return algorithm_document(self.node)

    @property
    def key(self) -> str:
        return workload_key(self.document)

    @property
    def name(self) -> str:
        return f"algorithm_of_{self.node.op.name}_" + "x".join(map(str, self.node.outputs[0].type.shape[1:]))

    @property
    def flops(self) -> int:
        """Operations of the operator's own expressions."""
        return operations(express(self.node, [te.placeholder(v.type.shape, v.type.dtype) for v in self.node.inputs]))

    @property
    def margins(self) -> tuple[Margins, ...]:
        return ()


class Chosen:
    """Algorithms that records, or somebody, have chosen; with the schedules that records know.

    Args:
        records: of this processor and others.
        target: what is compiled for.
        threads: that run a kernel.
        forced: algorithms by the keys of operators, whatever records say.
    """

    def __init__(
        self, records: Sequence[Record], target: Target, threads: int, forced: Mapping[str, Algorithm] | None = None
    ) -> None:
        self._tuned = Tuned(best_of(records, Fingerprint.of(target), threads), target)
        self._forced = dict(forced or {})

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        return self._forced.get(workload_key(algorithm_document(node))) or self._tuned.algorithm(node, known)

    def configure(self, node: Node, site: Site) -> Node:
        return self._tuned.configure(node, site)

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        self._tuned.refuse(group, reason)


class _Noted:
    """Notes every operator that there is a choice for, and chooses nothing."""

    def __init__(self) -> None:
        self.choices: dict[str, Choice] = {}

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        choice = Choice(node, tuple(known))
        self.choices.setdefault(choice.key, choice)
        return None

    def configure(self, node: Node, site: Site) -> Node:
        return node

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        raise AssertionError("a group without a configuration")


def choices_of(graph: Graph, target: Target, options: CompileOptions) -> list[Choice]:
    """The distinct operators of a model that there are several algorithms for, in order of first use."""
    noted = _Noted()
    optimise(graph, target, options, Observer(), configurations=noted)
    return list(noted.choices.values())


def measure_algorithms(
    choices: Sequence[Choice],
    records: Sequence[Record],
    target: Target,
    options: CompileOptions,
    threads: int,
    *,
    seed: int = 0,
    goes_on: Callable[[Choice, int], None] = lambda choice, done: None,
) -> list[Record]:
    """Runs the algorithms of each operator in turns; a record that settles it for each that was not settled before.

    Args:
        choices: operators.
        records: what is known already; those that settle an operator for this processor and as many threads hold.
        target: what to compile for; this machine has to run it.
        options: as for a compilation.
        threads: that run a kernel.
        seed: of weights and inputs.
        goes_on: is told which operator is next, and how many are done.
    Raises:
        DeviceError: this machine cannot run the target's code.
    """
    fingerprint = Fingerprint.of(target)
    settled = {r.workload for r in records if (r.fingerprint, r.threads) == (fingerprint, threads)}
    found = []
    for done, choice in enumerate(choices):
        if choice.key in settled:
            continue
        goes_on(choice, done)
        seconds = _seconds_of(choice, records, target, options, threads, seed)
        own = choice.known[0]
        best = min(seconds, key=lambda a: seconds[a])
        if own in seconds and seconds[best] > WORTH * seconds[own]:
            best = own
        _LOGGER.info("%s: %s", choice.name, ", ".join(f"{a} {1e3 * t:.3f} ms" for a, t in seconds.items()))
        found.append(
            Record.of(
                choice, {ALGORITHM: best.value}, Measurement(seconds[best]), fingerprint=fingerprint, threads=threads,
                explorer=DECIDED, seed=seed, trial=0,
            )
        )  # fmt: skip
    return found


def _seconds_of(
    choice: Choice, records: Sequence[Record], target: Target, options: CompileOptions, threads: int, seed: int
) -> dict[Algorithm, float]:
    """Seconds of a run by each algorithm that can be built and gives the results of the first."""
    graph = alone(choice.node, seed)
    with ExitStack() as stack:
        modules: dict[Algorithm, Module] = {}
        for algorithm in choice.known:
            chosen = Chosen(records, target, threads, {choice.key: algorithm})
            try:
                modules[algorithm] = stack.enter_context(build_module(graph, target, options, threads, chosen))
            except MlcError as error:
                if not modules:
                    raise
                _LOGGER.warning("%s by %s: %s", choice.name, algorithm, error.message)
        first = next(iter(modules.values()))
        feeds = make_feeds(first.inputs, Fill.RANDOM, seed)
        (wanted,) = first.run(feeds).values()
        for algorithm, module in list(modules.items()):
            (got,) = module.run(feeds).values()
            if not np.abs(got - wanted).max(initial=0) <= TOLERANCE * np.abs(wanted).max(initial=0):
                _LOGGER.warning("%s by %s: results differ too much", choice.name, algorithm)
                del modules[algorithm]
        times: dict[Algorithm, list[float]] = {a: [] for a in modules}
        for number in range(ROUNDS):
            order = list(modules.items())
            for algorithm, module in order if number % 2 else order[::-1]:
                times[algorithm].append(seconds_of_run(module, feeds))
    # what disturbs a run only ever takes time, so the calm half counts
    return {a: fmean(sorted(some)[: (ROUNDS + 1) // 2]) for a, some in times.items()}


def alone(node: Node, seed: int = 0) -> Graph:
    """A model of one operator, in the form in which its algorithms are chosen between.

    Args:
        node: a ``conv``, whose weights are drawn, an ``attention``, or a product of numbers of few bits.
        seed: of the weights.
    """
    if node.op is get("attention"):
        return spelled_out(node)
    rng = np.random.default_rng(seed)
    if is_of_few_bits(node):
        return with_few_bits(node, rng)
    b = Builder("algorithm")
    x, w = (v.type for v in node.inputs)
    if w.dtype.is_int:
        # as great as the type allows, so that what is told from them is told from these, too
        most = min(127, int(w.dtype.max_value))
        drawn = rng.integers(-most, most, w.shape, endpoint=True).astype(w.dtype.numpy)
    else:
        drawn = (rng.standard_normal(w.shape, np.float32) / np.sqrt(np.prod(w.shape[1:]))).astype(np.float32)
    inputs = [b.input("x", x), b.constant(drawn, "w")]
    return b.finish(b.add(node.op, inputs, node.attrs))
