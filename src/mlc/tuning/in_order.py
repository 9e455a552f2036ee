"""The joint stage of a network: one complex operator after the other gets its layouts (ALT §5.2, §6).

A layout decides how the operands of whatever follows lie, and so which workloads follow. Hence an operator's turn comes
when all before it have theirs; the loop-only stage then tunes the workloads that there are in the end. Operators on
whose layouts no others depend, as on an accelerator that lets results lie as their readers ask, are left to that stage.
"""

from __future__ import annotations

from collections import defaultdict
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
_NOTHING = 1e-9  # of a share, which rounding may leave of one that is used up


@dataclass(frozen=True)
class Joint:
    """What came of it.

    Args:
        outcomes: of the operators' searches in order.
        left: operators whose turn did not come.
    """

    outcomes: tuple[Outcome, ...] = ()
    left: int = 0

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return any(o.interrupted for o in self.outcomes)

    @property
    def seconds(self) -> float:
        """That it took."""
        return sum(o.seconds for o in self.outcomes)

    def before(self, outcome: Outcome) -> Outcome:
        """The outcome of a run of which this was the beginning; it tells the comparisons made here as well."""
        compared = {s.task.key: s for o in self.outcomes for s in o.states if s.gain is not None and not s.open}
        for state in outcome.states:
            if state.resumed and state.task.key in compared:
                state.untuned, state.resumed = compared[state.task.key].untuned, False
        every = (*self.outcomes, outcome)
        return replace(
            outcome,
            trials=sum(o.trials for o in every),
            seconds=sum(o.seconds for o in every),
            exploring=sum(o.exploring for o in every),
            unreached=self.left,
        )

    def alone(self) -> Outcome:
        """The outcome of a run that was stopped in this stage."""
        *_, last = self.outcomes
        nothing = replace(last, trials=0, seconds=0.0, exploring=0.0)
        return replace(self.before(nothing), states=tuple(s for o in self.outcomes for s in o.states))


@dataclass
class _Turn:
    """What a task has had, by its records.

    Args:
        before: trials of runs that did not come to its layouts.
        trials: since then, until its layouts were decided.
        searched: whether some of these were of layouts.
        settled: whether they were decided.
    """

    before: int = 0
    trials: int = 0
    searched: bool = False
    settled: bool = False

    def go_on(self, record: Record) -> None:
        """Takes the next record of the task."""
        if self.settled:
            return
        self.searched |= LEVELS in record.config
        if record.explorer != DECIDED:
            self.trials += 1
        elif self.searched:
            self.settled = True
        else:
            self.before, self.trials = self.before + self.trials, 0


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

    def turns(self, flushed: bool) -> defaultdict[str, _Turn]:
        """What tasks have had with empty caches or without, by their keys."""
        here = Fingerprint.of(self.target), self.threads, flushed
        found: defaultdict[str, _Turn] = defaultdict(_Turn)
        for r in self._records():
            if (r.fingerprint, r.threads, r.flushed) == here:
                found[r.workload].go_on(r)
        for turn in found.values():
            if not turn.searched:
                turn.before, turn.trials = turn.before + turn.trials, 0
        return found

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
    search: Callable[[Task, int, TuneOptions], Outcome],
    flushed: bool,
    options: TuneOptions,
    watch: Callable[[str, int, int], None],
) -> Joint:
    """Gives complex operators their layouts, in topological order.

    Args:
        network: whose operators.
        search: tunes a task, layouts and loops, and decides; is told the task's position among all as well.
        flushed: whether caches are emptied before every timed call.
        options: of the whole run, of which this takes its share.
        watch: is told of an operator's name, how many are done, and how many there are as far as is known.
    """
    outcomes: list[Outcome] = []
    tried: set[str] = set()
    share, per_task = _share(network, flushed, options), options.trials_per_task
    while True:
        tasks, numbers = network.tasks()
        there, turns = _deciding(tasks, network.target, options), network.turns(flushed)
        left = [t for t in there if t.key not in tried and not turns[t.key].settled]
        rest = None if options.trials is None else max(0, options.trials - network.measured(tasks, flushed))
        if not left or share <= _NOTHING or rest == 0 or any(o.interrupted for o in outcomes):
            return Joint(tuple(outcomes), len(left))
        task, part = left[0], share / len(left)
        turn = turns[task.key]
        tried.add(task.key)
        watch(task.name, len(there) - len(left), len(there))
        known = network.measured([task], flushed)  # which counts towards what a task may have
        limits = [] if rest is None else [turn.before + max(LEAST, round(part * (options.trials or 0))), known + rest]
        if per_task is not None:
            limits.append(min(per_task, turn.before + max(LEAST, round(JOINT_OF_NETWORKS * per_task))))
        seconds = None if options.time_budget is None else part * options.time_budget
        trials = min(limits, default=None)
        limited = replace(options, joint=1.0, trials=trials, trials_per_task=None, time_budget=seconds)
        outcomes.append(search(task, numbers[tasks.index(task)], limited))
        used = [(turn.trials + outcomes[-1].trials) / options.trials] if options.trials else []
        used += [outcomes[-1].seconds / options.time_budget] if options.time_budget else []
        share -= max(used, default=part)


def _share(network: Network, flushed: bool, options: TuneOptions) -> float:
    """What this stage may take of a run, less what the operators that earlier runs have settled took of it."""
    there, turns = _deciding(network.tasks()[0], network.target, options), network.turns(flushed)
    settled = [turns[t.key] for t in there if turns[t.key].settled]
    if options.trials:
        return JOINT_OF_NETWORKS - sum(turn.trials for turn in settled) / options.trials
    return JOINT_OF_NETWORKS * (1 - len(settled) / max(len(there), 1))
