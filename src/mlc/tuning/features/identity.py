"""What of a schedule its loop nests depend on, so that those of many alike schedules are looked at once.

Ways through a template that prefetch, unroll or guard differently have the same loops, and most do not differ in more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from mlc.ir.expr import loads
from mlc.ir.index import Atom, Dynamic, Linear, Var
from mlc.lower.relations import Split
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import Sym


def identity_of(schedule: Schedule) -> Hashable:
    """Equal for two inlined schedules whose loop nests are equal, formulas of sizes included.

    Sizes are told by their terms, so the schedules have to be of one :class:`~mlc.lower.symbolic.Ways`.
    """
    names = _Names()
    return tuple(names.stage(s) for s in schedule.stages if not s.inlined)


class _Names:
    """Numbers for tensors, axes, stages and indices known at run time, in order of first use."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, x: Any) -> int:
        return self._known.setdefault(x, len(self._known))

    def all(self, xs: Iterable[Any]) -> tuple[int, ...]:
        return tuple(map(self.of, xs))

    def stage(self, stage: Stage) -> Hashable:
        op, attach = stage.op, stage.attach
        return (
            self.of(stage),
            self.all(op.axes),
            self.all(op.reduce_axes),
            tuple(_both(a.hi) for a in (*op.axes, *op.reduce_axes)),
            tuple(self._tensor(t) for t in op.outputs),
            self.all(op.inputs),
            tuple(
                (self._tensor(ld.source), tuple(self._index(ix) for ix in ld.indices))
                for body in op.bodies
                for ld in loads(body)
            ),
            tuple(
                (self.of(rel.parent), self.of(rel.outer), self.of(rel.inner), _size(rel.factor))
                if isinstance(rel, Split)
                else (self.of(rel.outer), self.of(rel.inner), self.of(rel.fused))
                for rel in stage.relations
            ),
            tuple(
                (self.of(leaf), stage.kinds.get(leaf), stage.threads.get(leaf), stage.is_reducing(leaf))
                for leaf in stage.leaves
            ),
            stage.scope,
            None if attach is None else (self.of(attach.stage), self.of(attach.axis)),
        )

    def _tensor(self, tensor: Any) -> Hashable:
        return self.of(tensor), tuple(map(_both, tensor.shape)), tensor.dtype.itemsize

    def _index(self, index: Linear) -> Hashable:
        return _both(index.const), tuple((self._atom(a), _both(c)) for a, c in index.terms.items())

    def _atom(self, atom: Atom) -> Hashable:
        if type(atom) is Var:
            return self.of(atom)
        if type(atom) is Dynamic:
            return self.of(atom), _both(atom.lo), _both(atom.hi)
        return type(atom), self._index(atom.form), _both(atom.divisor)


def _size(x: int) -> Hashable:
    """A size as formulas know it: by its term, where it has one."""
    return (id(x.term),) if isinstance(x, Sym) else x


def _both(x: int) -> Hashable:
    """A number whose value in this run may matter, besides its term."""
    return (int(x), id(x.term)) if isinstance(x, Sym) else x
