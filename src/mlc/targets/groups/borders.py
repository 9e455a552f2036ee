"""Rows of a convolution's windows that lie in the border around its input: they add zeros, and can be passed over."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from mlc.ir import te
from mlc.ir.expr import Expr, Load, all_of, const, loads, replace_loads, select, within
from mlc.ir.index import Linear, substitute
from mlc.lower.relayout import padded_load
from mlc.targets.groups.group import Group, border_of, replace_anchor
from mlc.targets.groups.roles import Convolution


def without_rows_in_border(g: Group) -> Group:
    """The group whose anchor's terms are conditional on their row being inside of the input.

    ``sum(pad[n, c, h + r, w + s] * k[o, c, r, s])`` becomes
    ``sum(select(0 <= h + r - 1 < H, pad[n, c, h + r - 1, w + s] * k[o, c, r, s], 0))``, where ``pad`` is left without a
    border above and below. Rows are all spatial axes but the last, which schedules make vectors or tiles of. Weights
    that are not finite lose the NaN that they make of a zero.
    """
    rows = _rows(g)
    if not rows:
        return g
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    columns = _columns(role.data, {d for d, _, _ in rows})
    at = {d: ix for d, ix, _ in rows}

    def swap(ld: Load) -> Expr:
        if ld.source is not role.data:
            return ld
        return Load(columns, tuple(at.get(d, ix) for d, ix in enumerate(ld.indices)))

    guard = all_of([within(ix, 0, n, tested=True) for _, ix, n in rows])
    body = replace_loads(anchor.bodies[0], swap)
    bodies = (select(guard, body, const(0, body.dtype)),)
    axes, reduce_axes = anchor.axes, anchor.reduce_axes
    replaced = te.Compute(anchor.name, axes, reduce_axes, bodies, anchor.combiner, anchor.tag, anchor.attrs)
    return replace_anchor(g, replaced)


def _columns(data: te.Tensor, rows: Collection[int]) -> te.Tensor:
    """A tensor with a border as it is without the border along some axes."""
    border = border_of(data)
    assert border is not None
    inside = padded_load(border.bodies[0])
    assert inside is not None
    x = inside.source
    shape = tuple(x.shape[d] if d in rows else n for d, n in enumerate(data.shape))

    def element(*at: Linear) -> Expr:
        env = dict(zip(border.axes, at, strict=True))
        places = [
            i if d in rows else substitute(ix, env) for d, (i, ix) in enumerate(zip(at, inside.indices, strict=True))
        ]
        guards = [within(ix, 0, n) for ix, n in zip(places, x.shape, strict=True)]
        return select(all_of(guards), x[tuple(places)], const(0, x.dtype))

    return te.compute(shape, element, border.name, tag=border.tag, axis_names=[a.name for a in border.axes])


def share_of_rows(g: Group) -> float:
    """The share of a convolution's rows of windows that are inside of its input; 1 where nothing is padded."""
    shares = []
    for _, ix, n in _rows(g):
        over = [(v, v.hi + 1) for v in ix.terms]
        places = [0]
        for v, count in over:
            places = [p + ix.terms[v] * k for p in places for k in range(count)]
        shares.append(sum(0 <= p + ix.const < n for p in places) / len(places))
    return prod(shares)


def _rows(g: Group) -> list[tuple[int, Linear, int]]:
    """For every row axis with a border: which it is, where in the input a term reads, and the input's extent."""
    role = g.role
    if g.anchor is None or not isinstance(role, Convolution):
        return []
    border = border_of(role.data)
    inside = None if border is None else padded_load(border.bodies[0])
    read = [ld for ld in loads(g.anchor.bodies[0]) if ld.source is role.data]
    if border is None or inside is None or len(read) != 1:
        return []
    env = dict(zip(border.axes, read[0].indices, strict=True))
    rows = range(2, len(role.data.shape) - 1)
    found = [(d, substitute(inside.indices[d], env), inside.source.shape[d]) for d in rows]
    return [(d, ix, n) for d, ix, n in found if ix.bounds()[0] < 0 or ix.bounds()[1] >= n]
