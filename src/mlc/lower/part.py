"""A part of a result: the computes of a box of its elements, and of nothing that these do not need.

In: a tensor and a range of indices along each of its dimensions. Out: a tensor of the box's shape. What it reads is
computed where the box needs it, and nowhere else::

    pad[h: 58] = select(1 <= h < 57, x[h - 1], 0)        pad[h: 10] = select(h < 9, x[h + 47], 0)
    y[h: 56] = sum(pad[h + r] * w[r] for r in (3))       y[h: 8] = sum(pad[h + r] * w[r] for r in (3))

(the last eight rows). A schedule that computes the parts of a layer in different orders takes each of them like this.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import gcd

from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, replace_loads, substitute_vars
from mlc.ir.index import IndexLike, Linear, Var, as_index


@dataclass(frozen=True, slots=True)
class _Steps:
    """Indices ``first, first + step, …`` up to ``last``."""

    first: int
    last: int
    step: int

    @property
    def count(self) -> int:
        return (self.last - self.first) // self.step + 1

    def join(self, other: _Steps) -> _Steps:
        step = gcd(self.step, other.step, abs(self.first - other.first))
        return _Steps(min(self.first, other.first), max(self.last, other.last), step)


def part_of(
    t: te.Tensor, box: Sequence[tuple[int, int]], *, sparse: Collection[int] = (), whole: Collection[int] = ()
) -> te.Tensor:
    """The elements of a computed tensor within a box.

    Args:
        t: the tensor; all computes that it needs have one output each.
        box: begin and end along each dimension.
        sparse: dimensions of what it reads along which elements between those that are read are left out, too: of rows
            read as ``x[2*h]``, every other one.
        whole: dimensions of what it reads that are not cut.
    Returns:
        a tensor of the box's shape, over computes of its own and the same placeholders.
    """
    wanted: dict[te.Tensor, list[_Steps]] = {t: [_Steps(b, e - 1, 1) for b, e in box]}
    order = te.topological([t])
    cut: dict[te.Compute, tuple[tuple[Var, ...], tuple[Expr, ...]]] = {}
    for op in reversed(order):
        steps = wanted[op.outputs[0]]
        axes = tuple(Var(a.name, 0, s.count - 1) for a, s in zip(op.axes, steps, strict=True))
        env: dict[Var, IndexLike] = {
            a: as_index(v) * s.step + s.first for a, v, s in zip(op.axes, axes, steps, strict=True)
        }
        bodies = tuple(substitute_vars(b, env) for b in op.bodies)
        cut[op] = axes, bodies
        for ld in (ld for b in bodies for ld in loads(b) if ld.source.op is not None):
            read = [
                _Steps(0, n - 1, 1) if d in whole else _read(ix, n, d in sparse)
                for d, (ix, n) in enumerate(zip(ld.indices, ld.source.shape, strict=True))
            ]
            old = wanted.get(ld.source)
            wanted[ld.source] = read if old is None else [a.join(b) for a, b in zip(old, read, strict=True)]
    new: dict[te.Tensor, te.Tensor] = {}

    def swap(ld: Load) -> Expr:
        if ld.source not in new:
            return ld
        steps = wanted[ld.source]
        return Load(new[ld.source], tuple([(ix - s.first) // s.step for ix, s in zip(ld.indices, steps, strict=True)]))

    for op in order:
        axes, bodies = cut[op]
        bodies = tuple(replace_loads(b, swap) for b in bodies)
        fresh = te.Compute(op.name, axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs)
        new.update(zip(op.outputs, te.finish(fresh), strict=True))
    return new[t]


def _read(ix: Linear, extent: int, sparse: bool) -> _Steps:
    """Every index that a load may have; loads under a guard may name others, which count for nothing."""
    lo, hi = ix.bounds()
    if lo == hi:
        return _Steps(max(lo, 0), max(lo, 0), 1)
    step = gcd(*ix.terms.values()) if sparse and lo >= 0 and hi < extent else 1
    return _Steps(max(lo, 0), min(hi, extent - 1), step)
