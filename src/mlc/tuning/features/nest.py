"""Loop nests of a traced schedule, with a term over knobs for every extent, stride and amount of memory.

The schedule has been traced once (:mod:`mlc.lower.symbolic`); regions of what is computed inside other loops are
inferred here by the same rules as in :mod:`mlc.lower.bounds`, without guards and without exact corners: these are
features, not code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import mul
from typing import Any

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import Atom, Linear, Quotient, Remainder, Var
from mlc.ir.loop import THREAD_AXES, ForKind
from mlc.lower.bounds import SHARED
from mlc.lower.relations import Split
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import real
from mlc.lower.terms import Terms

# what is the same for all configurations is a float, the rest a term
Number = Any
Extents = dict[Var, Number]


@dataclass(frozen=True, eq=False)
class Access:
    """Reads of one buffer, or the writes to it.

    Args:
        tensor: the buffer.
        indices: one form a dimension, over the axes of the stage.
    """

    tensor: te.Tensor
    indices: tuple[Linear, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """One loop around a stage's body, with what runs inside it.

    Args:
        extent: iterations.
        kind: how it runs.
        reduces: whether it sums up.
        touched: elements of each access that all iterations of this loop touch.
        stride: elements of each buffer between two neighbouring iterations.
    """

    extent: Number
    kind: ForKind
    reduces: bool
    touched: tuple[Number, ...]
    stride: tuple[Number, ...]


@dataclass(frozen=True, eq=False)
class StageNest:
    """A stage with all loops around its body, outermost first."""

    stage: Stage
    accesses: tuple[Access, ...]
    loops: tuple[Loop, ...]


class Nests:
    """The stages of one schedule.

    Args:
        schedule: inlined already, with symbolic split factors.
        terms: those of all schedules of the template.
    """

    def __init__(self, schedule: Schedule, terms: Terms) -> None:
        self._terms = terms
        self.stages = [s for s in schedule.stages if not s.inlined]
        self._readers = {
            s: [r for r in self.stages if any(t in r.op.inputs for t in s.op.outputs)] for s in self.stages
        }
        self._sizes: dict[Stage, dict[Var, Number]] = {}
        self._known_spans: dict[tuple[Stage, int], dict[Var, Number]] = {}
        self._known_regions: dict[tuple[Stage, Stage, int], dict[Var, Number]] = {}
        for stage in reversed(self.stages):
            self._sizes[stage] = self._iterations(stage)

    def _call(self, fn: str, *args: Number) -> Number:
        return self._terms.call(fn, *args)

    def _iterations(self, stage: Stage) -> dict[Var, Number]:
        """Extents of every axis, split and fused ones too, while the stage runs once at its attach point."""
        sizes = {a: real(a.hi + 1) for a in (*stage.op.axes, *stage.op.reduce_axes)}
        if stage.attach is not None:
            host = stage.attach.stage
            sizes |= self._region(stage, host, host.leaves.index(stage.attach.axis))
        for rel in stage.relations:
            if isinstance(rel, Split):
                whole = sizes[rel.parent]
                inner = self._call("least", real(rel.factor), self._call("most", whole, 1.0))
                sizes[rel.inner], sizes[rel.outer] = inner, self._call("ceil", whole / inner)
            else:
                sizes[rel.fused] = sizes[rel.outer] * sizes[rel.inner]
        return sizes

    def _spans(self, stage: Stage, first: int) -> dict[Var, Number]:
        """How far every axis moves while the leaves from ``first`` on run."""
        known = self._known_spans.get((stage, first))
        if known is not None:
            return known
        sizes = self._sizes[stage]
        spans: dict[Var, Number] = {leaf: sizes[leaf] if k >= first else 1.0 for k, leaf in enumerate(stage.leaves)}
        for rel in reversed(stage.relations):
            if isinstance(rel, Split):
                far = (spans[rel.outer] - 1) * sizes[rel.inner] + spans[rel.inner]
                spans[rel.parent] = self._call("least", far, sizes[rel.parent])
            else:
                moved, inner = spans[rel.fused], sizes[rel.inner]
                spans[rel.inner] = self._call("least", moved, inner)
                whole = self._call("at_least", moved, sizes[rel.fused])
                spans[rel.outer] = self._call("choose", whole, sizes[rel.outer], self._call("ceil", moved / inner))
        self._known_spans[stage, first] = spans
        return spans

    def _region(self, stage: Stage, host: Stage, at: int) -> dict[Var, Number]:
        """Extents of what a stage inside ``host`` computes for one iteration of the host's leaf number ``at``."""
        known = self._known_regions.get((stage, host, at))
        if known is not None:
            return known
        found: dict[Var, Number] = {}
        for reader, places in self._reads(stage, host):
            if reader is host:
                around: Extents = self._spans(host, at + 1)
                if stage.scope == SHARED:
                    around = around | self._of_block(host)
            else:
                sizes = self._sizes[reader]
                around = {r: sizes[r] for r in reader.op.reduce_axes} | self._region(reader, host, at)
            for axis, ix in places:
                span = self._call("least", self._far(ix, around), real(axis.hi + 1))
                found[axis] = self._call("most", found[axis], span) if axis in found else span
        self._known_regions[stage, host, at] = found
        return found

    def _of_block(self, stage: Stage) -> dict[Var, Number]:
        """How far the data axes of a stage move among the threads of a block that it is computed inside of."""
        if stage.attach is None:
            return {}
        host = stage.attach.stage
        own = [host.threads.get(a) in THREAD_AXES or host.kinds.get(a) is ForKind.VTHREAD for a in host.leaves]
        first = next((k for k, is_own in enumerate(own) if is_own), None)
        return {} if first is None else self._region(stage, host, first - 1)

    @staticmethod
    def _inside(stage: Stage, host: Stage) -> bool:
        while stage.attach is not None:
            stage = stage.attach.stage
            if stage is host:
                return True
        return False

    def _count(self, atom: Atom, spans: Extents) -> Number:
        """How many values an atom takes while axes move as far as ``spans`` says."""
        if type(atom) is Var:
            return spans.get(atom, 1.0)
        if type(atom) is Quotient:
            return self._call("ceil", self._far(atom.form, spans) / real(atom.divisor))
        if type(atom) is Remainder:
            return self._call("least", self._far(atom.form, spans), real(atom.divisor))
        return float(atom.hi - atom.lo + 1)

    def _far(self, index: Linear, spans: Extents) -> Number:
        """How far an index moves while axes move."""
        far: Number = 1.0
        for atom, c in index.terms.items():
            if type(atom) is Var and atom not in spans:
                continue
            far = far + abs(real(c)) * (self._count(atom, spans) - 1)
        return far

    def _many(self, index: Linear, spans: Extents) -> Number:
        """How many values an index takes while axes move."""
        counts = [self._count(a, spans) for a in index.terms if type(a) is not Var or a in spans]
        many = reduce(mul, counts, 1.0)
        return many if len(index.terms) == 1 else self._call("least", self._far(index, spans), many)

    def touched(self, access: Access, spans: Extents) -> Number:
        """Elements of a buffer that an access touches while axes move."""
        total: Number = 1.0
        for ix, n in zip(access.indices, access.tensor.shape, strict=True):
            if n > 1:
                total = total * self._call("least", self._many(ix, spans), real(n))
        return total

    def _steps(self, stage: Stage, leaf: Var) -> dict[Var, Number]:
        """How much every axis of a stage moves with one iteration of a leaf."""
        sizes = self._sizes[stage]
        step: dict[Var, Number] = {leaf: 1.0}
        for rel in reversed(stage.relations):
            if isinstance(rel, Split):
                if rel.outer in step:
                    step[rel.parent] = step[rel.outer] * sizes[rel.inner]
                elif rel.inner in step:
                    step[rel.parent] = step[rel.inner]
            elif rel.fused in step:
                several = self._call("at_least", sizes[rel.inner], 2.0)
                step[rel.inner] = self._call("choose", several, step[rel.fused], 0.0)
                step[rel.outer] = self._call("choose", several, 0.0, step[rel.fused])
        return step

    def stride(self, access: Access, steps: Extents) -> Number:
        """Elements of a buffer between two iterations that move axes by ``steps``."""
        shape = access.tensor.shape
        total: Number = 0.0
        for d, ix in enumerate(access.indices):
            total = total + real(prod(shape[d + 1 :])) * self._moved(ix, steps)
        return abs(total)

    def _moved(self, index: Linear, steps: Extents) -> Number:
        total: Number = 0.0
        for atom, c in index.terms.items():
            if type(atom) is Var:
                if atom in steps:
                    total = total + real(c) * steps[atom]
            elif type(atom) is Quotient:
                total = total + real(c) * self._call("floor", self._moved(atom.form, steps) / real(atom.divisor))
            elif type(atom) is Remainder:
                total = total + real(c) * (self._moved(atom.form, steps) % real(atom.divisor))
        return total

    def extent(self, stage: Stage, axis: Var) -> Number:
        """Iterations of one of a stage's axes."""
        return self._sizes[stage][axis]

    def elements(self, stage: Stage) -> Number:
        """Elements of a stage that are there at a time: of its region, where it is computed inside another one."""
        return reduce(mul, (self._sizes[stage][a] for a in stage.op.axes), 1.0)

    def greater(self, a: Number, b: Number) -> Number:
        """The greater one of two numbers."""
        return self._call("most", a, b)

    def steps(self, stage: Stage, host: Stage, leaf: Var) -> dict[Var, Number]:
        """How much every axis of a stage moves with one iteration of a leaf of it, or of one that it is inside."""
        return self._steps(stage, leaf) if host is stage else self._steps_through(stage, host, leaf)

    def apart(self, access: Access, steps: Extents) -> Number:
        """Elements between two accesses that move axes by ``steps``, in the buffer as it is: of a region, often."""
        maker = next((s for s in self.stages if access.tensor in s.op.outputs), None)
        if maker is None or maker.attach is None:
            return self.stride(access, steps)
        total: Number = 0.0
        run: Number = 1.0
        for axis, ix in zip(reversed(maker.op.axes), reversed(access.indices), strict=True):
            total = total + run * self._moved(ix, steps)
            run = run * self._sizes[maker][axis]
        return abs(total)

    def around(self, stage: Stage) -> Sequence[tuple[Stage, int]]:
        """Every loop around a stage's body, outermost first, as its stage and its place among the leaves there."""
        return _around(stage)

    def of(self, stage: Stage) -> StageNest:
        """A stage with all loops around it."""
        accesses = tuple(_accesses(stage.op))
        loops: list[Loop] = []
        for host, at in _around(stage):
            leaf = host.leaves[at]
            if host is stage:
                spans: Extents = self._spans(stage, at)
                steps: Extents = self._steps(stage, leaf)
            else:
                sizes = self._sizes[stage]
                reduced = {r: sizes[r] for r in stage.op.reduce_axes}
                spans = reduced | self._region(stage, host, at - 1)
                steps = self._steps_through(stage, host, leaf)
            touched = tuple(self.touched(a, spans) for a in accesses)
            stride = tuple(self.stride(a, steps) for a in accesses)
            kind = host.kinds.get(leaf, ForKind.SERIAL)
            loops.append(Loop(self._sizes[host][leaf], kind, host.is_reducing(leaf), touched, stride))
        return StageNest(stage, accesses, tuple(loops))

    def _steps_through(self, stage: Stage, host: Stage, leaf: Var) -> dict[Var, Number]:
        """How much the origin of an attached stage moves with one iteration of a host's loop."""
        found: dict[Var, Number] = {}
        for reader, places in self._reads(stage, host):
            steps: Extents = self._steps(host, leaf) if reader is host else self._steps_through(reader, host, leaf)
            for axis, ix in places:
                found.setdefault(axis, self._moved(ix, steps))
        return found

    def _reads(self, stage: Stage, host: Stage) -> Iterator[tuple[Stage, list[tuple[Var, Linear]]]]:
        """How ``host`` and what is computed inside it read a stage: who does, and the indices by the stage's axes."""
        for reader in self._readers[stage]:
            if reader is host or self._inside(reader, host):
                reads = [ld for body in reader.op.bodies for ld in loads(body) if ld.source in stage.op.outputs]
                yield reader, [pair for ld in reads for pair in zip(stage.op.axes, ld.indices, strict=True)]


def _accesses(op: te.Compute) -> Iterator[Access]:
    seen: set[tuple[int, tuple[Linear, ...]]] = set()
    for body in op.bodies:
        for ld in loads(body):
            key = (id(ld.source), tuple(ld.indices))
            if key not in seen:
                seen.add(key)
                yield Access(ld.source, tuple(ld.indices))
    own = tuple(Linear({a: 1}, 0) for a in op.axes)
    yield from (Access(t, own) for t in op.outputs[:1])


def _around(stage: Stage) -> Sequence[tuple[Stage, int]]:
    """Every loop around a stage's body, outermost first, as its stage and its place among the leaves there."""
    found = [(stage, k) for k in range(len(stage.leaves))]
    at = stage.attach
    while at is not None:
        found = [(at.stage, k) for k in range(at.stage.leaves.index(at.axis) + 1)] + found
        at = at.stage.attach
    return found
