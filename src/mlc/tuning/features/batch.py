"""Configurations of a task as features, thousands at once: structure by structure, then all together."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir.graph import Node
from mlc.lower.inline import inline
from mlc.lower.knobs import Config, Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import Values, Ways
from mlc.lower.terms import Term
from mlc.targets.base import Target, Whole
from mlc.tuning.features.context import (
    BRANCH,
    BUFFERS,
    LOOPS,
    NODES,
    NUMBERS,
    OTHERS,
    PER_LOOP,
    SIZES,
    Chains,
    Outline,
    contexts,
    described,
    numbers_of_chain,
    outline_of,
    relation,
)
from mlc.tuning.features.grid import FEATURES, features
from mlc.tuning.features.grid import NUMBERS as GRID_NUMBERS
from mlc.tuning.features.identity import identity_of
from mlc.tuning.features.nest import Nests
from mlc.tuning.features.nodes import NODE, nodes
from mlc.tuning.features.program import Program, Programs
from mlc.tuning.foreign import ForeignError, ask
from mlc.tuning.task import Task, candidate, schedule_of

_TOGETHER = 1000  # configurations whose features are computed at once: what fits a cache
_LOGGER = logging.getLogger("mlc")


@dataclass(frozen=True, eq=False)
class _Unknown:
    """What there is of a configuration on which the template, or what describes its schedules, has failed."""


@dataclass(frozen=True, eq=False)
class _Compiled:
    """What describes all configurations that take some ways.

    Args:
        number: its position among all of them.
        outline: what their features are made of.
        program: gives the outline's numbers.
        terms: what the program starts from.
    """

    number: int
    outline: Outline
    program: Program
    terms: tuple[Term, ...]


class LoopFeatures:
    """Describes configurations of one task by their loops.

    Where a template fails with anything but a refusal, that costs the configuration its description and not the run its
    life: the log has a warning, and the trial goes ahead, in which whoever builds the configuration says what became of
    it.

    Args:
        task: whose configurations.
        target: whose schedules.
        loops: whether to give the features of single loops.
        relation: whether to give those of their relation.
        tree: whether to give those of all loops as a tree, in place of the others.
    """

    def __init__(
        self, task: Task, target: Target, *, loops: bool = True, relation: bool = True, tree: bool = False
    ) -> None:
        self._name, self._space = task.name, task.space
        self._wanted = (loops, relation)
        self._tree = tree
        self._grid = isinstance(target.accelerator, Whole) and not tree
        node = candidate(task, target, task.space.default)

        def template(knobs: Knobs) -> _Compiled | _Unknown | None:
            try:
                # as it is described, in an expression that nobody may have thought of, something may fail as well
                return ask(lambda: self._look(_scheduled(task, node, target, knobs)), let=(ScheduleError,))
            except ForeignError as error:
                return self._unknown(knobs.config, str(error))

        self._troubles: set[str] = set()
        self._ways = Ways(template, task.space)
        self._programs = Programs()
        # ways that differ in what features do not tell, such as prefetches, are one
        self._alike: dict[Hashable, _Compiled] = {}  # by their loop nests
        self._known: dict[Hashable, _Compiled] = {}  # by what features are made of
        self._chains = Chains.of([])

    @classmethod
    def of(cls, task: Task, target: Target, *, tree: bool = False) -> LoopFeatures | None:
        """What describes a task; nothing where no one schedule does, as on an accelerator that plans its own."""
        own = task.constants is None or isinstance(target.accelerator, Whole)
        return cls(task, target, tree=tree) if own else None

    @property
    def width(self) -> int:
        """Number of features."""
        loops, relation = self._wanted
        grid = FEATURES if self._grid else 0
        return (LOOPS * PER_LOOP if loops else 0) + (3 * BUFFERS * len(SIZES) if relation else 0) + 3 * OTHERS + grid

    def valid(self, rows: np.ndarray) -> np.ndarray:
        """Which configurations the template accepts: bool ``[n]``; the lowering may still refuse some."""
        good = np.zeros(len(rows), bool)
        for way, at in self._ways.split(rows):
            good[at] = way.result is not None
        return good

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """float32 ``[n, width]``, or ``[n, NODES, NODE + PER_LOOP]`` of a tree (see :mod:`~mlc.tuning.features.nodes`).

        Zeros for configurations that the template refuses or fails on.
        """
        found = np.zeros((len(rows), NODES, NODE + PER_LOOP) if self._tree else (len(rows), self.width), np.float32)
        for at, which, numbers in self._described(rows):
            chains = self._chains[which]
            loops, others = described(numbers, chains)
            if self._tree:
                found[at] = self._nodes(which, numbers, loops)
                continue
            parts = [others, features(numbers[NUMBERS:])] if self._grid else [others]
            if self._wanted[1]:
                parts.insert(0, relation(loops, chains.loops))
            if self._wanted[0]:
                parts.insert(0, loops.reshape(LOOPS * PER_LOOP, -1))
            found[at] = np.concatenate(parts).T
        return found

    def _nodes(self, which: np.ndarray, numbers: np.ndarray, loops: np.ndarray) -> np.ndarray:
        """All loops of some configurations as trees: those of the heaviest stage are described already."""
        parts = [loops]
        for k, branches in enumerate(self._branches):
            first = NUMBERS + k * numbers_of_chain(BRANCH)
            parts.append(contexts(numbers[first : first + numbers_of_chain(BRANCH)], branches[which], BRANCH))
        return nodes(np.concatenate(parts).transpose(2, 0, 1), self._parents[which], self._names[which])

    def _described(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Indices of some configurations, which outline each of them has, and its numbers."""
        order, which, numbers = self._numbers(rows)
        if len(self._chains.loops) < len(self._known):
            outlines = [c.outline for c in self._known.values()]
            self._chains = Chains.of([o.chain for o in outlines])
            trees = [o.tree for o in outlines if o.tree is not None]
            if trees:
                self._branches = [Chains.of([t.branches[k] for t in trees]) for k in range(OTHERS)]
                self._parents, self._names = np.array([t.parents for t in trees]), np.array([t.names for t in trees])
        for first in range(0, len(order), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            yield order[some], which[some], numbers[:, some]

    def _numbers(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of outlines.

        Returns:
            indices of the configurations that can be described, int64 ``[m]``; which outline each of them has, int64
            ``[m]``; its numbers, float64 ``[numbers, m]``.
        """
        parts: dict[Program, list[tuple[_Compiled, np.ndarray]]] = {}
        for way, at in self._ways.split(rows):
            if isinstance(way.result, _Compiled):
                parts.setdefault(way.result.program, []).append((way.result, at))
        # configurations with as many loops come together
        stacks = sorted(parts.items(), key=lambda item: item[1][0][0].outline.chain.loops)
        members = [member for _, stack in stacks for member in stack]
        total = sum(len(at) for _, at in members)
        more = GRID_NUMBERS if self._grid else OTHERS * numbers_of_chain(BRANCH) if self._tree else 0
        numbers = np.empty((NUMBERS + more, total))
        columns = _Columns(Values(self._space, rows))
        first = 0
        for program, stack in stacks:
            last = first + sum(len(at) for _, at in stack)
            terms = [
                np.concatenate([columns[compiled.terms[k]][at] for compiled, at in stack])
                for k in range(len(stack[0][0].terms))
            ]
            program.run(terms, numbers[:, first:last])
            first = last
        order = np.concatenate([np.zeros(0, np.int64), *(at for _, at in members)])
        return order, np.repeat([c.number for c, _ in members], [len(at) for _, at in members]), numbers

    def _look(self, schedule: Schedule | None) -> _Compiled | None:
        """What describes all configurations that have such a schedule."""
        if schedule is None:
            return None
        identity = identity_of(schedule)
        if identity not in self._alike:
            self._alike[identity] = self._description(schedule)
        return self._alike[identity]

    def _description(self, schedule: Schedule) -> _Compiled:
        outline = outline_of(Nests(schedule, self._ways.terms), grid=self._grid, tree=self._tree)
        key = outline.key
        if key not in self._known:
            self._known[key] = _Compiled(len(self._known), outline, *self._programs.of(outline.numbers))
        return self._known[key]

    def _unknown(self, config: Config, text: str) -> _Unknown:
        """Says what went wrong, once."""
        if text not in self._troubles:
            self._troubles.add(text)
            shown = ", ".join(f"{name}={value}" for name, value in config.items())
            _LOGGER.warning(
                "%s: a configuration cannot be described and is tried without: %s (%s)",
                self._name, text, shown[:200],
            )  # fmt: skip
        return _Unknown()


def _scheduled(task: Task, node: Node, target: Target, knobs: Knobs) -> Schedule | None:
    """The schedule that a template makes, inlined."""
    schedule = schedule_of(task, node, target, knobs)
    if schedule is not None:
        inline(schedule)
    return schedule


class _Columns(dict[Term, np.ndarray]):
    """Values of terms for all configurations of a batch, float64 ``[n]``."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def __missing__(self, term: Term) -> np.ndarray:
        found = np.broadcast_to(np.asarray(self._values.of(term), np.float64), len(self._values.rows))
        self[term] = found
        return found
