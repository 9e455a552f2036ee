"""The joint stage of a network: one complex operator after the other gets its layouts (ALT §5.2, §6).

A layout decides how the operands of whatever follows lie, and so which workloads follow. Hence an operator's turn comes
when all before it have theirs; the loop-only stage then tunes the workloads that there are in the end. Operators on
whose layouts no others depend, as on an accelerator that lets results lie as their readers ask, are left to that stage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlc.ir.graph import Graph
from mlc.pipeline.configurations import Configurations
from mlc.records.files import read_records
from mlc.records.record import DECIDED, Fingerprint, Record
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LEVELS, Target
from mlc.tuning.algorithms import Chosen
from mlc.tuning.joint import JOINT_OF_NETWORKS, ROUND, layout_space
from mlc.tuning.options import TuneOptions
from mlc.tuning.session import Outcome
from mlc.tuning.task import Task, tasks_of

LEAST = 2 * ROUND  # trials of an operator


@dataclass(frozen=True)
class Joint:
    """What came of it.

    Args:
        outcomes: of the operators' searches in order.
    """

    outcomes: tuple[Outcome, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return any(o.interrupted for o in self.outcomes)

    @property
    def seconds(self) -> float:
        """That it took."""
        return sum(o.seconds for o in self.outcomes)

    def before(self, outcome: Outcome) -> Outcome:
        """The outcome of a run of which this was the beginning."""
        every = (*self.outcomes, outcome)
        return replace(
            outcome,
            trials=sum(o.trials for o in every),
            seconds=sum(o.seconds for o in every),
            exploring=sum(o.exploring for o in every),
        )

    def alone(self) -> Outcome:
        """The outcome of a run that was stopped in this stage."""
        *_, last = self.outcomes
        nothing = replace(last, trials=0, seconds=0.0, exploring=0.0)
        return replace(self.before(nothing), states=tuple(s for o in self.outcomes for s in o.states))


@dataclass(frozen=True)
class Network:
    """A model whose layouts are decided one by one.

    Args:
        graph: the imported model.
        target: what it is compiled for.
        options: as for a compilation.
        algorithms: know by which algorithm an operator is to be computed.
        threads: that run a kernel.
        path: of the records.
        sources: names of operators in the model's file; of those alone there are tasks.
    """

    graph: Graph
    target: Target
    options: CompileOptions
    algorithms: Configurations
    threads: int
    path: Path
    sources: Collection[str]

    def tasks(self) -> tuple[list[Task], list[int]]:
        """The tasks under the layouts that records have decided by now, and their positions among all."""
        layouts = Chosen(self._records(), self.target, self.threads)
        there = tasks_of(self.graph, self.target, self.options, Observer(), self.algorithms, layouts=layouts)
        some = [(t, k) for k, t in enumerate(there) if not set(self.sources).isdisjoint(t.sources)]
        return [t for t, _ in some], [k for _, k in some]

    def measured(self, tasks: Sequence[Task], flushed: bool) -> int:
        """How many trials some tasks have had, with empty caches or without."""
        here, keys = (Fingerprint.of(self.target), self.threads, flushed), {t.key for t in tasks}
        found = (r for r in self._records() if r.workload in keys and r.explorer != DECIDED)
        return sum((r.fingerprint, r.threads, r.flushed) == here for r in found)

    def settled(self, flushed: bool) -> set[str]:
        """Keys of tasks whose layouts were searched and decided, with empty caches or without."""
        here = Fingerprint.of(self.target), self.threads, flushed
        records = [r for r in self._records() if (r.fingerprint, r.threads, r.flushed) == here]
        searched = {r.workload for r in records if LEVELS in r.config}
        return {r.workload for r in records if r.explorer == DECIDED} & searched

    def _records(self) -> Sequence[Record]:
        return read_records([self.path]).records if self.path.exists() else []


def is_network(tasks: Sequence[Task], target: Target, options: TuneOptions) -> bool:
    """Whether layouts are searched, of several operators on whose layouts others depend."""
    return bool(options.layouts) and len(_deciding(tasks, target, options)) > 1


def _deciding(tasks: Sequence[Task], target: Target, options: TuneOptions) -> list[Task]:
    """The tasks whose layouts decide how the operands of others lie."""
    concerned = (t for t in tasks if not t.stands_alone(target))
    return [t for t in concerned if layout_space(t, target, options.layouts) is not None]


def search_in_order(
    network: Network,
    search: Callable[[Task, TuneOptions], Outcome],
    flushed: bool,
    options: TuneOptions,
    watch: Callable[[str, int, int], None],
) -> Joint:
    """Gives complex operators their layouts, in topological order.

    Args:
        network: whose operators.
        search: tunes a task, layouts and loops, and decides.
        flushed: whether caches are emptied before every timed call.
        options: of the whole run, of which this takes its share.
        watch: is told of an operator's name, how many are done, and how many there are as far as is known.
    """
    outcomes: list[Outcome] = []
    tried: set[str] = set()
    share, per_task = JOINT_OF_NETWORKS, options.trials_per_task
    while True:
        tasks = network.tasks()[0]
        there = _deciding(tasks, network.target, options)
        done = tried | network.settled(flushed)
        left = [t for t in there if t.key not in done]
        rest = None if options.trials is None else max(0, options.trials - network.measured(tasks, flushed))
        if not left or share <= 0 or rest == 0 or any(o.interrupted for o in outcomes):
            return Joint(tuple(outcomes))
        task, part = left[0], share / len(left)
        tried.add(task.key)
        watch(task.name, len(there) - len(left), len(there))
        known = network.measured([task], flushed)  # which counts towards what a task may have
        limits = [] if rest is None else [max(LEAST, round(part * (options.trials or 0))), known + rest]
        limits += [] if per_task is None else [min(per_task, max(LEAST, round(JOINT_OF_NETWORKS * per_task)))]
        seconds = None if options.time_budget is None else part * options.time_budget
        trials = min(limits, default=None)
        limited = replace(options, joint=1.0, trials=trials, trials_per_task=None, time_budget=seconds)
        outcomes.append(search(task, limited))
        used = [outcomes[-1].trials / options.trials] if options.trials else []
        used += [outcomes[-1].seconds / options.time_budget] if options.time_budget else []
        share -= max(used, default=part)
